"""The sections of a configuration, task, learner and backend: the name of each, its settings, and its overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NoReturn

from robolearn.config import fields, registry
from robolearn.config.overrides import Override, Scalar
from robolearn.config.schema import SCALARS, SECTIONS
from robolearn.errors import ConfigError, listing, near, quote

DEFAULT_CHOICE = {"backend": "auto", "learner": "ppo"}
"""Sections that a user need not choose, with their default."""

EXTERNAL = "external"
"""Name of the backend of a task that brings its own simulator, as third-party environments do."""


@dataclasses.dataclass
class ExternalSimulator:
    """Settings of the backend `external`: none."""


def settled(
    section: str, name: str, device: str, learner: str = "", task: Any = None, task_name: str = ""
) -> str:
    """The name as it is saved: files with their absolute path, and the backend that auto picks for task and learner."""
    if section == "backend" and getattr(task, "brings_simulator", False):
        if name not in ("auto", EXTERNAL):
            raise ConfigError(f"task={task_name} brings its own simulator; leave backend={name} out")
        return EXTERNAL
    if section == "backend" and name == EXTERNAL:
        raise ConfigError(
            f"backend={EXTERNAL} is the simulator of a third-party environment; {names_of('backend')}"
        )
    if section == "backend" and name == "auto":
        needs = getattr(registry.load("learners", learner), "requires", ()) if learner else ()
        return registry.pick_backend(device, needs)
    return registry.canonical(SECTIONS[section], name)


def sort(items: Iterable[Override]) -> tuple[dict[str, str], dict[str, Any]]:
    """Overrides as (names of the chosen sections, nested updates by section; single values under "")."""
    chosen: dict[str, str] = {}
    trees: dict[str, Any] = {}
    items = list(items)
    for item in items:
        head, rest = item.key[0], item.key[1:]
        if head == "schema":
            raise ConfigError(f"{quote(item.text)}: RoboLearn writes schema; it cannot be set")
        if head == "robot" and not rest:
            name = item.value.text if isinstance(item.value, Scalar) else item.value
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(
                    f"{quote(item.text)}: robot takes the name or path of a robot; see robolearn list robots"
                )
            put(trees.setdefault("task", {}), ("robot",), name)
        elif head == "robot":
            put(trees.setdefault("", {}).setdefault("robot", {}), rest, item.value)
        elif head == "guard":  # guard=on is guard.mode=on
            whole = not rest and not isinstance(item.value, dict)
            put(trees.setdefault("", {}), ("guard", "mode") if whole else item.key, item.value)
        elif head in SECTIONS and not rest:
            name = item.value.text if isinstance(item.value, Scalar) else item.value
            if not isinstance(name, str) or not name.strip():
                raise ConfigError(f"{quote(item.text)}: {head} takes a name; {names_of(head)}")
            chosen[head] = name
        elif head in SECTIONS and rest[0] == "name":
            raise ConfigError(f"{quote(item.text)}: a {head} is chosen with {head}=NAME; {names_of(head)}")
        elif head in SECTIONS:
            put(trees.setdefault(head, {}), rest, item.value)
        elif head in SCALARS and not rest:
            trees.setdefault("", {})[head] = item.value
        elif head in SCALARS:
            raise ConfigError(f"there is no {quote(item.dotted)}: {head} is one value, set as {head}=VALUE")
        else:
            _unknown(item, items)
    return chosen, trees


def put(tree: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    """Set a value of a nested dictionary, in place of what an earlier override set there."""
    for part in key[:-1]:
        inner = tree.get(part)
        if not isinstance(inner, dict):  # a.b=1 after a=3: the later one holds
            inner = tree[part] = {}
        tree = inner
    old = tree.get(key[-1])
    if isinstance(old, dict) and isinstance(value, dict):  # a={c:1} after a.b=2: both
        for part, inner in value.items():
            put(old, (part,), inner)
    else:
        tree[key[-1]] = dict(value) if isinstance(value, dict) else value


def settings_of(section: str, name: str) -> Any:
    """The dataclass of a section's settings."""
    if section == "backend" and name == EXTERNAL:
        return ExternalSimulator
    cls = registry.load(SECTIONS[section], name)
    return cls if section == "task" else cls.config_class


def instance(cls: Any, section: str, name: str) -> Any:
    """A section's settings with their defaults.

    Raises:
        ConfigError: a task's or a plugin's class raises an exception.
    """
    try:
        return cls()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{section} {quote(name, 120)} cannot be made with its defaults: {what}") from error


def names_of(section: str) -> str:
    """The names that a section may have, for an error."""
    return f"valid: {listing(registry.names(SECTIONS[section]))}"


def _unknown(item: Override, items: list[Override]) -> NoReturn:
    """Refuses a key whose first part is no setting."""
    known = {*SCALARS, *SECTIONS}
    if not near(item.key[0], known, cutoff=0.8):
        # No simple misspelling: import the sections to search for the name in them.
        for section, kind in SECTIONS.items():
            names = [i.value for i in items if i.key == (section,)] or [DEFAULT_CHOICE.get(section)]
            try:
                cls = registry.load(kind, settled(section, names[-1], "cpu"))
                known |= set(fields.paths(cls() if section == "task" else cls.config_class(), section))
            except Exception:  # this section cannot be imported: its names are not suggested
                continue
    raise ConfigError(fields.missing_key(item.text, item.dotted, known))
