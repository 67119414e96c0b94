"""Sensors: what a robot measures. A policy's observations may be computed from these, the command and the past alone.

Four sensors are on every robot: orientation and angular velocity of the base link, positions and velocities of the
joints. A task that relies on others names them in `Task.sensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from robolearn.envs.scene import ROBOT
from robolearn.envs.state import State, Tensor, quat_rotate_inverse
from robolearn.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Sensor:
    """Something that a robot measures, or that its software computes from a camera or a tracker.

    With `field`, terms read that field of the State as always. With `compute`, they call the sensor:
    `FOOT_SWITCHES(state)`.
    """

    name: str
    unit: str
    """Unit and meaning of the numbers, for whoever connects the robot."""
    frame: str = ""
    """The frame the numbers are in; empty where there is none."""
    field: str = ""
    """Name of the tensor in `State.tensors()`, such as `joint_pos`, or `object/base_pos` of another entity."""
    compute: Callable[[State], Tensor] | None = None
    """State -> (N, ...): the reading in the simulation."""
    unit_length: bool = False
    """Whether its numbers are a vector of length 1, and nothing else is a reading."""
    of_map: bool = False
    """Whether it is read from a map of the ground, which may be off, see `map_shift` and `map_lift`."""

    def __call__(self, state: State) -> Tensor:
        """The reading (N, ...) in the simulation; on the robot, what the sensor gives."""
        if self.name in state.sensors:
            return state.sensors[self.name]
        if self.compute is not None:
            return self.compute(state)
        fields = state.tensors()
        if self.field not in fields:
            raise ConfigError(
                f"sensor {self.name!r}: the State has no field {self.field!r}{did_you_mean(self.field, fields)}"
            )
        return fields[self.field]


QUAT = "quat"
"""Name of the sensor of the base's orientation."""
ON_EVERY_ROBOT = (
    Sensor(
        QUAT,
        "1, a unit quaternion w, x, y, z, from the axes of the base link to those of the world",
        "world, z up; any heading",
        "base_quat",
        unit_length=True,
    ),
    Sensor("gyro", "rad/s", "axes of the base link", "base_ang_vel"),
    Sensor("joint_pos", "rad (m for a slide), in the order of the joints", "", "joint_pos"),
    Sensor("joint_vel", "rad/s (m/s for a slide), in the order of the joints", "", "joint_vel"),
)
"""What every robot with an IMU and encoders measures."""


def _object_pos(state: State) -> Tensor:
    """Positions (N, 3 K) of the K entities besides the robot, in its base axes and from its origin [m]."""
    robot = state.robot
    places = [entity.base_pos for name, entity in state.entities.items() if name != ROBOT]
    found = [quat_rotate_inverse(robot.base_quat, place - robot.base_pos) for place in places]
    return torch.cat(found, dim=1) if found else robot.base_pos[:, :0]


OBJECT_POS = Sensor(
    "object_pos",
    "m, positions of the objects in the order of the scene, from a camera or a tracker",
    "axes and origin of the base link",
    compute=_object_pos,
)
"""Where the objects are; read only where a policy observes it."""

AGENT = Sensor(
    "agent",
    "1 in the column of the agent that the robot is, 0 in those of the others, in the order of Task.agents",
    compute=lambda state: torch.ones_like(state.robot.base_pos[:, :1]),
)
"""Which of a task's agents a robot is; read only where a policy observes it."""


def measured(state: State, sensors: Iterable[Sensor], given: Mapping[str, Tensor]) -> State:
    """A State in which `sensors` read what is `given` by name, (N, ...) each; without its origin on a terrain."""
    fields = state.tensors()
    by_id = {id(tensor): tensor for tensor in fields.values()}
    computed = {}
    for sensor in sensors:
        if sensor.name in given and sensor.field:
            by_id[id(fields[sensor.field])] = given[sensor.name]
        elif sensor.name in given:
            computed[sensor.name] = given[sensor.name]
    entities = {
        name: entity.each(lambda tensor: by_id[id(tensor)]) for name, entity in state.entities.items()
    }
    return State(entities, state.params, state.diverged, computed)


RESERVED = ("command", "targets", "actions", "observations", "reset", "manifest", "file")
"""Names of what travels beside the sensors."""


def check_sensors(sensors: Sequence[Sensor]) -> None:
    """Check a task's own sensors.

    Raises:
        ValueError: one has a name that cannot be used or is taken, or not exactly one of field and compute.
    """
    known = [sensor.name for sensor in (*ON_EVERY_ROBOT, OBJECT_POS, AGENT)]
    for sensor in sensors:
        name = sensor.name
        if not name.isidentifier() or name in RESERVED or name.endswith(("_in", "_out")):
            raise ValueError(
                f"sensors: {name!r} cannot be the name of a sensor; it must be a word, not end in _in or _out, and be "
                f"none of {', '.join(RESERVED)}"
            )
        if name in known:
            raise ValueError(f"sensors: there is a sensor {name!r} already; give this one another name")
        if bool(sensor.field) == (sensor.compute is not None):
            raise ValueError(
                f"sensors: {name} needs either a field of the State or compute, a function of it"
            )
        known.append(name)
