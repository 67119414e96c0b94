"""Checks of settings that several learners have, by the names that they share; imports nothing that is slow."""

from __future__ import annotations

from typing import Any


def require_rates(config: Any) -> None:
    """Raise ValueError where `learning_rate` is outside of its bounds."""
    if not config.min_learning_rate <= config.learning_rate <= config.max_learning_rate:
        raise ValueError(
            f"learning_rate={config.learning_rate:g} is not between min_learning_rate="
            f"{config.min_learning_rate:g} and max_learning_rate={config.max_learning_rate:g}; widen them"
        )


def require_divergences(config: Any) -> None:
    """Raise ValueError for KL divergences that contradict each other: those of an update, and from a reference."""
    if config.reference_kl and not config.reference_coef:
        raise ValueError(
            f"reference_coef={config.reference_coef:g} cannot be steered to reference_kl={config.reference_kl:g}; "
            "start from a weight above 0"
        )
    if config.reference_kl and config.reference is None:
        raise ValueError(
            f"reference_kl={config.reference_kl:g} needs a reference; add learner.reference=RUN, or leave it out"
        )
    if config.max_kl < config.desired_kl:
        raise ValueError(f"max_kl={config.max_kl:g} is below desired_kl={config.desired_kl:g}; raise it")


def require_networks(config: Any) -> None:
    """Raise ValueError for observation groups and layers that make no networks; of `actor_groups`, `critic_groups`,
    `estimated_groups`, `actor_hidden`, `critic_hidden`, `estimator_hidden` and `rnn`, those that there are."""
    estimated, rnn = getattr(config, "estimated_groups", ()), getattr(config, "rnn", "none")
    for name in ("actor_groups", "critic_groups"):
        groups = getattr(config, name, None)
        if groups is not None and (not groups or len(set(groups)) < len(groups)):
            raise ValueError(f"{name}={list(groups)} must be one or more observation groups, each once")
    if len(set(estimated)) < len(estimated):
        raise ValueError(f"estimated_groups={list(estimated)} names a group twice")
    if measured := [name for name in estimated if name in config.actor_groups]:
        raise ValueError(f"estimated_groups={measured}: the actor observes them; leave them out")
    if estimated and rnn != "none":
        raise ValueError(
            f"rnn={rnn} with estimated_groups={list(estimated)}: recurrent layers estimate by themselves; use "
            "estimated_groups=[] or rnn=none"
        )
    for name in ("actor_hidden", "critic_hidden", "estimator_hidden"):
        sizes = getattr(config, name, None)
        if sizes is not None and (not sizes or min(sizes) < 1 or max(sizes) > 65536):
            raise ValueError(f"{name}={list(sizes)} must be one or more layer sizes within 1..65536")
