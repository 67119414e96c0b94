"""What a trial measures, on numbers worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.core.step_result import StepResult
from robolearn.envs.scene import Scene
from robolearn.envs.state import State, robot_entity
from robolearn.simulation.measures import Measures, described
from robolearn.simulation.posed import Posed
from robolearn.simulation.script import Script
from robolearn.simulation.trial import PolicyDriver, run_trial
from robolearn.tasks.mdp.task import Ratio
from robolearn.training.build import make_env
from robolearn.training.runs import zero_policy
from tests.factories import load_robot


def plain_env(num_envs: int) -> Any:
    """What Measures reads of third-party environments, which have no State."""
    return SimpleNamespace(num_envs=num_envs, device=torch.device("cpu"), dt=0.5)


def result(
    reward: list[float],
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    metric: tuple[list[float], list[float]] | None = None,
) -> StepResult:
    n = len(reward)

    def flags(rows: tuple[int, ...]) -> torch.Tensor:
        out = torch.zeros(n, dtype=torch.bool)
        out[list(rows)] = True
        return out

    metrics = {} if metric is None else {"slip": Ratio(torch.tensor(metric[0]), torch.tensor(metric[1]))}
    return StepResult(
        {}, torch.tensor(reward), flags(terminated), flags(truncated), {}, flags(()), metrics=metrics
    )


def test_an_episode_has_its_return_length_survival_and_the_ratio_of_the_sums() -> None:
    measures = Measures(plain_env(2), episodes_each=1)
    measures.add(result([1.0, 2.0], metric=([2.0, 1.0], [4.0, 1.0])))
    measures.add(result([1.0, 3.0], terminated=(1,), metric=([1.0, 1.0], [2.0, 3.0])))
    assert not measures.complete
    measures.add(result([5.0, 9.0], truncated=(0,), metric=([0.0, 7.0], [0.0, 1.0])))
    assert measures.complete
    columns, envs, ends = measures.columns()
    assert envs.tolist() == [1, 0]
    assert ends.tolist() == [2, 3]
    assert columns["return"].tolist() == [5.0, 7.0]
    assert columns["survival"].tolist() == [0.0, 1.0]
    assert columns["episode_length"].tolist() == [1.0, 1.5]
    assert columns["slip"].tolist() == [0.5, 0.5]  # (1 + 1) / (1 + 3), (2 + 1 + 0) / (4 + 2 + 0)


def test_only_the_first_episodes_count_and_what_never_counted_is_not_a_number() -> None:
    measures = Measures(plain_env(2), episodes_each=1)
    nothing = ([0.0, 0.0], [0.0, 0.0])
    measures.add(result([1.0, 1.0], terminated=(0,), metric=nothing))
    measures.add(result([7.0, 1.0], terminated=(0, 1), metric=nothing))
    columns, envs, _ = measures.columns()
    assert envs.tolist() == [0, 1]
    assert columns["return"].tolist() == [1.0, 2.0]
    assert np.isnan(columns["slip"]).all()


def test_a_number_of_steps_is_one_episode_which_survives_without_a_termination() -> None:
    measures = Measures(plain_env(2), episodes_each=1, whole=True)
    measures.add(result([1.0, 1.0], terminated=(0,)))
    measures.add(result([2.0, 2.0], truncated=(1,)))
    columns, envs, ends = measures.columns()
    assert envs.tolist() == [0, 1]
    assert ends.tolist() == [1, 2]  # where a replay should end: at the fall, or at the last step
    assert columns["return"].tolist() == [3.0, 3.0]
    assert columns["survival"].tolist() == [0.0, 1.0]


def test_torque_power_and_slide_are_those_of_the_state() -> None:
    env = make_env(config.resolve(["task=humanoid_walk", "backend=mujoco"]), num_envs=1)
    measures = Measures(env, 1)
    robot = env.backend.state.robot
    effort = torch.tensor([actuator.effort for actuator in env.robot.actuators])
    order = [env.robot.joints.index(actuator.joint) for actuator in env.robot.actuators]
    robot.joint_torque.zero_()
    robot.joint_torque[0, order] = 0.5 * effort
    robot.joint_vel.zero_()
    robot.joint_vel[0, order[0]], robot.joint_vel[0, order[1]] = 2.0, -3.0
    robot.foot_force.zero_()
    robot.foot_force[0, 0, 2] = 100.0
    counts = torch.ones(1, dtype=torch.float64)
    measures._measure(env, counts)
    moved = torch.tensor([[0.006, 0.008], [0.5, 0.0]])  # 10 mm in 20 ms; the other foot is in the air
    robot.foot_pos[0, :, :2] += moved
    measures._measure(env, counts)
    robot.foot_pos[0, :, :2] += 1.0
    measures._measure(env, 0 * counts)  # a reset, or an episode that does not count
    measures._measure(env, counts)  # the first step after it
    values = measures._values()
    assert float(values["torque"]) == pytest.approx(0.5)
    assert float(values["peak_torque"]) == pytest.approx(0.5)
    assert float(values["power"]) == pytest.approx(
        float(0.5 * effort[0] * 2.0)
    )  # braking is no positive power
    assert float(values["foot_slide"]) == pytest.approx(0.5)


def test_penetration_is_the_depth_of_the_deepest_contact() -> None:
    robot = load_robot("humanoid")
    entity = robot_entity(robot, 2, torch.device("cpu"))
    entity.joint_pos[:] = torch.tensor(robot.home)
    entity.base_pos[:, 2] = robot.home_height + torch.tensor([-0.03, 0.5])
    state = State({"robot": entity}, diverged=torch.zeros(2, dtype=torch.bool))
    depths = Posed(Scene.of(robot)).penetration(state, torch.ones(2, dtype=torch.bool))
    assert depths[0] == pytest.approx(0.03, abs=2e-3)
    assert depths[1] == 0.0


def test_metrics_named_error_are_better_when_they_are_lower() -> None:
    assert described("my_pose_error").better == -1
    assert described("survival").better == 1
    assert described("my_metric").better == 0


def standing(seed: int = 1) -> Env:
    return make_env(config.resolve(["task=humanoid_walk", "backend=mujoco", f"seed={seed}"]), num_envs=4)


def test_trials_of_the_same_seed_have_the_same_checksum_and_others_have_another() -> None:
    script = Script.of({"forward": 0}, [{"at": 0.1, "speed": 0.3, "direction": "random"}])
    sums = []
    for seed in (1, 1, 2):
        env = standing(seed)
        sums.append(
            run_trial(env, lambda e: PolicyDriver(e, zero_policy(e)), script, seed, steps=20).checksum
        )
    assert sums[0] == sums[1]
    assert sums[0] != sums[2]


def test_an_action_that_is_not_finite_ends_the_trial_and_names_the_environment() -> None:
    env = standing()

    def act(observations: dict[str, torch.Tensor]) -> torch.Tensor:
        action = torch.zeros(4, env.num_actions)
        if int(env.episode_step[0]) == 5:
            action[2, 0] = torch.nan
        return action

    trial = run_trial(env, lambda e: PolicyDriver(e, act), steps=20)
    assert trial.problem_env == 2
    assert trial.steps == 5
    assert "action" in trial.problem


def test_observers_see_every_step_with_its_result() -> None:
    env, seen = standing(), []
    run_trial(
        env,
        lambda e: PolicyDriver(e, zero_policy(e)),
        steps=3,
        observers=(lambda moment: seen.append((moment.step, float(moment.result.reward.sum()))),),
    )
    assert [step for step, _ in seen] == [0, 1, 2]
