"""Names to things: tasks, robots, backends and learners, ours and other people's.

Everything is a lazy "module:object" string until `load`; listing names imports no torch and no simulator.
Three sources: our own folders and rows, entry points of installed packages (groups `robolearn.tasks`,
`.robots`, `.backends`, `.learners`), and a file the user names, `path.py:Name`. A name offered twice is
refused, both offers named: which one a run used must not depend on what happens to be installed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from robolearn.config import discovery
from robolearn.config.tables import BACKENDS, DOORS, LEARNERS, Row
from robolearn.errors import ConfigError, MissingError, did_you_mean, listing, one_line, quote

KINDS = ("tasks", "robots", "backends", "learners")
OURS = "robolearn"
_HERE = Path(__file__).parent.parent
_FILE = re.compile(r"(?P<path>.*\.py):(?P<name>[A-Za-z_]\w*)\Z", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """One thing that can be named."""

    kind: str
    """One of KINDS."""
    name: str
    """What the user types."""
    target: str
    """"module:object", or a robot's folder."""
    source: str
    """Who offers it: "robolearn", or a distribution with its version."""
    description: str = ""
    """One line for `robolearn list`."""
    requires: tuple[str, ...] = ()
    """Modules that must be importable."""
    extra: str = ""
    """The extra of robolearn that installs them."""
    devices: tuple[str, ...] = ()
    """Backends: where it runs; empty where only importing it would tell."""
    gives: tuple[str, ...] = ()
    """Backends: see `Row.gives`."""
    install: str = ""
    """See `Row.install`."""
    problem: str = ""
    """Why it cannot be used at all; empty where nothing is wrong."""

    @property
    def missing(self) -> list[str]:
        """Required modules that are not installed."""
        return [name for name in self.requires if not _installed(name)]

    @property
    def hint(self) -> str:
        """What keeps it from being used, and the fix; empty where it can be."""
        if self.problem or not self.missing:
            return self.problem
        fix = self.install or (f"pip install 'robolearn[{self.extra}]'" if self.extra else "")
        return f"needs {', '.join(self.missing)}{': ' if fix else ''}{fix}"


class Listing(NamedTuple):
    """A row of `robolearn list`."""

    name: str
    description: str
    source: str
    available: bool
    hint: str


def names(kind: str) -> list[str]:
    """Every name of a kind, ours first."""
    return list(entries(kind))


def describe(kind: str) -> list[Listing]:
    """Name, description, source, whether it can be used and what to do where it cannot."""
    doors = [
        Entry(kind, f"{d}:ID", r.target, OURS, r.description, r.requires, r.extra, install=r.install)
        for d, r in _doors(kind).items()
    ]
    return [
        Listing(e.name, e.description, e.source, not e.hint, e.hint)
        for e in (*entries(kind).values(), *doors)
    ]


@functools.cache
def entries(kind: str) -> Mapping[str, Entry]:
    """What is offered under each name. Looked up once a process; `refresh` forgets it."""
    found: dict[str, Entry] = {}
    for entry in [*_ours(kind), *_installed_packages(kind)]:
        if entry.name in found:
            first = found[entry.name]
            why = f"offered twice, by {first.source} ({first.target}) and by {entry.source} ({entry.target})"
            entry = dataclasses.replace(first, source=f"{first.source}, {entry.source}", problem=why)
        found[entry.name] = entry
    return found


def refresh() -> None:
    """Forgets what was found, after a package was installed or a folder added to `sys.path`."""
    entries.cache_clear()


def load(kind: str, name: str) -> Any:
    """The class (for a robot: its folder, or a Robot) of that name, imported now.

    `name` may be `path.py:Name`. Raises ConfigError where there is no such thing, naming near ones, and
    MissingError where a package it needs is not installed.
    """
    if door := _door(kind, name):
        return _load_entry(door).named(name.partition(":")[2])
    if is_file(name):
        found = _load_file(kind, name)
    elif _is_robot_folder(kind, name):
        return Path(name).resolve()
    else:
        found = _load_entry(require(kind, name))
    return _checked(kind, name, found)


def require(kind: str, name: str, where: str = "") -> Entry | None:
    """The entry of a name, without importing it; None for a file or a robot's folder.

    ConfigError names the near misses; `where` is the setting the name was given to.
    """
    one = kind.removesuffix("s")
    if door := _door(kind, name):
        return door
    if is_file(name) or _is_robot_folder(kind, name):
        return None
    entry = entries(kind).get(name)
    if entry is None:
        path = Path(name)
        if path.suffix == ".py" or "/" in name:
            _bad_path(one, path)
        at = f"{where}: " if where else ""
        word = name.partition(":")[0]
        if word in _doors(kind):
            raise ConfigError(f"{at}unknown {one} {quote(name)}: a door needs an ID, {word}:ID")
        hint = did_you_mean(word, [*names(kind), *_doors(kind)])
        raise ConfigError(f"{at}unknown {one} {quote(name)}{hint or '.'} Valid: {listing(names(kind))}")
    if entry.problem:
        raise ConfigError(f"{one} {name} cannot be used: {entry.problem}")
    return entry


