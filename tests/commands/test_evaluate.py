"""`robolearn eval`: counting of episodes, metrics.json, and bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.commands.evaluate import summarize, table
from robolearn.core.env import Env, NonFiniteTerm
from robolearn.errors import ConfigError, RunFailed
from robolearn.learners import saved
from robolearn.learners.policy import Policy
from robolearn.simulation.episodes import tally
from robolearn.tasks.mdp.task import Ratio
from robolearn.training import runs
from robolearn.training.build import make_env
from robolearn.training.train import train
from tests.as_on_gpu import unread, warp_env

TIMING = ("real_time_factor", "steps_per_second")

TASKS = """
from dataclasses import dataclass
import torch
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.envs.state import InitialState


@dataclass
class EveryOtherFalls(CartpoleBalance):
    '''Odd environments start beyond the limit and fall in their first step; even ones start balanced.'''

    def initial_state(self, num_envs, ctx, random):
        initial = super().initial_state(num_envs, ctx, random)
        initial.joint_pos = torch.zeros(num_envs, 2)
        initial.joint_pos[1::2, 1] = 1.0
        initial.joint_vel = torch.zeros(num_envs, 2)
        return initial


@dataclass
class NotFinite(CartpoleBalance):
    '''A reward that becomes NaN.'''

    def reward_terms(self):
        return {**super().reward_terms(), "upright": lambda state, ctx: ctx.episode_time * float("nan")}
