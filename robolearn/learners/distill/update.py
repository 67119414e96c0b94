"""Distillation's objective: how far the student's actions are from the teacher's."""

from __future__ import annotations

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.distill.config import DistillConfig
from robolearn.learners.imitation.losses import divergence_from, squared_error
from robolearn.learners.imitation.update import Imitation


class Distilling(Imitation):
    """Gradient steps on what the teacher would have done: `begin`, `learn`, then `read`."""

    losses = ("action", "error")
    config: DistillConfig
    teacher_std: Tensor
    """(A,) the teacher's standard deviations; needed by the divergence alone."""

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and what is reported of it; `action` is the teacher's mean."""
        mean, std, _ = self.predicted(part)
        error = squared_error(mean, part["action"]).mean()
        if self.config.loss == "mse":
            return error, torch.stack((error, error))
        loss = divergence_from(part["action"], self.teacher_std, mean, std).mean()
        return loss, torch.stack((loss, error))
