"""The `differentiable` backend in float64, whose finite differences check the gradients of float32."""

from __future__ import annotations

from typing import Any

import mujoco

from robolearn.envs.differentiable.backend import DifferentiableBackend
from robolearn.envs.differentiable.engine import Engine
from robolearn.envs.differentiable.own import OwnEngine


class DoubleBackend(DifferentiableBackend):
    """The same equations in float64, for float64 initial states and joint targets; `engine=own` only.

    Physical parameters keep their float32 values.
    """

    def _make_engine(self, model: mujoco.MjModel, name: str, options: dict[str, Any]) -> Engine:
        assert name == "own", name
        return OwnEngine(self.scene, self.num_envs, self.device, model, options, number="float64")
