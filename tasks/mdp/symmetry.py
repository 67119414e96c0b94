"""Left-right symmetry: observations and actions of a robot in the mirror image of its world."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.observations import Observation

SIGNS = {"vector": (1.0, -1.0, 1.0), "pseudovector": (-1.0, 1.0, -1.0), "command": (1.0, -1.0, -1.0)}
"""Sign of each component under the reflection, by kind of vector; see `Mirror`."""
POSE_SIGNS = (1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0)
"""The same of a position and a quaternion wxyz, whose vector part is the axis of a rotation."""
NEGATED = frozenset(
    {"com_y", "gravity_roll", "imu_tilt/x", "imu_tilt/z", "imu_bias/x", "imu_bias/z", "map_shift/y"}
)
"""Physical parameters and errors of sensors that change their sign: what points to the left, and turns about x or z."""
ENCODERS = "encoder_bias"
"""The error of a sensor that has a column for each joint."""


class OneSided(ConfigError):
    """A parameter of one side whose twin on the other side is not randomized has no mirror image."""


@dataclass(frozen=True)
class Reflection:
    """x -> x[:, permutation] * sign; applying it twice gives x back."""

    permutation: Tensor
    """(k,) int64."""
    sign: Tensor
    """(k,) +1 or -1."""

    def __call__(self, x: Tensor) -> Tensor:
        """Reflect the rows of x (N, k)."""
        return x.index_select(1, self.permutation) * self.sign

    def to(self, device: torch.device) -> Reflection:
        """The same on a device."""
        return Reflection(self.permutation.to(device), self.sign.to(device))


@dataclass(frozen=True)
class Symmetry:
    """The reflection of each observation group and of the action across the sagittal plane."""

    groups: dict[str, Reflection]
    """Reflection of the columns of each group."""
    action: Reflection
    """Reflection of the action (A,)."""

    def to(self, device: torch.device) -> Symmetry:
        """The same on a device."""
        groups = {name: each.to(device) for name, each in self.groups.items()}
        return Symmetry(groups, self.action.to(device))


def sagittal(
    robot: Robot,
    groups: dict[str, list[tuple[Observation, int]]],
    device: torch.device,
    params: Sequence[str] = (),
) -> Symmetry:
    """The Symmetry of a robot for observation groups, each a list of (item, width) in column order; `params` are the
    columns of items with the mirror `physics`.

    Raises:
        ConfigError: the robot declares no mirror pairs, or an item has no mirror image.
        OneSided: a parameter has none.
    """
    joints, actuators, feet = robot.mirror_joints(), robot.mirror_actuators(), robot.mirror_feet()
    if joints is None or actuators is None or feet is None:
        raise ConfigError(
            f"robot {robot.name!r} has no `mirror:` in its robot.yaml; use learner.symmetry=none"
        )

    # Which joints have limits is not known here. It matters only where an item holds some of the joints.
    parts = {"limited_joints": (0, len(robot.joints)), "turning_joints": (0,)}

    def item(observation: Observation, width: int) -> tuple[list[int], list[float]]:
        kind = observation.mirror
        if kind in parts and width not in parts[kind]:
            raise ConfigError(
                f"observation {observation.name!r} holds some joints of {robot.name!r} only, so its mirror image is "
                "unknown; observe joint_pos_rel, or use learner.symmetry=none"
            )
        if kind == "joints" or (kind == "limited_joints" and width):
            return joints
        if kind == "actuators":
            return actuators
        if kind == "permuted":
            return list(observation.order), [1.0] * width
        if kind == "physics":
            return _of_params(params, robot)
        if kind == "feet":
            return feet, [1.0] * width
        if kind == "foot_vectors":
            return [3 * f + axis for f in feet for axis in range(3)], list(SIGNS["vector"]) * len(feet)
        if kind == "pose":
            return list(range(width)), list(POSE_SIGNS[:width])
        if kind == "vectors":
            return list(range(width)), list(SIGNS["vector"]) * (width // 3)
        sign = SIGNS.get(kind, (-1.0 if kind == "negate" else 1.0,) * width)
        return list(range(width)), list(sign)

    def group(items: list[tuple[Observation, int]]) -> Reflection:
        permutation: list[int] = []
        signs: list[float] = []
        for observation, width in items:
            order, sign = item(observation, width // observation.history)
            if not len(order) == len(sign) == width // observation.history:
                raise ConfigError(
                    f"observation {observation.name!r} has {width // observation.history} columns, and its "
                    f"mirror={observation.mirror!r} is of {len(order)}"
                )
            for _ in range(observation.history):
                permutation += [len(signs) + i for i in order]
                signs += sign
        return _reflection(permutation, signs, device)

    return Symmetry({name: group(items) for name, items in groups.items()}, _reflection(*actuators, device))


def _of_params(names: Sequence[str], robot: Robot) -> tuple[list[int], list[float]]:
    """Order and signs of physical parameters and errors of sensors in the mirror image: a joint's or body's is its
    twin's."""
    assert robot.mirror is not None
    order, signs = [], []
    for name in names:
        first, _, rest = name.partition("/")
        field, _, part = rest.partition("/")
        twin, flips = name, first in NEGATED or name in NEGATED or field in NEGATED
        if first == ENCODERS:
            twin, flips = f"{first}/{robot.mirror.twin(rest)}", robot.mirror.flips(rest)
        elif part and first == "robot":
            twin = f"{first}/{field}/{robot.mirror.twin(part)}"
        if twin not in names:
            raise OneSided(
                f"randomize.{name} has no mirror image, which would be {twin}: randomize that too, hide it from the "
                "critic (visible: false), or use learner.symmetry=none"
            )
        order.append(names.index(twin))
        signs.append(-1.0 if flips else 1.0)
    return order, signs


def joined(reflections: list[Reflection]) -> Reflection:
    """The reflection of concatenated columns."""
    offsets = itertools.accumulate((len(r.sign) for r in reflections), initial=0)
    permutation = [r.permutation + offset for r, offset in zip(reflections, offsets, strict=False)]
    return Reflection(torch.cat(permutation), torch.cat([r.sign for r in reflections]))


def _reflection(permutation: list[int], sign: list[float], device: torch.device) -> Reflection:
    return Reflection(
        torch.tensor(permutation, dtype=torch.long, device=device),
        torch.tensor(sign, dtype=torch.float32, device=device),
    )
