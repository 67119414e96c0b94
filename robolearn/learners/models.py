"""Actor and critic networks: rsl_rl's models, with a normalizer of our own under the same buffer names."""

from __future__ import annotations

from typing import Literal

import torch
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization
from torch import nn

from robolearn.learners.learner import Reduce, Tensor, alone
from robolearn.tasks.mdp.symmetry import Symmetry

Memory = tuple[Tensor, ...]
"""What a recurrent network carries from step to step: (h,) of a GRU, (h, c) of an LSTM, (L, N, H) each for L
layers, N robots and H hidden units; () where there is none."""


class Normalizer(EmpiricalNormalization):
    """Running mean and variance of observations, updated once an iteration from the whole batch.

    Same buffers as rsl_rl's, so weights travel both ways; rsl_rl's own `update` synchronizes and
    reduces over ranks by itself, this one takes the run's `reduce`.
    """

    @torch.no_grad()
    def absorb(self, obs: Tensor, reduce: Reduce = alone) -> None:
        """Add a batch (M, D) to the statistics.

        Chan, Golub, LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
        variances"; with several ranks the batch's moments are averaged first.
        """
        mean = reduce(obs.mean(dim=0, keepdim=True))
        # Around the mean of all ranks: the difference of two large squares would cancel.
        variance = reduce((obs - mean).square().mean(dim=0, keepdim=True))
        total = self.count + obs.shape[0]
        rate = obs.shape[0] / total
        delta = mean - self._mean
        self._mean += rate * delta
        self._var += rate * (variance - self._var + (1 - rate) * delta.square())
        self._std.copy_(self._var.sqrt())
        self.count.copy_(total)


def build_model(
    group: str,
    width: int,
    outputs: int,
    hidden: tuple[int, ...],
    activation: str,
    init_std: float | None,
    rnn: str = "none",
    rnn_hidden: int = 128,
    rnn_layers: int = 1,
    std_type: Literal["scalar", "log"] = "scalar",
) -> MLPModel:
    """An rsl_rl network over one observation group; with `init_std` a Gaussian policy, without a value function.

    What is learned of the policy's deviation is itself or, with `std_type` log, its logarithm. With `rnn`, gru or lstm,
    it has memory: `rnn_layers` layers of `rnn_hidden` units between normalizer and MLP.
    """
    distribution = {
        "class_name": "GaussianDistribution",
        "init_std": init_std,
        "std_range": (0.05, 10.0),
        "std_type": std_type,
    }
    recurrent = {"rnn_type": rnn, "rnn_hidden_dim": rnn_hidden, "rnn_num_layers": rnn_layers}
    model = (MLPModel if rnn == "none" else RNNModel)(
        obs={group: torch.zeros(1, width)},
        obs_groups={group: [group]},
        obs_set=group,
        output_dim=outputs,
        hidden_dims=hidden,
        activation=activation,
        obs_normalization=True,
        distribution_cfg=distribution if init_std is not None else None,
        **({} if rnn == "none" else recurrent),
    )
    model.obs_normalizer = Normalizer(width)
    return model


def rnn_of(model: MLPModel) -> nn.GRU | nn.LSTM | None:
    """The recurrent layers of a network that `build_model` made; None where it has none."""
    return model.rnn.rnn if isinstance(model, RNNModel) else None


def deviation(actor: MLPModel) -> Tensor:
    """Standard deviations (A,) of a Gaussian policy's actions, the same in every state."""
    gaussian = actor.distribution
    low, high = gaussian.std_range
    learned = gaussian.log_std_param.exp() if gaussian.std_type == "log" else gaussian.std_param
    return learned.clamp(low, high)


def empty_memory(rnn: nn.GRU | nn.LSTM, num_envs: int) -> Memory:
    """The memory of `num_envs` robots at the start of an episode: zeros, (L, N, H) each."""
    weight = next(rnn.parameters())
    count = 2 if isinstance(rnn, nn.LSTM) else 1
    return tuple(weight.new_zeros(rnn.num_layers, num_envs, rnn.hidden_size) for _ in range(count))


