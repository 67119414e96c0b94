"""Finds tasks, robots and docstrings by parsing files, without importing them.

`robolearn list` and `--help` must be fast, and work on a machine without a simulator and next to a broken
third-party package.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import traceback
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from robolearn.config.yaml_file import parse

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Found:
    """A task or robot found in a folder."""

    name: str
    """What the user types."""
    location: str
    """"module:object", or a folder."""
    description: str
    """First line of its description."""
    problem: str = ""
    """Why it cannot be used."""


def snake_case(name: str) -> str:
    """HumanoidWalk -> humanoid_walk."""
    return _WORDS.sub("_", name).lower()


def tasks(folder: Path, package: str) -> list[Found]:
    """Every public class in `folder/*.py` derived from `Task`, directly or through another one found.

    A class whose name starts with an underscore is abstract and not listed.
    """
    defined: dict[str, tuple[ast.ClassDef, str]] = {}
    broken: list[Found] = []
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError) as error:
            broken.append(
                Found(path.stem, f"{package}.{path.stem}", "", f"{path.name} cannot be read: {error}")
            )
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                defined[node.name] = (node, path.stem)
    derived = {"Task"}
    while True:
        more = {n for n, (node, _) in defined.items() if n not in derived and _bases(node) & derived}
        if not more:
            break
        derived |= more
    found = [
        Found(snake_case(name), f"{package}.{stem}:{name}", _first_line(ast.get_docstring(node)))
        for name, (node, stem) in defined.items()
        if name in derived and name != "Task" and not name.startswith("_")
    ]
    return sorted(found, key=lambda f: f.name) + broken


def robots(folder: Path) -> list[Found]:
    """Every folder with a robot.yaml, with the file's `description:`."""
    found = []
    for path in sorted(folder.glob("*/robot.yaml")):
        description, problem = "", ""
        try:
            content = parse(path.read_text(encoding="utf-8"))
            description = _first_line(str(content["description"]))
        except (OSError, ValueError) as error:
            problem = f"robot.yaml cannot be read: {' '.join(str(error).split())}"
        except (KeyError, TypeError):
            problem = "robot.yaml has no description"
        found.append(Found(path.parent.name, str(path.parent), description, problem))
    return found


def classes(path: Path) -> list[str]:
    """The public classes a file defines."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return []
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def look(reference: str) -> tuple[str, str]:
    """(first line of the docstring, what is wrong) of another package's "module:object", without importing it.

    Where the source does not tell (compiled modules, star imports), nothing is reported: `load` finds out.
    """
    module, _, attribute = reference.partition(":")
    if not attribute or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        return "", f"its entry point is {reference!r}, not 'module:object'"
    spec: ModuleSpec | None = None
    places: list[str] = []
    for i in range(module.count(".") + 1):
        name = ".".join(module.split(".")[: i + 1])
        try:  # the first part with every finder (editable installs have their own), which imports nothing
            spec = PathFinder.find_spec(name, places) if i else importlib.util.find_spec(name)
        except (ImportError, ValueError, OSError):
            spec = None
        if spec is None:
            return "", f"there is no module {name}"
        places = list(spec.submodule_search_locations or [])
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return "", ""
    try:
        body = ast.parse(Path(spec.origin).read_bytes()).body
    except (SyntaxError, ValueError, OSError) as error:
        return "", f"{Path(spec.origin).name} cannot be read: {' '.join(str(error).split())}"
    first = attribute.split(".")[0]
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == attribute:
            return _first_line(ast.get_docstring(node)), ""
    bound = _bound(body)
    return "", "" if bound is None or first in bound else f"{module} has no {first}"


def failing_line(error: BaseException, path: Path) -> str:
    """` line 3`: the line of a user's file at which its import failed; empty where unknown."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f" line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""


def _bases(node: ast.ClassDef) -> set[str]:
    last = (base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases)
    return set(last)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].strip()


def _bound(body: list[ast.stmt]) -> set[str] | None:
    """Names bound at a module's top level; None where the source does not tell."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == "__getattr__":
                return None
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for t in targets for leaf in ast.walk(t) if isinstance(leaf, ast.Name)}
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            return None
    return None if "*" in names else names
