"""MuJoCo Warp on a GPU. Read `backend.py` first; `kernels.py` holds its Warp kernels, `simulation.py` its arrays."""

from robolearn.envs.mujoco_warp.backend import MujocoWarpBackend

__all__ = ["MujocoWarpBackend"]
