"""The commands for Isaac Lab in the documentation."""

from __future__ import annotations

import shlex

import pytest

from robolearn import cli
from robolearn.commands import exits
from tests.test_docs import PAGES, robolearn_commands

pytest.importorskip("isaaclab_tasks")


def test_documented_isaac_lab_commands_resolve(capsys):
    words = ("task=isaaclab:", "backend=isaaclab")
    found = [c for page in PAGES for c in robolearn_commands(page) if any(w.startswith(words) for w in c)]
    trained = [command for command in found if command[0] == "train"]
    assert {word.partition(":")[0] for c in trained for word in c if word.startswith(words)} == {
        "task=isaaclab",
        "backend=isaaclab",
    }
    for command in trained:
        assert cli.main([*command, "--show"]) == exits.OK, f"{shlex.join(command)}: {capsys.readouterr().err}"
