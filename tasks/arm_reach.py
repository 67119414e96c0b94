"""An arm moves its gripper to commanded poses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import MEASURABLE, Observation
from robolearn.tasks.mdp.task import Ratio, Task, Term

GRIP = "grip"
"""The site between the fingers: z points out of the gripper, y along the way of the fingers."""


def down_to(yaw: float) -> PoseCommands:
    """Poses in front of the robot in which the gripper points down, turned by up to `yaw` [rad] either way."""
    return PoseCommands(
        x=(0.28, 0.55),
        y=(-0.3, 0.3),
        z=(0.05, 0.45),
        pitch=(math.pi, math.pi),
        yaw=(-yaw, yaw),
        seconds=(3.0, 5.0),
    )


def distance(state: State, ctx: Context) -> Tensor:
    return arm.frame_distance(state, ctx, GRIP)


def near(state: State, ctx: Context) -> Tensor:
    return arm.near(distance(state, ctx), 0.2)


def exact(state: State, ctx: Context) -> Tensor:
    return arm.near(distance(state, ctx), 0.03)


def turned(state: State, ctx: Context) -> Tensor:
    return arm.near(arm.frame_angle(state, ctx, GRIP), 0.5)


@dataclass
class ArmReach(Task):
    """An arm moves its gripper to commanded poses: position and orientation."""

    robot: str = "arm"
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Joint target for a unit action, from home [rad]; of a finger a tenth of it [m]."""
    start_noise: float = field(default=0.3, metadata={"min": 0.0, "max": 1.0})
    commands: PoseCommands | None = field(default_factory=lambda: down_to(math.pi / 2))
    noise: dict[str, float] = field(
        default_factory=lambda: {"joint_pos_rel": 0.005, "joint_vel_rel": 0.1}, metadata={"keys": MEASURABLE}
    )
    rewards: dict[str, float] = field(
        default_factory=lambda: {
            "near": 1.0,
            "exact": 2.0,
            "turned": 1.0,
            "action_rate": -0.01,
            "joint_speed": -0.002,
        }
    )

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 2048,
        "max_iterations": 300,
        "learner.num_steps": 16,
        "learner.num_epochs": 4,
        "learner.minibatch_size": 8192,
        "learner.gamma": 0.97,
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel", "joint_vel_rel", "last_action", "pose_commands"),
        "critic": ("joint_pos_rel", "joint_vel_rel", "last_action", "pose_commands"),
    }

    def scene(self, robot: Robot) -> Scene:
        return Scene({ROBOT: robot}, frames={ROBOT: (GRIP,)}, floor=True)

    def reward_terms(self) -> dict[str, Term]:
        return {
            "near": near,
            "exact": exact,
            "turned": turned,
            "action_rate": terms.action_rate,
            "joint_speed": arm.joint_speed,
        }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        robot = ctx.robot
        unit = torch.where(robot.upper - robot.lower < 0.2, 0.1, 1.0)[robot.actuated]
        return robot.home[robot.actuated] + self.action_scale * unit * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        robot = ctx.robot
        noise = random.uniform(-self.start_noise, self.start_noise, num_envs, len(robot.home))
        joints = torch.minimum(torch.maximum(robot.home + noise, robot.lower), robot.upper)
        return InitialState.at_rest(torch.zeros(num_envs, 3, device=random.device), joint_pos=joints)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        settled = (ctx.command_time > 1.5).float()
        d, a = distance(state, ctx), arm.frame_angle(state, ctx, GRIP)
        return {
            "settled_distance": Ratio(d * settled, settled),
            "settled_angle": Ratio(a * settled, settled),
            "within_2cm": Ratio((d < 0.02) * settled, settled),
        }
