"""Commands and pushes in the panel, and handles in the scene that are dragged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robolearn.commands.viewer.drawing import FLOOR
from robolearn.simulation.script import DIRECTIONS
from robolearn.tasks.mdp.commands import PoseCommands, VelocityCommands

if TYPE_CHECKING:
    from robolearn.commands.viewer.viewer import Viewer

PRESS = 0.1
"""Part of a command's range by which a press of the pad changes it."""
UP, DOWN, LEFT, RIGHT, ZERO, MIDDLE = "▲", "▼", "◀", "▶", "■ Zero", "■ Middle"
TURN_LEFT, TURN_RIGHT = "↺", "↻"
STRONGEST = 3.0
"""Largest push in the panel [m/s]."""


class Steering:
    """Pad, sliders and pushes: the operator's side of the panel."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer, self.operator = viewer, viewer.operator
        gui, env = viewer.server.gui, viewer.env
        self.sliders: list[Any] = []
        self._robot = viewer.drawing.shown
        """The robot whose commands the sliders show."""
        own = env.task.commands
        drawn = getattr(own, "drawn", own)  # the task's own, behind the operator's
        self.all: Any = None
        if self.operator.columns:
            self.mine: Any = gui.add_checkbox(
                "My commands", False, hint="Unchecked: those that the task draws"
            )

            @self.mine.on_update
            def _(event: Any) -> None:
                if event.client_id is not None:
                    viewer.do(self._giving() if self.mine.value else self.operator.release)

            self._pad()
            self._sliders()
        else:
            gui.add_markdown("This task has no commands.")
        if env.num_envs > env.agents and (self.operator.columns or self.operator.pushable):
            self.all = gui.add_checkbox("For all robots", True, hint="Unchecked: for the robot shown only")
        if self.operator.pushable:
            self._pushes()
        self.handle: Knob | Gizmo | None = None
        if isinstance(drawn, VelocityCommands):
            self.handle = Knob(viewer, self.set)
        elif isinstance(drawn, PoseCommands):
            self.handle = Gizmo(viewer, self.set)

    def robots(self) -> torch.Tensor:
        """(N,) bool: the robots that are commanded and pushed."""
        chosen = torch.ones_like(self.operator.mine)
        if self.all is not None and not self.all.value:
            chosen[:] = False
            world, agents = self.viewer.drawing.world, self.viewer.env.agents
            chosen[world * agents : (world + 1) * agents] = True  # a command is of all agents of a world
        return chosen

    # ------------------------------------------------------------------ called by the loop

    def set(self, values: dict[int, float]) -> None:
        """Give commands by the index of their columns; the others stay."""
        now = [float(slider.value) for slider in self.sliders]
        self._give([values.get(i, value) for i, value in enumerate(now)])

    def refresh(self) -> None:
        """Show the commands of the robot that is shown; the user's only once, as the user may be moving them."""
        if not self.operator.columns:
            return
        shown = self.viewer.drawing.shown
        mine = bool(self.operator.mine[shown])
        self.mine.value = mine
        if not mine or shown != self._robot:
            self._robot = shown
            now = (self.operator.values if mine else self.viewer.env.ctx.command)[shown].tolist()
            for slider, column, value in zip(self.sliders, self.operator.columns, now, strict=True):
                slider.value = _on_slider(column, value)

    def _give(self, values: list[float]) -> None:
        placed = [_on_slider(c, value) for c, value in zip(self.operator.columns, values, strict=True)]
        self.operator.give(placed, self.robots())
        self.mine.value = True
        for slider, value in zip(self.sliders, placed, strict=True):
            slider.value = value

    def _giving(self) -> Callable[[], None]:
        """The work of giving what the sliders show now: until the loop does it, `refresh` may move them."""
        values = [float(slider.value) for slider in self.sliders]
        return lambda: self._give(values)

    def _press(self, pressed: str) -> None:
        columns = self.operator.columns
        if pressed in (ZERO, MIDDLE):
            self.set({i: column.start for i, column in enumerate(columns)})
            return
        i, sign = {UP: (0, 1), DOWN: (0, -1), LEFT: (1, 1), RIGHT: (1, -1), TURN_LEFT: (2, 1), TURN_RIGHT: (2, -1)}[
            pressed
        ]  # fmt: skip
        column = columns[i]
        if i and not column.left_positive:
            sign = -sign
        change = PRESS * (column.high - column.low) * sign
        self.set({i: float(self.sliders[i].value) + change})

    def _push(self) -> None:
        self.operator.push(float(self.speed.value), float(self.direction.value), self.robots())

    # ------------------------------------------------------------------ building

    def _pad(self) -> None:
        """Arrow buttons for the first two or three columns: up and down, left and right, turn."""
        viewer, columns = self.viewer, self.operator.columns
        turns = len(columns) > 2 and columns[2].name == "yaw"
        rows = [(TURN_LEFT, UP, TURN_RIGHT) if turns else (UP,)]
        rows.append((LEFT, DOWN, RIGHT) if len(columns) > 1 else (DOWN,))
        rows.append((MIDDLE,) if any(column.start for column in columns) else (ZERO,))
        self.pad = []
        for i, row in enumerate(rows):
            group = viewer.server.gui.add_button_group(
                "" if i else "Pad", row, hint=f"Changes {' and '.join(c.name for c in columns[:2])}"
            )
            self.pad.append(group)

            @group.on_click
            def _(event: Any) -> None:
                pressed = event.target.value
                viewer.do(lambda: self._press(pressed))

    def _sliders(self) -> None:
        for column in self.operator.columns:
            slider = self.viewer.server.gui.add_slider(
                column.name if column.unit in ("", "1") else f"{column.name} [{column.unit}]",
                min=column.low,
                max=column.high,
                step=column.step,
                initial_value=_on_slider(column, column.start),
                hint="left is positive" if column.left_positive and column.name != "x" else None,
            )
            self.sliders.append(slider)

            @slider.on_update
            def _(event: Any) -> None:
                if event.client_id is not None:
                    self.viewer.do(self._giving())

    def _pushes(self) -> None:
        viewer, gui = self.viewer, self.viewer.server.gui
        with gui.add_folder("Push"):
            self.speed = gui.add_slider(
                "Size [m/s]",
                min=0.0,
                max=STRONGEST,
                step=0.1,
                initial_value=1.0,
                hint="Jump of the base's velocity",
            )
            self.direction: Any = gui.add_slider(
                "Direction [°]", min=-180, max=180, step=5, initial_value=0,
                hint="0 is where the robot faces, 90 is left",
            )  # fmt: skip
            self.quick = gui.add_button_group("Towards", tuple(DIRECTIONS))
            self.button = gui.add_button("Push")

            @self.button.on_click
            def _(event: Any) -> None:
                viewer.do(self._push)

            @self.quick.on_click
            def _(event: Any) -> None:
                self.direction.value = int(DIRECTIONS[event.target.value])


