"""A MuJoCo model posed like a State, of whatever simulator: for pictures, and for geometry that no State holds."""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from robolearn.envs import mjcf
from robolearn.envs.scene import Scene
from robolearn.envs.state import State, Tensor


class Placing:
    """Where a State goes in the positions of a scene's MuJoCo model."""

    def __init__(self, scene: Scene, model: mujoco.MjModel) -> None:
        self._nominal = model.qpos0.copy()
        self._roots = {
            name: int(mjcf.root_joint(scene, name, model).qposadr[0])
            for name in scene.entities
            if scene.moves(name)
        }
        """First index in qpos of each free root."""
        self._joints = {
            name: [int(model.joint(scene.prefix(name) + joint).qposadr[0]) for joint in robot.joints]
            for name, robot in scene.robots.items()
        }

    def qpos(self, state: State, envs: slice = slice(None)) -> np.ndarray:
        """(N, nq) float64 MuJoCo's positions of these environments."""
        n = len(_array(state.robot.base_pos, envs))
        origin = 0.0 if state.origin is None else _array(state.origin, envs)
        out = np.tile(self._nominal, (n, 1))
        for name in state.entities:
            if name in self._roots:
                first = self._roots[name]
                out[:, first : first + 3] = _array(state.in_world(name, "base_pos"), envs) + origin
                out[:, first + 3 : first + 7] = _array(state.in_world(name, "base_quat"), envs)
            if name in self._joints:
                out[:, self._joints[name]] = _array(state.in_world(name, "joint_pos"), envs)
        return out


class Posed:
    """The MuJoCo model of a scene, set to what a State shows."""

    def __init__(self, scene: Scene, visual: bool = False) -> None:
        self.model = mjcf.build_model(scene, "mujoco", visual=visual)
        self.data = mujoco.MjData(self.model)
        self.placing = Placing(scene, self.model)

    def penetration(self, state: State, mask: Tensor) -> np.ndarray:
        """(N,) [m] the depth of the deepest contact; 0 without one, and outside of `mask` (N,) bool."""
        positions = self.placing.qpos(state)
        depths = np.zeros(len(positions))
        for i in mask.nonzero().squeeze(-1).tolist():
            if not np.isfinite(positions[i]).all():
                continue
            self.data.qpos[:] = positions[i]
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_collision(self.model, self.data)
            if self.data.ncon:
                depths[i] = max(0.0, -float(self.data.contact.dist[: self.data.ncon].min()))
        return depths


def _array(values: torch.Tensor, envs: slice) -> np.ndarray:
    return values[envs].detach().double().cpu().numpy()
