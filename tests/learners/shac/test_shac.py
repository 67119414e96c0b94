"""SHAC on points that move by x' = x + 0.1 a (see `tests.toy`): formulas by hand, gradient guard, state and reports."""

from __future__ import annotations

import gc
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn import config
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.shards import Shards
from robolearn.errors import ConfigError
from robolearn.learners.networks import deviation
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO, gae
from robolearn.learners.shac.config import SHACConfig
from robolearn.learners.shac.shac import SHAC, horizon_return, td_lambda
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.training.build import build_env
from robolearn.training.train import make_learner
from tests.toy import Home, toy_env

Tensor = torch.Tensor
TINY = SHACConfig(num_steps=8, critic_epochs=2, critic_minibatches=2, actor_hidden=(8,), critic_hidden=(8,))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    # Networks this small are slower on two.
    torch.set_num_threads(1)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def learner_on(env: Any, seed: int = 3, **settings: Any) -> SHAC:
    return SHAC(env, replace(TINY, **settings), seed=seed)


def improve(learner: SHAC, env: Any) -> Tensor:
    """The actor's gradient of one horizon, without the step."""
    reward, following = learner._simulate(env)
    learner._improve_actor(reward, following)
    return learner.actor_adam.shared.clone()


# Formulas -------------------------------------------------------------------------------------------------


def test_the_discount_restarts_after_an_episode_and_ends_are_bootstrapped():
    reward = torch.cat((column(1, 2, 4, 8), column(1, 1, 1, 1)), dim=1)
    done = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    # The first times out after step 1 in a state worth 10 and stands at 20 in the end; the second falls in step 2.
    following = torch.cat((column(0, 10, 0, 20), column(0, 0, 0, 30)), dim=1)
    first = 1 + 0.5 * (2 + 0.5 * 10) + 4 + 0.5 * (8 + 0.5 * 20)
    second = 1 + 0.5 + 0.25 + (1 + 0.5 * 30)
    assert horizon_return(reward, following, done, 0.5).item() == pytest.approx((first + second) / 8)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (0.0, [1 + 0.5 * 6, 2 + 0.5 * 10, 4 + 0.5 * 8, 0 + 0.5 * 20]),  # one step and what the critic says
        (1.0, [1 + 0.5 * 7, 2 + 0.5 * 10, 4 + 0.5 * 10, 0 + 0.5 * 20]),  # rewards up to the end
        (0.5, [1 + 0.5 * 6.5, 2 + 0.5 * 10, 4 + 0.5 * 9, 0 + 0.5 * 20]),
    ],
)
def test_td_lambda_by_hand(lam, expected):
    next_value = column(6, 10, 8, 20)  # 10: of the state that the time-out of step 1 ended in
    done = torch.tensor([[False], [True], [False], [False]])
    target = td_lambda(column(1, 2, 4, 0), next_value, done, 0.5, lam)
    assert target[:, 0].tolist() == pytest.approx(expected)


def test_td_lambda_equals_generalized_advantages_plus_values():
    random = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(9, 5, generator=random, dtype=torch.float64) for _ in range(2))
    last, done = (
        torch.randn(5, generator=random, dtype=torch.float64),
        torch.rand(9, 5, generator=random) < 0.3,
    )
    following = torch.where(done, 0.0, torch.cat((value[1:], last[None])))
    returns = gae(reward, value, last, done, 0.9, 0.7)[1]
    torch.testing.assert_close(td_lambda(reward, following, done, 0.9, 0.7), returns)


def test_time_outs_and_the_horizons_end_have_the_target_critics_value_and_falls_0():
    env, toy = toy_env(num_envs=3)
    learner = learner_on(env, init_std=0.05)
    env.reset()
    env.episode_step[0] = env.max_episode_steps - 3  # times out with step 2 of 0..7
    toy.x[1] = 3.5  # is lost with step 0
    seen = []
    step = env.step

    def watched(action: Tensor) -> Any:
        result = step(action)
        seen.append(result.terminal_observations["critic"])
        return result

    env.step = watched
    _, following = learner._simulate(env)
    value = learner._value
    expected = torch.zeros(8, 3)
    expected[2, 0] = value(seen[2])[0]
    expected[7] = value(env.observations["critic"])
    assert learner.batch.truncated.nonzero().tolist() == [[2, 0]]
    assert learner.batch.done.nonzero().tolist() == [[0, 1], [2, 0]]
    torch.testing.assert_close(following, expected)
    assert following.requires_grad
    with torch.no_grad():  # the target critic says so, not the critic
        learner.critic.mlp[-1].bias += 1.0
        torch.testing.assert_close(value(seen[2])[0], expected[2, 0])


