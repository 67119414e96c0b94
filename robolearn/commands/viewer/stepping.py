"""Stepping through a recorded second in the browser, for `robolearn replay --view`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from robolearn.commands.viewer.server import address, open_server, require_viser, stop
from robolearn.envs.scene import Scene
from robolearn.envs.state import State
from robolearn.simulation.posed import Posed

FRAME = 1 / 30
"""Time between two looks at the panel [s]."""


class Stepping:
    """States in the browser: a slider for the step, a button that plays them, and what a line of text says of each."""

    def __init__(
        self,
        scene: Scene,
        states: Sequence[State],
        said: Sequence[str],
        dt: float,
        host: str,
        port: int | None,
    ) -> None:
        """Start the server.

        Args:
            scene: of the robot.
            states: of one environment, one for each control step.
            said: Markdown to show with each.
            dt: control period [s].
            host: address to listen on.
            port: None: 8080, or the next free one.

        Raises:
            ConfigError: the port is in use.
            MissingError: viser is not installed.
        """
        require_viser()
        from mjviser import ViserMujocoScene

        posed = Posed(scene, visual=True)
        qpos = [posed.placing.qpos(state)[0] for state in states]
        # Where the simulation has exploded, the last place that can be drawn stays.
        self._qpos = [q if np.isfinite(q).all() else None for q in qpos]
        self._posed, self._said, self._dt = posed, said, dt
        self._host = host
        self.server = open_server(host, port)
        self._scene: Any = ViserMujocoScene(self.server, posed.model, 1)
        self._scene.camera_tracking_enabled = True
        gui = self.server.gui
        self.step = gui.add_slider("Step", 0, len(states) - 1, 1, 0)
        self.playing = gui.add_checkbox("Play", True)
        self.speed = gui.add_slider("Speed", 0.05, 1.0, 0.05, 0.25)
        self._text = gui.add_markdown("")
        self._shown = -1
        self._time = 0.0
        self.show()

    @property
    def url(self) -> str:
        """What to open."""
        return address(self._host, self.server.get_port())

    def show(self) -> None:
        """Draw the step that the slider names."""
        step = int(self.step.value)
        if step == self._shown:
            return
        self._shown = step
        here = next((q for q in reversed(self._qpos[: step + 1]) if q is not None), None)
        self._text.content = self._said[step]
        if here is None:
            return
        data = self._posed.data
        data.qpos[:] = here
        mujoco.mj_forward(self._posed.model, data)
        with self.server.atomic():
            self._scene.update_from_mjdata(data)

    def tick(self, seconds: float) -> None:
        """Go on by so much wall time where it plays, from the end to the beginning, and draw."""
        if self.playing.value:
            self._time += seconds * float(self.speed.value)
            if self._time >= self._dt:
                steps = int(self._time / self._dt)
                self._time -= steps * self._dt
                self.step.value = (int(self.step.value) + steps) % len(self._said)  # type: ignore[misc]
        self.show()

    def run(self) -> None:
        """Serve until interrupted."""
        before = time.perf_counter()
        try:
            while True:
                time.sleep(FRAME)
                now = time.perf_counter()
                self.tick(now - before)
                before = now
        finally:
            self.close()

    def close(self) -> None:
        """Stop the server."""
        stop(self.server)
