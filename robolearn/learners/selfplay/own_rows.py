"""Some rows of an Env as environments of their own; past policies act in the others."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.learners.rows import RowsOfEnv


class Others(Protocol):
    """Who acts in the other rows."""

    rows: Tensor
    """(L, M) those rows."""

    def act(self, observations: dict[str, Tensor]) -> Tensor:
        """Actions (L M, A) for the observations of all rows."""

    def count(self, result: StepResult) -> None:
        """Take note of the result of a step of all rows."""


class OwnRows(RowsOfEnv):
    """The rows `own` of an Env as a LearnerEnv: a learner's batches hold nothing of the others. What is drained, saved
    and restored is of all rows."""

    def __init__(self, env: LearnerEnv, own: Tensor, others: Others) -> None:
        """`own` (N,) int64 on the Env's device."""
        super().__init__(env, len(own))
        self._own, self._others = own, others
        self._driven = others.rows.flatten()
        self._action = torch.zeros(env.num_envs, env.num_actions, device=env.device)
        self._observations = self.groups(env.observations)

    def rows(self, tensor: Tensor) -> Tensor:
        """The own ones."""
        return tensor.index_select(0, self._own)

    @property
    def observations(self) -> dict[str, Tensor]:
        """The current observations of the own rows, (N, D) a group."""
        return self._observations

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere; see `Env.reset`."""
        self._observations = self.groups(self.env.reset(stagger))
        return self._observations

    def look(self) -> None:
        """Take the observations of the Env anew, which may have been restored."""
        self._observations = self.groups(self.env.observations)

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period of all rows; `action` (N, A) and the result are of the own ones."""
        assert joint_targets is None, "the joint targets of the other rows are not known"
        self._action.index_copy_(0, self._own, action.detach())
        self._action.index_copy_(0, self._driven, self._others.act(self.env.observations))
        whole = self.env.step(self._action)
        self._others.count(whole)
        self.look()
        return self.of(whole)

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """See `Env.restore`."""
        super().restore(snapshot, source_rows)
        self.look()
