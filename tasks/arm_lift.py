"""An arm lifts a cube from the floor and holds it at a commanded place.

Some episodes start with the gripper on its way to the cube, around it, or holding it, so that carrying and grasping are
learned beside reaching, not after it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from robolearn.envs.kinematics import inverse
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor
from robolearn.tasks.arm_reach import FINGERS, GRIP, around_home, commanded
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random, RobotConstants, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Ratio, Task

CUBE = "cube"
LAST = 0.5
"""End of an episode that counts for its result [s]."""
EDGE = 0.04
"""Edge of the cube [m]."""
LOW, HIGH = (0.32, -0.2), (0.5, 0.2)
"""Corners of the rectangle on the floor where the cube starts [m]."""
FAR, NEAR, HELD = 0, 1, 2
"""How an episode starts: gripper at home, open between the cube and home, or with the cube in it."""
PRESSED = 0.5
"""A finger touches the cube where it presses with more than this [N]."""


@once
def held(state: State, ctx: Context) -> Tensor:
    """Whether both fingers press on the cube (N,), as 0 or 1."""
    return state.robot.contacts[CUBE].touching(PRESSED).all(dim=1).float()


def approach(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the gripper to the cube (N,); see `manipulation.near`, `width` in [m]."""
    return arm.near(arm.grasp_distance(state, ctx, frame=GRIP, thing=CUBE), width)


def grasp(state: State, ctx: Context, within: arm.Width) -> Tensor:
    """Both fingers press on the cube, and its centre is less than `within` [m] from the grip (N,), 0 or 1."""
    return held(state, ctx) * (arm.grasp_distance(state, ctx, frame=GRIP, thing=CUBE) < within)


@once
def lift(state: State, ctx: Context) -> Tensor:
    """How far the cube is off the floor while it is held (N,): 1 from 2 cm on."""
    height = state.entities[CUBE].base_pos[:, 2] - EDGE / 2
    return (height / 0.02).clamp(0.0, 1.0) * held(state, ctx)


def place(state: State, ctx: Context, width: arm.Width) -> Tensor:
    """Closeness of the lifted cube to the commanded place (N,); see `manipulation.near`, `width` in [m]."""
    return lift(state, ctx) * arm.near(arm.object_distance(state, ctx, thing=CUBE), width)


def cube_lost(state: State, ctx: Context, radius: Annotated[float, {"above": 0.0}]) -> Tensor:
    """The cube is further than `radius` [m] from the arm's base (N,) bool, out of its reach."""
    return state.entities[CUBE].base_pos[:, :2].norm(dim=1) > radius


