"""Any robot on legs follows velocity commands on flat ground, and stands when asked to, while it is pushed.

One file for bipeds and quadrupeds: nothing in it names a joint. There is no gait clock and no stepping pattern, and the
policy does not see the base's velocity, which no robot measures. Whatever has a length or an angle derives from the
robot: the action scale from its motors, the posture from the role of each joint, the height of a step from its height.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from robolearn.envs.collisions import limbs
from robolearn.envs.kinematics import feet_apart, joint_roles, widened
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Scene
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp import gait_metrics as quality
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.stated import Level, Reward, Termination, ends, level, reward
from robolearn.tasks.mdp.task import Ratio, Task

COMMAND_THRESHOLD = 0.01
"""A command of which no part is larger asks to stand [m/s, rad/s]."""
LIMBS = "limbs"
"""Name of the contacts of legs and hands with the rest of the robot."""
GRAVITY = 9.81
"""[m/s^2]"""
CATCH_TIME = 1.0
"""How long after a push a robot may step although it is asked to stand, with its feet as it likes [s]."""
SPREAD = {
    "standing": {"stride": 0.15, "leg": 0.1, "body": 0.1},
    "walking": {"stride": 0.45, "leg": 0.2, "body": 0.2},
    "running": {"stride": 0.7, "leg": 0.25, "body": 0.3},
}
"""How far from home a joint may be before it costs posture, by its role [rad]."""
WALKING, RUNNING = 0.1, 1.5
"""Speeds from which these spreads count in full [m/s]; in between they are interpolated."""

TRACKED = 0.4
"""Error of the velocity at which it is tracked by exp(-1) [m/s]."""
PUSHES = Pushes(speed=(0.0, 0.4), seconds=(1.0, 3.0), box=(0.25, 0.25, 0.2), turn=(0.26, 0.26, 0.39))
"""Half of mjlab's pushes, and up to 0.4 m/s in a random direction."""
RANDOMIZE = {
    "friction": Randomized((0.3, 1.2)),
    "mass_scale": Randomized((0.9, 1.1)),
    "gain_scale": Randomized((0.9, 1.1)),
}
"""Floors may be slippery, and a robot differs from its model."""
TIMES = (
    Observation("foot_air_time", lambda s, c: c.task_state["air_time"], "feet"),
    Observation("foot_stance_time", lambda s, c: c.task_state["stance_time"], "feet"),
)
"""How long each foot has been up, or down, for the critic: what a stride is worth depends on it [s]."""
Positive = Annotated[float, {"above": 0.0}]
Share = Annotated[float, {"min": 0.0, "max": 1.0}]
Height = Annotated[float, {"above": 0.0, "max": 1.0}]
Change = Annotated[float, {"min": 0.0, "max": 10.0}]


def sturdy_width(height: float) -> float:
    """Distance between a robot's left and right feet [m] at which a push of 1 m/s from the side just does not topple it
    while its feet stay where they are; its base is `height` [m] above the ground.

    The capture point of a linear inverted pendulum, sqrt(height / g) ahead for each m/s (Pratt et al., Humanoids 2006),
    has to stay between the feet.
    """
    return 2.0 * math.sqrt(height / GRAVITY)


@once
def asked_speed(state: State, ctx: Context) -> Tensor:
    """Speed that the command asks for (N,) [m/s]; turning counts as the speed of feet half a leg's length away."""
    reach = 0.5 * ctx.robot.spec.home_height
    return ctx.command[:, :2].norm(dim=1) + reach * ctx.command[:, 2].abs()


@once
def moving(state: State, ctx: Context) -> Tensor:
    """Whether the command asks to move (N,) bool."""
    return ctx.command.abs().amax(dim=1) > COMMAND_THRESHOLD


@once
def track_velocity(state: State, ctx: Context, std: Positive) -> Tensor:
    """How well the base moves as commanded (N,): 1 at no error, exp(-1) at an error of `std` [m/s]."""
    return torch.exp(-terms.velocity_error(state, ctx).square() / std**2)


