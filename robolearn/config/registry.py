"""Finds tasks, robots, backends and learners by name, those of RoboLearn and of other packages.

An entry is a "module:object" string until `load` imports it; listing names imports no torch and no simulator.
Sources: RoboLearn's folders and tables, entry points of installed packages (groups `robolearn.tasks`, `.robots`,
`.backends`, `.learners`), and files named by the user, `path.py:Name`. A name defined twice is refused: which one a
run used must not depend on what is installed.
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

from robolearn.config import catalog, discovery
from robolearn.config.tables import BACKENDS, DOORS, LEARNERS, Row
from robolearn.errors import ConfigError, MissingError, did_you_mean, listing, one_line, quote

KINDS = ("tasks", "robots", "backends", "learners")
ROBOT_FILES = (".xml", ".urdf", ".mjcf", ".yaml")
"""Endings of the files that a robot may be named by."""
OURS = "robolearn"
_HERE = Path(__file__).parent.parent
_FILE = re.compile(r"(?P<path>.*\.py):(?P<name>[A-Za-z_]\w*)\Z", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A task, robot, backend or learner found under a name."""

    kind: str
    """One of KINDS."""
    name: str
    """What the user types."""
    location: str
    """"module:object", or a robot's folder."""
    source: str
    """The package that defines it: "robolearn", or a distribution with its version."""
    description: str = ""
    """One line for `robolearn list`."""
    requires: tuple[str, ...] = ()
    """Modules that must be importable."""
    extra: str = ""
    """The extra of robolearn that installs them."""
    devices: tuple[str, ...] = ()
    """Backends: devices it runs on; empty where only importing it would tell."""
    gives: tuple[str, ...] = ()
    """Backends: see `Row.gives`."""
    install: str = ""
    """See `Row.install`."""
    problem: str = ""
    """Why it cannot be used at all; empty where it can."""
    absent: str = ""
    """Robots: why its file is not here, and how to get it; empty where it is."""

    @property
    def ours(self) -> bool:
        """Whether RoboLearn lists it, not another package that is installed."""
        return self.source == OURS or (self.kind == "robots" and self.name in catalog.ROBOTS)

    @property
    def missing(self) -> list[str]:
        """Required modules that are not installed."""
        return [name for name in self.requires if not _installed(name)]

    @property
    def hint(self) -> str:
        """Why it cannot be used, and the fix; empty where it can."""
        if self.problem or self.absent or not self.missing:
            return self.problem or self.absent
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
    """Every name of a kind, RoboLearn's first."""
    return list(entries(kind))


def describe(kind: str) -> list[Listing]:
    """Every entry of a kind, and every door to one: name, description, source, whether it can be used, and the fix."""
    doors = [
        Entry(kind, f"{d}:ID", r.location, OURS, r.description, r.requires, r.extra, install=r.install)
        for d, r in _doors(kind).items()
    ]
    return [
        Listing(e.name, e.description, e.source, not e.hint, e.hint)
        for e in (*entries(kind).values(), *doors)
    ]


@functools.cache
def entries(kind: str) -> Mapping[str, Entry]:
    """The entry of each name. Looked up once in a process; `refresh` clears it."""
    found: dict[str, Entry] = {}
    for entry in [*_builtin(kind), *_installed_packages(kind)]:
        if entry.name in found:
            first = found[entry.name]
            why = f"defined twice, by {first.source} ({first.location}) and by {entry.source} ({entry.location})"
            entry = dataclasses.replace(first, source=f"{first.source}, {entry.source}", problem=why)
        found[entry.name] = entry
    return found


def refresh() -> None:
    """Clears the entries, after a package was installed or a folder was added to `sys.path`."""
    entries.cache_clear()


def load(kind: str, name: str) -> Any:
    """Import the class of that name; for a robot, its folder, MJCF or URDF file, or a Robot. `name` may be
    `path.py:Name`, or of a robot a path.

    Raises:
        ConfigError: the name does not exist (similar ones are named), or what it names cannot be used.
        MissingError: a package it needs is not installed.
    """
    if door := _door(kind, name):
        return _load_entry(door).named(name.partition(":")[2])
    if is_file(name):
        found = _load_file(kind, name)
    elif kind == "robots" and name.startswith(catalog.PACKAGE):
        return catalog.locate(name)
    elif _is_robot_path(kind, name):
        return Path(name).expanduser().resolve()
    else:
        found = _load_entry(require(kind, name))
    return _checked(kind, name, found)


