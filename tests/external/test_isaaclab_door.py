"""task=isaaclab:ID without Isaac Lab: steps, observations and names, with a fake environment."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
import torch

from robolearn.errors import ConfigError, RunFailed
from robolearn.external.isaaclab import IsaacLabTask
from robolearn.external.isaaclab_env import IsaacLabEnv
from tests.external.lab import BOX, LIMIT, Config, Lab, Terms

CPU = torch.device("cpu")


def door(groups=("policy",), inner=None, **settings):
    return IsaacLabEnv(IsaacLabTask(**settings), inner or Lab(groups=groups), CPU)


def actions(*numbers):
    return torch.tensor(numbers)[:, None]


# ---------------------------------------------------------------------------------------- a step


def test_a_time_out_and_a_fall_differ_and_both_have_terminal_observations():
    env = door()
    begun = env.reset()["policy"].clone()
    env.step(actions(0.0, 0.0))
    env.step(actions(0.0, 0.5))
    result = env.step(actions(0.0, 1.0))
    assert result.terminated.tolist() == [False, True]
    assert result.truncated.tolist() == [True, False]
    assert result.terminal_observations["policy"].tolist() == [[begun[0, 0], 3], [begun[1, 0], 3]]
    assert result.observations["policy"].tolist() == [[begun[0, 0] + 10, 0], [begun[1, 0] + 10, 0]]
    assert result.reward.tolist() == [1.0, 2.0]


def test_terminal_observations_are_those_of_the_same_step():
    env = door()
    env.reset()
    env.step(actions(1.0, 0.0))
    result = env.step(actions(0.0, 0.0))
    assert result.terminal_observations["policy"].tolist() == result.observations["policy"].tolist()
    assert env.inner.extras.get("final_obs") is None


def test_results_of_a_step_are_copies():
    env = door()
    env.reset()
    first = env.step(actions(0.25, 0.5))
    kept = [first.observations["policy"].clone(), first.reward.clone(), first.terminated.clone()]
    env.step(actions(1.0, 1.0))
    assert torch.equal(first.observations["policy"], kept[0])
    assert torch.equal(first.reward, kept[1])
    assert torch.equal(first.terminated, kept[2])


def test_with_a_finite_horizon_a_time_out_is_a_termination():
    cfg = Config()
    cfg.is_finite_horizon = True
    env = door(inner=Lab(cfg))
    env.reset()
    for _ in range(LIMIT):
        result = env.step(actions(0.0, 0.0))
    assert result.terminated.all()
    assert not result.truncated.any()


def test_an_environment_without_final_obs_raises():
    env = door()
    env.reset()
    env.inner.cfg.compute_final_obs = False
    with pytest.raises(RunFailed, match="final_obs"):
        env.step(actions(1.0, 0.0))


def test_stagger_spreads_the_ages_of_the_first_episodes():
    torch.manual_seed(0)
    env = IsaacLabEnv(IsaacLabTask(), Lab(num_envs=64), CPU)
    env.reset(stagger=True)
    assert set(env.inner.episode_length_buf.tolist()) == {0, 1, 2}
    env.reset()
    assert set(env.inner.episode_length_buf.tolist()) == {0}


class Spread(Lab):
    """Spreads the ages where all of its environments are reset, as many of Isaac Lab's direct tasks do."""

    def reset(self):
        super().reset()
        self.episode_length_buf[:] = torch.arange(self.num_envs) % LIMIT
        return self.observe(), self.extras


def test_episodes_begin_at_age_0_although_the_task_spreads_ages_by_itself():
    env = IsaacLabEnv(IsaacLabTask(), Spread(num_envs=6), CPU)
    env.reset()
    assert set(env.inner.episode_length_buf.tolist()) == {0}


class Counting(Lab):
    """Logs how many environments it resets as a plain integer, of which Python has one object each."""

    def _reset(self, rows):
        super()._reset(rows)
        self.extras["log"] = {"ends": int(rows.sum())}


def test_the_same_number_logged_again_counts_again():
    env = IsaacLabEnv(IsaacLabTask(), Counting(num_envs=2), CPU)
    env.reset()
    for falls in ((1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0)):
        env.step(actions(*falls))
    assert env.drain()["metric/ends"] == 1.25  # 1, 1, 1, whose time is up, and 2


class Failing(Lab):
    def step(self, action):
        raise ValueError("of the task")


def test_an_error_in_a_step_is_one_line_with_its_place():
    env = IsaacLabEnv(IsaacLabTask(), Failing(), CPU)
    with pytest.raises(RunFailed, match=r"of the task \(test_isaaclab_door.py"):
        env.step(actions(0.0, 0.0))


