"""`robolearn play --video`: writes a video of a policy, without a display.

Frames are drawn by MuJoCo from State, so runs of all backends look the same, and no backend needs a renderer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from robolearn.config.run_config import EXTERNAL
from robolearn.core.env import Env
from robolearn.envs.state import State, quat_multiply, quat_rotate
from robolearn.errors import ConfigError, quote
from robolearn.learners.policy import Act, reset_state
from robolearn.simulation.renderer import Renderer, row
from robolearn.simulation.video import caption, write_video
from robolearn.tasks.mdp.commands import PoseCommands, VelocityCommands
from robolearn.tasks.mdp.task import Ratio
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run, require_writable
from robolearn.training.train import set_threads

SIZE = (1280, 720)
"""Width and height of a video [pixels]."""

FILE_NAME = "play.mp4"
CONTAINERS = (".mp4", ".mov", ".mkv")


def play(
    run: str | None,
    overrides: Iterable[str] = (),
    video: Path | None = None,
    seconds: float = 20.0,
    output: Path | None = None,
) -> Path:
    """Write a video of one robot with a run's policy, and the commands that the task draws.

    Args:
        run: see `robolearn.training.runs.open_run`.
        overrides: settings to change, in Hydra's grammar; `num_envs` is ignored.
        video: file of the video; None: play.mp4.
        seconds: length of the video [s].
        output: folder of the file; None: the run folder for play.mp4, the current folder for `video`.

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
    found = open_run(run, overrides)
    path = video or Path(FILE_NAME)
    folder = output or (found.folder if video is None else None)
    path = folder / path if folder else path
    require_writable(path.parent)
    set_threads(found.config)
    policy = load_policy(found)
    if found.config.backend_name == EXTERNAL:
        from robolearn.commands.play.external import film_external

        film_external(found, policy, path, seconds)
        print(f"wrote {path}")
        return path
    env = make_env(found.config, num_envs=1)
    try:
        frames = max(1, round(seconds / env.ctx.dt))
        print(f"{found.config.task_name}, iteration {found.iteration}: {frames} frames, {SIZE[0]}x{SIZE[1]}")
        write_video(path, film(env, policy, frames), 1 / env.ctx.dt, frames)
    finally:
        env.close()
    print(f"wrote {path}")
    return path


@torch.no_grad()
def film(env: Env, policy: Act, frames: int) -> Iterator[np.ndarray]:
    """Frames (H, W, 3) uint8 of environment 0, one per control step, across episodes.

    Raises:
        MissingError: this machine has no renderer.
        RunFailed: a term was not finite, or the simulator dropped part of the physics.
    """
    env.reset()
    reset_state(policy)
    episode = 1
    smooth: np.ndarray | None = None
    with Renderer(env.scene, *SIZE, backend=env.backend.capabilities.name) as renderer:
        for frame in range(frames):
            env.check()  # on a GPU, errors are raised only here
            state = env.backend.state
            lines = [f"{float(env.ctx.episode_time[0]):.2f} s   episode {episode}"]
            arrows: dict[str, np.ndarray] = {}
            if isinstance(env.task.commands, VelocityCommands):
                wanted, actual = command_of(env), velocity_of(state)
                # Smoothed: at 50 Hz, the sway of each step would make the number unreadable.
                smooth = actual if smooth is None else smooth + 0.08 * (actual - smooth)
                lines += [_velocity("command", wanted), _velocity("actual", smooth)]
                arrows = {"command": wanted[:2], "actual": smooth[:2]}
            else:
                for name, value in env.task.metrics(state, env.ctx).items():
                    each = float((value.each() if isinstance(value, Ratio) else value)[0])
                    shown = "-" if math.isnan(each) else f"{each:.3f}"  # a Ratio does not count in every step
                    lines.append(f"{name.replace('_', ' ')} {shown}")
            goal = goal_of(env) if isinstance(env.task.commands, PoseCommands) else None
            yield caption(renderer.draw(state, arrows, goal), lines)
            if frame + 1 == frames:
                break
            done = env.step(policy(env.observations)).done
            reset_state(policy, done)
            if bool(done[0]):
                episode, smooth = episode + 1, None


def command_of(env: Env) -> np.ndarray:
    """Command of environment 0: forward, sideways [m/s], yaw rate [rad/s]."""
    return row(env.ctx.command)


def goal_of(env: Env) -> np.ndarray:
    """The commanded pose of environment 0 in the world: position (3,) [m], perhaps with an orientation wxyz (7,)."""
    robot, command = env.backend.state.robot, env.ctx.command
    parts = [robot.base_pos + quat_rotate(robot.base_quat, command[:, :3])]
    if command.shape[1] > 3:
        parts.append(quat_multiply(robot.base_quat, command[:, 3:]))
    return row(torch.cat(parts, dim=1))


def velocity_of(state: State) -> np.ndarray:
    """Velocity of the robot in environment 0 in base axes: forward, sideways [m/s], yaw rate [rad/s]."""
    return np.array([*row(state.robot.base_lin_vel)[:2], row(state.robot.base_ang_vel)[2]])


def _velocity(label: str, values: np.ndarray) -> str:
    forward, sideways, yaw = values
    # Adding 0 to the rounded value turns -0.00 into +0.00.
    forward, sideways, yaw = (round(value, 2) + 0.0 for value in (forward, sideways, yaw))
    return f"{label:<8} forward {forward:+.2f} m/s   sideways {sideways:+.2f} m/s   yaw {yaw:+.2f} rad/s"
