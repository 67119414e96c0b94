"""Networks are not loaded for observation groups in another order."""

from __future__ import annotations

from pathlib import Path

import pytest

from robolearn import config
from robolearn.cli import main
from robolearn.commands.exits import BAD_INPUT
from robolearn.training.train import train

SMALL = [
    "task=hopper_run",
    "num_envs=4",
    "learner.num_steps=4",
    "learner.minibatch_size=16",
    "torch_threads=1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups") / "run"
    words = [*SMALL, "max_iterations=1", "learner.critic_groups=[policy,critic]", f"output={folder}"]
    return train(config.resolve(words))


@pytest.mark.parametrize("how", ["resume", "weights"])
def test_the_same_critic_groups_in_another_order_are_refused_by_name(
    how: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "learner.critic_groups=[critic,policy]"
    words = [] if how == "resume" else SMALL
    assert (
        main(["train", *words, f"{how}={run}", other, "max_iterations=2", f"output={tmp_path}"]) == BAD_INPUT
    )
    said = capsys.readouterr().err
    assert "learner.critic_groups" in said
    assert "[policy,critic]" in said


def test_the_same_order_goes_on(run: Path, tmp_path: Path) -> None:
    words = [*SMALL, f"weights={run}", "learner.critic_groups=[policy,critic]", "max_iterations=1"]
    assert main(["train", *words, f"output={tmp_path}"]) == 0
