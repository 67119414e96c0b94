"""The main job: RoboLearn's own humanoid walks where it is told, on flat ground, and stands when asked to.

All of it is the task `velocity`, which takes any robot on legs; this is its name on the humanoid.
"""

from __future__ import annotations

from dataclasses import dataclass

from robolearn.tasks.velocity import Velocity


@dataclass
class HumanoidWalk(Velocity):
    """A humanoid follows velocity commands: forward, sideways, turning, and standing still."""
