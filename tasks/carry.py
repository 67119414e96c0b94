"""Two vehicles carry a beam, which lies loose on their trays, level to a goal.

Neither sees the other: each knows where it is itself, what its tray carries, and where the beam is to go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Place, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Command, Drawn, require_ordered
from robolearn.tasks.mdp.context import Context, Random, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

PARTNER, BEAM, TRAY = "partner", "beam", "tray"
APART = 1.0
"""Distance between the places of the vehicles [m]."""
LENGTH, THICK = 1.5, 0.06
"""Of the beam [m]."""
SURFACE = 0.35
"""Height of a tray's surface where its lift is at 0 [m]."""
DRIVE, LIFT = 0, 1
"""Joints."""
LAST = 1.0
"""The end of an episode that decides whether the beam has arrived [s]."""

LOAD = Sensor(
    "load",
    "N, forward and up, the force of what lies on the tray",
    "world",
    compute=lambda state: state.robot.contacts[BEAM].force[:, 0, ::2],
)
"""A load cell under the tray."""


@dataclass
class GoalCommands(Command):
    """Where the beam is to be, at the end of a movement along the track and a lift."""

    distance: tuple[float, float] = field(default=(-1.5, 1.5), metadata={"min": -100.0, "max": 100.0})
    """Range of the distance along the track from where the vehicles have their places [m]."""
    height: tuple[float, float] = field(default=(0.05, 0.35), metadata={"min": 0.0, "max": 0.4})
    """Range of the height above the lowest [m]."""
    seconds: tuple[float, float] = field(default=(6.0, 6.0), metadata={"above": 0.0, "max": 1e6})
    """Range of a command's duration [s]; an episode has one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column."""
        return ("distance", "height")

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each column."""
        return ("m along the track", "m above the lowest")

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of each column."""
        return {name: getattr(self, name) for name in self.names}

    def validate(self) -> None:
        """Raise ValueError for a range whose ends are swapped."""
        require_ordered(self, (*self.names, "seconds"))

    def sample(self, num_envs: int, random: Random) -> Drawn:
        """Draw goals (N, 2) [m]."""
        low, high = zip(self.distance, self.height, strict=True)
        return Drawn(random.uniform(low, high, num_envs), random.uniform(*self.seconds, num_envs), {})


def beam_from_goal(state: State, ctx: Context) -> Tensor:
    """The beam's centre less the commanded place (N, 2), along the track and up [m]."""
    centre = state.entities[BEAM].base_pos
    x = centre[:, 0] - APART / 2 - ctx.command[:, 0]
    z = centre[:, 2] - THICK / 2 - SURFACE - ctx.command[:, 1]
    return torch.stack((x, z), dim=1)


@once
def tilt(state: State, ctx: Context) -> Tensor:
    """Sine of the beam's angle with the horizontal (N,), positive with its front down."""
    w, x, y, z = state.entities[BEAM].base_quat.unbind(-1)
    return 2 * (w * y - x * z)


def near_goal(state: State, ctx: Context, width: Annotated[float, {"above": 0.0}]) -> Tensor:
    """1 with the beam at its goal, 1/2 at the distance `width` [m] from it (N,)."""
    return 1 / (1 + (beam_from_goal(state, ctx).norm(dim=1) / width).square())


def level(state: State, ctx: Context, width: Annotated[float, {"above": 0.0}]) -> Tensor:
    """1 with the beam level, 1/2 where the sine of its angle is `width` (N,)."""
    return 1 / (1 + (tilt(state, ctx) / width).square())


def dropped(state: State, ctx: Context, angle: Annotated[float, {"above": 0.0, "max": 1.5}]) -> Tensor:
    """The beam is lower than the lowest place of a tray, or its angle has a sine above `angle` (N,) bool."""
    return (state.entities[BEAM].base_pos[:, 2] < SURFACE) | (tilt(state, ctx).abs() > angle)


def beam_speed(state: State, ctx: Context) -> Tensor:
    """Squared velocity of the beam (N,) [m^2/s^2]."""
    return state.entities[BEAM].base_lin_vel.square().sum(dim=1)


def _beam(state: State, ctx: Context) -> Tensor:
    beam = state.entities[BEAM]
    turn = beam.base_ang_vel[:, 1:2]
    return torch.cat((tilt(state, ctx)[:, None], beam.base_lin_vel[:, ::2], turn), dim=1)


OWN = (
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    Observation("load", lambda s, c: LOAD(s), "same", "N, forward and up"),
    Observation(
        "to_goal",
        lambda s, c: c.command - s.robot.joint_pos,
        "same",
        "m, how far the vehicle and its tray have to go, along the track and up",
    ),
)
BEAM_ITEMS = (
    Observation("beam_from_goal", beam_from_goal, "same"),
    Observation("beam", _beam, "same"),
    Observation(
        "beam_on_tray",
        lambda s, c: s.entities[BEAM].base_pos[:, :1] - s.robot.frames[TRAY].pos[:, :1],
        "same",
    ),
)
PARTNER_ITEMS = (
    Observation("partner_joint_pos", lambda s, c: s.entities[PARTNER].joint_pos - c.robot.home, "same"),
    Observation("partner_joint_vel", lambda s, c: s.entities[PARTNER].joint_vel, "same"),
)


