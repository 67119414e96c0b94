"""RoboLearn's own humanoid walks over uneven ground; all of it is the task `velocity_rough`."""

from __future__ import annotations

from dataclasses import dataclass

from robolearn.tasks.velocity_rough import VelocityRough


@dataclass
class HumanoidRough(VelocityRough):
    """A humanoid follows velocity commands over slopes, stairs, blocks and bumps."""
