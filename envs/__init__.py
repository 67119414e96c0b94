"""Simulators behind one interface, and the robots in them. A backend is one file here and one row below."""

from __future__ import annotations

import sys

from robolearn.registry import Row

_ISAACLAB = "isaaclab==3.0.0 mujoco-usd-converter==0.6.1"


def isaaclab_install(version: tuple[int, ...] = sys.version_info[:2]) -> str:
    """How to get Isaac Lab 3 for this Python: its packages are for 3.12 alone, and its pins for nothing beside it."""
    if version[:2] == (3, 12):
        return f"pip install {_ISAACLAB} (Isaac Lab 2 will not do), in an environment of its own: it wants MuJoCo 3.12"
    return (
        "Isaac Lab 3 is for Python 3.12 (version 2 will not do) and wants an environment of its own: "
        f"python3.12 -m venv .isaaclab && .isaaclab/bin/pip install -e . {_ISAACLAB}"
    )


BACKENDS = {
    "mujoco": Row(
        "robolearn.envs.mujoco:MujocoBackend",
        "MuJoCo on the CPU, thousands of robots stepped by C threads",
        requires=("mujoco", "mjbatch"),
        extra="mujoco",
        devices=("cpu",),
    ),
    "mujoco_warp": Row(
        "robolearn.envs.mujoco_warp:MujocoWarpBackend",
        "MuJoCo Warp, thousands of robots on one GPU (or slowly on a CPU)",
        requires=("mujoco", "mujoco_warp"),
        extra="mujoco-warp",
        devices=("cuda", "cpu"),
    ),
    "differentiable": Row(
        "robolearn.envs.differentiable.backend:DifferentiableBackend",
        "differentiable physics: gradients of rewards through the simulator",
        requires=("mujoco", "warp"),
        extra="differentiable",
        devices=("cpu", "cuda"),
        gives=("gradients",),
    ),
    "isaaclab": Row(
        "robolearn.envs.isaaclab.backend:IsaacLabBackend",
        "Isaac Lab 3 without Isaac Sim: Newton's MuJoCo Warp behind its articulations and sensors",
        # Version 2 of Isaac Lab has no isaaclab_newton: it is told apart without importing either.
        requires=("isaaclab", "isaaclab_newton", "mujoco_usd_converter"),
        extra="isaaclab",
        devices=("cpu", "cuda"),
        install=isaaclab_install(),
    ),
}
"""Our backends by name; within a device the first one installed that gives what the learner requires is what
backend=auto picks."""
