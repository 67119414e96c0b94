"""Ant: a four-legged robot runs along the world's x axis as fast as it can."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor, quat_rotate
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task

ACTION_SCALE = {"front_hip": 0.5, "front_knee": 0.6, "hind_hip": 0.5, "hind_knee": 0.6}
"""Change of a joint's target for a unit action [rad]."""


def world_velocity(state: State) -> Tensor:
    """Velocity of the torso in world axes (N, 3) [m/s]."""
    return quat_rotate(state.robot.base_quat, state.robot.base_lin_vel)


def facing(state: State) -> Tensor:
    """The torso's x axis in world axes (N, 3)."""
    ahead = torch.zeros_like(state.robot.base_pos)
    ahead[:, 0] = 1.0
    return quat_rotate(state.robot.base_quat, ahead)


def forward(state: State, ctx: Context) -> Tensor:
    """Velocity along the world's x (N,) [m/s]."""
    return world_velocity(state)[:, 0]


def sideways(state: State, ctx: Context) -> Tensor:
    """Squared velocity along the world's y (N,) [m^2/s^2]."""
    return world_velocity(state)[:, 1].square()


def turned_away(state: State, ctx: Context) -> Tensor:
    """One minus the cosine of the angle between the torso's x axis and the world's (N,)."""
    return 1.0 - terms.forward_axis(state.robot.base_quat)[:, 0]


def turning(state: State, ctx: Context) -> Tensor:
    """Squared turning rate (N,) [rad^2/s^2]."""
    return state.robot.base_ang_vel[:, 2].square()


@dataclass
class AntRun(Task):
    """A four-legged ant runs along the world's x as fast as it can.

    It starts facing roughly along x and measures no heading, only its turning rate.
    Solved: over whole episodes of the mean action, from standing, the metric `forward_speed` is at least 2.5 m/s and
    at least 90 % of the episodes run out of time instead of ending in a fall.
    """

    robot: str = "ant"
    """Name of the robot."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "forward": reward(forward, 1.0),
            "alive": reward(terms.alive, 0.5),
            "sideways": reward(sideways, -0.5),
            "turned_away": reward(turned_away, -1.0),
            "turning": reward(turning, -0.05),
            "tilt": reward(terms.tilt, -0.5),
            "effort": reward(terms.effort, -0.02),
            "action_rate": reward(terms.action_rate, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {
            "fallen": ends(terms.fallen, height=0.14, upright=0.5),
            # Of the legs only the tips collide.
            "body_below_ground": ends(terms.body_below_ground),
        }
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 512,
        "max_iterations": 250,
        "learner.num_steps": 16,
        "learner.minibatch_size": 2048,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.02,
        "learner.max_kl": 0.1,
        "learner.gamma": 0.98,
        "learner.actor_hidden": (128, 128),
        "learner.critic_hidden": (128, 128),
    }
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {
        # Not tuned: a starting point for a GPU.
        "shac": {
            "num_envs": 128,
            "max_iterations": 2000,
            "learner.learning_rate": 2e-3,
            "learner.decay_iterations": 2000,
            "learner.critic_epochs": 6,
            "learner.init_std": 0.3,
            "learner.actor_hidden": (128, 64),
            "learner.critic_hidden": (128, 64),
        }
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel", "last_action"),
        "critic": (
            "base_lin_vel",
            "base_ang_vel",
            "projected_gravity",
            "base_height",
            # Privileged: a gyro does not measure the heading.
            Observation("facing", lambda s, c: facing(s), "vector"),
            "joint_pos_rel",
            "joint_vel_rel",
            "joint_torque",
            "last_action",
            "foot_height",
            "foot_force",
        ),
    }
    aliases: ClassVar[dict[str, str]] = {
        "min_height": "terminations.fallen.height",
        "min_upright": "terminations.fallen.upright",
    }
    symmetric: ClassVar[bool] = True

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 8) [rad]: home + scale x action."""
        robot = ctx.robot
        return robot.home[robot.actuated] + robot.per_actuator(ACTION_SCALE) * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Near the home pose, 2 to 6 cm above the ground, facing roughly along x, moving slowly."""
        robot = ctx.robot
        joints = len(robot.spec.joints)
        zeros = torch.zeros(num_envs, device=random.device)
        yaw = random.uniform(-0.1, 0.1, num_envs) / 2
        height = robot.spec.home_height + random.uniform(0.02, 0.06, num_envs)
        return InitialState(
            base_pos=torch.stack((zeros, zeros, height), dim=-1),
            base_quat=torch.stack((yaw.cos(), zeros, zeros, yaw.sin()), dim=-1),
            base_lin_vel=random.uniform(-0.1, 0.1, num_envs, 3),
            base_ang_vel=random.uniform(-0.1, 0.1, num_envs, 3),
            joint_pos=robot.home + random.uniform(-0.1, 0.1, num_envs, joints),
            joint_vel=random.uniform(-0.2, 0.2, num_envs, joints),
        )

    def success(self, state: State, ctx: Context) -> Tensor:
        """Progress along the world's x (N,): 1 at 3 m/s and above, below 0 backward. It is computed anew, so that an
        error in the reward `forward` is not repeated."""
        w, x, y, z = state.robot.base_quat.unbind(dim=1)
        # The first row of the rotation matrix: the world's x axis in the frame of the torso.
        axis = torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)), dim=1)
        return ((axis * state.robot.base_lin_vel).sum(dim=1) / 3.0).clamp(min=-1.0, max=1.0)

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Speed along the world's x [m/s], and sine of the angle between the torso's x axis and the world's."""
        return {
            "forward_speed": forward(state, ctx),
            "turned": terms.forward_axis(state.robot.base_quat)[:, 1].abs(),
        }
