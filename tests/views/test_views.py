"""An Env with the interfaces of other libraries, and weights that load into rsl_rl and back."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from rsl_rl.runners import OnPolicyRunner

from robolearn.core.finite_check import NonFiniteTerm
from robolearn.errors import RunFailed
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.views.gymnasium import as_gymnasium
from robolearn.views.rsl_rl import as_rsl_rl
from tests.as_on_gpu import no_numpy_before_cpu, warp_env

RSL_RL = {
    "num_steps_per_env": 8,
    "save_interval": 100,
    "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [256, 128],
        "activation": "elu",
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.5},
    },
    "critic": {
        "class_name": "MLPModel",
        "hidden_dims": [256, 128],
        "activation": "elu",
        "obs_normalization": True,
    },
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
}


@pytest.mark.filterwarnings("ignore:.*Box")  # advice on bounds that a robot's sensors do not have
@pytest.mark.parametrize("task", [CartpoleBalance(), HumanoidWalk()], ids=["cartpole", "humanoid"])
def test_the_single_view_passes_gymnasiums_checker(make_env, task):
    check_env(as_gymnasium(make_env(task, num_envs=1)), skip_render_check=True)


def test_the_single_view_returns_terminal_observations(make_env):
    view = as_gymnasium(make_env(CartpoleBalance(episode_length_s=0.06, start_angle=0.3), num_envs=1))
    view.reset(seed=0)
    for step in range(3):
        obs, _, terminated, truncated, _ = view.step(np.zeros(1))
        assert (terminated, truncated) == (False, step == 2)
    # Three steps of falling without a reset in between.
    assert abs(obs[1]) > 0
    fresh, _ = view.reset(seed=0)
    again, _ = view.reset(seed=0)
    assert np.array_equal(fresh, again)


def test_the_vector_view_gives_final_observations_only_where_episodes_end(make_env):
    view = as_gymnasium(make_env(CartpoleBalance(), num_envs=8))
    assert isinstance(view, gymnasium.vector.VectorEnv)
    obs, _ = view.reset(seed=1)
    assert obs.shape == (8, 4)
    assert view.single_observation_space.contains(obs[0])
    ended = 0
    for _ in range(80):
        obs, reward, terminated, truncated, info = view.step(np.ones((8, 1)))
        assert reward.shape == (8,)
        done = terminated | truncated
        if done.any():
            assert info["_final_obs"].tolist() == done.tolist()
            for row, final in enumerate(info["final_obs"]):
                assert (final is not None) == done[row]
                if final is not None:
                    assert abs(final[1]) > 0.8  # where the pole was lost
                    assert abs(obs[row, 1]) <= 0.3  # where it starts again
            ended += int(done.sum())
    assert ended > 0
    assert "final_obs" not in view.step(np.zeros((8, 1)))[4] or done.any()


def test_the_vector_view_is_reproducible_from_a_seed(make_env):
    view = as_gymnasium(make_env(HumanoidWalk(), num_envs=4))

    def episode() -> list[np.ndarray]:
        first, _ = view.reset(seed=7)
        return [first] + [view.step(np.full((4, 21), 0.1))[0] for _ in range(20)]

    assert all(np.array_equal(a, b) for a, b in zip(episode(), episode(), strict=True))


def test_rsl_rl_trains_on_the_view_and_weights_load_both_ways(make_env, tmp_path):
    env = make_env(CartpoleBalance(), num_envs=16)
    runner = OnPolicyRunner(as_rsl_rl(env), {**RSL_RL, "run_name": "x", "logger": "tensorboard"}, None, "cpu")
    runner.learn(2, init_at_random_ep_len=True)
    obs = env.observations["policy"].clone()

    # rsl_rl's checkpoint into our PPO ...
    ours = PPO(env, PPOConfig(precision="fp32", activation=RSL_RL["actor"]["activation"]))
    ours.load_state_dict(runner.alg.save())
    theirs = runner.get_inference_policy()
    with torch.inference_mode():
        assert torch.allclose(ours.policy(obs), theirs({"policy": obs}), atol=1e-6)

    # ... and ours into rsl_rl's runner, through its own file format.
    ours.iterate(env)
    path = tmp_path / "ours.pt"
    torch.save({**ours.state_dict(), "iter": 3, "infos": None}, path)
    runner.load(str(path))
    obs = env.observations["policy"].clone()
    with torch.inference_mode():
        assert torch.allclose(ours.policy(obs), runner.get_inference_policy()({"policy": obs}), atol=1e-6)


def test_the_rsl_rl_view_separates_time_outs_from_falls(make_env):
    view = as_rsl_rl(make_env(CartpoleBalance(episode_length_s=0.04, start_angle=0.0), num_envs=4))
    view.step(torch.zeros(4, 1))
    observations, _, dones, extras = view.step(torch.zeros(4, 1))
    assert dones.tolist() == [1, 1, 1, 1]
    assert extras["time_outs"].tolist() == [True] * 4
    assert observations["policy"].shape == (4, 4)
    assert not torch.equal(extras["terminal_observations"]["policy"], observations["policy"])


def test_the_gymnasium_views_copy_tensors_from_a_gpu():
    for num_envs in (1, 3):
        view = as_gymnasium(warp_env("cartpole_balance", num_envs, "task.episode_length_s=0.04"))
        actions = np.zeros((num_envs, 1)) if num_envs > 1 else np.zeros(1)
        with no_numpy_before_cpu():
            view.reset(seed=1)
            view.step(actions)
            _, reward, _, truncated, info = view.step(actions)  # where episodes end
        assert np.all(truncated)
        assert np.all(np.asarray(reward) > 0)
        assert ("final_obs" in info) == (num_envs > 1)


def stepper(view_of, env):
    """What makes a step of a view of `env` with actions of 0."""
    view = view_of(env)
    if view_of is as_rsl_rl:
        return lambda: view.step(torch.zeros(env.num_envs, env.num_actions))
    return lambda: view.step(np.zeros(view.action_space.shape))


@pytest.mark.parametrize(
    ("view_of", "num_envs"),
    [(as_gymnasium, 1), (as_gymnasium, 3), (as_rsl_rl, 3)],
    ids=["one", "many", "rsl_rl"],
)
def test_every_view_raises_on_non_finite_or_dropped_physics_of_a_gpu(view_of, num_envs):
    env = warp_env("cartpole_balance", num_envs)
    env._reward_terms = {**env._reward_terms, "effort": lambda state, ctx: ctx.action[:, 0] / 0.0}
    step = stepper(view_of, env)
    with pytest.raises(NonFiniteTerm, match="reward 'effort'"):
        step()
    step = stepper(
        view_of, warp_env("humanoid_walk", num_envs, "backend.nconmax=3", "task.action_delay=[0,0]")
    )
    with pytest.raises(RunFailed, match=r"raise backend\.nconmax"):
        [step() for _ in range(100)]
