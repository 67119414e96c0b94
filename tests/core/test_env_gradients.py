"""An Env on a differentiable backend: gradients that can be worked out by hand, where they flow and where they end.

The points of `tests.toy` move by x' = x + 0.1 a from 1, and each step earns -0.1 x'^2 (weight -1 a second).
"""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from tests.toy import DT, Home, toy_env

Tensor = torch.Tensor


def actions(steps: int, num_envs: int = 2, value: float = 0.5) -> list[Tensor]:
    return [torch.full((num_envs, 1), value, requires_grad=True) for _ in range(steps)]


def rows(gradient: Tensor) -> list[float]:
    return gradient.squeeze(1).tolist()


def holders(thing: Any, path: str = "env", seen: set[int] | None = None) -> list[str]:
    """Where, reachable from a thing, tensors are that hold a graph."""
    seen = set() if seen is None else seen
    if isinstance(thing, torch.Tensor):
        return [path] if thing.requires_grad else []
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | types.ModuleType):
        return []
    seen.add(id(thing))
    if isinstance(thing, dict):
        return [p for k, v in thing.items() for p in holders(v, f"{path}[{k!r}]", seen)]
    if isinstance(thing, list | tuple | set):
        return [p for i, v in enumerate(thing) for p in holders(v, f"{path}[{i}]", seen)]
    if hasattr(thing, "__dict__"):
        return [p for k, v in vars(thing).items() for p in holders(v, f"{path}.{k}", seen)]
    return []


def test_the_gradient_of_a_return_by_every_action_is_the_one_worked_out_by_hand():
    env, _ = toy_env()
    a = actions(3)
    total = sum(env.step(action).reward.sum() for action in a)
    # x = 1.05, 1.1, 1.15 after the steps; d/da_k of -0.1 sum x^2 is -0.1 * 2 * 0.1 * (x of step k and all after).
    by = torch.autograd.grad(total, a)
    for k, tail in enumerate([1.05 + 1.1 + 1.15, 1.1 + 1.15, 1.15]):
        assert rows(by[k]) == pytest.approx([-0.02 * tail] * 2, rel=1e-6)


def test_gradients_flow_through_the_action_and_the_previous_action():
    env, _ = toy_env(Home(rewards={"far": 0.0, "rate": -2.0}))
    a = [torch.full((2, 1), value, requires_grad=True) for value in (1.0, 3.0, 4.0)]
    total = sum(env.step(action).reward[0] for action in a)
    # -0.2 [(a0 - 0)^2 + (a1 - a0)^2 + (a2 - a1)^2], of the first environment only.
    by = torch.autograd.grad(total, a)
    expected = [-0.4 * (1 - 2), -0.4 * (2 - 1), -0.4 * 1]
    assert [g[0].item() for g in by] == pytest.approx(expected)
    assert [g[1].item() for g in by] == [0.0, 0.0, 0.0]


def test_gradients_flow_through_the_delay_lines():
    env, _ = toy_env(Home(action_delay=(1, 1), observation_delay=(1, 1)))
    a = actions(3)
    results = [env.step(action) for action in a]
    # The action of step 0 moves in step 1, and the robot sees that in step 2.
    assert rows(torch.autograd.grad(results[0].reward.sum(), a[0], retain_graph=True)[0]) == [0.0, 0.0]
    by = torch.autograd.grad(results[1].reward[0], a[0], retain_graph=True)[0]
    assert rows(by) == pytest.approx([-0.02 * 1.05, 0.0])
    by = torch.autograd.grad(env.observations["policy"][0, 0], a[:2])
    assert [rows(g) for g in by] == [pytest.approx([DT, 0.0]), [0.0, 0.0]]


def test_a_reset_ends_the_gradients_of_its_own_environments_only():
    env, _ = toy_env(Home(action_delay=(0, 1)))
    env.state.episode.action_delay["lag"].zero_()
    env.episode_step[0] = env.max_episode_steps - 2  # environment 0 times out with its second step
    a = actions(4)
    results = [env.step(action) for action in a]
    assert results[1].truncated.tolist() == [True, False]
    by = torch.autograd.grad(results[3].reward.sum(), a, retain_graph=True)
    x = [1 + DT * (0.5 + 0.5), 1 + DT * 2.0]  # of the new episode, and of the old one
    assert [rows(g) for g in by] == [pytest.approx([0.0, -0.02 * x[1]])] * 2 + [
        pytest.approx([-0.02 * x[0], -0.02 * x[1]])
    ] * 2
    assert rows(torch.autograd.grad(results[1].reward.sum(), a[0])[0]) == pytest.approx([-0.02 * 1.1] * 2)


