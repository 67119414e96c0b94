"""Commands and pushes in the panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from robolearn.commands.viewer.viewer import Viewer

OWN, MINE = "Task's own", "Mine"


class Steering:
    """Sliders, pad and pushes."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer, self.operator = viewer, viewer.operator
        gui = viewer.server.gui
        self.sliders: list[Any] = []
        if self.operator.columns:
            self.switch = gui.add_button_group("Commands", (OWN, MINE))

            @self.switch.on_click
            def _(event: Any) -> None:
                mine = event.target.value == MINE
                viewer.do(self._give if mine else self.operator.release)

        for column in self.operator.columns:
            slider = gui.add_slider(
                f"{column.name} [{column.unit}]", min=column.low, max=column.high,
                step=(column.high - column.low) / 200, initial_value=column.start,
            )  # fmt: skip
            self.sliders.append(slider)

            @slider.on_update
            def _(event: Any) -> None:
                if event.client_id is not None:
                    viewer.do(self._give)

    def robots(self) -> torch.Tensor:
        """(N,) bool: those that are commanded and pushed."""
        return torch.ones_like(self.operator.mine)

    def _give(self) -> None:
        self.operator.give([float(slider.value) for slider in self.sliders], self.robots())

    def refresh(self) -> None:
        """Show the commands of the robot that is shown."""
