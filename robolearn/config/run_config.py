"""Resolves, validates, saves and loads the configuration of a run.

A `Config` is made by `resolve` or `load` and never changed afterwards. Precedence, last wins: defaults of the
dataclasses, the task's `defaults`, its `cpu_envs` on a CPU, its `learner_defaults`, the user's overrides in the order
written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from robolearn.config import fields, presets, registry, yaml_file
from robolearn.config.guarding import GuardConfig
from robolearn.config.overrides import Override, parse
from robolearn.config.schema import FILE_NAME, SCALARS, SECTIONS, SHOWN, Config, migrated, to_dict
from robolearn.config.schema import scalars as plain_settings
from robolearn.config.sections import (
    DEFAULT_CHOICE,
    EXTERNAL,
    instance,
    names_of,
    put,
    settings_of,
    settled,
    sort,
)
from robolearn.errors import ConfigError, quote

__all__ = [
    "EXTERNAL",
    "FILE_NAME",
    "Config",
    "changed",
    "load",
    "named_files",
    "resolve",
    "resume_changes",
    "save",
    "show",
    "to_dict",
    "validate",
]

NOT_GUARDED = ("clone", "distill", "dpo")
"""Learners that do not learn from the task's reward."""
INSIDE = "run:"
"""Begins the path of a reference policy in config.yaml that is in the run folder itself, which may be moved."""


def resolve(overrides: Iterable[str], base: Config | None = None) -> Config:
    """The complete, valid configuration that overrides describe.

    Args:
        overrides: `key=value` words; without a base and without `resume=RUN` they must name a task.
        base: configuration that the overrides change; with `resume=RUN` it is that run's.

    Raises:
        ConfigError: an override is invalid; names the first such one.
        MissingError: a package that is needed is not installed.
    """
    words = list(overrides)
    for word in words:
        if "=" not in word and word in registry.names("tasks"):
            raise ConfigError(f"{quote(word)} is no setting; name the task with task={word}")
    items = parse(words, [*SCALARS, *SECTIONS])
    chosen, trees = sort(items)
    # Single values first: checking them imports nothing.
    guard = trees.get("", {}).get("guard")
    scalars = plain_settings(trees.pop("", {}))
    asked = scalars
    if base is None and scalars.get("resume"):
        saved = load(scalars["resume"], _naming_files(words))
        return resolve(
            words, dataclasses.replace(saved, output=None)
        )  # the saved output is not the new run's

    task_name = registry.canonical("tasks", chosen.get("task") or (base.task_name if base else _no_task()))
    task_class = registry.load("tasks", task_name)
    stated = presets.stated_by(task_class, chosen.get("learner")) if base is None else []
    if base is None:
        given = [preset.values for preset in stated]
        scalars = {key: value for settings in (*given, asked) for key, value in settings.items()}
    else:
        changes = fields.apply(base.robot, dict, scalars.pop("robot", fields.KEEP), "robot", {"open": True})
        scalars = {**{key: getattr(base, key) for key in SCALARS}, **scalars, "robot": changes}
        if guard:
            scalars["guard"] = fields.apply(base.guard, GuardConfig, guard, "guard", {})

    built: dict[str, Any] = {}
    device = scalars.get("device", "auto")
    usual = {**DEFAULT_CHOICE, "task": task_name}
    for preset in stated:
        usual |= preset.chosen
    for section in ("task", "learner", "backend"):  # backend=auto depends on the learner
        learner = built.get("learner_name", "")
        name = chosen.get(section) or (getattr(base, f"{section}_name") if base else usual[section])
        name = settled(section, name, device, learner, task_class, task_name)
        tuned = section == "backend" and any(section in preset.trees for preset in stated)
        if tuned and name != settled(section, usual[section], device, learner, task_class, task_name):
            for preset in stated:  # settings for one backend do not apply to another
                preset.trees.pop(section, None)
        if base is not None and getattr(base, f"{section}_name") == name:
            built[section] = getattr(base, section)
        else:
            built[section] = instance(settings_of(section, name), section, name)
        built[f"{section}_name"] = name
    few = presets.cpu_envs(task_class, stated) if base is None and "num_envs" not in asked else 0
    if few and not registry.uses_gpu(built["backend_name"], device):
        scalars["num_envs"] = few

    known = {path for section in SECTIONS for path in fields.paths(built[section], section)}
    anything = tuple(
        f"{path}." for section in SECTIONS for path in fields.open_paths(built[section], section)
    )
    for item in items:
        if item.key[0] in SECTIONS and item.dotted not in known and not item.dotted.startswith(anything):
            raise ConfigError(fields.missing_key(item.text, item.dotted, known | set(SCALARS)))
    heads = _with_heads(items, built["task"])
    if heads != items:
        trees["task"] = sort(heads)[1]["task"]
    robot = trees.get("task", {}).get("robot")
    if isinstance(robot, str):
        trees["task"]["robot"] = registry.canonical("robots", robot)
    else:
        own = getattr(built["task"], "robot", None)
        for preset in stated:
            own = preset.trees.get("task", {}).get("robot", own)
        if isinstance(own, str) and own:
            trees.setdefault("task", {})["robot"] = registry.beside(task_name, own)
    for section in SECTIONS:
        node = built[section]
        for preset in stated:
            if section in preset.trees:
                node = fields.apply(node, type(node), preset.trees[section], preset.where + section, {})
        built[section] = fields.apply(node, type(node), trees.get(section, fields.KEEP), section, {})
    config = Config(**scalars, **built)
    validate(config)
    if (given := [key for key in guard or {} if key != "mode"]) and config.guard.mode == "off":
        raise ConfigError(f"guard.{given[0]} is set, and guard=off: nothing is watched; add guard=on")
    return config


