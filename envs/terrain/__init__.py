"""Terrain: uneven ground, made from a seed: a grid of tiles, rows of rising difficulty and columns of one kind each.

`settings.py` is the Terrain that a scene has and a user sets; `kinds.py` makes the heights of one tile; `heights.py`
joins the tiles into one grid of heights, which simulators take as a height field; `ground.py` looks heights up.
"""

from robolearn.envs.terrain.ground import Ground
from robolearn.envs.terrain.heights import Heights
from robolearn.envs.terrain.settings import Terrain

__all__ = ["Ground", "Heights", "Terrain"]
