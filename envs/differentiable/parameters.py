"""From the physical parameters of a scene and of its one robot to those of the engine."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np
import torch

from robolearn.envs.parameters import BASIC
from robolearn.envs.randomize import nominal, parameters, settable
from robolearn.envs.scene import Scene
from robolearn.envs.state import Tensor


class Parameters:
    """Parameters of the whole scene, such as `friction`, and of its robot, such as `robot/friction`.

    Raises:
        ConfigError: a name of `scene.params` has an entity, field or selector that does not exist.
    """

    def __init__(self, scene: Scene, model: mujoco.MjModel) -> None:
        known = parameters(scene, model, BASIC)
        self.names = tuple(sorted(name for name in settable(scene) if name.count("/") < 2))
        """Those that can be set; the engines know no part of a robot."""
        self.nominal = {name: float(np.float32(nominal(known[name], model))) for name in self.names}
        self._robot = scene.first
        self._floor = float(model.geom("floor").friction[0]) if scene.grounded else 0.0

    def of_engine(self, values: Tensor, names: tuple[str, ...]) -> Tensor:
        """The parameters (N, P) of an engine by their names, from `values` (N, K) of the scene's."""
        if names == self.names:
            return values
        by_name = dict(zip(self.names, values.unbind(1), strict=True))
        return torch.stack([self._joined(name, by_name) for name in names], dim=1)

    def _joined(self, name: str, by_name: Mapping[str, Tensor]) -> Tensor:
        whole, robot = by_name.get(name), by_name.get(f"{self._robot}/{name}")
        if robot is None or whole is None:
            return next(each for each in (whole, robot) if each is not None)
        if name != "friction":
            return whole * robot
        # As in MuJoCo: of two surfaces the larger friction counts; that of the whole scene, the floor's too,
        # changes nothing at its nominal value.
        floor = torch.where(whole == self.nominal[name], self._floor, whole)
        return torch.maximum(robot, floor)
