"""Actor and critic networks: rsl_rl's models, with a normalizer of our own under the same buffer names."""

from __future__ import annotations

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from torch import nn

from robolearn.learners.learner import Reduce, Tensor, alone
from robolearn.tasks.symmetry import Symmetry


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
    group: str, width: int, outputs: int, hidden: tuple[int, ...], activation: str, init_std: float | None
) -> MLPModel:
    """An rsl_rl MLP over one observation group; with `init_std` a Gaussian policy, without a value function."""
    distribution = {"class_name": "GaussianDistribution", "init_std": init_std, "std_range": (0.05, 10.0)}
    model = MLPModel(
        obs={group: torch.zeros(1, width)},
        obs_groups={group: [group]},
        obs_set=group,
        output_dim=outputs,
        hidden_dims=hidden,
        activation=activation,
        obs_normalization=True,
        distribution_cfg=distribution if init_std is not None else None,
    )
    model.obs_normalizer = Normalizer(width)
    return model


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
    """The policy as the robot runs it: normalizer, network and mirroring in one graph, no critic, no noise."""

    def __init__(self, actor: MLPModel, clock: MirroredClock | None = None) -> None:
        super().__init__()
        self.actor = actor
        self.clock = clock

    @torch.no_grad()
    def forward(self, obs: Tensor) -> Tensor:
        """The `policy` group (N, D) to the mean action (N, A)."""
        if self.clock is None:
            return self.actor.mlp(self.actor.obs_normalizer(obs))
        flipped = self.clock.second_half(obs)
        folded = self.clock.fold(obs, "policy", flipped)
        return self.clock.unfold(self.actor.mlp(self.actor.obs_normalizer(folded)), flipped)