def track_yaw_rate(state: State, ctx: Context, std: Positive) -> Tensor:
    """How well the base turns as commanded (N,): 1 at no error, exp(-1) at an error of `std` [rad/s]."""
    return torch.exp(-terms.yaw_rate_error(state, ctx).square() / std**2)


def upright(state: State, ctx: Context, std: Positive) -> Tensor:
    """How level the base is (N,): 1 level, exp(-1) at a lean whose sine is `std`."""
    return torch.exp(-terms.tilt(state, ctx) / std**2)


def posture(state: State, ctx: Context, stance: Tensor, stride: Tensor) -> Tensor:
    """Closeness of the joints to a pose (N,), 1 in it: `stance` (J,) [rad] where the command is to stand, `stride` (J,)
    [rad] where it is to move. The faster the robot is asked to go, the further its legs may swing, see `SPREAD`."""
    standing, walking, running = (_spread(ctx, gait) for gait in SPREAD)
    speed = asked_speed(state, ctx)[:, None]
    walk, run = (speed / WALKING).clamp(max=1.0), ((speed - WALKING) / (RUNNING - WALKING)).clamp(0.0, 1.0)
    spread = standing + walk * (walking - standing) + run * (running - walking)
    wanted = stance + walk * (stride - stance)
    error = ((state.robot.joint_pos - wanted) / spread).square()
    return torch.exp(-error.mean(dim=1))


def _spread(ctx: Context, gait: str) -> Tensor:
    """(J,) the spread of each joint [rad]."""
    tables = ctx.robot.tables
    if ("spread", gait) not in tables:
        row = [SPREAD[gait][role] for role in joint_roles(ctx.robot.spec)]
        tables["spread", gait] = torch.tensor(row, device=ctx.robot.home.device)
    return tables["spread", gait]


def foot_clearance(state: State, ctx: Context, above: Tensor, height: Share) -> Tensor:
    """How far moving feet, which are `above` (N, F) [m] the ground, are below or above their height, weighted by their
    speed, summed (N,) [m^2/s]; `height` is a share of the base's height in the home pose."""
    speed = state.robot.foot_lin_vel[:, :, :2].norm(dim=-1)
    off = (above - height * ctx.robot.spec.home_height).abs()
    return (off * speed).sum(dim=1) * moving(state, ctx)


def swing_height(state: State, ctx: Context, height: Height) -> Tensor:
    """By what share the swings that end in this step missed their height, squared, summed (N,)."""
    past = ctx.task_state
    down = past["contact"] & ~past["last_contact"] & (past["air_time"] >= quality.AIR_TIME)
    missed = past["swing_peak"] / (height * ctx.robot.spec.home_height) - 1.0
    return (down * missed.clamp(max=2.0).square()).sum(dim=1) * moving(state, ctx)


def air_time(state: State, ctx: Context, least: Positive, most: Positive) -> Tensor:
    """Time in the air beyond `least` and up to `most` [s] of the feet that touch down in this step, summed (N,) [s].

    Raises:
        ConfigError: `least` is not below `most`: every touch-down would cost.
    """
    if least >= most:
        raise ConfigError(f"least={least:g} must be below most={most:g}")
    past = ctx.task_state
    down = past["contact"] & ~past["last_contact"]
    return (down * (past["air_time"].clamp(least, most) - least)).sum(dim=1) * moving(state, ctx)


def striding(state: State, ctx: Context, full: Positive, most: Positive) -> Tensor:
    """How far the feet are into a stride (N,), 0 to 1: while half of them are in the air and half on the ground, the
    time since any last touched down or lifted off, as a share of `full` [s]; 0 once one has been up for `most` [s]."""
    past = ctx.task_state
    up = ~past["contact"]
    half = up.sum(dim=1) * 2 == up.shape[1]
    since = torch.where(up, past["air_time"], past["stance_time"]).amin(dim=1)
    halted = (past["air_time"] * up).amax(dim=1) > most
    return (since / full).clamp(max=1.0) * (half & ~halted & moving(state, ctx))


