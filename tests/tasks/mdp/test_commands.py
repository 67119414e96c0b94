"""Commands and pushes: what is refused."""

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
def test_a_range_of_commands_or_pushes_that_runs_backwards_is_refused(word: str, right: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=humanoid_walk", word])
    assert word.partition("=")[0] in str(error.value)
    assert right in str(error.value)
