"""What is kept of a failed case: a replay of the last second of its worst episode, and a short video."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from robolearn.commands.suite.case import Case, made, opened, simulate
from robolearn.core.env import Env
from robolearn.core.recorder import Recorder
from robolearn.errors import one_line
from robolearn.simulation.film import LIFT, Watched
from robolearn.simulation.renderer import Renderer
from robolearn.simulation.trial import Moment
from robolearn.simulation.video import FPS, SIZE, write_video
from robolearn.training import replay

KEPT_SECONDS = 3.0
"""Length of the video of the worst episode, up to its end [s]."""


def record_case(case: Case, seed: int, row: int, end: int, folder: Path, why: str) -> tuple[list[str], str]:
    """Simulate a case again, which has the same bits on a CPU, and keep its worst episode.

    Args:
        case: the case.
        seed: of the trial.
        row: environment of the episode.
        end: number of control steps of the trial after which it ended.
        folder: for the files.
        why: what happened.

    Returns:
        (the files, why one is missing).

    Raises:
        ConfigError: a file cannot be written.
    """
    config, make_driver = opened(case, seed)
    env = made(config, case.scenario.num_envs, case.threads)
    if not isinstance(env, Env) or not env.capabilities.exact_restore:
        env.close()
        return [], "nothing is recorded where results do not repeat bit for bit, as on a GPU"
    recorder = Recorder.install(env)
    camera = _Camera(env, row, end - round(KEPT_SECONDS / env.dt), end - 1, f"{case.name}: {why}")

    def watch(moment: Moment) -> None:
        camera.see(moment)
        if moment.step == end - 2:
            recorder.arm(row)
        if moment.step == end - 1:
            raise _Seen

    try:
        with suppress(_Seen):
            simulate(case, env, make_driver, seed, (watch,))
        path = folder / f"{case.stem}{replay.SUFFIX}"
        # Without a held dump no reset has followed: the trial counts steps, or a value was not finite.
        held = recorder.take()
        replay.write(path, held[1] if held else recorder.dump(row), row, config, f"{case.name}: {why}")
        video = folder / f"{case.stem}.mp4"
        if note := camera.write(video):
            return [str(path)], note
        return [str(path), str(video)], ""
    finally:
        camera.close()
        env.close()


class _Seen(Exception):
    """The episode to be recorded has ended."""


class _Camera:
    """Draws one environment from step `first` to before step `last`. What fails here must not lose the replay."""

    def __init__(self, env: Env, row: int, first: int, last: int, title: str) -> None:
        self._env, self._row, self._first, self._last, self._title = env, row, max(0, first), last, title
        self._every = max(1, round(1 / FPS / env.dt))
        self._frames: list[np.ndarray] = []
        self._renderer: Renderer | None = None
        self._watched = Watched(env, row)
        self._problem = ""

    def see(self, moment: Moment) -> None:
        """Draw after the control step of a moment, where it is time."""
        step = moment.step
        if self._problem or not self._first <= step < self._last:
            return
        try:
            if self._renderer is None:
                name = self._env.backend.capabilities.name
                self._renderer = Renderer(self._env.scene, *SIZE, backend=name, lift=LIFT)
                self._watched.begin(self._renderer)
            else:
                self._watched.after_step(self._renderer, moment.told.get("force"))
            if (step - self._first) % self._every == 0:
                self._frames.append(self._watched.picture(self._renderer, self._title))
        except Exception as error:  # OpenGL raises almost anything
            self._problem = one_line(f"no video: {error or type(error).__name__}")

    def write(self, path: Path) -> str:
        """Write the video; why there is none."""
        if not self._problem and not self._frames:
            return "no video: the episode is too short"
        if not self._problem:
            try:
                write_video(path, iter(self._frames), FPS, len(self._frames))
            except Exception as error:  # so do encoders
                self._problem = one_line(f"no video: {error or type(error).__name__}")
        return self._problem

    def close(self) -> None:
        """Free OpenGL's resources."""
        if self._renderer is not None:
            self._renderer.close()