def test_terminal_observations_before_a_reset_carry_gradients():
    env, _ = toy_env()
    env.episode_step[0] = env.max_episode_steps - 1
    (a,) = actions(1)
    result = env.step(a)
    terminal, seen = result.terminal_observations["policy"], result.observations["policy"]
    assert terminal[:, 0].tolist() == pytest.approx([1.05, 1.05])
    assert seen[:, 0].tolist() == pytest.approx([1.0, 1.05])
    assert rows(torch.autograd.grad(terminal[:, 0].sum(), a, retain_graph=True)[0]) == pytest.approx([DT, DT])
    assert rows(torch.autograd.grad(seen[:, 0].sum(), a)[0]) == pytest.approx([0.0, DT])


def test_a_nan_before_a_reset_does_not_reach_gradients_after_it():
    env, toy = toy_env()
    env.episode_step[0] = env.max_episode_steps - 1
    a = actions(2)
    toy.on_gradient = lambda gradient: torch.full_like(gradient, torch.nan)
    results = [env.step(action) for action in a]
    by = torch.autograd.grad(results[1].reward.sum(), a)
    assert by[1].isfinite().all()
    toy.on_gradient = None
    env.detach()
    # And the other way round: a gradient that is not finite after a reset leaves the old episode alone.
    env.episode_step[0] = env.max_episode_steps - 1
    a = actions(2)
    first = env.step(a[0])
    toy.on_gradient = lambda gradient: torch.full_like(gradient, torch.nan)
    second = env.step(a[1])
    by = torch.autograd.grad((first.reward + second.reward).sum(), a[0])[0]
    assert by.isfinite().tolist() == [[True], [False]]


def test_no_tensor_holds_an_autograd_graph_after_detach_and_the_numbers_stay():
    task = Home(action_delay=(0, 2), observation_delay=(0, 2))
    cut, whole = toy_env(task)[0], toy_env(task)[0]
    env = cut
    a = actions(4)
    for action in a:
        result = env.step(action)
        whole.step(action)
    found = holders(env)
    for part in (
        "observations",
        "terminal_observations",
        "state.episode.action",
        "state.episode.task",
        "observation_delay",
        "state",
    ):
        assert any(part in path for path in found), part
    for part in ("stats", "total_return", "_metrics", "_finite", "random"):
        assert not any(f".{part}" in path for path in found), part
    env.detach()
    assert holders(env) == []
    assert result.reward.requires_grad  # what the caller has keeps its graph
    late = actions(1)
    ours, theirs = env.step(late[0]), whole.step(late[0])
    assert torch.equal(ours.reward, theirs.reward)
    assert torch.equal(ours.observations["critic"], theirs.observations["critic"])
    assert (
        torch.autograd.grad(ours.observations["policy"].sum() + ours.reward.sum(), a, allow_unused=True)
        == (None,) * 4
    )
    assert env.drain() == whole.drain()


def test_the_autograd_graph_of_a_step_is_freed_by_detach_and_by_a_full_reset():
    env, toy = toy_env()
    for cut in (env.detach, env.reset):
        for action in actions(5):
            env.step(action)
        del action
        assert toy.living_steps == 5
        cut()
        assert toy.living_steps == 0


def test_a_snapshot_holds_no_autograd_graph():
    env, _ = toy_env(Home(action_delay=(1, 1)))
    for action in actions(3):
        env.step(action)
    saved = env.snapshot()
    assert holders(saved) == []
    env.restore(saved)
    env.detach()
    assert holders(env) == []


def test_without_gradients_there_is_no_autograd_graph_and_the_numbers_are_equal():
    env, toy = toy_env()
    other, _ = toy_env(gradients=False)
    for i in range(30):
        action = torch.full((2, 1), 0.1 * i)
        ours, theirs = env.step(action), other.step(action)
        assert not ours.reward.requires_grad
        assert torch.equal(ours.reward, theirs.reward)
        assert torch.equal(ours.observations["policy"], theirs.observations["policy"])
    with torch.no_grad():
        assert not env.step(actions(1)[0]).reward.requires_grad
    assert holders(env) == []
    del action
    assert toy.living_steps == 0
    other.detach()  # nothing to cut


def test_ppo_learns_the_same_bits_on_a_backend_with_gradients():
    weights = []
    for gradients in (True, False):
        env, toy = toy_env(Home(spread=0.5), num_envs=8, gradients=gradients)
        learner = PPO(
            env, PPOConfig(num_steps=25, num_epochs=1, actor_hidden=(8,), critic_hidden=(8,)), seed=3
        )
        for _ in range(2):
            learner.iterate(env)
        assert toy.living_steps == 0
        weights.append(torch.cat([p.detach().flatten() for p in learner.actor.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.cuda
def test_gradients_flow_on_a_gpu_too():
    env, _ = toy_env(device="cuda")
    env.episode_step[0] = env.max_episode_steps - 2
    a = [torch.full((2, 1), 0.5, device="cuda", requires_grad=True) for _ in range(6)]
    results = [env.step(action) for action in a]
    by = torch.autograd.grad(results[5].reward.sum(), a)
    assert [g.cpu()[0].item() != 0.0 for g in by] == [False, False, True, True, True, True]
    assert all(g[1].item() != 0.0 for g in by)
    env.detach()
    assert holders(env) == []
