"""One arm hands a bar to another: the giver holds it out, the receiver grasps the other end, the giver lets go, and the
receiver takes it to its place.

Neither arm knows the other's joints: each knows its own, what its fingers feel, and where a camera sees the bar and the
other gripper. Some episodes start further along, with the receiver on its way to the bar, with both holding it, or with
the receiver alone, so that all parts are learned side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from robolearn.envs.kinematics import inverse
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Place, Scene
from robolearn.envs.state import (
    Entity,
    Initial,
    InitialState,
    State,
    Tensor,
    quat_rotate,
    quat_rotate_inverse,
)
from robolearn.errors import ConfigError, listing
from robolearn.tasks.arm_reach import FINGERS, GRIP
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensors import AGENT, Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

PARTNER, BAR = "partner", "bar"
APART = 1.06
"""Distance between the bases of the arms [m]; they face each other."""
LENGTH, EDGE = 0.26, 0.03
"""Of the bar [m]."""
MASS = 0.05
"""Of the bar [kg]."""
END = 0.085
"""Distance from the middle of the bar to where either arm grasps it [m]."""
PRESSED = 0.5
"""A finger touches the bar where it presses with more than this [N]."""
GIVEN, MEETING, BOTH, TAKEN = 0, 1, 2, 3
"""How an episode starts: the giver holds the bar and the receiver waits; the receiver is on its way to the bar; both
hold it; the receiver does, and the giver's fingers are open."""
ABOVE = 0.12
"""How far above the bar an arm keeps that does not hold it [m]."""
LAST = 1.0
"""The end of an episode that decides whether the bar is handed over [s]."""


def _fingers(state: State) -> Tensor:
    return state.robot.contacts[BAR].force.norm(dim=-1)


def _seen(state: State, entity: Entity, point: Tensor) -> Tensor:
    return quat_rotate_inverse(entity.base_quat, point - entity.base_pos)


def _bar_place(state: State) -> Tensor:
    robot, bar = state.robot, state.entities[BAR]
    along = quat_rotate_inverse(robot.base_quat, _axis(bar))
    return torch.cat((_seen(state, robot, bar.base_pos), along), dim=1)


def _other_grip(state: State) -> Tensor:
    other = state.entities[PARTNER]
    place = _seen(state, state.robot, other.frames[GRIP].pos)
    return torch.cat((place, other.joint_pos[:, -2:].sum(dim=1, keepdim=True)), dim=1)


def _axis(bar: Entity) -> Tensor:
    """Direction of the bar, from the giver's end to the receiver's (N, 3)."""
    ahead = torch.zeros_like(bar.base_pos)
    ahead[:, 0] = 1.0
    return quat_rotate(bar.base_quat, ahead)


FINGER_FORCE = Sensor("fingers", "N, the force of the bar on each finger", "each finger", compute=_fingers)
"""Load cells in the fingers."""
BAR_PLACE = Sensor(
    "bar_place",
    "m and 1, the middle of the bar and the direction from the giver's end to the receiver's, from a camera",
    "axes and origin of the arm's base: x to the other arm, z up",
    compute=_bar_place,
)
OTHER_GRIP = Sensor(
    "other_grip",
    "m, the place between the fingers of the other arm, and how far they are apart, from a camera",
    "axes and origin of the arm's base: x to the other arm, z up",
    compute=_other_grip,
)
"""What the camera above the arms sees of the other one."""


@once
def gives(state: State, ctx: Context) -> Tensor:
    """Whether this agent is the giver (N, 1) bool."""
    return AGENT(state)[:, :1] > 0.5


def of_arm(state: State, ctx: Context, giver: bool, function: Any) -> Tensor:
    """`function` of the giver, or of the receiver, whichever of them looks: (N, K)."""
    mine, other = function(state.robot), function(state.entities[PARTNER])
    return torch.where(gives(state, ctx) == giver, mine, other)


@once
def forces(state: State, ctx: Context) -> Tensor:
    """What the two fingers of the giver, then those of the receiver, feel of the bar (N, 4) [N]."""
    each = [
        of_arm(state, ctx, giver, lambda robot: robot.contacts[BAR].force.norm(dim=-1))
        for giver in (True, False)
    ]
    return torch.cat(each, dim=1)


@once
def end_distance(state: State, ctx: Context) -> Tensor:
    """Distance of the receiver's grip from its end of the bar (N,) [m]."""
    bar = state.entities[BAR]
    grip = of_arm(state, ctx, False, lambda robot: robot.frames[GRIP].pos)
    return (grip - bar.base_pos - END * _axis(bar)).norm(dim=1)