@dataclass
class ArmLift(Task):
    """An arm lifts a cube from the floor and holds it at a commanded place.

    Solved: the metric `within_5cm` is at least 0.8: so many of the cubes are less than 5 cm from the commanded place in
    the last half second of an episode. Only episodes that start with the gripper at home count.
    """

    robot: str = "arm"
    """Name of the robot; it needs a site `grip` and joints `l_finger` and `r_finger`."""
    episode_length_s: float = field(default=6.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Change of an arm joint's target for a unit action, from home [rad]."""
    finger_scale: float = field(default=0.03, metadata={"above": 0.0, "max": 1.0})
    """Change of a finger's target for a unit action, from half open [m]."""
    start_noise: float = field(default=0.1, metadata={"min": 0.0, "max": 1.0})
    """Largest distance of a joint from home at the start [rad]."""
    near_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the open gripper between the cube, which it may be around, and home."""
    held_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the cube in the gripper, above the floor."""
    commands: PoseCommands | None = field(
        default_factory=lambda: PoseCommands(
            x=(0.32, 0.5), y=(-0.2, 0.2), z=(0.1, 0.35), orientation=False, seconds=(6.0, 6.0)
        )
    )
    """Where the cube is to be."""
    noise: dict[str, float] = field(
        default_factory=lambda: {"joint_pos_rel": 0.005, "joint_vel_rel": 0.1, "object_pos": 0.002},
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "approach": reward(approach, 1.0, width=0.1),
            # A closed gripper stops 4 cm above the cube's centre, an open one comes all the way.
            "approach_exact": reward(approach, 2.0, width=0.03),
            "grasp": reward(grasp, 2.0, within=0.03),
            "lift": reward(lift, 4.0),
            "place": reward(place, 8.0, width=0.3),
            "place_exact": reward(place, 6.0, width=0.05),
            "action_rate": reward(terms.action_rate, -0.005),
            "joint_speed": reward(arm.joint_speed, -0.01),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"cube_lost": ends(cube_lost, radius=0.8)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 4096,
        "max_iterations": 600,
        # Many short batches, each of which may change the policy more than usual.
        "learner.num_steps": 8,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 4096,
        "learner.gamma": 0.98,
        "learner.activation": "relu",
        "learner.desired_kl": 0.04,
        "learner.max_kl": 0.2,
        "learner.init_std": 0.6,
        "learner.entropy_coef": 0.001,
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel", "joint_vel_rel", "last_action", "object_pos", "pose_commands"),
        "critic": (
            "joint_pos_rel",
            "joint_vel_rel",
            "last_action",
            "object_pos",
            "pose_commands",
            Observation(
                "grip_to_cube", lambda s, c: s.robot.frames[GRIP].pos - s.entities[CUBE].base_pos, "vector"
            ),
            Observation(
                "cube_to_goal", lambda s, c: s.entities[CUBE].base_pos - arm.goal_position(s, c), "vector"
            ),
            Observation("cube_vel", lambda s, c: s.entities[CUBE].base_lin_vel, "vector"),
            Observation(
                "finger_force", lambda s, c: s.robot.contacts[CUBE].force.norm(dim=-1) / 10.0, "same"
            ),
        ),
    }
    on_robot: ClassVar[dict[str, Any]] = {"near_starts": 0.0, "held_starts": 0.0}

    def validate(self) -> None:
        """Raise ValueError for shares of starts that are more than all."""
        super().validate()
        if self.near_starts + self.held_starts > 1.0:
            raise ValueError(
                f"near_starts={self.near_starts:g} and held_starts={self.held_starts:g} are more than 1 together"
            )

    def scene(self, robot: Robot) -> Scene:
        """The arm and a free cube on the floor; the pose of the gripper, and what each finger feels of the cube."""
        cube = Object("box", (EDGE, EDGE, EDGE), mass=0.08, position=(0.42, 0.0, EDGE / 2))
        return Scene(
            {ROBOT: robot, CUBE: cube},
            frames={ROBOT: (GRIP,)},
            contacts={ROBOT: {CUBE: Contact(tuple(FINGERS), CUBE)}},
        )

    def task_state(self, num_envs: int, robot: RobotConstants, random: Random) -> dict[str, Tensor]:
        """How the episode started: FAR, NEAR or HELD."""
        drawn = random.uniform(0.0, 1.0, num_envs)
        near, inside = drawn < self.held_starts + self.near_starts, drawn < self.held_starts
        return {"start": near.long() + inside.long()}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A): scale x action, from home [rad], of a finger from half open [m]."""
        robot, finger = ctx.robot, ctx.robot.per_actuator(FINGERS)
        scale = self.action_scale * (1 - finger) + self.finger_scale * finger
        start = torch.where(finger > 0, robot.upper[robot.actuated] / 2, robot.home[robot.actuated])
        return start + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """The gripper at home and the cube on the floor, or the gripper on its way to the cube, or holding it."""
        robot, start = ctx.robot, ctx.task_state["start"][:, None]
        finger, grips = robot.per_joint(FINGERS), grip_poses(robot.spec, robot.home.device)
        count = len(grips["yaw"])
        drawn = (random.uniform(0.0, 1.0, num_envs) * count).long().clamp(max=count - 1)
        home = around_home(self.start_noise, num_envs, ctx, random)
        # Anywhere on the way from the cube to home: every part of the way is learned from the one after it.
        back = random.uniform(0.0, 1.0, num_envs, 1)
        around = torch.where(finger > 0, robot.upper, torch.lerp(grips["low"][drawn], home, back))
        holding = torch.where(finger > 0, EDGE / 2, grips["high"][drawn])
        joints = torch.where(start == NEAR, around, torch.where(start == HELD, holding, home))
        floor = random.uniform((*LOW, EDGE / 2), (*HIGH, EDGE / 2), num_envs)
        shift = random.uniform((-0.01, -0.01), (0.01, 0.01), num_envs)
        position, below = grips["position"][drawn], floor.clone()
        below[:, :2] = position[:, :2] + shift
        cube = torch.where(start == HELD, position, torch.where(start == NEAR, below, floor))
        turn = random.uniform(-math.pi / 4, math.pi / 4, num_envs)
        half = torch.where(start[:, 0] == FAR, turn, grips["yaw"][drawn]) / 2
        zero = torch.zeros_like(half)
        quat = torch.stack((half.cos(), zero, zero, half.sin()), dim=1)
        still = torch.zeros(num_envs, 3, device=random.device)
        return {
            ROBOT: InitialState.at_rest(still, joint_pos=joints),
            CUBE: InitialState.at_rest(cube, quat),
        }

    def success(self, state: State, ctx: Context) -> Ratio:
        """How far along the job is in episodes that started at home (N,): up to 0.3 for a gripper near the cube, and
        from there to 1 as the cube, off the floor, nears its goal."""
        counted = (ctx.task_state["start"] == FAR).float()
        cube = state.entities[CUBE].base_pos
        near = (1 - (state.robot.frames[GRIP].pos - cube).norm(dim=1) / 0.5).clamp(min=0.0)
        off_floor = (cube[:, 2] > EDGE).float()
        close = (1 - (cube - commanded(state, ctx)).norm(dim=1) / 0.3).clamp(min=0.0)
        return Ratio((0.3 * near + 0.7 * off_floor * close) * counted, counted)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Shares of cubes held and lifted; and of the episodes that started at home, in their last half second, the
        cube's distance from its goal [m] and the share within 5 cm, which a lost cube is not."""
        last = ctx.episode_time > self.episode_length_s - LAST
        counted = (last & (ctx.task_state["start"] == FAR)).float()
        distance = arm.object_distance(state, ctx, thing=CUBE)
        # A cube that is lost counts as much as one that has not been at its goal all that time.
        lost = (ctx.task_state["start"] == FAR) * self.terminated(state, ctx) * (LAST / ctx.dt)
        return {
            "within_5cm": Ratio((distance < 0.05) * counted, counted + lost),
            "distance": Ratio(distance * counted, counted),
            "held": held(state, ctx),
            "lifted": (state.entities[CUBE].base_pos[:, 2] > EDGE).float(),
        }


@functools.lru_cache(maxsize=4)
def grip_poses(robot: Robot, device: torch.device) -> dict[str, Tensor]:
    """K = 256 places of the gripper, pointing down with the fingers apart along the `yaw` (K,) [rad]: joint positions
    `low` (K, J), around a cube on the floor, and `high` (K, J), at `position` (K, 3) [m] above it."""
    random = np.random.default_rng(0)
    position = random.uniform((*LOW, 0.06), (*HIGH, 0.3), (256, 3))
    yaw = random.uniform(-np.pi / 4, np.pi / 4, len(position))
    # Down: half a turn about y, then the yaw about z.
    zero = np.zeros_like(yaw)
    quat = np.stack([zero, -np.sin(yaw / 2), np.cos(yaw / 2), zero], axis=1)
    low = position.copy()
    low[:, 2] = EDGE / 2 + random.uniform(0.0, 0.03, len(yaw))
    found = {"high": inverse(robot, GRIP, position, quat), "low": inverse(robot, GRIP, low, quat)}
    found |= {"position": position, "yaw": yaw}
    return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in found.items()}
