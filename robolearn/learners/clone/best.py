"""The best weights so far of a network, by a number that is measured after each iteration."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rsl_rl.models import MLPModel

from robolearn.envs.state import Tensor


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
        """() iterations that have passed since."""

    @torch.no_grad()
    def offer(self, error: Tensor) -> None:
        """Keep the current weights where their error () is lower."""
        better = error < self.error
        now = self.network.state_dict()
        for name, kept in self.kept.state_dict().items():
            kept.copy_(torch.where(better, now[name], kept))
        self.error.copy_(torch.where(better, error.float(), self.error))
        self.since.copy_(torch.where(better, 0, self.since + 1))

    def state_dict(self) -> dict[str, Any]:
        """What exact resume needs besides the kept weights."""
        return {"error": self.error.clone(), "since": self.since.clone()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what `state_dict` returned; the kept weights are loaded separately. None: the next ones are kept."""
        self.error.fill_(torch.inf) if state is None else self.error.copy_(state["error"])
        self.since.zero_() if state is None else self.since.copy_(state["since"])