def require(kind: str, name: str, where: str = "") -> Entry | None:
    """The entry of a name, without importing it; None for a file or a robot's folder.

    Raises:
        ConfigError: the name does not exist or cannot be used; `where` is the setting it was given to.
    """
    one = kind.removesuffix("s")
    if door := _door(kind, name):
        return door
    if is_file(name) or _is_robot_path(kind, name):
        return None
    if kind == "robots" and name.startswith(catalog.PACKAGE):
        catalog.locate(name)
        return None
    entry = entries(kind).get(name)
    if entry is None:
        path = Path(name)
        if kind == "robots" and "/" not in name and _is_robot_path(kind, f"./{name}"):
            raise ConfigError(f"unknown robot {quote(name)}; for the folder of that name write ./{name}")
        if kind == "robots" and "/" not in name and path.is_file():
            raise ConfigError(f"robot {quote(name)}: a robot's file ends in {listing(ROBOT_FILES)}")
        if path.suffix == ".py" or "/" in name or (kind == "robots" and path.suffix in ROBOT_FILES):
            _bad_path(one, path)
        at = f"{where}: " if where else ""
        word = name.partition(":")[0]
        if word in _doors(kind):
            raise ConfigError(f"{at}unknown {one} {quote(name)}: add the ID of an environment, {word}:ID")
        # `g1` is a part of unitree_g1, and not a misspelling of gr1.
        inner = [each for each in names(kind) if word.lower() in each.split("_")][:3]
        hint = (
            f": did you mean {' or '.join(inner)}?"
            if inner
            else did_you_mean(word, [*names(kind), *_doors(kind)])
        )
        raise ConfigError(f"{at}unknown {one} {quote(name)}{hint or '.'} Valid: {listing(names(kind))}")
    if entry.problem:
        raise ConfigError(f"{one} {name} cannot be used: {entry.problem}")
    return entry


def is_file(name: str) -> bool:
    """Whether a name runs code that no installed package has registered: `path.py:Name`, or through a door
    `DOOR:path.py:Name`, `DOOR:module:ID` or `DOOR:module` of another package than the door's."""
    if _FILE.match(name) is not None:
        return True
    if _door("tasks", name) is None:
        return False
    word, _, id = name.partition(":")
    known = DOORS[word].packages
    return ":" in id or bool(known and id.partition(".")[0] not in known)


def from_file(name: str) -> Any:
    """Import what `path.py:Name` names.

    Raises:
        ConfigError: the file or the name does not exist, or the file cannot be imported.
    """
    return _load_file("tasks", name)


def canonical(kind: str, name: str) -> str:
    """The name to save with a run: a file or a robot's folder with its absolute path, other names unchanged."""
    word, _, rest = name.partition(":")
    if _door(kind, name):
        return f"{word}:{canonical(kind, rest)}"
    try:
        if match := _FILE.match(name):
            return f"{Path(match['path']).expanduser().resolve()}:{match['name']}"
        return str(Path(name).expanduser().resolve()) if _is_robot_path(kind, name) else name
    except (OSError, ValueError, RuntimeError):
        return name  # no such path; `load` reports it


def beside(task: str, robot: str) -> str:
    """The name to save of the robot that a task names itself: a path is one from the task's file, if it is there."""
    if match := _FILE.match(task):
        place = Path(match["path"]).expanduser().resolve().parent / robot
        if _is_robot_path("robots", str(place)):
            return str(place.resolve())
    return canonical("robots", robot)


def pick_backend(device: str, needs: Collection[str] = ()) -> str:
    """The backend for `backend=auto` on a device, with a learner that requires the capabilities `needs`.

    On CUDA, a backend that runs there is preferred to one for the CPU. Backends of other packages are never picked.

    Raises:
        MissingError: none is installed; the message says how to install one.
    """
    candidates = [entry for entry in entries("backends").values() if entry.devices]
    # Other needs are not in the tables: `train.make_learner` checks them against the backend itself.
    needs = {need for need in needs if any(need in entry.gives for entry in candidates)}
    candidates = [entry for entry in candidates if needs <= set(entry.gives)]
    # A backend with more capabilities is slower: it is picked where they are needed or no other is installed.
    plain = [entry for entry in candidates if needs or not entry.gives]
    if any(not entry.hint for entry in plain) or all(entry.hint for entry in candidates):
        candidates = plain
    usable = [entry for entry in candidates if not entry.hint]
    on_cuda = [entry for entry in usable if "cuda" in entry.devices]
    on_cpu = [entry for entry in usable if "cpu" in entry.devices]
    if on_cuda and (device.startswith("cuda") or (device == "auto" and _has_cuda())):
        return on_cuda[0].name
    if on_cpu:
        return on_cpu[0].name
    wanted = "cuda" if device.startswith("cuda") else "cpu"
    fixes = [entry.hint for entry in candidates if wanted in entry.devices] or [
        entry.hint for entry in candidates
    ]
    what = f"simulator with {', '.join(sorted(needs))}" if needs else "simulator"
    raise MissingError(f"no {what} for device={device} is installed; {'; '.join(fixes[:2])}")


