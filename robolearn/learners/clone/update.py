"""Cloning's objective: how far the policy's actions are from the demonstrated ones, and the critic from their
returns."""

from __future__ import annotations

import torch

from robolearn.envs.state import Tensor
from robolearn.learners.clone.config import CloneConfig
from robolearn.learners.imitation.losses import negative_log_likelihood, squared_error
from robolearn.learners.imitation.update import Imitation


class Cloning(Imitation):
    """Gradient steps on demonstrations: `begin`, `learn`, then `read`."""

    losses = ("action", "error", "value")
    config: CloneConfig

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss, and what is reported of it. `weight_of_action` and `weight_of_value` (B,) are 0 for samples that do
        not count, and have mean 1 over all of them."""
        mean, std, value = self.predicted(part)
        squared = squared_error(mean, part["action"])
        each = squared if self.config.loss == "mse" else negative_log_likelihood(mean, std, part["action"])
        counts = part.get("weight_of_action")
        loss = each.mean() if counts is None else (counts * each).mean()
        error = squared.mean() if counts is None else (counts * squared).mean()
        missed = torch.zeros_like(loss)
        if value is not None:
            missed = (part["weight_of_value"] * (value - part["returns"]).square()).mean()
        return loss + self.config.value_loss_coef * missed, torch.stack((loss, error, missed))
