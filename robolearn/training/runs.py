"""Loads a trained run: its configuration and its policy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.config import registry, yaml_file
from robolearn.config.overrides import parse
from robolearn.config.run_config import Config
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, quote, tell_line
from robolearn.learners import saved
from robolearn.learners.policy import Act, Policy, PolicyRunner
from robolearn.learners.team import Team, TeamRunner, runner_of
from robolearn.training.build import device_of
from robolearn.training.same_robot import other_motors, require_same_order

BUILT_IN = ("random", "zero")
"""Policies without training: see `random_policy` and `zero_policy`."""

_TOLD: set[str] = set()
"""Lines that were printed: a command may load a policy several times."""
_NOT_HERE = {
    "resume": "name the run as the first word instead",
    "output": "use --output DIR",
    "max_iterations": "nothing is trained here",
    "checkpoint_interval": "nothing is trained here",
    "weights": "name the run as the first word instead",
    **dict.fromkeys(
        ("guard", "mode", "placement", "ranks", "shards", "recovery", "rank_timeout", "rollout_share"),
        "nothing is trained here",
    ),
}
"""Settings that only apply to training, and what to do instead."""


@dataclass(frozen=True)
class Run:
    """A run on disk, with its configuration changed by overrides."""

    name: str
    """The checkpoint's path, or pretrained:NAME."""
    folder: Path
    """Default folder for its results."""
    config: Config
    """The saved configuration, changed by the overrides."""
    overrides: tuple[str, ...]
    """The overrides, as written."""
    content: dict[str, Any]
    """The checkpoint."""

    @property
    def iteration(self) -> int:
        """Number of iterations that the policy was trained for."""
        return int(self.content.get("iter", 0))


def require_no_training(overrides: Iterable[str], bundle: bool = False) -> None:
    """Refuse settings that have no effect on a trained policy, or on a `bundle`, which drives one robot.

    Raises:
        ConfigError: an override is of a training; it is named, with what to do instead.
    """
    for word in overrides:
        key = re.split(r"[.=]", word, maxsplit=1)[0]
        if bundle and (key in _NOT_HERE or key == "num_envs"):
            raise ConfigError(f"{quote(word)} does not apply to a bundle that drives one robot: leave it out")
        if key in _NOT_HERE:
            raise ConfigError(f"{quote(word)} does not apply to a trained policy: {_NOT_HERE[key]}")


def open_run(run: str | None, overrides: Iterable[str] = ()) -> Run:
    """Find a run, and load its configuration and checkpoint.

    Args:
        run: a run folder, a checkpoint, `pretrained:NAME`, or None for the newest run.
        overrides: settings to change, in Hydra's grammar.

    Raises:
        ConfigError: the run does not exist or cannot be read, or an override is invalid.
        MissingError: a package it needs is not installed.
    """
    words = tuple(overrides)
    require_no_training(words)
    source, path = saved.find_run(run)
    pretrained = run is not None and run.startswith(saved.PREFIX)
    name = str(run) if pretrained else str(path)
    return Run(name, results_folder(run), load_config(source, words), words, saved.load(path, source))


def results_folder(run: str | None) -> Path:
    """Where what is found out about a run goes, see `open_run`: its folder, but that of a pretrained policy is part of
    the installed package.

    Raises:
        ConfigError: the run does not exist.
    """
    folder, _ = saved.find_run(run)
    return saved.ROOT / "pretrained" / folder.name if (run or "").startswith(saved.PREFIX) else folder


def load_config(folder: Path, overrides: Iterable[str] = ()) -> Config:
    """`config.load` of a run that is only used: its learner need not be here, because a policy acts without it.

    A learner from a file, or of a package that is not installed, is not imported unless the overrides name it or one of
    its settings; `Config.learner` is then the saved settings as a dictionary.

    Raises:
        ConfigError: see `config.load`.
    """
    words = list(overrides)
    settings = yaml_file.read(folder / config.FILE_NAME).get("learner")
    settings = dict(settings) if isinstance(settings, dict) else {}
    name = settings.pop("name", None)
    entry = registry.entries("learners").get(name) if isinstance(name, str) else None
    if (
        not isinstance(name, str)
        or (entry is not None and not entry.hint)
        or any(item.key[0] == "learner" for item in parse(words))
    ):
        named = {item.dotted for item in parse(words)}
        # Scripts of a training, which nothing runs here.
        scripts = [
            key for key, value in settings.items() if isinstance(value, str) and registry.is_file(value)
        ]
        return config.load(
            folder, [*words, *(f"learner.{k}=null" for k in scripts if f"learner.{k}" not in named)]
        )
    # config.load needs a learner that can be imported; which one does not matter.
    loaded = config.load(folder, [*words, "learner=ppo"])
    return replace(loaded, learner_name=name, learner=settings)


