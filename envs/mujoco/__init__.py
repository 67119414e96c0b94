"""MuJoCo on the CPU. `backend.py` is all of it."""

from robolearn.envs.mujoco.backend import MujocoBackend

__all__ = ["MujocoBackend"]
