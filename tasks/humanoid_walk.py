"""The main job: a humanoid walks where it is told, on flat ground, and stands when asked to.

Three choices do most of the work. The policy corrects a stepping pattern instead of inventing one
(`targets`); the second half of the gait is the mirror image of the first (`symmetric`); and the gait
clock finishes its step before it stops (`advance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.backend import PARAMETERS
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import gait_metrics as quality
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants, once
from robolearn.tasks.mdp.observations import MEASURABLE, Observation, measured, projected_gravity
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

LEGS = ("l_", "r_")
COMMAND_THRESHOLD = 0.01
"""A command of which no part is larger asks to stand [m/s, rad/s]."""
FALL_TIME = 0.25
"""How far ahead a fall is foreseen [s]: sqrt(height / gravity) of the base, the time constant of an inverted
pendulum. Lean + rate x this is the angle of the capture point (Pratt et al., Humanoids 2006)."""
FALL_FILTER = 0.1
"""Time constant of the filter on the gyro for that [s]."""


def phase_clock(phase: Tensor) -> Tensor:
    """(N,) phase in cycles -> (N, 2) sine and cosine."""
    angle = 2 * torch.pi * phase
    return torch.stack((angle.sin(), angle.cos()), dim=-1)


GAIT_PHASE = measured("gait_phase", lambda s, c: phase_clock(c.task_state["phase"]), "negate", cycle=True)


def leg_swing(ctx: Context) -> Tensor:
    """How far each leg is into its swing (N, 2), left and right: sine of its phase, negative in stance,
    zero while the gait clock rests."""
    angle = 2 * torch.pi * ctx.task_state["phase"]
    swing = angle.sin() * ctx.task_state["walking"]
    return torch.stack((swing, -swing), dim=-1)


Positive = Annotated[float, {"above": 0.0}]


@once
def track_velocity(state: State, ctx: Context, std: Positive = 0.5) -> Tensor:
    """How well the base moves as commanded (N,): 1 at no error, exp(-1) at an error of `std` [m/s]."""
    return torch.exp(-terms.velocity_error(state, ctx).square() / std**2)


def track_yaw_rate(state: State, ctx: Context, std: Positive = 0.5) -> Tensor:
    """How well the base turns as commanded (N,): 1 at no error, exp(-1) at an error of `std` [rad/s]."""
    return torch.exp(-terms.yaw_rate_error(state, ctx).square() / std**2)


@once
def gait(state: State, ctx: Context, swing_height: Annotated[float, {"min": 0.0}] = 0.08) -> Tensor:
    """How well both feet keep the schedule (N,), 0 to 1: a swinging foot is lifted, its sole to `swing_height` [m] at
    mid-swing, and unloaded; a standing foot carries load and does not slip."""
    swing = leg_swing(ctx)
    force = state.robot.foot_force[:, :, 2]
    height = state.robot.foot_pos[:, :, 2]
    slip = state.robot.foot_lin_vel[:, :, :2].square().sum(dim=-1)
    lifted = torch.exp(
        -force.clamp(min=0) / 20 - ((swing_height * swing - height).clamp(min=0) / 0.035).square()
    )
    planted = (force > 5.0) * torch.exp(-slip / 0.05)
    # A ramp, not a switch: around touch-down and lift-off both count.
    share = (0.5 + 2 * swing).clamp(0, 1) * ctx.task_state["walking"][:, None]
    return (share * lifted + (1 - share) * planted).mean(dim=1)


def still(state: State, ctx: Context) -> Tensor:
    """How quietly it stands while the gait clock rests (N,), 1 upright and at rest, 0 while the clock runs."""
    velocity = state.robot.base_lin_vel[:, :2].square().sum(dim=1)
    sway = state.robot.base_ang_vel.square().sum(dim=1)
    quiet = torch.exp(-velocity / 0.02 - sway / 0.2 - terms.tilt(state, ctx) / 0.01)
    return (1 - ctx.task_state["walking"]) * quiet


def pose(state: State, ctx: Context) -> Tensor:
    """Closeness of arms, waist and sideways leg joints to the home pose (N,), 1 at home."""
    error = (state.robot.joint_pos - ctx.robot.home).square()
    return torch.exp(-(error * ctx.robot.per_joint(POSE_WEIGHT)).sum(dim=1))


def landing(state: State, ctx: Context) -> Tensor:
    """Squared speed of the feet that touch down in this step (N,) [m^2/s^2]: landing softly is free."""
    down = ctx.task_state["contact"] & ~ctx.task_state["last_contact"]
    speed = ctx.task_state["last_foot_speed"]
    return (down * speed).sum(dim=1)


POSE_WEIGHT = {
    "hip_roll": 1.0,
    "hip_yaw": 1.0,
    "ankle_roll": 0.5,
    "waist_yaw": 1.0,
    "shoulder_pitch": 0.5,
    "shoulder_roll": 1.0,
    "shoulder_yaw": 1.0,
    "elbow": 0.5,
}

ACTION_SCALE = {
    "hip_pitch": 0.5,
    "hip_roll": 0.3,
    "hip_yaw": 0.25,
    "knee": 0.5,
    "ankle_pitch": 0.5,
    "ankle_roll": 0.3,
    "waist_yaw": 0.25,
    "shoulder_pitch": 0.3,
    "shoulder_roll": 0.15,
    "shoulder_yaw": 0.15,
    "elbow": 0.2,
}
"""Radians per unit of action, by joint, left and right alike."""

STEP_PATTERN = {"hip_pitch": -0.35, "knee": 0.7, "ankle_pitch": -0.35}
"""What the stepping pattern adds to a leg's targets at mid-swing [rad]."""