def is_file(name: str) -> bool:
    """Whether a name is of the form `path.py:Name`, or through a door `DOOR:path.py:Name` or `DOOR:module:ID`: it
    makes code run that no installed package has registered."""
    return _FILE.match(name) is not None or bool(_door("tasks", name) and name.count(":") > 1)


def from_file(name: str) -> Any:
    """What `path.py:NAME` names, imported now. Raises ConfigError where there is no such thing."""
    return _load_file("tasks", name)


def canonical(kind: str, name: str) -> str:
    """The name to save with a run: a file, or a robot's folder, by its absolute path; others as they are."""
    word, _, rest = name.partition(":")
    if _door(kind, name):
        return f"{word}:{canonical(kind, rest)}"
    try:
        if match := _FILE.match(name):
            return f"{Path(match['path']).expanduser().resolve()}:{match['name']}"
        return str(Path(name).resolve()) if _is_robot_folder(kind, name) else name
    except (OSError, ValueError, RuntimeError):
        return name  # no such path; `load` says so


def pick_backend(device: str, needs: Collection[str] = ()) -> str:
    """The backend for `backend=auto` on a device, with a learner that requires `needs` of it.

    On CUDA one of ours that runs there is preferred; a CPU backend serves either. Other packages' backends
    are used where they are named. Raises MissingError with the install line where none is installed.
    """
    ours = [entry for entry in entries("backends").values() if entry.devices]
    # What else a learner needs no row tells: `train.make_learner` asks the backend itself.
    needs = {need for need in needs if any(need in entry.gives for entry in ours)}
    ours = [entry for entry in ours if needs <= set(entry.gives)]
    # What a backend has over the others it pays for elsewhere: it is taken where that is needed, or no other is there.
    plain = [entry for entry in ours if needs or not entry.gives]
    if any(not entry.hint for entry in plain) or all(entry.hint for entry in ours):
        ours = plain
    usable = [entry for entry in ours if not entry.hint]
    on_cuda = [entry for entry in usable if "cuda" in entry.devices]
    on_cpu = [entry for entry in usable if "cpu" in entry.devices]
    if on_cuda and (device.startswith("cuda") or (device == "auto" and _has_cuda())):
        return on_cuda[0].name
    if on_cpu:
        return on_cpu[0].name
    wanted = "cuda" if device.startswith("cuda") else "cpu"
    fixes = [entry.hint for entry in ours if wanted in entry.devices] or [entry.hint for entry in ours]
    what = f"simulator with {', '.join(sorted(needs))}" if needs else "simulator"
    raise MissingError(f"no {what} for device={device} is installed; {'; '.join(fixes[:2])}")


def giving(need: str) -> str:
    """How to choose a backend that has what a learner requires; empty where we know of none."""
    rows = sorted((e for e in entries("backends").values() if need in e.gives), key=lambda e: bool(e.hint))
    return f"backend={rows[0].name}" + (f" ({rows[0].hint})" if rows[0].hint else "") if rows else ""


def devices(backend: str) -> tuple[str, ...]:
    """Where a backend runs; that of another package or a file says so in its class's `devices`, else a CPU."""
    entry = None if is_file(backend) else require("backends", backend)
    if entry is not None and entry.devices:
        return entry.devices
    return tuple(getattr(load("backends", backend), "devices", ("cpu",)))


def _is_robot_folder(kind: str, name: str) -> bool:
    return kind == "robots" and "/" in name and (Path(name) / "robot.yaml").is_file()


def _doors(kind: str) -> Mapping[str, Row]:
    """Doors to other people's environments, by the word before the colon."""
    return DOORS if kind == "tasks" else {}


def _door(kind: str, name: str) -> Entry | None:
    """The entry of the door that a name of the form `DOOR:ID` goes through."""
    word, _, id = name.partition(":")
    row = _doors(kind).get(word) if id else None
    if row is None:
        return None
    about = (row.target, OURS, row.description, row.requires, row.extra)
    return Entry(kind, name, *about, install=row.install)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _installed(module: str) -> bool:
    """Whether a module, or one inside a package, could be imported; nothing is (`find_spec` imports the package)."""
    package, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
        for name in inner:
            if spec is None or spec.submodule_search_locations is None:
                return False
            package = f"{package}.{name}"
            spec = PathFinder.find_spec(package, spec.submodule_search_locations)
    except (ImportError, ValueError):
        return False
    return spec is not None


def _ours(kind: str) -> list[Entry]:
    if kind in ("tasks", "robots"):
        robots = _HERE / "envs" / "robots"
        found = (
            discovery.robots(robots) if kind == "robots" else discovery.tasks(_HERE / kind, "robolearn.tasks")
        )
        return [Entry(kind, d.name, d.target, OURS, d.description, problem=d.problem) for d in found]
    rows = {"backends": BACKENDS, "learners": LEARNERS}[kind]
    return [
        Entry(kind, name, r.target, OURS, r.description, r.requires, r.extra, r.devices, r.gives, r.install)
        for name, r in rows.items()
    ]


