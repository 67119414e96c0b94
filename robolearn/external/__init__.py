"""Doors: other people's environments as tasks, `task=DOOR:ID`. A door is one file here and one row below."""

from __future__ import annotations

from robolearn.registry import Row

DOORS = {
    "gymnasium": Row(
        "robolearn.external.gymnasium:GymnasiumTask",
        "any gymnasium environment with Box spaces: gymnasium:Pendulum-v1, gymnasium:my_env.py:MyEnv",
        requires=("gymnasium",),
    ),
}
"""Our doors by name. Each row's class is an `ExternalTask`; its `named(id)` is the task of one environment."""
