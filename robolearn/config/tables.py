"""The names of our backends, learners and doors: what each row names is imported where it is used, never here."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of ours about a backend or a learner."""

    target: str
    """The class, as "module:object"."""
    description: str
    """One line for `robolearn list`."""
    requires: tuple[str, ...] = ()
    """Modules that must be importable; "package.module" tells a package from its older versions without it."""
    extra: str = ""
    """The extra of robolearn that installs them."""
    devices: tuple[str, ...] = ("cpu",)
    """Where it runs: "cpu", "cuda"."""
    gives: tuple[str, ...] = ()
    """Backends: capabilities that some learners require and not every backend has, such as "gradients"."""
    install: str = ""
    """How to install it, where the extra alone would not do."""


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
        "robolearn.envs.mujoco.backend:MujocoBackend",
        "MuJoCo on the CPU, thousands of robots stepped by C threads",
        # An older MuJoCo has no mujoco.batch: it is told apart without importing either.
        requires=("mujoco", "mujoco.batch"),
        extra="mujoco",
        devices=("cpu",),
        install="pip install 'robolearn[mujoco]' (MuJoCo 3.17), not into the environment of Isaac Lab",
    ),
    "mujoco_warp": Row(
        "robolearn.envs.mujoco_warp.backend:MujocoWarpBackend",
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

LEARNERS = {
    "ppo": Row(
        "robolearn.learners.ppo.ppo:PPO",
        "proximal policy optimization with a central critic",
        devices=("cpu", "cuda"),
    ),
    "shac": Row(
        "robolearn.learners.shac.shac:SHAC",
        "short-horizon actor-critic: first-order gradients through the simulator",
        devices=("cpu", "cuda"),
    ),
}
"""Our learners by name."""

DOORS = {
    "gymnasium": Row(
        "robolearn.external.gymnasium:GymnasiumTask",
        "any gymnasium environment with Box spaces: gymnasium:Pendulum-v1, gymnasium:my_env.py:MyEnv",
        requires=("gymnasium",),
    ),
    "isaaclab": Row(
        "robolearn.external.isaaclab:IsaacLabTask",
        "any task of Isaac Lab 3, on Newton's physics: isaaclab:Isaac-Cartpole, isaaclab:my_package:My-Task",
        # Version 2 of Isaac Lab has no isaaclab_newton: it is told apart without importing either.
        requires=("isaaclab_tasks", "isaaclab_newton"),
        install=isaaclab_install(),
    ),
    "mjlab": Row(
        "robolearn.external.mjlab:MjlabTask",
        "any task of mjlab: mjlab:Mjlab-Velocity-Flat-Unitree-G1, mjlab:my_package:My-Task",
        requires=("mjlab",),
        install=(
            "it has a MuJoCo of its own and wants an environment of its own: "
            "python -m venv .mjlab && .mjlab/bin/pip install -e . mjlab==1.6.0"
        ),
    ),
}
"""Our doors by name. Each row's class is an `ExternalTask`; its `named(id)` is the task of one environment."""
