"""Hopper: one leg, held in a plane by a boom, runs forward in hops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch

from robolearn.envs.state import InitialState, State, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, ends, reward
from robolearn.tasks.mdp.task import Task

X, Z, PITCH = 0, 1, 2
"""The boom's joints: along x and z [m], and pitch [rad], positive with the nose down."""
ACTION_SCALE = {"hip": 0.6, "knee": 0.8, "ankle": 0.6}
"""Change of a joint's target for a unit action [rad]."""


def forward(state: State, ctx: Context, speed: Annotated[float, {"above": 0.0, "max": 20.0}]) -> Tensor:
    """How close the hip's velocity along x is to `speed` [m/s], (N,): a parabola, 0 at rest and 1 at `speed`.

    Its slope falls to 0 at `speed` without a kink. With a reward proportional to the speed the hopper sprints until it
    falls.
    """
    return 1.0 - (state.robot.joint_vel[:, X] / speed - 1.0).square()


def lean(state: State, ctx: Context) -> Tensor:
    """One minus the cosine of the torso's pitch (N,): 0 upright, 1 lying."""
    return 1.0 - state.robot.joint_pos[:, PITCH].cos()


def pitch_rate(state: State, ctx: Context) -> Tensor:
    """Squared pitching rate of the torso (N,) [rad^2/s^2]."""
    return state.robot.joint_vel[:, PITCH].square()


def crouch(state: State, ctx: Context) -> Tensor:
    """Squared distance of the hip below its height in the home pose, smoothed with a softplus (N,) [m^2]."""
    return torch.nn.functional.softplus(-20 * state.robot.joint_pos[:, Z]).square() / 400


def fallen(
    state: State,
    ctx: Context,
    drop: Annotated[float, {"min": 0.0, "max": 0.7}],
    pitch: Annotated[float, {"above": 0.0, "max": 3.0}],
) -> Tensor:
    """The hip is more than `drop` [m] below its height in the home pose, or the torso pitches by more than `pitch`
    [rad] (N,) bool."""
    low = state.robot.joint_pos[:, Z] < -drop
    return low | (state.robot.joint_pos[:, PITCH].abs() > pitch)


@dataclass
class HopperRun(Task):
    """A one-legged hopper runs along x, up to 4 m/s, without falling.

    Solved: over whole episodes of the mean action, from standing, the metric `forward_speed` is at least 3 m/s and
    at least 90 % of the episodes run out of time instead of ending in a fall.
    """

    robot: str = "hopper"
    """Name of the robot."""
    episode_length_s: float = field(default=10.0, metadata={"above": 0.0, "max": 3600.0})
    """Episode length [s]; running out of it is a time-out, not a failure."""
    rewards: dict[str, Reward] = field(
        default_factory=lambda: {
            "forward": reward(forward, 2.0, speed=4.0),
            "alive": reward(terms.alive, 1.0),
            "lean": reward(lean, -2.0),
            "pitch_rate": reward(pitch_rate, -0.02),
            "crouch": reward(crouch, -10.0),
            "effort": reward(terms.effort, -0.02),
            "action_rate": reward(terms.action_rate, -0.02),
        }
    )
    """Function, weight per second and parameters of each reward."""
    terminations: dict[str, Termination] = field(
        default_factory=lambda: {"fallen": ends(fallen, drop=0.3, pitch=1.0)}
    )
    """Function and parameters of each condition that ends an episode without bootstrap."""

    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 256,
        "max_iterations": 200,
        # Short batches, many gradient steps on each, and a larger change of the policy per batch than usual.
        "learner.num_steps": 16,
        "learner.num_epochs": 4,
        "learner.minibatch_size": 512,
        "learner.max_learning_rate": 3e-3,
        "learner.desired_kl": 0.03,
        "learner.max_kl": 0.1,
        "learner.gamma": 0.98,
        "learner.init_std": 0.8,
        "learner.actor_hidden": (128, 64),
        "learner.critic_hidden": (128, 64),
        "learner.activation": "tanh",
    }
    learner_defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "grpo": {
            "num_envs": 256,
            "max_iterations": 200,
            # Long enough for two hops: without a critic, what comes after a rollout counts for nothing.
            "learner.rollout_steps": 48,
            "learner.credit": "to_go",
            "learner.gamma": 0.99,
            "learner.noise_correlation": 0.3,
            "learner.normalize": "batch",
        },
        "shac": {
            "num_envs": 128,
            "max_iterations": 1000,
            # Shorter than a hop: each touchdown makes gradients less informative.
            "learner.num_steps": 16,
            "learner.gamma": 0.98,
            "learner.learning_rate": 5e-3,
            "learner.decay_iterations": 800,
            "learner.critic_epochs": 6,
            "learner.init_std": 0.3,
            "learner.actor_hidden": (128, 64),
            "learner.critic_hidden": (128, 64),
        },
    }
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        # limited_joint_pos leaves x out, the one joint without limits: the policy must not depend on the distance run.
        "policy": ("limited_joint_pos", "joint_vel_rel", "last_action"),
        "critic": ("limited_joint_pos", "joint_vel_rel", "last_action", "foot_height", "foot_force"),
    }

    aliases: ClassVar[dict[str, str]] = {
        "speed": "rewards.forward.speed",
        "max_drop": "terminations.fallen.drop",
        "max_pitch": "terminations.fallen.pitch",
    }

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 3) [rad]: home + scale x action."""
        robot = ctx.robot
        return robot.home[robot.actuated] + robot.per_actuator(ACTION_SCALE) * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> InitialState:
        """Near the home pose, 2 to 6 cm above the ground, moving slowly."""
        still = torch.zeros(num_envs, 3, device=random.device)
        upright = torch.zeros(num_envs, 4, device=random.device)
        upright[:, 0] = 1.0
        low = (0.0, 0.02, -0.1, -0.1, -0.1, -0.1)
        high = (0.0, 0.06, 0.1, 0.1, 0.1, 0.1)
        return InitialState(
            base_pos=still,
            base_quat=upright,
            base_lin_vel=still,
            base_ang_vel=still,
            joint_pos=ctx.robot.home + random.uniform(low, high, num_envs),
            joint_vel=random.uniform(-0.2, 0.2, num_envs, len(low)),
        )

    def success(self, state: State, ctx: Context) -> Tensor:
        """Progress along x (N,): 1 at 4 m/s and above."""
        return (state.robot.joint_vel[:, X] / 4.0).clamp(max=1.0)

    def metrics(self, state: State, ctx: Context) -> dict[str, Tensor]:
        """Forward speed of the hip [m/s], its height relative to the home pose [m] and the torso's pitch [rad]."""
        return {
            "forward_speed": state.robot.joint_vel[:, X],
            "height": state.robot.joint_pos[:, Z],
            "pitch": state.robot.joint_pos[:, PITCH].abs(),
        }
