"""Recordings: a video of the robot that is shown, or the whole scene for viser's player."""

from __future__ import annotations

import html
import math
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robolearn.core.env import Env
from robolearn.envs.state import State
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.files import part_of, replacing
from robolearn.simulation.renderer import Renderer
from robolearn.simulation.video import write_video
from robolearn.tasks.mdp.commands import VelocityCommands
from robolearn.training.runs import require_writable

if TYPE_CHECKING:
    import viser

    from robolearn.commands.viewer.viewer import Viewer

SIZE = (960, 544)
"""Width and height of a video [pixels]; encoders want multiples of 16."""
FPS = 30.0
"""Most frames per second of a video."""
LONGEST = {"mp4": 600.0, "viser": 120.0, "html": 120.0}
"""Longest recording [s]: a scene's messages stay in memory until it ends."""
FORMATS = {"MP4 video": "mp4", "Scene (.viser)": "viser", "Web page (.html)": "html"}


class Video:
    """Draws and encodes in a thread of its own, from copies of the State: the simulation need not wait."""

    def __init__(self, env: Env, path: Path) -> None:
        """Begins at once; what is missing on this machine shows in `error` soon after."""
        self.env, self.path = env, path
        self.every = math.ceil(1 / (FPS * env.dt) - 1e-9)
        self.seconds, self.error, self.done = 0.0, "", False
        self._count = 0
        self._frames: queue.SimpleQueue[tuple[State, dict[str, np.ndarray]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def step(self, shown: int) -> None:
        """Add the State after a control step."""
        if self._count % self.every == 0:
            state = self.env.backend.state
            rows = state.robot.base_pos.new_tensor([shown]).long()
            arrows: dict[str, np.ndarray] = {}
            commands = self.env.task.commands
            if isinstance(getattr(commands, "drawn", commands), VelocityCommands):
                arrows["command"] = self.env.ctx.command[shown, :2].double().cpu().numpy().copy()
            self._frames.put((state.rows(rows), arrows))
        self._count += 1
        self.seconds = self._count * self.env.dt

    def frame(self, seconds: float) -> None:
        """Frames of the browser do not matter."""

    def stop(self) -> None:
        """Finish the file, in the background."""
        self._frames.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the file for at most that long."""
        self._thread.join(seconds)

    def _write(self) -> None:
        try:
            rate = 1 / (self.every * self.env.dt)
            write_video(self.path, self._drawn(), rate, round(LONGEST["mp4"] * rate), progress=False)
        except (ConfigError, MissingError, RunFailed) as error:
            self.error = one_line(str(error))
        except StopIteration:
            self.error = "nothing was recorded"
        except Exception as error:  # OpenGL and ffmpeg raise almost anything; the viewer goes on
            self.error = one_line(f"{type(error).__name__}: {error}", 200)
        self.done = True

    def _drawn(self) -> Iterator[np.ndarray]:
        with Renderer(self.env.scene, *SIZE, backend=self.env.backend.capabilities.name) as renderer:
            while (item := self._frames.get()) is not None:
                yield renderer.draw(*item)


class Scene:
    """Records what viser sends to the browsers."""

    def __init__(self, server: viser.ViserServer, path: Path) -> None:
        self.path = path
        self.seconds, self.error, self.done = 0.0, "", False
        self._serializer = server.get_scene_serializer()
        self._thread: threading.Thread | None = None

    def step(self, shown: int) -> None:
        """Steps between two frames do not matter."""

    def frame(self, seconds: float) -> None:
        """A frame was drawn, `seconds` of simulated time after the one before."""
        self._serializer.insert_sleep(seconds)
        self.seconds += seconds

    def stop(self) -> None:
        """Write the file, in the background."""
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the file for at most that long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _write(self) -> None:
        try:
            if self.path.suffix == ".html":
                content = self._serializer.as_html().encode()
            else:
                content = self._serializer.serialize()
            with replacing(self.path) as part:
                part.write_bytes(content)
        except ConfigError as error:
            self.error = one_line(str(error))
        self.done = True


class RecordingPanel:
    """The controls of recordings."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        gui = viewer.server.gui
        self.active: Video | Scene | None = None
        self._writing: Video | Scene | None = None
        self.last: Path | None = None
        """The file that was written last."""
        self.format = gui.add_dropdown("Format", tuple(FORMATS))
        self.button = gui.add_button("Record")
        self.note = gui.add_html("")
        self.download = gui.add_button("Download", visible=False)
        self._say(f"to {viewer.folder}")

        @self.button.on_click
        def _(event: Any) -> None:
            viewer.do(self.stop if self.active is not None else self.start)

        @self.download.on_click
        def _(event: Any) -> None:
            if self.last is not None and event.client is not None:
                event.client.send_file_download(self.last.name, self.last.read_bytes())

    # ------------------------------------------------------------------ called by the loop

    def start(self) -> None:
        """Begin to record; nothing where a recording runs or is being written."""
        if self._writing is not None or self.active is not None:
            return
        kind = FORMATS[self.format.value]
        path = self._path(kind)
        try:
            require_writable(path.parent)
        except ConfigError as error:
            self._say(str(error), wrong=True)
            return
        make: Callable[[], Video | Scene] = (
            (lambda: Video(self.viewer.env, path))
            if kind == "mp4"
            else (lambda: Scene(self.viewer.server, path))
        )
        self.active = make()
        self.button.label, self.format.disabled, self.download.visible = "Stop", True, False

    def stop(self) -> None:
        """End the recording and write its file."""
        if self.active is None:
            return
        self.active.stop()
        self._writing, self.active = self.active, None
        self.button.label, self.button.disabled = "Writing...", True

    def step(self) -> None:
        """A control step was simulated."""
        if self.active is not None:
            self.active.step(self.viewer.drawing.shown)

    def frame(self, seconds: float) -> None:
        """A frame was drawn."""
        if self.active is not None:
            self.active.frame(seconds)

    def refresh(self) -> None:
        """Show how far the recording is."""
        active = self.active
        if active is not None:
            if active.error:
                self.active = None
                self._over(active.error, wrong=True)
            elif active.seconds >= LONGEST[active.path.suffix[1:]]:
                self.stop()
            else:
                self._say(f"recording {active.seconds:.1f} s")
        elif self._writing is not None and self._writing.done:
            written, self._writing = self._writing, None
            if written.error:
                self._over(written.error, wrong=True)
            else:
                self.last = written.path
                self._over(f"wrote {written.path} ({written.path.stat().st_size / 1e6:.1f} MB)")
                self.download.visible = True

    def close(self, seconds: float) -> None:
        """End a recording as the viewer ends; a file that is not complete in time is given up."""
        self.stop()
        if self._writing is not None:
            self._writing.join(seconds)
            part_of(self._writing.path).unlink(missing_ok=True)  # its thread ends with the process

    def _over(self, said: str, wrong: bool = False) -> None:
        self.button.label, self.button.disabled, self.format.disabled = "Record", False, False
        self._say(said, wrong)

    def _say(self, said: str, wrong: bool = False) -> None:
        colour = "#c92a2a" if wrong else "inherit"
        self.note.content = (
            f"<div style='font-size:.85em;padding:.2em 1em .4em;overflow-wrap:anywhere;color:{colour}'>"
            f"{html.escape(one_line(said))}</div>"
        )

    def _path(self, kind: str) -> Path:
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        for suffix in ("", *(f"_{i}" for i in range(1, 100))):
            path = self.viewer.folder / f"play_{stamp}{suffix}.{kind}"
            if not path.exists():
                return path
        return path
