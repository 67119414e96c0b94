"""An arm lifts a cube from the floor to commanded places."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Contact, Object, Scene
from robolearn.envs.state import Initial, InitialState, State, Tensor
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import MEASURABLE, Observation
from robolearn.tasks.mdp.task import Ratio, Task, Term

GRIP, CUBE = "grip", "cube"
FINGERS = ("l_finger", "r_finger")
EDGE = 0.04
"""Edge of the cube [m]."""


def goal_distance(state: State, ctx: Context) -> Tensor:
    return (state.entities[CUBE].base_pos - arm.goal_position(state, ctx)).norm(dim=1)


def cube_distance(state: State, ctx: Context) -> Tensor:
    return (state.robot.frames[GRIP].pos - state.entities[CUBE].base_pos).norm(dim=1)


def lifted(state: State, ctx: Context) -> Tensor:
    """1 with the cube 2 cm off the floor or higher (N,)."""
    return ((state.entities[CUBE].base_pos[:, 2] - EDGE / 2) / 0.02).clamp(0.0, 1.0)


def squeezed(state: State) -> Tensor:
    return state.robot.contacts["cube"].touching(0.5).all(dim=1).float()


def reach(state: State, ctx: Context) -> Tensor:
    return arm.near(cube_distance(state, ctx), 0.1)


def grasp(state: State, ctx: Context) -> Tensor:
    return squeezed(state) * (cube_distance(state, ctx) < 0.03)


def lift(state: State, ctx: Context) -> Tensor:
    return lifted(state, ctx) * squeezed(state)


def goal(state: State, ctx: Context) -> Tensor:
    return lift(state, ctx) * arm.near(goal_distance(state, ctx), 0.3)


def goal_exact(state: State, ctx: Context) -> Tensor:
    return lift(state, ctx) * arm.near(goal_distance(state, ctx), 0.05)


def cube_lost(state: State, ctx: Context) -> Tensor:
    return state.entities[CUBE].base_pos[:, :2].norm(dim=1) > 0.8


@dataclass
class ArmLift(Task):
    """An arm lifts a cube from the floor to commanded places."""

    robot: str = "arm"
    episode_length_s: float = field(default=6.0, metadata={"above": 0.0, "max": 3600.0})
    near_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the open gripper around the cube."""
    held_starts: float = field(default=0.25, metadata={"min": 0.0, "max": 1.0})
    """Share of episodes that start with the cube in the gripper, above the floor."""
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    start_noise: float = field(default=0.1, metadata={"min": 0.0, "max": 1.0})
    commands: PoseCommands | None = field(
        default_factory=lambda: PoseCommands(
            x=(0.32, 0.5), y=(-0.2, 0.2), z=(0.1, 0.35), orientation=False, seconds=(6.0, 6.0)
        )
    )
    noise: dict[str, float] = field(
        default_factory=lambda: {"joint_pos_rel": 0.005, "joint_vel_rel": 0.1, "object_pos": 0.002},
        metadata={"keys": MEASURABLE},
    )
    rewards: dict[str, float] = field(
        default_factory=lambda: {
            "reach": 1.0,
            "grasp": 2.0,
            "lift": 4.0,
            "goal": 8.0,
            "goal_exact": 6.0,
            "action_rate": -0.005,
            "joint_speed": -0.002,
        }
    )

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 4096,
        "max_iterations": 1000,
        "learner.num_steps": 8,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 4096,
        "learner.gamma": 0.97,
        "learner.activation": "relu",
        "learner.desired_kl": 0.02,
        "learner.max_kl": 0.1,
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
                "finger_force", lambda s, c: s.robot.contacts["cube"].force.norm(dim=-1) / 10, "same"
            ),
        ),
    }

    def scene(self, robot: Robot) -> Scene:
        cube = Object("box", (EDGE, EDGE, EDGE), mass=0.08, position=(0.42, 0.0, EDGE / 2))
        return Scene(
            {ROBOT: robot, CUBE: cube},
            frames={ROBOT: (GRIP,)},
            contacts={ROBOT: {"cube": Contact(FINGERS, CUBE)}},
        )

    def reward_terms(self) -> dict[str, Term]:
        return {
            "reach": reach,
            "grasp": grasp,
            "lift": lift,
            "goal": goal,
            "goal_exact": goal_exact,
            "action_rate": terms.action_rate,
            "joint_speed": arm.joint_speed,
        }

    def terminations(self) -> dict[str, Term]:
        return {"cube_lost": cube_lost}

    def task_state(self, num_envs: int, random: Random) -> dict[str, Tensor]:
        """How the episode started: 0 far from the cube, 1 near it, 2 with the cube in the gripper."""
        kind = random.uniform(0.0, 1.0, num_envs)
        held, near = kind < self.held_starts, kind < self.held_starts + self.near_starts
        return {"start": held.long() + near.long()}

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        robot = ctx.robot
        finger = (robot.upper - robot.lower < 0.2)[robot.actuated]
        unit = torch.where(finger, 0.1, 1.0)
        return torch.where(finger, 0.0, robot.home[robot.actuated]) + self.action_scale * unit * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        robot, start = ctx.robot, ctx.task_state["start"][:, None]
        table = grips(robot.spec, robot.home.device)
        chosen = (
            (random.uniform(0.0, 1.0, num_envs) * len(table["yaw"])).long().clamp(max=len(table["yaw"]) - 1)
        )
        noise = random.uniform(-self.start_noise, self.start_noise, num_envs, len(robot.home))
        far = torch.minimum(torch.maximum(robot.home + noise, robot.lower), robot.upper)
        finger = robot.upper - robot.lower < 0.2
        near = torch.where(finger, robot.upper, table["low"][chosen])
        held = torch.where(finger, EDGE / 2, table["high"][chosen])
        joints = torch.where(start == 2, held, torch.where(start == 1, near, far))
        place = random.uniform((0.32, -0.2, EDGE / 2), (0.5, 0.2, EDGE / 2), num_envs)
        offset = random.uniform((-0.01, -0.01, 0.0), (0.01, 0.01, 0.0), num_envs)
        below = table["position"][chosen] * place.new_tensor((1.0, 1.0, 0.0)) + place.new_tensor(
            (0.0, 0.0, EDGE / 2)
        )
        place = torch.where(
            start == 2, table["position"][chosen], torch.where(start == 1, below + offset, place)
        )
        yaw = random.uniform(-math.pi / 4, math.pi / 4, num_envs)
        half = torch.where(start[:, 0] > 0, table["yaw"][chosen], yaw) / 2
        zero = torch.zeros_like(half)
        quat = torch.stack((half.cos(), zero, zero, half.sin()), dim=1)
        still = torch.zeros(num_envs, 3, device=random.device)
        return {
            ROBOT: InitialState.at_rest(still, joint_pos=joints),
            CUBE: InitialState.at_rest(place, quat),
        }

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        last = (ctx.episode_time > self.episode_length_s - 0.5) & (ctx.task_state["start"] == 0)
        last = last.float()
        d = goal_distance(state, ctx)
        return {
            "grasped": squeezed(state),
            "lifted": (state.entities[CUBE].base_pos[:, 2] > EDGE).float(),
            "final_distance": Ratio(d * last, last),
            "within_5cm": Ratio((d < 0.05) * last, last),
        }


@functools.lru_cache(maxsize=4)
def grips(robot: Robot, device: torch.device) -> dict[str, Tensor]:
    """Joint positions with the gripper pointing down at K places: `low` (K, J) around a cube on the floor, `high` at
    `position` (K, 3) [m], both with the fingers along the `yaw` (K,) [rad]."""
    from robolearn.envs.kinematics import inverse

    random = np.random.default_rng(0)
    position = random.uniform((0.32, -0.2, 0.06), (0.5, 0.2, 0.3), (256, 3))
    yaw = random.uniform(-np.pi / 4, np.pi / 4, 256)
    # Down: half a turn about y, then the yaw about z.
    zero = np.zeros_like(yaw)
    quat = np.stack([zero, -np.sin(yaw / 2), np.cos(yaw / 2), zero], axis=1)
    low = position.copy()
    low[:, 2] = EDGE / 2 + random.uniform(0.0, 0.03, len(yaw))
    found = {"high": inverse(robot, GRIP, position, quat), "low": inverse(robot, GRIP, low, quat)}
    found |= {"position": position, "yaw": yaw}
    return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in found.items()}