def giving(need: str) -> str:
    """The override that chooses a backend with a capability; empty where no backend is known to have it."""
    rows = sorted((e for e in entries("backends").values() if need in e.gives), key=lambda e: bool(e.hint))
    return f"backend={rows[0].name}" + (f" ({rows[0].hint})" if rows[0].hint else "") if rows else ""


def devices(backend: str) -> tuple[str, ...]:
    """Devices that a backend runs on; one of another package or a file has them in its class's `devices`, else CPU."""
    entry = None if is_file(backend) else require("backends", backend)
    if entry is not None and entry.devices:
        return entry.devices
    return tuple(getattr(load("backends", backend), "devices", ("cpu",)))


def uses_gpu(backend: str, device: str) -> bool:
    """Whether `device`, a setting, is a GPU for this backend: with auto, where there is one that it runs on."""
    if device != "auto":
        return device.startswith("cuda")
    return "cuda" in devices(backend) and _has_cuda()


def _is_robot_path(kind: str, name: str) -> bool:
    """Whether a name is the path of a folder with a robot.yaml, or of a robot.yaml, an MJCF or a URDF file."""
    if kind != "robots":
        return False
    try:
        path = Path(name).expanduser()
        if path.suffix.lower() in ROBOT_FILES:
            return path.is_file()
        return "/" in name and (path / "robot.yaml").is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _doors(kind: str) -> Mapping[str, Row]:
    """Doors to third-party environments, by the word before the colon."""
    return DOORS if kind == "tasks" else {}


def _door(kind: str, name: str) -> Entry | None:
    """The entry of the door that a name of the form `DOOR:ID` goes through."""
    word, _, id = name.partition(":")
    row = _doors(kind).get(word) if id else None
    if row is None:
        return None
    about = (row.location, OURS, row.description, row.requires, row.extra)
    return Entry(kind, name, *about, install=row.install)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _installed(module: str) -> bool:
    """Whether a module can be imported. It imports nothing: `find_spec` of a submodule would import its package."""
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


def _builtin(kind: str) -> list[Entry]:
    if kind in ("tasks", "robots"):
        robots = _HERE / "envs" / "robots"
        found = (
            discovery.robots(robots) if kind == "robots" else discovery.tasks(_HERE / kind, "robolearn.tasks")
        )
        own = [Entry(kind, d.name, d.location, OURS, d.description, problem=d.problem) for d in found]
        return own + (_robots_of_others() if kind == "robots" else [])
    rows = {"backends": BACKENDS, "learners": LEARNERS}[kind]
    return [
        Entry(kind, name, r.location, OURS, r.description, r.requires, r.extra, r.devices, r.gives, r.install)
        for name, r in rows.items()
    ]


def _robots_of_others() -> list[Entry]:
    """The robots of `catalog.ROBOTS`, with the package that has the file here or would."""
    out = []
    for name, (about, _) in catalog.ROBOTS.items():
        found = catalog.find(name)
        absent = "" if found else catalog.hint(name)
        out.append(Entry("robots", name, str(found or ""), catalog.package(name), about, absent=absent))
    return out


