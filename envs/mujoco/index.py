"""Where an entity is in the arrays of a MuJoCo model: joints, actuators, sensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import Tensor


@dataclass(frozen=True)
class Columns:
    """Columns of MuJoCo's rows that a tensor of an Entity shows."""

    path: str
    """Name of the tensor, see `Entity.tensors`."""
    first: int
    """The first column of the tensor, flattened to (N, k), that they are shown in."""
    source: str
    """The field of MjData, flattened to (N, k)."""
    columns: list[int]
    """Columns of that field, in order."""

    @property
    def is_position(self) -> bool:
        """Whether they are x, y and z of places in the world, one after the other."""
        return self.path in ("base_pos", "body_pos", "foot_pos") or self.path.endswith(".pos")


class Offsets:
    """The origins of the environments on a terrain, as they are subtracted from positions."""

    def __init__(self, num_envs: int) -> None:
        self._origins = torch.zeros(num_envs, 3, dtype=torch.float64)
        self._views: list[Tensor] = []

    def of(self, shown: Columns) -> Tensor | None:
        """(N, k) float64 what is subtracted from the columns of a tensor; None from those that are no positions."""
        if not shown.is_position:
            return None
        self._views.append(self._origins.repeat(1, len(shown.columns) // 3))
        return self._views[-1]

    def set(self, origins: Tensor) -> None:
        """Subtract these origins (N, 3) from now on."""
        self._origins.copy_(origins)
        for view in self._views:
            view.view(len(origins), -1, 3).copy_(self._origins[:, None])


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
    published: list[Columns]
    """What its Entity shows; the linear velocity of a free root, in its own axes, is not among them."""

    @classmethod
    def of(cls, scene: Scene, name: str, model: mujoco.MjModel) -> EntityIndex:
        """The addresses of the entity of that name in the model of its scene."""
        entity, prefix = scene.entities[name], scene.prefix(name)
        root = None
        if scene.moves(name):
            joint = mjcf.root_joint(scene, name, model)
            root = int(joint.qposadr[0]), int(joint.dofadr[0])
        published: list[Columns] = []

        def show(path: str, source: str, columns: Iterable[int], first: int = 0) -> None:
            if found := list(columns):
                published.append(Columns(path, first, source, found))

        def sense(path: str, sensor: str, number: int = 0) -> None:
            found = model.sensor(sensor)
            start, size = int(found.adr[0]), int(found.dim[0])
            show(path, "sensordata", range(start, start + size), number * size)

        robot = None if isinstance(entity, Object) else entity
        joints = [model.joint(prefix + joint) for joint in robot.joints] if robot else []
        first = model.actuator(prefix + robot.actuators[0].joint).id if robot and robot.actuators else 0
        drives = robot.actuators if robot else ()
        servos = [i for i, actuator in enumerate(drives) if actuator.kind == "position"]

        qpos, dofs = ([int(getattr(joint, a)[0]) for joint in joints] for a in ("qposadr", "dofadr"))
        show("joint_pos", "qpos", qpos)
        show("joint_vel", "qvel", dofs)
        show("joint_torque", "qfrc_actuator", dofs)
        if root is not None:
            show("base_pos", "qpos", range(root[0], root[0] + 3))
            show("base_quat", "qpos", range(root[0] + 3, root[0] + 7))
            show("base_ang_vel", "qvel", range(root[1] + 3, root[1] + 6))
        bodies = [model.body(prefix + body).id for body in robot.bodies] if robot else []
        show("body_pos", "xpos", [3 * body + axis for body in bodies for axis in range(3)])
        for number, foot in enumerate(robot.feet if robot else ()):
            for kind, field in (("pos", "pos"), ("quat", "quat"), ("vel", "lin_vel"), ("force", "force")):
                sense(f"foot_{field}", f"{prefix}{foot}_{kind}", number)
        for frame in scene.frames.get(name, ()):
            for kind, field in (("pos", "pos"), ("quat", "quat"), ("vel", "lin_vel"), ("angvel", "ang_vel")):
                sense(f"frames.{frame}.{field}", mjcf.frame_sensor(scene, name, frame, kind))
        for label, contact in scene.contacts.get(name, {}).items():
            for number, body in enumerate(mjcf.contact_bodies(scene, name, contact)):
                sense(f"contacts.{label}.force", mjcf.contact_sensor(scene, name, label, body), number)

        def indices(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long)

        return cls(
            root,
            indices(qpos),
            indices(dofs),
            slice(first, first + len(drives)),
            indices([first + i for i in servos]),
            indices([robot.actuated[i] for i in servos] if robot else []),
            published,
        )
