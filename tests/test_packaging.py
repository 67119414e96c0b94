"""What is shipped: the archives contain the four folders as regular files; an installed copy finds its robots."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCE = shutil.ignore_patterns(
    *(".git", ".venv*", ".robots", "*.egg-info", "build", "dist", "runs", "__pycache__", ".*_cache"),
    *(".hypothesis", ".whl"),
)

SHIPPED = (
    "robolearn/__init__.py",
    "robolearn/py.typed",
    "robolearn/learners/ppo/ppo.py",
    "robolearn/envs/mujoco/backend.py",
    "robolearn/envs/robots/humanoid/humanoid.xml",
    "robolearn/envs/robots/humanoid/robot.yaml",
    "robolearn/envs/robots/cartpole/cartpole.xml",
    "robolearn/envs/robots/cartpole/robot.yaml",
    "robolearn/tasks/humanoid_walk.py",
    "robolearn/export/__init__.py",
    "robolearn/export/targets/jetson-thor.yaml",
    "robolearn/commands/report/page.css",
    "robolearn/commands/report/page.html",
    "robolearn/commands/report/page.js",
    "robolearn/runtime/main.py",
    "robolearn/pretrained/humanoid_walk/config.yaml",
    "robolearn/pretrained/humanoid_walk/contract.json",
    "robolearn/pretrained/humanoid_walk/policy.pt",
)

USE = """
import sys
from pathlib import Path

import robolearn.export
import robolearn.tasks.humanoid_walk
from robolearn.config import registry
from robolearn.envs.robot import Robot

here = Path(sys.argv[1])
for package in (robolearn.export, robolearn.tasks):
    assert Path(package.__file__).is_relative_to(here), package.__file__
robot = Robot.load(registry.load("robots", "humanoid"))
assert robot.mjcf.is_relative_to(here), robot.mjcf
print(*registry.names("tasks"), *registry.names("robots"))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(tree, sdist, wheel built from the sdist), in a copy of the tree, because a build writes into it."""
    tree, out = tmp_path_factory.mktemp("tree") / "robolearn", tmp_path_factory.mktemp("out")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree))
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return tree, sdist, wheel


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_sdist_contains_regular_files_and_no_links(built: tuple[Path, Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    for name in (*SHIPPED, "LICENSE", "README.md", "pyproject.toml"):
        assert name in members, f"{name} is missing"
        assert members[name].isfile(), f"{name} is a link"
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]


@pytest.mark.slow
def test_the_wheel_contains_the_whole_package_and_nothing_else(built: tuple[Path, Path, Path]) -> None:
    with zipfile.ZipFile(built[2]) as archive:
        names = set(archive.namelist())
    assert set(SHIPPED) <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"robolearn", next(t for t in tops if t.endswith(".dist-info"))}
    assert not [name for name in names if "__pycache__" in name]
    # Every source file is in the wheel: no folder and no file type is missing.
    for folder in ("robolearn", "envs", "tasks", "export"):
        prefix = "" if folder == "robolearn" else "robolearn/"
        for path in (built[0] / folder).rglob("*"):
            if path.is_file():
                assert prefix + path.relative_to(built[0]).as_posix() in names


@pytest.mark.slow
def test_an_installed_copy_finds_its_tasks_and_robots(built: tuple[Path, Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(built[2]),
    )
    # With another working folder and the copy first on the path, this cannot import the editable install.
    environment = {**os.environ, "PYTHONPATH": str(site)}
    output = run(sys.executable, "-c", USE, str(site), cwd=tmp_path, env=environment)
    assert {"cartpole_balance", "humanoid_walk", "cartpole", "humanoid"} <= set(output.split())


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


SEPARATE = "isaaclab"
"""The extra that is installed into a separate environment, with separate constraints."""


def requirements(separate: bool = False) -> list[Requirement]:
    """Dependencies of the package with all extras except SEPARATE, or with SEPARATE alone."""
    about = project()
    extras = about["optional-dependencies"]
    assert isinstance(extras, dict)
    rows = [row for name, rows in extras.items() if (name == SEPARATE) == separate for row in rows]
    return [Requirement(text) for text in (*about["dependencies"], *rows)]


def constraints(name: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins = (re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


@pytest.mark.parametrize(
    ("file", "separate"), [("constraints.txt", False), ("constraints-isaaclab.txt", True)]
)
def test_every_dependency_is_pinned_within_its_range(file: str, separate: bool) -> None:
    pins = constraints(file)
    for requirement in requirements(separate):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{file} does not pin {name}"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is not {requirement}"


def test_every_constraint_is_of_a_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert len(constraints()) == len([line for line in lines if line and not line.startswith("#")])
    assert set(constraints()) == {canonicalize_name(requirement.name) for requirement in requirements()}


def test_the_extra_of_a_backend_installs_the_modules_it_requires() -> None:
    from robolearn.config.tables import BACKENDS

    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    known = {"warp": "warp-lang", "isaaclab_newton": "isaaclab"}
    for name, row in BACKENDS.items():
        wanted = {canonicalize_name(Requirement(text).name) for text in extras[row.extra]}
        needed = {canonicalize_name(known.get(module, module.partition(".")[0])) for module in row.requires}
        assert needed <= wanted, f"backend {name}"
