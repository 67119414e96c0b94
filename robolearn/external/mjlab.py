"""The door to mjlab: any of its registered tasks, on MuJoCo Warp."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, one_line, quote
from robolearn.external.configs import lay_over, ppo_settings
from robolearn.external.env import Actions, Transition
from robolearn.external.failures import describe, failing
from robolearn.external.tensor_env import TensorEnv, TensorTask, mixed, quiet

PREFIX = "Mjlab-"

ELSEWHERE = {
    "scene.num_envs": "num_envs=",
    "seed": "seed=",
    "auto_reset": "RoboLearn, which needs the state that an episode ended in",
}
"""Parts of a task's configuration that `task.cfg` may not set, and what decides them."""


@dataclass
class MjlabTask(TensorTask):
    """A registered mjlab task."""

    door: ClassVar[str] = "mjlab"

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """See `ExternalTask.named`; `id` is a registered id (`Mjlab-` may be omitted), or module:ID."""
        module, _, word = id.rpartition(":")
        registry = _registry(module, id)
        known = registry.list_tasks()
        full = word if word in known else f"{PREFIX}{word}"
        if full not in known:
            hint = did_you_mean(word, known) or did_you_mean(full, known)
            raise ConfigError(f"there is no mjlab task {quote(word)}{hint or f'; valid: {listing(known)}'}")
        made = super().named(f"{module}:{full}" if module else full)
        made.defaults = ppo_settings(registry.load_rl_cfg(full))
        return made

    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> MjlabEnv:
        """See `ExternalTask.make`."""
        registry = _registry("", self.id)
        config = registry.load_env_cfg(self.id.rpartition(":")[2])
        lay_over(config, self.cfg, "task.cfg", ELSEWHERE)
        config.scene.num_envs = num_envs
        config.seed = int(np.random.SeedSequence((seed, rank)).generate_state(1)[0]) >> 1
        # MjlabEnv resets, after it has read the state that the episodes ended in.
        config.auto_reset = False
        where = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
        with quiet():
            try:
                made = importlib.import_module("mjlab.envs").ManagerBasedRlEnv
                inner = made(cfg=config, device=where, render_mode="rgb_array" if render else None)
            except Exception as error:  # a constructor of another library may raise anything
                what = one_line(f"{type(error).__name__}: {error}", 240)
                raise ConfigError(f"task={self.name} cannot be made: {what}") from error
            return MjlabEnv(self, inner, device)


class MjlabEnv(TensorEnv):
    """N environments of an mjlab task, reset by this class when their episodes end."""

    joints: ClassVar[str] = "target_names"

    def _actions(self, task: TensorTask, device: torch.device) -> Actions:
        box = self.inner.single_action_space
        low, high = (np.broadcast_to(np.asarray(x, np.float32), box.shape) for x in (box.low, box.high))
        return Actions.of(low, high, task.actions, device, self._action_names(int(np.prod(box.shape))))

    def _advance(self, actions: Tensor) -> Transition:
        with failing("step", self.name):
            observed, reward, terminated, truncated, extras = self.inner.step(actions)
        observations = terminal = self._rows(observed)
        # A reset overwrites the environment's tensors: the results of the step are copied before.
        now = self._transition(observations, terminal, reward, terminated, truncated, None)
        ended = now.terminated | now.truncated
        if bool(ended.any()):
            rows = ended.nonzero().squeeze(-1).to(self.inner.device)
            with failing("reset", self.name):
                fresh, extras = self.inner.reset(env_ids=rows)
            now.observations = mixed(ended, self._rows(fresh), terminal)
        now.log = self._log(extras.get("log"))
        return now

    def render(self) -> np.ndarray:
        """See `ExternalEnv.render`."""
        image = self.inner.render()
        return super().render() if image is None else np.array(image)


# ---------------------------------------------------------------------------------------- mjlab's registry


def _registry(module: str, id: str) -> Any:
    """mjlab's registry, with mjlab's tasks and those of the user's `module`."""
    with quiet():
        importlib.import_module("mjlab.tasks")
        if module:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ConfigError(f"task=mjlab:{id}: there is no module {quote(error.name)}") from error
            except Exception as error:
                raise ConfigError(f"task=mjlab:{id}: {quote(module)} raised {describe(error)}") from error
        return importlib.import_module("mjlab.tasks.registry")
