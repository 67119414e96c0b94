"""The main job: RoboLearn's own humanoid walks where it is told, on flat ground, and stands when asked to.

All of it is the task `velocity`, which takes any robot on legs; this is its name on the humanoid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from robolearn.tasks.mdp.stated import Level, level
from robolearn.tasks.velocity import Velocity


@dataclass
class HumanoidWalk(Velocity):
    """A humanoid follows velocity commands: forward, sideways, turning, and standing still."""

    # With the 4.0 of other robots it stands worse (docs/experiments.md).
    curricula: dict[str, Level] = field(
        default_factory=lambda: {
            "commands": level(Velocity.keeping_up, 1.0, rise=0.0, drop=0.0),
            "pushes": level(Velocity.staying_up, 0.0, most=2.5, full=2.0, rise=0.2, drop=1.2),
        }
    )
    # The figures of docs/humanoid_walk.md are without a bound.
    defaults: ClassVar[dict[str, Any]] = {**Velocity.defaults, "learner.mean_bound": 0.0}