def test_the_actors_gradient_by_hand():
    # The critic's value is 0, one step: the return is -0.1 (x + 0.1 a)^2, and a = bias + weights * 1 + std * noise.
    env, _ = toy_env(num_envs=2)
    learner = learner_on(env, num_steps=1, max_grad_norm=1e6, init_std=0.5)
    for parameter in (*learner.target_critic.parameters(), *learner.actor.mlp.parameters()):
        torch.nn.init.zeros_(parameter)
    random = torch.Generator()
    random.set_state(learner.random.state())
    noise = torch.randn(2, 1, generator=random)
    gradient = improve(learner, env)
    x = 1.0 + 0.1 * 0.5 * noise
    by_action = 0.1 * 2 * x * 0.1 / 2  # of the loss, a mean over two
    named = dict(zip(learner.actor_adam.names, learner.actor_adam.gradients, strict=True))
    assert named["actor.mlp.2.bias"].item() == pytest.approx(by_action.sum().item())
    # What is learned is the deviation's logarithm: its derivative is the deviation itself.
    by_log = named["actor.distribution.log_std_param"].item()
    assert by_log == pytest.approx(0.5 * (by_action * noise).sum().item())
    assert torch.count_nonzero(gradient) == 2  # the layers before see weights of zero


def test_the_entropy_bonus_has_its_weight_as_gradient_of_the_log_deviation():
    gradients = []
    for coef in (0.0, 0.03):
        env, _ = toy_env()
        learner = learner_on(env, entropy_coef=coef, init_std=0.25, max_grad_norm=1e6)
        improve(learner, env)
        gradients.append(dict(zip(learner.actor_adam.names, learner.actor_adam.gradients, strict=True)))
    std = "actor.distribution.log_std_param"
    assert (gradients[1][std] - gradients[0][std]).item() == pytest.approx(-0.03, rel=1e-4)
    for name in gradients[0].keys() - {std}:
        assert torch.equal(gradients[0][name], gradients[1][name])


def test_the_target_critic_keeps_its_share():
    env, _ = toy_env()
    learner = learner_on(env, target_keep=0.75)
    for old, new in zip(learner.target_critic.parameters(), learner.critic.mlp.parameters(), strict=True):
        torch.nn.init.constant_(old, 4.0)
        torch.nn.init.constant_(new, 8.0)
    learner._update_target_critic()
    assert all((p == 5.0).all() for p in learner.target_critic.parameters())  # 0.75 * 4 + 0.25 * 8
    assert not any(p.requires_grad for p in learner.target_critic.parameters())


def test_the_rates_fall_linearly_to_their_share():
    env, _ = toy_env()
    rates = {"learning_rate": 0.01, "critic_learning_rate": 0.1}
    learner = learner_on(env, decay_iterations=4, decay_to=0.2, **rates)
    seen = [learner.iterate(env).losses["learning_rate"] for _ in range(6)]
    assert seen == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002, 0.002])
    assert float(learner.critic_adam.rate) == pytest.approx(0.02)
    assert learner.actor_adam.adam.param_groups[0]["betas"] == (0.7, 0.95)


# The guard ------------------------------------------------------------------------------------------------


