"""Frames of a robot under a policy: the picture, what is asked of it, and what happens to it.

Frames are drawn by MuJoCo from State, so all backends look the same, and no backend needs a renderer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from robolearn.core.env import Env
from robolearn.envs.state import State, Tensor
from robolearn.learners.policy import Act, reset_state
from robolearn.simulation.renderer import PUSHED, Renderer, row
from robolearn.simulation.script import Director, GivenCommands
from robolearn.simulation.video import FPS, LIGHT, SIZE, Colour, caption, headline
from robolearn.tasks.mdp.commands import Command, VelocityCommands
from robolearn.tasks.mdp.task import Ratio
from robolearn.tasks.mdp.terms import forward_axis

SHOWN = 1.0
"""How long a push or the end of an episode is shown [s]."""
SMOOTH = 0.25
"""Time constant of the shown velocity [s]: the sway of each step would make the number unreadable."""
SLIGHT = 0.05
"""Smallest push that is shown, and smallest command that counts as one to move [m/s]."""
LIFT = 0.06
"""How far the robot is above the middle of the picture, as a share of its height: the caption is below."""

FELL: Colour = (255, 90, 80)
SIDES = ("front", "front left", "left", "back left", "back", "back right", "right", "front right")
"""Where a push comes from, by eighths of a turn to the left."""


@dataclass
class Event:
    """Something that happened, shown for `SHOWN`."""

    text: str
    colour: Colour
    left: float
    """How much longer it is shown [s]."""
    jump: np.ndarray | None = None
    """(3,) [m/s] in world axes, of a push."""


def step_of_frame(frame: int, fps: float, dt: float) -> int:
    """The control step that is nearest to the time of a frame; the first frame shows the start."""
    return math.floor(frame / fps / dt + 0.5)


@torch.no_grad()
def film(
    env: Env,
    policy: Act,
    frames: int,
    fps: float = FPS,
    size: tuple[int, int] = SIZE,
    director: Director | None = None,
    title: str = "",
    index: int = 0,
) -> Iterator[np.ndarray]:
    """Frames (H, W, 3) uint8 of one environment, across episodes; all environments are reset first.

    The caption has the time, the episode, and the commanded and the actual velocity, or the task's metrics; pushes and
    the ends of episodes are said for a second. The camera sees the robot from its front left at the start of each
    episode. To write the frames as a video, see `robolearn.simulation.video.write_video`. Close an iterator that is not
    used up (`close()`): it holds an OpenGL context.

    Args:
        env: the environments.
        policy: function from observations by group to actions (N, A).
        frames: number of frames; the last control step is the one of the last frame.
        fps: frames per second of simulated time: each shows the control step nearest to its time.
        size: width and height [pixels].
        director: plays a script in `env`.
        title: a line in the top of each frame.
        index: the environment that is filmed.

    Raises:
        MissingError: this machine has no renderer.
        RunFailed: a term was not finite, or the simulator dropped part of the physics.
    """
    env.reset()
    reset_state(policy)
    with Renderer(env.scene, *size, backend=env.backend.capabilities.name, lift=LIFT) as renderer:
        watched = Watched(env, index)
        watched.begin(renderer)
        step, pixels = 0, None
        told: Mapping[str, Tensor] = {}
        for frame in range(frames):
            due = step_of_frame(frame, fps, env.dt)
            moved = step < due
            while step < due:
                if director is not None:
                    told = director.before_step()
                result = env.step(policy(env.observations))
                reset_state(policy, result.done)
                watched.after_step(renderer, told.get("force"))
                step += 1
            if moved or pixels is None:
                env.check()  # on a GPU, errors are raised only here
                pixels = watched.picture(renderer, title)
            yield pixels


class Watched:
    """One environment of an Env, and what of it is said in the picture."""

    def __init__(self, env: Env, index: int) -> None:
        self.env, self.index = env, index
        self.commands = _own(env.task.commands)
        self.episode = 1
        self.velocity: np.ndarray | None = None
        """Forward, sideways [m/s], yaw rate [rad/s], smoothed."""
        self.event: Event | None = None
        self._age = 0

    def begin(self, renderer: Renderer) -> None:
        """An episode begins."""
        self._age, self.velocity = 0, None
        if self.env.robot.base is not None:
            ahead, across = row(forward_axis(self.env.backend.state.robot.base_quat), self.index)
            renderer.face(math.atan2(across, ahead))
        self._follow()

    def after_step(self, renderer: Renderer, force: Tensor | None = None) -> None:
        """Note what a control step did, in which a script's `force` (N, 3) [N] acted."""
        env, i = self.env, self.index
        if self.event is not None:
            self.event.left -= env.dt
            if self.event.left < env.dt / 2:
                self.event = None
        self._age += 1
        outcome = env.state.outcome
        if bool(outcome["renewed"][i]):
            self.episode += 1
            self.event = self._end(bool(outcome["terminated"][i]), bool(outcome["diverged"][i]))
            self.begin(renderer)
            return
        if float(env.state.episode.push_time[i]) < 1.5 * env.dt:
            if force is None:  # the task's own, if it has any
                force = env.state.episode.shove.get("force")
            self._push(row(env.state.transit["jump"], i), None if force is None else row(force, i))
        self._follow()

    def _follow(self) -> None:
        if isinstance(self.commands, VelocityCommands):
            now, share = velocity_of(self.env.backend.state, self.index), 1 - math.exp(-self.env.dt / SMOOTH)
            self.velocity = now if self.velocity is None else self.velocity + share * (now - self.velocity)

    def _push(self, jump: np.ndarray, force: np.ndarray | None) -> None:
        speed = float(np.linalg.norm(jump[:2]))
        newtons = 0.0 if force is None else float(np.linalg.norm(force))
        hard = [f"{speed:.2f} m/s"] * (speed >= SLIGHT) + [f"{newtons:.0f} N"] * (newtons > 0)
        if not hard:
            return
        if speed < SLIGHT and force is not None:
            jump = force / newtons  # the arrow is that of 1 m/s, however strong the force
        ahead, across = row(forward_axis(self.env.backend.state.robot.base_quat), self.index)
        # The side it comes from is opposite to where it goes.
        angle = math.atan2(-jump[1], -jump[0]) - math.atan2(across, ahead)
        side = SIDES[round(angle / (math.pi / 4)) % 8]
        text = f"pushed {' and '.join(hard)} from the {side}"
        self.event = Event(text, tuple(round(255 * part) for part in PUSHED[:3]), SHOWN, jump)  # type: ignore[arg-type]

    def _end(self, terminated: bool, diverged: bool) -> Event:
        names = list(self.env.task.termination_terms())
        after = f"after {self._age * self.env.dt:.1f} s"
        if diverged:
            what = f"the simulation diverged {after}"
        elif not terminated:
            # Only a robot on a terrain has its episode cut short: where it leaves its tile.
            early = (self._age + 0.5) * self.env.dt < self.env.task.episode_length_s
            why = "left its tile" if early else "time is up"
            return Event(f"{why}: episode {self.episode}", LIGHT, SHOWN)
        elif "fallen" in names:
            what = f"fell {after}"
        else:  # which of several ended it is no longer known: the state is that of the next episode
            what = f"{names[0].replace('_', ' ') if len(names) == 1 else 'failed'} {after}"
        return Event(f"{what}: episode {self.episode}", FELL, SHOWN)

    def picture(self, renderer: Renderer, title: str) -> np.ndarray:
        """The frame of the current state (H, W, 3) uint8."""
        env, i = self.env, self.index
        state = env.backend.state
        time = f"{float(env.ctx.episode_time[i]):.2f} s   episode {self.episode}"
        lines, arrows, goal = [time], {}, None
        if self.velocity is not None:
            wanted = row(env.ctx.command, i)
            lines = [
                f"{time}   {in_words(wanted)}",
                _velocity("command", wanted),
                _velocity("actual", self.velocity),
            ]
            arrows = {"command": wanted[:2], "actual": self.velocity[:2]}
        else:
            for name, value in env.task.metrics(state, env.ctx).items():
                each = float((value.each() if isinstance(value, Ratio) else value)[i])
                shown = "-" if math.isnan(each) else f"{each:.3f}"  # a Ratio does not count in every step
                lines.append(f"{name.replace('_', ' ')} {shown}")
        if (goals := env.task.goal(state, env.ctx)) is not None:
            goal = row(goals, i)
        push = None if self.event is None else self.event.jump
        pixels = caption(renderer.draw(state, arrows, goal, push, i), lines)
        if title:
            pixels = headline(pixels, title, share=1 / 30)
        if self.event is not None:
            # Below a title.
            below = round(0.075 * len(pixels)) if title else 0
            pixels[below:] = headline(pixels[below:], self.event.text, self.event.colour)
        return pixels


