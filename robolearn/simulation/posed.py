"""A MuJoCo model posed like one environment of a State, of whatever simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from robolearn.envs import mjcf
from robolearn.envs.scene import Scene
from robolearn.envs.state import State, Tensor


class Posed:
    """The MuJoCo model of a scene, set to what a State shows: for geometry that a State does not hold."""

    def __init__(self, scene: Scene, visual: bool = False) -> None:
        import mujoco

        self._mujoco: Any = mujoco
        self.model = mjcf.build_model(scene, "mujoco", visual=visual)
        self.data = mujoco.MjData(self.model)
        self._roots = {
            name: int(mjcf.root_joint(scene, name, self.model).qposadr[0])
            for name in scene.entities
            if scene.moves(name)
        }
        """First index in qpos of each free root."""
        self._joints = {
            name: [int(self.model.joint(scene.prefix(name) + joint).qposadr[0]) for joint in robot.joints]
            for name, robot in scene.robots.items()
        }

    def qpos(self, state: State) -> np.ndarray:
        """(N, nq) float64 MuJoCo's positions."""
        n = len(state.diverged)
        out = np.tile(self.model.qpos0, (n, 1))
        for name, entity in state.entities.items():
            if name in self._roots:
                first = self._roots[name]
                out[:, first : first + 3] = _array(entity.base_pos)
                out[:, first + 3 : first + 7] = _array(entity.base_quat)
            if name in self._joints:
                out[:, self._joints[name]] = _array(entity.joint_pos)
        return out

    def penetration(self, state: State, mask: Tensor) -> np.ndarray:
        """(N,) [m] the depth of the deepest contact; 0 without one, and outside of `mask` (N,) bool."""
        depths = np.zeros(len(state.diverged))
        positions = self.qpos(state)
        for i in mask.nonzero().squeeze(-1).tolist():
            if not np.isfinite(positions[i]).all():
                continue
            self.data.qpos[:] = positions[i]
            self._mujoco.mj_kinematics(self.model, self.data)
            self._mujoco.mj_comPos(self.model, self.data)
            self._mujoco.mj_collision(self.model, self.data)
            if self.data.ncon:
                depths[i] = max(0.0, -float(self.data.contact.dist[: self.data.ncon].min()))
        return depths


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
