"""A fake of Isaac Lab's bridge over plain MuJoCo, with other orders, origins and quaternions than RoboLearn's."""

from __future__ import annotations

from enum import IntFlag

import mujoco
import numpy as np
import torch

from robolearn.envs.isaaclab.convention import Measured

ROBOT = """
<mujoco model="strider">
  <compiler angle="radian" autolimits="true"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="trunk" pos="0 0 0.5">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.05" mass="3"/>
      <body name="left" pos="0 0.1 0">
        <joint name="swing" axis="0 1 0" range="-1 1" damping="0.1" armature="0.01"/>
        <joint name="turn" axis="0 0 1" damping="0.2" armature="0.02"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4" mass="0.5"/>
        <geom type="sphere" size="0.05" pos="0 0 -0.45" mass="0" contype="1" friction="0.7 0.005 0.0001"/>
        <site name="left" pos="0.05 0 -0.5" euler="0 0 1.5708"/>
      </body>
      <body name="right" pos="0 -0.1 0">
        <joint name="drag" axis="0 1 0" damping="0.3" armature="0.03"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4" mass="0.7"/>
        <geom type="sphere" size="0.05" pos="0 0 -0.45" mass="0" contype="1" friction="0.7 0.005 0.0001"/>
        <site name="right" pos="0 0 -0.5"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""One position drive (swing), one force actuator (drag), one passive joint (turn) on the same body as the drive."""

YAML = """
schema: 1
description: a trunk on two legs
mjcf: strider.xml
base: trunk
home_height: 0.5
feet: [left, right]
bodies: [right, trunk]
joints:
  drag: {home: 0.0, actuator: pull}
  turn: {home: 0.1}
  swing: {home: 0.2, actuator: drive}
actuators:
  pull: {kind: force, effort: 2}
  drive: {kind: position, kp: 20, kd: 1, effort: 5}
solver:
  isaaclab: {timestep: 0.005, integrator: implicitfast, solver: Newton, iterations: 20, ls_iterations: 20}
"""


class Overflow(IntFlag):
    """The flags of mujoco_warp's OverflowType used here."""

    NEFC = 1
    NARROWPHASE = 8


