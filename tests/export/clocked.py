"""A user's task: velocity with a clock that finishes its step, a sway, a reflex, and observations of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.observations import Observation, projected_gravity
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.velocity import Velocity

HALF = 16.0
"""Control steps of half a stride."""
SWITCHES = Sensor(
    "foot_switches", "1 on the ground, else 0", compute=lambda s: (s.robot.foot_force[:, :, 2] > 5.0).float()
)


def knees(state, ctx):
    bent = [i for i, name in enumerate(ctx.robot.spec.joints) if "knee" in name]
    return state.robot.joint_pos[:, bent].sum(dim=1, keepdim=True).sin()


def clock(state, ctx):
    phase = ctx.task_state["ticks"] * (math.pi / HALF)
    return torch.stack((phase.sin(), phase.cos()), dim=1)


def reflex(state, ctx):
    """How far it leans to the side, beyond a little."""
    lean = projected_gravity(state.robot.base_quat)[:, 1:2]
    return torch.where(lean.abs() > 0.02, 3.0 * lean, 0.0)


@dataclass
class Clocked(Velocity):
    """Steps by a clock; the waist sways with it."""

    sway: float = 0.1
    history: dict[str, int] = field(default_factory=dict)
    sensors: ClassVar = (SWITCHES,)
    observations: ClassVar = {
        **Velocity.observations,
        "policy": (
            *Velocity.observations["policy"],
            Observation("knees", knees, "same", "sine of the sum of the knees' angles"),
            Observation("recent_gyro", lambda s, c: s.robot.base_ang_vel, "pseudovector", "rad/s", history=2),
            Observation("clock", clock, "same"),
            Observation("reflex", reflex, "negate"),
            Observation("switches", lambda s, c: SWITCHES(s), "feet"),
        ),
    }
    symmetric: ClassVar = False

    def task_state(self, num_envs, robot, random):
        late = (random.uniform(0.0, 1.0, num_envs) > 0.5).float()
        return super().task_state(num_envs, robot, random) | {"ticks": HALF * late}

    def advance(self, state, ctx):
        ticks = ctx.task_state["ticks"]
        moving = ctx.command.abs().amax(dim=1) > 0.01
        goes_on = moving | (ticks.remainder(HALF) > 0.5)  # a step that was begun is finished
        return super().advance(state, ctx) | {
            "ticks": torch.where(goes_on, ticks + 1.0, ticks).remainder(2 * HALF)
        }

    def joint_targets(self, action, ctx):
        waist = torch.tensor([float(a.joint == "waist_yaw") for a in ctx.robot.spec.actuators])
        swing = self.sway * clock(None, ctx)[:, 0]
        return super().joint_targets(action, ctx) + swing[:, None] * waist


@dataclass
class NoReflex(Clocked):
    """The reflex left out."""

    observations: ClassVar = {
        **Clocked.observations,
        "policy": tuple(
            Observation("reflex", lambda s, c: 0 * s.robot.base_quat[:, :1], "negate") if i == 9 else item
            for i, item in enumerate(Clocked.observations["policy"])
        ),
    }


@dataclass
class OtherSway(Clocked):
    """The sway of the other sign."""

    sway: float = -0.1


@dataclass
class StopsAtOnce(Clocked):
    """The clock halts in the middle of a step."""

    def advance(self, state, ctx):
        moving, new = ctx.command.abs().amax(dim=1) > 0.01, super().advance(state, ctx)
        return new | {"ticks": torch.where(moving, new["ticks"], ctx.task_state["ticks"])}


@dataclass
class SeesSpeed(Clocked):
    """Observes what no robot measures."""

    observations: ClassVar = {
        **Clocked.observations,
        "policy": (
            *Clocked.observations["policy"],
            Observation("speed", lambda s, c: s.robot.base_lin_vel, "vector"),
        ),
    }


@dataclass
class SeesAir(Clocked):
    """Observes a task state that comes from what no robot measures."""

    observations: ClassVar = {
        **Clocked.observations,
        "policy": (
            *Clocked.observations["policy"],
            Observation("air", lambda s, c: c.task_state["air_time"], "feet"),
        ),
    }


@dataclass
class Filtered(Clocked):
    """Joint targets that depend on the action before."""

    def joint_targets(self, action, ctx):
        return super().joint_targets(0.7 * action + 0.3 * ctx.previous_action, ctx)


@dataclass
class Clamped(Clocked):
    """Joint targets that stay within the joints' limits."""

    def joint_targets(self, action, ctx):
        robot = ctx.robot
        low, high = robot.lower[robot.actuated], robot.upper[robot.actuated]
        return super().joint_targets(action, ctx).clamp(low, high)


def observing(compute):
    """A task whose policy observes one more number."""

    @dataclass
    class Observing(Velocity):
        observations: ClassVar = {
            **Velocity.observations,
            "policy": (*Velocity.observations["policy"], Observation("more", compute, "same")),
        }

    return Observing


ANGLE = Sensor("pole_angle", "rad", compute=lambda s: s.robot.joint_pos[:, 1])


@dataclass
class OneNumber(CartpoleBalance):
    """A sensor gives one number for each robot, without a column."""

    sensors: ClassVar = (ANGLE,)
    observations: ClassVar = {
        "policy": (Observation("angle", lambda s, c: ANGLE(s)[:, None], "negate"), "joint_vel_rel"),
        "critic": ("joint_pos_rel",),
    }
