"""Finds the function that makes a PettingZoo environment, by the ID in `task=pettingzoo:ID`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from robolearn.config import registry
from robolearn.config.tables import DOORS
from robolearn.errors import ConfigError, MissingError, did_you_mean, one_line, quote
from robolearn.external.failures import describe

MAKER = "parallel_env"
"""Name of the function with which PettingZoo's modules make a ParallelEnv."""


def find(id: str, door: str = "pettingzoo") -> Callable[..., Any]:
    """The class or function that makes an environment.

    Args:
        id: a module with a function `parallel_env`, such as mpe2.simple_spread_v3; module.function; or path.py:NAME.
        door: the word before the colon of the task's name.

    Raises:
        ConfigError: there is no such module, function or file, or it cannot be imported.
        MissingError: a package is not installed.
    """
    task = f"task={door}:{id}"
    if registry.is_file(id):
        found = registry.from_file(id)
    elif ":" in id or "/" in id or id.endswith(".py"):
        raise ConfigError(f"{task}: name a module, module.function, or path.py:NAME of a class or function")
    else:
        found = _of_module(id, door, task)
    if not callable(found):
        raise ConfigError(
            f"{task} is {type(found).__name__}, not a class or function that makes an environment"
        )
    made: Callable[..., Any] = found
    return made


def _of_module(id: str, door: str, task: str) -> Any:
    row, parts = DOORS[door], id.split(".")
    module, rest = _imported(parts, task)
    if module is None:
        package = parts[0]
        if package in row.packages:
            raise MissingError(
                f"{task} needs {package}: pip install 'robolearn[{row.extra}]', or pip install {package}"
            )
        raise ConfigError(
            f"{task}: there is no module {quote(package)}; install its package, or name a file: "
            "task=pettingzoo:path.py:NAME"
        )
    name = rest[0] if rest else MAKER
    found = getattr(module, name, None) if len(rest) <= 1 else None
    if isinstance(found, ModuleType):
        module, name = found, MAKER
        found = getattr(found, MAKER, None)
    if found is None:
        near = _makers(module if rest else importlib.import_module(parts[0]))
        raise ConfigError(
            f"{task}: {module.__name__} has no {quote('.'.join(rest) or MAKER)}{did_you_mean(id, near)}"
        )
    # A saved run may import these packages: of them nothing but environments is called.
    if parts[0] in row.packages and name != MAKER:
        raise ConfigError(f"{task}: of {parts[0]}, name a module that has a function {MAKER}")
    return found


def _imported(parts: list[str], task: str) -> tuple[ModuleType | None, list[str]]:
    """The longest part of a dotted name that is a module, and the names behind it."""
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        try:
            return importlib.import_module(name), parts[count:]
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name == missing or name.startswith(f"{missing}."):
                continue
            raise MissingError(f"{task} needs {missing}, which is not installed") from error
        except ValueError as error:  # an empty name
            raise ConfigError(f"{task}: {one_line(str(error))}") from error
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise ConfigError(f"{task}: {name} cannot be imported: {describe(error)}") from error
    return None, parts


def _makers(module: ModuleType) -> list[str]:
    """Dotted names of the modules in a package, which are not imported, and of the functions of a module."""
    inner = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))]
    inner += [name for name, value in vars(module).items() if callable(value)]
    return [f"{module.__name__}.{name}" for name in inner if not name.startswith("_")]