def _with_heads(items: list[Override], task: Any) -> list[Override]:
    """The overrides, `task.rewards.gait=2` as `task.rewards.gait.weight=2` where another one sets a parameter of the
    same reward: each would replace the other."""

    def head(item: Override) -> str:
        node: Any = task
        meta: Mapping[str, Any] = {}
        for part in item.key[1:] if item.key[0] == "task" else ():
            of, meta = meta.get("of"), fields.metadata(node, part)
            node = node.get(part, of) if isinstance(node, dict) else getattr(node, part, None)
        if "head" in meta and not isinstance(item.value, dict):
            return str(meta["head"])
        return node.head if isinstance(node, fields.Parts) and not isinstance(item.value, dict) else ""

    def beside(item: Override) -> bool:
        return any(len(o.key) > len(item.key) and o.key[: len(item.key)] == item.key for o in items)

    def leaves(item: Override) -> list[Override]:
        """A dictionary as one override for each of its values, where others set something within it."""
        if not isinstance(item.value, dict) or not item.value or not beside(item):
            return [item]
        parts = [dataclasses.replace(item, key=(*item.key, k), value=v) for k, v in item.value.items()]
        return [leaf for part in parts for leaf in leaves(part)]

    items = [leaf for item in items for leaf in leaves(item)]
    return [
        dataclasses.replace(item, key=(*item.key, name)) if (name := head(item)) and beside(item) else item
        for item in items
    ]


def robot_changes(items: Iterable[Override]) -> dict[str, Any]:
    """The changes to a robot that overrides such as `robot.actuators.knee.kp=80` make, nested.

    Raises:
        ConfigError: one of them is of something else.
    """
    tree: dict[str, Any] = {}
    for item in items:
        if item.key[0] != "robot" or len(item.key) < 2:
            raise ConfigError(f"{quote(item.text)} is no change of the robot; write robot.KEY=VALUE")
        put(tree, item.key[1:], item.value)
    return dict(plain_settings({"robot": tree})["robot"]) if tree else {}


def _no_task() -> NoReturn:
    raise ConfigError(f"no task is named: add task=NAME; {names_of('task')}")


