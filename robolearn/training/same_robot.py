"""Whether a robot is the one that a policy was trained with: its joints in that order, motors as strong, its files as
they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robolearn import config
from robolearn.config.run_config import Config
from robolearn.envs import model_file
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, quote
from robolearn.training.build import acting_robot

STRENGTH = ("kp", "kd", "effort")
"""What of a motor is compared."""
NEAR = 0.01
"""Relative difference up to which two of them count as equal."""


PHYSICAL = (
    "qpos0", "body_parentid", "body_pos", "body_quat", "body_mass", "body_inertia", "body_ipos", "body_iquat",
    "jnt_type", "jnt_axis", "jnt_pos", "jnt_range", "jnt_stiffness", "qpos_spring", "dof_armature", "dof_damping",
    "dof_frictionloss", "geom_type", "geom_contype", "geom_conaffinity", "geom_size", "geom_pos", "geom_quat",
    "geom_friction", "geom_solref", "geom_solimp", "geom_margin", "geom_gap", "mesh_vert", "site_pos", "site_quat",
    "eq_data", "tendon_range",
)  # fmt: skip
"""What of a compiled model counts."""
DIGITS = 9
"""Decimals of it that count."""


def robot_digest(robot: Robot) -> str:
    """A sha256 of what a simulation takes from a robot's files, wherever they are."""
    digest = hashlib.sha256()
    _digest(robot, digest.update)
    return digest.hexdigest()


def _digest(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, Robot):
        model = model_file.read(value.mjcf).model
        for name in PHYSICAL:
            update(_rounded(getattr(model, name)))
    if isinstance(value, Path):
        update(value.read_bytes() if value.is_file() else b"")
    elif is_dataclass(value):
        for each in fields(value):
            if each.name not in ("name", "description", "source", "mjcf"):
                update(each.name.encode())
                _digest(getattr(value, each.name), update)
    elif isinstance(value, Mapping):
        for key in sorted(value):
            update(str(key).encode())
            _digest(value[key], update)
    elif isinstance(value, list | tuple):
        update(str(len(value)).encode())
        for each in value:
            _digest(each, update)
    elif isinstance(value, float):
        update(_rounded(value))
    else:
        update(repr(value).encode() + b";")


def _rounded(value: Any) -> bytes:
    """Numbers without the last bits, in which processors differ."""
    return (np.round(np.asarray(value, dtype=np.float64), DIGITS) + 0.0).tobytes()


def _contract(folder: Path) -> dict[str, Any]:
    """contract.json of a run; empty where there is none that can be read."""
    try:
        content = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def other_motors(folder: Path, run: Config, shown: str) -> str:
    """A line where the robot of a run's unchanged configuration has other motors than the one it was trained with, as
    that of another package has; empty where it has not, or nothing is known.

    Args:
        folder, run: as for `require_same_order`.
        shown: the policy.
    """
    if run.backend_name == config.EXTERNAL:
        return ""
    robot, contract = acting_robot(run), _contract(folder)
    here = {each.joint: each for each in robot.actuators}
    try:
        for before in contract["actions"]:
            now = here.get(before["joint"])
            for key in STRENGTH if now is not None else ():
                old, new = float(before[key]), float(getattr(now, key))
                if abs(new - old) > NEAR * max(abs(old), abs(new)):
                    return (
                        f"{shown} was trained with {key} {old:g} of {before['joint']}, and robot {robot.name} has "
                        f"{new:g} ({robot.source}): the policy may fail on it; use the model it was trained with, or "
                        f"name the one that you mean, robot={run.task.robot}"
                    )
    except (KeyError, TypeError, ValueError):
        return ""
    return ""


def require_same_order(folder: Path, run: Config, shown: str) -> None:
    """Compare the robot of a configuration with contract.json in the folder of the run that a policy is from. A policy
    has numbers for joints, no names: two robots with as many joints may order the same legs in another way.

    Args:
        folder: of the run; without contract.json nothing is compared.
        run: what the policy is to be used with.
        shown: begins the message: the policy or the setting that names it, and "does" or "do".

    Raises:
        ConfigError: a joint of both robots has another place; it is named.
    """
    if run.backend_name == config.EXTERNAL:
        return
    contract = _contract(folder)
    try:
        name = str(contract["robot"])
        trained = {
            "joint": [str(each["name"]) for each in contract["joints"]],
            "actuator": [str(each["joint"]) for each in contract["actions"]],
        }
    except (KeyError, TypeError):
        return
    robot = acting_robot(run)
    here = {"joint": list(robot.joints), "actuator": [each.joint for each in robot.actuators]}
    for what, before in trained.items():
        places = {joint: k for k, joint in enumerate(before)}
        for k, joint in enumerate(here[what], 1):
            if places.get(joint, k - 1) != k - 1:
                raise ConfigError(
                    f"{shown} not fit robot {quote(robot.name)}: {joint} is {what} {k} of it, and was {what} "
                    f"{places[joint] + 1} of {quote(name)}, with which the policy was trained; train one for this robot"
                )
