"""The door to Isaac Lab 3: any registered task, direct or manager-based, on Newton's physics without Isaac Sim.

The only file that imports Isaac Lab's tasks; `isaaclab_env.py` and `isaaclab_agents.py` step their environments, of one
agent and of several. `robolearn.envs.isaaclab` is the simulator alone, as a backend for RoboLearn's tasks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

import gymnasium
import numpy as np
import torch

from robolearn.errors import ConfigError, did_you_mean, listing, one_line, quote
from robolearn.external.configs import lay_over, ppo_settings, skrl_settings
from robolearn.external.failures import describe
from robolearn.external.isaaclab_agents import IsaacLabAgentsEnv
from robolearn.external.isaaclab_env import IsaacLabEnv
from robolearn.external.tensor_env import TensorTask, quiet

ENTRY = "env_cfg_entry_point"
"""Key that every Isaac Lab task, and no other environment, has in gymnasium's registry."""

MAPPO = "skrl_mappo_cfg_entry_point"
"""Key of a task's settings for skrl's MAPPO in gymnasium's registry."""

RSL_RL = "rsl_rl_cfg_entry_point"
"""Key of a task's settings for rsl_rl in gymnasium's registry."""

AGENTS = "possible_agents"
"""Attribute that only configuration objects of tasks with several agents have."""

PREFIX = "Isaac-"

NEWTON = "newton_mjwarp"
"""Name that Isaac Lab's tasks give to their settings for MuJoCo Warp in Newton."""

ELSEWHERE = {
    "scene.num_envs": "num_envs=",
    "sim.device": "device=",
    "seed": "seed=",
    "sim.physics": "task.physics=",
    "compute_final_obs": "RoboLearn, which needs the state that an episode ended in",
}
"""Parts of a task's configuration that `task.cfg` may not set, and what decides them."""


@dataclass
class IsaacLabTask(TensorTask):
    """A registered Isaac Lab task."""

    door: ClassVar[str] = "isaaclab"
    several: ClassVar[bool] = False
    """Whether it is for tasks of several agents."""

    physics: str = "auto"
    """Name of the task's settings for a physics engine; auto: newton_mjwarp where the task has them."""
    presets: list[str] = field(default_factory=list)
    """More of the task's named variants, as presets=NAME of Isaac Lab."""

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """See `ExternalTask.named`; `id` is a registered id (`Isaac-` may be omitted), or module:ID."""
        module, _, word = id.rpartition(":")
        _register(module, id)
        known = [name for name, spec in gymnasium.registry.items() if ENTRY in (spec.kwargs or {})]
        full = word if word in known else f"{PREFIX}{word}"
        if full not in known:
            hint = did_you_mean(word, known) or did_you_mean(full, known)
            raise ConfigError(
                f"there is no Isaac Lab task {quote(word)}{hint or f'; valid: {listing(known)}'}"
            )
        if not cls.several and _has_agents(full):
            # Of another class, which learns of these settings only here.
            return cast("type[Self]", IsaacLabAgentsTask.named(id))
        made = super().named(f"{module}:{full}" if module else full)
        made.defaults = cls.published(full)
        return made

    @classmethod
    def published(cls, id: str) -> dict[str, Any]:
        """The learner's settings that a registered task was published with, as RoboLearn's; {} where there are none."""
        found: dict[str, Any] = _read_entry(id, RSL_RL, ppo_settings) or {}
        return found

    @property
    def registered(self) -> str:
        """Its id in gymnasium's registry."""
        return self.id.rpartition(":")[2]

    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> IsaacLabEnv:
        """See `ExternalTask.make`. Isaac Lab allows one Env per process at a time: close it before the next."""
        with _quiet():
            config = self._configured()
            config.scene.num_envs = num_envs
            config.sim.device = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
            config.seed = int(np.random.SeedSequence((seed, rank)).generate_state(1)[0]) >> 1
            config.compute_final_obs = True
            try:
                inner = gymnasium.make(self.registered, cfg=config, disable_env_checker=True).unwrapped
            except FileNotFoundError as error:
                raise ConfigError(
                    f"task={self.name} needs a file that is not available: {one_line(str(error), 200)}; set a local "
                    "file, task.cfg.scene.NAME.spawn.usd_path=FILE, or a folder of all, ISAACSIM_ASSET_ROOT=FOLDER"
                ) from error
            except Exception as error:  # a constructor of another library may raise anything
                what = one_line(f"{type(error).__name__}: {error}", 240)
                raise ConfigError(f"task={self.name} cannot be made: {what}") from error
            return self.env_of(inner, device)

    def env_of(self, inner: Any, device: torch.device) -> IsaacLabEnv:
        """The Env of Isaac Lab's environments."""
        return IsaacLabEnv(self, inner, device)

    def _configured(self) -> Any:
        """The task's configuration object on Newton's physics, with the user's `task.cfg` applied.

        Raises:
            ConfigError: it does not load, needs another physics engine, or lacks a part.
        """
        try:
            declared = _physics_presets(self.registered)
            chosen = NEWTON if self.physics == "auto" and NEWTON in declared else self.physics
            words = [] if chosen == "auto" else [f"physics={chosen}"]
            if chosen != "auto" and chosen not in declared:
                raise ConfigError(
                    f"task.physics={chosen}: task={self.name} has {listing(['auto', *declared])}"
                )
            words += [f"presets={','.join(self.presets)}"] if self.presets else []
            config = importlib.import_module("isaaclab_tasks.utils").parse_env_cfg(
                self.registered, overrides=words
            )
        except ConfigError:
            raise
        except Exception as error:  # its module may need other packages, its presets may not fit
            what = one_line(f"{type(error).__name__}: {error}", 240)
            raise ConfigError(f"the configuration of task={self.name} cannot be loaded: {what}") from error
        if hasattr(config, AGENTS) != self.several:
            what = "one agent" if self.several else "several agents"
            named = listing(words) or "these settings"
            raise ConfigError(f"task={self.name} has {what} with {named}, unlike without; leave them out")
        newton = importlib.import_module("isaaclab_newton.physics")
        if not isinstance(config.sim.physics, newton.NewtonCfg):
            if self.physics != "auto":
                raise ConfigError(
                    f"task.physics={self.physics} needs Isaac Sim, which RoboLearn does not start; use "
                    "task.physics=auto for Newton"
                )
            config.sim.physics = newton.NewtonCfg(solver_cfg=newton.MJWarpSolverCfg())
        lay_over(config, self.cfg, "task.cfg", ELSEWHERE)
        return config


