"""One entity of a scene in Isaac Lab: the order of its names there, and its State from Isaac Lab's measurements."""

from __future__ import annotations

from typing import Any

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.isaaclab import convention
from robolearn.envs.isaaclab.convention import Measured, Order, Sites, Written
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import InitialState, Tensor
from robolearn.errors import ConfigError


class IsaacEntity:
    """Converts one robot or object between RoboLearn's conventions and order and Isaac Lab's."""

    def __init__(
        self, scene: Scene, name: str, model: mujoco.MjModel, bridge: Any, device: torch.device
    ) -> None:
        """`model` is the scene's MuJoCo model.

        Raises:
            ConfigError: Isaac Lab lacks a joint or body of it, which is named.
        """
        entity, prefix = scene.entities[name], scene.prefix(name)
        self.robot: Robot | None = None if isinstance(entity, Object) else entity
        self.device, self.source = device, str(self.robot.mjcf) if self.robot else f"object {name!r}"
        robot, bodies = self.robot, bridge.body_names[name]
        self.moves = scene.moves(name)
        self.root = bodies.index(mjcf.root_body(scene, name).removeprefix(prefix)) if self.moves else -1
        """Its root's place among its bodies; -1 where it cannot move."""
        self.joints = self._order(robot.joints if robot else (), bridge.joint_names[name])
        self.bodies = self._order(robot.bodies if robot else (), bodies)
        self.feet = self._order(robot.feet if robot else (), bodies)
        self.sensors = self._order(robot.feet if robot else (), bridge.sensor_names[name])
        self.soles = self._sites([model.site(prefix + foot) for foot in robot.feet] if robot else [])
        sites = [model.site(number) for number in range(model.nsite)]
        frames = scene.frames.get(name, ())
        found = [next((site for site in sites if site.name == prefix + frame), None) for frame in frames]
        carriers = [
            model.body(int(site.bodyid[0])).name.removeprefix(prefix) if site else frame
            for site, frame in zip(found, frames, strict=True)
        ]
        if robot is None:
            carriers = [bodies[0]] * len(frames)
        self.frame_names = frames
        self.carriers = self._order(tuple(carriers), bodies)
        """The bodies that the frames are fixed to."""
        self.frames = self._sites(found)
        asked = scene.contacts.get(name, {})
        self.contacts = {
            label: self._order(contact.bodies or (bodies[0],), bridge.contact_names[name, label])
            for label, contact in asked.items()
        }
        drives = robot.actuators if robot else ()

        def row(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.actuated = list(robot.actuated) if robot else []
        self.kp, self.kd = row([a.kp for a in drives]), row([a.kd for a in drives])
        self.effort = row([a.effort for a in drives])
        self.drives = torch.tensor([a.kind == "position" for a in drives], dtype=torch.bool, device=device)

    def _order(self, names: tuple[str, ...], isaaclab_names: list[str]) -> Order:
        try:
            return Order(names, isaaclab_names, self.device)
        except ValueError as error:
            raise ConfigError(f"{self.source}: {error}") from None

    def _sites(self, sites: list[Any]) -> Sites:
        """Poses of sites in their bodies; None stands for the body itself."""

        def rows(values: list[Any], width: int) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device).view(len(sites), width)

        return Sites(
            rows([[0.0, 0.0, 0.0] if site is None else site.pos.tolist() for site in sites], 3),
            rows([[1.0, 0.0, 0.0, 0.0] if site is None else site.quat.tolist() for site in sites], 4),
        )

    def held(self, initial: InitialState) -> Tensor:
        """Joint targets (N, A) that hold an initial state; force actuators apply nothing."""
        return torch.where(self.drives, initial.joint_pos[:, self.actuated], 0.0)

    def written(self, initial: InitialState, origins: Tensor) -> Written:
        """An initial state in Isaac Lab's conventions, at the environments' origins (N, 3)."""
        return Written(
            convention.world_pose(initial.base_pos, initial.base_quat, origins),
            convention.world_velocity(initial.base_quat, initial.base_lin_vel, initial.base_ang_vel),
            self.joints.to_isaaclab(initial.joint_pos),
            self.joints.to_isaaclab(initial.joint_vel),
        )

    def commands(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Positions for the drives, and forces, clipped here, for the force actuators: (N, J) each, in Isaac Lab's
        order, zero for passive joints."""
        position = torch.where(self.drives, targets, 0.0)
        force = torch.where(self.drives, 0.0, targets.clamp(-self.effort, self.effort))
        return self._to_joints(position), self._to_joints(force)

    def _to_joints(self, values: Tensor) -> Tensor:
        joints = values.new_zeros(len(values), self.joints.index.numel())
        joints[:, self.actuated] = values
        return self.joints.to_isaaclab(joints)

    def state(
        self, measured: Measured, origins: Tensor, targets: Tensor, gain_scale: Tensor
    ) -> dict[str, Tensor]:
        """The tensors of its Entity by name, from measurements; `targets` (N, A) and `gain_scale` (N, A) give the
        torques."""
        position = convention.without_origins(measured.body_pose[..., :3], origins)
        found: dict[str, Tensor] = {}
        if self.root >= 0:
            pose, velocity = measured.body_pose[:, self.root], measured.body_vel[:, self.root]
            found["base_pos"], found["base_quat"] = position[:, self.root], convention.to_wxyz(pose[:, 3:])
            found["base_lin_vel"], found["base_ang_vel"] = convention.link_velocity(pose, velocity)
        if self.robot is not None:
            found["joint_pos"] = self.joints.from_isaaclab(measured.joint_pos)
            found["joint_vel"] = self.joints.from_isaaclab(measured.joint_vel)
            found["joint_torque"] = self._torque(found["joint_pos"], found["joint_vel"], targets, gain_scale)
            found["body_pos"] = self.bodies.from_isaaclab(position)
            found["foot_force"] = self.sensors.from_isaaclab(measured.contact_force)
            quat = convention.to_wxyz(self.feet.from_isaaclab(measured.body_pose)[..., 3:])
            found["foot_pos"], found["foot_quat"], found["foot_lin_vel"] = self.soles.in_world(
                self.feet.from_isaaclab(position), quat, self.feet.from_isaaclab(measured.body_vel)
            )
        if self.frame_names:
            velocity = self.carriers.from_isaaclab(measured.body_vel)
            quat = convention.to_wxyz(self.carriers.from_isaaclab(measured.body_pose)[..., 3:])
            where, turned, moving = self.frames.in_world(
                self.carriers.from_isaaclab(position), quat, velocity
            )
            for number, name in enumerate(self.frame_names):
                parts = (where, turned, moving, velocity[..., 3:])
                for field, part in zip(("pos", "quat", "lin_vel", "ang_vel"), parts, strict=True):
                    found[f"frames.{name}.{field}"] = part[:, number]
        for label, order in self.contacts.items():
            found[f"contacts.{label}.force"] = order.from_isaaclab(measured.contacts[label])
        return found

    def _torque(self, joint_pos: Tensor, joint_vel: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
        """The torques (N, J) of the actuators at these joint positions and velocities."""
        error = targets - joint_pos[:, self.actuated]
        pd = scale * (self.kp * error - self.kd * joint_vel[:, self.actuated])
        torque = torch.zeros_like(joint_pos)
        commanded = torch.where(self.drives, pd, targets)
        torque[:, self.actuated] = commanded.clamp(-self.effort, self.effort)
        return torque