def _installed_packages(kind: str) -> list[Entry]:
    """Entries of other packages. A problem of one leaves the others usable, except for a malformed entry_points.txt:
    `importlib.metadata` reads all of them, so it hides all entries and is named."""
    try:
        points = importlib.metadata.entry_points(group=f"{OURS}.{kind}")
    except Exception:
        return [entry for dist in importlib.metadata.distributions() for entry in _unreadable(kind, dist)]
    found = []
    for point in points:
        about = point.dist.metadata  # type: ignore[union-attr]  # those that were found have one
        source, reference = f"{about['Name']} {about['Version']}", point.value.partition("[")[0].strip()
        doc, problem = discovery.look(reference)
        label, source, said = (one_line(x) for x in (point.name, source, doc or about["Summary"] or ""))
        found.append(Entry(kind, label, reference, source, said, problem=one_line(problem)))
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
    module_name, _, attribute = entry.location.partition(":")
    if entry.kind == "robots" and entry.ours:
        return Path(entry.location)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if entry.source == OURS and not _is_optional(error.name):
            raise  # one of RoboLearn's modules is missing: a bug
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
    """Imports `path.py` under a unique module name and returns the object called Name."""
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
        # Dataclasses look up their module while they are created. The file may import its neighbours: their folder
        # is on the path during the import, last, so that it shadows nothing.
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
    """Raises a ConfigError that says what is wrong with a path."""
    shown = quote(str(path), 120)
    if path.suffix == ".py":
        try:
            is_there = path.expanduser().is_file()
        except (OSError, ValueError, RuntimeError):
            is_there = False
        if not is_there:
            raise ConfigError(f"{one} from a file: {shown} does not exist")
        inside = listing(discovery.classes(path.expanduser()))
        raise ConfigError(f"{one} from a file needs a name in the file: {path}:NAME; it has {inside}")
    if one == "robot":
        what = (
            "is no folder with a robot.yaml" if path.suffix.lower() not in ROBOT_FILES else "does not exist"
        )
        raise ConfigError(
            f"robot {shown} {what}; a robot is named by such a folder, an MJCF or a URDF file, or a name"
        )
    raise ConfigError(
        f"unknown {one} {shown}: a file is named as path.py:Name. Valid: {listing(names(one + 's'))}"
    )


def _checked(kind: str, name: str, found: Any) -> Any:
    """The object, if it can be one of its kind.

    Raises:
        ConfigError: it cannot.
    """
    one, shown = kind.removesuffix("s"), quote(name, 120)
    if kind == "robots":
        # By name, not identity: the config layer does not import the envs layer.
        if isinstance(found, (str, Path)) or type(found).__name__ == "Robot":
            return Path(found) if isinstance(found, str) else found
        raise ConfigError(
            f"robot {shown} is no robot but {type(found).__name__}: name a Robot, or the path of a folder, MJCF or URDF"
            " file"
        )
    if not isinstance(found, type):
        raise ConfigError(f"{one} {shown} is not a class but {type(found).__name__}")
    if kind == "tasks":
        # By name, not identity: the config layer does not import the tasks layer.
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
        _require_types(found, shown)
        _require_constants(found, shown)
    elif not dataclasses.is_dataclass(getattr(found, "config_class", None)):
        raise ConfigError(f"{one} {shown} has no config_class, the dataclass of its settings")
    return found


def _require_types(task: type, shown: str) -> None:
    """Refuse a setting that a class states anew without its type: a dataclass would go on with the value of the class
    above, without a word.

    Raises:
        ConfigError: there is one; it is named.
    """
    settings = {each.name: each.type for each in dataclasses.fields(task)}
    for cls in task.__mro__:
        own = vars(cls)
        for name in sorted(own.keys() & settings.keys() - own.get("__annotations__", {}).keys()):
            if hasattr(own[name], "__get__"):  # the method terminations() of the first version
                continue
            kind = (
                settings[name]
                if isinstance(settings[name], str)
                else getattr(settings[name], "__name__", "...")
            )
            raise ConfigError(
                f"task {shown}: {name} in class {cls.__name__} has no type, so it changes nothing; write {name}: "
                f"{kind} = ..., with field(default_factory=lambda: ...) "
                "around a list, a dictionary or settings of their own"
            )


def _require_constants(task: type, shown: str) -> None:
    """Refuse a constant of the class, such as `defaults`, where a class states it as a field with a factory: only an
    instance would have it, and the class would go on with the value of the one above.

    Raises:
        ConfigError: there is one; it is named.
    """
    made = {each.name for each in dataclasses.fields(task) if each.default_factory is not dataclasses.MISSING}
    for cls in task.__mro__:
        constants = {
            name for name, hint in vars(cls).get("__annotations__", {}).items() if "ClassVar" in str(hint)
        }
        for name in sorted(made & constants):
            raise ConfigError(
                f"task {shown}: {name} is a constant of the class and no field; write {name}: ClassVar = ..., without "
                "field(...)"
            )
