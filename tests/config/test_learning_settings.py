"""Settings of learning that would have no effect, or contradict each other, are refused by name."""

from __future__ import annotations

import pytest

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["learner.reference_kl=0.1"], "learner.reference=RUN"),
        (["learner=grpo", "learner.reference_kl=0.1"], "learner.reference=RUN"),
        (["learner=grpo", "learner.clip=0.3"], "clip_high=0.2"),
    ],
)
def test_a_setting_without_what_it_needs_is_refused(words, named):
    with pytest.raises(ConfigError, match=named):
        config.resolve(["task=cartpole_balance", *words])


def test_weights_are_for_a_new_run(trained, capsys):
    assert main(["train", f"resume={trained}", "weights=pretrained:humanoid_walk", "max_iterations=3"]) == 2
    assert "weights=" in capsys.readouterr().err