@dataclass
class Carry(Task):
    """Two vehicles carry a beam, which lies loose on their trays, level to a goal along the track and up.

    Solved: the metric `arrived` is at least 0.8: so many of the beams are, on average over the last second of an
    episode, less than 5 cm from the goal, and less than 3 degrees from level; one that drops is not.
    """

    robot: str = "lifter"
    """Name of the robot."""
    episode_length_s: float = field(default=6.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    lift_scale: float = field(default=0.2, metadata={"above": 0.0, "max": 10.0})
    """Change of the lift's target for a unit action, from its middle [m]."""
    drive_scale: float = field(default=20.0, metadata={"above": 0.0, "max": 1000.0})
    """Force of the drive for a unit action [N]."""
    start_noise: float = field(default=0.1, metadata={"min": 0.0, "max": 0.15})
    """Largest distance of a vehicle from its place, and of its lift from the middle, at the start [m]."""
    commands: GoalCommands | None = field(default_factory=GoalCommands)
    """Where the beam is to be."""
    noise: dict[str, float] = field(
        default_factory=lambda: {"joint_pos_rel": 0.002, "joint_vel_rel": 0.02, "load": 1.0},
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "near_goal": reward(near_goal, 1.0, width=0.25),
            "at_goal": reward(near_goal, 2.0, width=0.05),
            "level": reward(level, 0.5, width=0.1),
            "beam_speed": reward(beam_speed, -0.05),
            "effort": reward(terms.effort, -0.01),
            "action_rate": reward(terms.action_rate, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"dropped": ends(dropped, angle=0.4)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    agents: ClassVar[tuple[str, ...]] = (ROBOT, PARTNER)
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 256,
        "max_iterations": 150,
        "learner.num_steps": 24,
        "learner.minibatch_size": 2048,
        "learner.num_epochs": 4,
        "learner.gamma": 0.98,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.02,
        "learner.init_std": 0.6,
        "learner.actor_hidden": (64, 64),
        "learner.critic_hidden": (128, 128),
        "learner.activation": "tanh",
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": OWN,
        "critic": (*OWN, *BEAM_ITEMS, *PARTNER_ITEMS),
        # For comparison: critics that do not see the partner, or see no more than the policy, without its noise.
        "without_partner": (*OWN, *BEAM_ITEMS),
        "own": OWN,
    }
    sensors: ClassVar[tuple[Sensor, ...]] = (LOAD,)

    def scene(self, robot: Robot) -> Scene:
        """Two vehicles a metre apart, and a beam from the middle of one tray to the middle of the other and beyond."""
        beam = Object(
            "box",
            (LENGTH, 0.16, THICK),
            mass=3.0,
            position=(APART / 2, 0.0, SURFACE + 0.2 + THICK / 2),
            friction=0.6,
        )
        return Scene(
            {ROBOT: robot, PARTNER: robot, BEAM: beam},
            frames={ROBOT: (TRAY,), PARTNER: (TRAY,)},
            contacts={name: {BEAM: Contact((TRAY,), BEAM)} for name in (ROBOT, PARTNER)},
            places={PARTNER: Place((APART, 0.0, 0.0))},
            floor=True,
        )

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 2): the drive's force [N], and the place of the lift [m]."""
        robot = ctx.robot
        scale = robot.per_actuator({"drive": self.drive_scale, "lift": self.lift_scale})
        return robot.home[robot.actuated] + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """Vehicles near their places, lifts near the middle, the beam on the trays."""
        r = self.start_noise
        drawn = [random.uniform((-r, -r), (r, r), num_envs) + ctx.robot.home for _ in range(2)]
        zero = torch.zeros(num_envs, 3, device=random.device)
        own, other = zero.clone(), zero.clone()
        other[:, 0] = APART
        x = torch.stack((drawn[0][:, DRIVE], APART + drawn[1][:, DRIVE]), dim=1)
        z = torch.stack([joints[:, LIFT] for joints in drawn], dim=1)
        # By square roots: the rounding of atan2 depends on where in the batch a row stands.
        along, down = x[:, 1] - x[:, 0], z[:, 0] - z[:, 1]
        cos, sin = (
            along / (along.square() + down.square()).sqrt(),
            down / (along.square() + down.square()).sqrt(),
        )
        half = ((1 + cos) / 2).sqrt()
        beam, quat = zero.clone(), torch.zeros(num_envs, 4, device=random.device)
        # Just above the trays, along the line between their middles.
        beam[:, 0] = x.mean(dim=1)
        beam[:, 2] = z.mean(dim=1) + SURFACE + (THICK / 2 + 0.1 * sin.abs()) / cos + 0.002
        quat[:, 0], quat[:, 2] = half, sin / (2 * half)
        return {
            ROBOT: InitialState.at_rest(own, joint_pos=drawn[0]),
            PARTNER: InitialState.at_rest(other, joint_pos=drawn[1]),
            BEAM: InitialState.at_rest(beam, quat),
        }

    def goal(self, state: State, ctx: Context) -> Tensor:
        """Where the middle of the beam is to be (N, 3) [m]."""
        place = torch.zeros_like(state.entities[BEAM].base_pos)
        place[:, 0] = APART / 2 + ctx.command[:, 0]
        place[:, 2] = SURFACE + THICK / 2 + ctx.command[:, 1]
        return place

    def success(self, state: State, ctx: Context) -> Tensor:
        """Closeness of the beam to its goal (N,), 1 there and 0 from 1 m on."""
        return (1 - beam_from_goal(state, ctx).norm(dim=1)).clamp(min=0.0)

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor | Ratio]:
        """The share of beams that are at their goal and level in the last second, their distance from it [m], and the
        sine of the beam's angle with the horizontal."""
        counted = (ctx.episode_time > self.episode_length_s - LAST).float()
        distance, angle = beam_from_goal(state, ctx).norm(dim=1), tilt(state, ctx).abs()
        arrived = (distance < 0.05) & (angle < 0.05)
        # A beam that has dropped counts as much as one that has not arrived all that second.
        lost = self.terminated(state, ctx) * (LAST / ctx.dt)
        return {
            "arrived": Ratio(arrived * counted, counted + lost),
            "distance": Ratio(distance * counted, counted),
            "angle": angle,
        }
