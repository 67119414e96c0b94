"""The symmetry of a cycle, such as a gait: in its second half the policy acts as the mirror image of the first half.

Observations of the second half are reflected before they reach the networks, and the actions are reflected back. The
policy is then exactly symmetric and half as many states must be learned, at no cost in rollout and update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry


def second_half(obs: Tensor, column: int) -> Tensor:
    """(N, 1) bool: the phase is in the second half of its cycle.

    The phase's sine is in `column` of `obs` (N, D), its cosine in the next column. At multiples of half a cycle, where
    the phase of a resting robot stops, the sine is zero up to rounding errors, which differ between computers; then
    the cosine decides.
    """
    sine, cosine = obs[:, column : column + 1], obs[:, column + 1 : column + 2]
    return (sine < -1e-4) | ((sine.abs() <= 1e-4) & (cosine < 0))


class Fold:
    """Reflects observation groups by a task's symmetry, each by its phase; a group without a phase by the actor's."""

    def __init__(self, symmetry: Symmetry, actor_groups: Sequence[str]) -> None:
        """
        Args:
            symmetry: the task's.
            actor_groups: groups that the actor takes; one of them must contain the phase.
        """
        self.symmetry = symmetry
        self.leader = next(group for group in actor_groups if group in symmetry.cycle)
        """The group whose phase decides whether actions are reflected."""

    def flipped(self, observations: Mapping[str, Tensor], group: str | None = None) -> Tensor:
        """(N, 1) bool: the phase of `group`, by default of `leader`, is in the second half of its cycle."""
        name = group if group in self.symmetry.cycle else self.leader
        assert name is not None
        return second_half(observations[name], self.symmetry.cycle[name])

    def fold(self, observations: Mapping[str, Tensor], group: str) -> Tensor:
        """A group's observations (N, D), reflected in the second half."""
        obs = observations[group]
        if group not in self.symmetry.cycle and self.leader not in observations:
            raise ValueError(
                f"observation group {group!r} has no phase, and group {self.leader!r}, which has one, is missing"
            )
        return torch.where(self.flipped(observations, group), self.symmetry.groups[group](obs), obs)

    def unfold(self, action: Tensor, flipped: Tensor) -> Tensor:
        """Actions (N, A) for folded observations, reflected back where `flipped` (N, 1) is set."""
        return torch.where(flipped, self.symmetry.action(action), action)
