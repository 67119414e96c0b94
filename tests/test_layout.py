"""The house: its links and packages, which way imports run, and what no file may hold.

Every check is a function from a source tree to a list of problems. It is run on this repository, where it
must find none, and on a small made-up tree with one fault, where it must find that.
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
"""Folders at the top that are packages through a symlink in robolearn/."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "moved", ""),  # "" is robolearn/__init__.py
    ("runtime",),
    ("config",),
    ("envs",),
    ("tasks",),
    ("core",),
    ("learners", "external"),
    ("training",),
    ("commands", "views", "export"),
    ("cli",),
)
"""Folders and modules of robolearn from the ground up. Each may import its own row and the rows above it."""

LONGEST = 650
"""Lines of a source file; the house rule is about 600."""

ROOMS, LEVELS = 12, 8
"""Folders and modules right under robolearn/, and the longest way down through their imports."""

OTHER_MACHINES = ("home", "media", "mnt", "root", "Users", "work", "workspace")
"""First parts of absolute paths that exist on one machine only."""

TEXT = {".cfg", ".md", ".py", ".sh", ".toml", ".txt", ".xml", ".yaml", ".yml"}
BUILT = {"__pycache__", "build", "dist", "runs"}


# ---------------------------------------------------------------------------------------- reading the tree


def files(root: Path) -> Iterator[Path]:
    """Every file of the project, symlinks not followed, nothing that was built."""
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
    """(line, module of robolearn) of every import below a node, inside functions too, `importlib` calls included.

    What only a type checker reads (`if TYPE_CHECKING`) does not count.
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
    """The modules that a text given to `importlib` can name: itself, or all that begin as an f-string does."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        begin = str(argument.values[0].value)
        yield from (name for name in modules if name.startswith(begin))


