"""How well a robot walks: slip, swing, steps, drift, effort. Measured beside the rewards, never rewarded.

A task that walks takes `start` into its task state, `follow` into `advance`, and `measure` into `metrics`. All of
it is per environment (N) and foot (F), or a `Ratio` of two sums, so that the mean over many episodes weighs
every step of every robot alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.envs.state import State, Tensor, quat_rotate
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.task import Ratio

CONTACT_FORCE = 1.0
"""Vertical force above which a foot counts as on the ground [N]."""
AIR_TIME = 0.06
"""How long a foot must have been in the air for its touch-down to be a step [s]: chatter is none."""
SETTLE_TIME = 1.0
"""Tracking counts this long after a command was given, and drift this long after the command to stand [s]."""
DRIFT_TIME = 10.0
"""Standing drift is reported as the distance in this time [s]."""
SATURATED = 0.98
"""Share of its largest torque from which a motor counts as saturated."""


def start(num_envs: int, feet: int, device: torch.device) -> dict[str, Tensor]:
    """Task state at the start of an episode: all feet down, at rest."""
    zeros = torch.zeros(num_envs, device=device)
    return {
        "contact": torch.ones(num_envs, feet, dtype=torch.bool, device=device),
        "last_contact": torch.ones(num_envs, feet, dtype=torch.bool, device=device),
        "foot_speed": torch.zeros(num_envs, feet, device=device),
        "foot_place": torch.zeros(num_envs, feet, 2, device=device),
        "placed": torch.zeros(num_envs, dtype=torch.bool, device=device),
        "held": torch.zeros(num_envs, feet, dtype=torch.bool, device=device),
        "slid": torch.zeros(num_envs, feet, device=device),
        "last_foot_speed": torch.zeros(num_envs, feet, device=device),
        "air_time": torch.zeros(num_envs, feet, device=device),
        "swing_peak": torch.zeros(num_envs, feet, device=device),
        "rest_time": zeros,
        "anchor": torch.zeros(num_envs, 2, device=device),
        "drift": zeros.clone(),
        "last_drift": zeros.clone(),
    }


def follow(state: State, ctx: Context, resting: Tensor, above: Tensor | None = None) -> dict[str, Tensor]:
    """The same after one more control step; `resting` (N,) bool: the command is to stand; `above` (N, F) [m]: height of
    the feet, where it is not that above the ground below them.

    In the step of a touch-down `air_time` [s] and `swing_peak` [m] are still those of the swing it ends. A foot is
    `held` (N, F) bool where it was on the ground before the step and is after it, and `slid` (N, F) [m] is how far it
    moved along the ground meanwhile. Its speed at the end would not do: a simulator may show the one from before the
    ground acted, by which a landing foot slips.
    """
    robot, past = state.robot, ctx.task_state
    contact = robot.foot_force[:, :, 2] > CONTACT_FORCE
    lifted = ~past["contact"]  # a swing begins with the step that leaves the ground
    position = robot.base_pos[:, :2]
    above = ctx.above_ground(robot.foot_pos) if above is None else above
    place = robot.foot_pos[:, :, :2]
    rest_time = (past["rest_time"] + ctx.dt) * resting
    anchor = torch.where((rest_time <= SETTLE_TIME)[:, None], position, past["anchor"])
    return {
        "contact": contact,
        "last_contact": past["contact"],
        "foot_speed": robot.foot_lin_vel.square().sum(dim=-1),
        "foot_place": place.clone(),
        "placed": torch.ones_like(past["placed"]),
        "held": contact & past["contact"] & past["placed"][:, None],
        "slid": (place - past["foot_place"]).norm(dim=-1),
        "last_foot_speed": past["foot_speed"],
        "air_time": past["air_time"] * lifted + ctx.dt * ~contact,
        "swing_peak": torch.maximum(past["swing_peak"] * lifted, above),
        "rest_time": rest_time,
        "anchor": anchor,
        "drift": (position - anchor).norm(dim=1),
        "last_drift": past["drift"],
    }


def measure(state: State, ctx: Context) -> Mapping[str, Tensor | Ratio]:
    """Metrics of a walking robot; docs/training.md defines them."""
    robot, past = state.robot, ctx.task_state
    settled = (ctx.command_time > SETTLE_TIME).float()
    moving = (ctx.command.abs().amax(dim=1) > 0.01) & (ctx.command_time > SETTLE_TIME)
    stepped = (past["contact"] & ~past["last_contact"] & (past["air_time"] >= AIR_TIME)).float()
    held = (past["held"] & (past["rest_time"] == 0)[:, None]).float()
    torque = robot.joint_torque[:, ctx.robot.actuated]
    saturated = (torque.abs() >= SATURATED * ctx.robot.effort).float().mean(dim=1)
    power = (robot.joint_torque * robot.joint_vel).clamp(min=0).sum(dim=1)
    velocity, yaw_rate = level_velocities(state)
    asked = ctx.command[:, :2].norm(dim=1)
    # Only motion along the command is progress; sway and side steps are not.
    progress = (velocity * ctx.command[:, :2]).sum(dim=1) / asked.clamp(min=1e-6)
    going = moving & (asked > 0.1)
    resting = past["rest_time"] > SETTLE_TIME
    feet = held.shape[1]
    return {
        "linear_velocity_error": Ratio(settled * (velocity - ctx.command[:, :2]).norm(dim=1), settled),
        "yaw_rate_error": Ratio(settled * (yaw_rate - ctx.command[:, 2]).abs(), settled),
        "foot_slip": Ratio((held * past["slid"]).sum(dim=1), ctx.dt * held.sum(dim=1)),
        "swing_height": Ratio((stepped * past["swing_peak"]).sum(dim=1), stepped.sum(dim=1)),
        "step_frequency": Ratio(stepped.sum(dim=1) * moving, feet * ctx.dt * moving),
        "standing_drift": Ratio(
            DRIFT_TIME * (past["drift"] - past["last_drift"]) * resting, ctx.dt * resting
        ),
        "torque_saturation": saturated,
        "action_rate": (ctx.action - ctx.previous_action).abs().mean(dim=1),
        "energy_per_metre": Ratio(power * going, progress.clamp(min=0) * going),
    }


def level_velocities(state: State) -> tuple[Tensor, Tensor]:
    """Velocity of the base as seen in its frame turned upright, so that a lean does not mix in vertical speed.

    Returns:
        (N, 2) [m/s] forward and to the left, and (N,) [rad/s] turning rate about the vertical.
    """
    robot = state.robot
    both = torch.stack((robot.base_lin_vel, robot.base_ang_vel), dim=1)
    linear, angular = quat_rotate(robot.base_quat[:, None].expand(-1, 2, -1), both).unbind(dim=1)
    facing = terms.heading(robot.base_quat)
    forward = (facing * linear[:, :2]).sum(dim=1)
    left = facing[:, 0] * linear[:, 1] - facing[:, 1] * linear[:, 0]
    return torch.stack((forward, left), dim=1), angular[:, 2]
