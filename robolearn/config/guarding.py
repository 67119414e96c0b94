"""The settings of the guard, `guard=on` and `guard.*`; docs/guard.md explains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GuardConfig:
    """Watching a training for reward hacking."""

    mode: Literal["off", "on"] = "off"
    """on: watch, and roll back on a confirmed finding; `guard=on` sets it."""
    rollbacks: int = field(default=3, metadata={"min": 0, "max": 100})
    """Rollbacks before the training stops, with exit code 4; 0: it stops at the first finding."""
    warmup: int = field(default=5, metadata={"min": 1, "max": 100_000})
    """Iterations at the start, and after a rollback, from which baselines are taken."""
    patience: int = field(default=5, metadata={"min": 1, "max": 100_000})
    """Iterations in a row for which a suspicion must hold to be confirmed."""
    interval: int = field(default=10, metadata={"min": 1, "max": 100_000})
    """Iterations between two checkpoints of the guard, to one of which it rolls back."""
    drop: float = field(default=0.25, metadata={"above": 0.0, "max": 1.0})
    """Share of the best success whose loss is suspicious while the reward rises."""
    rise: float = field(default=1.5, metadata={"above": 1.0, "max": 1e3})
    """Multiple of its baseline from which vibration, foot slide, penetration, impact, spin, lean, energy, torque at the
    limit or the value error is suspicious."""
    kl: float = field(default=2.0, metadata={"above": 1.0, "max": 1e3})
    """Multiple of its moving average from which the KL divergence of an update is suspicious while the reward rises."""
    diversity: float = field(default=0.3, metadata={"above": 0.0, "max": 1.0})
    """Share of its baseline below which the diversity of actions or states is suspicious."""
    weight: float = field(default=0.1, metadata={"min": 0.0, "max": 1.0})
    """Factor on the weight of the reward that rose most where success did not follow."""
    video: bool = True
    """Whether a confirmed finding is filmed, where the machine has a renderer."""
