"""The viewer's panel: status, playback, view, checkpoints; commands and pushes are in `steering`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from robolearn.commands.viewer.plots import Plots
from robolearn.commands.viewer.recording import RecordingPanel
from robolearn.commands.viewer.steering import Steering
from robolearn.errors import one_line

if TYPE_CHECKING:
    from robolearn.commands.viewer.viewer import Viewer

LAST = 120
"""Most checkpoints in the list."""
STYLE = """<style>
html, body { overflow: hidden; position: fixed; inset: 0; width: 100%; overscroll-behavior: none; }
@media (pointer: coarse), (max-width: 640px) {
  .mantine-Button-root[data-size^="compact"] { height: 2.6em; font-size: 1em; }
  .mantine-Select-option { padding: .6em; }
  .mantine-Checkbox-root { transform: scale(1.4); transform-origin: left; }
}
</style>"""
"""What viser's page lacks on a phone: it must not grow and zoom out while a list opens, and buttons must be as large as
a finger; viser's own are 22 pixels high."""
PAUSE, PLAY, STEP, RESET = "Pause", "Play", "Step", "Reset"


class Panel:
    """All controls."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.message = ""
        gui = viewer.server.gui
        gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
        gui.set_panel_label("RoboLearn")
        gui.add_html(STYLE)
        self.status = gui.add_html("")
        self._playback()
        tabs = gui.add_tab_group()
        with tabs.add_tab("Drive"):
            self.steering = Steering(viewer)
        with tabs.add_tab("View"):
            self._view()
        with tabs.add_tab("Policy"):
            self._policy()
        with tabs.add_tab("Plots"):
            self.plots = Plots(viewer.server, viewer.probe, viewer.history)
        with tabs.add_tab("Record"):
            self.recording = RecordingPanel(viewer)
        self.refresh()

    # ------------------------------------------------------------------ called by the loop

    def say(self, message: str) -> None:
        """Show a line in the status."""
        self.message = one_line(message, 200)

    def refresh(self) -> None:
        """Show the current state."""
        self.status.content = self._status()
        self.steering.refresh()
        self.plots.update()
        self.recording.refresh()

    def offer(self, choices: list[str], current: str) -> None:
        """Offer these checkpoints, of which `current` acts."""
        offered = _offered(choices, current)
        if offered != self.checkpoints.options:
            self.checkpoints.options = offered
        self.checkpoints.value = current

    def _status(self) -> str:
        viewer, shown = self.viewer, self.viewer.drawing.shown
        episode = viewer.env.state.episode
        state = (
            "stopped" if viewer.error else "paused" if viewer.paused else f"{viewer.achieved:.2f}x real time"
        )
        env = viewer.env
        robot = f"robot {shown}: " if env.num_envs > 1 else ""
        if env.agents > 1:
            world = f" of world {viewer.drawing.world}" if viewer.drawing.count > 1 else ""
            robot = f"{env.agent_names[shown % env.agents]}{world}: "
        lines = [
            f"<strong>{html.escape(viewer.title)}</strong>",
            html.escape(f"{viewer.source.name} · {state}"),
            html.escape(
                f"{robot}{float(episode.time[shown]):.2f} s, return {float(episode.total_return[shown]):.2f}"
            ),
        ]
        if viewer.error:
            lines.append(f"<span style='color:#c92a2a'>{html.escape(viewer.error)}; press Reset</span>")
        elif self.message:
            lines.append(html.escape(self.message))
        return f"<div style='font-size:.85em;line-height:1.4;padding:0 1em .4em'>{'<br/>'.join(lines)}</div>"

    # ------------------------------------------------------------------ building

    def _playback(self) -> None:
        viewer, gui = self.viewer, self.viewer.server.gui
        self.buttons = gui.add_button_group("Simulation", (PAUSE, STEP, RESET))
        self.speed = gui.add_slider(
            "Speed", min=0.1, max=2.0, step=0.1, initial_value=1.0, hint="Simulated time per real time"
        )

        @self.buttons.on_click
        def _(event: Any) -> None:
            pressed = event.target.value
            viewer.do({PAUSE: self.pause, PLAY: self.pause, STEP: self._step, RESET: viewer.reset}[pressed])

        @self.speed.on_update
        def _(event: Any) -> None:
            viewer.do(lambda: setattr(viewer, "speed", float(self.speed.value)))

    def pause(self, paused: bool | None = None) -> None:
        """Pause, or go on; without `paused`, the other of the two."""
        self.viewer.paused = not self.viewer.paused if paused is None else paused
        self.buttons.options = (PLAY if self.viewer.paused else PAUSE, STEP, RESET)

    def _step(self) -> None:
        self.pause(True)
        if not self.viewer.error:
            self.viewer.step()

    def _view(self) -> None:
        viewer, gui, drawing = self.viewer, self.viewer.server.gui, self.viewer.drawing

        def switch(label: str, name: str, hint: str, disabled: bool = False) -> Any:
            box = gui.add_checkbox(label, bool(getattr(drawing, name)), hint=hint, disabled=disabled)

            @box.on_update
            def _(event: Any) -> None:
                viewer.do(lambda: setattr(drawing, name, box.value))

            return box

        if viewer.env.num_envs > 1:
            self.robot = gui.add_slider(
                "Robot",
                min=0,
                max=viewer.env.num_envs - 1,
                step=1,
                initial_value=0,
                hint="Followed and plotted",
            )

            @self.robot.on_update
            def _(event: Any) -> None:
                viewer.do(lambda: self._show(int(self.robot.value)))

        if drawing.count > 1:
            others = "worlds" if viewer.env.agents > 1 else "robots"
            switch("Only this one", "alone", f"Hide the other {others}")
            switch("Stay in place", "in_place", "Draw each robot above its own spot, wherever it walks")
            self.spacing = gui.add_slider(
                "Spacing [m]", min=0.0, max=round(4 * drawing.spacing, 1), step=0.1,
                initial_value=drawing.spacing, hint="0 draws all robots in one place",
            )  # fmt: skip

            @self.spacing.on_update
            def _(event: Any) -> None:
                viewer.do(lambda: setattr(drawing, "spacing", float(self.spacing.value)))

        self.camera = switch("Camera follows", "follow", "Keep the robot in the middle")
        self.forces = switch(
            "Contact forces", "forces",
            "Red arrows at feet and sensed contacts" if drawing.has_contacts else "This robot senses no contact",
            not drawing.has_contacts,
        )  # fmt: skip
        self.arrows = switch(
            "Commands", "commands", "Blue: commanded velocity or pose; orange: actual velocity"
        )
        self.terrain = gui.add_checkbox("Terrain", True, hint="Floor and everything else that cannot move")

        @self.terrain.on_update
        def _(event: Any) -> None:
            drawing.scene.fixed_bodies_frame.visible = self.terrain.value

    def _show(self, robot: int) -> None:
        self.viewer.drawing.shown = robot
        self.viewer.history.clear()
        self.steering.refresh()

    def _policy(self) -> None:
        viewer, gui = self.viewer, self.viewer.server.gui
        self.checkpoints: Any = gui.add_dropdown(
            "Checkpoint",
            _offered(viewer.source.choices(), viewer.source.name),
            initial_value=viewer.source.name,
        )
        self.following: Any = gui.add_checkbox(
            "Follow training", viewer.follow, hint="Switch to each new checkpoint of the run"
        )

        bundle = not hasattr(viewer.source, "folder")
        self.following.disabled = bundle

        @self.checkpoints.on_update
        def _(event: Any) -> None:
            if event.client_id is not None:
                name = self.checkpoints.value
                viewer.do(lambda: self._choose(name))

        @self.following.on_update
        def _(event: Any) -> None:
            if event.client_id is not None:
                follow = self.following.value
                viewer.do(lambda: viewer.follow_training(follow))

    def _choose(self, name: str) -> None:
        self.following.value = False
        self.viewer.follow_training(False)  # else the newest would be back in a second
        self.viewer.switch(name)


def _offered(choices: list[str], current: str) -> tuple[str, ...]:
    """The newest of these checkpoints, and the one that acts, which may be older."""
    return tuple(dict.fromkeys((*choices[:LAST], current)))
