"""Tables of RoboLearn's backends, learners and doors. Nothing that a row names is imported here."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A backend, learner or door of RoboLearn."""

    location: str
    """The class, as "module:object"."""
    description: str
    """One line for `robolearn list`."""
    requires: tuple[str, ...] = ()
    """Modules that must be importable; "package.module" excludes older versions of the package without the module."""
    extra: str = ""
    """The extra of robolearn that installs them."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices it runs on: "cpu", "cuda"."""
    gives: tuple[str, ...] = ()
    """Backends: capabilities that only some backends have and some learners require, such as "gradients"."""
    install: str = ""
    """How to install it, where the extra alone is not enough."""
    packages: tuple[str, ...] = ()
    """Doors whose IDs name modules: the packages that a saved run may import; others only where the user names them."""


_ISAACLAB = "isaaclab==3.0.0 mujoco-usd-converter==0.6.1"


def isaaclab_install(version: tuple[int, ...] = sys.version_info[:2]) -> str:
    """How to install Isaac Lab 3 for this version of Python: it needs Python 3.12 and conflicts with other extras."""
    if version[:2] == (3, 12):
        return f"pip install {_ISAACLAB} (not Isaac Lab 2), in a separate environment: it needs MuJoCo 3.12"
    return (
        "Isaac Lab 3 (not 2) needs Python 3.12 and a separate environment: "
        f"python3.12 -m venv .isaaclab && .isaaclab/bin/pip install -e . {_ISAACLAB}"
    )


BACKENDS = {
    "mujoco": Row(
        "robolearn.envs.mujoco.backend:MujocoBackend",
        "MuJoCo on the CPU: thousands of robots, stepped by C threads",
        # An older MuJoCo has no mujoco.batch, which is found without importing it.
        requires=("mujoco", "mujoco.batch"),
        extra="mujoco",
        devices=("cpu",),
        install="pip install 'robolearn[mujoco]' (MuJoCo 3.17), not in the environment of Isaac Lab",
    ),
    "mujoco_warp": Row(
        "robolearn.envs.mujoco_warp.backend:MujocoWarpBackend",
        "MuJoCo Warp: thousands of robots on one GPU (or slowly on a CPU)",
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
        # Isaac Lab 2 has no isaaclab_newton, which is found without importing it.
        requires=("isaaclab", "isaaclab_newton", "mujoco_usd_converter"),
        extra="isaaclab",
        devices=("cpu", "cuda"),
        install=isaaclab_install(),
    ),
}
"""RoboLearn's backends by name. backend=auto picks the first installed one for the device that has what the learner
requires."""

LEARNERS = {
    "ppo": Row(
        "robolearn.learners.ppo.ppo:PPO",
        "proximal policy optimization with a central critic",
        devices=("cpu", "cuda"),
    ),
    "grpo": Row(
        "robolearn.learners.grpo.grpo:GRPO",
        "group-relative policy optimization: rollouts of one start are compared, without a critic",
        devices=("cpu", "cuda"),
    ),
    "shac": Row(
        "robolearn.learners.shac.shac:SHAC",
        "short-horizon actor-critic: first-order gradients through the simulator",
        devices=("cpu", "cuda"),
    ),
    "dpo": Row(
        "robolearn.learners.dpo.dpo:DPO",
        "direct preference optimization: a policy from compared segments, without a reward",
        devices=("cpu", "cuda"),
    ),
    "clone": Row(
        "robolearn.learners.clone.clone:Clone",
        "behaviour cloning: a policy learned from recorded episodes",
        devices=("cpu", "cuda"),
    ),
    "distill": Row(
        "robolearn.learners.distill.distill:Distill",
        "distillation (DAgger): a policy learned from a teacher with other observations",
        devices=("cpu", "cuda"),
    ),
}
"""RoboLearn's learners by name."""

DOORS = {
    "gymnasium": Row(
        "robolearn.external.gymnasium:GymnasiumTask",
        "any gymnasium environment with Box spaces: gymnasium:Pendulum-v1, gymnasium:my_env.py:MyEnv",
        requires=("gymnasium",),
    ),
    "isaaclab": Row(
        "robolearn.external.isaaclab:IsaacLabTask",
        "any task of Isaac Lab 3, on Newton's physics: isaaclab:Isaac-Cartpole, isaaclab:my_package:My-Task",
        # Isaac Lab 2 has no isaaclab_newton, which is found without importing it.
        requires=("isaaclab_tasks", "isaaclab_newton"),
        install=isaaclab_install(),
    ),
    "mjlab": Row(
        "robolearn.external.mjlab:MjlabTask",
        "any task of mjlab: mjlab:Mjlab-Velocity-Flat-Unitree-G1, mjlab:my_package:My-Task",
        requires=("mjlab",),
        install=(
            "it needs another MuJoCo, so a separate environment: "
            "python -m venv .mjlab && .mjlab/bin/pip install -e . mjlab==1.6.0"
        ),
    ),
    "pettingzoo": Row(
        "robolearn.external.pettingzoo:PettingZooTask",
        "any PettingZoo environment of several agents: pettingzoo:mpe2.simple_spread_v3, pettingzoo:my_env.py:MyEnv",
        requires=("pettingzoo",),
        extra="pettingzoo",
        packages=("pettingzoo", "mpe2", "gymnasium_robotics"),
    ),
}
"""Doors to third-party environments, by the word before the colon of DOOR:ID. Each row's class is an `ExternalTask`;
its `named(id)` is the task of one environment."""
