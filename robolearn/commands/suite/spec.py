"""Suites: what a suite's YAML file states."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robolearn.commands.suite.gates import Gate
from robolearn.config import registry, yaml_file
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.simulation.script import Script
from robolearn.training.runs import BUILT_IN

SCHEMA = 1
TERRAINS = ("flat",)
MOST_EPISODES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,79}\Z")

KEYS = {
    "name": "name of the scenario",
    "policy": "a run, a checkpoint, pretrained:NAME, the folder of a bundle, zero or random",
    "task": "the task, for zero and random, and for a policy whose task comes from a file",
    "backends": "simulators",
    "settings": "settings in Hydra's grammar, such as task.randomize.friction=[0.5,0.5]",
    "commands": "what the robot is asked to do, by time; without, the task's own commands",
    "pushes": "pushes by time, [] for none; without, the task's own pushes",
    "terrain": "flat",
    "seeds": "seeds, whose episodes are pooled",
    "episodes": "episodes of each seed",
    "num_envs": "environments at once; without, one for each episode",
    "seconds": "length of an episode [s]",
    "steps": "control steps instead of episodes",
    "gates": "limits of measures",
}


@dataclass(frozen=True)
class Scenario:
    """What is simulated, and the limits that its measures must keep."""

    name: str
    policy: str
    task: str | None
    backends: tuple[str, ...]
    settings: tuple[str, ...]
    script: Script
    seeds: tuple[int, ...]
    episodes: int
    num_envs: int
    steps: int | None
    gates: tuple[Gate, ...]
    fingerprint: str
    """Of everything that the file states of it but gates and policy: a baseline is of one fingerprint."""

    def words(self, backend: str, seed: int, extra: tuple[str, ...] = ()) -> list[str]:
        """The settings of one run of it."""
        task = [f"task={self.task}"] if self.task is not None else []
        return [*task, f"backend={backend}", f"seed={seed}", *self.settings, *extra]


@dataclass(frozen=True)
class Suite:
    """Scenarios of a file."""

    name: str
    path: Path
    scenarios: tuple[Scenario, ...]
    baseline: Path = field(default=Path())
    """Its baseline: NAME.baseline.json beside NAME.yaml."""


def read(path: Path) -> Suite:
    """Read a suite.

    Raises:
        ConfigError: the file is missing, no plain YAML, or states something invalid; the message names the place.
    """
    where = quote(str(path), 120)
    try:
        content = yaml_file.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        return _suite(content, path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _suite(content: object, path: Path) -> Suite:
    top = _mapping(content, "the file", ("schema", "name", "defaults", "scenarios"))
    if top.get("schema") != SCHEMA:
        raise ConfigError(
            f"schema: {quote(top.get('schema'))} is not {SCHEMA}; begin the file with `schema: {SCHEMA}`"
        )
    defaults = _mapping(top.get("defaults") or {}, "defaults", tuple(k for k in KEYS if k != "name"))
    stated = top.get("scenarios")
    if not isinstance(stated, list) or not stated:
        raise ConfigError("scenarios: expected a list of scenarios, such as `- name: stand`")
    scenarios = tuple(_scenario(entry, i, defaults) for i, entry in enumerate(stated))
    names = [scenario.name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"scenarios: {quote(name)} occurs {names.count(name)} times; names must differ")
    stems: dict[str, str] = {}
    for each in names:
        other = stems.setdefault(file_stem(each).lower(), each)
        if other != each:
            raise ConfigError(
                f"scenarios: {quote(other)} and {quote(each)} would share the files of failures; rename one"
            )
    name = top.get("name", path.stem)
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigError(f"name: {quote(name)} is no name of letters, digits, spaces and _.-")
    return Suite(name, path, scenarios, path.with_suffix(".baseline.json"))


def file_stem(name: str) -> str:
    """The name of a scenario as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


