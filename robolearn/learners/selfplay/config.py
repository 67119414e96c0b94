"""Settings of self-play, which learners that can take them share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SelfPlayConfig:
    """Games of two agents against past policies; see docs/multi_agent.md."""

    self_play: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0})
    """Share of the worlds in which one of the two agents is a past policy; in the others both are the current one.
    0: in all of them."""
    pool_size: int = field(default=16, metadata={"min": 1, "max": 256})
    """Past policies that are kept. Of more, those stay that are spread over the whole training."""
    pool_interval: int = field(default=20, metadata={"min": 1, "max": 1_000_000})
    """Iterations after which the current policy joins them."""
    mean_opponents: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0})
    """Share of the lanes whose past policies act by their mean actions; in the others they act with the noise that they
    explored with. Ratings are from the games with noise; with a share of 1, from all."""
