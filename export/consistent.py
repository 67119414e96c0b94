"""Contract consistency: the manifest on the disk against the robot that the simulator built, number by number.

What the writer of the manifest computed is not asked again: names and limits come from the robot's files, gains and
torque limits from the torques that the simulated motors really give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.state import InitialState
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.training.build import make_env


def require_consistent(
    bundle: Bundle, trained: Config, ranges: Mapping[str, Sequence[float]], phases: np.ndarray
) -> None:
    """Hold a bundle's contract against the simulated robot.

    Args:
        bundle: as it lies on the disk.
        trained: the run's own configuration.
        ranges: commands it was trained for, by name.
        phases: phases of the gait clock that episodes began at (k,).

    Raises:
        Refused: the first difference is named.
    """
    contract = bundle.contract
    task: Any = replace(trained.task, randomize={})
    env = make_env(replace(trained, task=task), num_envs=len(PROBES))
    try:
        if (said := bundle.manifest["command_ranges"]) != {name: list(ends) for name, ends in ranges.items()}:
            raise Refused(
                f"the manifest is not the robot's: command_ranges {said} and {dict(ranges)}", NOT_THE_SAME
            )
        _require_said(contract, env, phases)
        _require_torques(contract, env)
    finally:
        env.close()


def _require_said(contract: dict[str, Any], env: Env, phases: np.ndarray) -> None:
    """What can be compared by reading: names, order, limits, time, delays, columns."""
    robot, task = env.robot, env.task
    lower, upper = joint_limits(robot)
    pairs: list[tuple[str, Any, Any]] = [("control_dt", contract["control_dt"], env.ctx.dt)]
    pairs += [(f"{name} as trained", list(contract[name]), list(getattr(task, name))) for name in DELAYS]
    pairs.append(("joints", [joint["name"] for joint in contract["joints"]], list(robot.joints)))
    for joint, home, low, high in zip(contract["joints"], robot.home, lower, upper, strict=True):
        pairs += [
            (f"{key} of joint {joint['name']}", joint[key], None if math.isinf(own) else own)
            for key, own in (("home", home), ("lower", low), ("upper", high))
        ]
    pairs.append(("actuators", [a["joint"] for a in contract["actions"]], [a.joint for a in robot.actuators]))
    pairs += [
        (f"{key} of actuator {a['joint']}", a[key], getattr(own, key))
        for a, own in zip(contract["actions"], robot.actuators, strict=True)
        for key in ("kind", "kp", "kd", "effort")
    ]
    pairs.append(("command", contract["command"], ["forward", "sideways", "yaw"] if task.commands else []))
    pairs.append(
        (
            "observations",
            [(item["name"], item["width"]) for item in contract["observations"]],
            [(item.name, width) for item, width in env.columns["policy"]],
        )
    )
    if contract["extra"]:
        starts = contract["extra"]["gait_clock"]["phase_at_start"]
        pairs += [("phase_at_start", starts, [*starts, float(p)]) for p in set(phases.tolist()) - set(starts)]
    for name, said, is_so in pairs:
        if not _same(said, is_so):
            raise Refused(f"the manifest is not the robot's: {name}: {said} and {is_so}", NOT_THE_SAME)


def _same(said: Any, is_so: Any) -> bool:
    if isinstance(said, float) and isinstance(is_so, float):
        return math.isclose(said, is_so, rel_tol=1e-6, abs_tol=1e-7)
    return bool(said == is_so)


DELAYS = ("action_delay", "observation_delay")

PROBES = ("kp", "kd", "effort")
"""One simulated robot each: pulled a quarter of its torque away from home; moving; pulled too far."""


def _require_torques(contract: dict[str, Any], env: Env) -> None:
    """Pull at every motor and compare its torque with what the contract's gains say.

    clip(kp (target - position) - kd velocity, -effort, effort) for position actuators; clip(target) for the others.
    """
    robot, home = env.robot, torch.tensor(env.robot.home)
    count, joints = len(PROBES), len(robot.joints)
    still = torch.zeros(count, 3)
    position = still.clone()
    position[:, 2] = robot.home_height + 1.0  # nothing touches the ground
    velocity = torch.zeros(count, joints)
    velocity[1] = 0.1
    pose = InitialState(
        position,
        torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1),
        still,
        still.clone(),
        home.repeat(count, 1),
        velocity,
    )
    pose = InitialState(**{name: value.to(env.device) for name, value in vars(pose).items()})
    env.backend.reset(torch.ones(count, dtype=torch.bool, device=env.device), pose)
    own = [robot.joints.index(actuator.joint) for actuator in robot.actuators]
    targets, expected = torch.zeros(count, len(own)), torch.zeros(count, len(own))
    said = {action["joint"]: action for action in contract["actions"]}
    for i, (actuator, joint) in enumerate(zip(robot.actuators, own, strict=True)):
        a = said[actuator.joint]
        pull = a["effort"] / (a["kp"] or 1.0) if a["kind"] == "position" else a["effort"]
        for row, share in enumerate((0.25, 0.0, 10.0)):
            ahead = share * pull
            targets[row, i] = (float(home[joint]) if a["kind"] == "position" else 0.0) + ahead
            wish = (
                a["kp"] * ahead - a["kd"] * float(velocity[row, joint]) if a["kind"] == "position" else ahead
            )
            expected[row, i] = max(-a["effort"], min(a["effort"], wish))
    env.backend.step(targets.to(env.device), 1)
    env.check()
    got = env.backend.state.robot.joint_torque[:, own].cpu()
    # One substep behind, torques are those of the pose itself; else the pose has moved on a little.
    slack = 1e-3 if env.backend.capabilities.derived_lag == 1 else 0.05
    effort = torch.tensor([said[actuator.joint]["effort"] for actuator in robot.actuators])
    allowed = slack * expected.abs() + 1e-4 * effort
    wrong = ((got - expected).abs() > allowed).nonzero()
    if len(wrong):
        row, i = wrong[0].tolist()
        raise Refused(
            f"the manifest is not the robot's: by its {PROBES[row]} the actuator of {robot.actuators[i].joint} gives "
            f"{expected[row, i]:.5g}, the simulated one {got[row, i]:.5g}",
            NOT_THE_SAME,
        )
