"""The command line: messages, exit codes, help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robolearn import cli, config
from robolearn.commands import exits
from robolearn.commands.export import TARGETS
from robolearn.errors import ConfigError, MissingError, one_line, quote


def test_a_message_is_one_printable_line_of_bounded_length() -> None:
    assert one_line("a\nb\t c\x1b[0m\udcff") == r"a b c\x1b[0m\udcff"
    assert len(one_line("x" * 10_000)) == 400
    assert quote("x" * 100) == "'" + "x" * 57 + "...'"
    assert str(ConfigError("two\nlines")) == "two lines"


def raise_from_a_library() -> None:
    import numpy as np

    np.zeros(3).reshape(2, 2)


def raise_in_robolearn_through_a_library() -> None:
    from robolearn.commands.bench.rates import Spread

    Spread.of([])  # raises a ValueError in `statistics`


def raise_a_value_error_in_robolearn() -> None:
    raise ValueError("not a ConfigError")


def raise_missing() -> None:
    raise MissingError("no renderer: install EGL or OSMesa")


def raise_on_disk() -> None:
    Path("/proc/none/x").mkdir()


def interrupt() -> None:
    raise KeyboardInterrupt


def raise_config_error() -> None:
    from robolearn.envs.robot import Robot

    Robot.load("/nowhere")


@pytest.mark.parametrize(
    ("body", "code", "shown"),
    [
        (raise_missing, exits.MISSING, "no renderer"),
        (raise_on_disk, exits.BAD_INPUT, "No such file or directory"),
        (raise_config_error, exits.BAD_INPUT, "robot.yaml"),
        (interrupt, exits.INTERRUPTED, ""),
        (raise_from_a_library, exits.BUG, "Traceback"),
        (raise_in_robolearn_through_a_library, exits.BUG, "Traceback"),
        (raise_a_value_error_in_robolearn, exits.BUG, "Traceback"),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_only_a_bug_shows_a_traceback(
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
def test_help_list_and_version_exit_with_0_and_no_error_output(words: list[str], capsys) -> None:
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert err == ""
    if words[-1:] == ["--help"]:
        for code in (0, 1, 2, 3, 4, 70, 130):
            assert f" {code} " in out


def test_the_help_of_export_lists_every_export_target() -> None:
    from robolearn.export import target

    assert sorted(TARGETS.split(", ")) == target.names()


TASK = """
from __future__ import annotations

from dataclasses import dataclass

from robolearn.tasks.cartpole import CartpoleBalance

calls = 0


@dataclass
class Faulty(CartpoleBalance):
    def {method}(self, *arguments):
        global calls
        calls += 1
        return {body}
"""
TINY = ["num_envs=8", "max_iterations=2", "device=cpu", "learner.num_steps=4"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task.control_dt=0.025"], "task.control_dt=0.025 is not a multiple"),
        (["backend.timestep=1e-6"], "backend.timestep=1e-06"),
        (["task.randomize={payload: [1, 1]}"], "payload"),
        (["learner.symmetry=equivariant"], "use learner.symmetry=none"),
        (["learner.max_kl=0.001"], "max_kl=0.001"),
        (["backend=mujoco", "device=cuda"], "device=c"),
    ],
)
def test_an_invalid_setting_is_exit_code_2_and_named_and_writes_nothing(
    words, said, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "task=cartpole_balance", *TINY, *words]) == exits.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("joint_targets", "arguments[0][:, :0]", "joint_targets() returns"),
        (
            "reward_terms",
            "{**super().reward_terms(), 'upright': lambda state, ctx: ctx.command}",
            "'upright' returns",
        ),
        ("terminations", "{'late': lambda state, ctx: ctx.robot.per_joint({'knee': 1.0}) > 0}", "knee"),
    ],
)
def test_an_error_in_a_users_task_is_exit_code_2_and_names_the_method_or_term(
    method, body, said, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TASK.replace("{method}", method).replace("{body}", body))
    words = ["task=mine.py:Faulty", *TINY, f"output={tmp_path / 'run'}"]
    assert cli.main(["train", *words]) == exits.BAD_INPUT
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("given", ["", "0", "1", "'no licence'"])
def test_a_task_that_ends_the_process_is_a_run_that_failed(given: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "leaving.py"
    path.write_text(
        "import sys\nfrom robolearn.tasks.cartpole import CartpoleBalance\n\n"
        f"class Leaving(CartpoleBalance):\n    def scene(self, robot):\n        sys.exit({given})\n"
    )
    assert (
        cli.main(["train", f"task={path}:Leaving", "num_envs=2", f"output={tmp_path / 'run'}"])
        == exits.RUN_FAILED
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "sys.exit" in line


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does, at once
    command = [sys.executable, "-m", "robolearn.cli", "list"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (exits.OK, "")


@pytest.mark.parametrize("word", ["weights=runs/other", "guard=on", "guard.patience=3", "ranks=2"])
def test_a_setting_of_trainings_is_refused_for_a_trained_policy(word: str, capsys) -> None:
    assert cli.main(["eval", "pretrained:humanoid_walk", word, "--episodes", "1"]) == exits.BAD_INPUT
    assert word in capsys.readouterr().err


def test_an_empty_name_of_a_backend_is_refused(capsys) -> None:
    assert (
        cli.main(["eval", "pretrained:humanoid_walk", "--backend", "", "--episodes", "1"]) == exits.BAD_INPUT
    )
    assert "backend" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--num_envs", "64"], "num_envs=VALUE"),
        (["--task", "cartpole_balance"], "task=VALUE"),
        (["--max-iterations=2"], "max_iterations=VALUE"),
        (["cartpole_balance"], "task=cartpole_balance"),
    ],
)
def test_a_setting_written_as_an_option_and_a_task_without_its_key_are_told_how_to_write_it(
    words, fix, capsys
):
    assert cli.main(["train", *words]) == exits.BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert fix in line
