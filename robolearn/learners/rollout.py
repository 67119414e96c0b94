"""Collecting a batch: T steps of N environments, stored in tensors for the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import Cut, Shards
from robolearn.core.step_result import StepResult
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.tasks.mdp.context import Random


@dataclass
class Batch:
    """T steps of N environments, allocated once and overwritten every iteration."""

    observations: dict[str, Tensor]
    """(T + 1, N, D) per group: observations before each step and after the last one."""
    action: Tensor
    """(T, N, A) actions as the actor drew them."""
    mean: Tensor
    """(T, N, A) the actor's mean at that step."""
    reward: Tensor
    """(T, N)."""
    done: Tensor
    """(T, N) bool: the episode ended with this step."""
    truncated: Tensor
    """(T, N) bool: the episode ended with a time-out."""
    terminal: dict[str, Tensor]
    """(T, N, D) per requested group: observations of the state that each step ended in, before any reset. Needed where
    an episode was truncated."""
    valid: Tensor | None = None
    """(T, N) bool: the policy's action was used in this step, see `StepResult.valid`; None: in all steps."""
    exogenous: Tensor | None = None
    """(T, N) bool: a push or a new command came in this step, see `StepResult.exogenous`; None: it is not known."""
    lag: Tensor | None = None
    """(N,) int64, on the CPU: how many updates ago the policy was current that acted in each environment; None: it is
    the current one everywhere."""
    std: Tensor | None = None
    """(N, A) standard deviations of that policy; None as above."""
    diverged: Tensor | None = None
    """(T, N) bool: the simulation diverged in this step; None: it is not asked for."""

    @property
    def stale(self) -> bool:
        """Whether an older policy acted in any environment."""
        return self.lag is not None and bool(self.lag.any())

    @property
    def steps(self) -> int:
        """Number of valid steps."""
        return self.reward.numel() if self.valid is None else int(self.valid.sum())

    def taken(self, rows: Tensor) -> Tensor:
        """Rows (T, N, ...) of the valid steps, (M, ...)."""
        return rows.flatten(0, 1) if self.valid is None else rows[self.valid]

    def parts(self, rows: Tensor, shards: Shards) -> list[Tensor]:
        """The same of each shard of the environments, (M, ...) each."""
        if shards.single:
            return [self.taken(rows)]
        parts = shards.parts(rows, dim=1)
        if self.valid is None:
            return [part.flatten(0, 1) for part in parts]
        return [part[valid] for part, valid in zip(parts, shards.parts(self.valid, dim=1), strict=True)]

    def end_at(self, t: int, observations: Mapping[str, Tensor]) -> None:
        """Make step t - 1 the last one, which has led to these `observations`: the rest is not valid, and episodes that
        go on count as truncated here."""
        if self.valid is None:
            self.valid = torch.ones_like(self.done)
        self.valid[t:] = False
        goes_on = ~self.done[t - 1]
        self.truncated[t - 1] |= goes_on
        for name, kept in self.terminal.items():
            kept[t - 1] = torch.where(goes_on[:, None], observations[name], kept[t - 1])
        self.done[t - 1] = True
        # What follows is read by no sum, but must be finite, and like other samples where sizes are fixed.
        for tensor in (self.action, self.mean, self.reward, *self.terminal.values()):
            tensor[t:] = tensor[t - 1]
        self.done[t:], self.truncated[t:] = True, False
        if self.exogenous is not None:
            self.exogenous[t:] = False
        for name, obs in self.observations.items():
            obs[t:] = observations[name]

    def record(self, t: int, result: StepResult) -> None:
        """Store the result of step t."""
        self.reward[t] = result.reward
        self.done[t] = result.done
        self.truncated[t] = result.truncated
        if result.valid is not None:
            if self.valid is None:
                self.valid = torch.ones_like(self.done)
            self.valid[t] = result.valid
        if self.diverged is not None:
            self.diverged[t] = result.diverged
        if result.exogenous is not None:
            if self.exogenous is None:
                self.exogenous = torch.zeros_like(self.done)
            self.exogenous[t] = result.exogenous
        # All rows: which of them ended is known on the device only.
        for name, kept in self.terminal.items():
            kept[t] = result.terminal_observations[name]

    @classmethod
    def empty(
        cls, env: LearnerEnv, steps: int, groups: Iterable[str] = (), terminal: Iterable[str] = ()
    ) -> Batch:
        """An empty batch for `steps` steps of `env`, with its observation `groups` (all, if none is named) and the
        `terminal` observations of those groups.

        Raises:
            ConfigError: the environments have no such group.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=env.device)

        n, widths = env.num_envs, {name: obs.shape[1] for name, obs in env.observations.items()}
        kept, ended = list(dict.fromkeys(groups)) or list(widths), list(dict.fromkeys(terminal))
        for name in (*kept, *ended):
            if name not in widths:
                hint = did_you_mean(name, widths)
                raise ConfigError(
                    f"there is no observation group {quote(name)}{hint}; valid: {listing(widths)}"
                )
        return cls(
            observations={name: zeros(steps + 1, n, widths[name]) for name in kept},
            action=zeros(steps, n, env.num_actions),
            mean=zeros(steps, n, env.num_actions),
            reward=zeros(steps, n),
            done=zeros(steps, n, dtype=torch.bool),
            truncated=zeros(steps, n, dtype=torch.bool),
            terminal={name: zeros(steps, n, widths[name]) for name in ended},
        )

    def observed(self, groups: Sequence[str]) -> Tensor:
        """(T + 1, N, D) these groups side by side; a single group is not copied."""
        return side_by_side(self.observations, groups)


def side_by_side(observations: Mapping[str, Tensor], groups: Sequence[str]) -> Tensor:
    """(..., D) the columns of these groups side by side; a single group is not copied."""
    parts = [observations[name] for name in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


@runtime_checkable
class BatchSource(Protocol):
    """Environments of other processes, which collect batches there; see `robolearn.training.asynchronous`."""

    def gather(self, batch: Batch, weights: Mapping[str, Any], timers: Timers) -> dict[str, Tensor]:
        """Give the actors the weights of the current policy, and fill `batch` with what they have collected.

        Returns:
            What the learner takes over where its policy acted: `random` and `noise`, as in `PPO.state_dict`.
        """


Act = Callable[[dict[str, Tensor], int], Tensor]
"""Maps observations by group and the step's index to the robots' actions (N, A)."""


def collect(
    env: LearnerEnv,
    batch: Batch,
    act: Act,
    timers: Timers,
    ended: Callable[[Tensor], None] | None = None,
    cut: Cut | None = None,
) -> None:
    """Fill `batch` by stepping `env` with `act(observations, t) -> action for the robot`.

    `act` stores observations, mean and action; this function stores the results of the step. `ended` is called after
    every step with `done` (N,) bool. Nothing is read back from the device, unless `cut` may end the batch early.
    """
    if batch.valid is not None:
        batch.valid.fill_(True)
    for t in range(len(batch.reward)):
        if cut is not None and t and cut.due():
            batch.end_at(t, env.observations)
            return
        with timers("infer"):
            action = act(env.observations, t)
        with timers("simulate"):
            result = env.step(action)
        batch.record(t, result)
        if ended is not None:
            ended(batch.done[t])
    if cut is not None:
        cut.finished()


def permutations(random: Random, shards: Shards, size: Sequence[int], samples: int) -> list[Tensor]:
    """A permutation of each shard's samples, (T n,) int64: numbers of rows among the T N of a batch of T x N = `size`.

    Each is drawn from the shard's own generator. Without shards it is one of `samples` rows, of which there are fewer
    where some steps of the batch are not valid.
    """
    if shards.single:
        return [torch.randperm(samples, generator=random.generator, device=random.device)]
    steps, envs = size
    share, out = envs // shards.count, []
    for i, generator in enumerate(random.generators):
        order = torch.randperm(steps * share, generator=generator, device=random.device)
        out.append(order // share * envs + i * share + order % share)
    return out
