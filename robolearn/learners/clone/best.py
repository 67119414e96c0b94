"""The best weights so far of a network, by a number that is measured after each iteration."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rsl_rl.models import MLPModel

from robolearn.envs.state import Tensor

LEAST = 1e-3
"""Relative decrease of the error from which training counts as going on: small ones never end."""


class Best:
    """A copy of a network's weights of the iteration with the least error; nothing is read from the device."""

    def __init__(self, network: MLPModel) -> None:
        self.network = network
        self.kept: MLPModel = copy.deepcopy(network).requires_grad_(False)
        """The network with the best weights."""
        device = next(network.parameters()).device
        self.error = torch.full((), torch.inf, device=device)
        """() theirs."""
        self.since = torch.zeros((), dtype=torch.int64, device=device)
        """() iterations since it was last lower by LEAST."""
        self._mark = self.error.clone()

    @torch.no_grad()
    def offer(self, error: Tensor) -> None:
        """Keep the current weights where their error () is lower."""
        better = error < self.error
        now = self.network.state_dict()
        for name, kept in self.kept.state_dict().items():
            kept.copy_(torch.where(better, now[name], kept))
        self.error.copy_(torch.where(better, error.float(), self.error))
        much = error < self._mark - LEAST * error.abs()
        self._mark.copy_(torch.where(much, error.float(), self._mark))
        self.since.copy_(torch.where(much, 0, self.since + 1))

    def state_dict(self) -> dict[str, Any]:
        """What exact resume needs besides the kept weights."""
        return {"error": self.error.clone(), "since": self.since.clone(), "mark": self._mark.clone()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what `state_dict` returned; the kept weights are loaded separately. None: the next ones are kept."""
        saved = state or {"error": torch.inf, "since": 0, "mark": torch.inf}
        for tensor, name in ((self.error, "error"), (self.since, "since"), (self._mark, "mark")):
            tensor.copy_(torch.as_tensor(saved[name]))