"""


@pytest.fixture
def tasks(tmp_path) -> Path:
    path = tmp_path / "more_tasks.py"
    path.write_text(TASKS)
    return path


def ask(*words: object) -> int:
    return main([str(word) for word in words])


def untimed(path: Path) -> dict:
    return {k: v for k, v in json.loads(path.read_text()).items() if k not in TIMING}


def test_eval_writes_every_metric_and_null_for_those_that_a_task_lacks(trained, tmp_path, capsys):
    assert ask("eval", trained, "--episodes", 16, "--output", tmp_path / "out") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["schema"] == 1
    assert metrics["episodes"] == 16  # 2 from each of the run's 8 environments
    assert (metrics["num_envs"], metrics["episodes_each"]) == (8, 2)
    assert metrics["iteration"] == 2
    assert metrics["backend"] == "mujoco"
    assert metrics["seed"] == 1
    assert metrics["overrides"] == []
    assert metrics["observation_noise"] is False
    for name in ("linear_velocity_error", "yaw_rate_error", "forward_distance"):
        assert metrics[name] is None
    assert set(metrics["metrics"]) == {"pole_angle", "cart_distance"}
    assert 0 <= metrics["survival_rate"] <= 1
    assert metrics["diverged"] == 0
    for name in ("return_mean", "return_std", "episode_length_s", *TIMING):
        assert isinstance(metrics[name], float)
    printed = capsys.readouterr().out
    assert "survival rate" in printed
    assert str(tmp_path / "out" / "metrics.json") in printed


def test_the_same_seed_gives_the_same_metrics_and_another_seed_different_ones(trained, tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert ask("eval", trained, f"seed={seed}", "--episodes", 8, "--output", tmp_path / name) == 0
    a, b, c = (untimed(tmp_path / name / "metrics.json") for name in "abc")
    assert a == b
    assert a["overrides"] == ["seed=5"]
    assert a["return_mean"] != c["return_mean"]


def test_overrides_change_the_saved_run(trained, tmp_path):
    words = ["num_envs=12", "task.episode_length_s=0.1", "task.start_angle=0.0"]
    assert ask("eval", trained, *words, "--episodes", 20, "--output", tmp_path) == 0
    metrics = untimed(tmp_path / "metrics.json")
    assert (metrics["num_envs"], metrics["episodes_each"], metrics["episodes"]) == (12, 2, 24)
    assert metrics["survival_rate"] == 1.0  # no pole falls in five steps
    assert metrics["episode_length_s"] == pytest.approx(0.1)
    assert metrics["overrides"] == words


def test_the_gap_to_another_simulator_is_reported_and_is_0_without_contacts(trained, tmp_path, capsys):
    words = ["eval", str(trained), "--backend", "differentiable", "--gap", "--episodes", "8"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    gap = metrics["gap"]
    assert (metrics["backend"], gap["backend"]) == ("differentiable", "mujoco")
    # The same initial states; without contacts both simulators agree but for rounding.
    assert gap["return_mean"] == pytest.approx(metrics["return_mean"], rel=1e-3)
    assert abs(gap["relative"]) < 1e-3
    assert "return on mujoco" in capsys.readouterr().out
    assert main(["eval", str(trained), "--backend", "mujoco", "--gap", "--output", str(tmp_path / "no")]) == 2
    assert "--gap compares two simulators, and both are mujoco" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_without_output_the_metrics_are_written_to_the_run_folder_also_for_a_checkpoint(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "copy")
    weights = next((run / "checkpoints").iterdir())
    assert ask("eval", weights, "--episodes", 4) == 0
    assert untimed(run / "metrics.json")["run"] == str(weights)
    assert [path.name for path in run.glob(".*")] == [".lock"]  # of the training; no temporary file


def test_without_a_run_the_newest_one_is_evaluated(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "runs" / "cartpole_balance" / "one")
    monkeypatch.chdir(tmp_path)
    assert ask("eval", "--episodes", 4) == 0
    assert (tmp_path / "runs" / "cartpole_balance" / "one" / "metrics.json").is_file()


def test_each_environment_contributes_the_same_number_of_episodes(tasks):
    """Half of the environments fall in step 1, half last 5 steps. Counting the first episodes to end would give 5 falls
    in 6 episodes; correct is 1 in 2."""
    run = config.resolve(
        [f"task={tasks}:EveryOtherFalls", "task.episode_length_s=0.1", "num_envs=6", "device=cpu"]
    )
    env = make_env(run)
    counted = tally(env, runs.zero_policy(env), episodes_each=2)
    result = summarize(counted, env)
    env.close()
    assert result["episodes"] == 12
    assert result["survival_rate"] == 0.5
    assert sorted(counted.steps.tolist()) == [1] * 6 + [5] * 6
    assert result["episode_length_s"] == pytest.approx((1 + 5) / 2 * 0.02)
    # Balanced: (1 upright + 1 alive) x 0.02 s x 5 steps.
    assert counted.returns[counted.survived].tolist() == pytest.approx([0.2] * 6)
    # 6 steps with a lean of about 1 rad and 30 with 0: the mean is over steps, not episodes.
    assert result["metrics"]["pole_angle"] == pytest.approx(1 / 6, abs=0.01)


def test_a_policy_that_always_pushes_the_cart_right_survives_no_episode(make_env):
    from robolearn.tasks.cartpole import CartpoleBalance

    env = make_env(CartpoleBalance(), num_envs=4)
    counted = tally(env, lambda observations: torch.ones(4, 1), episodes_each=3)
    result = summarize(counted, env)
    assert result["survival_rate"] == 0.0
    assert result["episodes"] == 12
    assert env.max_episode_steps > counted.steps.max() >= counted.steps.min() >= 1


def test_forward_distance_is_along_the_initial_heading():
    """Two fake robots walk 0.1 m per step to +y for 4 steps: one faces +y, the other +x, so that it walks sideways.

    Step 4 ends the episode and is not counted: 0.3 m and 0 m."""
    half = 0.5**0.5

    class Walkers:
        num_envs, device, max_episode_steps = 2, torch.device("cpu"), 4
        robot, dt = SimpleNamespace(base="pelvis"), 0.02
        observations = {"policy": torch.zeros(2, 1)}  # noqa: RUF012

        def check(self) -> None:
            pass

        def reset(self) -> None:
            self.age = 0
            quat = torch.tensor([[half, 0.0, 0.0, half], [1.0, 0.0, 0.0, 0.0]])
            robot = SimpleNamespace(base_pos=torch.tensor([[5.0, 5.0, 1.0], [0.0, 0.0, 1.0]]), base_quat=quat)
            self.backend = SimpleNamespace(state=SimpleNamespace(robot=robot))

        def step(self, action: torch.Tensor) -> SimpleNamespace:
            self.age += 1
            done = torch.full((2,), self.age == 4)
            if self.age == 4:
                self.reset()
            else:
                self.backend.state.robot.base_pos[:, 1] += 0.1
            no = torch.zeros(2, dtype=torch.bool)
            return SimpleNamespace(
                reward=torch.ones(2), done=done, truncated=done, diverged=no, valid=None, metrics={}
            )

    env = Walkers()
    counted = tally(env, lambda obs: obs, episodes_each=2)
    assert counted.distance is not None
    assert counted.distance.tolist() == pytest.approx([0.3, 0.0, 0.3, 0.0], abs=1e-6)
    assert counted.returns.tolist() == [4.0] * 4
    assert summarize(counted, env)["forward_distance"] == pytest.approx(0.15)


def test_metrics_exclude_diverged_steps():
    class Once:
        num_envs, device, max_episode_steps = 2, torch.device("cpu"), 1
        robot, dt = SimpleNamespace(base=None), 0.02
        observations = {"policy": torch.zeros(2, 1)}  # noqa: RUF012
        backend = SimpleNamespace(
            state=SimpleNamespace(
                robot=SimpleNamespace(base_pos=torch.zeros(2, 3), base_quat=torch.ones(2, 4))
            )
        )

        def reset(self) -> None:
            pass

        def check(self) -> None:
            pass

        def step(self, action: torch.Tensor) -> SimpleNamespace:
            gone = torch.tensor([True, False])
            # Env's result for metrics of 9 and 2, where the first environment diverged.
            metrics = {"error": Ratio(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))}
            yes = torch.ones(2, dtype=torch.bool)
            return SimpleNamespace(
                reward=torch.ones(2), done=yes, truncated=~gone, diverged=gone, valid=None, metrics=metrics
            )

    counted = tally(Once(), lambda obs: obs)
    assert counted.metrics == {"error": 2.0}
    assert counted.diverged.tolist() == [True, False]
    assert counted.distance is None


def test_a_humanoid_reports_distance_and_null_for_tracking_before_1_second(tmp_path, capsys):
    small = ["num_envs=4", "max_iterations=1", "learner.num_steps=4", "learner.actor_hidden=[8]"]
    run = train(config.resolve(["task=humanoid_walk", *small, f"output={tmp_path / 'run'}"]))
    command = ["forward=[1,1]", "sideways=[0,0]", "yaw=[0,0]", "standing=0"]
    words = [
        *(f"task.commands.{word}" for word in command),
        "task.moving_starts=0",
        "task.episode_length_s=0.4",
    ]
    assert ask("eval", run, *words, "--episodes", 4) == 0
    metrics = untimed(run / "metrics.json")
    # Tracking is measured once a command has lasted a second: null, not 0.
    assert metrics["linear_velocity_error"] is None
    assert metrics["metrics"]["step_frequency"] is None
    assert metrics["metrics"]["torque_saturation"] >= 0
    assert abs(metrics["forward_distance"]) < 0.4
    assert metrics["observation_noise"] is True
    assert "with observation noise" in capsys.readouterr().out


@pytest.mark.parametrize("room", ["nconmax", "njmax"])
def test_dropped_contacts_fail_tally_and_name_the_setting(room):
    env = warp_env("humanoid_walk", 2, "backend.nconmax=3" if room == "nconmax" else "backend.njmax=24")
    with pytest.raises(RunFailed, match=rf"raise backend\.{room}"):
        tally(env, runs.zero_policy(env))


def test_a_non_finite_reward_found_by_check_on_a_gpu_fails_tally_and_is_named():
    env = warp_env("cartpole_balance", 4, "task.episode_length_s=0.1")
    env._reward_terms = {**env._reward_terms, "effort": lambda state, ctx: ctx.action[:, 0] / 0.0}
    with pytest.raises(NonFiniteTerm, match="reward 'effort'"):
        tally(env, runs.zero_policy(env))


def test_tally_is_the_same_where_errors_are_raised_only_by_check(make_env):
    from robolearn.tasks.cartpole import CartpoleBalance

    def counted(at_once: bool) -> list[float]:
        env: Env = make_env(CartpoleBalance(episode_length_s=0.2), num_envs=4)
        return tally(env if at_once else unread(env), runs.zero_policy(env)).returns.tolist()

    assert counted(True) == counted(False)


def test_a_run_of_a_task_from_a_file_must_be_named_again(tasks, tmp_path, capsys):
    small = ["num_envs=4", "max_iterations=1", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    task = f"task={tasks}:EveryOtherFalls"
    run = train(config.resolve([task, *small, f"output={tmp_path / 'run'}"]))
    assert ask("eval", run, "--episodes", 4) == 2
    error = capsys.readouterr().err
    assert "name it again" in error
    assert task in error
    assert not (run / "metrics.json").exists()
    assert ask("eval", run, task, "--episodes", 4) == 0


def test_a_pretrained_policy_is_found_by_name_and_its_results_are_written_under_runs(
    trained, tmp_path, monkeypatch, capsys
):
    shipped = tmp_path / "shipped"
    (shipped / "balancer").mkdir(parents=True)
    shutil.copy(trained / "config.yaml", shipped / "balancer")
    shutil.copy(trained / "latest.pt", shipped / "balancer" / "policy.pt")
    monkeypatch.setattr(saved, "PRETRAINED", shipped)
    monkeypatch.chdir(tmp_path)
    assert ask("eval", "pretrained:balancr", "--episodes", 4) == 2
    assert "did you mean balancer?" in capsys.readouterr().err
    assert ask("eval", "pretrained:balancer", "--episodes", 4) == 0
    assert untimed(tmp_path / "runs/pretrained/balancer/metrics.json")["run"] == "pretrained:balancer"
    assert sorted(p.name for p in (shipped / "balancer").iterdir()) == ["config.yaml", "policy.pt"]


def test_an_unknown_pretrained_policy_is_refused_by_name():
    with pytest.raises(ConfigError, match="no pretrained policy 'walker'"):
        runs.open_run("pretrained:walker")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "nowhere"),
        (["RUN", "num_env=3"], "did you mean num_envs"),
        (["RUN", "task.start_angle=nan"], "start_angle"),
        (["RUN", "learner.actor_hidden=[4,4]"], "does not fit"),
        (["RUN", "task=humanoid_walk"], "another task"),
        (["RUN", "resume=elsewhere"], "does not apply"),
        (["RUN", "learner.average=0"], "learner.average=0"),
        (["RUN", "device=cuda:99"], "device=cuda:99"),
        (["RUN", "output=elsewhere"], "--output"),
        (["RUN", "RUN"], "second run"),
        (["RUN", "--episodes", "0"], "--episodes"),
        (["RUN", "--backend", "warp_drive"], "warp_drive"),
    ],
)
def test_bad_input_is_exit_code_2_with_one_line_and_writes_nothing(
    words, expected, trained, tmp_path, capsys
):
    words = [str(trained) if word == "RUN" else word for word in words]
    assert ask("eval", *words, "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused(trained, tmp_path, capsys):
    (tmp_path / "taken").write_text("mine")
    assert ask("eval", trained, "--output", tmp_path / "taken" / "deeper") == 2
    assert "not a folder" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_nan_reward_is_exit_code_4_and_named(trained, tasks, tmp_path, capsys):
    assert ask("eval", trained, f"task={tasks}:NotFinite", "--episodes", 4, "--output", tmp_path / "out") == 4
    assert "'upright'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_recorded_episodes_are_those_that_are_evaluated(trained, tmp_path, capsys):
    file = tmp_path / "episodes.npz"
    words = ["eval", trained, "num_envs=4", "--episodes", 8, "--output", tmp_path, "--record", file]
    assert ask(*words) == 0
    metrics = untimed(tmp_path / "metrics.json")
    with np.load(file, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    ends = arrays["terminated"] | arrays["truncated"]
    assert int(ends.sum()) == metrics["episodes"] == 8
    assert ends[-1]
    assert arrays["truncated"].sum() / 8 == metrics["survival_rate"]
    assert len(ends) * 0.02 / 8 == pytest.approx(metrics["episode_length_s"])
    assert arrays["rewards"].sum() / 8 == pytest.approx(metrics["return_mean"], rel=1e-4)
    # The actions are those of the policy for the observations beside them.
    acted = Policy.load(str(trained)).act({"policy": torch.from_numpy(arrays["observations/policy"])})
    assert torch.allclose(acted, torch.from_numpy(arrays["actions"]), atol=1e-5)
    assert arrays["columns/critic"].tolist()[-1] == "last_action"
    assert (arrays["control_dt"], arrays["action_scale"].tolist()) == (0.02, [20.0])


@pytest.mark.parametrize(
    "words", [["--record", "a.txt"], ["--record", "a.npz", "--backend", "mujoco,differentiable"]]
)
def test_a_recording_that_cannot_be_made_is_refused_before_the_episodes(
    words, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert ask("eval", trained, "--output", tmp_path / "out", *words) == 2
    assert "--record" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def told(**changes: object) -> str:
    """The table of 8 episodes."""
    metrics = {
        "task": "t", "iteration": 3, "seed": 1, "backend": "mujoco", "num_envs": 4, "episodes_each": 2, "episodes": 8,
        "observation_noise": True, "survival_rate": 0.5, "linear_velocity_error": None, "yaw_rate_error": None,
        "forward_distance": None, "return_mean": 1.0, "return_std": 0.0, "episode_length_s": 2.0,
        "episode_limit_s": 4.0, "metrics": {}, "diverged": 0, "real_time_factor": 1.0, "steps_per_second": 50.0,
    }  # fmt: skip
    return table(metrics | changes)


def test_the_table_counts_episodes_of_worlds_and_leaves_out_what_a_task_does_not_have():
    assert told().splitlines()[0].endswith("8 episodes, mean action, with observation noise")
    assert "8 episodes of 2 agents, mean" in told(episodes=16)
    assert "velocity" not in told()
    assert "forward" not in told()
    assert "0.125 m/s" in told(linear_velocity_error=0.125)