def load_policy(run: Run, tell: bool = True) -> PolicyRunner | TeamRunner:
    """The run's deterministic policy, or the policies of its agents, as they run on the robots. With `tell`, a robot
    that has other motors than the policy was trained with is named on stderr.

    A recurrent policy keeps its recurrent state between calls: see `robolearn.learners.policy.reset_state`.

    Raises:
        ConfigError: an override changes the trained network, or the robot to one with another order of joints.
    """
    act = runner_of(run.content, run.name, device_of(run.config))
    spec = (act.policy if isinstance(act, PolicyRunner) else next(iter(act.team.policies.values()))).spec
    trained = {"actor_hidden": spec.hidden, "activation": spec.activation, "rnn": spec.rnn}
    for name, value in trained.items():
        current = getattr(run.config.learner, name, value)
        if current != value:
            raise ConfigError(
                f"learner.{name}={current} does not fit {run.name}, which was trained with {value}; leave it out"
            )
    for item in parse(run.overrides):
        if item.key[:2] == ("task", "curricula"):
            raise ConfigError(
                f"{quote(item.text)} does not apply to a trained policy: curricula are of trainings; state what they "
                "scale, such as task.pushes.speed=[0,1]"
            )
        if item.key[0] == "learner" and len(item.key) > 1 and item.key[1] not in trained:
            raise ConfigError(
                f"{quote(item.text)} does not apply to a trained policy: nothing is trained here"
            )
    folder, changed = saved.find_run(run.name)[0], [item.key for item in parse(run.overrides)]
    if any(key[0] in ("robot", "task") for key in changed):
        require_same_order(folder, run.config, f"{run.name} does")
    asked = any(key[0] == "robot" or key[:2] == ("task", "robot") for key in changed)
    if tell and not asked and (other := other_motors(folder, run.config, run.name)) and other not in _TOLD:
        _TOLD.add(other)
        tell_line(other)
    return act


def load_opponents(run: Run, opponent: str) -> TeamRunner:
    """The run's policy for the first agent of its task, and that of another run or checkpoint for the others.

    Raises:
        ConfigError: the task has one agent, a run has a policy for each agent, or the other run is of another task or
            robot, or of other observations or actions.
    """
    agents = run.config.task.agents
    if len(agents) < 2:
        raise ConfigError(f"--opponent: task={run.config.task_name} has one agent; leave --opponent out")
    other, policies = open_run(opponent), dict[str, Policy]()
    for name, each in (("policy", run), ("opponent", other)):
        runner = load_policy(each)
        if not isinstance(runner, PolicyRunner):
            raise ConfigError(
                f"--opponent: {each.name} has a policy for each agent; only runs with one for all can play each other"
            )
        policies[name] = runner.policy.to(device_of(run.config))
    facts = [
        {
            "task": each.config.task_name,
            "robot": each.config.task.robot,
            "observations": spec.inputs,
            "actions": spec.actions,
        }
        for each, spec in ((run, policies["policy"].spec), (other, policies["opponent"].spec))
    ]
    for name, mine in facts[0].items():
        if mine != facts[1][name]:
            raise ConfigError(f"--opponent: {other.name} has {name} {facts[1][name]}, and {run.name} {mine}")
    return TeamRunner(Team(policies, dict.fromkeys(agents, "opponent") | {agents[0]: "policy"}))


def zero_policy(env: LearnerEnv) -> Act:
    """A policy whose actions are always 0."""
    return lambda observations: torch.zeros(env.num_envs, env.num_actions, device=env.device)


def random_policy(env: LearnerEnv, seed: int) -> Act:
    """A policy of uniform random actions in [-1, 1], the same for the same seed."""
    generator = torch.Generator(env.device).manual_seed(seed)
    shape = (env.num_envs, env.num_actions)
    return lambda observations: 2 * torch.rand(shape, generator=generator, device=env.device) - 1


# ---------------------------------------------------------------------- writing


def require_writable(folder: Path) -> None:
    """Check, before the work, that a folder can be created or written to.

    Raises:
        ConfigError: it cannot: a part of its path is a file, or permission is missing.
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