def validate(config: Config) -> None:
    """Calls `validate()` of the task and of the learner's and the backend's settings, where they have one.

    Raises:
        ConfigError: one of them raised a ValueError, or the task's robot does not exist.
    """
    robot = getattr(config.task, "robot", None)
    if isinstance(robot, str):
        registry.require("robots", robot, "task.robot")
    elif config.robot:
        raise ConfigError(f"robot.{next(iter(config.robot))}: task={config.task_name} has no robot to change")
    _validate_ranks(config)
    _validate_guard(config)
    if config.mode == "async" and config.ranks:
        away = "mode=sync" if config.placement is None else "mode=sync placement=null"
        raise ConfigError(
            f"ranks={config.ranks} with mode=async, which has one learner; leave ranks out, or train with {away}"
        )
    if config.mode == "sync" and config.placement is not None:
        raise ConfigError(
            f"placement={quote(config.placement, 120)} places the processes of mode=async; add mode=async, or take it "
            "away with placement=null"
        )
    for section in SECTIONS:
        node = getattr(config, section)
        if not hasattr(node, "validate"):
            continue
        try:
            node.validate()
        except ConfigError:
            raise
        except ValueError as error:
            cls: Any = type(node)
            names_a_field = str(error).startswith(tuple(fields.hints(cls)))
            raise ConfigError(f"{section}{'.' if names_a_field else ': '}{error}") from error


def agents_of(config: Config) -> int:
    """Number of agents of the task: there is an environment for each in each of `num_envs` worlds."""
    agents = getattr(config.task, "agents", ())
    return max(1, len(agents)) if isinstance(agents, tuple) else 1


def _validate_ranks(config: Config) -> None:
    """Raise ConfigError for ranks and shards that do not divide the environments."""
    shards = config.shards
    if shards & (shards - 1):
        raise ConfigError(f"shards={shards} must be a power of two, such as {1 << shards.bit_length() - 1}")
    if config.rollout_share < 1 and getattr(config.learner, "rnn", "none") != "none":
        raise ConfigError(
            f"rollout_share={config.rollout_share:g} with learner.rnn={config.learner.rnn}, which learns from complete "
            "rollouts; use learner.rnn=none, or leave rollout_share out"
        )
    if not config.ranks:
        return
    if config.backend_name == EXTERNAL:
        raise ConfigError(
            f"ranks={config.ranks}: task={config.task_name} brings its own simulator, whose random numbers cannot be "
            "divided; leave ranks out"
        )
    if share := getattr(config.learner, "self_play", 0):
        raise ConfigError(
            f"ranks={config.ranks} with learner.self_play={share:g}, whose past policies are of one process; leave "
            "ranks out, or use learner.self_play=0"
        )
    if config.ranks > shards:
        raise ConfigError(f"ranks={config.ranks} is more than shards={shards}; raise shards, a power of two")
    if config.num_envs % shards:
        raise ConfigError(
            f"num_envs={config.num_envs} is no multiple of shards={shards}; use num_envs="
            f"{max(1, config.num_envs // shards) * shards}, or fewer shards"
        )


def _validate_guard(config: Config) -> None:
    """Raise ConfigError for what the guard does not watch."""
    if config.guard.mode == "off":
        return
    if config.mode == "async":
        raise ConfigError(
            "guard=on with mode=async, whose environments are in other processes; use mode=sync, or guard=off"
        )
    if config.ranks > 1:
        raise ConfigError(
            f"guard=on with ranks={config.ranks}: the guard watches the environments of one process; leave ranks out, "
            "or use guard=off"
        )
    if getattr(config.task, "agents", ()) and not config.task.ends_together:
        raise ConfigError(
            f"guard=on: agents of task={config.task_name} end one by one, and the guard takes an environment to be one "
            "episode after the other; use guard=off"
        )
    if share := getattr(config.learner, "self_play", 0):
        raise ConfigError(
            f"guard=on with learner.self_play={share:g}: of a game one wins what the other loses, so that success says "
            "nothing; use guard=off"
        )
    if config.backend_name == EXTERNAL and getattr(config.learner, "policies", None):
        raise ConfigError(
            "guard=on with learner.policies in a third-party environment, of which only the batch of one learner is "
            "known; use guard=off"
        )
    if config.learner_name in NOT_GUARDED:
        raise ConfigError(
            f"guard=on with learner={config.learner_name}, which does not learn from the task's reward; use guard=off"
        )


