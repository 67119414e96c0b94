"""The command's shell: messages, exit codes, help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robolearn import cli, config
from robolearn.commands import exits
from robolearn.errors import ConfigError, MissingError, one_line, quote


def test_a_message_is_one_printable_line_of_bounded_length() -> None:
    assert one_line("a\nb\t c\x1b[0m\udcff") == r"a b c\x1b[0m\udcff"
    assert len(one_line("x" * 10_000)) == 400
    assert quote("x" * 100) == "'" + "x" * 57 + "...'"
    assert str(ConfigError("two\nlines")) == "two lines"


def raise_from_a_library() -> None:
    import numpy as np

    np.zeros(3).reshape(2, 2)


def raise_missing() -> None:
    raise MissingError("no renderer: install EGL or OSMesa")


def raise_on_disk() -> None:
    Path("/proc/none/x").mkdir()


def interrupt() -> None:
    raise KeyboardInterrupt


def raise_for_users() -> None:
    from robolearn.envs.robot import Robot

    Robot.load("/nowhere")


@pytest.mark.parametrize(
    ("body", "code", "shown"),
    [
        (raise_missing, exits.MISSING, "no renderer"),
        (raise_on_disk, exits.BAD_INPUT, "No such file or directory"),
        (raise_for_users, exits.BAD_INPUT, "robot.yaml"),
        (interrupt, exits.INTERRUPTED, ""),
        (raise_from_a_library, exits.BUG, "Traceback"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    body: Any, code: int, shown: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(config, "resolve", lambda words: body())
    assert cli.main(["train", "task=cartpole_balance"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert shown in err
    assert ("Traceback" in err) == (code == exits.BUG)


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["train", "--help"], ["list"], ["list", "robot"], ["--version"]]
)
def test_help_and_lists_end_well(words: list[str], capsys) -> None:
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert err == ""
    if words[-1:] == ["--help"]:
        for code in (0, 1, 2, 3, 4, 70, 130):
            assert f" {code} " in out


def test_the_help_of_export_names_every_target() -> None:
    from robolearn.export import target

    assert sorted(cli.TARGETS.split(", ")) == target.names()
