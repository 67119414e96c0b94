"""`robolearn train ranks=N`: the same bits for every number of ranks, and ranks that are lost, stopped or wrong."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import robolearn
from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
from robolearn.training import checkpoint
from robolearn.training.metrics import read_metrics
from robolearn.training.ranks.copies import RUN, memory_folder
from robolearn.training.ranks.launch import _remove_left_over
from tests.training.ranks.processes import (
    TINY,
    alive,
    child,
    differing,
    iterations,
    last_row,
    ranks_of,
    run,
    run_here,
    said,
    start,
    totals,
    until,
)

pytestmark = pytest.mark.timeout(900)  # each starts many processes

HUMANOID = ["task=humanoid_walk", "num_envs=64"]
AGENTS = ["task=carry", "num_envs=32"]
POLICIES = [*AGENTS, "learner.policies={robot: a, partner: b}", "learner.noise_correlation=0.5"]
GRU = ["task=cartpole_swingup", "num_envs=64", "learner.rnn=gru", "learner.num_steps=8"]
TAKEOVER = "recovery=takeover"
KILLS = int(os.environ.get("ROBOLEARN_TEST_KILLS", "2"))
"""How often each kind of process is killed."""
BAD = """
import os, time
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance

class Bad(CartpoleBalance):
    steps = 0

    def reward_terms(self):
        name, term = next(iter(super().reward_terms().items()))
        def bad(state, ctx):
            Bad.steps += 1
            if os.environ.get("RANK") == os.environ["BAD_RANK"] and Bad.steps > int(os.environ.get("BAD_AFTER", "40")):
                if os.environ["BAD"] == "throw":
                    raise LookupError("a planted bug")
                if os.environ["BAD"] == "config":
                    raise ConfigError("a planted setting")
                if os.environ["BAD"] == "nan":
                    return term(state, ctx) * float("nan")
                time.sleep(1000)
            return term(state, ctx)
        return {**super().reward_terms(), name: bad}
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "bad.py").write_text(BAD)
    return "task=bad.py:Bad"


# ---------------------------------------------------------------------------------------- the same bits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "numbers"),
    [(HUMANOID, (2, 3, 4)), (GRU, (3,)), (AGENTS, (3,))],
    ids=["humanoid", "gru", "agents"],
)
def test_any_number_of_ranks_gives_the_same_bits(words, numbers, tmp_path):
    assert run_here(tmp_path / "1", *words, "max_iterations=4") == 0
    for ranks in map(str, numbers):
        assert run(tmp_path / ranks, *words, "max_iterations=4", f"ranks={ranks}") == 0
        assert differing(tmp_path / "1", tmp_path / ranks) == []
        assert totals(tmp_path / "1") == totals(tmp_path / ranks)
    assert (
        totals(tmp_path / "1")[-1]["steps"] == 4 * read_metrics(tmp_path / "1" / "metrics.jsonl")[0]["steps"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [HUMANOID, GRU, AGENTS, POLICIES], ids=["humanoid", "gru", "agents", "policies"]
)
def test_a_run_resumed_with_another_number_of_ranks_has_the_same_bits(words, tmp_path):
    assert run_here(tmp_path / "straight", *words, "max_iterations=4") == 0
    assert run(tmp_path / "first", *words, "max_iterations=2", "ranks=2") == 0
    assert run(tmp_path / "second", f"resume={tmp_path / 'first'}", "max_iterations=3", "ranks=4") == 0
    assert run_here(tmp_path / "third", f"resume={tmp_path / 'second'}", "max_iterations=4") == 0
    assert "resumed at iteration 3, exactly" in said(tmp_path / "third")
    assert differing(tmp_path / "straight", tmp_path / "third") == []


@pytest.mark.slow
def test_as_many_ranks_as_shards_resume_from_fewer(tmp_path):
    assert run_here(tmp_path / "straight", *TINY, "max_iterations=4") == 0
    assert run(tmp_path / "first", *TINY, "max_iterations=2", "ranks=4") == 0
    assert run(tmp_path / "second", f"resume={tmp_path / 'first'}", "max_iterations=4", "ranks=3") == 0
    assert differing(tmp_path / "straight", tmp_path / "second") == []


def test_one_rank_repeats_itself_and_its_number_of_threads_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, threads in (("a", 1), ("b", 2), ("c", 2)):
        words = [*TINY, "max_iterations=2", "ranks=1", f"torch_threads={threads}", f"output={name}"]
        assert main(["train", *words]) == 0
    assert differing(tmp_path / "a", tmp_path / "b") == differing(tmp_path / "b", tmp_path / "c") == []


def test_another_number_of_shards_is_another_run_and_said_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "max_iterations=1", "ranks=1", "output=run"]) == 0
    capsys.readouterr()
    assert main(["train", "resume=run", "max_iterations=2", "shards=8", "output=more"]) == 0
    assert "not bit for bit: shards" in capsys.readouterr().out


