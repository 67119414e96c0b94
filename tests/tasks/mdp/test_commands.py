"""Ranges of commands, pushes, noise and physical parameters: what is refused."""

from __future__ import annotations

import pytest

from robolearn import config
from robolearn.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("task.pushes.speed=[0.5,0]", "[0.0,0.5]"),
        ("task.pushes.seconds=[6,3]", "[3.0,6.0]"),
        ("task.commands.forward=[1,-1]", "[-1.0,1.0]"),
        ("task.commands.seconds=[0,3]", "longer than 0 s"),
    ],
)
def test_a_range_of_commands_or_pushes_with_swapped_ends_is_refused_with_the_right_one(
    word: str, right: str
) -> None:
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=humanoid_walk", word])
    assert word.partition("=")[0] in str(error.value)
    assert right in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        "task.noise.base_ang_vel=-0.1",
        "task.noise.base_ang_vel=1e9",
        "task.randomize.friction=[0,1]",
        "task.randomize.friction=[0.5,1e6]",
        "task.randomize.friction=[2,1]",
        "task.randomize.mass_scale=[1e-6,1]",
        "task.randomize.mass_scale=[1,1000]",
        "task.randomize.gain_scale=[1,1e30]",
        "task.pushes.speed=[0,1e6]",
        "task.pushes.seconds=[1,1e30]",
        "task.commands.forward=[0,1e9]",
        "task.commands.yaw=[-1e9,0]",
        "task.commands.seconds=[1,1e30]",
        "task.action_delay=[0,1000]",
        "task.observation_delay=[-1,0]",
        "task.control_dt=1e9",
        "task.episode_length_s=1e30",
    ],
)
def test_numbers_beyond_their_bounds_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=humanoid_walk", word])
    assert word.partition("=")[0] in str(error.value)


@pytest.mark.parametrize(
    "word", ["task.noise.base_ang_vel=0", "task.randomize={friction: [0.001, 10], mass_scale: [0.01, 100]}"]
)
def test_the_ends_of_the_bounds_are_allowed(word: str) -> None:
    config.resolve(["task=humanoid_walk", word])
