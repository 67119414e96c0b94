"""Configuration objects of other libraries: applying dotted settings, and reading their settings for PPO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from robolearn.config.fields import unknown
from robolearn.errors import ConfigError, quote

_ACTIVATIONS = ("elu", "relu", "swish", "tanh")

USUAL_ENVS = 1024
"""Default of `num_envs`."""

_PPO = {
    "num_steps_per_env": "learner.num_steps",
    "max_iterations": "max_iterations",
    "algorithm.num_learning_epochs": "learner.num_epochs",
    "algorithm.learning_rate": "learner.learning_rate",
    "algorithm.schedule": "learner.schedule",
    "algorithm.desired_kl": "learner.desired_kl",
    "algorithm.gamma": "learner.gamma",
    "algorithm.lam": "learner.lam",
    "algorithm.clip_param": "learner.clip",
    "algorithm.entropy_coef": "learner.entropy_coef",
    "actor.hidden_dims": "learner.actor_hidden",
    "critic.hidden_dims": "learner.critic_hidden",
    "actor.activation": "learner.activation",
    "actor.distribution_cfg.init_std": "learner.init_std",
}
"""Settings of rsl_rl's PPO, as Isaac Lab and mjlab write them, and RoboLearn's setting of the same meaning."""


_SKRL = {
    "agent.rollouts": "learner.num_steps",
    "agent.learning_epochs": "learner.num_epochs",
    "agent.learning_rate": "learner.learning_rate",
    "agent.learning_rate_scheduler_kwargs.kl_threshold": "learner.desired_kl",
    "agent.discount_factor": "learner.gamma",
    "agent.lambda": "learner.lam",
    "agent.gae_lambda": "learner.lam",
    "agent.ratio_clip": "learner.clip",
    "agent.entropy_loss_scale": "learner.entropy_coef",
    "models.policy.network.0.layers": "learner.actor_hidden",
    "models.value.network.0.layers": "learner.critic_hidden",
    "models.policy.network.0.activations": "learner.activation",
}
"""The same of skrl's PPO, IPPO and MAPPO."""


def lay_over(config: Any, changes: Mapping[str, Any], where: str, elsewhere: Mapping[str, str]) -> None:
    """Change parts of a configuration object in place.

    Args:
        config: nested objects, dictionaries and lists.
        changes: nested by key, with plain values.
        where: prefix of the keys in error messages, such as `task.cfg`.
        elsewhere: dotted keys, without `where`, that RoboLearn sets, and the setting that decides each.

    Raises:
        ConfigError: there is no such part (near ones are named), its value has another type, or `elsewhere` has it.
    """
    _lay_over(config, changes, where, {f"{where}.{key}": setting for key, setting in elsewhere.items()})


def _lay_over(config: Any, changes: Mapping[str, Any], where: str, elsewhere: Mapping[str, str]) -> None:
    parts = _parts(config)
    for key, value in changes.items():
        dotted = f"{where}.{key}"
        if dotted in elsewhere:
            raise ConfigError(f"{dotted} is decided by {elsewhere[dotted]}")
        if key not in parts:
            raise ConfigError(unknown(dotted, key, parts))
        old = parts[key]
        if isinstance(value, Mapping):
            if not _parts(old):
                raise ConfigError(f"{dotted} is one value ({quote(old)}), set as {dotted}=VALUE")
            _lay_over(old, value, dotted, elsewhere)
            continue
        new = _alike(old, value, dotted)
        if isinstance(config, Mapping):
            config[key] = new  # type: ignore[index]
        elif isinstance(config, list):
            config[int(key)] = new
        elif isinstance(config, tuple):
            raise ConfigError(f"{dotted} is an item of a tuple; set the whole tuple, {where}=[...]")
        else:
            setattr(config, key, new)


def _parts(node: Any) -> dict[str, Any]:
    if isinstance(node, Mapping):
        return {str(key): value for key, value in node.items()}
    if isinstance(node, list | tuple):
        return {str(i): value for i, value in enumerate(node)}
    if isinstance(node, type | Enum | str | int | float) or not hasattr(node, "__dict__"):
        return {}
    return {key: value for key, value in vars(node).items() if not key.startswith("_")}


