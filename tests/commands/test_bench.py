"""`robolearn bench`: its output, and what its rates measure. No timing is asserted."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn.cli import main
from robolearn.commands.bench import bench
from robolearn.commands.bench import rates as bench_rates
from robolearn.commands.bench.rates import RATES, SHARES, Recorder, bookmark, measure
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp.commands import Pushes
from robolearn.training import checkpoint

SMALL = ["learner.num_steps=6", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
TINY = ["task=cartpole_balance", "num_envs=8", "torch_threads=1", *SMALL, "--rounds", "2", "--warmup", "1"]


@pytest.fixture(autouse=True)
def _one_thread(_keep_threads: None) -> None:
    torch.set_num_threads(1)  # more are slower for networks this small


def small(**settings: Any) -> PPOConfig:
    return PPOConfig(
        **{
            "num_steps": 6,
            "minibatch_size": 32,
            "actor_hidden": (16,),
            "critic_hidden": (16,),
            "precision": "fp32",
            **settings,
        }
    )


def results_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def require_numbers(values: list[float]) -> None:
    assert all(math.isfinite(x) and x > 0 for x in values), values


# ---------------------------------------------------------------------------------------- the command


def test_one_size_is_printed_in_full_and_written_as_json(tmp_path, capsys):
    out = tmp_path / "folder" / "out.json"
    assert main(["bench", *TINY, "--json", str(out)]) == 0
    content, shown = results_of(out), capsys.readouterr().out
    first = shown.splitlines()[0]
    for word in (
        "cartpole_balance on mujoco",
        "cores",
        "torch threads",
        f"torch {torch.__version__}",
        "2 rounds",
    ):
        assert word in first
    assert content["schema"] == 1
    assert content["command"] == TINY[:6]
    machine = content["machine"]
    assert (machine["task"], machine["backend"], machine["rounds"]) == ("cartpole_balance", "mujoco", 2)
    assert machine["precision"] in ("fp32", "bf16")
    assert {"torch", "mujoco"} <= set(machine["versions"])
    (row,) = content["results"]
    assert (row["num_envs"], row["steps"]) == (8, 48)
    assert list(row["rates"]) == list(row["of_raw"]) == list(RATES)
    for name, spread in row["rates"].items():
        require_numbers([*spread.values(), row["of_raw"][name]])
        assert spread["low"] <= spread["median"] <= spread["high"]
        assert f"\n{RATES[name]} " in shown
    assert row["of_raw"]["raw"] == 1.0
    assert list(row["phases"]) == list(SHARES)
    assert sum(row["phases"].values()) == pytest.approx(1.0, abs=0.2)  # of medians; each round's is 1
    assert all(f"\n{name} " in shown for name in (*SHARES, "overlap ceiling", "process", "an environment"))
    require_numbers([row["overlap_ceiling"], row["memory"]["process"]])
    assert row["memory"]["per_env"] >= 0


def test_sizes_are_printed_one_per_line_and_one_that_does_not_fit_does_not_end_the_others(
    tmp_path, capsys, monkeypatch
):
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:3] == ["-m", "robolearn.cli"]
        if "num_envs=16" in command:
            return subprocess.CompletedProcess(command, -9, "", "")  # killed by Linux when memory runs out
        if "num_envs=32" in command:
            said = "robolearn: num_envs=32 needs about 9.0 GiB, and cpu has 8.0 GiB free; at most num_envs=24 fits\n"
            return subprocess.CompletedProcess(command, 2, "", said)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as error:
            code = main(command[3:])
        return subprocess.CompletedProcess(command, code, "", error.getvalue())

    monkeypatch.setattr(bench.subprocess, "run", run)
    out = tmp_path / "out.json"
    assert main(["bench", *TINY, "--sizes", "4,16, 32,8", "--json", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[-3:]] == ["16", "32", "8"]
    assert shown[-3].endswith("16  needs more memory than there is")
    assert "needs about 9.0 GiB" in shown[-2]
    results = results_of(out)["results"]
    assert [row["num_envs"] for row in results] == [4, 16, 32, 8]
    assert [row["num_envs"] for row in results if "error" in row] == [16, 32]
    require_numbers([row["rates"]["raw"]["median"] for row in results if "rates" in row])
    assert results_of(out)["machine"]["backend"] == "mujoco"
    assert main(["bench", *TINY, "--sizes", "16,32"]) == 2
    assert "no size fits: num_envs=16 needs more memory" in capsys.readouterr().err


def test_a_failed_size_ends_the_command_with_its_exit_code(capsys, monkeypatch):
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 4, "", "robolearn: reward upright is NaN\n")

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert main(["bench", *TINY, "--sizes", "4,8"]) == 4
    assert capsys.readouterr().err == "robolearn: reward upright is NaN\n"


@pytest.mark.slow
def test_a_size_is_measured_in_a_separate_process(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["bench", *TINY, "--sizes", "4", "--json", str(out)]) == 0
    (row,) = results_of(out)["results"]
    assert row["num_envs"] == 4
    require_numbers([row["memory"]["per_env"], row["rates"]["learning"]["median"]])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory."),
    ],
)
def test_a_failed_allocation_is_exit_code_2_and_names_num_envs(error, capsys, monkeypatch):
    def make_env(run: object, **_: Any) -> None:
        raise error

    monkeypatch.setattr(bench, "make_env", make_env)
    assert main(["bench", *TINY]) == 2
    assert capsys.readouterr().err == "robolearn: num_envs=8 needs more memory than there is\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--against", "rsl_rl"], "python scripts/compare_update.py"),
        (["--sizes", "8,many"], "--sizes 1024,4096"),
        (["--sizes", "0"], "--sizes 1024,4096"),
        (["--sizes", "8,"], "--sizes 1024,4096"),
        (["--sizes", "8,-4"], "--sizes 1024,4096"),
        (["--sizes", "8,2000000"], "2000000"),
        (["--sizes", "9" * 5000], "--sizes 1024,4096"),
        (["--rounds", "0"], "--rounds"),
        (["--json", "."], "it is a folder"),
        (["learner.clipp=0.1"], "learner.clip"),
    ],
)
def test_bad_input_is_exit_code_2_with_one_line(words, said, capsys):
    assert main(["bench", *TINY, *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_with_resume_the_saved_policy_is_measured(trained, capsys, monkeypatch):
    seen = []

    def measured(env: Any, learner: Any, rounds: int) -> Any:
        seen.append({name: x.clone() for name, x in learner.actor.state_dict().items()})
        return measure(env, learner, rounds)

    monkeypatch.setattr(bench, "measure", measured)
    assert main(["bench", f"resume={trained}", "--rounds", "1", "--warmup", "0"]) == 0
    saved = checkpoint.load(trained / "latest.pt")["actor_state_dict"]
    assert all(torch.equal(seen[0][name], x) for name, x in saved.items())


def test_a_saved_training_with_curricula_is_measured_with_them(tmp_path, monkeypatch):
    walk = ["task=humanoid_walk", "num_envs=2", "torch_threads=1", *SMALL, "learner.minibatch_size=12"]
    assert main(["train", *walk, "max_iterations=1", f"output={tmp_path / 'run'}"]) == 0
    seen = []

    def measured(env: Any, learner: Any, rounds: int) -> Any:
        seen.append(env.state.per_env["level_pushes"].tolist())
        return measure(env, learner, rounds)

    monkeypatch.setattr(bench, "measure", measured)
    assert main(["bench", f"resume={tmp_path / 'run'}", "--rounds", "1", "--warmup", "1"]) == 0
    assert len(seen[0]) == 2


# ---------------------------------------------------------------------------------------- the rates


def pushed() -> HumanoidWalk:
    """A task with resets, randomized parameters and, within half a second, pushes."""
    return HumanoidWalk(pushes=Pushes(speed=(0.2, 0.5), seconds=(0.1, 0.4)), episode_length_s=0.3)


def tensors(env: Any) -> dict[str, torch.Tensor]:
    state = env.backend.state.clone()
    return {**state.robot.tensors(), **state.params, "diverged": state.diverged}


def replayed(env: Any, learner: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The State after steps of the Env, and after the backend alone has repeated them."""
    rewind = bookmark(env, learner)
    with Recorder(env) as recorder:
        learner.collect(env)
    real = tensors(env)
    rewind()
    assert not torch.equal(tensors(env)["joint_pos"], real["joint_pos"])
    recorder.simulate()
    return real, tensors(env)


