"""The layout: symlinks and packages, the direction of imports, and what files must not contain.

Every check is a function from a source tree to a list of problems. It must find none in this repository, and the fault
in small made-up trees with one fault each.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robolearn.config import registry

ROOT = Path(__file__).resolve().parents[1]

LINKED = ("envs", "tasks", "export")
"""Top-level folders that are packages through a symlink in robolearn/."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "moved", ""),  # "" is robolearn/__init__.py
    ("runtime",),
    ("config",),
    ("envs",),
    ("tasks",),
    ("core",),
    ("learners", "external"),
    ("training",),
    ("simulation",),
    ("views", "export"),
    ("commands",),
    ("cli",),
)
"""Folders and modules of robolearn from the lowest layer up. Each may import its row and the rows listed before it."""

LONGEST = 650
"""Largest number of lines of a source file; the rule in CONTRIBUTING.md is about 600."""

MAX_PARTS, MAX_LEVELS = 13, 9
"""Largest number of folders and modules directly under robolearn/, and longest chain of imports among them."""

OTHER_MACHINES = ("home", "media", "mnt", "root", "Users", "work", "workspace")
"""First components of absolute paths that depend on the machine."""

TEXT = {".cfg", ".md", ".py", ".sh", ".toml", ".txt", ".xml", ".yaml", ".yml"}
BUILT = {"__pycache__", "build", "dist", "runs"}


# ---------------------------------------------------------------------------------------- reading the tree


def files(root: Path) -> Iterator[Path]:
    """Every file of the project, without following symlinks and without build outputs."""
    for folder, inner, names in os.walk(root):
        hidden = {n for n in inner if n.startswith(".") and n not in (".ci", ".github")}
        inner[:] = sorted(set(inner) - hidden - BUILT - {n for n in inner if n.endswith(".egg-info")})
        yield from (Path(folder, name) for name in sorted(names))


def sources(root: Path) -> dict[str, Path]:
    """The package's modules by dotted name, robolearn.envs.mjcf -> envs/mjcf.py."""
    found = {}
    for path in files(root):
        parts = path.relative_to(root).with_suffix("").parts
        if path.suffix == ".py" and parts[0] in ("robolearn", *LINKED):
            dotted = parts if parts[0] == "robolearn" else ("robolearn", *parts)
            found[".".join(dotted).removesuffix(".__init__")] = path
    return found


