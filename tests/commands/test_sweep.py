"""`robolearn sweep`: refusals before anything starts, the table, real sweeps that are stopped or killed and go on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from robolearn import config
from robolearn.cli import main
from robolearn.commands.sweep import columns, grammar, state, table
from robolearn.commands.sweep.jobs import LocalJob, Training, reason
from robolearn.commands.sweep.progress import Tail
from robolearn.commands.sweep.sweep import Options, resolve_all, share, sweep
from robolearn.errors import ConfigError, MissingError
from robolearn.files import holder
from robolearn.training import checkpoint
from tests.commands.runs import make_run
from tests.commands.sweeps import (
    RATE,
    TINY,
    finish,
    iterations,
    made_sweep,
    same,
    start,
    statuses,
    until,
    weights,
)

pytestmark = pytest.mark.timeout(
    900
)  # of a busy machine: several processes that import torch, one after the other

# ---------------------------------------------------------------------------------------- refusals


def refused(words: list[str], options: Options | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        sweep(words, options or Options())
    return str(caught.value)


def test_a_bad_combination_is_named_with_its_offender_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused([*TINY, "seed=1,2", "learner.gamma=0.9,1.5"])
    assert "seed=1" in said
    assert "learner.gamma=1.5" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "options", "offender"),
    [
        (["seed=1"], Options(), "nothing varies"),
        (["seed=1,,2"], Options(), "'seed=1,,2' has an empty value"),
        (["seed=1,2,"], Options(), "empty value"),
        (["seed=1..3"], Options(), "seed=range(1,4)"),
        (["seed=1-3"], Options(), "'1-3'"),
        (["seed=1,2"], Options(columns="nosuch"), "episode/return"),
        (["seed=1,2"], Options(columns="episode/retrun", show=True), "did you mean episode/return"),
        ([f"{RATE}=1e-4,1e-3"], Options(search=True, metric="nosuch"), "--metric 'nosuch'"),
        ([f"{RATE}=1e-4,1e-3"], Options(search=True, metric="episode/retrun", show=True), "episode/return"),
        ([f"{RATE}=1e-4,1e-3"], Options(search=True, direction="up", show=True), "up"),
        (["seed=1,2"], Options(trials=3), "--trials"),
        (["seed=1,2"], Options(metric="x"), "--metric"),
        (["seed=1,2"], Options(search=True), "seed"),
        (["num_envs=8"], Options(search=True), "--search"),
        ([f"{RATE}=1e-4,1e-3"], Options(search=True, direction="up"), "up"),
        ([f"{RATE}=1e-4,1e-3"], Options(search=True, pruner="medina"), "median"),
        (["seed=1,2", "seeds=1"], Options(), "seeds"),
        (["seed=1,2", "output=a", "resume=b"], Options(), "output"),
        (["resume=nowhere"], Options(), "nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], options: Options, offender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = words if words[0].startswith("resume") else [*TINY, *words]
    assert offender in refused(whole, options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (["weights=nowhere"], "weights='nowhere'"),
        (["weights=pretrained:nosuch"], "nosuch"),
        (["learner.reference=nowhere"], "learner.reference='nowhere'"),
        (["learner.preferences=nowhere"], "nowhere"),
        (
            ["learner=dpo", "learner.reference=nowhere", "learner.preferences=p"],
            "learner.reference='nowhere'",
        ),
        (["learner=distill", "learner.teacher=nowhere"], "learner.teacher='nowhere'"),
        (["learner=clone", "learner.demonstrations=nowhere.npz"], "nowhere.npz"),
        (["learner=clone", "learner.demonstrations='nowhere/*.npz'"], "nowhere"),
    ],
)
@pytest.mark.parametrize("options", [Options(), Options(show=True)], ids=["run", "show"])
def test_what_a_run_starts_from_and_does_not_exist_is_refused_before_anything_starts(
    words: list[str], offender: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert offender in refused(["task=cartpole_balance", "seed=1,2", *words], options)
    assert list(tmp_path.iterdir()) == []


def test_of_several_runs_to_start_from_the_one_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "there", [1.0])
    (run / "latest.pt").touch()  # it is looked up, and not read
    said = refused([*TINY, "weights=there,nowhere"])
    assert "there is no run 'nowhere'" in said
    assert sweep([*TINY, "weights=there", "seed=1,2"], Options(show=True)) == 0


def test_a_message_names_an_unknown_setting_twice_at_most_and_without_the_combination() -> None:
    for words in (["learner.gama=0.97,0.98"], ["learner.gama=0.97,0.98", "seed=1,2"]):
        said = refused([*TINY, *words])
        assert said.startswith("there is no 'learner.gama'")
        assert said.count("gama") == 1
    said = refused([*TINY, "learner.gamma=0.9,1.5"])
    assert said.count("gamma=1.5") == 1


def test_a_folder_with_a_run_or_another_sweep_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [1.0])
    assert "run" in refused([*TINY, "seed=1,2", f"output={run}"])
    assert "is a run" in refused([f"resume={run}"])
    made_sweep(tmp_path / "other", {})
    assert "another sweep" in refused([*TINY, "seed=7,8", f"output={tmp_path / 'other'}"])


SEARCH = {"trials": 4, "metric": "episode/return", "direction": "maximize", "pruner": "median", "seed": 1}


def test_a_saved_search_is_read_again(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", {"seed-1": [1.0]})
    file = folder / state.FILE_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | {"search": SEARCH}))
    assert state.load(folder).search == state.SearchSettings(**SEARCH)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content | {"schema": 99},
        lambda content: content | {"runs": [content["runs"][0] | {"name": "../../elsewhere"}]},
        lambda content: content | {"runs": [content["runs"][0] | {"status": "done"}]},
        lambda content: content | {"words": "seed=1"},
        lambda content: content | {"unknown": 1},
        lambda content: content | {"last": "x"},
        lambda content: content | {"last": -1},
        lambda content: content | {"jobs": True},
        lambda content: content | {"runs": [content["runs"][0] | {"value": "x"}]},
        lambda content: content | {"runs": [content["runs"][0] | {"exit_code": "0"}]},
        lambda content: content | {"runs": [content["runs"][0] | {"trial": 1.5}]},
        lambda content: content | {"runs": [content["runs"][0] | {"error": 1}]},
        *(
            lambda content, change=change: content | {"search": SEARCH | change}
            for change in (
                {"trials": "x"},
                {"trials": 0},
                {"metric": None},
                {"direction": "up"},
                {"pruner": "medina"},
                {"seed": 1.5},
            )
        ),
    ],
)
def test_a_damaged_sweep_file_is_refused_by_name(
    damage: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    folder = made_sweep(tmp_path / "s", {"seed-1": [1.0]})
    file = folder / state.FILE_NAME
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    assert str(file) in refused([f"resume={folder}"])


def test_a_task_file_of_a_saved_sweep_is_not_imported_unless_it_is_named_again(tmp_path: Path) -> None:
    task = tmp_path / "my_task.py"
    task.write_text("open(__file__ + '.ran', 'w').close()\n")
    folder = made_sweep(tmp_path / "s", {"seed-1": [1.0]})
    file = folder / state.FILE_NAME
    content = json.loads(file.read_text())
    content["words"][0] = f"task={task}:MyTask"
    content["runs"][0]["status"] = state.WAITING
    file.write_text(json.dumps(content))
    assert f"task={task}:MyTask" in refused([f"resume={folder}"])
    assert not Path(f"{task}.ran").exists()


@pytest.mark.parametrize(
    ("package", "options"), [("ray", Options(ray=True)), ("optuna", Options(search=True))]
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingError, match=r"robolearn\[cluster\]"):
        sweep([*TINY, f"{RATE}=1e-4,1e-3", f"output={tmp_path / 's'}"], options)
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("words", "given", "jobs", "threads", "own"),
    [
        (["seed=range(1,7)"], None, 6, 1, ["torch_threads=1", "backend.threads=1"]),  # 8 cores // 6 runs
        (["seed=1,2"], None, 2, 4, ["torch_threads=4", "backend.threads=4"]),
        (["seed=range(1,31)"], None, 8, 1, ["torch_threads=1", "backend.threads=1"]),
        (["seed=range(1,31)"], 3, 3, 2, ["torch_threads=2", "backend.threads=2"]),
        (["seed=range(1,31)", "torch_threads=4"], None, 2, 4, ["backend.threads=4"]),
        (["seed=range(1,31)", "torch_threads=1", "backend.threads=2"], None, 4, 2, []),
    ],
)
def test_runs_at_once_and_their_threads_share_eight_cores(
    words: list[str],
    given: int | None,
    jobs: int,
    threads: int,
    own: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("robolearn.commands.sweep.sweep.usable_cores", lambda: 8)
    plan = grammar.parse([*TINY, "device=cpu", *words])
    runs, resolved = resolve_all(plan)
    found = state.Sweep(tmp_path, list(words), runs=runs)
    share(found, resolved, Options(jobs=given))
    assert (found.jobs, found.threads, found.own_threads) == (jobs, threads, own)


# ---------------------------------------------------------------------------------------- the table


def show(folder: Path, console: Console) -> None:
    found = state.load(folder)
    table.show(found, table.rows_of(found), console)


def page_of(folder: Path) -> Path | None:
    found = state.load(folder)
    return table.write_page(found, table.rows_of(found))


def shown(folder: Path, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    show(folder, console)
    return console.export_text()


def test_the_table_has_means_of_the_last_iterations_and_over_seeds(tmp_path: Path) -> None:
    curves = {"gamma-0.9_seed-1": [0.0] * 8 + [1.0, 3.0], "gamma-0.9_seed-2": [9.0] * 9 + [4.0]}
    folder = made_sweep(tmp_path / "s", {**curves, "gamma-0.99_seed-1": [5.0] * 10})
    found = state.load(folder)
    found.last = 2
    found.save()
    shown(folder)
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert [row["run"] for row in rows] == [*curves, "gamma-0.99_seed-1"]
    # The last two iterations: (1 + 3) / 2, (9 + 4) / 2, 5. A step takes 60 s / 100 steps.
    assert [float(row["episode/return"]) for row in rows] == [2.0, 6.5, 5.0]
    assert [float(row["steps_per_second"]) for row in rows] == pytest.approx([100 / 60] * 3)
    groups = list(csv.DictReader((folder / table.GROUPS).open()))
    assert [(g["learner.gamma"], g["seeds"]) for g in groups] == [("0.9", "2"), ("0.99", "1")]
    # Mean (2 + 6.5) / 2; s = 4.5 / sqrt(2), t(0.975, 1) = 12.706: half = 12.706 * 4.5 / sqrt(2) / sqrt(2) = 28.589.
    assert float(groups[0]["episode/return"]) == 4.25
    assert float(groups[0]["episode/return_high"]) == pytest.approx(4.25 + 28.589, abs=1e-3)
    assert groups[1]["episode/return_low"] == ""  # one seed has no interval


NAN = float("nan")


def printed(folder: Path) -> str:
    """What is printed where there is no terminal."""
    file = io.StringIO()
    show(folder, Console(file=file, width=200))
    return file.getvalue()


def test_a_metric_without_a_value_in_the_last_iterations_is_its_last_one_before_and_marked(
    tmp_path: Path,
) -> None:
    # The last tenth is one iteration, in which no episode of the first run ended, and none ever of the third.
    curves = {"seed-1": [2.0] * 8 + [4.0, NAN], "seed-2": [7.0] * 9 + [8.0], "seed-3": [NAN] * 10}
    folder = made_sweep(tmp_path / "s", curves)
    text = printed(folder)
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert [row["episode/return"] for row in rows] == ["4.0", "8.0", ""]
    first, second, third = (next(x for x in text.splitlines() if f" {s} " in f" {x} ") for s in "123")
    assert " 4*" in first
    assert "8*" not in second
    assert third.split()[-1] == "-"
    assert "no episode ended" in text
    # (4 + 8) / 2; s = 2 sqrt(2), t(0.975, 1) = 12.706: half = 12.706 * 2 sqrt(2) / sqrt(2) = 25.4.
    assert "6 ± 25 (2 of 3)" in text
    (group,) = csv.DictReader((folder / table.GROUPS).open())
    assert (group["seeds"], group["episode/return_seeds"]) == ("3", "2")


def test_a_search_judges_by_the_same_values(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"iteration": 1, "a": 2.0}\n{"iteration": 2, "a": 4.0}\n{"iteration": 3}\n')
    tail = Tail(tmp_path)
    tail.read()
    assert (tail.mean("a", 1), tail.mean("a", 2), tail.mean("a", 1, 1)) == (4.0, 4.0, 2.0)


def test_the_interval_of_a_rate_stays_within_0_and_1(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", {"seed-1": [0.0], "seed-2": [0.0]})
    for seed, rate in ((1, 0.2), (2, 0.4)):
        row = {"iteration": 1, "steps": 1, "seconds": 1.0, "episode/fall_rate": rate, "episode/return": rate}
        (folder / f"seed-{seed}" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    text = printed(folder)
    (group,) = csv.DictReader((folder / table.GROUPS).open())
    # Mean 0.3; half = 12.706 * 0.1 sqrt(2) / sqrt(2) = 1.27.
    assert (float(group["episode/fall_rate_low"]), float(group["episode/fall_rate_high"])) == (0.0, 1.0)
    assert float(group["episode/return_high"]) == pytest.approx(0.3 + 1.2706, abs=1e-3)
    assert "0.3 [0, 1]" in text


@pytest.mark.parametrize(
    ("name", "refused_at_once"),
    [
        ("loss/kl", False),
        ("loss/kll", True),
        ("nosuch/x", True),
        ("episode/return", False),  # no episode has ended yet
        ("metric/pole_angel", True),  # nearly the name of a column
        ("metric/success", False),  # it may come when the first goal is reached
    ],
)
def test_a_column_is_judged_at_the_first_row(name: str, refused_at_once: bool) -> None:
    rows = [{"iteration": 1.0, "loss/kl": 0.1, "metric/pole_angle": 0.2}]
    columns.require_logged("--metric", name, [])
    if not refused_at_once:
        columns.require_logged("--metric", name, rows)
        return
    with pytest.raises(ConfigError, match=name):
        columns.require_logged("--metric", name, rows)


@pytest.mark.slow
def test_a_column_that_no_run_has_stops_the_sweep_with_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = [*TINY, "max_iterations=100000", "seed=1,2,3", "--columns", "loss/nosuch", "--jobs", "1"]
    code, output = finish(start(folder, *words, f"output={folder}"))
    assert code == 2, output
    assert output.count("loss/nosuch") == 1
    assert statuses(folder) == {"seed-1": state.STOPPED, "seed-2": state.WAITING, "seed-3": state.WAITING}


def test_without_last_the_mean_is_over_the_last_tenth(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", {"seed-1": [0.0] * 18 + [1.0, 3.0], "seed-2": [7.0]})
    shown(folder)
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert [float(row["episode/return"]) for row in rows] == [2.0, 7.0]


def test_a_narrow_terminal_gets_fewer_columns_instead_of_cut_numbers(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", {"seed-1": [1234.0], "seed-2": [5678.0]})
    found = state.load(folder)
    found.columns = ["episode/return", "steps", "seconds"]
    found.save()
    console = Console(width=60, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    show(folder, console)
    text = console.export_text()
    assert "1234" in text
    assert "…" not in text
    assert "seconds" in text.partition("Not enough room for ")[2].partition("\n")[0]


def test_the_page_compares_the_runs(tmp_path: Path) -> None:
    folder = made_sweep(tmp_path / "s", {"gamma-0.9_seed-1": [1.0, 2.0], "gamma-0.99_seed-1": [3.0, 4.0]})
    page = page_of(folder)
    assert page == folder / table.PAGE
    text = page.read_text()
    for expected in ("gamma-0.9_seed-1", "gamma-0.99_seed-1", "Sweep of cartpole_balance: 2 runs"):
        assert expected in text


def test_one_run_with_curves_makes_no_page(tmp_path: Path) -> None:
    assert page_of(made_sweep(tmp_path / "s", {"seed-1": [1.0]})) is None


# ---------------------------------------------------------------------------------------- one job


def test_metrics_are_read_while_they_are_written_and_again_after_a_resume(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tail = Tail(tmp_path)
    assert not tail.read()
    file.write_text('{"iteration": 1, "a": 2.0}\n{"iteration": 2, "a": 4.0}\n{"iterat')
    assert tail.read()
    assert (tail.iteration, tail.mean("a", 2), tail.mean("a", 1), tail.mean("b", 2)) == (2, 3.0, 4.0, None)
    with file.open("a") as more:
        more.write('ion": 3, "a": 9.0}\n')
    assert tail.read()
    assert (tail.iteration, tail.mean("a", 2)) == (3, 6.5)
    new = tmp_path / "new"
    new.write_text('{"iteration": 1, "a": 5.0}\n')  # a resume from iteration 1 replaces the file
    new.replace(file)
    assert tail.read()
    assert (tail.iteration, tail.mean("a", 2)) == (1, 5.0)


def test_the_reason_of_a_failure_is_the_last_line_or_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "$ robolearn train x\nrun out\nrobolearn: learner.gamma=2 is too large\n\n"
    )
    assert reason(tmp_path, 2) == "learner.gamma=2 is too large"
    assert "SIGKILL" in reason(tmp_path, -9)
    assert reason(tmp_path / "none", 70) == "exit code 70"


def test_a_run_that_was_complete_when_the_sweep_was_killed_is_not_started_again(tmp_path: Path) -> None:
    assert main(["train", *TINY, "max_iterations=1", f"output={tmp_path / 'run'}"]) == 0
    job = LocalJob(Training(str(tmp_path / "run"), (*TINY, "max_iterations=1"), 1))
    assert job.poll() == 0
    assert job.process is None


# ---------------------------------------------------------------------------------------- whole sweeps


@pytest.mark.slow
def test_a_sweep_trains_every_combination_as_train_does(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = [*TINY, "max_iterations=3", "seed=1,2", f"{RATE}=1e-3,2e-3"]
    code, output = finish(start(folder, *words, f"output={folder}", "--jobs", "2"))
    assert code == 0, output
    assert set(statuses(folder)) == {
        f"seed-{seed}_learning_rate-{rate}" for seed in (1, 2) for rate in ("0.001", "0.002")
    }
    assert set(statuses(folder).values()) == {state.FINISHED}
    for name in statuses(folder):
        saved = config.load(folder / name)
        assert f"seed-{saved.seed}_learning_rate-{saved.learner.learning_rate}" == name
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert [row["iterations"] for row in rows] == ["3"] * 4
    assert (folder / table.GROUPS).exists()
    assert (folder / table.PAGE).exists()
    alone = [*TINY, "max_iterations=3", "seed=2", f"{RATE}=0.001"]
    own = state.load(folder).own_threads
    assert own == [
        f"torch_threads={max(1, len(os.sched_getaffinity(0)) // 2)}",
        f"backend.threads={max(1, len(os.sched_getaffinity(0)) // 2)}",
    ]
    assert main(["train", *alone, *own, f"output={tmp_path / 'alone'}"]) == 0
    assert same(weights(tmp_path / "alone"), weights(folder / "seed-2_learning_rate-0.001"))
    # The same command again has nothing to do, and a sweep of other settings is refused.
    before = (folder / "seed-1_learning_rate-0.001" / "latest.pt").stat().st_mtime_ns
    code, output = finish(start(folder, *words, f"output={folder}"))
    assert code == 0, output
    assert (folder / "seed-1_learning_rate-0.001" / "latest.pt").stat().st_mtime_ns == before


@pytest.mark.slow
def test_after_kill_9_of_the_sweep_its_runs_stop_and_a_resume_gives_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    length = ["max_iterations=300", "checkpoint_interval=100"]
    threads = ["torch_threads=1", "backend.threads=1"]
    words = [*TINY, *length, *threads, "seed=1,2,3"]
    process = start(folder, *words, f"output={folder}", "--jobs", "2")
    until(lambda: iterations(folder / "seed-1") > 20)
    process.kill()
    process.communicate()
    # The runs notice it, save a checkpoint, and end long before their 300 iterations.
    until(lambda: not any(holder(folder / f"seed-{seed}") for seed in (1, 2)))
    stopped = checkpoint.load(folder / "seed-1" / "latest.pt")["iter"]
    assert 20 < stopped < 300
    assert statuses(folder) == {"seed-1": state.RUNNING, "seed-2": state.RUNNING, "seed-3": state.WAITING}
    code, output = finish(start(folder, f"resume={folder}"))
    assert code == 0, output
    assert set(statuses(folder).values()) == {state.FINISHED}
    assert "resume=" in (folder / "seed-1" / "train.log").read_text()
    assert main(["train", *TINY, *length, *threads, "seed=1", f"output={tmp_path / 'alone'}"]) == 0
    assert same(weights(tmp_path / "alone"), weights(folder / "seed-1"))


@pytest.mark.slow
def test_sigterm_lets_every_run_save_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    words = [*TINY, "max_iterations=100000", "checkpoint_interval=100000", "seed=1,2,3"]
    process = start(folder, *words, f"output='{folder}'", "--jobs", "2")
    until(lambda: iterations(folder / "seed-1") > 2 and iterations(folder / "seed-2") > 2)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 130, output
    assert statuses(folder) == {"seed-1": state.STOPPED, "seed-2": state.STOPPED, "seed-3": state.WAITING}
    for seed in (1, 2):
        assert checkpoint.load(folder / f"seed-{seed}" / "latest.pt")["iter"] >= 2
    again = next(line for line in output.splitlines() if "go on with" in line)
    assert f"resume='{folder}'" in again.replace("'\"'\"'", "'")
    # What it says is what works.
    process = start(folder, f"resume='{folder}'")
    first = checkpoint.load(folder / "seed-1" / "latest.pt")["iter"]
    until(lambda: iterations(folder / "seed-1") > first + 2)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 130


POISON = """
from dataclasses import dataclass, field

