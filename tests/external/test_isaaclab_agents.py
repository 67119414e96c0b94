"""task=isaaclab:ID of several agents without Isaac Lab: rows, groups, ends and refusals, with a fake environment."""

from __future__ import annotations

import gymnasium
import pytest
import torch

from robolearn.errors import ConfigError, RunFailed
from robolearn.external.configs import skrl_settings
from robolearn.external.isaaclab import IsaacLabAgentsTask
from robolearn.simulation.episodes import tally
from tests.external.lab_agents import BOX, Agents, Unlike, flat

CPU = torch.device("cpu")


def door(inner=None, **settings):
    # The constructor resets twice and a test once more: the first episode it sees is number 2.
    env = IsaacLabAgentsTask(**settings).env_of(inner or Agents(), CPU)
    env.inner.episode[:] = -1
    env.reset()
    env.drain()
    return env


def column(*rows):
    return torch.tensor(rows)[:, None]


STILL = column(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


# ---------------------------------------------------------------------- rows and groups


def test_rows_are_agents_of_worlds_and_the_critic_sees_its_own_agent_first():
    env = door()
    assert (env.num_envs, env.num_actions, env.agents, env.agent_names) == (6, 1, 3, ["a", "b", "c"])
    assert (env.dt, env.max_episode_steps) == (0.25, 3)
    first = [[0, 0], [10, 0], [20, 0]]
    second = [[1000, 0], [1010, 0], [1020, 0]]
    assert env.observations["policy"].tolist() == first + second
    assert env.observations["critic"][:4].tolist() == [
        [0, 0, 10, 0, 20, 0],
        [10, 0, 20, 0, 0, 0],
        [20, 0, 0, 0, 10, 0],
        [1000, 0, 1010, 0, 1020, 0],
    ]
    assert env.columns["critic"][2:4] == ["other1.observation[0]", "other1.observation[1]"]
    result = env.step(column(0, 0.25, 0.5, -1, -0.5, 0))
    assert result.reward.tolist() == [0, 1.25, 2.5, -1, 0.5, 2]
    assert result.valid is None
    assert result.observations["policy"][:3].tolist() == [[0, 1], [10, 1], [20, 1]]
    assert {a: given[:, 0].tolist() for a, given in env.inner.given[0].items()} == {
        "a": [0, -1],
        "b": [0.25, -0.5],
        "c": [0.5, 0],
    }


def test_results_of_a_step_are_copies():
    env = door()
    first = env.step(STILL)
    kept = [first.observations["critic"].clone(), first.reward.clone(), first.terminated.clone()]
    env.step(STILL + 1)
    assert torch.equal(first.observations["critic"], kept[0])
    assert torch.equal(first.reward, kept[1])
    assert torch.equal(first.terminated, kept[2])


def test_agents_of_unlike_spaces_are_padded_and_named():
    env = door(Unlike(1))
    assert env.num_actions == 2
    assert env.observations["policy"].tolist() == [[0, 0, 0, 1, 0], [10, 0, -1, 0, 1]]
    assert env.observations["critic"].tolist() == [[0, 0, 0, 10, 0, -1, 1, 0], [10, 0, -1, 0, 0, 0, 0, 1]]
    assert env.columns["policy"][3:] == ["agent[a]", "agent[b]"]
    env.step(torch.tensor([[0.5, 9.0], [0.25, -0.5]]))
    # -1 to 1 spans the box of each: 1 of the first, 2 and 4 of the second.
    assert env.inner.given[0]["a"].tolist() == [[0.5]]
    assert env.inner.given[0]["b"].tolist() == [[0.5, -2.0]]
    plain = door(Unlike(1), agent_id="off")
    assert plain.observations["policy"].tolist() == [[0, 0, 0], [10, 0, -1]]


def test_a_state_of_the_task_is_the_critics_with_the_agents_columns():
    env = door(Agents(1, state_space=3))
    # 0 + 10 + 20 are observed first.
    assert env.observations["critic"].tolist() == [
        [0, 0, 30, 1, 0, 0],
        [0, 0, 30, 0, 1, 0],
        [0, 0, 30, 0, 0, 1],
    ]
    assert env.observations["policy"].tolist() == [[0, 0], [10, 0], [20, 0]]
    both = door(Agents(1, state_space=3), critic_groups=["joint", "state"])
    assert both.observations["critic"][1].tolist() == [10, 0, 20, 0, 0, 0, 0, 0, 30]
    assert both.columns["critic"][-3:] == ["state[0]", "state[1]", "state[2]"]
    joint = door(Agents(1, state_space=3), critic_groups=["joint"])
    assert joint.observations["critic"][1].tolist() == [10, 0, 20, 0, 0, 0]


def test_isaac_labs_state_of_all_observations_is_the_joint_observation():
    env = door(Agents(1, state_space=-1))
    assert env.observations["critic"][1].tolist() == [10, 0, 20, 0, 0, 0]


# ---------------------------------------------------------------------- ends


def test_a_time_out_is_valued_by_what_the_episode_ended_in():
    env = door(Agents(1, state_space=3))
    env.step(STILL[:3])
    env.step(STILL[:3])
    result = env.step(column(0.0, 1.0, 0.0))
    assert result.terminated.tolist() == [False, True, False]
    assert result.truncated.tolist() == [True, False, True]
    assert result.terminal_observations["policy"].tolist() == [[0, 3], [10, 3], [20, 3]]
    assert result.terminal_observations["critic"][0].tolist() == [0, 3, 30, 1, 0, 0]
    assert result.observations["policy"].tolist() == [[100, 0], [110, 0], [120, 0]]
    assert result.observations["critic"][0].tolist() == [100, 0, 330, 1, 0, 0]


def test_an_agent_that_ends_early_has_no_steps_until_its_world_starts_again():
    env = door()
    env.step(STILL)
    two = env.step(column(0, 1, 0, 0, 0, 0))
    assert two.valid is None
    assert two.terminated.tolist() == [False, True, False, False, False, False]
    assert two.terminal_observations["policy"][:3].tolist() == [[0, 2], [10, 2], [20, 2]]
    assert two.observations["policy"][:3].tolist() == [[0, 2], [0, 0], [20, 2]]
    assert two.observations["critic"][2].tolist() == [20, 2, 0, 2, 0, 0]
    three = env.step(column(0.5, 0.5, 0.5, 0, 0, 0))
    assert three.valid.tolist() == [True, False, True, True, True, True]
    assert three.reward.tolist() == [0.5, 0, 2.5, 0, 1, 2]
    assert three.truncated.tolist() == [True, False, True, True, True, True]
    # The agent that has ended does nothing.
    assert env.inner.given[2]["b"][:, 0].tolist() == [0.0, 0.0]
    assert three.terminal_observations["critic"][0].tolist() == [0, 3, 0, 0, 20, 3]
    assert three.observations["policy"][:3].tolist() == [[100, 0], [110, 0], [120, 0]]
    assert env.step(STILL).valid is None


def test_a_world_starts_again_when_its_last_agent_ends_and_others_go_on():
    env = door(Agents(2, state_space=3))
    env.step(column(1, 1, 0, 0, 0, 0))
    two = env.step(column(0, 0, 1, 0, 0, 0))
    assert two.valid.tolist() == [False, False, True, True, True, True]
    assert two.terminated.tolist() == [False, False, True, False, False, False]
    # Isaac Lab's own rule would not have reset this world: only one agent was terminated in this step.
    assert two.terminal_observations["policy"][2].tolist() == [20, 2]
    assert two.terminal_observations["critic"][2].tolist() == [0, 2, 30, 0, 0, 1]
    first, second = [[100, 0], [110, 0], [120, 0]], [[1000, 2], [1010, 2], [1020, 2]]
    assert two.observations["policy"].tolist() == first + second
    assert env.step(STILL).valid is None


def test_without_reading_from_the_device_the_numbers_are_the_same():
    usual, blind = door(Agents(2, state_space=3)), door(Agents(2, state_space=3))
    blind.read_at_once = False
    numbers = torch.Generator().manual_seed(0)
    for _ in range(20):
        action = torch.rand(6, 1, generator=numbers)
        one, two = usual.step(action), blind.step(action)
        for group in ("policy", "critic"):
            assert torch.equal(one.observations[group], two.observations[group])
            ended = one.done
            assert torch.equal(
                one.terminal_observations[group][ended], two.terminal_observations[group][ended]
            )
        assert torch.equal(one.reward, two.reward)
        assert torch.equal(one.terminated, two.terminated)
        assert torch.equal(torch.ones(6, dtype=torch.bool) if one.valid is None else one.valid, two.valid)
    assert usual.drain() == blind.drain()
    together = door(ends_together=True)
    together.read_at_once = False
    together.step(column(1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    with pytest.raises(RunFailed, match="ends_together"):
        together.check()


def test_with_a_finite_horizon_a_time_out_is_a_termination():
    env = door(Agents(1, is_finite_horizon=True))
    env.step(STILL[:3])
    env.step(STILL[:3])
    result = env.step(STILL[:3])
    assert result.terminated.all()
    assert not result.truncated.any()


def test_an_early_end_is_refused_where_agents_are_to_end_together():
    env = door(ends_together=True)
    assert not env.resets_take_a_step
    assert door().resets_take_a_step
    with pytest.raises(RunFailed, match="ends_together"):
        env.step(column(1, 0, 0, 0, 0, 0))


def test_episodes_are_counted_agent_by_agent():
    env = door(Agents(1))

    def act(observations):
        # Agent a ends in its second step.
        seen = observations["policy"]
        return torch.where((seen[:, 0] % 100 == 0) & (seen[:, 1] == 1), 1.0, 0.0)[:, None]

    counted = tally(env, act, episodes_each=2)
    pairs = sorted(
        zip(counted.returns.tolist(), counted.steps.tolist(), counted.survived.tolist(), strict=True)
    )
    assert pairs == [(1, 2, False), (1, 2, False), (3, 3, True), (3, 3, True), (6, 3, True), (6, 3, True)]
    assert counted.metrics == {"return_a": 1, "return_b": 3, "return_c": 6}
    env.reset()
    env.drain()
    for _ in range(6):
        env.step(act(env.observations))
    means = env.drain()
    assert (means["episodes"], means["steps"]) == (6, 16)
    assert (means["metric/return_a"], means["metric/return_c"]) == (1, 6)


def test_numbers_that_the_environment_logs_count_once():
    env = door()
    env.step(column(1, 1, 1, 0, 0, 0))
    env.step(STILL)
    env.step(column(1, 1, 1, 0, 0, 0))
    # One world was reset in the first step; two in the third: of the first all agents ended, of the second time was up.
    drained = env.drain()
    assert drained["metric/resets"] == drained["metric/a/resets"] == 1.5


def test_first_episodes_are_staggered():
    torch.manual_seed(0)
    env = IsaacLabAgentsTask().env_of(Agents(64), CPU)
    env.reset(stagger=True)
    assert set(env.inner.episode_length_buf.tolist()) == {0, 1, 2}


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda inner: inner.action_spaces.update(b=gymnasium.spaces.Discrete(3)), "b: the action space"),
        (lambda inner: inner.observation_spaces.update(b=gymnasium.spaces.Dict(at=flat(2))), "b: the obs"),
        (lambda inner: inner.observation_spaces.update(b=BOX(0, 255, (8, 8, 3))), "image"),
        (lambda inner: inner.possible_agents.clear(), "possible_agents"),
        (lambda inner: inner.possible_agents.append("a"), "possible_agents"),
        (lambda inner: setattr(inner, "state_space", gymnasium.spaces.Dict(at=flat(2))), "the state space"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_and_closed(change, named):
    inner = Agents(state_space=3)
    change(inner)
    with pytest.raises(ConfigError, match=named):
        door(inner)
    assert inner.closed


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policy_groups": ["policy"]}, "policy_groups"),
        ({"critic_groups": ["state"]}, "state"),
        ({"critic_groups": ["all"]}, "all"),
    ],
)
def test_groups_that_do_not_exist_are_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        door(**settings)


def test_an_environment_that_breaks_the_api_ends_the_run():
    class Unseen(Agents):
        def _get_observations(self):
            return {agent: seen for agent, seen in super()._get_observations().items() if agent != "b"}

    class Shapeless(Agents):
        def _get_observations(self):
            return super()._get_observations() | {"b": torch.zeros(2, 5)}

    class Unpaid(Agents):
        def _get_rewards(self):
            return {"a": torch.zeros(2), "c": torch.zeros(2)}

    class Own(Agents):
        def step(self, actions):
            self.given.append(actions)
            ended, late = self._get_dones()
            return self._get_observations(), super()._get_rewards(), ended, late, self.extras

        def _get_rewards(self):
            raise AssertionError

    for broken in (Unseen, Shapeless):
        with pytest.raises(RunFailed, match="b"):
            door(broken())
    with pytest.raises(RunFailed, match="reward of b"):
        door(Unpaid()).step(STILL)
    with pytest.raises(RunFailed, match="overrides step"):
        door(Own()).step(STILL)
    silent = door()
    silent.inner.cfg.compute_final_obs = False
    with pytest.raises(RunFailed, match="final_obs"):
        silent.step(STILL + 1)


# ---------------------------------------------------------------------- published settings


def test_settings_published_for_skrl_are_the_learners_defaults():
    found = skrl_settings(
        {
            "models": {
                "policy": {
                    "initial_log_std": 0.0,
                    "network": [{"layers": [32, 16], "activations": "elu"}],
                },
                "value": {"network": [{"layers": [64], "activations": "elu"}]},
            },
            "agent": {
                "rollouts": 16,
                "learning_epochs": 8,
                "mini_batches": 4,
                "discount_factor": 0.98,
                "lambda": 0.9,
                "learning_rate": 3e-4,
                "learning_rate_scheduler_kwargs": {"kl_threshold": 0.008},
                "ratio_clip": 0.1,
                "entropy_loss_scale": 0.0,
            },
            "trainer": {"timesteps": 4800},
        }
    )
    assert found == {
        "learner.num_steps": 16,
        "learner.num_epochs": 8,
        "learner.minibatch_size": 16 * 2 * 1024 // 4,
        "learner.gamma": 0.98,
        "learner.lam": 0.9,
        "learner.learning_rate": 3e-4,
        "learner.desired_kl": 0.008,
        "learner.clip": 0.1,
        "learner.entropy_coef": 0.0,
        "learner.actor_hidden": [32, 16],
        "learner.critic_hidden": [64],
        "learner.activation": "elu",
        "learner.init_std": 1.0,
        "max_iterations": 300,
    }
    odd = skrl_settings({"models": {"policy": {"network": []}}, "agent": {"learning_rate": 1.0}})
    assert odd == {}
