"""Threads that each compute a part of a minibatch."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners import engine
from robolearn.learners.ppo.ppo import PPO, PPOConfig
from robolearn.learners.workers import Workers
from robolearn.tasks.cartpole import CartpoleBalance


def test_each_thread_computes_alone_and_the_others_keep_their_number():
    torch.set_num_threads(2)
    workers = Workers(2)
    assert workers.map(lambda x: (x, torch.get_num_threads()), [3, 4]) == [(3, 1), (4, 1)]
    assert torch.get_num_threads() == 2


def test_an_error_of_a_part_is_raised_once_all_have_ended():
    ended = []

    def work(part: int) -> None:
        if part == 0:
            raise ValueError("part 0")
        ended.append(part)

    with pytest.raises(ValueError, match="part 0"):
        Workers(2).map(work, [0, 1])
    assert ended == [1]


def test_parts_give_the_gradient_and_the_losses_of_the_whole(make_env, monkeypatch):
    torch.set_num_threads(2)
    env = make_env(CartpoleBalance(), num_envs=33)
    config = PPOConfig(num_steps=3, precision="fp32", minibatch_size=99)
    learner = PPO(env, config)
    assert learner.update._workers.count == 2
    learner.collect(env)
    value, advantage, returns = learner._estimate()
    found = []
    for least in (10, 1000):  # 99 samples: parts of 49 and 50, and the whole
        monkeypatch.setattr(engine, "WORTH_SPLITTING", least)
        learner.update._tables = learner.update._tables_of(learner.batch, advantage, returns, value)
        rows = {name: table.clone() for name, table in learner.update._tables.items()}
        learner.update._descend([rows])
        adam = learner.update.adam
        found.append((adam.shared[: -len(adam.extra)].clone(), adam.extra.clone()))
    (parts, losses), (whole, expected) = found
    assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-6)
    assert torch.allclose(losses, expected, rtol=1e-5, atol=1e-7)
    assert whole.abs().max() > 1e-3