class FakeBridge:
    """Joints, bodies and sensors are in other orders than the robot's, and environments far from one another."""

    joints = ("turn", "drag", "swing")
    bodies = ("left", "trunk", "right")
    sensors = ("right", "left")

    def __init__(self, scene, model, num_envs, device, sizes):
        self.robot, self.device = scene.robot, device
        self.joint_names = {"robot": list(self.joints)}
        self.body_names = {"robot": list(self.bodies)}
        self.sensor_names = {"robot": list(self.sensors)}
        self.contact_names = {}
        self.roots = {"robot": (0, 0)}
        self.solver_model, self.solver_bodies = model, ["world", "trunk", "left", "right"]
        self.model = model
        self.data = [mujoco.MjData(model) for _ in range(num_envs)]
        self.origins = torch.stack(
            [torch.tensor([10.0 * i, -7.0 * i - 3.0, 0.0]) for i in range(num_envs)]
        ).float()
        n, joints = num_envs, len(self.joints)
        self._rows = {
            "joint_q": torch.zeros(n, 7 + joints),
            "joint_qd": torch.zeros(n, 6 + joints),
            "warm_start": torch.zeros(n, model.nv),
        }
        self._model_rows: dict[str, torch.Tensor] = {}
        self.position, self.effort = torch.zeros(n, joints), torch.zeros(n, joints)
        self.lost, self.closed = Overflow(0), False
        self._qpos = [int(model.joint(name).qposadr[0]) for name in self.joints]
        self._dofs = [int(model.joint(name).dofadr[0]) for name in self.joints]

    # ------------------------------------------------------------------ conversion to and from MuJoCo

    def _to_mujoco(self, i: int) -> mujoco.MjData:
        data, q, qd = self.data[i], self._rows["joint_q"][i].double(), self._rows["joint_qd"][i].double()
        data.qpos[:3] = q[:3]
        data.qpos[3:7] = q[[6, 3, 4, 5]]
        data.qpos[self._qpos], data.qvel[self._dofs] = q[7:], qd[6:]
        data.qvel[:3] = qd[:3]
        local = np.zeros(3)
        mujoco.mju_rotVecQuat(local, qd[3:6].numpy(), data.qpos[3:7] * [1, -1, -1, -1])
        data.qvel[3:6] = local  # world axes in Newton, the body's axes in MuJoCo
        data.qacc_warmstart[:] = self._rows["warm_start"][i]
        return data

    def _from_mujoco(self, i: int) -> None:
        data, q, qd = self.data[i], self._rows["joint_q"][i], self._rows["joint_qd"][i]
        q[:3] = torch.from_numpy(data.qpos[:3])
        q[3:7] = torch.from_numpy(data.qpos[[4, 5, 6, 3]])
        q[7:] = torch.from_numpy(data.qpos[self._qpos])
        world = np.zeros(3)
        mujoco.mju_rotVecQuat(world, data.qvel[3:6], data.qpos[3:7])
        qd[:3], qd[3:6] = torch.from_numpy(data.qvel[:3]), torch.from_numpy(world)
        qd[6:] = torch.from_numpy(data.qvel[self._dofs])
        self._rows["warm_start"][i] = torch.from_numpy(data.qacc_warmstart)

    # ------------------------------------------------------------------ what the backend calls

    def limit_drives(self, efforts):
        pass

    def read(self) -> dict[str, Measured]:
        pose, velocity, force = [], [], []
        for data in self.data:
            numbers = [self.model.body(name).id for name in self.bodies]
            pose.append(np.concatenate([data.xpos[numbers], data.xquat[numbers][:, [1, 2, 3, 0]]], axis=1))
            moving = []
            for number in numbers:
                both = np.zeros(6)
                mujoco.mj_objectVelocity(self.model, data, mujoco.mjtObj.mjOBJ_XBODY, number, both, 0)
                moving.append(np.concatenate([both[3:], both[:3]]))
            velocity.append(moving)
            force.append([data.sensor(f"{name}_force").data for name in self.sensors])
        measured = Measured(
            self._rows["joint_q"][:, 7:], self._rows["joint_qd"][:, 6:],
            *(torch.from_numpy(np.array(x, dtype=np.float32)) for x in (pose, velocity, force)),
        )  # fmt: skip
        return {"robot": measured}

    def write(self, mask, starts):
        start = starts["robot"]
        for i in mask.nonzero().flatten().tolist():
            self._rows["joint_q"][i] = torch.cat([start.pose[i], start.joint_pos[i]])
            self._rows["joint_qd"][i] = torch.cat([start.velocity[i], start.joint_vel[i]])
            self._rows["warm_start"][i] = 0.0
            self._drive(i)
            mujoco.mj_forward(self.model, self._to_mujoco(i))

    def _drive(self, i: int) -> None:
        for number, actuator in enumerate(self.robot.actuators):
            source = self.position if actuator.kind == "position" else self.effort
            self.data[i].ctrl[number] = source[i, self.joints.index(actuator.joint)]

    def command(self, commands):
        self.position, self.effort = (part.clone() for part in commands["robot"])

    def step(self, substeps):
        for i, data in enumerate(self.data):
            for name, rows in self._model_rows.items():
                if name != "meaninertia":
                    getattr(self.model, name)[:] = rows[i]
            self._to_mujoco(i)
            self._drive(i)
            for _ in range(substeps):
                mujoco.mj_step(self.model, data)
            self._from_mujoco(i)
            mujoco.mj_kinematics(self.model, data)  # bodies at time t, as in Newton
            mujoco.mj_comPos(self.model, data)
            mujoco.mj_comVel(self.model, data)

    def rows(self):
        return self._rows

    def model_rows(self, *names):
        for name in names:
            value = self.model.stat.meaninertia if name == "meaninertia" else getattr(self.model, name)
            rows = torch.as_tensor(np.array(value), dtype=torch.float32)
            self._model_rows[name] = rows.expand(len(self.data), *rows.shape).clone()
        return self._model_rows

    def overflow(self):
        lost, self.lost = self.lost, Overflow(0)
        return lost

    def close(self):
        self.closed = True