class Knob:
    """A ball at the tip of the arrow of the commanded velocity; to drag it is to steer."""

    def __init__(self, viewer: Viewer, set_: Any) -> None:
        self.drawing, self.env = viewer.drawing, viewer.env
        radius = 0.04 * self.drawing.size
        self.height = FLOOR["command"] + radius
        self.ball = viewer.server.scene.add_icosphere("/knob", radius, (51, 140, 255), cast_shadow=False)
        self.drawing.after.append(self._draw)

        @self.ball.on_drag
        def _(event: Any) -> None:
            eye, aim = np.array(event.client.camera.position), np.array(event.end_position)
            viewer.do(lambda: self._dragged(eye, aim, set_))

    def _dragged(self, eye: np.ndarray, aim: np.ndarray, set_: Any) -> None:
        """Steer to where the ray from the camera through the pointer meets the floor."""
        ray = aim - eye
        if ray[2] > -1e-3 * float(np.linalg.norm(ray)):
            return  # above the horizon
        hit = eye + ray * (self.drawing.floor + self.height - eye[2]) / ray[2]
        offset = (hit - self.drawing.place)[:2]
        ahead = self.drawing.ahead
        set_({0: float(offset @ ahead), 1: float(ahead[0] * offset[1] - ahead[1] * offset[0])})

    def _draw(self) -> None:
        forward, sideways = self.env.ctx.command[self.drawing.shown, :2].tolist()
        ahead = self.drawing.ahead
        tip = self.drawing.place[:2] + forward * ahead + sideways * np.array([-ahead[1], ahead[0]])
        self.ball.position = np.array([*tip, self.drawing.floor + self.height])
        self.ball.visible = self.drawing.commands


class Gizmo:
    """Axes at the commanded pose; to drag them is to command another pose."""

    def __init__(self, viewer: Viewer, set_: Any) -> None:
        self.drawing, self.env = viewer.drawing, viewer.env
        scene = viewer.server.scene
        self.frame = scene.add_frame("/base", show_axes=False)
        turns = len(viewer.operator.columns) > 3
        self.control = scene.add_transform_controls(
            "/base/goal", 0.25 * self.drawing.size, disable_rotations=not turns, depth_test=False
        )
        self.dragged = False
        self.drawing.after.append(self._draw)

        @self.control.on_update
        def _(event: Any) -> None:
            self.dragged = event.phase != "end"
            pose = [*map(float, self.control.position), *(map(float, self.control.wxyz) if turns else ())]
            viewer.do(lambda: set_(dict(enumerate(pose))))

    def _draw(self) -> None:
        self.frame.position, self.frame.wxyz = self.drawing.place, self.drawing.quat
        self.control.visible = self.drawing.commands
        if not self.dragged:
            command = self.env.ctx.command[self.drawing.shown].tolist()
            self.control.position = np.array(command[:3])
            if len(command) > 3:
                self.control.wxyz = np.array(command[3:7])


def _on_slider(column: Any, value: float) -> float:
    """The nearest value that a column's slider can have."""
    steps = round((value - column.low) / column.step)
    return float(min(max(round(column.low + steps * column.step, 9), column.low), column.high))
