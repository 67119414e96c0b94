"""A hopper that is to hop backwards at 1.5 m/s: its true reward, and a judge who sees it. For docs/preferences.md:

robolearn train task=scripts/hop_backwards.py:HopBackwards max_iterations=200
robolearn train task=hopper_run learner.preference_script=scripts/hop_backwards.py:judge learner.preferences=answers ...
"""

from __future__ import annotations

from dataclasses import dataclass, field

from robolearn.envs.state import State, Tensor
from robolearn.learners.preference.segments import Segment
from robolearn.tasks.hopper_run import HopperRun
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.stated import Reward, reward

WANTED = -1.5
"""Velocity along x [m/s]."""
EQUAL = 0.05
"""Difference of two mean velocities' distances from it up to which segments are equally good [m/s]."""


def backward(state: State, ctx: Context) -> Tensor:
    """How close the velocity along x is to the wanted one (N,): 1 there, 0 at rest."""
    return 1.0 - (state.robot.joint_vel[:, 0] / WANTED - 1.0).square()


@dataclass
class HopBackwards(HopperRun):
    """A hopper with the judge's wish as its reward."""

    rewards: dict[str, Reward] = field(
        default_factory=lambda: {"backward": reward(backward, 2.0), "alive": reward(terms.alive, 1.0)}
    )


def judge(first: Segment, second: Segment) -> int:
    """The segment whose mean velocity is nearer to the wanted one; 0 where they are about equal."""
    a, b = (
        abs(float(each.item("critic", "joint_vel_rel")[:, 0].mean()) - WANTED) for each in (first, second)
    )
    if abs(a - b) < EQUAL:
        return 0
    return 1 if a < b else 2
