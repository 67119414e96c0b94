"""Gradients with half the multiplications equal those of the whole symmetric network, up to rounding."""

from __future__ import annotations

import pytest
import torch

from robolearn.learners import blocks, engine
from robolearn.learners.blocks import Blocks, can_halve
from robolearn.learners.equivariance import Equivariance
from robolearn.learners.networks import build_model
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp.symmetry import Reflection
from tests.learners.scripted import Scripted, symmetry

SEEN = Reflection(torch.tensor([0, 4, 2, 5, 1, 3, 6]), torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0]))
"""Columns 0 and 6 stay, 2 changes its sign, 1 and 4 are swapped, 3 and 5 are swapped with other signs."""
ACTED = Reflection(torch.tensor([1, 0, 2]), torch.tensor([-1.0, -1.0, 1.0]))
OBS = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def _small(monkeypatch):
    """Networks and minibatches of any size on any processor, 16 rows at a time."""
    monkeypatch.setattr(blocks, "onednn_is_faster", lambda: False)
    monkeypatch.setattr(blocks, "LEAST_UNITS", 1)
    monkeypatch.setattr(engine, "LEAST_ROWS", 1)
    monkeypatch.setattr(blocks, "ROWS", 16)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The number of samples of every call of a Blocks, on a processor where it pays."""
    monkeypatch.setattr(blocks, "onednn_is_faster", lambda: False)
    made, call = [], Blocks.__call__

    def watched(self: Blocks, parts: torch.Tensor) -> torch.Tensor:
        made.append(len(parts))
        return call(self, parts)

    monkeypatch.setattr(Blocks, "__call__", watched)
    return made


def small(hidden: tuple[int, ...], activation: str, outputs: int):
    torch.manual_seed(0)
    network = build_model({"policy": 7}, outputs, hidden, activation, None)
    adam = DeviceAdam({"network": network}, 1e-2, 1.0)
    equivariance = Equivariance(adam, [(network, SEEN, ACTED if outputs == 3 else None)])
    equivariance.begin()
    with torch.no_grad():  # biases begin small
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    equivariance.project_weights()
    return network.mlp, adam, equivariance


def compared(mlp, adam, equivariance) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs and projected gradient of the whole network, and of its blocks."""
    halved, found = Blocks(mlp, SEEN), []
    for outputs in (mlp(OBS), halved(halved.parts(OBS))):
        target = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
        adam.take(torch.autograd.grad((outputs - target).square().mean(), adam.parameters))
        equivariance.project_gradients()
        found.append((outputs.detach(), adam.shared.clone()))
    return list(zip(*found, strict=True))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("outputs", [3, 1])  # actions, and a value that is the same for a mirror image
@pytest.mark.parametrize("activation", ["relu", "elu", "tanh"])
@pytest.mark.parametrize("hidden", [(12, 8), (6,), (4, 10, 8)])
def test_outputs_and_projected_gradients_equal_those_of_the_whole_network(hidden, activation, outputs):
    mlp, adam, equivariance = small(hidden, activation, outputs)
    assert can_halve(mlp)
    for whole, halved in compared(mlp, adam, equivariance):
        assert whole.norm() > 0.1
        assert (whole - halved).norm() <= 1e-5 * whole.norm()
    for parameter, gradient in zip(adam.parameters, adam.gradients, strict=True):
        assert parameter.numel() == 1 or gradient.abs().max() > 1e-4


def test_even_parts_of_a_mirror_image_stay_and_odd_ones_change_their_sign():
    mlp, *_ = small((6,), "relu", 3)
    halved = Blocks(mlp, SEEN)
    parts, image = halved.parts(OBS), halved.parts(SEEN(OBS))
    assert torch.equal(image[:, :4], parts[:, :4])  # of columns 0, 1 with 4, 3 with 5, and 6
    assert torch.equal(image[:, 4:], -parts[:, 4:])  # of columns 1 with 4, 2, and 3 with 5
    assert torch.equal(parts[:, 0], OBS[:, 0])
    assert torch.equal(parts[:, 5], OBS[:, 2])


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("estimated", "threads"), [((), 1), (("estimated",), 1), ((), 3)])
def test_a_task_trains_to_the_losses_of_the_whole_network(
    make_env, monkeypatch, calls, threads, estimated, request
):
    before, runs = torch.get_num_threads(), []
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(threads)
    monkeypatch.setattr(engine, "WORTH_SPLITTING", 1)  # of 46 samples three threads take 15, 15 and 16
    for least in (1, 10_000):
        monkeypatch.setattr(engine, "LEAST_ROWS", least)
        env = make_env(HumanoidWalk(history={}), num_envs=23)
        sizes = {"num_steps": 6, "minibatch_size": 48, "estimator_hidden": (8,)}
        config = PPOConfig(
            **sizes, precision="fp32", activation="relu", max_kl=1e9, estimated_groups=estimated
        )
        learner = PPO(env, config, seed=5)
        losses = [learner.iterate(env).losses for _ in range(3)]
        runs.append((losses, len(calls)))
    (halved, taken), (whole, taken_after) = runs
    minibatches = 3 * PPOConfig().num_epochs * 3  # iterations, epochs, minibatches
    assert taken == taken_after == minibatches * 2 * threads
    for ours, theirs in zip(halved, whole, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert halved != whole


@pytest.mark.parametrize("threads", [1, 2])
def test_large_minibatches_of_a_symmetric_task_take_half_the_multiplications(calls, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        learner = scripted()
        learner.iterate(learner.env)
        assert set(calls) == ({4096} if threads == 1 else {2048})
        assert len(calls) == 2 * threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16"},
        {"activation": "swish"},
        {"actor_hidden": (64,), "critic_hidden": (64,)},
        {"minibatch_size": 1024},
        {"symmetry": "none"},
        {"symmetry": "augment"},
        {"symmetry": "none", "rnn": "gru"},
    ],
    ids=str,
)
def test_other_networks_and_small_minibatches_are_computed_whole(calls, settings):
    learner = scripted(**settings)
    learner.iterate(learner.env)
    assert calls == []


def test_where_onednn_multiplies_faster_networks_are_computed_whole(calls, monkeypatch):
    monkeypatch.setattr(blocks, "onednn_is_faster", lambda: True)
    learner = scripted()
    learner.iterate(learner.env)
    assert calls == []


def scripted(**settings) -> PPO:
    """A learner with 4096 samples an iteration, in one minibatch by default, of a task with a mirror image."""
    mirrored = None if settings.get("symmetry") == "none" else symmetry()
    env = Scripted(1024, mirrored=mirrored)
    defaults = {"actor_hidden": (128,), "critic_hidden": (128,), "minibatch_size": 4096, "precision": "fp32"}
    learner = PPO(env, PPOConfig(num_steps=4, num_epochs=1, **{**defaults, **settings}), seed=4)
    learner.env = env
    return learner