def _alike(old: Any, new: Any, dotted: str) -> Any:
    """`new` converted to the type of `old`; None may become anything."""

    def refuse(expected: str) -> ConfigError:
        return ConfigError(f"{dotted} takes {expected}, not {quote(new)}")

    number = isinstance(new, int | float) and not isinstance(new, bool)
    if new is None and isinstance(old, bool | int | float | str | Enum):
        raise refuse("a value")  # None would only fail later, where it is used
    if new is None or old is None:
        return new
    if isinstance(old, bool):
        if not isinstance(new, bool):
            raise refuse("true or false")
        return new
    if isinstance(old, Enum):
        names = [member.name for member in type(old)]
        if new not in names:
            raise refuse(f"one of {', '.join(names)}")
        return type(old)[new]
    if isinstance(old, int | float):
        if not number:
            raise refuse("a number")
        return float(new) if isinstance(old, float) else new
    if isinstance(old, str):
        if not isinstance(new, str):
            raise refuse("text")
        return type(old)(new)  # Isaac Lab's names of functions are a subclass of str
    if isinstance(old, list | tuple):
        if not isinstance(new, list | tuple):
            raise refuse("a list")
        return type(old)(new)
    if _parts(old) or callable(old):
        raise ConfigError(f"{dotted} has parts; set them one by one, {dotted}.PART=VALUE")
    return new


def ppo_settings(runner: Any) -> dict[str, Any]:
    """A task's published settings of rsl_rl's PPO as RoboLearn's; those without an equivalent are omitted.

    rsl_rl sets the number of minibatches, RoboLearn their size: the number is the same with the default `num_envs`.
    """
    found = _translated(runner, _PPO)
    parts = getattr(getattr(runner, "algorithm", None), "num_mini_batches", None)
    _set_minibatches(found, parts, USUAL_ENVS)
    _leave_out_unfit(found)
    groups = getattr(runner, "obs_groups", None)
    if isinstance(groups, Mapping):
        for theirs, ours in (("actor", "policy_groups"), ("critic", "critic_groups")):
            if groups.get(theirs):
                found[f"task.{ours}"] = [str(name) for name in groups[theirs]]
    return found


def skrl_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's published settings of skrl's MAPPO as RoboLearn's; those without an equivalent are omitted.

    skrl learns from the batch of each agent on its own, RoboLearn from that of all: the number of minibatches is the
    same with the default `num_envs` and two agents.
    """
    found = _translated(config, _SKRL)
    _set_minibatches(found, _at(config, "agent.mini_batches"), 2 * USUAL_ENVS)
    steps, all_steps = found.get("learner.num_steps"), _at(config, "trainer.timesteps")
    if isinstance(steps, int) and isinstance(all_steps, int):
        found["max_iterations"] = max(1, all_steps // steps)
    log_std = _at(config, "models.policy.initial_log_std")
    if isinstance(log_std, int | float) and log_std <= math.log(10.0):
        found["learner.init_std"] = round(math.exp(log_std), 6)
    _leave_out_unfit(found)
    return found


def _at(node: Any, dotted: str) -> Any:
    """The part of nested mappings, lists and objects at a dotted key; None where there is none."""
    for part in dotted.split("."):
        if isinstance(node, list):
            node = node[int(part)] if part.isdigit() and int(part) < len(node) else None
        else:
            node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node


def _translated(settings: Any, names: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for theirs, ours in names.items():
        value = _at(settings, theirs)
        if isinstance(value, list | tuple):
            value = [int(size) for size in value]
        if isinstance(value, int | float | str | list) and not isinstance(value, bool):
            found[ours] = value
    return found


def _set_minibatches(found: dict[str, Any], parts: Any, rows: int) -> None:
    """Set the size of a minibatch from the number of minibatches, `parts`, of a batch of so many rows a step."""
    if isinstance(parts, int) and isinstance(found.get("learner.num_steps"), int):
        found["learner.minibatch_size"] = max(2, found["learner.num_steps"] * rows // parts)


def _leave_out_unfit(found: dict[str, Any]) -> None:
    """Remove what RoboLearn's PPO does not take."""
    if found.get("learner.activation") not in _ACTIVATIONS:
        found.pop("learner.activation", None)
    if not 1e-5 <= found.get("learner.learning_rate", 1e-3) <= 1e-2:
        found.pop("learner.learning_rate")
    if not found.get("learner.desired_kl", 0.01) <= 0.06:
        found.pop("learner.desired_kl")
