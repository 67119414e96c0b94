"""Which episodes a control step ends, and which environments start anew after it, of worlds with several agents."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from robolearn.envs.state import Tensor

GONE = "gone"
"""Name in `EpisodeState.gone`: the agent's episode has ended, and that of its world goes on."""


@dataclass(frozen=True)
class Ends:
    """What a step ends, (N,) bool each; the rows of a world's agents are neighbours."""

    terminated: Tensor
    truncated: Tensor
    done: Tensor
    """Either of them."""
    renewed: Tensor
    """The world starts anew."""
    valid: Tensor | None = None
    """The agent's episode had not ended before; None: agents end with their world."""
    gone: Tensor | None = None
    """The agent's episode has ended, and its world goes on; None as above."""

    @classmethod
    def of(cls, ended: Tensor, late: Tensor, agents: int, gone: dict[str, Tensor]) -> Ends:
        """What a step ends.

        Args:
            ended: (N,) bool, what the terminations say.
            late: (N,) bool, the time of the episode is over, for all agents of a world at once.
            agents: of a world.
            gone: the agents that have ended, `EpisodeState.gone`; {}: a world ends for all where one has ended.
        """
        if not gone:
            if agents > 1:
                ended = ended.view(-1, agents).any(dim=1).repeat_interleave(agents)
            truncated = late & ~ended
            done = ended | truncated
            return cls(ended, truncated, done, done)
        valid = ~gone[GONE]
        terminated, truncated = ended & valid, late & valid & ~ended
        over = gone[GONE] | ended | late
        renewed = over.view(-1, agents).all(dim=1).repeat_interleave(agents)
        return cls(terminated, truncated, terminated | truncated, renewed, valid, over & ~renewed)

    @classmethod
    def none(cls, never: Tensor, alone: bool) -> Ends:
        """Nothing ends: copies of `never` (N,); with `alone`, where agents end one by one."""
        terminated, truncated, done, renewed = (never.clone() for _ in range(4))
        if not alone:
            return cls(terminated, truncated, done, renewed)
        return cls(terminated, truncated, done, renewed, ~never, never.clone())

    def outcome(self) -> dict[str, Tensor]:
        """The entries of `EnvState.outcome`."""
        out = {name: getattr(self, name) for name in ("terminated", "truncated", "done", "renewed")}
        return out if self.valid is None else {**out, "valid": self.valid}

    def still_gone(self) -> dict[str, Tensor]:
        """`EpisodeState.gone` after the step."""
        return {} if self.gone is None else {GONE: self.gone}

    def counted(self, rows: Tensor) -> Tensor:
        """`rows` (N, ...) with 0 where the agent's episode had ended before."""
        if self.valid is None:
            return rows
        return torch.where(self.valid.view(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))