def test_the_raw_rate_repeats_the_physics_of_the_recorded_steps_exactly(make_env):
    env = make_env(pushed(), num_envs=32)
    real, again = replayed(env, PPO(env, small(num_steps=24)))
    assert all(torch.equal(x, again[name]) for name, x in real.items())


@pytest.mark.parametrize("left_out", ["reset", "set_params", "push"])
def test_leaving_out_resets_parameters_or_pushes_changes_the_state(left_out, make_env, monkeypatch):
    names = tuple(name for name in bench_rates._CALLS if name != left_out)
    monkeypatch.setattr(bench_rates, "_CALLS", names)
    env = make_env(pushed(), num_envs=32)
    real, again = replayed(env, PPO(env, small(num_steps=24)))
    assert not all(torch.equal(x, again[name]) for name, x in real.items())


def test_the_environment_rate_repeats_the_recorded_steps_exactly_and_the_recorder_is_removed(make_env):
    env = make_env(HumanoidWalk(episode_length_s=0.08), num_envs=16)  # all are reset in every collection
    learner = PPO(env, small())
    learner.collect(env)
    env_names, backend_names = set(vars(env)), set(vars(env.backend))
    rewind = bookmark(env, learner)
    with Recorder(env) as recorder:
        learner.collect(env)
    assert (set(vars(env)), set(vars(env.backend))) == (env_names, backend_names)
    seen, real = {k: x.clone() for k, x in env.observations.items()}, tensors(env)
    rewind()
    recorder.step()
    assert all(torch.equal(x, env.observations[k]) for k, x in seen.items())
    assert all(torch.equal(x, tensors(env)[k]) for k, x in real.items())


@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_rewind_restores_state_random_numbers_and_recurrent_state(rnn, make_env):
    env = make_env(HumanoidWalk(), num_envs=8)
    learner = PPO(env, small(rnn=rnn))
    learner.collect(env)
    rewind = bookmark(env, learner)
    batches = []
    for _ in range(3):
        learner.collect(env)
        batches.append(learner.batch.action.clone())
        rewind()
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])


def test_a_learner_without_collect_is_measured_without_the_inference_rate(make_env):
    env = make_env(CartpoleBalance(), num_envs=8)
    ppo = PPO(env, small())

    class Opaque:
        def iterate(self, env: Any) -> Any:
            return ppo.iterate(env)

    found = measure(env, Opaque(), rounds=1)
    assert list(found.rates) == list(found.of_raw) == ["raw", "environment", "learning"]
    assert found.steps == 48
