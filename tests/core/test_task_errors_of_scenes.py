"""What a task's scene() and initial_state() do wrong is one line that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from robolearn.cli import main
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import InitialState
from robolearn.tasks.carry import PARTNER, Carry


@dataclass
class NoPlace(Carry):
    """A place that is a tuple."""

    def scene(self, robot: Any) -> Scene:
        """Two vehicles."""
        return Scene({ROBOT: robot, PARTNER: robot}, places={PARTNER: (1.2, 0.0, 0.0)})  # type: ignore[dict-item]


@dataclass
class Typo(Carry):
    """An argument that a Scene does not have."""

    def scene(self, robot: Any) -> Scene:
        """Two vehicles."""
        return Scene({ROBOT: robot}, place={})  # type: ignore[call-arg]


@dataclass
class Incomplete(Carry):
    """An initial state without a base."""

    def initial_state(self, num_envs: int, ctx: Any, random: Any) -> Any:
        """Joints alone."""
        return InitialState(joint_pos=ctx.robot.home)  # type: ignore[call-arg]


@dataclass
class Fewer(Carry):
    """A row for each world, and not for each agent."""

    def initial_state(self, num_envs: int, ctx: Any, random: Any) -> Any:
        """Half of the rows."""
        whole: Any = super().initial_state(num_envs // 2, ctx, random)
        return whole


@pytest.mark.parametrize(
    ("task", "named"),
    [(NoPlace, "places.partner"), (Typo, "scene()"), (Incomplete, "initial_state()"), (Fewer, "a world")],
)
def test_a_mistake_in_a_tasks_scene_is_one_line(task, named, tmp_path, capsys):
    words = [
        f"task={__file__}:{task.__name__}",
        "num_envs=2",
        "max_iterations=1",
        f"output={tmp_path / 'run'}",
    ]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert named in said