def _installed_packages(kind: str) -> list[Entry]:
    """Entries of other people's packages. What is wrong with one stays with that one; only a malformed
    entry_points.txt hides them all, because `importlib.metadata` reads them all, and is named."""
    try:
        points = importlib.metadata.entry_points(group=f"{OURS}.{kind}")
    except Exception:
        return [entry for dist in importlib.metadata.distributions() for entry in _unreadable(kind, dist)]
    found = []
    for point in points:
        about = point.dist.metadata  # type: ignore[union-attr]  # those that were found have one
        source, target = f"{about['Name']} {about['Version']}", point.value.partition("[")[0].strip()
        doc, problem = discovery.look(target)
        label, source, said = (one_line(x) for x in (point.name, source, doc or about["Summary"] or ""))
        found.append(Entry(kind, label, target, source, said, problem=one_line(problem)))
    return sorted(found, key=lambda entry: entry.name)


def _unreadable(kind: str, dist: importlib.metadata.Distribution) -> list[Entry]:
    try:
        list(dist.entry_points)
    except Exception as error:
        name, problem = one_line(str(dist.metadata["Name"])), f"{type(error).__name__}: {error}"
        said = f"its entry points cannot be read, nor those of other packages: {problem}"
        return [Entry(kind, name, "", name, problem=one_line(said))]
    return []


def _load_entry(entry: Entry | None) -> Any:
    assert entry is not None
    one = entry.kind.removesuffix("s")
    if entry.hint:
        raise MissingError(f"{one} {entry.name} {entry.hint}")
    module_name, _, attribute = entry.target.partition(":")
    if entry.source == OURS and entry.kind == "robots":
        return Path(entry.target)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if entry.source == OURS and not _is_optional(error.name):
            raise  # a module of our own is gone: a bug, not the user's doing
        raise MissingError(
            f"{one} {entry.name} ({entry.source}) needs {error.name}: not installed"
        ) from error
    except Exception as error:
        if entry.source == OURS:
            raise
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{one} {entry.name} ({entry.source}) cannot be imported: {what}") from error
    return found


def _is_optional(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] != OURS


def _load_file(kind: str, name: str) -> Any:
    """Imports `path.py` under a module name of its own and returns the object called Name."""
    match = _FILE.match(name)
    assert match is not None
    path = Path(match["path"]).expanduser()
    try:
        path = path.resolve()
        exists = path.is_file()
    except (OSError, ValueError, RuntimeError):
        exists = False
    if not exists:
        _bad_path(kind.removesuffix("s"), path)
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    module_name = f"robolearn_file_{digest}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their own module up while they are made. The folder is on the path meanwhile
        # (last, so that it shadows nothing), for the file's neighbours.
        sys.modules[module_name] = module
        sys.path.append(str(path.parent))
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            line = discovery.failing_line(error, path)
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{quote(str(path), 120)}{line} cannot be imported: {what}") from error
        finally:
            sys.path.remove(str(path.parent))
    if not hasattr(module, match["name"]):
        defined = discovery.classes(path)
        hint = did_you_mean(match["name"], defined) or f"; it has {listing(defined)}"
        raise ConfigError(f"{quote(str(path), 120)} has no {match['name']}{hint}")
    return getattr(module, match["name"])


def _bad_path(one: str, path: Path) -> NoReturn:
    """Says what is wrong with something that looks like a path."""
    shown = quote(str(path), 120)
    if path.suffix == ".py":
        try:
            is_there = path.expanduser().is_file()
        except (OSError, ValueError, RuntimeError):
            is_there = False
        if not is_there:
            raise ConfigError(f"{one} from a file: there is no file {shown}")
        inside = listing(discovery.classes(path.expanduser()))
        raise ConfigError(f"{one} from a file needs the name in it: {path}:NAME; it has {inside}")
    raise ConfigError(
        f"unknown {one} {shown}: a file is named as path.py:Name. Valid: {listing(names(one + 's'))}"
    )


def _checked(kind: str, name: str, found: Any) -> Any:
    """Refuses an object that cannot be what its kind says."""
    one, shown = kind.removesuffix("s"), quote(name, 120)
    if kind == "robots":
        return Path(found) if isinstance(found, str) else found
    if not isinstance(found, type):
        raise ConfigError(f"{one} {shown} is not a class but {type(found).__name__}")
    if kind == "tasks":
        # By name, not identity: the registry stands below the tasks and imports none of them.
        task = ("robolearn.tasks.mdp.task", "Task")
        if not any((base.__module__, base.__name__) == task for base in found.__mro__[1:]):
            raise ConfigError(
                f"task {shown} is not a Task: derive the class from robolearn.tasks.mdp.task.Task"
            )
        own = vars(found)
        numbers = [
            name for name, hint in own.get("__annotations__", {}).items() if "ClassVar" not in str(hint)
        ]
        if "__dataclass_fields__" not in own and numbers:
            raise ConfigError(
                f"task {shown}: put @dataclass above the class, or {numbers[0]} is not a setting"
            )
    elif not dataclasses.is_dataclass(getattr(found, "config_class", None)):
        raise ConfigError(f"{one} {shown} has no config_class, the dataclass of its settings")
    return found
