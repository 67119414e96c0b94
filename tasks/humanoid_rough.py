"""RoboLearn's own humanoid walks over uneven ground; all of it is the task `velocity_rough`."""

from __future__ import annotations

from dataclasses import dataclass, field

from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp.stated import Level
from robolearn.tasks.velocity_rough import VelocityRough


@dataclass
class HumanoidRough(VelocityRough):
    """A humanoid follows velocity commands over slopes, stairs, blocks and bumps."""

    curricula: dict[str, Level] = field(default_factory=lambda: dict(HumanoidWalk().curricula))
