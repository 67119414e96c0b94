"""The symmetry of a cycle: the second half of it is played as the mirror image of the first.

Observations of the second half are reflected into the first before anything learns from them, and the actions are
reflected back. The policy is then exactly symmetric, half the states need learning, and neither rollout nor update has
more to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry


def second_half(obs: Tensor, column: int) -> Tensor:
    """(N, 1) bool: the phase whose sine is in `column` of `obs` (N, D), its cosine in the next, is past the half cycle.

    At the half cycles, where a resting phase stops, the sine is zero but for rounding, which another computer rounds
    differently: there the cosine decides.
    """
    sine, cosine = obs[:, column : column + 1], obs[:, column + 1 : column + 2]
    return (sine < -1e-4) | ((sine.abs() <= 1e-4) & (cosine < 0))


class Fold:
    """Observation groups reflected by a task's symmetry, each by its own phase; a group without one by the actor's."""

    def __init__(self, symmetry: Symmetry, actor_groups: Sequence[str]) -> None:
        """
        Args:
            symmetry: of the task.
            actor_groups: what the actor observes; one of them has the phase.
        """
        self.symmetry = symmetry
        self.leader = next(group for group in actor_groups if group in symmetry.cycle)
        """The group whose phase decides about actions."""

    def flipped(self, observations: Mapping[str, Tensor], group: str | None = None) -> Tensor:
        """(N, 1) bool: what is observed is past the half cycle; `group` where it is not the actor's."""
        name = group if group in self.symmetry.cycle else self.leader
        assert name is not None
        return second_half(observations[name], self.symmetry.cycle[name])

    def fold(self, observations: Mapping[str, Tensor], group: str) -> Tensor:
        """A group's observations (N, D), reflected in the second half."""
        obs = observations[group]
        if group not in self.symmetry.cycle and self.leader not in observations:
            raise ValueError(
                f"observation group {group!r} has no phase of its own and comes without {self.leader!r}"
            )
        return torch.where(self.flipped(observations, group), self.symmetry.groups[group](obs), obs)

    def unfold(self, action: Tensor, flipped: Tensor) -> Tensor:
        """Actions (N, A) for folded observations back to the real robot's."""
        return torch.where(flipped, self.symmetry.action(action), action)
