"""Contract consistency: compares every number of a bundle's manifest with the simulated robot.

Independent of the code that wrote the manifest: names and limits come from the robot's files, gains and torque limits
from the torques of the simulated motors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from robolearn.config.run_config import Config
from robolearn.core.contract import SMALL
from robolearn.core.env import Env
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.state import InitialState
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.training.build import make_env


def require_consistent(bundle: Bundle, trained: Config, ranges: Mapping[str, Sequence[float]]) -> None:
    """Compare a bundle's contract with the simulated robot.

    Args:
        bundle: loaded from the disk.
        trained: configuration of the training run.
        ranges: (low, high) of the commands in training, by name.

    Raises:
        Refused: NOT_THE_SAME; the first difference is named.
    """
    contract = bundle.contract
    task: Any = replace(trained.task, randomize={})
    env = make_env(replace(trained, task=task), num_envs=len(PROBES))
    try:
        if (stated := bundle.manifest["command_ranges"]) != {
            name: list(ends) for name, ends in ranges.items()
        }:
            raise Refused(
                f"the manifest differs from the simulated robot: command_ranges: {stated} and {dict(ranges)}",
                NOT_THE_SAME,
            )
        _require_same_values(contract, env, bundle.manifest["targets"]["affine"])
        _require_torques(contract, env)
    finally:
        env.close()


def _require_same_values(contract: dict[str, Any], env: Env, affine: bool) -> None:
    """Compare the values that can be read: names, order, limits, control period, delays, columns."""
    robot, task = env.robot, env.task
    lower, upper = joint_limits(robot)
    pairs: list[tuple[str, Any, Any]] = [("control_dt", contract["control_dt"], env.ctx.dt)]
    pairs += [(f"{name} as trained", list(contract[name]), list(getattr(task, name))) for name in DELAYS]
    pairs.append(("joints", [joint["name"] for joint in contract["joints"]], list(robot.joints)))
    for joint, home, low, high in zip(contract["joints"], robot.home, lower, upper, strict=True):
        pairs += [
            (f"{key} of joint {joint['name']}", joint[key], None if math.isinf(value) else value)
            for key, value in (("home", home), ("lower", low), ("upper", high))
        ]
    pairs.append(("actuators", [a["joint"] for a in contract["actions"]], [a.joint for a in robot.actuators]))
    pairs += [
        (f"{key} of actuator {a['joint']}", a[key], getattr(actuator, key))
        for a, actuator in zip(contract["actions"], robot.actuators, strict=True)
        for key in ("kind", "kp", "kd", "effort")
    ]
    pairs.append(("command", contract["command"], list(task.commands.names) if task.commands else []))
    pairs.append(
        (
            "observations",
            [(item["name"], item["width"]) for item in contract["observations"]],
            [(item.name, width) for item, width in env.columns["policy"]],
        )
    )
    for probe in (0.0, 1.0, -2.5) if affine else (0.0, SMALL):
        action = torch.full((1, env.num_actions), probe, device=env.device)
        first, at_rest = env.ctx.rows(slice(0, 1)), task.task_state(1, env.ctx.robot, env.random.fork())
        ctx = replace(first, task_state=at_rest, command=torch.zeros_like(first.command))
        sent = task.joint_targets(action, ctx)[0].tolist()
        pairs += [
            (f"joint target of {a['joint']} at action {probe:g}", a["offset"] + a["scale"] * probe, value)
            for a, value in zip(contract["actions"], sent, strict=True)
        ]
    for name, stated, actual in pairs:
        if not _same(stated, actual):
            raise Refused(
                f"the manifest differs from the simulated robot: {name}: the manifest says {stated}, the robot "
                f"{actual}",
                NOT_THE_SAME,
            )


def _same(stated: Any, actual: Any) -> bool:
    if isinstance(stated, float) and isinstance(actual, float):
        return math.isclose(stated, actual, rel_tol=1e-6, abs_tol=1e-7)
    return bool(stated == actual)


DELAYS = ("action_delay", "observation_delay")

PROBES = ("kp", "kd", "effort")
"""What each of the three simulated robots tests: kp by a joint target a quarter of the effort away from home, kd by a
velocity, effort by a joint target ten times too far."""


def _require_torques(contract: dict[str, Any], env: Env) -> None:
    """Compare the torque of every simulated motor with the one computed from the contract's gains.

    clip(kp (target - position) - kd velocity, -effort, effort) for position actuators; clip(target) for the others.
    Motors with a model in robot.yaml are left out.

    Raises:
        Refused: NOT_THE_SAME; gain and actuator are named.
    """
    robot, home = env.robot, torch.tensor(env.robot.home)
    count, joints = len(PROBES), len(robot.joints)
    still = torch.zeros(count, 3)
    position = still.clone()
    position[:, 2] = robot.home_height + 1.0  # nothing touches the ground
    velocity = torch.zeros(count, joints)
    velocity[1] = 0.1
    start = InitialState(
        position,
        torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1),
        still,
        still.clone(),
        home.repeat(count, 1),
        velocity,
    )

    def rows(values: torch.Tensor) -> torch.Tensor:  # the same for all agents of a world
        return values.repeat_interleave(env.agents, dim=0).to(env.device)

    start = InitialState(**{name: rows(value) for name, value in vars(start).items()})
    env.backend.reset(torch.ones(env.num_envs, dtype=torch.bool, device=env.device), start)
    driven = [robot.joints.index(actuator.joint) for actuator in robot.actuators]
    targets, expected = torch.zeros(count, len(driven)), torch.zeros(count, len(driven))
    stated = {action["joint"]: action for action in contract["actions"]}
    for i, (actuator, joint) in enumerate(zip(robot.actuators, driven, strict=True)):
        a = stated[actuator.joint]
        pull = a["effort"] / (a["kp"] or 1.0) if a["kind"] == "position" else a["effort"]
        for row, share in enumerate((0.25, 0.0, 10.0)):
            ahead = share * pull
            targets[row, i] = (float(home[joint]) if a["kind"] == "position" else 0.0) + ahead
            torque = (
                a["kp"] * ahead - a["kd"] * float(velocity[row, joint]) if a["kind"] == "position" else ahead
            )
            expected[row, i] = max(-a["effort"], min(a["effort"], torque))
    env.backend.step(rows(targets), 1)
    env.check()
    got = env.backend.state.robot.joint_torque[:: env.agents, driven].cpu()
    # With derived_lag 1, torques are those of the initial state; otherwise the robot has moved for one substep.
    slack = 1e-3 if env.backend.capabilities.derived_lag == 1 else 0.05
    effort = torch.tensor([stated[actuator.joint]["effort"] for actuator in robot.actuators])
    allowed = slack * expected.abs() + 1e-4 * effort
    # A motor with a model of its own (delay, torque-speed curve, ...) differs on purpose from what its drive is told.
    modelled = torch.tensor([a.motor is not None and not a.motor.is_pd for a in robot.actuators])
    allowed = torch.where(modelled, math.inf, allowed)
    wrong = ((got - expected).abs() > allowed).nonzero()
    if len(wrong):
        row, i = wrong[0].tolist()
        raise Refused(
            f"the manifest differs from the simulated robot: with its {PROBES[row]} the torque of "
            f"{robot.actuators[i].joint} would be {expected[row, i]:.5g}, the simulated torque is {got[row, i]:.5g}",
            NOT_THE_SAME,
        )
