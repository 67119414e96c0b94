"""The controller of an external environment: its observation in, its inputs out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.export.controller import Exportable
from robolearn.external.env import Actions
from robolearn.runtime.contract import GIVEN
from robolearn.tasks.mdp.sensors import Sensor

SENSOR = Sensor(GIVEN, "each column's as in the environment it was trained in")


class GivenController(Exportable):
    """The network and the environment's own mapping of actions, in the ports of `Controller`."""

    def __init__(
        self, width: int, actions: Actions, network: nn.Module, recurrent: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        ours = {name: value.cpu() for name, value in vars(actions).items() if isinstance(value, Tensor)}
        self.actions, self.network = Actions(**ours, names=actions.names), network
        self.sensors, self.initial, self.width = {GIVEN: SENSOR}, dict(recurrent), width
        self.targets_of, self.affine = ("action",), True  # but for the limits, which the contract states

    @property
    def example(self) -> dict[str, Tensor]:
        """An example of each input, by name."""
        return {GIVEN: torch.zeros(1, self.width), **{f"{k}_in": v for k, v in self.initial.items()}}

    def forward(self, given: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(1, D) and recurrent state to the environment's inputs (1, A), actions (1, A), the observation, new state."""
        result = self.network(given, *state)
        action, *new = result if state else (result,)
        return (self.actions.given(action), action, given * 1.0, *new)
