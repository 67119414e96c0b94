"""FiniteCheck: reports numbers that are not finite by name, at once on a CPU, at the next `read` on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from robolearn.core.rows import Rows
from robolearn.envs.state import State, Tensor
from robolearn.errors import RunFailed

ORDER = ("action of", "joint target of", "reward", "metric", "initial state", "observation")
"""Kinds of values, in their order in a step."""


class Diverged(RunFailed):
    """Too many simulated environments diverged for the results to be trusted."""


class NonFiniteTerm(RunFailed):
    """An action, reward, observation, metric, initial state or gradient was not finite."""

    def __init__(self, message: str, state: State | None = None, env: int | None = None) -> None:
        super().__init__(message)
        self.env = env
        """The environment that it is of, where it is known."""
        self.state = state
        """A copy of the State that it was computed from."""


class FiniteCheck:
    """Checks the numbers that an Env computes.

    On a CPU each check reads the numbers. On a GPU the read would wait for everything queued, so the result stays
    there, one flag a column, until `read`.
    """

    def __init__(
        self,
        at_once: bool,
        state: Callable[[], State],
        episode_step: Callable[[], Tensor],
        flags: Callable[[], dict[str, Tensor]],
        first_env: int = 0,
    ) -> None:
        """
        Args:
            at_once: whether `look` reads the numbers.
            state: the current State, for the message.
            episode_step: (N,), for the message.
            flags: a dictionary for (K,) bool of each check: the columns that were not finite since `read`.
            first_env: number of the first environment among those of all ranks, for the message.
        """
        self.first_env = first_env
        self.at_once, self._state, self._episode_step, self._flags = at_once, state, episode_step, flags
        self._names: dict[str, list[str]] = {}

    @torch.no_grad()
    def look(self, values: Tensor, names: list[str], kind: str, rows: Rows | None = None) -> None:
        """Check that `values` (N, K), or those of some `rows`, are finite; `names` (K) are those of the columns, `kind`
        says what they are.

        Raises:
            NonFiniteTerm: a value is not finite; the column and the environment are named.
        """
        if not self.at_once:
            key = f"{kind} {names[0]}" if names else kind
            bad = ~torch.isfinite(values).all(dim=0)
            self._names[key] = [f"{kind} {name!r}" for name in names]
            flags = self._flags()
            flags[key] = flags[key] | bad if key in flags else bad
            return
        if math.isfinite(values.sum().item()):
            return
        guilty = (~torch.isfinite(values)).nonzero().tolist()
        if guilty:  # otherwise only the sum overflowed
            row, column = guilty[0]
            env = row if rows is None else rows.env(row)
            others = len({e for e, _ in guilty}) - 1
            state = self._state()
            sound = all(bool(torch.isfinite(t[env]).all()) for t in state.robot.tensors().values())
            what = f"a State that is {'' if sound else 'not '}finite"
            raise NonFiniteTerm(
                f"{kind} {names[column]!r} is not finite in environment {self.first_env + env} (and {others} more) at "
                f"step {int(self._episode_step()[env])} of its episode, on {what}",
                state.clone(),
                env,
            )

    @torch.no_grad()
    def read(self) -> None:
        """Read the flags since the last call.

        Raises:
            NonFiniteTerm: a column was not finite; the first in the order of a step is named.
        """
        flags = self._flags()
        if not flags:
            return
        # In the order of a step: later values are computed from earlier ones.
        keys = sorted(flags, key=lambda key: next((i for i, kind in enumerate(ORDER) if kind in key), 99))
        values = torch.cat([flags[key] for key in keys]).tolist()
        names = [name for key in keys for name in self._names[key]]
        for seen in flags.values():
            seen.zero_()
        if any(values):
            first = names[values.index(True)]
            raise NonFiniteTerm(
                f"{first} was not finite since the last iteration (and {sum(values) - 1} other columns)",
                self._state().clone(),
            )