def test_non_finite_rows_are_dropped_and_large_ones_scaled_down():
    env, _ = toy_env(num_envs=5)
    learner = learner_on(env, num_steps=1, max_row_grad_norm=125.0)  # 25 for the mean over 5 samples
    gradient = torch.tensor([[3.0, 4.0], [30.0, 40.0], [torch.nan, 1.0], [1.0, torch.inf], [0.0, 0.0]])
    guarded = learner._guard(gradient)
    torch.testing.assert_close(
        guarded, torch.tensor([[3.0, 4.0], [15.0, 20.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    )
    assert learner._guarded.tolist() == [2.0, 1.0]


def horizon(fault: float | None, step: int = 4, **settings: Any) -> tuple[SHAC, Any, list[Tensor], dict]:
    """An iteration of 6 points whose gradients by the position after `step` are multiplied by `fault` in number 2,
    the gradients (N, 1) by the actions as they came to the guard, and what was reported."""
    env, toy = toy_env(Home(spread=0.5), num_envs=6)
    learner = learner_on(env, **settings)
    env.reset()
    arrived, guard, moves = [], learner._guard, []

    def watched(gradient: Tensor) -> Tensor:
        arrived.insert(0, gradient.clone())  # the last step's comes first
        return guard(gradient)

    learner._guard = watched
    move = toy.step

    def faulty(targets: Tensor, substeps: int) -> None:
        if len(moves) == step and fault is not None:
            factor = torch.ones(6, 1)
            factor[2] = fault
            toy.on_gradient = lambda gradient: gradient * factor
        moves.append(1)
        move(targets, substeps)

    toy.step = faulty
    before = torch.cat([p.detach().flatten() for p in learner.actor.parameters()])
    losses = learner.iterate(env).losses
    return learner, before, arrived, losses


def test_a_non_finite_gradient_is_dropped_and_affects_no_other_environment():
    _, _, clean, _ = horizon(None)
    learner, before, arrived, losses = horizon(torch.nan)
    for t, (ours, theirs) in enumerate(zip(arrived, clean, strict=True)):
        others = torch.arange(6) != 2
        assert torch.equal(ours[others], theirs[others])
        assert bool(ours[2].isfinite()) == (t > 4)  # of the fault's step and all before it
    assert losses["dropped_gradients"] == pytest.approx(5 / 48)
    assert (losses["clipped_gradients"], losses["skipped_steps"]) == (0.0, 0.0)
    after = torch.cat([p.detach().flatten() for p in learner.actor.parameters()])
    assert after.isfinite().all()
    assert not torch.equal(before, after)


def test_an_exploding_gradient_is_scaled_down_in_its_rows_only():
    _, _, clean, _ = horizon(None)
    _, _, arrived, losses = horizon(1e6, max_row_grad_norm=2.0)
    assert losses["clipped_gradients"] == pytest.approx(5 / 48)
    assert losses["dropped_gradients"] == 0.0
    assert [bool(g[2].abs() > 2.0 / 48) for g in arrived] == [True] * 5 + [False] * 3
    others = torch.arange(6) != 2
    assert all(torch.equal(g[others], c[others]) for g, c in zip(arrived, clean, strict=True))


def test_a_step_with_a_non_finite_gradient_is_skipped_and_counted():
    # Rows below 1e37 pass a guard as wide as this; their sums over the layers' inputs overflow.
    learner, before, _, losses = horizon(1e37, max_row_grad_norm=1e39)
    assert losses["skipped_steps"] == 1.0
    assert "grad_norm" not in losses  # it has none that could be logged
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in learner.actor.parameters()]))
    assert "grad_norm" in horizon(None)[3]


def test_a_non_finite_critic_raises_with_the_first_non_finite_tensor():
    env, _ = toy_env()
    learner = learner_on(env)
    with torch.no_grad():
        learner.critic.mlp[0].weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteTerm, match=r": weights critic\.mlp\.0\.weight; lower"):
        learner.iterate(env)


# Bookkeeping ----------------------------------------------------------------------------------------------


def test_an_iteration_leaves_no_autograd_graph():
    env, toy = toy_env(num_envs=4)
    learner = learner_on(env)
    for i in range(3):
        learner.iterate(env)
        assert len(toy.tokens) == 8 * (i + 1)
        assert toy.living_steps == 0
    assert not env.observations["policy"].requires_grad


def test_a_resumed_learner_continues_bit_for_bit():
    task = Home(spread=0.5, episode_length_s=0.7, action_delay=(0, 2), observation_delay=(0, 1))

    def made() -> tuple[Any, SHAC]:
        env, _ = toy_env(task, num_envs=6)
        return env, learner_on(env, decay_iterations=5)

    env, learner = made()
    for _ in range(2):
        learner.iterate(env)
    file = io.BytesIO()
    torch.save({"learner": learner.state_dict(), "env": env.snapshot()}, file)
    for _ in range(2):
        whole = learner.iterate(env)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    env, again = made()
    again.load_state_dict(saved["learner"])
    env.restore(saved["env"])
    for _ in range(2):
        resumed = again.iterate(env)
    assert resumed.losses == whole.losses
    assert resumed.env == whole.env
    ours, theirs = again.state_dict(), learner.state_dict()
    assert ours["iterations"] == 4
    for name in ("actor_state_dict", "critic_state_dict", "target_critic_state_dict"):
        assert all(torch.equal(x, theirs[name][key]) for key, x in ours[name].items())
    for name in ("actor_optimizer_state_dict", "critic_optimizer_state_dict"):
        moments = [(s[name]["state"][0]["exp_avg_sq"], s[name]["param_groups"]) for s in (ours, theirs)]
        assert torch.equal(moments[0][0], moments[1][0])
        assert moments[0][1] == moments[1][1]


def test_shac_continues_from_the_weights_of_a_ppo_run():
    env, _ = toy_env()
    ppo = PPO(env, PPOConfig(actor_hidden=(8,), critic_hidden=(8,), activation=TINY.activation), seed=9)
    learner = learner_on(env)
    learner.load_state_dict(ppo.state_dict())
    obs = env.observations["policy"]
    assert torch.equal(learner.policy(obs), ppo.policy(obs))
    assert torch.equal(learner.target_critic[0].weight, ppo.critic.mlp[0].weight)
    torch.testing.assert_close(deviation(learner.actor), deviation(ppo.actor))


