"""Asynchronous training with real processes: equal bits without lag, kills at random moments, stops, errors."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn.cli import main
from robolearn.training.asynchronous import ledger
from robolearn.training.metrics import read_metrics

pytestmark = pytest.mark.slow

TASK = """
import os, random, time
from dataclasses import dataclass
from robolearn.tasks.cartpole import CartpoleBalance

@dataclass
class Slow(CartpoleBalance):
    '''A cartpole whose steps take time, another one in each actor; actor 2 takes a random one.'''

    def advance(self, state, ctx):
        actor = int(os.environ.get("ROBOLEARN_ACTOR", "-1"))
        seconds = {0: 0.001, 1: 0.02, 2: random.random() * 0.02}.get(actor, 0.0)
        time.sleep(seconds)
        return super().advance(state, ctx)

@dataclass
class Failing(CartpoleBalance):
    '''A cartpole that has a bug in actor 1.'''

    def advance(self, state, ctx):
        if os.environ.get("ROBOLEARN_ACTOR") == "1" and ctx.episode_time.max() > 0.5:
            raise self.error("the planted fault")
        return super().advance(state, ctx)

    @property
    def error(self):
        from robolearn.errors import RunFailed
        return RunFailed if os.environ.get("PLANTED") == "run" else KeyError
"""
KILLS = int(os.environ.get("ROBOLEARN_TEST_KILLS", "2"))
"""How often each kind of process is killed."""
SMALL = ("num_envs=32", "torch_threads=1", "learner.num_steps=16", "checkpoint_interval=5")


def placed(folder: Path, **content: Any) -> str:
    """An override for a placement with this content."""
    path = folder / f"place{len(list(folder.glob('place*')))}.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"placement={path}"


def start(folder: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "robolearn.cli", "train", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def train(folder: Path, *words: str, code: int = 0) -> str:
    process = start(folder, *words)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


def train_here(folder: Path, *words: str) -> None:
    """As `train`, without a process of its own, which takes seconds to start."""
    assert main(["train", *words, f"output={folder / 'sync'}"]) == 0


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from tensors(each, f"{path}.{key}")


def saved(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint that both modes save."""
    content = torch.load(run / "latest.pt", weights_only=True)
    return {
        name: x for name, x in tensors(content) if "asynchronous" not in name and "global_random" not in name
    }