def _scenario(entry: object, index: int, defaults: Mapping[str, Any]) -> Scenario:
    place = f"scenarios[{index}]"
    own = _mapping(entry, place, tuple(KEYS))
    name = own.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigError(f"{place}.name: {quote(name)} is no name of letters, digits, spaces and _.-")
    place = f"scenario {quote(name)}"
    gates = {
        **_mapping(defaults.get("gates") or {}, "defaults.gates", None),
        **_mapping(own.get("gates") or {}, f"{place}: gates", None),
    }
    settings = [*_words(defaults.get("settings"), "defaults"), *_words(own.get("settings"), place)]
    whole = {**defaults, **own, "gates": gates, "settings": settings}
    policy = whole.get("policy")
    if not isinstance(policy, str) or not policy:
        raise ConfigError(f"{place}: policy is missing; valid: {KEYS['policy']}")
    task = whole.get("task")
    if task is not None and not isinstance(task, str):
        raise ConfigError(f"{place}: task: {quote(task)} is no name of a task")
    if policy in BUILT_IN and task is None:
        raise ConfigError(f"{place}: policy {policy} needs a task; valid: {listing(registry.names('tasks'))}")
    backends = _names(whole.get("backends", ["mujoco"]), f"{place}: backends")
    known = registry.names("backends")
    for backend in backends:
        if backend not in known:
            raise ConfigError(
                f"{place}: unknown backend {quote(backend)}{did_you_mean(backend, known)} Valid: {listing(known)}"
            )
    terrain = whole.get("terrain", "flat")
    if terrain not in TERRAINS:
        raise ConfigError(f"{place}: terrain: {quote(terrain)} is not one of {listing(TERRAINS)}")
    script = Script.of(whole.get("commands"), whole.get("pushes"), f"{place}: ")
    steps, seconds = whole.get("steps"), whole.get("seconds")
    if steps is not None:
        steps = _whole(steps, f"{place}: steps", 1, 100_000_000)
    if seconds is not None:
        fine = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= 86400
        if not fine:
            raise ConfigError(f"{place}: seconds: {quote(seconds)} is not above 0 and at most 86400")
        settings.append(f"task.episode_length_s={float(seconds)!r}")
    seeds = whole.get("seeds", [1])
    seeds = seeds if isinstance(seeds, list) else [seeds]
    if not seeds or len({repr(seed) for seed in seeds}) < len(seeds):
        raise ConfigError(f"{place}: seeds: {quote(seeds)}: at least one, and each once")
    episodes = _whole(whole.get("episodes", 64), f"{place}: episodes", 1, MOST_EPISODES)
    num_envs = _whole(whole.get("num_envs", min(episodes, 1024)), f"{place}: num_envs", 1, 1_048_576)
    fixed = {k: v for k, v in whole.items() if k not in ("gates", "policy", "backends")}
    return Scenario(
        name=name,
        policy=policy,
        task=task,
        backends=backends,
        settings=tuple(settings),
        script=script,
        seeds=tuple(_whole(seed, f"{place}: seeds", 0, 2**32 - 1) for seed in seeds),
        episodes=episodes,
        num_envs=min(num_envs, episodes) if steps is None else num_envs,
        steps=steps,
        gates=tuple(Gate.of(key, value, f"{place}: gates") for key, value in gates.items()),
        fingerprint=hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:16],
    )


def _mapping(value: object, place: str, valid: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: expected keys and values, not {quote(value)}")
    for key in value:
        if not isinstance(key, str) or (valid is not None and key not in valid):
            hint = did_you_mean(str(key), valid or ()) or "."
            raise ConfigError(f"{place}: unknown key {quote(key)}{hint} Valid: {listing(valid or (), 20)}")
    return dict(value)


def _words(value: object, place: str) -> list[str]:
    words = [] if value is None else value
    if not isinstance(words, list) or not all(isinstance(word, str) and "=" in word for word in words):
        raise ConfigError(f"{place}: settings: expected a list of KEY=VALUE, not {quote(value)}")
    for word in words:
        key = word.partition("=")[0]
        if key in ("backend", "seed", "num_envs", "task"):
            other = {"backend": "backends", "seed": "seeds"}.get(key, key)
            raise ConfigError(f"{place}: settings: {quote(word)}: use the scenario's key `{other}` instead")
    return list(words)


def _names(value: object, place: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{place}: expected a list of names, not {quote(value)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{place}: {listing(names)}: each name once")
    return tuple(names)


def _whole(value: object, place: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{place}: {quote(value)} is no whole number from {low} to {high}")
    return value
