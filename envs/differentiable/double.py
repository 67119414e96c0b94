"""The `differentiable` backend in float64: what finite differences are taken of, to check float32's gradients."""

from __future__ import annotations

from typing import Any

import mujoco

from robolearn.envs.differentiable.backend import DifferentiableBackend
from robolearn.envs.differentiable.engine import Engine
from robolearn.envs.differentiable.own import OwnEngine


class DoubleBackend(DifferentiableBackend):
    """The same equations, computed in float64 where poses and targets are; only our own engine can.

    Physical parameters stay the float32 numbers that they are in `DifferentiableBackend`.
    """

    def _make_engine(self, model: mujoco.MjModel, name: str, options: dict[str, Any]) -> Engine:
        assert name == "own", name
        return OwnEngine(self.robot, self.num_envs, self.device, model, options, number="float64")