def test_a_checkpoint_that_says_nothing_of_its_run_goes_on_with_ranks(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "max_iterations=1", "ranks=1", "output=run"]) == 0
    content = torch.load(tmp_path / "run" / "latest.pt", weights_only=True)
    del content["infos"]
    torch.save(content, tmp_path / "run" / "latest.pt")
    assert main(["train", "resume=run", "max_iterations=2"]) == 0


# ---------------------------------------------------------------------------------------- lost ranks


def _undisturbed(folder: Path, count: int) -> Path:
    assert run_here(folder, *TINY, f"max_iterations={count}") == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_ranks_killed_at_random_moments_change_no_bit_and_lose_no_iteration(how, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    count, chance = KILLS * (140 if how == TAKEOVER else 40), random.Random(3)
    launcher = start(tmp_path / "killed", *TINY, f"max_iterations={count}", "ranks=2", how)
    killed = 0
    for victim in [1, 0] * KILLS:
        if killed == KILLS:
            break
        seen = iterations(tmp_path / "killed")
        until(lambda seen=seen: iterations(tmp_path / "killed") > seen or launcher.poll() is not None)
        time.sleep(chance.random() * 0.3)
        found = until(lambda rank=victim: launcher.poll() is not None or ranks_of(launcher).get(rank))
        if launcher.poll() is not None:
            break
        os.kill(found, signal.SIGKILL)
        until(lambda found=found: not alive(found))
        killed += 1
    assert launcher.wait(timeout=600) == 0
    assert killed == KILLS
    assert "SIGKILL" in said(tmp_path / "killed")
    reference = _undisturbed(tmp_path / "reference", count)
    assert differing(reference, tmp_path / "killed") == []
    assert totals(reference) == totals(tmp_path / "killed")


@pytest.mark.slow
def test_a_killed_lighthouse_changes_no_bit(tmp_path):
    pytest.importorskip("torchft")
    kills, chance = max(1, KILLS // 2), random.Random(4)
    count = 140 * kills
    words = [f"max_iterations={count}", "ranks=2", "rank_timeout=4", TAKEOVER]
    launcher = start(tmp_path / "killed", *TINY, *words)
    for _ in range(kills):
        seen = iterations(tmp_path / "killed")
        until(lambda seen=seen: iterations(tmp_path / "killed") > seen + 5)
        time.sleep(chance.random())
        os.kill(until(lambda: child(launcher, "torchft_lighthouse")), signal.SIGKILL)
    assert launcher.wait(timeout=600) == 0
    assert differing(_undisturbed(tmp_path / "reference", count), tmp_path / "killed") == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_ranks_end_when_their_launcher_is_killed(how, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    launcher = start(tmp_path / "run", *TINY, "max_iterations=100000", "ranks=2", how)
    until(lambda: iterations(tmp_path / "run") > 2)
    ranks, lighthouse = ranks_of(launcher), child(launcher, "torchft_lighthouse")
    assert sorted(ranks) == [0, 1]
    started = [*ranks.values(), *([lighthouse] if lighthouse is not None else [])]
    assert len(started) == (3 if how == TAKEOVER else 2)
    if how == TAKEOVER:
        os.kill(ranks[1], signal.SIGSTOP)  # nor does one end by itself that is inside an exchange
    launcher.kill()
    launcher.wait()
    try:
        until(lambda: not any(alive(pid) for pid in started))
    finally:
        for pid in filter(alive, started):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_sigterm_saves_one_checkpoint_from_which_the_run_goes_on_exactly(how, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    launcher = start(tmp_path / "run", *TINY, "max_iterations=100000", "ranks=2", how)
    until(lambda: iterations(tmp_path / "run") > 2)
    launcher.terminate()
    assert launcher.wait(timeout=300) == 130
    reached = iterations(tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == max(
        1, reached // 25 + (reached % 25 > 0)
    )
    more = ["ranks=2", f"max_iterations={reached + 2}"]
    assert run(tmp_path / "more", f"resume={tmp_path / 'run'}", *more) == 0
    assert f"resumed at iteration {reached}, exactly" in said(tmp_path / "more")


def waits_for_others(rank: int) -> bool:
    """Whether the process of rank 1 waits for the others to agree on who takes part."""
    environment = (Path("/proc") / str(rank) / "environ").read_bytes().decode().split("\0")
    (identity,) = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{RUN}=")]
    try:
        beat = json.loads((memory_folder(identity) / "beat_1.json").read_text())
    except (OSError, ValueError):
        return False
    return beat["pid"] == rank and beat["since"] is not None


LATE = """
import os, pathlib, time
from robolearn.tasks.cartpole import CartpoleBalance

def wait(name):
    while not pathlib.Path(os.environ[name]).exists():
        time.sleep(0.05)

if os.environ.get("RANK") == "1":
    wait("JOINS")

class Late(CartpoleBalance):
    calls = 0

    def reward_terms(self):
        name, term = next(iter(super().reward_terms().items()))
        def late(state, ctx):
            Late.calls += 1
            if os.environ.get("RANK") == "0" and Late.calls > 60:
                wait("GOES_ON")
            return term(state, ctx)
        return {**super().reward_terms(), name: late}
"""


@pytest.mark.slow
def test_a_rank_that_joins_while_the_run_is_told_to_stop_trains_no_further(tmp_path, monkeypatch):
    pytest.importorskip("torchft")
    joins, goes_on = tmp_path / "joins", tmp_path / "goes_on"
    monkeypatch.setenv("JOINS", str(joins))
    monkeypatch.setenv("GOES_ON", str(goes_on))
    (tmp_path / "late.py").write_text(LATE)
    words = [f"task={tmp_path / 'late.py'}:Late", *TINY[1:], "max_iterations=100000", "ranks=2", TAKEOVER]
    launcher = start(tmp_path / "run", *words)
    until(lambda: iterations(tmp_path / "run") > 2)  # rank 0, alone
    joins.touch()
    until(lambda: waits_for_others(ranks_of(launcher)[1]))  # for the end of rank 0's iteration
    launcher.terminate()
    until(lambda: "stopping after this iteration" in said(tmp_path / "run"))
    time.sleep(1)  # the launcher has signalled its ranks
    goes_on.touch()
    assert launcher.wait(timeout=300) == 130
    (only,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert only.stem == f"iteration_{iterations(tmp_path / 'run'):06d}"
    assert said(tmp_path / "run").count("resume with") == 1


@pytest.mark.slow
def test_under_torchrun_a_killed_rank_changes_no_bit(tmp_path):
    words = [*TINY, "max_iterations=60", "output=run"]
    with (tmp_path / "run.log").open("w") as log:
        torchrun = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
                *("--max-restarts=3", "-m", "robolearn.cli", "train", *words),
            ],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    until(lambda: iterations(tmp_path / "run") > 2)
    os.kill(ranks_of(torchrun)[1], signal.SIGKILL)
    assert torchrun.wait(timeout=600) == 0
    assert "resumed at iteration" in said(tmp_path / "run")
    assert (tmp_path / "run" / "DONE").exists()
    assert differing(_undisturbed(tmp_path / "reference", 60), tmp_path / "run") == []


@pytest.mark.slow
def test_under_torchrun_a_new_run_does_not_go_on_from_the_copies_of_another_that_was_killed(tmp_path):
    def torchrun(output: str, count: int) -> subprocess.Popen[bytes]:
        program = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d")
        words = [*TINY, f"max_iterations={count}", f"output={output}"]
        with (tmp_path / f"{output}.log").open("w") as log:
            return subprocess.Popen(
                [*program, "--rdzv-endpoint=localhost:0", "-m", "robolearn.cli", "train", *words],
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    first = torchrun("first", 100000)
    until(lambda: iterations(tmp_path / "first") > 4)
    ranks = ranks_of(first)
    first.kill()
    first.wait()
    until(lambda: not any(alive(pid) for pid in ranks.values()))
    assert torchrun("second", 8).wait(timeout=300) == 0
    assert [row["iteration"] for row in read_metrics(tmp_path / "second" / "metrics.jsonl")] == [*range(1, 9)]


# ---------------------------------------------------------------------------------------- wrong ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "rank", "code", "words"),
    [
        ("throw", 1, 70, "LookupError: a planted bug"),
        ("throw", 0, 70, "LookupError: a planted bug"),
        ("config", 1, 2, "a planted setting"),
        ("nan", 1, 4, "in environment 16"),
    ],
)
def test_an_error_of_one_rank_ends_all_with_its_line_and_exit_code(what, rank, code, words, task, tmp_path):
    given = [task, *TINY[1:], "max_iterations=100", "ranks=2"]
    launcher = start(tmp_path / "run", *given, BAD=what, BAD_RANK=str(rank))
    assert launcher.wait(timeout=300) == code
    assert said(tmp_path / "run").count(words) == 1
    assert ("rank 1 of 2" in said(tmp_path / "run")) == (rank == 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_a_rank_that_hangs_is_named_with_what_it_does(how, task, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    given = [task, *TINY[1:], "max_iterations=10000", "ranks=2", "rank_timeout=3", how]
    # After some iterations of both ranks: with takeover, each may begin alone.
    launcher = start(tmp_path / "run", *given, BAD="hang", BAD_RANK="1", BAD_AFTER="600")
    line = "rank 1 of 2"
    until(lambda: line in said(tmp_path / "run"))
    assert "in simulate of iteration" in said(tmp_path / "run")
    launcher.kill()
    launcher.wait()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_a_stopped_rank_is_named_and_killed_and_the_run_goes_on(how, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    launcher = start(tmp_path / "run", *TINY, "max_iterations=100000", "ranks=2", "rank_timeout=3", how)
    until(lambda: "rank1/waiting" in last_row(tmp_path / "run"))
    stopped = ranks_of(launcher)[1]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: re.search(r"rank 1 of 2.* has not answered", said(tmp_path / "run")))
    until(lambda: not alive(stopped))
    before = iterations(tmp_path / "run")
    until(lambda: iterations(tmp_path / "run") > before + 2 and "rank1/waiting" in last_row(tmp_path / "run"))
    launcher.terminate()
    assert launcher.wait(timeout=300) == 130


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", TAKEOVER])
def test_a_stop_while_ranks_start_again_loses_no_iteration(how, tmp_path):
    if how == TAKEOVER:
        pytest.importorskip("torchft")
    words = ["max_iterations=100000", "checkpoint_interval=100000", "ranks=2", how]
    launcher = start(tmp_path / "run", *TINY, *words)
    until(lambda: iterations(tmp_path / "run") > 5 and "rank1/waiting" in last_row(tmp_path / "run"))
    reached = iterations(tmp_path / "run")
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    until(lambda: "SIGKILL" in said(tmp_path / "run"))
    launcher.terminate()
    assert launcher.wait(timeout=300) == 130
    saved = checkpoint.load(tmp_path / "run" / "latest.pt")["iter"]
    assert saved >= reached - 1  # rank 0 may log an iteration of which rank 1 has no copy yet
    more = ["ranks=2", f"max_iterations={saved + 2}"]
    assert run(tmp_path / "more", f"resume={tmp_path / 'run'}", *more) == 0
    assert f"resumed at iteration {saved}, exactly" in said(tmp_path / "more")
    assert differing(_undisturbed(tmp_path / "reference", saved + 2), tmp_path / "more") == []


def _by_hand(
    folder: Path, environments: Sequence[Mapping[str, str]], *words: str, **each: Sequence[str]
) -> list[subprocess.Popen[str]]:
    """Ranks as torchrun would start them, with what differs in their environments, and words for one of them
    (`rank1=["seed=7"]`)."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    address["WORLD_SIZE"] = str(len(environments))
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "robolearn.cli", "train", *TINY, *words),
                *(*each.get(f"rank{rank}", ()), "output=run"),
            ],
            env={**os.environ, **address, **environment, "RANK": str(rank)},
            stdout=(folder / f"rank{rank}.log").open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        for rank, environment in enumerate(environments)
    ]


def _on_hosts(hosts: str, identity: str, again: str) -> list[dict[str, str]]:
    """The environments of ranks on machines of these names."""
    given = {RUN: identity, "TORCHELASTIC_RESTART_COUNT": again}
    return [{**given, "ROBOLEARN_HOST": host} for host in hosts]


@pytest.mark.slow
def test_a_machine_that_is_lost_with_its_memory_loses_no_iteration(tmp_path):
    identity = f"test-{tmp_path.name}-{os.getpid()}"
    words = ["max_iterations=60", "checkpoint_interval=1000"]
    folders = {host: memory_folder(identity).with_name(memory_folder(identity).name + host) for host in "abc"}
    first = _by_hand(tmp_path, _on_hosts("ab", identity, "0"), *words)
    until(lambda: iterations(tmp_path / "run") > 5)
    for process in first:
        process.kill()
        process.wait()
    assert {path.stem.split("_")[1] for path in folders["a"].glob("*.pt")} == {"0", "2"}  # also those of b
    shutil.rmtree(folders["b"])
    second = _by_hand(tmp_path, _on_hosts("ac", identity, "1"), *words)
    assert [process.wait(timeout=300) for process in second] == [0, 0]
    assert "resumed at iteration" in (tmp_path / "rank0.log").read_text()
    assert differing(_undisturbed(tmp_path / "reference", 60), tmp_path / "run") == []
    assert not any(folder.exists() for folder in folders.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "key"),
    [(["seed=7"], "seed=7"), (["learner.gamma=0.9"], "learner.gamma=0.9")],
)
def test_a_rank_with_another_setting_is_named(second, key, tmp_path):
    processes = _by_hand(tmp_path, [{}, {}], "max_iterations=5", rank1=second)
    assert [process.wait(timeout=300) for process in processes] == [2, 2]
    assert "rank 1 of 2" in _line_with(key, tmp_path)


def test_takeover_is_refused_where_robolearn_has_not_started_the_ranks(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torchft")
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", *TINY, "max_iterations=1", TAKEOVER, "output=run"]) == 2
    assert "ROBOLEARN_LIGHTHOUSE" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_rank_with_another_version_installed_is_named_with_both(tmp_path):
    package = Path(robolearn.__file__).parent
    shutil.copytree(package, tmp_path / "older" / "robolearn", ignore=shutil.ignore_patterns("__pycache__"))
    first = tmp_path / "older" / "robolearn" / "__init__.py"
    first.write_text(first.read_text().replace(f'"{robolearn.__version__}"', '"0.0.7"'))
    processes = _by_hand(tmp_path, [{}, {"PYTHONPATH": str(tmp_path / "older")}], "max_iterations=5")
    assert [process.wait(timeout=300) for process in processes] == [2, 2]
    assert "rank 1 of 2" in _line_with("0.0.7", tmp_path)
    assert robolearn.__version__ in _line_with("0.0.7", tmp_path)
    assert not (tmp_path / "run").exists()


def _line_with(text: str, folder: Path) -> str:
    """The only line in the output of all ranks that has this text."""
    lines = [line for path in folder.glob("rank*.log") for line in path.read_text().splitlines()]
    (line,) = [line for line in lines if text in line]
    return line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["shards=12"], "shards=12"),
        (["ranks=32"], "ranks=32"),
        (["ranks=2", "num_envs=100"], "num_envs=100"),
        (["ranks=2", "recovery=pray"], "recovery"),
    ],
)
def test_ranks_and_shards_that_do_not_divide_the_environments_are_refused(words, named):
    with pytest.raises(ConfigError, match=named):
        config.resolve(["task=cartpole_balance", *words])


def test_copies_that_a_killed_launcher_left_are_removed_and_the_memory_of_actors_is_not(tmp_path):
    old, new, killed = (memory_folder(name).name for name in ("old", "new", "killed"))
    for name in (old, new, killed, "async"):
        (tmp_path / name).mkdir()
    (tmp_path / killed / ".lock").touch()  # of a launcher that does not hold it any more
    for name in (old, "async"):  # a training with actors that began days ago, too
        os.utime(tmp_path / name, (0, 0))
    _remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {new, "async"}


def test_shac_takes_one_shard_a_rank(tmp_path, monkeypatch, capsys):
    pytest.importorskip("warp")
    monkeypatch.chdir(tmp_path)
    words = ["task=hopper_run", "learner=shac", "num_envs=16", "ranks=1", "max_iterations=1"]
    assert main(["train", *words]) == 2
    assert "shards=1" in capsys.readouterr().err
    assert main(["train", *words, "shards=1"]) == 0