def test_numbers_that_the_environment_logs_count_once():
    env = door()
    env.reset()
    env.step(actions(0.0, 0.0))
    env.step(actions(1.0, 1.0))
    env.step(actions(0.0, 0.0))
    env.step(actions(1.0, 0.0))
    drained = env.drain()
    assert drained["metric/Episode_Reward/alive"] == 1.5  # of two ends and one, not of the steps around them
    assert "metric/name" not in drained


def test_period_length_and_bounds_come_from_the_environment():
    env = door()
    assert (env.dt, env.dt_known, env.max_episode_steps, env.num_actions) == (0.02, True, 3, 1)
    assert env.step(actions(7.0, -9.0)).reward.tolist() == [
        8.0,
        -8.0,
    ]  # without bounds nothing is scaled or clipped


# ---------------------------------------------------------------------------------------- observations and names


def test_without_a_critics_group_the_critic_observes_the_policys():
    env = door()
    assert env.observations["critic"] is env.observations["policy"]


def test_groups_are_found_by_their_usual_names():
    inner = Lab(groups=("policy", "critic", "extra"))
    inner.observe = lambda: {
        "policy": torch.zeros(2, 2),
        "critic": torch.ones(2, 3),
        "extra": torch.ones(2, 4),
    }
    env = door(inner=inner)
    assert {group: rows.shape[1] for group, rows in env.observations.items()} == {"policy": 2, "critic": 3}


def test_chosen_groups_are_concatenated_in_order():
    inner = Lab()
    inner.observe = lambda: {"a": torch.zeros(2, 1), "b": torch.ones(2, 2)}
    env = door(inner=inner, policy_groups=["b", "a"], critic_groups=["a"])
    assert env.observations["policy"].tolist() == [[1, 1, 0]] * 2
    assert env.columns == {"policy": ["b[0]", "b[1]", "a[0]"], "critic": ["a[0]"]}


def test_the_terms_of_a_group_are_concatenated_in_order():
    inner = Lab()
    inner.observe = lambda: {"policy": {"height": torch.ones(2), "scan": torch.arange(8.0).reshape(2, 2, 2)}}
    env = door(inner=inner)
    assert env.observations["policy"].tolist() == [[1, 0, 1, 2, 3], [1, 4, 5, 6, 7]]
    assert env.columns["policy"] == ["height[0]", "scan[0]", "scan[1]", "scan[2]", "scan[3]"]


def test_columns_and_actions_are_named_after_terms_and_joints():
    inner = Lab()
    inner.observation_manager = Terms({"policy": ["place", "age"]}, {"policy": [(1,), (1,)]})
    inner.action_manager = Terms(["legs", "grip"], [2, 1])
    inner.single_action_space = BOX(-np.inf, np.inf, (3,))
    contract = door(inner=inner).contract()
    assert contract.observations[0]["columns"] == ["place[0]", "age[0]"]
    assert [action["joint"] for action in contract.actions] == ["legs.hip", "legs.knee", "grip[0]"]


def test_terms_that_do_not_add_up_to_the_group_name_no_columns():
    inner = Lab()
    inner.observation_manager = Terms({"policy": ["place"]}, {"policy": [(1,)]})
    assert door(inner=inner).columns["policy"] == ["policy[0]", "policy[1]"]


@pytest.mark.parametrize(
    ("observed", "settings", "words"),
    [
        ({"policy": torch.zeros(2, 8, 8, 3)}, {}, "group policy is an image (8x8x3)"),
        ({"policy": {"eye": torch.zeros(2, 8, 8, dtype=torch.uint8)}}, {}, "group policy.eye is an image"),
        (
            {"policy": torch.zeros(2, 1), "eye": torch.zeros(2, 8, 8, 3)},
            {"critic_groups": ["eye"]},
            "group eye",
        ),
        ({"a": torch.zeros(2, 1), "b": torch.zeros(2, 1)}, {}, "groups a, b: choose the policy"),
        ({"policy": torch.zeros(2, 1)}, {"policy_groups": ["polcy"]}, "task.policy_groups"),
        (torch.zeros(2, 1), {}, "not a dictionary of groups"),
    ],
)
def test_observations_that_are_not_flat_are_refused_by_name(observed, settings, words):
    inner = Lab()
    inner.observe = lambda: observed
    with pytest.raises(ConfigError, match=re.escape(words)):
        door(inner=inner, **settings)
    assert inner.closed


def test_discrete_actions_are_refused():
    inner = Lab()
    inner.single_action_space = gymnasium.spaces.Discrete(2)
    with pytest.raises(ConfigError, match="not a Box"):
        door(inner=inner)
