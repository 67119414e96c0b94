"""Two arms face each other: one holds a bar, the other takes it over and brings it to a goal out of reach of the first.

The roles differ, so each arm knows which of the two it is; one policy may drive both. Neither sees the other's joints:
each knows its own, what its fingers feel, where a camera sees the bar and the other hand, and the goal.

Some episodes start with the taker's gripper around the bar, or with the bar in it, so that taking and carrying away are
learned beside reaching, not after it.
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
from robolearn.envs.state import Initial, InitialState, State, Tensor, quat_rotate, quat_rotate_inverse
from robolearn.tasks.arm_reach import FINGERS, GRIP
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants, once
from robolearn.tasks.mdp.observations import VOCABULARY, Observation
from robolearn.tasks.mdp.sensors import AGENT, Sensor
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

TAKER, BAR = "taker", "bar"
"""The giver is `robot`."""
APART = 1.5
"""Distance between the bases of the arms [m]."""
LENGTH, THICK = 0.16, 0.03
"""Of the bar [m]."""
HELD_AT = 0.055
"""Where the bar is held: so far from its middle, the giver's end or the taker's [m]."""
PRESSED = 0.5
"""A finger touches the bar where it presses with more than this [N]."""
LAST = 0.5
"""The end of an episode that decides whether the bar is at its goal [s]."""
CLOSED = -0.015
"""Target of a finger that holds the bar: past its surface, for a force of 24 N [m]."""
FAR, NEAR, TAKEN = 0, 1, 2
"""How an episode starts: hands apart, the taker's open gripper around the bar, or the bar in it and the giver's open."""
JOINTS = {"shoulder_yaw": 1.0, "shoulder_pitch": 1.0, "elbow_pitch": 1.0, "wrist_pitch": 1.0}
ROLLS = {"upper_roll": 0.5, "forearm_roll": 0.5, "wrist_roll": 0.5}


def _in_base(state: State, place: Tensor) -> Tensor:
    return quat_rotate_inverse(state.robot.base_quat, place - state.robot.base_pos)


def _axis(state: State) -> Tensor:
    """The direction of the bar (N, 3) in the world, from the giver's end to the taker's."""
    bar = state.entities[BAR]
    along = torch.zeros_like(bar.base_pos)
    along[:, 0] = 1.0
    return quat_rotate(bar.base_quat, along)


def _bar(state: State) -> Tensor:
    axis = quat_rotate_inverse(state.robot.base_quat, _axis(state))
    return torch.cat((_in_base(state, state.entities[BAR].base_pos), axis), dim=1)


def _fingers(state: State) -> Tensor:
    robot, force = state.robot, state.robot.contacts[BAR].force
    return torch.cat([quat_rotate_inverse(robot.base_quat, force[:, i]) for i in range(2)], dim=1)


_FRAME = "axes and origin of the arm's base: x to the other arm, z up"
BAR_PLACE = Sensor(
    "bar_place",
    "m, the middle of the bar, and 1, its direction from the giver's end to the taker's, from a camera",
    _FRAME,
    compute=_bar,
)
OTHER_HAND = Sensor(
    "other_hand",
    "m, the grip of the other arm, from a camera",
    _FRAME,
    compute=lambda state: _in_base(state, state.entities[TAKER].frames[GRIP].pos),
)
FINGER_FORCE = Sensor("finger_force", "N, the force of the bar on each finger", "axes of the arm's base", compute=_fingers)


def gives(state: State) -> Tensor:
    """Whether the agent that sees the environment is the giver (N,) bool."""
    return AGENT(state)[:, 0] > 0.5


def _of_taker(state: State, mine: Tensor, others: Tensor) -> Tensor:
    """What is the taker's (N, ...) of what is this agent's own and what is the other's."""
    return torch.where(gives(state).view(-1, *[1] * (mine.dim() - 1)), others, mine)


@once
def taken(state: State, ctx: Context) -> Tensor:
    """Whether both fingers of the taker press on the bar (N,), 0 or 1."""
    hands = [state.entities[name].contacts[BAR].touching(PRESSED).all(dim=1) for name in (ROBOT, TAKER)]
    return _of_taker(state, *hands).float()