def test_weights_that_need_a_gait_clock_are_refused_and_change_nothing():
    env, _ = toy_env()
    learner = learner_on(env)
    before = learner.actor.mlp[0].weight.clone()
    other = SHAC(env, TINY, seed=9).state_dict()
    with pytest.raises(ValueError, match="gait clock"):
        learner.load_state_dict({**other, "folded": True})
    assert torch.equal(learner.actor.mlp[0].weight, before)
    learner.load_state_dict({**other, "folded": False})  # of an older version that had the entry
    assert not torch.equal(learner.actor.mlp[0].weight, before)


def test_gradients_and_moments_are_averaged_over_ranks():
    env, _ = toy_env()
    seen = []

    def exchange(tensor: Tensor) -> list[Tensor]:
        seen.append(tuple(tensor.shape))
        return [tensor, tensor]

    learner = SHAC(env, TINY, shards=Shards(2, range(1), [range(1), range(1, 2)], exchange))
    learner.iterate(env)
    assert seen.count(tuple(learner.actor_adam.shared.shape)) == 1
    assert seen.count(tuple(learner.critic_adam.shared.shape)) == 2 * 2
    assert seen.count((1, 2)) == 2  # the policy group's mean and variance
    assert seen.count((1, 3)) == 2  # the critic's


def test_every_phase_is_timed_and_the_numbers_have_names():
    env, _ = toy_env()
    report = learner_on(env).iterate(env)
    assert report.steps == 8 * 2
    assert all(report.seconds[phase] > 0 for phase in ("simulate", "infer", "learn", "synchronize"))
    named = {"actor", "value", "entropy", "std", "learning_rate", "grad_norm"}
    assert report.losses.keys() == named | {"dropped_gradients", "clipped_gradients", "skipped_steps"}
    assert report.env["steps"] == 16


def test_a_policy_can_be_made_for_a_backend_without_gradients_and_only_training_is_refused(make_env):
    env = make_env(CartpoleBalance(), num_envs=2)
    learner = learner_on(env)
    assert learner.policy(env.observations["policy"]).shape == (2, 1)
    run = config.resolve(["task=cartpole_balance", "learner=shac", "backend=mujoco", "num_envs=2"])
    with pytest.raises(ConfigError) as refused:
        make_learner(run, build_env(run, 2))
    assert str(refused.value).startswith(
        "learner=shac needs gradients; backend=mujoco has none; use backend=differentiable"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("betas=[0.9,1.0]", r"learner\.betas=\[0\.9, 1\.0\]"),
        ("actor_hidden=[]", r"learner\.actor_hidden=\[\]"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    words = ["task=cartpole_balance", "learner=shac", "backend=mujoco", f"learner.{setting}"]
    with pytest.raises(ConfigError, match=message):
        config.resolve(words)


def test_shac_brings_points_home():
    task = Home(spread=1.5)
    env, _ = toy_env(task, num_envs=16)
    learner = learner_on(
        env, num_steps=16, learning_rate=1e-2, critic_epochs=8, critic_hidden=(64, 64), actor_hidden=(64, 64)
    )
    for _ in range(40):
        learner.iterate(env)
    check, _ = toy_env(task, num_envs=64, seed=77)
    policy = learner.policy
    for _ in range(check.max_episode_steps - 1):
        check.step(policy(check.observations["policy"]))
    assert check.backend.state.robot.joint_pos[:, 0].abs().max() < 0.15  # they start up to 2.5 away


@pytest.mark.cuda
def test_shac_learns_on_a_gpu():
    env, toy = toy_env(Home(spread=1.5), num_envs=16, device="cuda")
    learner = learner_on(env, num_steps=16, learning_rate=1e-2)
    reports = [learner.iterate(env) for _ in range(40)]
    assert reports[-1].env["reward/total"] > reports[0].env["reward/total"]
    assert toy.living_steps == 0


@pytest.mark.slow
def test_200_iterations_on_the_simulator_do_not_grow_host_memory():
    pytest.importorskip("warp", reason="the extra 'differentiable' is not installed")
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell its processes' memory")
    small = ["learner=shac", "num_envs=8", "learner.num_steps=4", "learner.critic_epochs=1"]
    run = config.resolve(["task=cartpole_swingup", "backend=differentiable", *small])
    env = build_env(run, run.num_envs)
    learner = make_learner(run, env)

    def pages(iterations: int) -> int:
        for _ in range(iterations):
            learner.iterate(env)
        gc.collect()
        return int(statm.read_text().split()[1])

    before = pages(50)
    assert pages(200) - before < 1000, (
        "pages of 4 kB; one horizon's graph kept an iteration would be 20 times that"
    )
    env.close()
