"""The house: its links and packages, which way imports run, and what no file may hold.

Every check is a function from a source tree to a list of problems. It is run on this repository, where it
must find none, and on a small made-up tree with one fault, where it must find that.
"""

from __future__ import annotations

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robolearn import registry

ROOT = Path(__file__).resolve().parents[1]

LINKED = ("envs", "tasks", "export")
"""Folders at the top that are packages through a symlink in robolearn/."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("", "errors"),  # "" is robolearn/__init__.py
    (
        "config",
        "discover",
        "fields",
        "files",
        "graphs",
        "metrics",
        "overrides",
        "registry",
        "runtime",
        "schema",
        "yaml_file",
    ),
    ("envs",),
    ("tasks",),
    (
        "capture",
        "contract",
        "delay",
        "env",
        "external",
        "finite",
        "learner_env",
        "make",
        "memory",
        "step_result",
        "task_check",
        "totals",
        "trees",
    ),
    ("rollout", "sb3", "views"),
    ("learners",),
    ("checkpoint",),
    ("panel", "report", "runs"),
    (
        "against",
        "bench",
        "bench_rates",
        "differences",
        "doctor",
        "evaluate",
        "export",
        "film",
        "grad_check",
        "grad_scenes",
        "gymnasium_ids",
        "gymnasium_tasks",
        "sim",
        "train",
        "viewer",
    ),
    ("cli",),
)
"""Modules and folders of robolearn from the ground up. Each may import its own row and the rows above it."""

LONGEST = 450
"""Lines of a source file; the house rule is about 400."""

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
    """(line, module of robolearn) of every import below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from robolearn import config` names a module, `from robolearn.config import load` does not.
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.partition(".")[0] == "robolearn")


def at_import(tree: ast.Module) -> ast.Module:
    """A module without the bodies of its functions and of `if TYPE_CHECKING`: what runs on import."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST:
            only_types = "TYPE_CHECKING" in ast.unparse(node.test)
            return ast.Module(node.orelse, []) if only_types else self.generic_visit(node)

    return Strip().visit(tree)


def layer(module: str) -> int | None:
    """Row of a module in LAYERS; everything in a folder stands where the folder does."""
    name = module.partition(".")[2].partition(".")[0]
    return next((i for i, row in enumerate(LAYERS) if name in row), None)


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
            problems.append(f"{where} stands in no layer: add a line to LAYERS in tests/test_layout.py")
            continue
        for line, target in imports(ast.parse(path.read_bytes()), modules):
            below = layer(target)
            if below is not None and below > own:
                problems.append(f"{where}:{line} imports {target}, which stands above it")
    return problems


def cycles(root: Path) -> list[str]:
    """No module needs itself to be imported."""
    modules = sources(root)
    graph = {}
    for module, path in modules.items():
        tree = at_import(ast.parse(path.read_bytes()))
        graph[module] = {target for _, target in imports(tree, modules)} - {module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"imports run in a circle: {' <- '.join(error.args[1])}"]
    return []


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
    text = (root / "robolearn" / "train.py").read_text(encoding="utf-8")
    kinds = ("tasks", "robots", "backends")
    names = {e.name for kind in kinds for e in registry.entries(kind).values() if e.source == registry.OURS}
    found = sorted(name for name in names if re.search(rf"\b{name}\b", text))
    return [f"robolearn/train.py names {name}" for name in found]


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
    some = ("", ".cli", ".env", ".envs.mujoco", ".export", ".learners.ppo", ".tasks.humanoid_walk")
    assert {f"robolearn{name}" for name in some} <= set(sources(ROOT))


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small tree that every check is content with."""
    content = {
        "robolearn/__init__.py": '__version__ = "1"\n',
        "robolearn/config.py": "from robolearn import errors\n",
        "robolearn/env.py": "from robolearn.tasks import task\n",
        "robolearn/errors.py": "",
        "robolearn/train.py": "from robolearn import config, env\n",
        "envs/__init__.py": "",
        "envs/backend.py": "import torch\n",
        "tasks/__init__.py": "",
        "tasks/task.py": "from robolearn.envs.backend import State\n",
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


FAULTS = [
    (packages, "envs/differentiable/warp.py", "", "envs/differentiable has modules but no __init__.py"),
    (direction, "robolearn/gadget.py", "", "robolearn/gadget.py stands in no layer"),
    (direction, "robolearn/config.py", "import robolearn.env\n", "config.py:1 imports robolearn.env"),
    (direction, "envs/backend.py", "from robolearn.tasks.task import Task\n", "imports robolearn.tasks.task"),
    (direction, "tasks/task.py", "from robolearn import train\n", "tasks/task.py:1 imports robolearn.train"),
    (direction, "robolearn/env.py", "def f():\n    from robolearn import train\n", "env.py:2 imports"),
    (direction, "export/onnx.py", "from robolearn.cli import main\n", "onnx.py:1 imports robolearn.cli"),
    (cycles, "robolearn/errors.py", "from robolearn import config\n", "circle"),
    (by_full_name, "robolearn/env.py", "import envs\n", "env.py:1 imports envs"),
    (by_full_name, "tests/test_x.py", "from tasks.task import Task\n", "test_x.py:1 imports tasks.task"),
    (by_full_name, "tasks/task.py", "from export import onnx\n", "task.py:1 imports export"),
    (by_full_name, "robolearn/env.py", "from .tasks import task\n", "env.py:1 imports .tasks"),
    (no_names_in_train, "robolearn/train.py", "task = 'humanoid_walk'\n", "names humanoid_walk"),
    (no_names_in_train, "robolearn/train.py", "backend = 'mujoco'\n", "names mujoco"),
    (no_machine_paths, "docs/run.md", f"see /{'home'}/ada/runs\n", f"docs/run.md:1 holds the path /{'home'}"),
    (no_machine_paths, "Makefile", f"all:\n\tcp a /{'root'}\n", "Makefile:2 holds the path"),
    (runtime_stands_alone, "robolearn/runtime/a.py", "def f():\n    import torch\n", "a.py:2 imports torch"),
    (
        runtime_stands_alone,
        "robolearn/runtime/b.py",
        "from robolearn.errors import x\n",
        "b.py:1 imports robolearn",
    ),
    (short_files, "scripts/long.py", "x = 1\n" * 451, "scripts/long.py has 451 lines"),
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


def test_imports_inside_functions_make_no_circle(house: Path) -> None:
    write(house, "robolearn/errors.py", "def f():\n    from robolearn import config\n")
    assert cycles(house) == []


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
    write(house, "tasks/task.py", "")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(house / ".mypy_cache")]
    said = subprocess.run(command, cwd=house, capture_output=True, text=True, check=False)
    wrong = sorted(line.partition(":")[0] for line in said.stdout.splitlines() if "[assignment]" in line)
    assert wrong == sorted(["robolearn/wrong.py", *(f"robolearn/{name}/wrong.py" for name in LINKED)]), (
        said.stdout + said.stderr
    )
