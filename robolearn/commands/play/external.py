"""`robolearn play` of a third-party environment, which draws itself; a caption is added."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.external.env import ExternalEnv
from robolearn.learners.policy import Act, reset_state
from robolearn.simulation.renderer import open_context
from robolearn.simulation.video import caption, write_video
from robolearn.training.build import build_external
from robolearn.training.runs import Run

UNKNOWN_RATE = 30.0
"""Frames per second for an environment with an unknown control period."""

TALL = 400
"""Smaller frames are enlarged by a whole factor to at least this height [pixels], for the caption."""

BLOCK = 16
"""Encoders need sides that are multiples of this [pixels]."""


def film_external(run: Run, policy: Act, path: Path, seconds: float) -> tuple[int, float, tuple[int, int]]:
    """Write a video of the run's environment under its policy.

    Args:
        run: a run of a task that brings its own simulator.
        policy: its policy.
        path: file of the video.
        seconds: length of the video [s].

    Returns:
        Number of frames, frames per second, width and height [pixels].

    Raises:
        ConfigError: the environment draws no frames.
        MissingError: its renderer or an encoder is missing on this machine.
        RunFailed: a value was not finite.
    """
    with _off_screen():
        env = build_external(run.config, 1, render=True)
        try:
            rate = 1 / env.dt if env.dt_known else UNKNOWN_RATE
            frames = max(1, round(seconds * rate))
            print(f"{run.config.task_name}, iteration {run.iteration}: drawing {frames} frames", flush=True)
            pictures = film(env, policy, frames)
            first = next(pictures)
            write_video(path, chain((first,), pictures), rate, frames)
            return frames, rate, (first.shape[1], first.shape[0])
        finally:
            env.close()


@torch.no_grad()
def film(env: ExternalEnv, policy: Act, frames: int) -> Iterator[np.ndarray]:
    """Frames (H, W, 3) uint8 of the first environment, one per control step, across episodes.

    Raises:
        ConfigError: the environment draws no frames.
        MissingError: the environment cannot draw on this machine.
        RunFailed: a value was not finite.
    """
    env.reset()
    reset_state(policy)
    episode = 1
    for frame in range(frames):
        env.check()
        step = int(env.episode_step[0])
        when = f"{step * env.dt:.2f} s" if env.dt_known else f"step {step}"
        said = f"{when}   episode {episode}   return {float(env.episode_return[0]):.2f}"
        yield caption(framed(_picture(env, frame)), [said])
        if frame + 1 == frames:
            break
        result = env.step(policy(env.observations))
        begins = result.done if result.valid is None else result.done | ~result.valid
        reset_state(policy, begins)
        episode += int(result.done[0])


def framed(picture: np.ndarray) -> np.ndarray:
    """A frame (H, W, 3) uint8, enlarged by a whole factor where it is small, and padded with black for encoders."""
    factor = -(-TALL // picture.shape[0])
    if factor > 1:
        picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    missing = [-side % BLOCK for side in picture.shape[:2]]
    before = [side // 2 for side in missing]
    return np.pad(picture, [*((b, m - b) for b, m in zip(before, missing, strict=True)), (0, 0)])


def _picture(env: ExternalEnv, frame: int) -> np.ndarray:
    try:
        picture = env.render()
    except (ConfigError, MissingError, RunFailed):
        raise
    except NotImplementedError as error:  # from gymnasium.Env.render, where the environment has none
        said = one_line(str(error), 240)
        raise ConfigError(f"{_draws_nothing(env)}{': ' if said else ''}{said}") from error
    except Exception as error:  # a third-party renderer may raise anything
        what = one_line(": ".join(filter(None, (type(error).__name__, str(error)))), 240)
        message = f"task={env.name} does not draw on this machine: {what}"
        raise (RunFailed(message) if frame else MissingError(message)) from error
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ConfigError(
            f"task={env.name} draws {picture.dtype}{picture.shape}, which is no picture of (height, width, 3) uint8"
        )
    return picture


def _draws_nothing(env: ExternalEnv) -> str:
    """The message of the ConfigError of `ExternalEnv.render`."""
    try:
        ExternalEnv.render(env)
    except ConfigError as error:
        return str(error)
    raise AssertionError


@contextmanager
def _off_screen() -> Iterator[None]:
    """Set MUJOCO_GL, so that environments that draw with MuJoCo do so without a display.

    Where it is not set, gymnasium opens a window first, and without a display fails too late to try another platform.
    """
    if os.environ.get("MUJOCO_GL"):
        yield
        return
    try:
        context, _ = open_context(64, 64)
    except MissingError:  # the environment may not need OpenGL; otherwise it raises
        yield
        return
    context.free()
    os.environ["MUJOCO_GL"] = type(context).__module__.rpartition(".")[2]
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]