def _own(commands: Command | None) -> Command | None:
    """The task's commands, without those that a script gives instead."""
    return commands.drawn if isinstance(commands, GivenCommands) else commands


def in_words(command: np.ndarray) -> str:
    """What velocity commands (3,) ask for, such as `forward, turn left`."""
    forward, sideways, yaw = command
    parts = []
    if abs(forward) >= SLIGHT:
        parts.append("forward" if forward > 0 else "back")
    if abs(sideways) >= SLIGHT:
        parts.append("sideways to the left" if sideways > 0 else "sideways to the right")
    if abs(yaw) >= SLIGHT:
        parts.append("turn left" if yaw > 0 else "turn right")
    return ", ".join(parts) or "stand"


def velocity_of(state: State, index: int = 0) -> np.ndarray:
    """Velocity of a robot in base axes: forward, sideways [m/s], yaw rate [rad/s]."""
    robot = state.robot
    return np.array([*row(robot.base_lin_vel, index)[:2], row(robot.base_ang_vel, index)[2]])


def _velocity(label: str, values: np.ndarray) -> str:
    forward, sideways, yaw = values
    # Adding 0 to the rounded value turns -0.00 into +0.00.
    forward, sideways, yaw = (round(value, 2) + 0.0 for value in (forward, sideways, yaw))
    return f"{label:<8} forward {forward:+.2f} m/s   sideways {sideways:+.2f} m/s   yaw {yaw:+.2f} rad/s"