def changed(before: Config, after: Config) -> list[str]:
    """The dotted keys whose values differ between two configurations."""
    old, new = dict(flat(to_dict(before))), dict(flat(to_dict(after)))
    return [key for key in {**old, **new} if key not in old or key not in new or old[key] != new[key]]


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested dictionaries, with their dotted keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _added(path: str, saved: Config) -> list[str]:
    """The dotted keys of a configuration that is loaded from `path` which the file does not have: the version that
    wrote it had no such settings. Those of which it says what does nothing (`neutral`), and has that, are left out."""
    file, nodes = _saved_file(Path(path)), {section: getattr(saved, section) for section in SECTIONS}
    neutral = tuple(
        f"{section}.{name}."
        for section, node in nodes.items()
        for name, meta in fields.metas(type(node)).items()
        if "neutral" in meta
    )
    found = _lacking(to_dict(saved), migrated(yaml_file.read(file), file))
    return [name for name in found if not f"{name}.".startswith(neutral)]  # the setting, or a part of it


def _lacking(now: Any, written: Any, path: str = "") -> Iterator[str]:
    """The dotted keys of the values in `now` that are not in `written`. A term that is written as one value had no
    other settings then: the value is that of its first, a weight for example."""
    if not isinstance(now, dict):
        return
    if not isinstance(written, dict):
        written = dict.fromkeys(list(now)[:1], written)
    for key, item in now.items():
        dotted = f"{path}.{key}" if path else key
        if key in written:
            yield from _lacking(item, written[key], dotted)
        else:
            yield from (name for name, _ in flat(item, dotted))


def resume_changes(overrides: Iterable[str], run: Config) -> list[str]:
    """The dotted keys whose values differ between a resumed run and the saved one, which prevents an exact resume.

    Settings that the version that saved it did not have are among them: their defaults may do something else than that
    version did. Number of iterations, checkpoint interval and output folder are not counted.
    """
    if run.resume is None:
        return []
    saved = load(run.resume, _naming_files(overrides))
    if run.weights not in (None, saved.weights):
        raise ConfigError(
            f"weights={quote(run.weights, 120)} starts a new run, and resume={quote(run.resume, 120)} continues one; "
            "leave one of them out"
        )
    harmless = {
        "resume",
        "output",
        "max_iterations",
        "checkpoint_interval",
        "rank_timeout",
        "recovery",
        "mode",
        "placement",
    }
    if run.mode == "sync":
        harmless |= {"learner.proximal", "learner.max_rho", "learner.max_trace"}
    if run.ranks and saved.ranks:
        harmless |= {"ranks", "torch_threads"}
    elif not run.ranks and not saved.ranks:
        harmless |= {"ranks", "shards"}
    scripts = [key for key, value in flat(saved_tree(run.resume)) if registry.is_file(str(value))]
    left_out = [key for key in scripts if f"{key}=null" in _naming_files(overrides)]
    differing = dict.fromkeys((*_added(run.resume, saved), *changed(saved, run), *left_out))
    return [key for key in differing if key not in harmless and not key.startswith("guard.")]


def named_files(config: Config) -> list[str]:
    """The settings of a configuration that name a file, as overrides: its code is only run where they are given."""
    chosen = {
        "task": config.task_name,
        "backend": config.backend_name,
        "learner": config.learner_name,
        "robot": getattr(config.task, "robot", None),
        "learner.preference_script": getattr(config.learner, "preference_script", None),
    }
    return [f"{k}={name}" for k, name in chosen.items() if isinstance(name, str) and registry.is_file(name)]


def _naming_files(words: Iterable[str]) -> list[str]:
    """The overrides that name a file, which allows importing it, or leave out one of the learner."""
    out = []
    for word in words:
        key, _, value = word.partition("=")
        if registry.is_file(value.strip("'\"")) or (key.startswith("learner.") and value == "null"):
            out.append(word)
    return out


def show(config: Config) -> str:
    """The resolved YAML, with the docstrings of the fields as comments."""
    return yaml_file.render(to_dict(config), config)


def save(config: Config, path: Path | str) -> None:
    """Writes the resolved YAML atomically; a reference policy in its folder is noted as relative to that."""
    tree, folder = to_dict(config), Path(path).absolute().parent
    reference = tree["learner"].get("reference")
    if isinstance(reference, str) and Path(reference).absolute().is_relative_to(folder):
        inner = Path(reference).absolute().relative_to(folder)
        tree["learner"] = {**tree["learner"], "reference": f"{INSIDE}{inner.as_posix()}"}
    yaml_file.write(tree, Path(path))


