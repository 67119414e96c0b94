"""An arm moves its gripper to commanded poses: position and orientation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import InitialState, State, Tensor, quat_rotate
from robolearn.tasks.mdp import manipulation as arm
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import PoseCommands
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, reward
from robolearn.tasks.mdp.task import Ratio, Task

GRIP = "grip"
"""The site between the fingertips: z points out of the gripper, y along the way of the fingers."""
FINGERS = {"l_finger": 1.0, "r_finger": 1.0}
"""The joints of the gripper."""
SETTLED = 1.5
"""The metrics count the pose from this long after a command [s]."""


@dataclass
class ArmReach(Task):
    """An arm moves its gripper to commanded poses in front of it, pointing down, turned either way.

    Solved: the metric `within_2cm` is above 0.5, so the median distance from the command, 1.5 s after it and later, is
    below 2 cm.
    """

    robot: str = "arm"
    """Name of the robot; it needs a site `grip` and joints `l_finger` and `r_finger`."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    action_scale: float = field(default=0.5, metadata={"above": 0.0, "max": 10.0})
    """Change of an arm joint's target for a unit action [rad]."""
    finger_scale: float = field(default=0.03, metadata={"above": 0.0, "max": 1.0})
    """Change of a finger's target for a unit action [m]."""
    start_noise: float = field(default=0.3, metadata={"min": 0.0, "max": 1.0})
    """Largest distance of a joint from home at the start [rad]."""
    commands: PoseCommands | None = field(
        default_factory=lambda: PoseCommands(
            x=(0.28, 0.55),
            y=(-0.3, 0.3),
            z=(0.05, 0.45),
            pitch=(math.pi, math.pi),
            yaw=(-math.pi / 2, math.pi / 2),
            seconds=(3.0, 5.0),
        )
    )
    """Where the gripper is to be: half a turn about y points it down."""
    noise: dict[str, float] = field(
        default_factory=lambda: {"joint_pos_rel": 0.005, "joint_vel_rel": 0.1},
    )
    """Half-width of the noise on each item of the `policy` observations."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "near": reward(arm.reach, 1.0, frame=GRIP, width=0.2),
            "exact": reward(arm.reach, 2.0, frame=GRIP, width=0.03),
            "align": reward(arm.align, 1.0, frame=GRIP, width=0.5),
            "action_rate": reward(terms.action_rate, -0.01),
            "joint_speed": reward(arm.joint_speed, -0.002),
        }
    )
    """Function, weight per second and parameters of each reward."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 4096,
        "max_iterations": 150,
        # Many short batches, each of which may change the policy more than usual.
        "learner.num_steps": 8,
        "learner.num_epochs": 3,
        "learner.minibatch_size": 4096,
        "learner.gamma": 0.97,
        "learner.activation": "relu",
        "learner.desired_kl": 0.03,
        "learner.max_kl": 0.15,
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("joint_pos_rel", "joint_vel_rel", "last_action", "pose_commands"),
        "critic": ("joint_pos_rel", "joint_vel_rel", "last_action", "pose_commands"),
    }

    def scene(self, robot: Robot) -> Scene:
        """The arm on a floor, with the pose of its gripper."""
        return Scene({ROBOT: robot}, frames={ROBOT: (GRIP,)}, floor=True)

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, A): home + scale x action [rad, m]."""
        finger = ctx.robot.per_actuator(FINGERS)
        scale = self.action_scale * (1 - finger) + self.finger_scale * finger
        return ctx.robot.home[ctx.robot.actuated] + scale * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Around the home pose, at rest."""
        return InitialState.at_rest(
            torch.zeros(num_envs, 3, device=random.device),
            joint_pos=around_home(self.start_noise, num_envs, ctx, random),
        )

    def success(self, state: State, ctx: Context) -> Ratio:
        """Closeness of the gripper to the command once it has had time to settle (N,): 1 there, 0 from half a metre."""
        settled = (ctx.command_time > SETTLED).float()
        distance = (state.robot.frames[GRIP].pos - commanded(state, ctx)).norm(dim=1)
        return Ratio((1 - distance / 0.5).clamp(min=0.0) * settled, settled)

    def metrics(self, state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
        """Distance [m] and angle [rad] from the command, and the share within 2 cm, where it has had time to settle."""
        settled = (ctx.command_time > SETTLED).float()
        distance = arm.frame_distance(state, ctx, frame=GRIP)
        angle = arm.frame_angle(state, ctx, frame=GRIP)
        return {
            "distance": Ratio(distance * settled, settled),
            "angle": Ratio(angle * settled, settled),
            "within_2cm": Ratio((distance < 0.02) * settled, settled),
        }


def commanded(state: State, ctx: Context) -> Tensor:
    """The commanded position in the world (N, 3) [m]. Success has its own, so that it shares no error with rewards."""
    return state.robot.base_pos + quat_rotate(state.robot.base_quat, ctx.command[:, :3])


def around_home(most: float, num_envs: int, ctx: Context, random: Random) -> Tensor:
    """Joint positions (N, J) up to `most` [rad] from home, within the joint limits; the fingers are at home."""
    robot = ctx.robot
    noise = random.uniform(-most, most, num_envs, len(robot.home)) * (1 - robot.per_joint(FINGERS))
    return torch.minimum(torch.maximum(robot.home + noise, robot.lower), robot.upper)
