"""Settings that a task states for its runs: `defaults`, `learner_defaults` of a learner, and a size for a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from robolearn.config import fields, registry
from robolearn.config.overrides import Override
from robolearn.config.schema import scalars
from robolearn.config.sections import DEFAULT_CHOICE, sort
from robolearn.errors import ConfigError


class Preset(NamedTuple):
    """A task's overrides; `where` begins error messages."""

    where: str
    chosen: dict[str, str]
    """Names of sections."""
    trees: dict[str, Any]
    """Nested updates by section."""
    values: dict[str, Any]
    """Settings that are a single value."""


def stated_by(task_class: Any, learner: str | None) -> list[Preset]:
    """The task's `defaults`, and its `learner_defaults` for the learner that the user chose, or else the task."""
    where = f"{task_class.__name__}.defaults: "
    first = _preset(getattr(task_class, "defaults", {}), where)
    usual = registry.canonical("learners", first.chosen.get("learner", DEFAULT_CHOICE["learner"]))
    name = registry.canonical("learners", learner or usual)
    if name != usual and "learner" in first.trees:
        # Settings for one learner do not apply to another, but to one that says so.
        cls = registry.load("learners", name)
        shared = fields.hints(cls.config_class) if getattr(cls, "shares_settings_of", "") == usual else ()
        kept = {key: value for key, value in first.trees["learner"].items() if key in shared}
        first.trees["learner"] = kept
    where = f"{task_class.__name__}.learner_defaults: "
    by_learner = getattr(task_class, "learner_defaults", {})
    if not isinstance(by_learner, Mapping):
        raise ConfigError(
            f"{where}must be a dictionary from names of learners to dictionaries like `defaults`"
        )
    where = f"{where}{name}: "
    second = _preset(by_learner.get(name, {}), where)
    if "learner" in second.chosen:
        raise ConfigError(f"{where}cannot choose a learner; `defaults` can")
    return [first, second]


def cpu_envs(task_class: Any, stated: list[Preset]) -> int:
    """The number of environments on a CPU; 0 where the task, a subclass or a learner's settings state no other than
    for a GPU.

    `cpu_envs` replaces `num_envs` of the `defaults` beside which it stands, not what a subclass or `learner_defaults`
    say.

    Raises:
        ConfigError: it is no number of environments.
    """
    owner = next((c for c in getattr(task_class, "__mro__", ()) if "cpu_envs" in vars(c)), None)
    if owner is None or owner.cpu_envs == 0:
        return 0
    few = int(scalars({"num_envs": owner.cpu_envs}, f"{owner.__name__}.cpu_envs: ")["num_envs"])
    beside = getattr(owner, "defaults", {}).get("num_envs")
    replaced = stated[0].values.get("num_envs") == beside
    return few if replaced and all("num_envs" not in later.values for later in stated[1:]) else 0


def _preset(settings: Any, where: str) -> Preset:
    """A task's dictionary of settings as overrides, sorted."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(f"{where}must be a dictionary from dotted keys to values")
    chosen, trees = sort(Override(f"{where}{k}={v}", tuple(k.split(".")), v) for k, v in settings.items())
    return Preset(where, chosen, trees, scalars(trees.pop("", {}), where))