def advance(rnn: nn.GRU | nn.LSTM, inputs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """Outputs (T, N, H) for inputs (T, N, D) in order of time, and the memory after them."""
    if isinstance(rnn, nn.LSTM):
        h, c = memory
        outputs, new = rnn(inputs, (h, c))
        return outputs, tuple(new)
    outputs, h = rnn(inputs, memory[0])
    return outputs, (h,)


def forget_rows(memory: Memory, done: Tensor) -> Memory:
    """The memory with the robots emptied whose episode ended, `done` (N,) bool; nothing is changed in place."""
    # A product would keep what is not finite, and gradients of it.
    return tuple(torch.where(done[None, :, None], 0.0, part) for part in memory)


class MirroredClock:
    """The symmetry of a gait: the second half of the cycle is played as the mirror image of the first.

    Observations of the second half are reflected into the first before anything learns from them, and
    the actions reflected back. The policy is then exactly symmetric, half the states need learning, and
    neither rollout nor update has more to compute.
    """

    def __init__(self, symmetry: Symmetry) -> None:
        assert symmetry.clock is not None
        self.symmetry, self.clock = symmetry, symmetry.clock

    def second_half(self, obs: Tensor, group: str = "policy") -> Tensor:
        """(N, 1) bool: the gait clock is past the middle of its cycle, told from its sine and cosine.

        At the half cycles, where a resting clock stops, the sine is zero but for rounding, which another
        computer rounds differently: there the cosine decides.
        """
        column = self.clock[group]
        sine, cosine = obs[:, column : column + 1], obs[:, column + 1 : column + 2]
        return (sine < -1e-4) | ((sine.abs() <= 1e-4) & (cosine < 0))

    def fold(self, obs: Tensor, group: str, flipped: Tensor) -> Tensor:
        """Observations (N, D) of a group, reflected where `flipped` (N, 1) is set."""
        return torch.where(flipped, self.symmetry.groups[group](obs), obs)

    def unfold(self, action: Tensor, flipped: Tensor) -> Tensor:
        """Actions (N, A) for folded observations back to the real robot's."""
        return torch.where(flipped, self.symmetry.action(action), action)


class DeployedPolicy(nn.Module):
    """The policy as the robot runs it: normalizer, network and mirroring in one graph, no critic, no noise.

    It keeps nothing between calls: a recurrent one takes its memory and returns the new one, so that the robot,
    which knows when it starts anew, holds it. `Player` does that for simulated robots.
    """

    def __init__(self, actor: MLPModel, clock: MirroredClock | None = None) -> None:
        super().__init__()
        self.actor = actor
        self.clock = clock

    @property
    def state_names(self) -> tuple[str, ...]:
        """What it carries from step to step: () without memory, ("h",) of a GRU, ("h", "c") of an LSTM."""
        rnn = rnn_of(self.actor)
        if rnn is None:
            return ()
        return ("h", "c") if isinstance(rnn, nn.LSTM) else ("h",)

    def initial_state(self, num_envs: int) -> Memory:
        """Its memory where an episode starts: zeros (L, N, H), one for each of `state_names`."""
        rnn = rnn_of(self.actor)
        return () if rnn is None else empty_memory(rnn, num_envs)

    @torch.no_grad()
    def forward(self, obs: Tensor, *state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The `policy` group (N, D) to the mean action (N, A).

        With memory, `state` is one tensor (L, N, H) for each of `state_names`, and the result is the action
        followed by as many new ones.
        """
        flipped = None if self.clock is None else self.clock.second_half(obs)
        if self.clock is not None and flipped is not None:
            obs = self.clock.fold(obs, "policy", flipped)
        latent = self.actor.obs_normalizer(obs)
        rnn = rnn_of(self.actor)
        if rnn is not None:
            outputs, state = advance(rnn, latent.unsqueeze(0), state)
            latent = outputs.squeeze(0)
        action = self.actor.mlp(latent)
        if self.clock is not None and flipped is not None:
            action = self.clock.unfold(action, flipped)
        return action if rnn is None else (action, *state)


class Player:
    """A recurrent policy that remembers: observations (N, D) to actions (N, A), each robot with its own memory.

    The first call after a full reset settles N.
    """

    def __init__(self, policy: DeployedPolicy) -> None:
        """`policy` has memory; it is not changed."""
        assert policy.state_names
        self.policy = policy
        self.state: Memory = ()

    def __call__(self, observations: Tensor) -> Tensor:
        """Act once for everybody, and remember it."""
        if not self.state:
            self.state = self.policy.initial_state(len(observations))
        action, *state = self.policy(observations, *self.state)
        self.state = tuple(state)
        return action

    def reset(self, done: Tensor | None = None) -> None:
        """Forget everything; with `done` (N,) bool, what the robots knew whose episode ended."""
        self.state = () if done is None else forget_rows(self.state, done)
