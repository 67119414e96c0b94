"""Collecting a batch: T steps of N environments, kept as the learner wants to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote


@dataclass
class Batch:
    """T steps of N environments, preallocated once and overwritten every iteration."""

    observations: dict[str, Tensor]
    """(T + 1, N, D) a group: what was observed before each step, and after the last one."""
    action: Tensor
    """(T, N, A) as the actor drew them."""
    mean: Tensor
    """(T, N, A) the actor's mean then."""
    reward: Tensor
    """(T, N)."""
    done: Tensor
    """(T, N) bool: the episode ended with this step."""
    truncated: Tensor
    """(T, N) bool: it ended because its time was up."""
    terminal: dict[str, Tensor]
    """(T, N, D) a group, of those that are asked for: what was observed of the state each step ended in, before any
    reset, as the Env gave it. Of use where an episode was truncated."""
    valid: Tensor | None = None
    """(T, N) bool: a step that the policy took, see `StepResult.valid`; None: all are."""

    @property
    def steps(self) -> int:
        """How many steps of the policy it holds."""
        return self.reward.numel() if self.valid is None else int(self.valid.sum())

    def taken(self, rows: Tensor) -> Tensor:
        """Of rows (T, N, ...) those that are a step of the policy, (M, ...)."""
        return rows.flatten(0, 1) if self.valid is None else rows[self.valid]

    @classmethod
    def empty(
        cls, env: LearnerEnv, steps: int, groups: Iterable[str] = (), terminal: Iterable[str] = ()
    ) -> Batch:
        """Room for `steps` steps of `env`: of its observation `groups` (all, where none is named), and of those whose
        `terminal` observations are kept.

        Raises:
            ConfigError: the environments have no such group.
        """

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=env.device)

        n, widths = env.num_envs, {name: obs.shape[1] for name, obs in env.observations.items()}
        kept, ended = list(dict.fromkeys(groups)) or list(widths), list(dict.fromkeys(terminal))
        for name in (*kept, *ended):
            if name not in widths:
                hint = did_you_mean(name, widths)
                raise ConfigError(
                    f"there is no observation group {quote(name)}{hint}; there is {listing(widths)}"
                )
        return cls(
            observations={name: room(steps + 1, n, widths[name]) for name in kept},
            action=room(steps, n, env.num_actions),
            mean=room(steps, n, env.num_actions),
            reward=room(steps, n),
            done=room(steps, n, dtype=torch.bool),
            truncated=room(steps, n, dtype=torch.bool),
            terminal={name: room(steps, n, widths[name]) for name in ended},
        )

    def observed(self, groups: Sequence[str]) -> Tensor:
        """(T + 1, N, D) these groups side by side; no copy where it is one."""
        return side_by_side(self.observations, groups)


def side_by_side(observations: Mapping[str, Tensor], groups: Sequence[str]) -> Tensor:
    """(..., D) the columns of several groups; no copy where it is one."""
    parts = [observations[name] for name in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


Act = Callable[[dict[str, Tensor], int], Tensor]
"""Observations by group and the step's index to the robot's action (N, A)."""


def collect(
    env: LearnerEnv, batch: Batch, act: Act, timers: Timers, ended: Callable[[Tensor], None] | None = None
) -> None:
    """Fill `batch` by stepping `env` with `act(observations, t) -> action for the robot`.

    `act` writes what it wants to remember of its own decision; this stores what came of it. `ended` is told
    after every step where an episode ended with it, (N,) bool. Nothing is read back from the device.
    """
    for t in range(len(batch.reward)):
        with timers("infer"):
            action = act(env.observations, t)
        with timers("simulate"):
            result = env.step(action)
        batch.reward[t] = result.reward
        batch.done[t] = done = result.done
        batch.truncated[t] = result.truncated
        if result.valid is not None:
            if batch.valid is None:
                batch.valid = torch.ones_like(batch.done)
            batch.valid[t] = result.valid
        # All of them: which ones count is known on the device only.
        for name, kept in batch.terminal.items():
            kept[t] = result.terminal_observations[name]
        if ended is not None:
            ended(done)