@once
def released(state: State, ctx: Context) -> Tensor:
    """Whether no finger of the giver presses on the bar (N,), 0 or 1."""
    hands = [~state.entities[name].contacts[BAR].touching(PRESSED).any(dim=1) for name in (TAKER, ROBOT)]
    return _of_taker(state, *hands).float()


@once
def grip_distance(state: State, ctx: Context) -> Tensor:
    """Distance of the taker's grip from its end of the bar (N,) [m]."""
    grip = _of_taker(state, *(state.entities[name].frames[GRIP].pos for name in (ROBOT, TAKER)))
    return (grip - state.entities[BAR].base_pos - HELD_AT * _axis(state)).norm(dim=1)


@once
def goal_distance(state: State, ctx: Context) -> Tensor:
    """Distance of the middle of the bar from the goal (N,) [m]; the command is in the axes of the taker's base."""
    x, y, z = ctx.command[:, :3].unbind(dim=1)
    return (state.entities[BAR].base_pos - torch.stack((APART - x, -y, z), dim=1)).norm(dim=1)


def approach(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the taker's grip to its end of the bar (N,); see `manipulation.near`, `width` in [m]."""
    return arm.near(grip_distance(state, ctx), width)


def ready(state: State, ctx: Context) -> Tensor:
    """How far the taker's gripper is open (N,), 0 to 1; 1 too where it holds the bar."""
    fingers = _of_taker(state, *(state.entities[name].joint_pos for name in (ROBOT, TAKER)))
    finger = ctx.robot.per_joint(FINGERS)
    opened = (fingers * finger).sum(dim=1) / (finger * ctx.robot.upper).nan_to_num().sum()
    return torch.maximum(opened.clamp(0.0, 1.0), taken(state, ctx))


def take(state: State, ctx: Context, within: arm.Width) -> Tensor:
    """Both fingers of the taker press on the bar, less than `within` [m] from where they should (N,), 0 or 1."""
    return taken(state, ctx) * (grip_distance(state, ctx) < within)


@once
def given(state: State, ctx: Context) -> Tensor:
    """The taker holds the bar and the giver has let go (N,), 0 or 1."""
    return taken(state, ctx) * released(state, ctx)


def place(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness to the goal of a bar that the taker has (N,); see `manipulation.near`, `width` in [m]."""
    return given(state, ctx) * arm.near(goal_distance(state, ctx), width)


def bar_lost(state: State, ctx: Context, height: Annotated[float, {"min": 0.0}]) -> Tensor:
    """The bar is lower than `height` [m] (N,) bool: it has dropped."""
    return state.entities[BAR].base_pos[:, 2] < height


OWN = (
    "joint_pos_rel",
    "joint_vel_rel",
    "last_action",
    "agent_id",
    Observation("goal", lambda s, c: c.command, "same", "m, of the middle of the bar, from the taker's base"),
    Observation("bar_place", lambda s, c: BAR_PLACE(s), "same", "m, place, and direction, from the arm's base"),
    Observation("other_hand", lambda s, c: OTHER_HAND(s), "same", "m, from the arm's base"),
    Observation("finger_force", lambda s, c: FINGER_FORCE(s) / 10.0, "same", "10 N, in axes of the arm's base"),
)
OTHERS = (
    Observation("to_grip", lambda s, c: grip_distance(s, c)[:, None], "same"),
    Observation("to_goal", lambda s, c: goal_distance(s, c)[:, None], "same"),
    Observation("hands", lambda s, c: torch.stack((taken(s, c), released(s, c)), dim=1), "same"),
    Observation("bar_vel", lambda s, c: s.entities[BAR].base_lin_vel, "same"),
    Observation("bar_ang_vel", lambda s, c: s.entities[BAR].base_ang_vel, "same"),
    Observation("other_joint_pos", lambda s, c: s.entities[TAKER].joint_pos - c.robot.home, "same"),
    Observation("other_joint_vel", lambda s, c: s.entities[TAKER].joint_vel, "same"),
)


@dataclass
class Handover(Task):
    """An arm hands a bar over to another one, which brings it to a goal out of reach of the first.

    Solved: the metric `handed_over` is at least 0.8: so many of the bars are, in the last half second of an episode, in
    the taker's gripper alone and less than 5 cm from the goal; one that drops is not. Only episodes that start with the
    hands apart count.
    """

    robot: str = "arm"
    """Name of the robot; it needs a site `grip` and joints `l_finger` and `r_finger`."""
    episode_length_s: float = field(default=5.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.15, metadata={"above": 0.0, "max": 10.0})
    """Change of a pitch or yaw joint's target for a unit action, from a hand that points to the other arm [rad]; of a
    roll joint half as much."""
    finger_scale: float = field(default=0.04, metadata={"above": 0.0, "max": 1.0})
    """Change of a finger's target for a unit action, from closed [m]."""
    near_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the taker's open gripper around the bar that the giver holds."""
    taken_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the bar in the taker's gripper, and the giver's open around it."""
    commands: PoseCommands | None = field(
        default_factory=lambda: PoseCommands(
            x=(0.45, 0.55), y=(-0.15, 0.15), z=(0.25, 0.45), orientation=False, seconds=(5.0, 5.0)
        )
    )
    """Where the bar is to be, in the axes of the taker's base."""
    noise: dict[str, float] = field(
        default_factory=lambda: {
            "joint_pos_rel": 0.005,
            "joint_vel_rel": 0.05,
            "bar_place": 0.002,
            "other_hand": 0.002,
        },
        metadata={"keys": tuple(VOCABULARY), "open": r"\w+"},
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "approach": reward(approach, 1.0, width=0.1),
            "approach_exact": reward(approach, 2.0, width=0.03),
            "ready": reward(ready, 1.0),
            "take": reward(take, 2.0, within=0.03),
            "given": reward(given, 3.0),
            "place": reward(place, 8.0, width=0.3),
            "place_exact": reward(place, 6.0, width=0.05),
            "action_rate": reward(terms.action_rate, -0.005),
            "joint_speed": reward(arm.joint_speed, -0.01),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"bar_lost": ends(bar_lost, height=0.12)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    agents: ClassVar[tuple[str, ...]] = (ROBOT, TAKER)
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 512,
        "max_iterations": 400,
        "learner.num_steps": 16,
        "learner.minibatch_size": 4096,
        "learner.num_epochs": 4,
        "learner.gamma": 0.98,
        "learner.max_learning_rate": 2e-3,
        "learner.desired_kl": 0.02,
        "learner.init_std": 0.3,
        "learner.entropy_coef": 0.001,
        "learner.actor_hidden": (128, 128),
        "learner.critic_hidden": (128, 128),
        "learner.activation": "relu",
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": OWN,
        "critic": (*OWN, *OTHERS),
        # For comparison: a critic that sees no more than the policy, without its noise.
        "own": OWN,
    }
    sensors: ClassVar[tuple[Sensor, ...]] = (BAR_PLACE, OTHER_HAND, FINGER_FORCE)
    on_robot: ClassVar[dict[str, Any]] = {"near_starts": 0.0, "taken_starts": 0.0}

    def validate(self) -> None:
        """Raise ValueError for shares of starts that are more than all."""
        super().validate()
        if self.near_starts + self.taken_starts > 1.0:
            raise ValueError(
                f"near_starts={self.near_starts:g} and taken_starts={self.taken_starts:g} are more than 1 together"
            )

    def scene(self, robot: Robot) -> Scene:
        """Two arms that face each other, and a bar between them."""
        bar = Object(
            "box", (LENGTH, THICK, THICK), mass=0.05, position=(APART / 2, 0.0, 0.35), torsion=0.05
        )
        return Scene(
            {ROBOT: robot, TAKER: robot, BAR: bar},
            frames={name: (GRIP,) for name in (ROBOT, TAKER)},
            contacts={name: {BAR: Contact(tuple(FINGERS), BAR)} for name in (ROBOT, TAKER)},
            places={TAKER: Place((APART, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))},
            floor=True,
        )

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """How the episode started: FAR, NEAR or TAKEN."""
        drawn = random.uniform(0.0, 1.0, num_envs)
        near, inside = drawn < self.taken_starts + self.near_starts, drawn < self.taken_starts
        return {"start": near.long() + inside.long()}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A): scale x action, from a hand that points to the other arm, of a finger from `CLOSED`."""
        robot = ctx.robot
        finger = robot.per_actuator(FINGERS)
        scale = self.action_scale * robot.per_actuator(JOINTS | ROLLS) + self.finger_scale * finger
        middle = poses(robot.spec, robot.home.device)["middle"][robot.actuated]
        return middle * (1 - finger) + CLOSED * finger + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """The bar in the giver's gripper and the taker's hand apart from it, around it, or around it alone."""
        robot, start = ctx.robot, ctx.task_state["start"][:, None]
        finger, found = robot.per_joint(FINGERS), poses(robot.spec, robot.home.device)
        count = len(found["bar"])
        drawn, other = (
            (random.uniform(0.0, 1.0, num_envs) * count).long().clamp(max=count - 1) for _ in range(2)
        )
        closed, opened = torch.full_like(finger, THICK / 2 - 0.0015), robot.upper
        giver = torch.where(start == FAR, found["far_giver"][drawn], found["giver"][drawn])
        taker = torch.where(start == FAR, found["far_taker"][other], found["taker"][drawn])
        giver = torch.where(finger > 0, torch.where(start == TAKEN, opened, closed), giver)
        taker = torch.where(finger > 0, torch.where(start == TAKEN, closed, opened), taker)
        bar = torch.where(start == FAR, found["far_bar"][drawn], found["bar"][drawn])
        still = torch.zeros(num_envs, 3, device=random.device)
        return {
            ROBOT: InitialState.at_rest(still, joint_pos=giver),
            TAKER: InitialState.at_rest(still, joint_pos=taker),
            BAR: InitialState.at_rest(bar),
        }

    def success(self, state: State, ctx: Context) -> Ratio:
        """How far along the job is in episodes that started with the hands apart (N,): up to 0.3 for a taker near the
        bar, and from there to 1 as the bar that it has nears its goal."""
        counted = (ctx.task_state["start"] == FAR).float()
        near = (1 - grip_distance(state, ctx) / 0.5).clamp(min=0.0)
        close = (1 - goal_distance(state, ctx) / 0.5).clamp(min=0.0)
        return Ratio((0.3 * near + 0.7 * given(state, ctx) * close) * counted, counted)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Of the episodes that started with the hands apart, in their last half second: the share of bars that the
        taker has at the goal, and their distance from it [m]; and the share of bars that the taker alone holds."""
        far = (ctx.task_state["start"] == FAR).float()
        counted = (ctx.episode_time > self.episode_length_s - LAST).float() * far
        distance, has = goal_distance(state, ctx), given(state, ctx)
        # A bar that has dropped counts as much as one that has not arrived all that time.
        lost = sum(term(state, ctx) for term in self.termination_terms().values()) * far * (LAST / ctx.dt)
        return {
            "handed_over": Ratio((distance < 0.05) * has * counted, counted + lost),
            "distance": Ratio(distance * counted, counted),
            "given": Ratio(has * far, far),
        }


@functools.lru_cache(maxsize=4)
def poses(robot: Robot, device: torch.device) -> dict[str, Tensor]:
    """Joint positions (K, J) with the hand pointing to the other arm, K = 256, and places (K, 3) [m] of the bar in the
    world: `giver`, `taker` and `bar`, both around the same bar; `far_giver` and `far_bar`, and `far_taker`, apart from
    them; `middle` (J,), where it holds a bar in the middle between the arms."""
    random, count = np.random.default_rng(0), 256
    quat = np.tile([0.5**0.5, 0.0, 0.5**0.5, 0.0], (count, 1))
    middle, back = APART / 2 - HELD_AT, np.array([HELD_AT, 0.0, 0.0])
    near, far, away = (
        [x, 0.0, 0.35] + random.uniform(-0.03, 0.03, (count, 3))
        for x in (APART / 2, APART / 2, middle - 0.1)
    )
    found = {
        "giver": inverse(robot, GRIP, near - back, quat),
        "taker": inverse(robot, GRIP, (near + back) * [-1, -1, 1] + [APART, 0, 0], quat),
        "far_giver": inverse(robot, GRIP, far - back, quat),
        "far_taker": inverse(robot, GRIP, away, quat),
        "middle": inverse(robot, GRIP, np.array([[middle, 0.0, 0.35]]), quat[:1])[0],
        "bar": near,
        "far_bar": far,
    }
    return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in found.items()}