def assert_equal(run: Path, other: Path) -> None:
    mine, theirs = saved(run), saved(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ids of a learner's actors."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    own = [int(pid) for pid in path.read_text().split()] if path.exists() else []
    for task in Path(f"/proc/{process.pid}/task").glob(
        "*/children"
    ):  # a thread starts those that replace others
        own += [int(pid) for pid in task.read_text().split()]
    return [pid for pid in sorted(set(own)) if b"asynchronous.process" in command_of(pid)]


def command_of(pid: int) -> bytes:
    """The command line of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def wait_for(condition: Any, seconds: float = 300.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it has not happened")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return read_metrics(run / ledger.FILE_NAME) if (run / ledger.FILE_NAME).exists() else []


def assert_each_used_once(run: Path, iterations: int, batches: int, staleness: int) -> None:
    """None lost, none twice: the batches of each actor are numbered without a gap."""
    rows = rows_of(run)
    numbers: dict[int, list[int]] = {}
    for row in rows:
        assert row["lag"] == row["iteration"] - 1 - row["version"]
        assert 0 <= row["lag"] <= staleness
        numbers.setdefault(row["actor"], []).append(row["sequence"])
    for used in numbers.values():
        assert used == list(range(len(used)))
    assert [row["iteration"] for row in rows] == [i for i in range(1, iterations + 1) for _ in range(batches)]
    metrics = read_metrics(run / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == list(range(1, iterations + 1))
    assert metrics[-1]["steps"] == 32 * 16 * iterations


# ---------------------------------------------------------------------------------------- without lag


def test_without_lag_one_actor_gives_the_bits_of_one_process_also_after_kills_and_a_resume(tmp_path):
    task = ("task=cartpole_balance", *SMALL, "max_iterations=20", "learner.noise_correlation=0.4")
    train_here(tmp_path, *task)
    place = placed(tmp_path, staleness=0, actor={"count": 1})
    process = start(tmp_path, *task, "output=run", "mode=async", place)
    for iteration in (3, 9):
        wait_for(lambda n=iteration: len(rows_of(tmp_path / "run")) >= n)
        for pid in children(process):
            os.kill(pid, signal.SIGKILL)
    assert process.wait(300) == 0
    assert_equal(tmp_path / "sync", tmp_path / "run")
    assert len({row["incarnation"] for row in rows_of(tmp_path / "run")}) >= 2

    train(tmp_path, *task, "max_iterations=8", "output=half", "mode=async", place)
    said = train(tmp_path, "resume=half", "max_iterations=20", "mode=sync", "placement=null")
    assert "exactly" in said
    assert_equal(tmp_path / "sync", tmp_path / "half")


def test_without_lag_several_actors_give_the_bits_of_as_many_shards_also_after_a_kill(tmp_path):
    task = ("task=cartpole_balance", *SMALL, "max_iterations=12")
    train_here(tmp_path, *task, "ranks=1", "shards=4")
    place = placed(tmp_path, staleness=0, actor={"count": 4})
    process = start(tmp_path, *task, "output=run", "mode=async", place)
    wait_for(lambda: len(rows_of(tmp_path / "run")) >= 3 * 4)
    os.kill(children(process)[1], signal.SIGKILL)
    assert process.wait(300) == 0
    assert len({row["incarnation"] for row in rows_of(tmp_path / "run")}) == 5
    assert_equal(tmp_path / "sync", tmp_path / "run")


def test_without_lag_a_run_of_several_actors_is_resumed_by_ranks_and_back_exactly(tmp_path):
    task = ("task=cartpole_balance", *SMALL)
    train_here(tmp_path, *task, "ranks=1", "shards=4", "max_iterations=9")
    place = placed(tmp_path, staleness=0, actor={"count": 4})
    train(tmp_path, *task, "output=run", "mode=async", place, "max_iterations=3")
    ranks = ["mode=sync", "placement=null", "ranks=1", "shards=4", "max_iterations=6"]
    assert "exactly" in train(tmp_path, "resume=run", *ranks)
    assert "exactly" in train(
        tmp_path, "resume=run", "mode=async", place, "ranks=0", "shards=16", "max_iterations=9"
    )
    assert_equal(tmp_path / "sync", tmp_path / "run")


def test_without_lag_ray_gives_the_same_bits(tmp_path):
    pytest.importorskip("ray")
    task = ("task=cartpole_balance", *SMALL, "max_iterations=6")
    train_here(tmp_path, *task, "ranks=1", "shards=2")
    place = placed(tmp_path, engine="ray", staleness=0, actor={"count": 2})
    train(tmp_path, *task, "output=run", "mode=async", place)
    assert_equal(tmp_path / "sync", tmp_path / "run")


# ---------------------------------------------------------------------------------------- with lag


def test_actors_of_unequal_and_random_speed_are_served_as_they_are_ready(tmp_path):
    (tmp_path / "slow.py").write_text(TASK, encoding="utf-8")
    place = placed(tmp_path, staleness=3, batches=2, actor={"count": 3, "envs": 16})
    words = ("task=slow.py:Slow", *SMALL, "max_iterations=30", "output=run", "mode=async", place)
    train(tmp_path, *words)
    run = tmp_path / "run"
    assert_each_used_once(run, 30, 2, 3)
    counts = [sum(row["actor"] == actor for row in rows_of(run)) for actor in range(3)]
    assert counts[0] > 1.5 * counts[1]  # no barrier: the fast one gives more
    assert min(counts) > 0
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert last["async/lag_max"] <= 3
    assert 0 < last["loss/effective_sample_size"] <= 1
    assert last["loss/behaviour_kl"] >= 0


def test_kills_of_actors_at_random_moments_lose_no_batch_and_use_none_twice(tmp_path):
    place = placed(tmp_path, staleness=2, actor={"count": 2})
    task = ("task=cartpole_balance", *SMALL, f"max_iterations={200 + 50 * KILLS}")
    process = start(tmp_path, *task, "output=run", "mode=async", place)
    run, draw, killed = tmp_path / "run", random.Random(1), 0
    wait_for(lambda: rows_of(run))
    while process.poll() is None and killed < 2 * KILLS:
        before = len(rows_of(run))
        pids = children(process)
        if not pids:
            break
        os.kill(draw.choice(pids), signal.SIGKILL)
        killed += 1
        # More than were collected before it: an actor has delivered since, or six losses in a row would end the run.
        wait_for(lambda n=before: len(rows_of(run)) > n + 2 * 3 or process.poll() is not None)
        time.sleep(draw.random())
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said[-3000:]
    assert killed >= 2
    assert_each_used_once(run, 200 + 50 * KILLS, 2, 2)


def test_kills_of_the_learner_at_random_moments_lose_no_batch_and_leave_no_process(tmp_path):
    place = placed(tmp_path, staleness=1, actor={"count": 2})
    count = 10 * KILLS
    words = ["task=cartpole_balance", *SMALL, f"max_iterations={count}", "output=run", "mode=async", place]
    run, draw = tmp_path / "run", random.Random(2)
    for _ in range(KILLS):
        process = start(tmp_path, *words)
        wait_for(lambda p=process: children(p) or p.poll() is not None)
        goal = len(rows_of(run)) + draw.randrange(4, 20)
        wait_for(lambda p=process, n=goal, r=run: len(rows_of(r)) >= n or p.poll() is not None)
        time.sleep(draw.random() * 0.05)
        actors = children(process) if process.poll() is None else []
        process.kill()
        process.wait()
        wait_for(lambda pids=actors: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        if (run / "latest.pt").exists():
            words = [f"resume={run.name}"]
        elif run.exists():
            words[-3] = f"output={run.name}x"
            run = tmp_path / f"{run.name}x"
    train(tmp_path, *words)
    assert_each_used_once(run, count, 2, 1)


def test_actors_join_and_leave_while_training_runs(tmp_path):
    place = tmp_path / "place.yaml"
    place.write_text("{staleness: 2, batches: 1, actor: {count: 1}}", encoding="utf-8")
    words = ("task=cartpole_balance", *SMALL, "max_iterations=100000", "output=run", "mode=async")
    process = start(tmp_path, *words, f"placement={place}")
    run = tmp_path / "run"
    wait_for(lambda: rows_of(run))
    place.write_text("{staleness: 2, batches: 1, actor: {count: 3}}", encoding="utf-8")
    wait_for(lambda: {0, 1, 2} <= {row["actor"] for row in rows_of(run)})
    place.write_text("{staleness: 2, batches: 1, actor: {count: 1}}", encoding="utf-8")
    wait_for(lambda: len(children(process)) == 1)
    iterations = len(rows_of(run))
    wait_for(lambda: len(rows_of(run)) > iterations + 10)
    assert {row["actor"] for row in rows_of(run)[iterations + 6 :]} == {0}
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert_each_used_once(run, len(rows_of(run)), 1, 2)


# ---------------------------------------------------------------------------------------- stops and errors


def test_sigterm_saves_a_checkpoint_and_ends_all_processes_also_while_actors_are_slow(tmp_path):
    (tmp_path / "slow.py").write_text(TASK, encoding="utf-8")
    place = placed(tmp_path, actor={"count": 2})
    words = ("task=slow.py:Slow", *SMALL, "learner.num_steps=100", "max_iterations=1000", "output=run")
    process = start(tmp_path, *words, "mode=async", place)
    wait_for(lambda: len(rows_of(tmp_path / "run")) >= 4)
    actors = children(process)
    assert len(actors) == 2
    process.terminate()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert not any(Path(f"/proc/{pid}").exists() for pid in actors)
    content = torch.load(tmp_path / "run" / "latest.pt", weights_only=True)
    assert content["iter"] == read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["iteration"]
    assert "resume" in said


@pytest.mark.parametrize(("planted", "code"), [("run", 4), ("bug", 70)])
def test_an_error_in_an_actor_ends_the_run_with_its_line(tmp_path, planted, code, monkeypatch):
    monkeypatch.setenv("PLANTED", planted)
    (tmp_path / "slow.py").write_text(TASK, encoding="utf-8")
    place = placed(tmp_path, actor={"count": 2})
    words = ("task=slow.py:Failing", *SMALL, "max_iterations=1000", "output=run", "mode=async", place)
    said = train(tmp_path, *words, code=code)
    assert "actor 1" in said
    assert "the planted fault" in said


def test_an_evaluator_logs_what_the_newest_policy_does(tmp_path):
    place = placed(tmp_path, actor={"count": 1}, evaluator={"every": 2, "episodes": 4})
    words = ("task=cartpole_balance", "task.episode_length_s=1.0", *SMALL, "max_iterations=300")
    train(tmp_path, *words, "output=run", "mode=async", place)
    found = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval/return" in row]
    assert found
    for row in found:
        assert row["eval/version"] % 2 == 0
        assert row["eval/version"] < row["iteration"]
        assert 0 < row["eval/length"] <= 1.001
