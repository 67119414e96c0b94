"""Doors: other people's environments as tasks, `task=DOOR:ID`. A door is one file here and one row below."""

from __future__ import annotations

from robolearn.envs import isaaclab_install
from robolearn.registry import Row

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