def halting(state: State, ctx: Context, most: Positive) -> Tensor:
    """One while no foot has left the ground for `most` [s] although the command is to move (N,)."""
    return (ctx.task_state["stance_time"].amin(dim=1) > most).float() * moving(state, ctx)


def foot_slip(state: State, ctx: Context) -> Tensor:
    """Squared speed along the ground of the feet in contact, summed (N,) [m^2/s^2]."""
    speed = state.robot.foot_lin_vel[:, :, :2].square().sum(dim=-1)
    return (ctx.task_state["contact"] * speed).sum(dim=1)


def slip_speed(state: State, ctx: Context) -> Tensor:
    """Speed along the ground of the feet in contact, summed (N,) [m/s]. Unlike `foot_slip` it matters as much where
    feet slip slowly."""
    speed = state.robot.foot_lin_vel[:, :, :2].norm(dim=-1)
    return (ctx.task_state["contact"] * speed).sum(dim=1)


def self_contact(state: State, ctx: Context, force: Annotated[float, {"min": 0.0}]) -> Tensor:
    """Number of legs' and hands' bodies that touch another part of the robot with more than `force` [N] (N,)."""
    asked = state.robot.contacts
    if LIMBS not in asked:
        return torch.zeros_like(ctx.episode_time)
    return asked[LIMBS].touching(force).float().sum(dim=1)


def landing(state: State, ctx: Context) -> Tensor:
    """Squared speed of the feet that touch down in this step (N,) [m^2/s^2]: landing softly is free."""
    past = ctx.task_state
    down = past["contact"] & ~past["last_contact"]
    return (down * past["last_foot_speed"]).sum(dim=1)


@once
def resting(state: State, ctx: Context) -> Tensor:
    """Whether the robot should stand still (N,) bool: the command asks to, and no push was so recent that it may still
    have to catch itself."""
    return ~moving(state, ctx) & (ctx.push_time > CATCH_TIME)


def stepping(state: State, ctx: Context, free: Share) -> Tensor:
    """Share of the feet that are off the ground, beyond `free`, while the robot should stand still (N,). Fewer count
    below 0: where every foot off the ground only cost, a robot that cannot stand yet would do best to fall soon."""
    return ((~ctx.task_state["contact"]).float().mean(dim=1) - free) * resting(state, ctx)


def still(state: State, ctx: Context, std: Positive) -> Tensor:
    """How still the base is while the robot should stand still (N,): 1 at rest, exp(-1) at a speed of `std` [m/s]."""
    speed = state.robot.base_lin_vel[:, :2].square().sum(dim=1)
    return torch.exp(-speed / std**2) * resting(state, ctx)


def narrow(state: State, ctx: Context, stance: float, step: float) -> Tensor:
    """By what share the left and the right feet of a robot, the means of both, are too close together (N,): of `stance`
    [m] where the command is to stand, of `step` [m] where it is to move. Free for a while after a push: the robot may
    have to catch itself. Which foot is left follows from where they are, so crossed legs are not narrow."""
    w, x, y, z = state.robot.base_quat.unbind(dim=1)
    left = torch.stack((2 * (x * y - w * z), 1 - 2 * (x * x + z * z)), dim=1)
    across = (state.robot.foot_pos[:, :, :2] * left[:, None]).sum(dim=2).sort(dim=1).values
    rightmost, leftmost = across.chunk(2, dim=1)
    apart = leftmost.mean(dim=1) - rightmost.mean(dim=1)
    width = torch.where(moving(state, ctx), step, stance).clamp(min=1e-6)
    return (1 - apart.clamp(min=1e-6) / width).clamp(min=0.0) * (ctx.push_time > CATCH_TIME)


