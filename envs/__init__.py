"""Simulators behind one interface, and the robots in them. A backend is one file here and one row below."""

from __future__ import annotations

from robolearn.registry import Row

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
}
"""Our backends by name; within a device the first one installed that gives what the learner requires is what
backend=auto picks."""