def saved_tree(path: Path | str) -> dict[str, Any]:
    """The settings of a run as they are saved, nested, with the reference policy's path from here."""
    file = _saved_file(Path(path))
    content = migrated(yaml_file.read(file), file)
    learner = content.get("learner")
    if isinstance(learner, dict) and str(learner.get("reference")).startswith(INSIDE):
        inner = str(learner["reference"]).removeprefix(INSIDE)
        content = {**content, "learner": {**learner, "reference": str(file.parent / inner)}}
    return dict(content)


def load(path: Path | str, overrides: Iterable[str] = ()) -> Config:
    """A saved configuration, changed by overrides.

    Args:
        path: the file, its run folder, or a file in that folder.
        overrides: `key=value` words. A class from a file (`task=path.py:Name`) is imported only where they name it
            again.

    Raises:
        ConfigError: the file cannot be read, has an unsupported schema, unknown keys or values out of range, or names
            a file that the overrides do not name.
    """
    file = _saved_file(Path(path))
    words = list(overrides)
    content = saved_tree(file)
    named = {item.dotted: str(item.value) for item in parse(words)}
    try:
        base = _from_dict(content, named)
    except _NotOfTheFile as error:
        raise ConfigError(str(error)) from error
    except ConfigError as error:
        raise ConfigError(f"{quote(str(file), 120)}: {error}") from error
    return resolve(words, base) if words else base


class _NotOfTheFile(ConfigError):
    """What is wrong with an override, not with the file that it changes."""


def _named(section: str, name: str) -> None:
    """Check the name that an override gives a section."""
    try:
        registry.require(SECTIONS[section], name)
    except ConfigError as error:
        raise _NotOfTheFile(str(error)) from error


def _saved_file(path: Path) -> Path:
    """The configuration file of a run folder, or of one of its checkpoints."""
    if path.suffix == ".yaml":
        return path
    for folder in (path, *list(path.absolute().parents)[:2]):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    what = f"has no {FILE_NAME}, so it is not a run" if path.exists() else "does not exist"
    raise ConfigError(f"{quote(str(path), 120)} {what}")


def _from_dict(content: Mapping[str, Any], named: Mapping[str, str]) -> Config:
    for key in content:
        if key not in SHOWN:
            raise ConfigError(fields.unknown(key, key, SHOWN))
    built: dict[str, Any] = {}
    for section in SECTIONS:
        tree = content.get(section)
        if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
            raise ConfigError(f"{section} has no name")
        tree = dict(tree)
        name, chosen = tree.pop("name"), named.get(section)
        own = name == EXTERNAL and chosen == "auto"
        if section != "task" and chosen not in (None, name) and not own:
            if chosen not in ("auto", EXTERNAL) and not registry.is_file(chosen):
                _named(section, chosen)
            # `resolve` replaces it, so the saved one need not be installed: a policy trained on one simulator is
            # evaluated on a machine that has only another.
            name, tree = chosen, {}
            if section == "backend" and name == "auto":
                name = registry.pick_backend(str(content.get("device", "auto")))
        name = _allowed(section, name, named)
        _refuse_files(tree, section, named)
        start = instance(settings_of(section, name), section, name)
        built[section] = fields.apply(start, type(start), tree, section, {}, whole=True)
        built[f"{section}_name"] = name
    given = {key: content[key] for key in SCALARS if key in content and (key != "robot" or content[key])}
    config = Config(**plain_settings(given), **built)
    validate(config)
    return config


def _allowed(key: str, name: str, named: Mapping[str, str]) -> str:
    """The saved name, or the file that the user names instead, since it may have moved."""
    if not registry.is_file(name):
        return name
    again = named.get(key, "")
    if registry.is_file(again) and again.rpartition(":")[2] == name.rpartition(":")[2]:
        return registry.canonical(SECTIONS.get(key, "robots"), again)
    raise ConfigError(f"its {key} comes from a file, which is only run where you name it again: {key}={name}")


def _refuse_files(tree: Any, path: str, named: Mapping[str, str]) -> None:
    """Refuses a saved file such as task.robot=path.py:Name that the overrides do not name; a setting of the learner
    they may also replace by null, since only a training reads it."""
    if path.startswith("learner.") and named.get(path) == str(None):
        return
    if isinstance(tree, str):
        _allowed(path, tree, named)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            _refuse_files(value, f"{path}.{key}", named)
    elif isinstance(tree, list):
        for value in tree:
            _refuse_files(value, path, named)