@once
def grasped(state: State, ctx: Context) -> Tensor:
    """Both fingers of the receiver press on the bar, less than 4 cm from where it is to be grasped (N,), 0 or 1."""
    pressed = (forces(state, ctx)[:, 2:] > PRESSED).all(dim=1)
    return (pressed & (end_distance(state, ctx) < 0.04)).float()


@once
def taken(state: State, ctx: Context) -> Tensor:
    """The receiver has the bar and the giver does not touch it (N,), 0 or 1."""
    return grasped(state, ctx) * (forces(state, ctx)[:, :2] < PRESSED).all(dim=1)


@once
def goal_position(state: State, ctx: Context) -> Tensor:
    """The commanded place, which is in axes of the receiver's base, in the world (N, 3) [m]."""
    base = of_arm(state, ctx, False, lambda robot: torch.cat((robot.base_pos, robot.base_quat), dim=1))
    return base[:, :3] + quat_rotate(base[:, 3:], ctx.command[:, :3])


@once
def goal_distance(state: State, ctx: Context) -> Tensor:
    """Distance of the middle of the bar from the commanded place (N,) [m]."""
    return (state.entities[BAR].base_pos - goal_position(state, ctx)).norm(dim=1)


def approach(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the receiver's grip to its end of the bar (N,); see `manipulation.near`, `width` in [m]."""
    return arm.near(end_distance(state, ctx), width)


def place(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the bar that was taken to the commanded place (N,); see `manipulation.near`, `width` in [m]."""
    return taken(state, ctx) * arm.near(goal_distance(state, ctx), width)


def level(state: State, ctx: Context, width: Annotated[float, {"above": 0.0}]) -> Tensor:
    """1 with the bar level, 1/2 where the sine of its angle is `width` (N,)."""
    return 1 / (1 + (_axis(state.entities[BAR])[:, 2] / width).square())


def bar_speed(state: State, ctx: Context) -> Tensor:
    """Squared velocity of the bar (N,) [m^2/s^2]: one that is thrown is not handed over."""
    return state.entities[BAR].base_lin_vel.square().sum(dim=1)


def dropped(state: State, ctx: Context, height: Annotated[float, {"min": 0.0}]) -> Tensor:
    """The middle of the bar is below `height` [m] (N,) bool."""
    return state.entities[BAR].base_pos[:, 2] < height


OWN = (
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    Observation("fingers", lambda s, c: FINGER_FORCE(s) / 10.0, "same", "10 N"),
    Observation("bar_place", lambda s, c: BAR_PLACE(s), "same", "m and 1, in axes of the arm's base"),
    Observation("other_grip", lambda s, c: OTHER_GRIP(s), "same", "m, in axes of the arm's base"),
    Observation(
        "goal",
        lambda s, c: c.command[:, :3],
        "same",
        "m, where the middle of the bar is to be, in axes of the receiver's base",
    ),
)
WORLD = (
    Observation("bar_vel", lambda s, c: s.entities[BAR].base_lin_vel, "same"),
    Observation("bar_ang_vel", lambda s, c: s.entities[BAR].base_ang_vel, "same"),
    Observation("taken", lambda s, c: torch.stack((grasped(s, c), taken(s, c)), dim=1), "same"),
    Observation(
        "distances", lambda s, c: torch.stack((end_distance(s, c), goal_distance(s, c)), dim=1), "same"
    ),
)
OTHER = (
    Observation("partner_joint_pos", lambda s, c: s.entities[PARTNER].joint_pos - c.robot.home, "same"),
    Observation("partner_joint_vel", lambda s, c: s.entities[PARTNER].joint_vel, "same"),
    Observation(
        "partner_fingers",
        lambda s, c: s.entities[PARTNER].contacts[BAR].force.norm(dim=-1) / 10.0,
        "same",
    ),
)


@dataclass
class Handover(Task):
    """An arm hands a bar to another one, which takes it to a commanded place.

    Solved: the metric `handed_over` is at least 0.8: so many of the bars are, on average over the last second of an
    episode, held by the receiver alone and less than 5 cm from the commanded place; one that drops is not. Only
    episodes that start with the receiver waiting count.
    """

    robot: str = "arm"
    """Name of the robot; it needs a site `grip`, and its last joints must be `l_finger` and `r_finger`."""
    episode_length_s: float = field(default=5.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Change of an arm joint's target for a unit action, from home [rad]."""
    finger_scale: float = field(default=0.05, metadata={"above": 0.0, "max": 1.0})
    """Change of a finger's target for a unit action, from closed [m]: without an action it holds the bar."""
    start_noise: float = field(default=0.05, metadata={"min": 0.0, "max": 0.2})
    """Largest distance of a joint of the receiver from where it waits, at the start [rad]."""
    meeting_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the receiver on its way to the bar."""
    both_starts: float = field(default=0.2, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with both arms holding the bar."""
    taken_starts: float = field(default=0.15, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the bar in the receiver's gripper alone."""
    commands: PoseCommands | None = field(
        default_factory=lambda: PoseCommands(
            x=(0.42, 0.52), y=(-0.12, 0.12), z=(0.18, 0.32), orientation=False, seconds=(5.0, 5.0)
        )
    )
    """Where the middle of the bar is to be, in axes of the receiver's base."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "joint_pos_rel": 0.005,
            "joint_vel_rel": 0.1,
            "fingers": 0.05,
            "bar_place": 0.002,
            "other_grip": 0.002,
        },
    )
    """Half-width of the uniform noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "approach": reward(approach, 1.0, width=0.2),
            "approach_exact": reward(approach, 2.0, width=0.03),
            "grasped": reward(grasped, 2.0),
            "taken": reward(taken, 4.0),
            "place": reward(place, 6.0, width=0.3),
            "place_exact": reward(place, 6.0, width=0.05),
            "level": reward(level, 1.0, width=0.2),
            "lost": reward(Handover.lost, -4.0),
            "bar_speed": reward(bar_speed, -1.0),
            "action_rate": reward(terms.action_rate, -0.005),
            "joint_speed": reward(arm.joint_speed, -0.01),
        }
    )
    """Function, weight per second and parameters of each reward; of `lost` the weight is for a whole bar."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"dropped": ends(dropped, height=0.08)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    agents: ClassVar[tuple[str, ...]] = (ROBOT, PARTNER)
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 1024,
        "max_iterations": 1500,
        "learner.policies": {ROBOT: "giver", PARTNER: "receiver"},
        "learner.num_steps": 8,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 2048,
        "learner.gamma": 0.98,
        "learner.activation": "relu",
        "learner.desired_kl": 0.03,
        "learner.max_kl": 0.15,
        "learner.init_std": 0.6,
        "learner.entropy_coef": 0.001,
        "learner.average": 0.95,
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": OWN,
        "critic": (*OWN, *WORLD, *OTHER),
        # For comparison: a critic that sees no more than the policy, without its noise.
        "own": OWN,
    }
    sensors: ClassVar[tuple[Sensor, ...]] = (FINGER_FORCE, BAR_PLACE, OTHER_GRIP)
    on_robot: ClassVar[dict[str, Any]] = {"meeting_starts": 0.0, "both_starts": 0.0, "taken_starts": 0.0}

    def validate(self) -> None:
        """Raise ValueError for shares of starts that are more than all."""
        super().validate()
        if (total := self.meeting_starts + self.both_starts + self.taken_starts) > 1.0 + 1e-9:
            raise ValueError(
                f"meeting_starts={self.meeting_starts:g}, both_starts={self.both_starts:g} and "
                f"taken_starts={self.taken_starts:g} are {total:g} together, more than 1"
            )

    def scene(self, robot: Robot) -> Scene:
        """Two arms that face each other, and a bar; the pose of each gripper, and what each finger feels of the bar.

        Raises:
            ConfigError: the robot's last joints are not the fingers.
        """
        if robot.joints[-2:] != tuple(FINGERS):
            raise ConfigError(
                f"task=handover: the last joints of the robot must be {listing(FINGERS)}; those of {robot.name!r} are "
                f"{listing(robot.joints[-2:])}"
            )
        bar = Object("box", (LENGTH, EDGE, EDGE), mass=MASS, position=(APART / 2, 0.0, 0.3))
        return Scene(
            {ROBOT: robot, PARTNER: robot, BAR: bar},
            frames=dict.fromkeys((ROBOT, PARTNER), (GRIP,)),
            contacts={name: {BAR: Contact(tuple(FINGERS), BAR)} for name in (ROBOT, PARTNER)},
            places={PARTNER: Place((APART, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))},
            floor=True,
        )

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """How the episode started, for both agents of a world alike: GIVEN, MEETING, BOTH or TAKEN."""
        drawn = random.uniform(0.0, 1.0, num_envs)  # alike for the agents of a world, as all that is drawn
        bounds = (
            self.meeting_starts + self.both_starts + self.taken_starts,
            self.both_starts + self.taken_starts,
            self.taken_starts,
        )
        return {"start": torch.stack([drawn < bound for bound in bounds]).sum(dim=0)}

    def lost(self, state: State, ctx: Context) -> Tensor:
        """1 over the control period in which the bar drops (N,) [1/s]."""
        return self.terminated(state, ctx) / ctx.dt

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A): scale x action, from home [rad], of a finger from closed [m]."""
        robot, finger = ctx.robot, ctx.robot.per_actuator(FINGERS)
        scale = self.action_scale * (1 - finger) + self.finger_scale * finger
        start = torch.where(finger > 0, 0.0, robot.home[robot.actuated])
        return start + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """The bar in the giver's gripper and the receiver waiting, or further along, see `task_state`."""
        robot, start = ctx.robot, ctx.task_state["start"][:, None]
        poses = start_poses(robot.spec, robot.home.device)
        finger, count = robot.per_joint(FINGERS), len(poses["bar"])
        drawn = (random.uniform(0.0, 1.0, num_envs) * count).long().clamp(max=count - 1)
        noise = random.uniform(-self.start_noise, self.start_noise, num_envs, len(robot.home))
        way, further = random.uniform(0.0, 1.0, num_envs, 1), random.uniform(0.0, 1.0, num_envs, 1)

        def at(name: str, fingers: Tensor | float) -> Tensor:
            return torch.where(finger > 0, fingers, poses[name][drawn])

        def above(name: str, share: Tensor | float) -> Tensor:
            """A share of the way from the bar to above it, fingers open."""
            way = torch.lerp(poses[name][drawn], poses[name + "_above"][drawn], share)
            return torch.where(finger > 0, robot.upper, way)

        waiting = torch.where(finger > 0, robot.upper, poses["waiting"] + noise)
        holds = EDGE / 2
        giver = torch.where(start == TAKEN, above("giver", way), at("giver", holds))
        # From the bar to above it, or from there to where it waits.
        on_way = torch.where(
            further > 0.5, torch.lerp(above("receiver", 1.0), waiting, way), above("receiver", way)
        )
        receiver = torch.where(start == MEETING, on_way, at("receiver", holds))
        receiver = torch.where(start == GIVEN, waiting, receiver)
        still = torch.zeros(num_envs, 3, device=random.device)
        other, turned = still.clone(), torch.zeros(num_envs, 4, device=random.device)
        other[:, 0], turned[:, 3] = APART, 1.0  # half a turn about z
        return {
            ROBOT: InitialState.at_rest(still, joint_pos=giver),
            PARTNER: InitialState.at_rest(other, turned, joint_pos=receiver),
            BAR: InitialState.at_rest(poses["bar"][drawn]),
        }

    def goal(self, state: State, ctx: Context) -> Tensor:
        """Where the middle of the bar is to be (N, 3) [m]."""
        return goal_position(state, ctx)

    def success(self, state: State, ctx: Context) -> Ratio:
        """How far along the job is in episodes that began with the receiver waiting (N,): up to 0.3 for a receiver near
        the bar, and from there to 1 as the bar, which it has alone, nears its goal."""
        counted = (ctx.task_state["start"] == GIVEN).float()
        near = (1 - end_distance(state, ctx) / 0.5).clamp(min=0.0)
        close = (1 - goal_distance(state, ctx) / 0.3).clamp(min=0.0)
        return Ratio((0.3 * near + 0.7 * taken(state, ctx) * close) * counted, counted)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Shares of bars that the receiver grasps, and has alone; and of the episodes that started with the receiver
        waiting, the share of bars that are handed over in the last second, and their distance from the goal [m]."""
        given = (ctx.task_state["start"] == GIVEN).float()
        counted = given * (ctx.episode_time > self.episode_length_s - LAST)
        distance = goal_distance(state, ctx)
        done = taken(state, ctx) * (distance < 0.05)
        # A bar that drops counts as much as one that has not been handed over all that second.
        lost = given * self.lost(state, ctx) * LAST
        return {
            "handed_over": Ratio(done * counted, counted + lost),
            "distance": Ratio(distance * counted, counted),
            "grasped": grasped(state, ctx),
            "taken": taken(state, ctx),
        }


@functools.lru_cache(maxsize=4)
def start_poses(robot: Robot, device: torch.device) -> dict[str, Tensor]:
    """K = 128 starts, with both grippers pointing down.

    Joint positions (K, J): `giver` and `receiver` with the bar between them, at `bar` (K, 3) [m], and each `_above` it.
    `waiting` (J,): the receiver before it has seen the bar.
    """
    random = np.random.default_rng(0)
    giver = random.uniform((0.36, -0.12, 0.2), (0.46, 0.12, 0.32), (128, 3))
    receiver = giver * (-1.0, -1.0, 1.0) + (APART - 2 * END, 0.0, 0.0)
    above, reach = np.array((0.0, 0.0, ABOVE)), np.array((END, 0.0, 0.0))
    grips = {
        "giver": giver,
        "giver_above": giver + above,
        "receiver": receiver,
        "receiver_above": receiver + above,
        "waiting": np.array([[0.42, 0.0, 0.42]]),
    }
    found = {
        name: inverse(robot, GRIP, place, np.tile((0.0, 0.0, 1.0, 0.0), (len(place), 1)))
        for name, place in grips.items()
    }
    found |= {"waiting": found["waiting"][0], "bar": giver + reach}
    return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in found.items()}
