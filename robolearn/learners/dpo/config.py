"""Settings of `learner=dpo`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DPOConfig:
    """Direct preference optimization."""

    reference: str | None = None
    """Run, checkpoint or pretrained:NAME whose policy the learned one starts as and is compared with."""
    preferences: str | None = None
    """Folder of preferences."""
    beta: float = field(default=0.1, metadata={"above": 0.0, "max": 1e3})
    """How closely the policy is held to the reference: the factor on the log ratios of their densities."""
    label_smoothing: float = field(default=0.1, metadata={"min": 0.0, "max": 0.49})
    """Share of the answers that are taken to be wrong. An equal one wants both segments to be as likely."""
    num_epochs: int = field(default=1, metadata={"min": 1, "max": 1000})
    """Passes over the answers in an iteration."""
    minibatch_size: int = field(default=32, metadata={"min": 1, "max": 1_000_000})
    """Approximate number of pairs in a gradient step."""
    learning_rate: float = field(default=3e-4, metadata={"above": 0.0, "max": 1.0})
    """Adam's step size."""
    max_grad_norm: float = field(default=1.0, metadata={"above": 0.0, "max": 1e6})
    """Largest gradient norm."""
    num_steps: int = field(default=16, metadata={"min": 1, "max": 4096})
    """Steps of every environment in an iteration; they tell how the policy does, and nothing is learned from them."""

    def validate(self) -> None:
        """Raise ValueError for settings that are missing."""
        for name, what in (("reference", "RUN"), ("preferences", "FOLDER")):
            if not getattr(self, name):
                raise ValueError(f"{name} is missing; add learner.{name}={what}")
