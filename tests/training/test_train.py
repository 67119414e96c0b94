"""`robolearn train`: run folders, seeds, interruption and failures."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.core.timers import PHASES
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.tasks.velocity import Velocity
from robolearn.training import checkpoint
from robolearn.training import train as training
from robolearn.training.metrics import read_metrics

SMALL = ["train", "task=cartpole_balance", "num_envs=16", "output=run"]


@pytest.mark.slow
def test_humanoid_walk_with_4096_environments_takes_less_than_6_gigabytes(tmp_path):
    words = ["train", "task=humanoid_walk", "num_envs=4096", "max_iterations=1", "output=run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robolearn.cli", *words], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert (tmp_path / "run" / "latest.pt").exists()
    assert usage.ru_maxrss * 1024 < 6e9


def test_a_run_folder_holds_the_documented_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "max_iterations=3", "checkpoint_interval=2"]) == 0
    run = tmp_path / "run"
    names = {p.name for p in run.iterdir()} - {p.name for p in run.glob("events.out.*")}
    assert names == {
        ".lock",
        "config.yaml",
        "contract.json",
        "starts.json",
        "metrics.jsonl",
        "checkpoints",
        "latest.pt",
    }
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "iteration_000002.pt",
        "iteration_000003.pt",
    ]
    assert list(run.glob("events.out.*"))
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    for name in ("upright", "centred", "effort", "alive"):  # every term is logged raw and weighted
        assert {f"raw/{name}", f"reward/{name}"} <= rows[0].keys()
    for row in rows:
        phases = sum(row[f"time/{phase}"] for phase in (*PHASES, "other"))
        assert phases == pytest.approx(row["time/total"], rel=1e-6)
    lines = [line for line in capsys.readouterr().out.splitlines() if "steps/s" in line]
    assert len(lines) == 3  # one line per iteration without a terminal


def test_the_same_seed_gives_identical_weights_and_another_seed_other_ones(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    for output, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert (
            main([*SMALL[:-1], f"output={output}", f"seed={seed}", "max_iterations=2", "torch_threads=2"])
            == 0
        )
    a, b, c = (
        torch.load(tmp_path / run / "latest.pt", weights_only=True)["actor_state_dict"]
        for run in ("a", "b", "c")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["mlp.0.weight"], c["mlp.0.weight"])


def test_a_resume_says_which_lines_of_its_log_held_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL[:-1], "output=run", "max_iterations=3"]) == 0
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(lines[0] + "{damaged\n" + lines[2])
    capsys.readouterr()
    assert main(["train", "resume=run", "max_iterations=4"]) == 0
    assert "metrics.jsonl: line 2 " in " ".join(capsys.readouterr().out.split())
    assert [row["iteration"] for row in read_metrics(log)] == [1, 3, 4]


COUNTERS = Path(__file__).parents[1] / "external" / "counters.py"


@pytest.mark.parametrize("task", ["cartpole_balance", "gymnasium:my envs/counters.py:Counter"])
def test_the_command_that_an_interrupted_run_prints_resumes_it(task, tmp_path, monkeypatch, capsys):
    if ":" in task:
        pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my envs").mkdir()
    (tmp_path / "my envs" / "counters.py").write_text(COUNTERS.read_text())

    @contextmanager
    def at_once(quiet=False, caught=None):
        yield [2]

    small = ["num_envs=2", "learner.num_steps=8", "learner.minibatch_size=8", "output=a run"]
    with monkeypatch.context() as patch:
        patch.setattr(training, "interruptible", at_once)
        assert main(["train", f"task={task}", *small]) == 130
    line = capsys.readouterr().out.partition("resume with: robolearn ")[2].splitlines()[0]
    assert ("task=" in line) == (":" in task)
    assert main([*shlex.split(line), "max_iterations=2"]) == 0
    assert [row["iteration"] for row in read_metrics(tmp_path / "a run" / "metrics.jsonl")] == [1, 2]


def test_a_full_disk_ends_the_run_with_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write = checkpoint.write

    def onto_a_full_disk(folder, content):
        (folder / f".latest.{os.getpid()}.part.pt").symlink_to("/dev/full")
        return write(folder, content)

    monkeypatch.setattr(checkpoint, "write", onto_a_full_disk)
    assert main([*SMALL, "max_iterations=1"]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert "latest.pt" in error
    assert "No space left on device" in error
    assert not list((tmp_path / "run").rglob("*.part*"))


def test_too_many_diverged_environments_stop_the_run_with_exit_code_4(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    step, calls = MujocoBackend.step, []

    def poisoned(self, targets, substeps):
        calls.append(1)
        if 24 <= len(calls) < 30:  # 6 of the 384 steps of iteration 2
            self._qpos[len(calls) % 16, 0] = float("nan")
        step(self, targets, substeps)

    monkeypatch.setattr(MujocoBackend, "step", poisoned)
    assert main([*SMALL, "max_iterations=5", "checkpoint_interval=1"]) == 4
    error = capsys.readouterr().err.strip()
    assert "of 384 steps diverged in iteration 2" in error
    assert len(error.splitlines()) == 1
    assert [row["iteration"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "iteration_000001.pt").exists()
    assert not (tmp_path / "run" / "checkpoints" / "iteration_000002.pt").exists()


def test_a_nan_reward_ends_the_run_with_exit_code_4_and_names_the_term(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rewards = Env._rewards

    def broken(self, ctx, lost):
        self._reward_terms["centred"] = lambda state, ctx: ctx.episode_time * float("nan")
        return rewards(self, ctx, lost)

    monkeypatch.setattr(Env, "_rewards", broken)
    assert main([*SMALL, "max_iterations=5"]) == 4
    error = capsys.readouterr().err.strip()
    assert "reward 'centred' is not finite" in error
    assert len(error.splitlines()) == 1


def test_a_backend_without_a_required_capability_is_refused_and_no_folder_created(
    tmp_path, monkeypatch, capsys
):
    from robolearn.learners.ppo.ppo import PPO

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PPO, "requires", frozenset({"gradients"}))
    assert main([*SMALL, "backend=mujoco"]) == 2
    error = capsys.readouterr().err
    assert "learner=ppo needs gradients; backend=mujoco has none; use backend=differentiable" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_resuming_on_a_backend_without_exact_restore_reports_it(tmp_path, monkeypatch, capsys):
    """As on a GPU, where the order of summation varies."""
    from dataclasses import replace

    from robolearn.envs.mujoco.backend import MujocoBackend

    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "max_iterations=1"]) == 0
    built = MujocoBackend.__init__

    def inexact(self, *arguments, **named):
        built(self, *arguments, **named)
        self.capabilities = replace(self.capabilities, exact_restore=False)

    monkeypatch.setattr(MujocoBackend, "__init__", inexact)
    assert main(["train", "resume=run", "max_iterations=2"]) == 0
    said = capsys.readouterr().out
    assert "not bit for bit: backend=mujoco does not repeat a trajectory bit for bit here" in " ".join(
        said.split()
    )


def test_a_resume_names_a_task_file_that_was_edited_since(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = Path("mine.py")
    file.write_text(
        "from robolearn.tasks.cartpole import CartpoleBalance\n\nclass Mine(CartpoleBalance):\n    pass\n"
    )
    again = ["train", "task=mine.py:Mine"]
    assert main([*again, "num_envs=8", "max_iterations=1", "output=run"]) == 0
    assert main([*again, "resume=run", "max_iterations=2"]) == 0
    assert "resumed at iteration 1, exactly" in capsys.readouterr().out
    file.write_text(file.read_text() + "\n# edited\n")
    assert main([*again, "resume=run", "max_iterations=3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "resumed at iteration 2, not bit for bit: file of the task" in said


def test_a_resume_names_what_the_task_did_not_keep_when_the_run_was_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "task=humanoid_walk", "num_envs=4", "max_iterations=1", "output=run"]) == 0
    content = checkpoint.load(Path("run/latest.pt"))
    del content["env"]["state"]["episode.task.placed"]
    checkpoint.write(Path("run"), content)
    assert main(["train", "resume=run", "max_iterations=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "resumed at iteration 1, not bit for bit: task.placed differs" in said


def test_more_environments_than_the_task_has_for_a_cpu_are_told_of(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Velocity, "cpu_envs", 4)
    walk = ["train", "task=humanoid_walk", "device=cpu", "max_iterations=1"]
    assert main([*walk, "num_envs=8", "output=many"]) == 0
    assert "num_envs=4" in capsys.readouterr().out
    assert main([*walk, "num_envs=4", "output=few"]) == 0
    assert "num_envs=4" not in capsys.readouterr().out