def imports(tree: ast.AST, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """(line, module of robolearn) of every import below a node, including those in functions and `importlib` calls.

    Imports for type checkers only (`if TYPE_CHECKING`) do not count.
    """
    for node in ast.walk(without_types(tree)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from robolearn import config` names a module, `from robolearn.config import load` does not.
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        elif isinstance(node, ast.Call) and _imports_by_name(node.func) and node.args:
            names = list(_named(node.args[0], modules))
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.partition(".")[0] == "robolearn")


def _imports_by_name(function: ast.expr) -> bool:
    """importlib.import_module(...), import_module(...) or __import__(...)."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _named(argument: ast.expr, modules: dict[str, Path]) -> Iterator[str]:
    """The modules that an argument of `importlib` can name: a constant, or all with the prefix of an f-string."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        prefix = str(argument.values[0].value)
        yield from (name for name in modules if name.startswith(prefix))


def without_types(tree: ast.AST) -> ast.AST:
    """The node without the bodies of `if TYPE_CHECKING`."""

    class Strip(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            only_types = "TYPE_CHECKING" in ast.unparse(node.test)
            return ast.Module(node.orelse, []) if only_types else self.generic_visit(node)

    return Strip().visit(tree)


def part(module: str) -> str:
    """The folder or module directly under robolearn/ that contains a module."""
    return module.partition(".")[2].partition(".")[0]


def layer(module: str) -> int | None:
    """Row of a module in LAYERS: that of its folder."""
    return next((i for i, row in enumerate(LAYERS) if part(module) in row), None)


# ---------------------------------------------------------------------------------------- the checks


def links(root: Path) -> list[str]:
    """robolearn/envs is a symlink to ../envs on disk and, in a checkout, in git."""
    problems = []
    for name in LINKED:
        link = root / "robolearn" / name
        if not link.is_symlink() or os.readlink(link) != f"../{name}":
            problems.append(f"robolearn/{name} must be a symlink to ../{name}")
        elif not (root / name).is_dir():
            problems.append(f"robolearn/{name} is a broken link: there is no folder {name}")
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-s", *(f"robolearn/{name}" for name in LINKED)]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        modes = {line.split("\t")[1]: line.split()[0] for line in listed.splitlines()}
        for name in LINKED:
            mode = modes.get(f"robolearn/{name}")
            if mode != "120000":
                problems.append(f"robolearn/{name} is in git with mode {mode}, not as a link (120000)")
    return problems


def packages(root: Path) -> list[str]:
    """Every folder of modules has an __init__.py."""
    folders = {path.parent for path in sources(root).values()}
    bare = sorted(f for f in folders if not (f / "__init__.py").is_file())
    return [f"{f.relative_to(root)} has modules but no __init__.py" for f in bare]


def direction(root: Path) -> list[str]:
    """Imports, including those in functions, run from upper layers to lower ones."""
    problems = []
    modules = sources(root)
    for module, path in modules.items():
        level, where = layer(module), path.relative_to(root)
        if level is None:
            problems.append(f"{where} is in no layer: add it to LAYERS in tests/test_layout.py")
            continue
        for line, target in imports(ast.parse(path.read_bytes()), modules):
            imported = layer(target)
            if imported is not None and imported > level:
                problems.append(f"{where}:{line} imports {target}, which is in a layer above it")
    return problems


def cycles(root: Path) -> list[str]:
    """No module and no folder imports itself through others, including imports in functions."""
    modules = sources(root)
    graph: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = {target for _, target in imports(ast.parse(path.read_bytes()), modules)} - {module}
        parts.setdefault(part(module), set()).update(
            {part(target) for target in graph[module]} - {part(module)}
        )
    problems = []
    for arrows in (graph, parts):
        try:
            graphlib.TopologicalSorter(arrows).prepare()
        except graphlib.CycleError as error:
            problems.append(f"imports form a cycle: {' <- '.join(error.args[1])}")
    return problems[:1]


def few_parts(root: Path) -> list[str]:
    """robolearn/, without the linked folders, has few folders and modules on few levels."""
    modules = sources(root)
    arrows: dict[str, set[str]] = {}
    for module, path in modules.items():
        name = part(module)
        if name and name not in LINKED:
            imported = {part(target) for _, target in imports(ast.parse(path.read_bytes()), modules)}
            arrows.setdefault(name, set()).update(imported - {name, "", *LINKED})

    @functools.cache
    def level(name: str) -> int:
        return 1 + max((level(below) for below in arrows.get(name, ())), default=0)

    highest = max(level(name) for name in arrows)
    counts = ((len(arrows), MAX_PARTS, "folders and modules"), (highest, MAX_LEVELS, "levels"))
    return [f"robolearn/ has {n} {what} (limit {limit})" for n, limit, what in counts if n > limit]


def by_full_name(root: Path) -> list[str]:
    """`import robolearn.envs`, never `import envs` (a second module from the same file) or `from . import`."""
    problems = []
    for path in files(root):
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = ["." * node.level + (node.module or "")]
            else:
                continue
            for name in names:
                if name.startswith(".") or name.partition(".")[0] in LINKED:
                    where = f"{path.relative_to(root)}:{node.lineno}"
                    problems.append(f"{where} imports {name}: write robolearn....")
    return problems


def no_names_in_train(root: Path) -> list[str]:
    """The training loop names no task, robot or backend of RoboLearn."""
    text = (root / "robolearn" / "training" / "train.py").read_text(encoding="utf-8")
    kinds = ("tasks", "robots", "backends")
    names = {e.name for kind in kinds for e in registry.entries(kind).values() if e.source == registry.OURS}
    found = sorted(name for name in names if re.search(rf"\b{name}\b", text))
    return [f"robolearn/training/train.py names {name}" for name in found]


def no_machine_paths(root: Path) -> list[str]:
    """No file contains an absolute path of one machine."""
    path_there = re.compile(rf"(?<![\w./~$-])/({'|'.join(OTHER_MACHINES)})\b")
    problems = []
    for path in files(root):
        if path.suffix not in TEXT and path.name not in ("Makefile", "run"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := path_there.search(line):
                problems.append(f"{path.relative_to(root)}:{number} contains the path {match[0]}")
    return problems


def short_files(root: Path) -> list[str]:
    """Source files stay below a number of lines."""
    problems = []
    for path in files(root):
        if path.suffix == ".py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST:
                problems.append(f"{path.relative_to(root)} has {lines} lines; split it (limit {LONGEST})")
    return problems


def no_utils(root: Path) -> list[str]:
    """A file's name says its subject."""
    vague = ("helpers.py", "misc.py", "utils.py")
    return [f"{p.relative_to(root)}: name it after its subject" for p in files(root) if p.name in vague]


def runtime_stands_alone(root: Path) -> list[str]:
    """The code for the robot's computer imports numpy, onnxruntime or tensorrt, and nothing else of robolearn; what it
    can do without, a picture and a signature, may need their packages."""
    allowed = {*sys.stdlib_module_names, "numpy", "onnxruntime", "tensorrt"}
    more = {"robolearn.runtime.picture": {"matplotlib"}, "robolearn.runtime.signature": {"cryptography"}}
    problems = []
    for module, path in sources(root).items():
        if not module.startswith("robolearn.runtime."):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            where = f"{path.relative_to(root)}:{node.lineno}"
            problems += [
                f"{where} imports {name}"
                for name in names
                if name.partition(".")[0] not in allowed | more.get(module, set())
                and not name.startswith("robolearn.runtime.")
            ]
    return problems


CHECKS: tuple[Callable[[Path], list[str]], ...] = (
    links,
    packages,
    direction,
    cycles,
    few_parts,
    by_full_name,
    no_names_in_train,
    no_machine_paths,
    runtime_stands_alone,
    short_files,
    no_utils,
)


# ---------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_this_repository_passes_every_check(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


def test_the_checks_read_all_four_folders() -> None:
    expected = (
        "",
        ".cli",
        ".core.env",
        ".envs.mujoco.backend",
        ".export",
        ".learners.ppo.ppo",
        ".tasks.humanoid_walk",
    )
    assert {f"robolearn{name}" for name in expected} <= set(sources(ROOT))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that passes every check."""
    content = {
        "robolearn/__init__.py": '__version__ = "1"\n',
        "robolearn/errors.py": "",
        "robolearn/config/__init__.py": "from robolearn.config import run_config\n",
        "robolearn/config/run_config.py": "from robolearn import errors\n",
        "robolearn/core/__init__.py": "",
        "robolearn/core/env.py": "from robolearn.tasks.mdp import task\n",
        "robolearn/learners/__init__.py": "",
        "robolearn/external/__init__.py": "",
        "robolearn/runtime/__init__.py": "",
        "robolearn/training/__init__.py": "",
        "robolearn/training/train.py": "from robolearn import config\nfrom robolearn.core import env\n",
        "envs/__init__.py": "",
        "envs/backend.py": "import torch\n",
        "tasks/__init__.py": "",
        "tasks/mdp/__init__.py": "",
        "tasks/mdp/task.py": "from robolearn.envs.backend import State\n",
        "export/__init__.py": "",
    }
    for name, text in content.items():
        write(tmp_path, name, text)
    for name in LINKED:
        (tmp_path / "robolearn" / name).symlink_to(f"../{name}")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_good_tree_passes_every_check(tree: Path) -> None:
    assert [problem for check in CHECKS for problem in check(tree)] == []


BY_NAME = "from importlib import import_module\n\n\ndef f(x):\n    import_module("
TRAIN = "robolearn/training/train.py"
FAULTS = [
    (packages, "robolearn/gadget/warp.py", "", "robolearn/gadget has modules but no __init__.py"),
    (direction, "robolearn/gadget.py", "", "robolearn/gadget.py is in no layer"),
    (direction, "robolearn/config/x.py", "import robolearn.core.env\n", "x.py:1 imports robolearn.core.env"),
    (direction, "envs/backend.py", "from robolearn.tasks.mdp.task import Task\n", "robolearn.tasks.mdp.task"),
    (direction, "tasks/mdp/task.py", "from robolearn.training import train\n", "task.py:1 imports robolearn"),
    (direction, "robolearn/core/env.py", "def f():\n    from robolearn.training import train\n", "env.py:2"),
    (direction, "export/onnx.py", "from robolearn.cli import main\n", "onnx.py:1 imports robolearn.cli"),
    (direction, "robolearn/config/x.py", f"{BY_NAME}'robolearn.core')\n", "x.py:5 imports robolearn.core"),
    (
        direction,
        "robolearn/config/x.py",
        f"{BY_NAME}f'robolearn.core.{{x}}')\n",
        "x.py:5 imports robolearn.core.env",
    ),
    (cycles, "robolearn/errors.py", "from robolearn import config\n", "cycle"),
    (cycles, "robolearn/errors.py", "def f():\n    from robolearn import config\n", "cycle"),
    (cycles, "robolearn/errors.py", f"{BY_NAME}'robolearn.config')\n", "cycle"),
    (by_full_name, "robolearn/core/env.py", "import envs\n", "env.py:1 imports envs"),
    (
        by_full_name,
        "tests/test_x.py",
        "from tasks.mdp.task import Task\n",
        "test_x.py:1 imports tasks.mdp.task",
    ),
    (by_full_name, "tasks/mdp/task.py", "from export import onnx\n", "task.py:1 imports export"),
    (by_full_name, "robolearn/core/env.py", "from .tasks import task\n", "env.py:1 imports .tasks"),
    (no_names_in_train, TRAIN, "task = 'humanoid_walk'\n", "names humanoid_walk"),
    (no_names_in_train, TRAIN, "backend = 'mujoco'\n", "names mujoco"),
    (
        no_machine_paths,
        "docs/run.md",
        f"see /{'home'}/ada/runs\n",
        f"docs/run.md:1 contains the path /{'home'}",
    ),
    (no_machine_paths, "Makefile", f"all:\n\tcp a /{'root'}\n", "Makefile:2 contains the path"),
    (runtime_stands_alone, "robolearn/runtime/a.py", "def f():\n    import torch\n", "a.py:2 imports torch"),
    (
        runtime_stands_alone,
        "robolearn/runtime/b.py",
        "from robolearn.errors import x\n",
        "b.py:1 imports robolearn",
    ),
    (short_files, "scripts/long.py", "x = 1\n" * (LONGEST + 1), f"scripts/long.py has {LONGEST + 1} lines"),
    (no_utils, "robolearn/learners/utils.py", "", "robolearn/learners/utils.py"),
]


@pytest.mark.parametrize(
    ("check", "name", "text", "problem"), FAULTS, ids=[f"{c.__name__}-{n}" for c, n, *_ in FAULTS]
)
def test_a_fault_is_found(
    tree: Path, check: Callable[[Path], list[str]], name: str, text: str, problem: str
) -> None:
    write(tree, name, text)
    (found,) = check(tree)
    assert problem in found


def test_two_folders_that_import_each_other_are_a_cycle(tree: Path) -> None:
    write(tree, "robolearn/learners/a.py", "from robolearn.external import b\n")
    write(tree, "robolearn/external/b.py", "")
    assert cycles(tree) == []
    write(tree, "robolearn/external/c.py", "from robolearn.learners import d\n")
    write(tree, "robolearn/learners/d.py", "")
    assert len(cycles(tree)) == 1


def test_too_many_folders_and_modules_are_found(tree: Path) -> None:
    for number in range(MAX_PARTS + 1 - 7):  # there are seven: errors, config, core, learners, external, ...
        write(tree, f"robolearn/part{number}.py", "")
    assert few_parts(tree) == [f"robolearn/ has {MAX_PARTS + 1} folders and modules (limit {MAX_PARTS})"]


def test_too_many_levels_are_found(tree: Path) -> None:
    write(tree, "robolearn/external/level.py", "")
    for number in range(MAX_LEVELS):
        below = "external" if number == 0 else f"level{number - 1}"
        write(tree, f"robolearn/level{number}.py", f"from robolearn import {below}\n")
    assert f"robolearn/ has {MAX_LEVELS + 1} levels (limit {MAX_LEVELS})" in few_parts(tree)


def test_a_folder_in_place_of_a_link_is_found(tree: Path) -> None:
    (tree / "robolearn" / "envs").unlink()
    (tree / "robolearn" / "envs").mkdir()
    assert links(tree) == ["robolearn/envs must be a symlink to ../envs"]


def test_a_link_to_another_place_is_found(tree: Path) -> None:
    (tree / "robolearn" / "tasks").unlink()
    (tree / "robolearn" / "tasks").symlink_to(tree / "tasks")
    assert links(tree) == ["robolearn/tasks must be a symlink to ../tasks"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_link_committed_as_a_file_is_found(tree: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)

    git("init")
    git("add", ".")
    assert links(tree) == []
    # A checkout without symlinks has a text file with the link's target instead.
    (tree / "robolearn" / "export").unlink()
    write(tree, "robolearn/export", "../export")
    git("add", ".")
    (tree / "robolearn" / "export").unlink()
    (tree / "robolearn" / "export").symlink_to("../export")
    assert links(tree) == ["robolearn/export is in git with mode 100644, not as a link (120000)"]


def test_the_type_checker_reads_all_four_folders(tree: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tree)
    for folder in ("robolearn", *LINKED):
        write(tree, f"{folder}/wrong.py", 'number: int = "text"\n')
    write(tree, "envs/backend.py", "State = int\n")
    write(tree, "tasks/mdp/task.py", "")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tree / ".mypy_cache")]
    output = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    wrong = sorted(line.partition(":")[0] for line in output.stdout.splitlines() if "[assignment]" in line)
    assert wrong == sorted(["robolearn/wrong.py", *(f"robolearn/{name}/wrong.py" for name in LINKED)]), (
        output.stdout + output.stderr
    )