from robolearn.tasks.cartpole import CartpoleBalance, upright
from robolearn.tasks.mdp.stated import Reward, reward


def spoiled(state, ctx, divisor: float = 1.0):
    return 0 * upright(state, ctx) / divisor


@dataclass
class Poison(CartpoleBalance):
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {"upright": reward(upright, 1.0), "spoiled": reward(spoiled, 1.0, divisor=1.0)}
    )
"""


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_others_finished_and_gives_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(POISON)
    folder = tmp_path / "s"
    words = ["task=my_task.py:Poison", *TINY[1:], "max_iterations=2", "task.rewards.spoiled.divisor=1,0,2"]
    code, output = finish(start(folder, *words, "output=s", "--jobs", "2"))
    assert code == 4, output
    assert statuses(folder) == {
        "divisor-1": state.FINISHED,
        "divisor-0": state.FAILED,
        "divisor-2": state.FINISHED,
    }
    assert "'spoiled' is not finite" in next(r.error for r in state.load(folder).runs if r.exit_code == 4)
    rows = list(csv.DictReader((folder / table.RUNS).open()))
    assert [row["iterations"] for row in rows] == ["2", "0", "2"]
    # The task's file runs again only where it is named again, which the message tells to do.
    assert "resume=s task=my_task.py:Poison" in output
    assert finish(start(folder, "resume=s"))[0] == 2
    code, output = finish(start(folder, "resume=s", "task=my_task.py:Poison", "--retry-failed"))
    assert code == 4, output


@pytest.mark.slow
def test_a_killed_run_loses_only_itself_and_is_tried_again_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    words = [*TINY, "max_iterations=200", "checkpoint_interval=20", "seed=1,2"]
    process = start(folder, *words, f"output={folder}", "--jobs", "1")
    until(lambda: iterations(folder / "seed-1") > 30)
    (pid,) = children(process.pid)
    os.kill(pid, signal.SIGKILL)
    code, output = finish(process)
    assert code == 4, output
    assert "SIGKILL" in output
    assert statuses(folder) == {"seed-1": state.FAILED, "seed-2": state.FINISHED}
    assert finish(start(folder, f"resume={folder}"))[0] == 4
    assert statuses(folder)["seed-1"] == state.FAILED
    code, output = finish(start(folder, f"resume={folder}", "--retry-failed"))
    assert code == 0, output
    assert set(statuses(folder).values()) == {state.FINISHED}
    assert "resumed at iteration" in (folder / "seed-1" / "train.log").read_text()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
