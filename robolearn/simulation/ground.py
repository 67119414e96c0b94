"""Height of the ground in a scene's world, for what pictures draw on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from robolearn.envs.scene import Scene
from robolearn.envs.terrain import Ground


def ground_of(scene: Scene) -> Callable[[float, float], float]:
    """The height of the ground [m] at a place (x, y) [m] in the world of a scene; 0 on flat ground."""
    if scene.terrain is None:
        return lambda x, y: 0.0
    ground, origin = Ground.of(scene.terrain.heights, torch.device("cpu")), torch.zeros(1, 3)
    return lambda x, y: float(ground.height(torch.tensor([[x, y]]), origin))
