"""Where an entity is in the arrays of a MuJoCo model: joints, actuators, sensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import Entity, Tensor

Column = tuple[Tensor, str, list[int]]
"""A tensor of an Entity (N, K, ...), the field of MjData that it shows, and the columns of that field."""


@dataclass(frozen=True)
class EntityIndex:
    """The addresses of one entity, J joints and A actuators."""

    root: tuple[int, int] | None
    """First index in qpos and in qvel of its free joint; None where its root cannot move."""
    joint_qpos: Tensor
    """(J,) index of each joint in qpos."""
    joint_dof: Tensor
    """(J,) index of each joint in qvel."""
    actuators: slice
    """Its columns of ctrl."""
    servos: Tensor
    """Columns of ctrl that take joint positions."""
    servo_joints: Tensor
    """The joint of each of them, by its place among the joints."""
    bodies: list[int]
    """Ids of the bodies whose positions the State has."""
    sensors: list[tuple[str, str, int, int]]
    """For each sensor that the State shows: the path of the tensor in the Entity, the item of its second dimension as
    text (empty for all), first column of sensordata, and number of columns."""

    @classmethod
    def of(cls, scene: Scene, name: str, model: mujoco.MjModel) -> EntityIndex:
        """The addresses of the entity of that name in the model of its scene."""
        entity, prefix = scene.entities[name], scene.prefix(name)
        root = None
        if scene.moves(name):
            joint = mjcf.root_joint(scene, name, model)
            root = int(joint.qposadr[0]), int(joint.dofadr[0])
        sensors: list[tuple[str, str, int, int]] = []

        def show(path: str, item: str, sensor: str) -> None:
            found = model.sensor(sensor)
            sensors.append((path, item, int(found.adr[0]), int(found.dim[0])))

        robot = None if isinstance(entity, Object) else entity
        for number, foot in enumerate(robot.feet if robot else ()):
            for kind, field in (("pos", "pos"), ("quat", "quat"), ("vel", "lin_vel"), ("force", "force")):
                show(f"foot_{field}", str(number), f"{prefix}{foot}_{kind}")
        for frame in scene.frames.get(name, ()):
            for kind, field in (("pos", "pos"), ("quat", "quat"), ("vel", "lin_vel"), ("angvel", "ang_vel")):
                show(f"frames.{frame}.{field}", "", mjcf.frame_sensor(scene, name, frame, kind))
        for label, contact in scene.contacts.get(name, {}).items():
            for number, body in enumerate(mjcf.contact_bodies(scene, name, contact)):
                show(f"contacts.{label}.force", str(number), mjcf.contact_sensor(scene, name, label, body))
        joints = [model.joint(prefix + joint) for joint in robot.joints] if robot else []
        first = model.actuator(prefix + robot.actuators[0].joint).id if robot and robot.actuators else 0
        drives = robot.actuators if robot else ()
        servos = [i for i, actuator in enumerate(drives) if actuator.kind == "position"]

        def indices(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long)

        return cls(
            root,
            indices([int(joint.qposadr[0]) for joint in joints]),
            indices([int(joint.dofadr[0]) for joint in joints]),
            slice(first, first + len(drives)),
            indices([first + i for i in servos]),
            indices([robot.actuated[i] for i in servos] if robot else []),
            [model.body(prefix + body).id for body in robot.bodies] if robot else [],
            sensors,
        )

    def published(self, entity: Entity) -> Iterator[Column]:
        """The columns that an Entity shows; the linear velocity of a free root, in its own axes, is not among them."""
        yield entity.joint_pos, "qpos", self.joint_qpos.tolist()
        yield entity.joint_vel, "qvel", self.joint_dof.tolist()
        yield entity.joint_torque, "qfrc_actuator", self.joint_dof.tolist()
        if self.root is not None:
            qpos, dof = self.root
            yield entity.base_pos, "qpos", list(range(qpos, qpos + 3))
            yield entity.base_quat, "qpos", list(range(qpos + 3, qpos + 7))
            yield entity.base_ang_vel, "qvel", list(range(dof + 3, dof + 6))
        yield entity.body_pos, "xpos", self.bodies
        tensors = entity.tensors()
        for path, item, first, size in self.sensors:
            tensor = tensors[path][:, int(item)] if item else tensors[path]
            yield tensor, "sensordata", list(range(first, first + size))
