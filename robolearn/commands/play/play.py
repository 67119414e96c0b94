"""`robolearn play --video`: writes a video of a policy, without a display."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from robolearn.config.overrides import parse
from robolearn.config.run_config import EXTERNAL
from robolearn.errors import ConfigError, quote
from robolearn.simulation.film import film, step_of_frame
from robolearn.simulation.script import Director, Script
from robolearn.simulation.tour import tour
from robolearn.simulation.video import FPS, SIZE, parse_size, write_video
from robolearn.tasks.mdp.task import Task
from robolearn.training.build import make_env, require_robolearn_task
from robolearn.training.runs import Run, load_opponents, load_policy, open_run, require_writable
from robolearn.training.train import set_threads

FILE_NAME = "play.mp4"
CONTAINERS = (".mp4", ".mov", ".mkv")
RATES = (1.0, 240.0)
"""Bounds of the frames per second."""


def play(
    run: str | None,
    overrides: Iterable[str] = (),
    video: Path | None = None,
    seconds: float = 20.0,
    output: Path | None = None,
    size: str | None = None,
    fps: float | None = None,
    script: Path | None = None,
    opponent: str | None = None,
) -> Path:
    """Write a video of one robot with a run's policy.

    The robot follows the script; without one a tour of what the commands allow (`robolearn.simulation.tour`), unless an
    override states commands (`task.commands...`): then those that the task draws.

    Args:
        run: see `robolearn.training.runs.open_run`.
        overrides: settings to change, in Hydra's grammar; `num_envs` is ignored.
        video: file of the video; None: play.mp4.
        seconds: length of the video [s].
        output: folder of the file; None: the run folder for play.mp4, the current folder for `video`.
        size: width and height, 640x480 where None.
        fps: frames per second, 25 where None.
        script: YAML file with `commands:` and `pushes:`, see `robolearn.simulation.script.Script.of`.
        opponent: run or checkpoint whose policy the agents other than the first have, of a task with several.

    Returns:
        The file.

    Raises:
        ConfigError: the run, an override or an argument is invalid, or the file cannot be written.
        MissingError: this machine has no renderer or no encoder.
        RunFailed: a term was not finite, or the simulator dropped part of the physics.
    """
    if video is not None and video.suffix.lower() not in CONTAINERS:
        raise ConfigError(f"--video {quote(str(video), 120)}: the file must end in {', '.join(CONTAINERS)}")
    if not 0 < seconds <= 3600:
        raise ConfigError(f"--seconds {seconds:g}: it must be above 0 and at most 3600")
    if fps is not None and not RATES[0] <= fps <= RATES[1]:
        raise ConfigError(f"--fps {fps:g}: it must be from {RATES[0]:g} to {RATES[1]:g}")
    pixels = SIZE if size is None else parse_size(size)
    told = None if script is None else Script.read(script)
    found = open_run(run, overrides)
    path = video or Path(FILE_NAME)
    folder = output or (found.folder if video is None else None)
    path = folder / path if folder else path
    require_writable(path.parent)
    began = time.perf_counter()
    if found.config.backend_name == EXTERNAL:
        if told is not None:
            require_robolearn_task(found.config, "--script")
        from robolearn.commands.play.external import film_external

        if opponent is not None:
            require_robolearn_task(found.config, "--opponent")
        if size is not None or fps is not None:
            print(f"--size and --fps do not apply: {found.config.task_name} draws its own frames")
        set_threads(found.config)
        frames, rate, pixels = film_external(found, load_policy(found), path, seconds)
    else:
        rate = FPS if fps is None else fps
        frames = max(1, round(seconds * rate))
        film_run(found, path, seconds, frames, rate, pixels, told, opponent)
    print(
        f"wrote {path}: {frames / rate:.4g} s, {pixels[0]}x{pixels[1]} at {rate:.4g} frames/s, "
        f"{path.stat().st_size / 1e6:.1f} MB, in {time.perf_counter() - began:.0f} s"
    )
    return path


def film_run(
    found: Run,
    path: Path,
    seconds: float,
    frames: int,
    fps: float,
    size: tuple[int, int],
    script: Script | None,
    opponent: str | None = None,
) -> None:
    """Write a video of a run of a RoboLearn task; see `play`."""
    set_threads(found.config)
    policy = load_policy(found) if opponent is None else load_opponents(found, opponent)
    given = script
    task, script, what = staged(found, seconds, script)
    env = make_env(replace(found.config, task=task), num_envs=1)
    try:
        if given is not None:  # nothing of a step after the last frame is drawn
            shown = max(1, step_of_frame(frames - 1, fps, env.dt))
            given.require_within(min(shown, env.max_episode_steps), env.dt, "--script: ")
        director = Director(env, script)
        print(
            f"{found.config.task_name}, iteration {found.iteration}: {what}; drawing {frames} frames",
            flush=True,
        )
        write_video(path, film(env, policy, frames, fps, size, director), fps, frames)
    finally:
        env.close()


def staged(found: Run, seconds: float, script: Script | None = None) -> tuple[Task, Script, str]:
    """What a video of a run shows: the task to simulate, the script to play in it, and both in words.

    Pushes that the task draws make way for those of the script, unless an override names them; an episode lasts as long
    as the video, unless an override says how long.
    """
    given = [".".join(item.key) for item in parse(found.overrides)]
    task: Task = copy.copy(found.config.task)
    length = (
        task.episode_length_s if "task.episode_length_s" in given else max(task.episode_length_s, seconds)
    )
    pushed = any(_names(key, "task.pushes") for key in given)
    what = "the given script"
    if script is None:
        if any(_names(key, "task.commands") for key in given):
            return task, Script(), "the commands that the task draws"
        script = tour(task.commands, min(seconds, length), None if pushed else task.pushes)
        if not script:
            return task, script, "the commands that the task draws" if task.commands else "no commands"
        what = "a tour of its commands"
        what += f", pushed at {script.pushes[0].at:.1f} s" if script.pushes else ""
    # A time-out would throw the robot back to the start of the script.
    task.episode_length_s = length
    if not pushed:
        task.pushes = None
    elif not script.pushes:
        script = replace(script, pushes=None)  # those that the task draws
    return task, script, what


def _names(key: str, setting: str) -> bool:
    """Whether an override's key is a setting or one of its parts."""
    return key == setting or key.startswith(f"{setting}.")
