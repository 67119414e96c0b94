"""A finished run, taken up again to be used: its configuration, its policy, and files written beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.config import registry
from robolearn.config.run_config import Config
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.training import checkpoint
from robolearn.training.build import make_learner_env

Act = Callable[[torch.Tensor], torch.Tensor]
"""The `policy` observations (N, D) to actions (N, A)."""

PRETRAINED = Path(__file__).parent.parent / "pretrained"
"""Shipped policies: a folder each, with config.yaml and policy.pt."""

PREFIX = "pretrained:"

_NOT_HERE = {
    "resume": "name the run as the first word instead",
    "output": "use --output DIR",
    "max_iterations": "nothing is trained here",
    "checkpoint_interval": "nothing is trained here",
}
"""Settings of a training run that mean nothing to a finished one, and what to do instead."""


@dataclass(frozen=True)
class Run:
    """A run found on disk, with the overrides laid over its configuration."""

    name: str
    """As the user would write it: the checkpoint's path, or pretrained:NAME."""
    folder: Path
    """Where its results go unless told otherwise."""
    config: Config
    """The saved configuration, changed by the overrides."""
    overrides: tuple[str, ...]
    """Those overrides, as written."""
    content: dict[str, Any]
    """The checkpoint."""

    @property
    def iteration(self) -> int:
        """How many iterations the policy was trained."""
        return int(self.content.get("iter", 0))


def open_run(run: str | None, overrides: Iterable[str] = ()) -> Run:
    """Find a run and read its configuration and checkpoint.

    Args:
        run: a run folder, a checkpoint, `pretrained:NAME`, or None for the newest run.
        overrides: settings to change, in Hydra's grammar.

    Raises:
        ConfigError: there is no such run, it cannot be read, or an override does not fit it.
        MissingError: a package it needs is not installed.
    """
    words = tuple(overrides)
    for word in words:
        key = word.partition("=")[0]
        if key in _NOT_HERE:
            raise ConfigError(f"{quote(word)} does not apply to a trained policy: {_NOT_HERE[key]}")
    if run is not None and run.startswith(PREFIX):
        source, path = _find_pretrained(run.removeprefix(PREFIX))
        # What is shipped lies among installed code: nothing is written there.
        name, folder = run, checkpoint.ROOT / "pretrained" / source.name
    else:
        source, path = checkpoint.find_run(run)
        name, folder = str(path), source
    return Run(name, folder, config.load(source, words), words, checkpoint.load(path))


def pretrained() -> list[str]:
    """Names of the shipped policies."""
    return sorted(path.parent.name for path in PRETRAINED.glob("*/policy.pt"))


def _find_pretrained(name: str) -> tuple[Path, Path]:
    if name not in pretrained():
        there = listing(pretrained())
        raise ConfigError(
            f"there is no pretrained policy {quote(name)}{did_you_mean(name, pretrained())}; shipped: {there}"
        )
    return PRETRAINED / name, PRETRAINED / name / "policy.pt"


def load_policy(run: Run) -> Act:
    """The run's policy as the robot will run it: deterministic, without exploration noise.

    One with memory remembers between calls: see `forget`.

    Raises:
        ConfigError: the overrides changed the networks, or what they observe.
    """
    # A learner is made for an Env and may draw from it; an Env of its own leaves the real one untouched.
    # What it needs of a backend to learn does not matter here.
    env = make_learner_env(run.config, num_envs=1)
    learner_class = registry.load("learners", run.config.learner_name)
    try:
        learner = learner_class(env, run.config.learner, seed=run.config.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    weights = {name: value for name, value in run.content.items() if name != "env"}
    checkpoint.restore(weights, learner, env)
    env.close()
    policy: Act = learner.policy
    if getattr(policy, "state_names", ()):
        from robolearn.learners.models import Player

        return Player(learner.policy)
    return policy


def forget(policy: Act, done: torch.Tensor | None = None) -> None:
    """Let a policy with memory forget the robots whose episode ended, `done` (N,) bool; without it, everything.

    To be called before the first step and after each. Policies without memory have no `reset` and need none.
    """
    reset = getattr(policy, "reset", None)
    if reset is not None:
        reset(done)


def zero_policy(env: LearnerEnv) -> Act:
    """Always the action 0: what the robot does when nobody acts."""
    return lambda observations: torch.zeros(len(observations), env.num_actions, device=env.device)


def random_policy(env: LearnerEnv, seed: int) -> Act:
    """Uniform actions in [-1, 1], the same ones for the same seed."""
    generator = torch.Generator(env.device).manual_seed(seed)
    shape = (env.num_envs, env.num_actions)
    return lambda observations: 2 * torch.rand(shape, generator=generator, device=env.device) - 1


# ---------------------------------------------------------------------- writing


def require_writable(folder: Path) -> None:
    """Refuse a folder that could not be written to, before the work instead of after it.

    Raises:
        ConfigError: it is a file, or its first existing parent may not be written to.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(
            f"cannot write to {quote(str(folder), 120)}: {quote(str(there), 120)} is not a folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to {quote(str(folder), 120)}: no permission")
