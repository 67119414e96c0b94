"""The settings of distillation, `learner.*` on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from robolearn.learners.imitation.config import ImitationConfig


@dataclass
class DistillConfig(ImitationConfig):
    """On-policy distillation: the student acts, and learns what its teacher would have done in the same states."""

    teacher: str | None = None
    """Run, checkpoint or pretrained:NAME of the same robot. It observes the groups that it was trained with."""
    loss: Literal["kl", "mse"] = "kl"
    """kl: the divergence of the student's Gaussian from the teacher's, which also learns the standard deviations; mse:
    the mean squared error of the mean action."""
    beta: float = field(default=0.5, metadata={"min": 0.0, "max": 1.0})
    """Share of the steps in which the teacher's action is taken, at the start; the student's elsewhere."""
    beta_decay: float = field(default=0.9, metadata={"min": 0.0, "max": 1.0})
    """Factor on this share after each iteration."""

    def validate(self) -> None:
        """Raise ValueError for settings that contradict each other, or where there is no teacher."""
        super().validate()
        if self.teacher is None:
            raise ValueError("teacher is missing: add learner.teacher=RUN")