STRIDE_PATTERN = {
    "forward": {"hip_pitch": 0.28, "ankle_pitch": -0.28},
    "sideways": {"hip_roll": -0.28, "ankle_roll": 0.28},
    "yaw": {"hip_yaw": -0.167},
}
"""What it adds at lift-off, and with the other sign at touch-down, for each m/s or rad/s of the command [rad].

In between the foot stays where it is: the base passes over it at velocity v for half a stride, T = 1/3 s, which
turns a leg of length L = 0.6 m by v T / L about the hip, from -v T / 2 L to v T / 2 L; and a turning base by yaw
rate x T."""


@dataclass
class HumanoidWalk(Task):
    """A humanoid follows velocity commands: forward, sideways, turning, and standing still."""

    robot: str = "humanoid"
    """The robot it is for."""
    step_frequency: float = field(default=1.5, metadata={"above": 0.0, "max": 5.0})
    """Strides a second: how often each leg swings [Hz]."""
    stop_time: float = field(default=0.4, metadata={"min": 0.0, "max": 5.0})
    """The gait clock runs on at least this long after a command to stand [s]."""
    balance_lean: float = field(default=0.15, metadata={"above": 0.0, "max": 1.0})
    """The gait clock also runs on while the base leans more than this (sine): steps are what catches a fall."""
    balance_start: float = field(default=0.13, metadata={"above": 0.0, "max": 1.0})
    """A gait clock at rest starts when the base is about to lean this much (sine), as after a push."""
    settle_time: float = field(default=0.4, metadata={"min": 0.0})
    """How long it must have rested for that [s]: the last step sways the robot, too."""
    balance_window: float = field(default=2.0, metadata={"min": 0.0})
    """Only so long after a push does balance move the clock [s]; 0: always, as on the robot, which cannot know.
    A robot that may start the clock by leaning prefers to step and never learns to stand."""
    feed_forward: float = field(default=1.0, metadata={"min": 0.0, "max": 2.0})
    """How much of the stepping pattern the targets contain: 0 leaves all of the walk to the policy."""
    moving_starts: float = field(default=0.5, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with some of the commanded velocity."""
    commands: VelocityCommands | None = field(default_factory=VelocityCommands)
    """What is asked of the robot, redrawn during an episode."""
    pushes: Pushes | None = field(default_factory=lambda: Pushes(speed=(0.0, 0.5)))
    """Shoves: the whole robot is set in motion."""
    randomize: dict[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "friction": (0.5, 1.2),
            "mass_scale": (0.9, 1.1),
            "gain_scale": (0.9, 1.1),
        },
        metadata={"keys": tuple(PARAMETERS), "open": ".+/.+"},
    )
    """Range from which each physical parameter is drawn at a reset."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "base_ang_vel": 0.1,
            "projected_gravity": 0.02,
            "joint_pos_rel": 0.01,
            "joint_vel_rel": 0.5,
        },
        metadata={"keys": (*MEASURABLE, GAIT_PHASE.name)},
    )
    """Half-width of the uniform noise on each item of the policy's observation."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "track_velocity": reward(track_velocity, 3.0, std=0.5),
            "track_yaw_rate": reward(track_yaw_rate, 1.5, std=0.5),
            "gait": reward(gait, 4.0, swing_height=0.08),
            "walk": reward(HumanoidWalk.walk, 2.0),
            "still": reward(still, 1.5),
            "pose": reward(pose, 1.0),
            "alive": reward(terms.alive, 0.6),
            "fall": reward(HumanoidWalk.fall, -200.0),
            "tilt": reward(terms.tilt, -6.0),
            "height": reward(terms.height_error, -40.0),
            "vertical_speed": reward(terms.vertical_speed, -1.0),
            "roll_pitch_rate": reward(terms.roll_pitch_rate, -0.1),
            "joint_limits": reward(terms.joint_limits, -4.0, margin=0.05),
            "action_rate": reward(terms.action_rate, -0.02),
            "landing": reward(landing, -0.6),
            "torque": reward(terms.torque, -4e-6),
            "foot_tilt": reward(terms.foot_tilt, -2.0),
            "foot_yaw": reward(terms.foot_yaw, -2.0),
            "foot_spacing": reward(terms.foot_spacing, -40.0, distance=0.14),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {
            # Early: a robot that is lost anyway teaches nothing on its way down.
            "fallen": ends(terms.fallen, height=0.5, upright=0.75),
            # Only its feet touch the ground.
            "body_below_ground": ends(terms.body_below_ground),
        }
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 4096,
        "max_iterations": 600,
        # Many short batches instead of few long ones: what counts is how often the policy changes. Each may
        # change it more than PPO's usual 0.01.
        "learner.num_steps": 8,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 4096,
        "learner.gamma": 0.97,
        "learner.activation": "relu",
        "learner.desired_kl": 0.03,
        "learner.max_kl": 0.15,
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": (
            "base_ang_vel",
            "projected_gravity",
            "joint_pos_rel",
            "joint_vel_rel",
            "last_action",
            "velocity_commands",
            GAIT_PHASE,
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
            GAIT_PHASE,
            "foot_height",
            "foot_lin_vel",
            "foot_force",
            "physics",
        ),
    }
    on_robot: ClassVar[dict[str, Any]] = {"balance_window": 0.0}
    aliases: ClassVar[dict[str, str]] = {
        "min_height": "terminations.fallen.height",
        "min_upright": "terminations.fallen.upright",
    }
    symmetric: ClassVar[bool] = True

    def scene(self, robot: Robot) -> Scene:
        """The robot, of which collides what a walk touches."""
        return Scene({ROBOT: robot}, collisions="light")

    def walk(self, state: State, ctx: Context) -> Tensor:
        """Keeping the gait *while* moving as commanded (N,): neither alone earns it. The product of these two rewards,
        with their parameters."""
        both = self.reward_terms()
        return both["gait"](state, ctx) * both["track_velocity"](state, ctx)

    def fall(self, state: State, ctx: Context) -> Tensor:
        """One in the step that ends an episode for good (N,)."""
        fallen = [term(state, ctx) for term in self.termination_terms().values()]
        return torch.stack(fallen).any(dim=0).float() if fallen else torch.zeros_like(ctx.episode_time)

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """The gait clock (cycles, whether it runs, times since a stop and at rest), sway and foot contacts."""
        zeros = torch.zeros(num_envs, device=random.device)
        return {
            # Left or right leg first, both feet on the ground.
            "phase": (random.uniform(0.0, 1.0, num_envs) < 0.5) * 0.5,
            "walking": zeros,
            "since_stop": torch.full_like(zeros, self.stop_time),
            "since_rest": torch.full_like(zeros, self.settle_time),
            "sway": torch.zeros(num_envs, 2, device=random.device),
            **quality.start(num_envs, 2, random.device),
        }

    def advance(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Run the gait clock: on while a velocity is asked for or the robot must catch itself; after that it
        goes on for `stop_time`, then to the end of the half cycle, so that the robot never halts on one leg."""
        past = ctx.task_state
        asked = ctx.command.abs().amax(dim=1) > COMMAND_THRESHOLD
        lean = projected_gravity(state.robot.base_quat)[:, :2]
        # Filtered: the noise of a gyro, and of exploration, is no push.
        share = min(1.0, ctx.dt / FALL_FILTER)
        sway = past["sway"] + share * (state.robot.base_ang_vel[:, :2] - past["sway"])
        # Pitching forward turns gravity to +x in the base frame, rolling to the right to -y.
        ahead = lean + FALL_TIME * torch.stack((sway[:, 1], -sway[:, 0]), dim=-1)
        rested = past["since_rest"] >= self.settle_time
        pushed = rested & (ahead.norm(dim=1) > self.balance_start)
        falling = pushed | (lean.norm(dim=1) > self.balance_lean)
        if self.balance_window:
            falling &= ctx.push_time <= self.balance_window
        moving = asked | falling
        since_stop = torch.where(moving, 0.0, past["since_stop"] + ctx.dt)
        phase = past["phase"] + self.step_frequency * ctx.dt * past["walking"]
        # floor(2 phase) grows when a half cycle ends: both feet are down there.
        ended = (2 * phase).floor() > (2 * past["phase"]).floor()
        stop = ~moving & (since_stop >= self.stop_time) & (ended | (past["walking"] == 0))
        phase = torch.where(stop, (2 * phase).floor() / 2, phase) % 1.0
        return {
            "phase": phase,
            "walking": (~stop).float(),
            "since_stop": since_stop,
            "since_rest": torch.where(stop, past["since_rest"] + ctx.dt, 0.0),
            "sway": sway,
            # Steps taken to stay upright are part of how well it stands.
            **quality.follow(state, ctx, resting=~asked & (stop | (past["rest_time"] > 0))),
        }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A) [rad]: home + scale x action + the stepping pattern: the swinging leg is
        lifted, and both go to and fro as the command asks."""
        robot = ctx.robot
        swing = leg_swing(ctx).clamp(min=0)
        lift = sum(swing[:, i, None] * robot.per_actuator(STEP_PATTERN, side) for i, side in enumerate(LEGS))
        angle = 2 * torch.pi * ctx.task_state["phase"]
        progress = angle.cos() * ctx.task_state["walking"]
        command = ctx.command * progress[:, None]
        stride = sum(
            command[:, i, None] * (robot.per_actuator(table, LEGS[0]) - robot.per_actuator(table, LEGS[1]))
            for i, table in enumerate(STRIDE_PATTERN.values())
        )
        corrected = robot.home[robot.actuated] + robot.per_actuator(ACTION_SCALE) * action
        return corrected + self.feed_forward * (lift + stride)

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Home pose with a little noise, facing anywhere; some start at part of the commanded velocity."""
        robot = ctx.robot
        joints = len(robot.spec.joints)
        heading = random.uniform(-torch.pi, torch.pi, num_envs) / 2
        zeros = torch.zeros(num_envs, device=random.device)
        started = random.uniform(0.0, 1.0, num_envs, 1) * (
            random.uniform(0.0, 1.0, num_envs, 1) < self.moving_starts
        )
        velocity = torch.zeros(num_envs, 3, device=random.device)
        velocity[:, :2] = started * ctx.command[:, :2]
        return InitialState(
            base_pos=torch.stack((zeros, zeros, zeros + robot.spec.home_height), dim=-1),
            base_quat=torch.stack((heading.cos(), zeros, zeros, heading.sin()), dim=-1),
            base_lin_vel=velocity,
            base_ang_vel=torch.zeros_like(velocity),
            joint_pos=robot.home + random.uniform(-0.05, 0.05, num_envs, joints),
            joint_vel=random.uniform(-0.2, 0.2, num_envs, joints),
        )

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Tracking errors and walking quality."""
        return quality.measure(state, ctx)

    def deployed(self) -> dict[str, Any]:
        """The gait clock and the stepping pattern, which run beside the policy on the robot."""
        return {
            "gait_clock": {
                "frequency": self.step_frequency,
                "phase_at_start": [0.0, 0.5],
                "command_threshold": COMMAND_THRESHOLD,
                "stop_time": self.stop_time,
                "balance_lean": self.balance_lean,
                "balance_start": self.balance_start,
                "settle_time": self.settle_time,
                "fall_filter": FALL_FILTER,
                "fall_time": FALL_TIME,
                "legs": list(LEGS),
            },
            "step_pattern": self.scaled(STEP_PATTERN),
            "stride_pattern": {name: self.scaled(table) for name, table in STRIDE_PATTERN.items()},
        }

    def scaled(self, pattern: Mapping[str, float]) -> dict[str, float]:
        """What of a pattern the targets contain."""
        return {joint: self.feed_forward * angle for joint, angle in pattern.items()}
