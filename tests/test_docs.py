"""The documentation is true: its commands run, its links exist, its tables match the code.

The commands of README.md run, in order, with small sizes appended. Those of the other pages are parsed as `robolearn`
parses them and, where they configure a training run, resolved.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from robolearn import cli
from robolearn.commands import exits
from robolearn.errors import ConfigError
from tests.envs.test_derive import biped

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

TINY = {
    "train": ["num_envs=8", "max_iterations=1"],
    "eval": ["task.episode_length_s=0.2", "--episodes", "2"],
    "play": ["--seconds", "0.1"],
    "sim": ["--steps", "10", "--num-envs", "2"],
    "export": ["--starts", "4", "--seconds", "0.1", "--measure-seconds", "0"],
    "report": ["--no-stills"],
    "plan": ["num_envs=8", "--iterations", "2"],
    "bench": ["num_envs=8", "--rounds", "1", "--warmup", "1"],
    "deploy": ["--seconds", "0.2", "--max-missed", "1"],
    "grad-check": ["--directions", "3", "--envs", "2"],
    "sweep": ["num_envs=8", "max_iterations=1"],
}
"""Arguments that make a command quick; the last value of a setting wins."""

EXPECTED = {
    "sim": (exits.OK, exits.CHECK_FAILED),
    "deploy": (exits.OK, exits.CHECK_FAILED),
    "play": (exits.OK, exits.MISSING),
    "robot": (exits.OK, exits.MISSING),
    "grad-check": (exits.OK, exits.MISSING),
}
"""Exit codes allowed besides 0: an untrained policy falls, and some machines lack a renderer or Warp."""


# ---------------------------------------------------------------------------------------- reading the pages


def fences(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The arguments of every command in a page's bash blocks."""
    lines = [line for block in fences(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def robolearn_commands(page: Path) -> list[list[str]]:
    """Commands of `robolearn`, without the program's name."""
    return [words[1:] for words in commands(page.read_text(encoding="utf-8")) if words[0] == "robolearn"]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """Links to a missing file or heading."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead


def parse(words: list[str]) -> None:
    """Raise what the command line would raise for these arguments; run nothing."""
    group: Any = cli.command()
    with group.make_context("robolearn", list(words), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, list(words))
        assert command is not None, f"there is no command {words[0]}"
        command.make_context(name, rest, parent=context).close()


# ---------------------------------------------------------------------------------------- the commands


@pytest.mark.slow
def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    readme = ROOT / "README.md"
    (task,) = [
        block for block in fences(readme.read_text(encoding="utf-8"), "python") if "@dataclass" in block
    ]
    (tmp_path / "my_task.py").write_text(task, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for words in robolearn_commands(readme):
        tiny = list(TINY.get(words[0], ()))
        if any(word.startswith("resume=") for word in words):
            tiny = ["max_iterations=2"]  # its size is the saved one
        code = cli.main([*words, *tiny])
        output = capfd.readouterr()
        assert code in EXPECTED.get(words[0], (exits.OK,)), (
            f"robolearn {shlex.join(words)}: exit {code}\n{output.err}"
        )
        if "resume=runs/walk" in words:
            assert "exactly" in output.out
    assert {path.name for path in (tmp_path / "runs" / "walk").iterdir()} >= {
        "config.yaml",
        "contract.json",
        "metrics.jsonl",
        "latest.pt",
        "checkpoints",
        "metrics.json",
    }


def test_the_commands_for_gymnasium_environments_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "bring_your_own.md"
    (mass,) = [block for block in fences(page.read_text(encoding="utf-8"), "python") if "class Mass" in block]
    (tmp_path / "my_env.py").write_text(mass, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    section = page.read_text(encoding="utf-8").partition("\n## gymnasium\n")[2].partition("\n## ")[0]
    found = [words[1:] for words in commands(section) if words[0] == "robolearn"]
    assert [words[0] for words in found] == ["train", "eval", "export", "train", "eval"]
    for words in found:
        tiny = {"train": ["num_envs=2", "max_iterations=1"], "eval": ["--episodes", "2"]}
        code = cli.main([*words, *tiny.get(words[0], TINY["export"])])
        assert code == exits.OK, f"robolearn {shlex.join(words)}: exit {code}\n{capfd.readouterr().err}"


def test_the_commands_for_pettingzoo_environments_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
    section = page.partition("\n## PettingZoo\n")[2].partition("\n## ")[0]
    found = [words[1:] for words in commands(section) if words[0] == "robolearn"]
    assert [words[0] for words in found] == ["train", "eval", "train", "train"]
    for words in found:
        tiny = {"train": ["num_envs=2", "max_iterations=1"], "eval": ["--episodes", "2"]}
        code = cli.main([*words, *tiny[words[0]]])
        assert code == exits.OK, f"robolearn {shlex.join(words)}: exit {code}\n{capfd.readouterr().err}"


def test_the_commands_of_the_distillation_example_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
    (learner,) = [block for block in fences(page, "python") if "class Distill:" in block]
    (tmp_path / "distill.py").write_text(learner, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    section = page.partition("\n## Your algorithm in RoboLearn's training loop\n")[2].partition("\n## ")[0]
    found = [words[1:] for words in commands(section)]
    assert [words[0] for words in found] == ["train", "train", "eval"]
    for words in found:
        tiny = ["num_envs=8", "max_iterations=1"] if words[0] == "train" else TINY["eval"]
        code = cli.main([*words, *tiny])
        assert code == exits.OK, f"robolearn {shlex.join(words)}: exit {code}\n{capfd.readouterr().err}"


def test_the_first_commands_for_a_robot_of_your_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    biped(tmp_path).rename(tmp_path / "my_robot.xml")
    monkeypatch.chdir(tmp_path)
    first = fences((ROOT / "docs" / "robots.md").read_text(encoding="utf-8"), "bash")[0]
    for words in commands(f"```bash\n{first}```\n"):
        code = cli.main([*words[1:], *TINY.get(words[1], ())])
        assert code in EXPECTED.get(words[1], (exits.OK,)), f"{shlex.join(words)}: {capfd.readouterr().err}"


SEPARATE = ("task=isaaclab:", "task=mjlab:", "backend=isaaclab")
"""Prefixes of arguments that need a separate virtual environment; tests/isaaclab resolves these commands there."""


def from_shipped() -> list[Any]:
    """Trainings on the pages that take the weights of a shipped policy, learn from it or stay near it."""
    return [
        pytest.param(words, id=f"{page.stem}-{i}")
        for page in PAGES
        for i, words in enumerate(robolearn_commands(page))
        if words[0] == "train" and any("=pretrained:" in word for word in words)
    ]


@pytest.mark.parametrize("words", from_shipped())
def test_a_training_that_starts_from_a_shipped_policy_fits_it(words: list[str], tmp_path: Path) -> None:
    assert cli.main([*words, *TINY["train"], f"output={tmp_path / 'run'}"]) == exits.OK


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    biped(tmp_path).rename(tmp_path / "my_robot.xml")
    (tmp_path / "my_go1").mkdir()
    (tmp_path / "my_go1" / "robot.yaml").write_text("schema: 2\nmjcf: ../my_robot.xml\n")
    for words in robolearn_commands(page):
        parse(words)
        from_file = any(".py:" in word for word in words)  # tests above run these
        if words[0] == "train" and not from_file and not any(word.startswith("resume=") for word in words):
            show = [] if "--show" in words else ["--show"]
            separate = any(word.startswith((*SEPARATE, "robot=unitree")) for word in words)
            allowed = (exits.OK, exits.MISSING) if separate else (exits.OK,)
            assert cli.main([*words, *show]) in allowed, shlex.join(words)


def test_the_pages_use_every_command() -> None:
    found = [words for page in PAGES for words in robolearn_commands(page)]
    assert {words[0] for words in found} == set(cli.command().commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("robolearn trian task=humanoid_walk", "trian"),
        ("robolearn eval --epsiodes 3", "epsiodes"),
        ("robolearn sim --steps many", "integer"),
    ],
)
def test_a_command_that_does_not_parse_is_found(line: str, complaint: str) -> None:
    ((_, *words),) = commands(f"```bash\n{line}\n```\n")
    with pytest.raises(Exception, match=complaint):
        parse(words)


def test_commands_are_read_as_a_shell_reads_them() -> None:
    bash = "```bash\nmake walk   # a comment\nrobolearn eval 'a=[1,1]' \\\n  --output x\n```\n"
    page = f"robolearn in a sentence\n\n{bash}```python\nrobolearn = 1\n```\n"
    assert commands(page) == [["make", "walk"], ["robolearn", "eval", "a=[1,1]", "--output", "x"]]


def test_the_make_targets_exist() -> None:
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = [
        words for page in PAGES for words in commands(page.read_text(encoding="utf-8")) if words[0] == "make"
    ]
    assert ["make", "walk"] in found
    assert ["make", "test"] in found
    for words in found:
        assert set(words[1:]) <= set(rules), shlex.join(words)


# ---------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# A heading, here\n[x](b.md) [y](a.md#a-heading-here) [z](#none) [w](https://example.org)\n"
    )
    assert dead_links(page) == ["b.md", "#none"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholders_are_left(page: Path) -> None:
    assert (
        re.findall(r"\b(?:TODO|FIXME|XXX|TBD|[A-Z]+_[A-Z_]+_?TABLE|[A-Z]+_TABLE)\b", page.read_text()) == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    for block in fences(page.read_text(encoding="utf-8"), "python"):
        code = compile(block, str(page), "exec", dont_inherit=True)
        exec(code, {"__name__": "example"})  # noqa: S102  a page of this repository


def test_the_exit_codes_are_those_of_the_command() -> None:
    rows = re.findall(r"^\| (\d+) \| ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    codes = [
        exits.OK,
        exits.CHECK_FAILED,
        exits.BAD_INPUT,
        exits.MISSING,
        exits.RUN_FAILED,
        exits.BUG,
        exits.LOST,
        exits.INTERRUPTED,
    ]
    assert [int(row) for row in rows] == codes


def test_the_exit_codes_of_an_export_are_those_of_its_runtime() -> None:
    from robolearn.runtime import errors

    rows = re.findall(
        r"^\| (\d+) \| ", (ROOT / "docs" / "export.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    codes = [value for name, value in vars(errors).items() if name.isupper()]
    assert {int(row) for row in rows} == {*codes, exits.CHECK_FAILED}


def table(page: str, heading: str) -> set[str]:
    """The names in backticks in the first column of a section's table."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def test_the_settings_are_all_explained() -> None:
    from robolearn.config.schema import SCALARS, SECTIONS

    assert table("training.md", "Settings") == {*SCALARS, *SECTIONS}


def test_the_fields_of_state_are_all_explained() -> None:
    from dataclasses import fields

    from robolearn.envs.state import Entity

    assert table("backends.md", "State") == {field.name for field in fields(Entity)}


def test_the_parts_of_a_backend_are_all_explained() -> None:
    from robolearn.envs.backend import Backend, GradientBackend

    members = (*vars(Backend), *vars(GradientBackend), *Backend.__annotations__)
    public = {name for name in members if not name.startswith("_")}
    assert table("backends.md", "The contract") == public


def test_the_parts_of_a_task_are_all_explained() -> None:
    from robolearn.tasks.mdp.task import Task

    public = {name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_")}
    assert table("tasks.md", "The parts") == public - {"items"}


def measurable(name: str) -> bool:
    """Whether a policy may observe an item of the vocabulary."""
    from robolearn.config import resolve
    from robolearn.core.measurable import reads
    from robolearn.training.build import make_env

    env = make_env(resolve(["task=stand"]), num_envs=1)
    only = type("Only", (type(env.task),), {"observations": {"policy": (name,), "critic": ()}})
    try:
        reads(only(), env.backend.state, env.ctx, env.num_actions)
    except ConfigError:
        return False
    finally:
        env.close()
    return True


def test_the_vocabulary_is_all_explained() -> None:
    from robolearn.tasks.mdp.observations import VOCABULARY

    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    section = text.partition("\n## Observations\n")[2].partition("\n## ")[0]
    policy, _, critic = section.partition("For the critic also")
    deployed = {name for name in VOCABULARY if measurable(name)}
    assert {"base_ang_vel", "object_pos", "last_action"} <= deployed
    assert not deployed & {"base_lin_vel", "physics", "foot_force"}
    named = set(re.findall(r"`(\w+)`", policy.partition("For the policy:")[2]))
    assert deployed <= named
    assert set(VOCABULARY) - deployed <= set(re.findall(r"`(\w+)`", critic))