def fallen(
    state: State, ctx: Context, height: Share, upright: Annotated[float, {"min": -1.0, "max": 1.0}]
) -> Tensor:
    """Base lower than the share `height` of its height in the home pose, or the cosine of its lean below `upright`
    (N,) bool."""
    return terms.fallen(state, ctx, height=height * ctx.robot.spec.home_height, upright=upright)


@dataclass
class Velocity(Task):
    """A robot on legs follows velocity commands: forward, sideways, turning, and standing still."""

    robot: str = "humanoid"
    """Name or path of the robot; any with a free base and feet."""
    action_scale: float = field(default=0.25, metadata={"above": 0.0, "max": 10.0})
    """Torque that a unit action asks for, as a share of the motor's largest."""
    most_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Largest angle for a unit action [rad], for motors that are weak springs."""
    stance_width: float = field(default=1.0, metadata={"min": 0.0, "max": 2.0})
    """How far apart a robot's left and right feet should be when it stands, at least, as a share of the width that
    withstands a push of 1 m/s from the side without a step, see `sturdy_width`. A push from the side topples a robot
    whose feet are close together: the leg that would have to step is the one that carries it."""
    step_width: float = field(default=0.65, metadata={"min": 0.0, "max": 2.0})
    """The same while it walks. With less than in the home pose, that pose stays the one to walk in, and the feet may
    come closer."""
    collisions: Literal["light", "all"] = "light"
    """What of the robot collides, see `Scene.collisions`."""
    moving_starts: float = field(default=0.5, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with some of the commanded velocity."""
    commands: VelocityCommands | None = field(
        default_factory=lambda: VelocityCommands(standing=0.2, heading=0.2)
    )
    """What is asked of the robot, redrawn during an episode."""
    pushes: Pushes | None = field(default_factory=lambda: replace(PUSHES))
    """Shoves: the whole robot is set in motion. In a training they grow to twice of this, mjlab's pushes and up to
    0.8 m/s further, and beyond, to `curricula.pushes.most` times of this. A robot that is pushed often learns to catch
    itself sooner."""
    randomize: dict[str, Randomized] = field(default_factory=lambda: dict(RANDOMIZE))
    """Range from which each physical parameter is drawn at a reset."""
    action_delay: tuple[int, int] = (0, 2)
    """Control steps by which targets are late, drawn for each episode: up to 40 ms, as on robots whose computers are
    busy."""
    history: dict[str, int] = field(
        default_factory=lambda: {"policy": 3}, metadata={"neutral": {"policy": 1}}
    )
    """The policy sees its last three observations: how late its actions are, and how the ground holds, shows in what
    they did."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "base_ang_vel": 0.1,
            "projected_gravity": 0.02,
            "joint_pos_rel": 0.01,
            "joint_vel_rel": 0.5,
        },
    )
    """Half-width of the uniform noise on each item of the policy's observation."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "track_velocity": reward(track_velocity, 3.0, std=TRACKED),
            "track_yaw_rate": reward(track_yaw_rate, 3.0, std=0.5),
            "velocity_error": reward(terms.velocity_error, -3.0),
            "upright": reward(upright, 1.0, std=0.3),
            "posture": reward(Velocity.posture, 1.5),
            "striding": reward(Velocity.striding, 4.0, full=0.2, most=0.45),
            "halting": reward(halting, -3.0, most=0.4),
            "air_time": reward(air_time, 160.0, least=0.1, most=0.35),
            "fall": reward(Velocity.fall, -100.0),
            "foot_clearance": reward(Velocity.foot_clearance, -2.0, height=0.12),
            "swing_height": reward(swing_height, -2.0, height=0.12),
            "foot_slip": reward(foot_slip, -0.6),
            "slip_speed": reward(Velocity.slip_speed, -1.0),
            "landing": reward(landing, -0.3),
            "stepping": reward(Velocity.stepping, -15.0, free=0.5),
            "still": reward(Velocity.still, 1.0, std=0.1),
            "narrow": reward(Velocity.narrow, -5.0),
            "crouching": reward(Velocity.crouching, -20.0, height=0.8),
            "self_contact": reward(self_contact, -1.0, force=10.0),
            "vertical_speed": reward(terms.vertical_speed, -0.5),
            "roll_pitch_rate": reward(terms.roll_pitch_rate, -0.05),
            "joint_limits": reward(terms.joint_limits, -2.0, margin=0.05),
            "action_rate": reward(terms.action_rate, -0.1),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {
            "fallen": ends(fallen, height=0.5, upright=0.7),
            "body_below_ground": ends(terms.body_below_ground),
        }
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""
    curricula: dict[str, Level] = field(
        default_factory=lambda: {
            "commands": level(Velocity.keeping_up, 1.0, rise=0.0, drop=0.0),
            "pushes": level(Velocity.staying_up, 0.0, most=4.0, full=2.0, rise=0.2, drop=1.2),
        }
    )
    """Function, first level and parameters of each curriculum."""

    # What an iteration teaches hardly grows with them, and on a CPU its time does (docs/experiments.md).
    cpu_envs: ClassVar[int] = 1024
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 4096,
        "max_iterations": 2400,
        "learner.num_steps": 0,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 4096,
        "learner.gamma": 0.97,
        "learner.final_gamma": 0.985,
        "learner.final_std": 0.2,
        "learner.activation": "relu",
        "learner.desired_kl": 0.03,
        "learner.final_kl": 0.02,
        "learner.max_kl": 0.15,
        "learner.init_std": 1.0,
        # At action_scale 0.25 an action of 4 saturates a motor whose joint is at home and still. Measured on a Go1.
        "learner.mean_bound": 5.0,
        "learner.noise_correlation": 0.7,
        "learner.average": 0.9,
        "learner.estimated_groups": ["estimated"],
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": (
            "base_ang_vel",
            "projected_gravity",
            "joint_pos_rel",
            "joint_vel_rel",
            "last_action",
            "velocity_commands",
        ),
        "critic": (
            "base_lin_vel",
            "base_ang_vel",
            "projected_gravity",
            "base_height",
            "joint_pos_rel",
            "joint_vel_rel",
            "joint_torque",
            "last_action",
            "velocity_commands",
            "foot_height",
            "foot_lin_vel",
            "foot_force",
            *TIMES,
            "physics",
        ),
        "estimated": ("base_lin_vel",),
    }
    symmetric: ClassVar[bool] = True

    def scene(self, robot: Robot) -> Scene:
        """The robot on flat ground.

        Raises:
            ConfigError: it has no free base or no feet.
        """
        if robot.base is None or not robot.feet:
            lacks = "no free base" if robot.base is None else "no feet"
            raise ConfigError(f"robot {robot.name!r} has {lacks}; this task takes a robot on legs")
        touching = limbs(robot) if float(self.rewards.get("self_contact", 0.0)) else ()
        contacts = {ROBOT: {LIMBS: Contact(touching, ROBOT)}} if touching else {}
        return Scene({ROBOT: robot}, contacts=contacts, collisions=self.collisions)

    def fall(self, state: State, ctx: Context) -> Tensor:
        """One in the step that ends an episode for good (N,)."""
        return self.terminated(state, ctx)

    def astride(self, robot: RobotConstants, share: float) -> tuple[Tensor, float]:
        """Joint positions (J,) [rad] and height of the base [m] with the feet `share` of `sturdy_width` apart, see
        `stance_width` and `step_width`."""
        wide = widened(robot.spec, share * sturdy_width(robot.spec.home_height))
        name = ("astride", share)
        if name not in robot.tables:
            robot.tables[name] = torch.tensor(wide.home, device=robot.home.device)
        return robot.tables[name], wide.home_height

    def poses(self, robot: RobotConstants) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
        """The poses to stand and to walk in, see `astride`."""
        return self.astride(robot, self.stance_width), self.astride(robot, self.step_width)

    def narrow(self, state: State, ctx: Context) -> Tensor:
        """By what share the feet are closer together than `stance_width` and `step_width` ask for (N,); 0 for a robot
        with an odd number of feet."""
        robot = ctx.robot.spec
        if len(robot.feet) % 2:
            return torch.zeros_like(ctx.episode_time)
        sturdy = sturdy_width(robot.home_height)
        asked = [share * sturdy for share in (self.stance_width, self.step_width)]
        # No further than the legs can be spread.
        return narrow(state, ctx, *(min(width, feet_apart(widened(robot, width))) for width in asked))

    def feet_above(self, state: State, ctx: Context) -> Tensor:
        """Height of the feet above the ground that they have to clear (N, F) [m]."""
        return ctx.above_ground(state.robot.foot_pos)

    def foot_clearance(self, state: State, ctx: Context, height: Share) -> Tensor:
        """How far moving feet are from `height` above what they have to clear, weighted by their speed, summed (N,)
        [m^2/s]; `height` is a share of the base's height in the home pose."""
        return foot_clearance(state, ctx, self.feet_above(state, ctx), height)

    def crouching(self, state: State, ctx: Context, height: Share) -> Tensor:
        """By what share the base is below `height` times its height in the pose to stand or to walk in (N,)."""
        (_, standing), (_, walking) = self.poses(ctx.robot)
        wanted = torch.where(moving(state, ctx), walking, standing) * height
        return (1 - ctx.above_ground(state.robot.base_pos) / wanted).clamp(min=0.0)

    def posture(self, state: State, ctx: Context) -> Tensor:
        """Closeness of the joints to the pose to stand or to walk in (N,)."""
        (stance, _), (stride, _) = self.poses(ctx.robot)
        return posture(state, ctx, stance, stride)

    def tracked(self, state: State, ctx: Context) -> Tensor:
        """How well the base moves as commanded (N,), as the reward `track_velocity` measures it where there is one."""
        stated = self.rewards.get("track_velocity")
        parameters = stated.parameters if isinstance(stated, Reward) else {}
        return track_velocity(state, ctx, std=parameters.get("std", TRACKED))

    def striding(self, state: State, ctx: Context, full: Positive, most: Positive) -> Tensor:
        """How far the feet are into a stride, times how well the robot moves as commanded (N,):
        neither alone earns it."""
        return striding(state, ctx, full, most) * self.tracked(state, ctx)

    def steadiness(self, ctx: Context) -> Tensor | float:
        """How much of the pushes of a complete training the robot withstands, 0 to 1; 1 outside of a training.

        To stand still is asked of it by this share. A robot that falls over does better to step all the time, and one
        that may not step from the start never learns to.
        """
        level = ctx.per_env_state.get("level_pushes")
        return 1.0 if level is None else (level / self.curricula["pushes"].complete).clamp(max=1.0)

    def stepping(self, state: State, ctx: Context, free: Share) -> Tensor:
        """Share of the feet off the ground, beyond `free`, while the robot should stand still, times the share of the
        pushes that it withstands (N,)."""
        return stepping(state, ctx, free) * self.steadiness(ctx)

    def slip_speed(self, state: State, ctx: Context) -> Tensor:
        """Speed along the ground of the feet in contact, summed (N,) [m/s], times the share of the pushes that it
        withstands: a robot that cannot walk yet has to try steps."""
        return slip_speed(state, ctx) * self.steadiness(ctx)

    def still(self, state: State, ctx: Context, std: Positive) -> Tensor:
        """How still the base is while the robot should stand still (N,), times the share of the pushes that it
        withstands: 1 at rest, exp(-1) at a speed of `std` [m/s]."""
        return still(state, ctx, std) * self.steadiness(ctx)

    def staying_up(self, state: State, ctx: Context, rise: Change, drop: Change) -> Tensor:
        """Change of a level (N,): up by up to `rise` for each second in which the robot is asked to move and its
        velocity is near the commanded one, and down by `drop` at a fall. One that stands instead is near slow commands
        only."""
        well = (2 * self.tracked(state, ctx) - 1).clamp(min=0) * moving(state, ctx)
        return rise * ctx.dt * well - drop * self.fall(state, ctx)

    def keeping_up(self, state: State, ctx: Context, rise: Change, drop: Change) -> Tensor:
        """Change of a level (N,): up by up to `rise` for each second that the robot moves as commanded, and down at
        most as fast while it does not; down by `drop` at a fall."""
        return rise * ctx.dt * (2 * self.tracked(state, ctx) - 1) - drop * self.fall(state, ctx)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """Contacts, swings and drift, see `gait_metrics`."""
        still = quality.start(num_envs, len(robot.spec.feet), random.device)
        return {**still, "stance_time": torch.zeros_like(still["air_time"])}

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """The same after one more control step."""
        now = quality.follow(state, ctx, ~moving(state, ctx), self.feet_above(state, ctx))
        stance = (ctx.task_state["stance_time"] + ctx.dt) * now["contact"]
        return {**now, "stance_time": stance}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Home + scale x action (N, A) [rad]; of a motor without a servo, the torque scale x action [Nm]."""
        robot = ctx.robot
        return torch.where(robot.kp > 0, robot.home[robot.actuated], 0.0) + self.scale(ctx) * action

    def scale(self, ctx: Context) -> Tensor:
        """Angle for a unit action (A,) [rad]: the one that asks a servo for `action_scale` of its largest torque; of a
        motor without a servo that torque [Nm]."""
        robot = ctx.robot
        torque = self.action_scale * robot.effort
        return torch.where(robot.kp > 0, (torque / robot.kp).clamp(max=self.most_scale), torque)

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """The pose to stand or to walk in, as the command asks, with a little noise, facing anywhere; some start at
        part of the commanded velocity."""
        robot = ctx.robot
        joints = len(robot.spec.joints)
        heading = random.uniform(-torch.pi, torch.pi, num_envs) / 2
        zeros = torch.zeros(num_envs, device=random.device)
        started = random.uniform(0.0, 1.0, num_envs, 1) * (
            random.uniform(0.0, 1.0, num_envs, 1) < self.moving_starts
        )
        velocity = torch.zeros(num_envs, 3, device=random.device)
        velocity[:, :2] = started * ctx.command[:, :2]
        (stance, stance_height), (stride, stride_height) = self.poses(robot)
        rests = ctx.command.abs().amax(dim=1) <= COMMAND_THRESHOLD
        home = torch.where(rests[:, None], stance, stride)
        heights = torch.where(rests, stance_height, stride_height)
        noisy = home + random.uniform(-0.05, 0.05, num_envs, joints)
        return InitialState(
            base_pos=torch.stack((zeros, zeros, heights), dim=-1),
            base_quat=torch.stack((heading.cos(), zeros, zeros, heading.sin()), dim=-1),
            base_lin_vel=velocity,
            base_ang_vel=torch.zeros_like(velocity),
            joint_pos=torch.minimum(torch.maximum(noisy, robot.lower), robot.upper),
            joint_vel=random.uniform(-0.2, 0.2, num_envs, joints),
        )

    def success(self, state: State, ctx: Context) -> Tensor:
        """How much of the commanded motion the base makes (N,): 1 all of it, 0 where it is off by as much as is asked
        for, or by 0.5 m/s where less is, down to -1 for the contrary; 1 rad/s of turning counts as 1 m/s."""
        velocity, turning = quality.level_velocities(state)
        found = torch.cat((velocity, turning[:, None]), dim=1)
        asked = ctx.command[:, :3]
        scale = asked.norm(dim=1).clamp(min=0.5)
        made = (1 - (found - asked).norm(dim=1) / scale).clamp(min=0.0)
        return made + ((found * asked).sum(dim=1) / scale.square()).clamp(min=-1.0, max=0.0)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Tracking errors and walking quality."""
        return quality.measure(state, ctx)
