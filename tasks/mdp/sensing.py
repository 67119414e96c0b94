"""Sensing: how far the numbers that the policy gets are from the true ones, and how late, besides white noise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from robolearn.errors import did_you_mean, listing
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.randomization import Randomized

POLICY = "policy"
"""The group of what a robot measures; as a key of `sensing`, every item of it that is computed from sensors alone."""

LONGEST_DELAY = 50
"""Longest delay [control steps]."""
LONGEST_HISTORY = 1000
"""Most samples in a history."""

SENSOR_ERRORS = {
    "imu_tilt": "angle by which the IMU is mounted askew, about any axis [rad]",
    "imu_bias": "offset of each axis of the gyro [rad/s]",
    "encoder_bias": "offset of each joint's encoder, which its motor's controller reads, too [rad or m]",
    "map_shift": "how far the map of the ground is off along x and y of the world [m]",
    "map_lift": "how far it is too low, or the base too high on it [m]",
}
"""What `randomize` may draw for the sensors themselves at each reset, beside the physical parameters."""

ERROR_BOUNDS = {
    "imu_tilt": (0.0, 0.5),
    "imu_bias": (-5.0, 5.0),
    "encoder_bias": (-0.5, 0.5),
    "map_shift": (-10.0, 10.0),
    "map_lift": (-10.0, 10.0),
}
"""Smallest and largest value of each."""


@dataclass(frozen=True)
class Sensing:
    """What happens to an item of the `policy` observations on its way from the robot to the policy.

    In this order: bias, noise (`task.noise` and slow noise), drop-out, delay. The history, which the robot's computer
    keeps, holds what arrives.
    """

    slow: tuple[float, float] = field(default=(0.0, 1.0), metadata={"min": 0.0, "max": 1000.0})
    """Slow noise: its standard deviation, in the unit of the item, and its time constant [s]; see `EpisodeNoise`."""
    bias: tuple[float, float] = field(default=(0.0, 0.0), metadata={"min": -1000.0, "max": 1000.0})
    """Range of a constant offset of each column, in the unit of the item, drawn at each reset."""
    delay: tuple[int, int] = field(default=(0, 0), metadata={"min": 0, "max": LONGEST_DELAY})
    """Range of the delay [control steps], drawn at each reset."""
    dropout: float = field(default=0.0, metadata={"min": 0.0, "max": 1.0})
    """Probability in each control step that nothing new comes from the sensor, so that its last value holds."""

    @property
    def late(self) -> bool:
        """Whether values arrive late or not at all."""
        return self.delay[1] > 0 or self.dropout > 0

    def stated(self) -> dict[str, Any]:
        """The parts that have an effect, by name."""
        parts = {
            "slow": self.slow[0] > 0,
            "bias": self.bias != (0.0, 0.0),
            "delay": self.delay[1] > 0,
            "dropout": self.dropout > 0,
        }
        return {name: getattr(self, name) for name, acts in parts.items() if acts}


PERFECT = Sensing()
"""A sensor without errors."""


def noisy(task: Any) -> bool:
    """Whether the policy of a task, or of an external environment, observes with noise or bias."""
    task = task.filled() if hasattr(task, "filled") else task
    sensing: Mapping[str, Sensing] = getattr(task, "sensing", {})
    return any(task.noise.values()) or any({"slow", "bias"} & set(each.stated()) for each in sensing.values())


def with_histories(
    items: list[Observation], group: str, history: Mapping[str, int], groups: Collection[str]
) -> list[Observation]:
    """The items of a group with the histories of the setting `history`: of the group, or of an item of `policy`."""
    if not history:
        return items
    whole = history.get(group)

    def steps(item: Observation) -> int:
        own = history.get(item.name) if group == POLICY and item.name not in groups else None
        return own or whole or item.history

    return [item if steps(item) == item.history else replace(item, history=steps(item)) for item in items]


def check_sensing(
    sensing: Mapping[str, Sensing],
    history: Mapping[str, int],
    items: Collection[str],
    groups: Collection[str],
) -> None:
    """Check the settings `sensing` and `history` of a task.

    Args:
        sensing, history: the settings.
        items: names of the items of the group `policy`.
        groups: names of the observation groups.

    Raises:
        ValueError: names the setting, the problem and the fix.
    """
    for name, steps in history.items():
        if name not in groups and name not in items:
            valid = [*groups, *items]
            raise ValueError(
                f"history.{name}: there is no such observation group, and the group policy has no such item"
                f"{did_you_mean(name, valid) or f'; there are {listing(valid, 30)}'}"
            )
        if type(steps) is not int or not 1 <= steps <= LONGEST_HISTORY:
            raise ValueError(
                f"history.{name}={steps!r} must be a whole number of samples, 1 to {LONGEST_HISTORY}"
            )
    for name, each in sensing.items():
        if name != POLICY and name not in items:
            hint = did_you_mean(name, items) or f"; it has {', '.join(items)}"
            raise ValueError(f"sensing.{name}: the group policy has no such item{hint}")
        if not isinstance(each, Sensing):
            raise ValueError(
                f"sensing.{name} must be a robolearn.tasks.mdp.sensing.Sensing, not {each!r:.80}"
            )
        low, high = each.delay
        if not 0 <= low <= high <= LONGEST_DELAY:
            raise ValueError(
                f"sensing.{name}.delay=[{low},{high}] must be a range of control steps within 0 to {LONGEST_DELAY}, "
                "low to high"
            )
        if not each.bias[0] <= each.bias[1]:
            raise ValueError(
                f"sensing.{name}.bias=[{each.bias[0]:g},{each.bias[1]:g}] must be a range, low to high"
            )
        if each.slow[0] > 0 and not each.slow[1] > 0:
            raise ValueError(
                f"sensing.{name}.slow=[{each.slow[0]:g},{each.slow[1]:g}] must be a standard deviation and a time "
                "constant above 0 s"
            )
        if not 0 <= each.dropout <= 1:
            raise ValueError(f"sensing.{name}.dropout={each.dropout:g} must be a probability, 0 to 1")


def check_error(name: str, stated: Randomized) -> None:
    """Check the statement of one of SENSOR_ERRORS.

    Raises:
        ValueError: it is no range within its bounds, or is to be drawn otherwise than uniformly at each reset.
    """
    stated.validate(f"randomize.{name}", *ERROR_BOUNDS[name])
    if (stated.distribution, stated.when) != ("uniform", "reset"):
        raise ValueError(
            f"randomize.{name}: errors of sensors are drawn with distribution=uniform and when=reset; leave both out"
        )
