"""RowsOfEnv: some rows of the environments as environments of their own, for the learner of one policy."""

from __future__ import annotations

from typing import Any

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.step_result import StepResult
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Symmetry
from robolearn.tasks.mdp.task import Ratio


class RowsOfEnv:
    """A LearnerEnv of the rows that `rows` chooses; subclasses say which, and who acts in the others."""

    def __init__(self, env: LearnerEnv, num_envs: int) -> None:
        """`num_envs`: how many of the rows of `env` are chosen."""
        self.env, self.num_envs = env, num_envs
        self.whole = getattr(env, "whole", env)
        """The environments with all rows."""
        self.num_actions, self.device, self.gradients = env.num_actions, env.device, env.gradients
        self.resets_take_a_step, self.dt = env.resets_take_a_step, env.dt
        self.max_episode_steps = env.max_episode_steps

    def rows(self, tensor: Tensor) -> Tensor:
        """The chosen rows (n, ...) of all (N, ...)."""
        raise NotImplementedError

    def groups(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same of each observation group."""
        return {name: self.rows(obs) for name, obs in observations.items()}

    def of(self, result: StepResult) -> StepResult:
        """What the chosen rows see of a step of all."""
        rows = self.rows
        return StepResult(
            self.groups(result.observations),
            rows(result.reward),
            rows(result.terminated),
            rows(result.truncated),
            self.groups(result.terminal_observations),
            rows(result.diverged),
            None if result.valid is None else rows(result.valid),
            None if result.exogenous is None else rows(result.exogenous),
            {name: Ratio(*map(rows, pair)) for name, pair in result.metrics.items()},
        )

    @property
    def observations(self) -> dict[str, Tensor]:
        """The current observations, (n, D) a group."""
        return self.groups(self.env.observations)

    @property
    def episode_step(self) -> Tensor:
        """(n,) int64 control steps into each episode."""
        return self.rows(self.env.episode_step)

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""
        return self.env.capabilities

    def check(self) -> None:
        """See `LearnerEnv.check`."""
        self.env.check()

    def drain(self) -> dict[str, float]:
        """Means over all rows, see `LearnerEnv.drain`."""
        return self.env.drain()

    def symmetry(self) -> Symmetry | None:
        """The task's left-right symmetry; None without one."""
        return self.env.symmetry()

    def detach(self) -> None:
        """See `LearnerEnv.detach`."""
        self.env.detach()

    def snapshot(self) -> dict[str, Any]:
        """See `LearnerEnv.snapshot`; of all rows."""
        return self.env.snapshot()

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """See `LearnerEnv.restore`; of all rows."""
        self.env.restore(snapshot, source_rows)

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()
