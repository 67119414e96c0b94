"""Some rows of an Env as environments of their own; past policies act in the others."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry
from robolearn.tasks.mdp.task import Ratio


class Others(Protocol):
    """Who acts in the other rows."""

    rows: Tensor
    """(L, M) those rows."""

    def act(self, observations: dict[str, Tensor]) -> Tensor:
        """Actions (L M, A) for the observations of all rows."""

    def count(self, result: StepResult) -> None:
        """Take note of the result of a step of all rows."""


class OwnRows:
    """The rows `own` of an Env as a LearnerEnv: a learner's batches hold nothing of the others. What is drained, saved
    and restored is of all rows."""

    def __init__(self, env: LearnerEnv, own: Tensor, others: Others) -> None:
        """`own` (N,) int64 on the Env's device."""
        self.env, self._own, self._others = env, own, others
        self._driven = others.rows.flatten()
        self.num_envs, self.num_actions, self.device = len(own), env.num_actions, env.device
        self.gradients, self.resets_take_a_step = env.gradients, env.resets_take_a_step
        self.dt, self.max_episode_steps = env.dt, env.max_episode_steps
        self._action = torch.zeros(env.num_envs, env.num_actions, device=env.device)
        self._observations = self._mine(env.observations)

    def _mine(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: obs.index_select(0, self._own) for name, obs in groups.items()}

    @property
    def observations(self) -> dict[str, Tensor]:
        """The current observations of the own rows, (N, D) a group."""
        return self._observations

    @property
    def episode_step(self) -> Tensor:
        """(N,) int64 control steps into each episode."""
        return self.env.episode_step.index_select(0, self._own)

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""
        return self.env.capabilities

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere; see `Env.reset`."""
        self._observations = self._mine(self.env.reset(stagger))
        return self._observations

    def look(self) -> None:
        """Take the observations of the Env anew, which may have been restored."""
        self._observations = self._mine(self.env.observations)

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period of all rows; `action` (N, A) and the result are of the own ones."""
        assert joint_targets is None, "the joint targets of the other rows are not known"
        self._action.index_copy_(0, self._own, action.detach())
        self._action.index_copy_(0, self._driven, self._others.act(self.env.observations))
        whole = self.env.step(self._action)
        self._others.count(whole)
        self.look()

        def mine(values: Tensor) -> Tensor:
            return values.index_select(0, self._own)

        return StepResult(
            self._observations,
            mine(whole.reward),
            mine(whole.terminated),
            mine(whole.truncated),
            self._mine(whole.terminal_observations),
            mine(whole.diverged),
            None if whole.valid is None else mine(whole.valid),
            None if whole.exogenous is None else mine(whole.exogenous),
            {name: Ratio(*map(mine, pair)) for name, pair in whole.metrics.items()},
        )

    def check(self) -> None:
        """See `Env.check`."""
        self.env.check()

    def drain(self) -> dict[str, float]:
        """Means over all rows; see `Env.drain`."""
        return self.env.drain()

    def symmetry(self) -> Symmetry | None:
        """The task's left-right symmetry; None without one."""
        return self.env.symmetry()

    def detach(self) -> None:
        """See `Env.detach`."""
        self.env.detach()

    def snapshot(self) -> dict[str, Any]:
        """See `Env.snapshot`."""
        return self.env.snapshot()

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """See `Env.restore`."""
        self.env.restore(snapshot, source_rows)
        self.look()

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()