@dataclass
class IsaacLabAgentsTask(IsaacLabTask):
    """A registered Isaac Lab task of several agents."""

    several: ClassVar[bool] = True

    policy_groups: list[str] = field(default_factory=list)
    """Must be empty: a policy observes what its agent observes."""
    critic_groups: list[str] = field(default_factory=list)
    """What the critic observes: `joint`, the observations of all agents, `state`, the task's own state, or both; empty:
    `state` where the task has one, else `joint`."""
    agent_id: Literal["auto", "on", "off"] = "auto"
    """Whether an agent observes which one it is, as a column for each agent; auto: where their spaces differ."""
    ends_together: bool = False
    """Whether all agents of a world end in the same step, which recurrent policies and learner=distill need; an
    agent that ends before the others then ends the run."""

    @classmethod
    def published(cls, id: str) -> dict[str, Any]:
        """See `IsaacLabTask.published`; of settings for skrl's MAPPO."""
        found: dict[str, Any] = _read_entry(id, MAPPO, skrl_settings) or {}
        return found

    def env_of(self, inner: Any, device: torch.device) -> IsaacLabAgentsEnv:
        """See `IsaacLabTask.env_of`."""
        return IsaacLabAgentsEnv(self, inner, device, self.agent_id, self.ends_together)


# ---------------------------------------------------------------------------------------- Isaac Lab's registry


def _register(module: str, id: str) -> None:
    """Register Isaac Lab's tasks and those of the user's `module` by importing them."""
    with _quiet():
        importlib.import_module("isaaclab_tasks")
        if not module:
            return
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"task=isaaclab:{id}: there is no module {quote(error.name)}") from error
        except Exception as error:
            raise ConfigError(f"task=isaaclab:{id}: {quote(module)} raised {describe(error)}") from error


def _read_entry(id: str, entry: str, read: Callable[[Any], Any]) -> Any:
    """What `read` returns of the configuration object that a task registered under `entry`.

    None where there is no such object, or where it cannot be loaded: its module may need packages that are missing.
    """
    if entry not in (gymnasium.spec(id).kwargs or {}):
        return None
    utils = importlib.import_module("isaaclab_tasks.utils")
    try:
        with _quiet():
            return read(utils.resolve_presets(utils.load_cfg_from_registry(id, entry)))
    except Exception:  # code of another library may raise anything
        return None


def _has_agents(id: str) -> bool:
    """Whether a task has several agents; False too where its configuration does not load, which `make` reports."""
    return bool(_read_entry(id, ENTRY, lambda config: hasattr(config, AGENTS)))


def _physics_presets(id: str) -> list[str]:
    """Names of the physics settings that a task declares."""
    cli = importlib.import_module("isaaclab_tasks.utils.preset_cli")
    return list((cli.enumerate_task_presets(id) or {}).get(cli.PresetTarget.PHYSICS, ()))


def _quiet() -> AbstractContextManager[None]:
    return quiet("isaaclab", "isaaclab_newton", "isaaclab_tasks", "newton")
