"""IsaacLabEnv: the environments of an Isaac Lab task of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import RunFailed
from robolearn.external.env import Actions, Transition
from robolearn.external.failures import failing
from robolearn.external.spaces import require_actions
from robolearn.external.tensor_env import TensorEnv, TensorTask, mixed


class IsaacLabEnv(TensorEnv):
    """N environments of an Isaac Lab task, which reset in the step that ends an episode."""

    joints: ClassVar[str] = "_joint_names"

    def __init__(self, task: TensorTask, inner: Any, device: torch.device) -> None:
        """See `TensorEnv`."""
        self._logged_last: dict[str, tuple[Any, dict[str, Any]]] = {}
        """What was logged last, by who logs: the dictionary, and its entries."""
        super().__init__(task, inner, device)

    def _actions(self, task: TensorTask, device: torch.device) -> Actions:
        box = require_actions(self.inner.single_action_space, task.name)
        width = int(np.prod(box.shape))
        return Actions.of(box.low, box.high, task.actions, device, self._action_names(width))

    def _start(self, stagger: bool) -> dict[str, Tensor]:
        rows = super()._start(stagger)
        self._logged_now(self.inner.extras)  # by the reset, of no episode
        return rows

    def _advance(self, actions: Tensor) -> Transition:
        with failing("step", self.name):
            observed, reward, terminated, truncated, extras = self.inner.step(actions)
        observations = terminal = self._rows(observed)
        # Isaac Lab does not remove it; it must not be read again in a later step.
        final = extras.pop("final_obs", None)
        ended = (terminated | truncated).to(self.device)
        if bool(ended.any()):
            if final is None:
                raise RunFailed(
                    f"task={self.name} gives no extras['final_obs'] for ended episodes, although compute_final_obs is "
                    "set: its class overrides step or reset, and the state that the episodes ended in is lost"
                )
            terminal = mixed(ended, self._rows(final), observations)
        return self._transition(
            observations, terminal, reward, terminated, truncated, self._logged_now(extras)
        )

    def _logged_now(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Entries that were logged in this step, by name."""
        return self._new_log(extras)

    def _new_log(self, extras: Mapping[str, Any], of: str = "") -> dict[str, Any]:
        """Entries that were logged in this step, `of` an agent where there are several.

        Isaac Lab makes a new dictionary where it logs, or adds to the one that it leaves there.
        """
        log = extras.get("log") or {}
        before, entries = self._logged_last.get(of, (None, {}))
        new = {k: value for k, value in log.items() if log is not before or value is not entries.get(k)}
        self._logged_last[of] = log, dict(log)
        return new
