"""Rollouts that end early on a slow rank: what is learned from, and what all ranks have in common."""

from __future__ import annotations

import threading

import torch

from robolearn.core.shards import ONE, Shards
from robolearn.learners.ppo.ppo import PPO, PPOConfig, gae
from robolearn.learners.rollout import Batch
from robolearn.tasks.cartpole import CartpoleBalance
from tests.learners.ppo.test_ppo_learning import parameters
from tests.threaded_ranks import together


class CutAt:
    """Ends a rollout before step `t`; None: never."""

    def __init__(self, t: int | None) -> None:
        self.t, self.asked = t, 0

    def finished(self) -> None:
        self.asked = 0

    def due(self) -> bool:
        self.asked += 1
        if self.asked != self.t:
            return False
        self.asked = 0
        return True


def batch(steps: int, envs: int) -> Batch:
    def rows(*shape: int) -> torch.Tensor:
        return torch.arange(float(torch.tensor(shape).prod())).view(shape)

    return Batch(
        observations={"critic": rows(steps + 1, envs, 2)},
        action=rows(steps, envs, 1),
        mean=rows(steps, envs, 1),
        reward=torch.ones(steps, envs),
        done=torch.zeros(steps, envs, dtype=torch.bool),
        truncated=torch.zeros(steps, envs, dtype=torch.bool),
        terminal={"critic": rows(steps, envs, 2)},
    )


def test_a_cut_rollout_is_bootstrapped_from_the_state_that_it_reached():
    cut = batch(4, 2)
    cut.done[1, 1] = True  # this episode has ended in the very last step
    terminal = cut.terminal["critic"][1, 1].clone()
    reached = {"critic": torch.tensor([[7.0, 8.0], [9.0, 10.0]])}
    cut.end_at(2, reached)
    assert cut.valid.tolist() == [[True, True], [True, True], [False, False], [False, False]]
    assert cut.steps == 4
    assert cut.truncated.tolist() == [[False, False], [True, False], [False, False], [False, False]]
    assert cut.terminal["critic"][1, 0].tolist() == [7.0, 8.0]
    assert torch.equal(cut.terminal["critic"][1, 1], terminal)
    # Value 10 of the reached state, discount 0.5, lambda 1: 1 + 0.5 (1 + 0.5 * 10) = 4, and 1 + 0.5 * 1 = 1.5.
    reward = cut.reward + 0.5 * torch.where(cut.truncated, 10.0, 0.0)
    _, returns = gae(reward, torch.zeros(4, 2), torch.full((2,), 99.0), cut.done, 0.5, 1.0)
    assert returns[0].tolist() == [4.0, 1.5]


def test_samples_of_a_shard_are_those_of_its_valid_steps():
    cut = batch(4, 4)
    cut.end_at(3, {"critic": torch.zeros(4, 2)})
    parts = cut.parts(torch.arange(16).view(4, 4), Shards(2))
    assert [part.tolist() for part in parts] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert cut.parts(cut.reward, ONE)[0].shape == (12,)


def test_ranks_agree_on_weights_and_steps_where_one_of_them_is_cut(make_env):
    config = PPOConfig(num_steps=8, minibatch_size=32)
    cuts = {0: CutAt(None), 1: CutAt(3)}
    lock = threading.Lock()
    envs = {rank: make_env(CartpoleBalance(), num_envs=8) for rank in cuts}

    def work(shards: Shards) -> tuple[torch.Tensor, list[int], float]:
        env = envs[shards.mine.start // 2]
        with lock:  # the initial weights come from a generator that the threads share
            learner = PPO(env, config, shards=shards)
        reports = [learner.iterate(env) for _ in range(3)]
        used = [int(order.max()) for orders in learner.orders() for order in orders]
        assert shards.mine.start == 0 or max(used) < 3 * 8  # rows of the three steps that were taken
        return parameters(learner), [report.steps for report in reports], reports[-1].env["rollout/cut"]

    (first, steps, share), (second, others, theirs) = together(4, 2, work, cuts)
    assert torch.equal(first, second)
    assert steps == others == [8 * 8 + 3 * 8] * 3
    assert share == theirs == 1 - 88 / 128
