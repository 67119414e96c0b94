"""`robolearn sweep --search` with Optuna and `--ray`, as a user runs them."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robolearn.cli import main
from robolearn.commands.sweep import grammar, state, table
from robolearn.commands.sweep.progress import Tail
from robolearn.commands.sweep.search import Search
from robolearn.errors import ConfigError
from robolearn.training import checkpoint
from tests.commands.sweeps import (
    ENDLESS,
    RATE,
    TINY,
    finish,
    iterations,
    same,
    start,
    statuses,
    until,
    weights,
)

pytestmark = pytest.mark.timeout(
    900
)  # of a busy machine: several processes that import torch, one after the other

SEARCH = [
    *TINY,
    f"{RATE}=tag(log,interval(1e-5,1e-2))",
    "--search",
    "--metric",
    "loss/learning_rate",
    "--jobs",
    "2",
]
"""The metric of a trial is its learning rate: what the best one is, is known."""


def logged(search: Search, run: state.RunState, values: list[float]) -> int | None:
    """The iteration in which a trial with these values of loss/x is pruned; it ends after them where it is not."""
    folder = search.sweep.path(run)
    folder.mkdir(parents=True, exist_ok=True)
    tail = Tail(folder)
    for i, value in enumerate(values, 1):
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": i, "loss/x": value}) + "\n")
        tail.read()
        if search.watch(run, tail):
            run.status = state.PRUNED
            search.ended(run, tail)
            return i
    if len(values) == run.iterations:
        run.status = state.FINISHED
        search.ended(run, tail)
    return None


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_a_trial_is_pruned_neither_before_three_others_came_so_far_nor_at_the_end(
    pruner: str, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    words = [*TINY, f"{RATE}=interval(1e-5,1e-2)", "max_iterations=20"]
    searched = state.SearchSettings(8, "loss/x", "maximize", pruner, 1)
    sweep = state.Sweep(tmp_path, words, search=searched, last=1)
    search = Search(sweep, grammar.parse(words, True), 1)

    def trial(values: list[float]) -> int | None:
        run = search.next()
        assert run is not None
        return logged(search, run, values)

    # Each is worse than the one before, and there are never three others.
    assert [trial([value] * 20) for value in (9.0, 8.0, 7.0)] == [None] * 3
    assert trial([10.0] * 16 + [1.0] * 4) is None  # it falls behind in the last fifth
    ended = trial([1.0] * 20)
    assert ended is not None
    assert 1 <= ended <= 16


def test_a_complete_trial_without_a_value_ends_the_search_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = [*TINY, f"{RATE}=interval(1e-5,1e-2)", "max_iterations=2"]
    searched = state.SearchSettings(8, "episode/return", "maximize", "none", 1)
    search = Search(state.Sweep(tmp_path, words, search=searched), grammar.parse(words, True), 1)
    run = search.next()
    assert run is not None
    with pytest.raises(ConfigError, match="no episode ended in 2 iterations"):
        logged(search, run, [1.0, 2.0])
    assert [trial.state.name for trial in search.study.trials] == ["FAIL"]


@pytest.mark.slow
def test_a_search_keeps_the_best_trial_and_prunes_worse_ones(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    # One at a time: which settings Optuna proposes, and which trials are worse, does not depend on the load.
    more = ["max_iterations=150", "--trials", "8", "--jobs", "1", f"output={folder}"]
    code, output = finish(start(folder, *SEARCH[:-2], *more))
    assert code == 0, output
    runs = state.load(folder).runs
    assert len(runs) == 8
    finished = [run for run in runs if run.status == state.FINISHED]
    pruned = [run for run in runs if run.status == state.PRUNED]
    assert len(finished) + len(pruned) == 8
    assert pruned
    for run in finished:
        assert run.value == pytest.approx(float(run.settings[RATE]))
    for run in pruned:
        assert 150 // 5 <= iterations(folder / run.name) < 150  # not before a fifth, and not at the end
        assert checkpoint.load(folder / run.name / "latest.pt")["iter"] == iterations(folder / run.name)
    best = max(float(run.settings[RATE]) for run in runs)
    assert f"robolearn train {' '.join(TINY)} {RATE}={best!r} max_iterations=150" in output
    assert best == max(float(run.settings[RATE]) for run in finished)
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert float(rows[0][RATE]) == best
    # The same command again has nothing to do, and with another aim it would go on with the first one's trials.
    other = [word if word != "loss/learning_rate" else "episode/return" for word in SEARCH[:-2]]
    code, output = finish(start(folder, *other, *more))
    assert code == 2, output
    assert "--metric" in output


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_with_its_trials(tmp_path: Path) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    folder = tmp_path / "s"
    words = [*SEARCH, "max_iterations=60", "--pruner", "none", "--trials", "4", f"output={folder}"]
    process = start(folder, *words)
    until(
        lambda: len(list(folder.glob("0*"))) >= 2 and all(iterations(run) > 10 for run in folder.glob("0*"))
    )
    process.kill()
    process.communicate()
    # What a kill within a write leaves; Optuna alone would wait for the lock, and not read beyond the cut line.
    (folder / "study.journal.lock").unlink(missing_ok=True)
    (folder / "study.journal.lock").symlink_to("study.journal")
    with (folder / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code":4,"wor')
    before = {run.name: run.settings for run in state.load(folder).runs}
    running = list(statuses(folder).values()).count(state.RUNNING)
    assert running
    code, output = finish(start(folder, f"resume={folder}", "--trials", "5"))
    assert code == 0, output
    found = state.load(folder)
    assert [run.name[:3] for run in found.runs] == ["000", "001", "002", "003", "004"]
    assert {run.name: run.settings for run in found.runs if run.name in before} == before
    assert {run.status for run in found.runs} == {state.FINISHED}
    assert len({run.settings[RATE] for run in found.runs}) == 5
    study = optuna.load_study(
        study_name="sweep",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.journal"))),
    )
    states = [trial.state.name for trial in study.trials]
    assert states.count("COMPLETE") == 5
    assert states.count("FAIL") == running  # those that were running when it was killed
    assert len(states) == 5 + running
    told = {trial.user_attrs["run"]: trial.value for trial in study.trials if trial.state.name == "COMPLETE"}
    assert told == {run.name: run.value for run in found.runs}


@pytest.mark.slow
def test_a_metric_that_no_run_has_ends_the_search_with_exit_code_2(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = [*SEARCH, *ENDLESS, f"output={folder}"]
    words[words.index("loss/learning_rate")] = "loss/learning_rat"
    code, output = finish(start(folder, *words))
    assert code == 2, output
    assert "did you mean loss/learning_rate" in output
    assert output.count("loss/learning_rat'") == 1
    assert state.RUNNING not in statuses(folder).values()


# ---------------------------------------------------------------------------------------- Ray


@pytest.mark.slow
def test_on_ray_a_sweep_trains_to_the_same_bits_and_stops_with_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "s"
    code, output = finish(start(folder, *TINY, "max_iterations=3", "seed=1,2", "--ray", f"output={folder}"))
    assert code == 0, output
    assert set(statuses(folder).values()) == {state.FINISHED}
    own = state.load(folder).own_threads
    assert main(["train", *TINY, "max_iterations=3", "seed=2", *own, f"output={tmp_path / 'alone'}"]) == 0
    assert same(weights(tmp_path / "alone"), weights(folder / "seed-2"))

    folder = tmp_path / "t"
    process = start(folder, *TINY, *ENDLESS, "seed=1,2", "--ray", f"output={folder}")
    until(lambda: iterations(folder / "seed-1") > 2)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 130, output
    assert statuses(folder)["seed-1"] == state.STOPPED
    assert checkpoint.load(folder / "seed-1" / "latest.pt")["iter"] >= 2
    assert not (folder / "seed-1" / ".stop").exists()


@pytest.mark.slow
def test_a_ray_cluster_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "robolearn.cli",
            "sweep",
            *TINY,
            "seed=1,2",
            "--ray",
            f"output={tmp_path / 's'}",
        ],
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
