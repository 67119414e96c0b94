"""MuJoCo on the CPU, in `backend.py`."""

from robolearn.envs.mujoco.backend import MujocoBackend

__all__ = ["MujocoBackend"]