def without_types(tree: ast.AST) -> ast.AST:
    """A node without the bodies of `if TYPE_CHECKING`."""

    class Strip(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST:
            only_types = "TYPE_CHECKING" in ast.unparse(node.test)
            return ast.Module(node.orelse, []) if only_types else self.generic_visit(node)

    return Strip().visit(tree)


def room(module: str) -> str:
    """The folder or file right under robolearn/ that a module belongs to."""
    return module.partition(".")[2].partition(".")[0]


def layer(module: str) -> int | None:
    """Row of a module in LAYERS; everything in a folder stands where the folder does."""
    return next((i for i, row in enumerate(LAYERS) if room(module) in row), None)


# ---------------------------------------------------------------------------------------- the checks


def links(root: Path) -> list[str]:
    """robolearn/envs is a link to ../envs on the disk and, in a checkout, in git."""
    problems = []
    for name in LINKED:
        link = root / "robolearn" / name
        if not link.is_symlink() or os.readlink(link) != f"../{name}":
            problems.append(f"robolearn/{name} must be a symlink to ../{name}")
        elif not (root / name).is_dir():
            problems.append(f"robolearn/{name} leads nowhere: there is no folder {name}")
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
    """Imports, inside functions too, run from upper layers to lower ones."""
    problems = []
    modules = sources(root)
    for module, path in modules.items():
        own, where = layer(module), path.relative_to(root)
        if own is None:
            problems.append(f"{where} stands in no layer: add it to LAYERS in tests/test_layout.py")
            continue
        for line, target in imports(ast.parse(path.read_bytes()), modules):
            below = layer(target)
            if below is not None and below > own:
                problems.append(f"{where}:{line} imports {target}, which stands above it")
    return problems


def cycles(root: Path) -> list[str]:
    """No module and no folder needs itself by way of others, also where an import waits in a function."""
    modules = sources(root)
    graph: dict[str, set[str]] = {}
    rooms: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = {target for _, target in imports(ast.parse(path.read_bytes()), modules)} - {module}
        rooms.setdefault(room(module), set()).update(
            {room(target) for target in graph[module]} - {room(module)}
        )
    problems = []
    for arrows in (graph, rooms):
        try:
            graphlib.TopologicalSorter(arrows).prepare()
        except graphlib.CycleError as error:
            problems.append(f"imports run in a circle: {' <- '.join(error.args[1])}")
    return problems[:1]


def few_rooms(root: Path) -> list[str]:
    """What stands right under robolearn/, linked folders apart, can be kept in mind: few rooms on few levels."""
    modules = sources(root)
    arrows: dict[str, set[str]] = {}
    for module, path in modules.items():
        own = room(module)
        if own and own not in LINKED:
            inside = {room(name) for _, name in imports(ast.parse(path.read_bytes()), modules)}
            arrows.setdefault(own, set()).update(inside - {own, "", *LINKED})

    @functools.cache
    def level(name: str) -> int:
        return 1 + max((level(below) for below in arrows.get(name, ())), default=0)

    highest = max(level(name) for name in arrows)
    problems = [f"robolearn/ has {len(arrows)} rooms, and {ROOMS} is the most"] if len(arrows) > ROOMS else []
    return problems + (
        [f"robolearn/ has {highest} levels, and {LEVELS} is the most"] if highest > LEVELS else []
    )


def by_full_name(root: Path) -> list[str]:
    """`import robolearn.envs`, never `import envs` (another module of the same file) or `from . import`."""
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
    """The training loop knows no task, no robot and no simulator of ours."""
    text = (root / "robolearn" / "training" / "train.py").read_text(encoding="utf-8")
    kinds = ("tasks", "robots", "backends")
    names = {e.name for kind in kinds for e in registry.entries(kind).values() if e.source == registry.OURS}
    found = sorted(name for name in names if re.search(rf"\b{name}\b", text))
    return [f"robolearn/training/train.py names {name}" for name in found]


def no_machine_paths(root: Path) -> list[str]:
    """No file names a folder that only its author has."""
    path_there = re.compile(rf"(?<![\w./~$-])/({'|'.join(OTHER_MACHINES)})\b")
    problems = []
    for path in files(root):
        if path.suffix not in TEXT and path.name not in ("Makefile", "run"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := path_there.search(line):
                problems.append(f"{path.relative_to(root)}:{number} holds the path {match[0]}")
    return problems


def short_files(root: Path) -> list[str]:
    """A file is read in one sitting."""
    problems = []
    for path in files(root):
        if path.suffix == ".py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST:
                problems.append(f"{path.relative_to(root)} has {lines} lines; split it (limit {LONGEST})")
    return problems


def no_utils(root: Path) -> list[str]:
    """A file has a subject, and its name says which."""
    vague = ("helpers.py", "misc.py", "utils.py")
    return [f"{p.relative_to(root)}: name it after its subject" for p in files(root) if p.name in vague]


def runtime_stands_alone(root: Path) -> list[str]:
    """What runs on the robot's computer needs numpy, onnxruntime or tensorrt, and nothing of ours."""
    allowed = {*sys.stdlib_module_names, "numpy", "onnxruntime", "tensorrt"}
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
                if name.partition(".")[0] not in allowed and not name.startswith("robolearn.runtime.")
            ]
    return problems


CHECKS: tuple[Callable[[Path], list[str]], ...] = (
    links,
    packages,
    direction,
    cycles,
    few_rooms,
    by_full_name,
    no_names_in_train,
    no_machine_paths,
    runtime_stands_alone,
    short_files,
    no_utils,
)


# ---------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_this_repository(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


def test_the_package_is_read_whole() -> None:
    some = (
        "",
        ".cli",
        ".core.env",
        ".envs.mujoco.backend",
        ".export",
        ".learners.ppo.ppo",
        ".tasks.humanoid_walk",
    )
    assert {f"robolearn{name}" for name in some} <= set(sources(ROOT))


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small tree that every check is content with."""
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


def test_a_good_house_passes(house: Path) -> None:
    assert [problem for check in CHECKS for problem in check(house)] == []


BY_NAME = "from importlib import import_module\n\n\ndef f(x):\n    import_module("
TRAIN = "robolearn/training/train.py"
FAULTS = [
    (packages, "robolearn/gadget/warp.py", "", "robolearn/gadget has modules but no __init__.py"),
    (direction, "robolearn/gadget.py", "", "robolearn/gadget.py stands in no layer"),
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
    (cycles, "robolearn/errors.py", "from robolearn import config\n", "circle"),
    (cycles, "robolearn/errors.py", "def f():\n    from robolearn import config\n", "circle"),
    (cycles, "robolearn/errors.py", f"{BY_NAME}'robolearn.config')\n", "circle"),
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
    (no_machine_paths, "docs/run.md", f"see /{'home'}/ada/runs\n", f"docs/run.md:1 holds the path /{'home'}"),
    (no_machine_paths, "Makefile", f"all:\n\tcp a /{'root'}\n", "Makefile:2 holds the path"),
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
    house: Path, check: Callable[[Path], list[str]], name: str, text: str, problem: str
) -> None:
    write(house, name, text)
    (found,) = check(house)
    assert problem in found


def test_two_folders_that_need_each_other_are_a_circle(house: Path) -> None:
    write(house, "robolearn/learners/a.py", "from robolearn.external import b\n")
    write(house, "robolearn/external/b.py", "")
    assert cycles(house) == []
    write(house, "robolearn/external/c.py", "from robolearn.learners import d\n")
    write(house, "robolearn/learners/d.py", "")
    assert len(cycles(house)) == 1


def test_a_thirteenth_room_is_found(house: Path) -> None:
    for number in range(ROOMS + 1 - 7):  # seven stand there: errors, config, core, learners, external, ...
        write(house, f"robolearn/room{number}.py", "")
    assert few_rooms(house) == [f"robolearn/ has {ROOMS + 1} rooms, and {ROOMS} is the most"]


def test_a_ninth_level_is_found(house: Path) -> None:
    write(house, "robolearn/external/level.py", "")
    for number in range(LEVELS):
        below = "external" if number == 0 else f"level{number - 1}"
        write(house, f"robolearn/level{number}.py", f"from robolearn import {below}\n")
    assert f"robolearn/ has {LEVELS + 1} levels, and {LEVELS} is the most" in few_rooms(house)


def test_a_folder_where_a_link_belongs_is_found(house: Path) -> None:
    (house / "robolearn" / "envs").unlink()
    (house / "robolearn" / "envs").mkdir()
    assert links(house) == ["robolearn/envs must be a symlink to ../envs"]


def test_a_link_elsewhere_is_found(house: Path) -> None:
    (house / "robolearn" / "tasks").unlink()
    (house / "robolearn" / "tasks").symlink_to(house / "tasks")
    assert links(house) == ["robolearn/tasks must be a symlink to ../tasks"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_link_committed_as_a_file_is_found(house: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=house, check=True, capture_output=True)

    git("init")
    git("add", ".")
    assert links(house) == []
    # What a checkout without symlinks makes of it: a text file that holds the link's target.
    (house / "robolearn" / "export").unlink()
    write(house, "robolearn/export", "../export")
    git("add", ".")
    (house / "robolearn" / "export").unlink()
    (house / "robolearn" / "export").symlink_to("../export")
    assert links(house) == ["robolearn/export is in git with mode 100644, not as a link (120000)"]


def test_the_type_checker_reads_all_four_folders(house: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", house)
    for folder in ("robolearn", *LINKED):
        write(house, f"{folder}/wrong.py", 'number: int = "text"\n')
    write(house, "envs/backend.py", "State = int\n")
    write(house, "tasks/mdp/task.py", "")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(house / ".mypy_cache")]
    said = subprocess.run(command, cwd=house, capture_output=True, text=True, check=False)
    wrong = sorted(line.partition(":")[0] for line in said.stdout.splitlines() if "[assignment]" in line)
    assert wrong == sorted(["robolearn/wrong.py", *(f"robolearn/{name}/wrong.py" for name in LINKED)]), (
        said.stdout + said.stderr
    )
