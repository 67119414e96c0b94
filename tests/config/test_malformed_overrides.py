"""Malformed command lines: exit code 2, one printable line on stderr, no output and no files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robolearn import cli, config
from robolearn.commands import exits
from robolearn.config import fields
from robolearn.config.schema import SCALARS, SECTIONS
from robolearn.errors import LINE

TASK = "task=humanoid_walk"
INTEGERS = ["num_envs", "seed", "max_iterations", "checkpoint_interval", "torch_threads"]
NUMBERS = {
    "learner.learning_rate": TASK,
    "learner.gamma": TASK,
    "task.rewards.posture": TASK,
    "task.control_dt": TASK,
    "task.rewards.swing_height.height": TASK,
    "task.terminations.fallen.height": TASK,
    "task.min_height": "task=ant_run",
}
"""Settings that take a number, with a task that has them; the last is a short name."""
PAIRS = ["task.commands.forward", "task.commands.yaw"]

Case = tuple[str, list[str], str]


def misspelt(word: str) -> list[str]:
    """The word with a letter left out, one doubled, and two swapped."""
    middle = len(word) // 2
    found = [
        word[:middle] + word[middle + 1 :],
        word[:middle] + word[middle] + word[middle:],
        word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :],
    ]
    return [wrong for wrong in found if wrong != word]  # the two letters may be the same


def cases() -> Iterator[Case]:
    """(class, words, what the message must contain)."""
    for key in ["num_envs", "learner.learning_rate", "task.rewards.posture"]:
        for text in (
            f"{key}",
            f"{key}==3",
            f"{key}=[1",
            f"{key}=1]",
            f"{key}={{a:1",
            f"{key}={{a}}",
            f"{key}=(1,2)",
            f"{key}='open",
            f'{key}="open',
            f"{key}=foo(1)",
            f"{key}=int(x)",
            f"{key}=1 [2",
            f"{key}={{a:1}}}}",
            f"{key}=a:{{",
            f"{key}=[,]",
            f"{key}=)",
        ):
            yield "grammar", [TASK, text], key
        for text in (f"{key}=", f"{key}=   ", f"{key}=???", f"{key}=\t", f"{key}=''"):
            yield "empty", [TASK, text], key
    for text in (
        "=3",
        "==",
        "=",
        " =1",
        "",
        " ",
        "1num=3",
        ".num_envs=3",
        "num_envs.=3",
        "task..rewards=1",
        "[]=1",
    ):
        yield "key", [text], ""
    for text in (
        "num-envs=3",
        "num envs=3",
        "num_envs:3",
        "num_envs:x=3",
        "'num_envs'=3",
        "num_envs[0]=1",
        "a$=1",
    ):
        yield "key", [text], ""
    for text in (
        "task/rewards=1",
        "task@pkg=cartpole_balance",
        "task@=x",
        "@=1",
        "task@a:b=c",
        "backend@_global_=x",
    ):
        yield "package", [text], ""

    for key in [*SCALARS, *SECTIONS]:
        for wrong in misspelt(key):
            yield "unknown", [f"{wrong}=3"], key
    for key in ["task.robot", "task.control_dt", "task.rewards.track_velocity", "task.commands.forward"]:
        for wrong in misspelt(key.rpartition(".")[2]):
            yield "unknown", [TASK, f"{key.rpartition('.')[0]}.{wrong}=3"], key
    for key in ["learner.learning_rate", "learner.gamma", "learner.entropy_coef", "backend.threads"]:
        for wrong in misspelt(key.rpartition(".")[2]):
            yield "unknown", [TASK, f"{key.rpartition('.')[0]}.{wrong}=3"], key
        yield "misplaced", [TASK, f"{key.rpartition('.')[2]}=3"], key
        yield "misplaced", [f"{key.rpartition('.')[2]}=3"], key
        yield "misplaced", [TASK, f"task.{key.rpartition('.')[2]}=3"], key
    yield "misplaced", [TASK, "rewards.posture=1"], "task.rewards.posture"
    yield "misplaced", [TASK, "posture=1"], "task.rewards.posture"
    yield "unknown", [TASK, "task.rewards={psoture:1}"], "posture"
    for text in ("xyzzy=1", "task.xyzzy=1", "learner.qqq.rrr=1", "num_envs.x=1", "task.rewards.posture.x=1"):
        yield "unknown", [TASK, text], ""
    for text in (
        "schema=2",
        "task.name=x",
        "backend.name=x",
        "learner.name=ppo",
        "task_name=x",
        "backend_name=x",
    ):
        yield "fixed", [TASK, text], ""

    for key in INTEGERS:
        for value in (
            "abc",
            "1.5",
            "1e3",
            "true",
            "null",
            "[1]",
            "{a:1}",
            "'3'",
            "0x10",
            "1k",
            "4096.0",
            "None",
        ):
            yield "type", [f"{key}={value}"], f"{key} takes a whole number"
    for key, task in NUMBERS.items():
        for value in ("abc", "true", "null", "[1]", "'1.0'", "1e", "--1", "1/2"):
            yield "type", [task, f"{key}={value}"], f"{key} takes a number"
        for value in ("{a:1}", "1,0e3"):
            yield "type", [task, f"{key}={value}"], key
    for key in PAIRS:
        for value in ("1", "[1]", "[1,2,3]", "[a,b]", "{a:1}", "null", "[[1],2]", "[]", "'[0,1]'", "[1,nan]"):
            yield "type", [TASK, f"{key}={value}"], key
    for key in ("task", "task.rewards", "task.commands", "learner", "backend"):
        for value in ("[1]", "{}1", "[]"):
            yield "type", [TASK, f"{key}={value}"], key.split(".")[0]
    for value in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "[cpu]", "null", "tpu", "cuda:1000"):
        yield "type", [f"device={value}"], "device"
    for text in ("resume=[1]", "output={a:1}", "learner.clip_value_loss=1", "learner.clip_value_loss=on"):
        yield "type", [TASK, text], ""
    for value in ("3", "linear", "adaptve", "null"):
        yield "choice", [TASK, f"learner.schedule={value}"], "learner.schedule"

    for key in INTEGERS:
        for value in ("-1", "-9999999999", "1" + "0" * 30, "9" * 400, "1e12", "1_000_000_000_000_000"):
            yield "range", [f"{key}={value}"], key
    for text in ("num_envs=0", "max_iterations=0", "num_envs=1000000000000", "checkpoint_interval=0"):
        yield "range", [text], "from 1 to"
    for text in ("task.control_dt=0", "task.control_dt=-0.02", "task.control_dt=1e9", "backend.threads=-1"):
        yield "range", [TASK, text], ""

    for key, task in NUMBERS.items():
        for value in ("nan", "NaN", "inf", "-inf", "1e400", "-1e400", ".nan", "-.inf", "Infinity", "[nan]"):
            yield "not finite", [task, f"{key}={value}"], f"{key} takes a"

    for key in ["num_envs", "task", "output", "task.rewards.posture", "task.commands.forward"]:
        for value in (
            "${oc.env:HOME}",
            "${seed}",
            "'${seed}'",
            "[${seed},1]",
            "x${seed}",
            "${",
            "${oc.decode:'!!python/object'}",
        ):
            yield "interpolation", [TASK, f"{key}={value}"], "interpolation"

    for key in ["num_envs", "seed", "task", "learner.learning_rate"]:
        for value in (
            "1,2",
            "a,b,c",
            "range(1,4)",
            "choice(1,2)",
            "glob(*)",
            "interval(0,1)",
            "sort(3,1)",
            "shuffle(1,2)",
            "choice(a)",
        ):
            yield "sweep", [TASK, f"{key}={value}"], "sweep"

    for prefix in ("~", "+", "++", "+++"):
        for text in ("num_envs", "num_envs=1", "task.rewards.posture=1", "hydra.x=1", "", "="):
            yield "add or delete", [TASK, prefix + text], "fixed"
    for key in (
        "hydra",
        "hydra.run.dir",
        "hydra.sweep.dir",
        "hydra/launcher",
        "hydra.job.name",
        "hydra@x",
        "hydra.a.b",
    ):
        yield "hydra", [TASK, f"{key}=x"], "Hydra"

    yield "unicode", ["n\u03c5m_envs=3"], "GREEK SMALL LETTER UPSILON (U+03C5): did you mean num_envs?"
    yield "unicode", ["num\u2010envs=3"], "HYPHEN"
    for strange in "\u00e9\u0430\u200b\u202e\ufeff\u00a0\u2028\x00\x1b\r\n\x7f\u0301\U0001f916\udcff\uff4e":
        yield "unicode", [f"num{strange}_envs=3"], "U+"
        yield "unicode", [f"seed={strange}"], ""
        yield "unicode", [f"task=humanoid{strange}_walk"], ""
        yield "unicode", [TASK, f"output=a{strange}b", "num_envs=0"], ""
    for value in ("\u0663", "\uff14", "\u00b2", "\u216b", "\u2212 1", "\u221e"):
        yield "unicode", [f"num_envs={value}"], "num_envs"

    yield "overlong", ["k" * 5000 + "=1"], "5002 characters"
    yield "overlong", ["num_envs=" + "1" * 5000], "characters"
    yield "overlong", ["num_envs=" + "x" * 4000], "num_envs"
    yield "overlong", ["x" * 3000 + "=" + "y" * 1000], ""
    yield "overlong", [".".join("abcdefgh" for _ in range(400)) + "=1"], ""
    yield "overlong", ["num_envs=" + "[" * 300 + "]" * 300], ""
    yield "overlong", ["num_envs=" + "[" * 2000], ""
    yield "overlong", ["output=[" + ",".join("a" for _ in range(2000)) + "]"], "output"
    yield "overlong", [TASK, "learner.schedule=" + "z" * 3000], "learner.schedule"
    yield "overlong", ["task=" + "\x1b[31m" * 700], ""
    yield "overlong", ["task=" + "q" * 4000 + ".py:Task"], ""
    yield "overlong", ["num_envs=" + "9" * 4000], "num_envs"

    yield (
        "name",
        [],
        "task=NAME; valid: ant_run, arm_lift, arm_reach, bimanual, carry, cartpole_balance, cartpole_swingup",
    )
    yield "name", ["seed=3"], "no task is named"
    for wrong in (
        *misspelt("humanoid_walk"),
        "humanoid_wlak",
        "HumanoidWalk",
        "humanoid-walk",
        "humanoidwalk",
    ):
        yield "name", [f"task={wrong}"], "did you mean humanoid_walk"
    for wrong in misspelt("cartpole_balance"):
        yield "name", [f"task={wrong}"], "did you mean cartpole_balance"
    yield "name", [TASK, "learner=pppo"], "did you mean ppo"
    yield "name", [TASK, "backend=mujocoo"], "did you mean mujoco"
    yield "name", [TASK, "task.robot=humanod"], "did you mean humanoid"
    yield "name", [TASK, "task.robot=g1"], "did you mean unitree_g1 or"
    yield "none", [TASK, "task.pushes=null"], "task.pushes"
    yield "blind", ["task=humanoid_rough", "task.noise.height_scan=0.1"], "task.noise.height_scan"
    for value in (
        "1",
        "true",
        "a.b.c",
        "nowhere.py:X",
        "nowhere.py",
        "/etc/passwd",
        "os:system",
        "..",
        "x.py:",
        "/:A",
    ):
        yield "name", [f"task={value}"], ""
    for value in ("nowhere", "/etc/passwd", "/", "pretrained:x", "."):
        yield "name", [f"resume={value}"], ""

    yield "option", ["--shwo"], "--show"
    yield "option", ["--show=1"], "--show"
    for word in ("-x", "--", "---", "--num_envs=3", "-1=3", "--=", "-\n", "--\u03c5"):
        yield "option", [word], ""


CASES = list(cases())


@pytest.fixture
def refused(capsys, monkeypatch, tmp_path):
    """Runs a command line that must be refused, and returns its error line."""

    def start(*args: object, **kwargs: object) -> None:
        raise AssertionError("a malformed override started a run")

    # Only the function: modules that a command imports would keep a stub of the module.
    monkeypatch.setattr("robolearn.training.train.train", start)
    monkeypatch.chdir(tmp_path)

    def run(words: list[str]) -> str:
        code = cli.main(words)
        out, err = capsys.readouterr()
        assert code == exits.BAD_INPUT, err
        assert out == ""
        assert err.endswith("\n")
        line = err[:-1]
        assert line.startswith("robolearn: ")
        assert len(line) > len("robolearn: ") + 5
        assert line.isprintable()  # so there is no newline, no escape sequence and no lone surrogate in it
        assert len(line) <= LINE + len("robolearn: ")
        assert "Traceback" not in line
        assert list(tmp_path.iterdir()) == []
        return line

    return run


def test_there_are_at_least_300_different_cases() -> None:
    assert len(CASES) >= 300
    assert len({tuple(words) for _, words, _ in CASES}) >= 300


@pytest.mark.parametrize(
    ("words", "expected"),
    [case[1:] for case in CASES],
    ids=[f"{i}-{case[0].replace(' ', '_')}" for i, case in enumerate(CASES)],
)
def test_a_malformed_override_is_refused_with_one_line(refused, words: list[str], expected: str) -> None:
    assert expected in refused(["train", *words])


def test_the_braces_that_are_printed_for_a_key_with_a_star_are_read(refused) -> None:
    said = refused(["train", "task=stand", "robot.actuators.*_knee.kp=80"])
    fix = said.partition("in braces: '")[2].partition("'")[0]
    made = config.resolve(["task=stand", fix])
    assert made.robot == {"actuators": {"*_knee": {"kp": 80}}}


def test_every_setting_of_humanoid_walk_is_suggested_for_its_misspelling(refused) -> None:
    run = config.resolve([TASK])
    every = [path for group in SECTIONS for path in fields.paths(getattr(run, group), group) if "." in path]
    assert len(every) > 40
    for path in every:
        parent, _, last = path.rpartition(".")
        if len(last) >= 5:
            line = refused(["train", TASK, f"{parent}.{last[:2]}{last[3:]}=1"])
            assert path in line, line


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["trian"], "train"),
        (["lst"], "list"),
        (["list", "taks"], "tasks"),
        (["sim", "--polcy", "zero"], "--policy"),
        (["eval", "--episods", "3"], "--episodes"),
        (["eval", "--episodes", "0"], "--episodes"),
        (["play", "--seconds", "x"], "--seconds"),
        (["sim"], "humanoid_walk"),
        (["sim", "--task", "humanoid_wlak"], "humanoid_walk"),
        (["sim", "--task", "humanoid_walk", "--backend", "mujco"], "mujoco"),
        (["eval", "one", "two"], "'two'"),
    ],
)
def test_malformed_options_of_other_commands_are_refused_with_one_line(
    refused, words: list[str], right: str
) -> None:
    assert right in refused(words)


@pytest.mark.parametrize("value", ["99999999999999999999", "inf", "nan", "-1"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("eval", "--episodes"),
        ("play", "--seconds"),
        ("sim", "--steps"),
        ("sim", "--num-envs"),
        ("sim", "--seed"),
        ("sim", "--min-real-time-factor"),
        ("sim", "--min-survival"),
        ("export", "--starts"),
        ("export", "--seconds"),
        ("export", "--measure-seconds"),
        ("deploy", "--seconds"),
        ("deploy", "--max-missed"),
        ("bench", "--rounds"),
        ("bench", "--warmup"),
        ("grad-check", "--directions"),
        ("grad-check", "--envs"),
    ],
)
def test_a_numeric_option_out_of_range_is_refused_by_name(refused, command, option, value) -> None:
    assert option in refused([command, *(["a-bundle"] if command == "deploy" else []), option, value])


@pytest.mark.parametrize(
    "words",
    [
        ["num_env=3"],
        ["task=humanoid_wlak"],
        ["n\u03c5m_envs=3"],
        ["num_envs=${oc.env:HOME}"],
        ["num_envs=1,2"],
        ["--shwo"],
        ["task=\x1b[31m"],
    ],
)
def test_the_command_in_a_process_of_its_own_refuses_with_one_line(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "robolearn.cli", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
