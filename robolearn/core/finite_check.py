"""FiniteCheck: numbers that are not finite are told by name, at once where looking is free, later where it is not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from robolearn.core.rows import Rows
from robolearn.envs.state import State, Tensor
from robolearn.errors import RunFailed

ORDER = ("action of", "target of", "reward", "metric", "initial state", "observation")
"""Kinds of what is looked at, as they follow in a step."""


class NonFiniteTerm(RunFailed):
    """An action, reward, observation, metric, initial state or gradient was not finite."""

    def __init__(self, message: str, state: State | None = None) -> None:
        super().__init__(message)
        self.state = state
        """The State it was computed from, to look at."""


class FiniteCheck:
    """Looks at what an Env computes.

    On a CPU each look reads the numbers. On a GPU that would wait for everything queued before it, so what was
    seen is kept there, a flag a column, until `read`.
    """

    def __init__(
        self,
        at_once: bool,
        state: Callable[[], State],
        episode_step: Callable[[], Tensor],
        flags: Callable[[], dict[str, Tensor]],
    ) -> None:
        """
        Args:
            at_once: whether to read what is looked at.
            state: for the message.
            episode_step: (N,), for the message.
            flags: a dictionary to keep (K,) bool for each look in: which columns were not finite since `read`.
        """
        self.at_once, self._state, self._episode_step, self._flags = at_once, state, episode_step, flags
        self._names: dict[str, list[str]] = {}

    @torch.no_grad()
    def look(self, values: Tensor, names: list[str], kind: str, rows: Rows | None = None) -> None:
        """Check that `values` (N, K), or those of some `rows`, are finite; `names` (K) are those of the columns, `kind`
        says what they are.

        Raises:
            NonFiniteTerm: they are not; it names the column and the environment.
        """
        if not self.at_once:
            key = f"{kind} {names[0]}" if names else kind
            bad = ~torch.isfinite(values).all(dim=0)
            self._names[key] = [f"{kind} {name!r}" for name in names]
            flags = self._flags()
            flags[key] = flags[key] | bad if key in flags else bad
            return
        if bool(torch.isfinite(values.sum())):
            return
        guilty = (~torch.isfinite(values)).nonzero().tolist()
        if guilty:  # else the sum alone overflowed
            row, column = guilty[0]
            env = row if rows is None else rows.env(row)
            others = len({e for e, _ in guilty}) - 1
            state = self._state()
            sound = all(bool(torch.isfinite(t[env]).all()) for t in state.robot.tensors().values())
            raise NonFiniteTerm(
                f"{kind} {names[column]!r} is not finite in environment {env} (and {others} more) at step "
                f"{int(self._episode_step()[env])} of its episode, on a State that is {'' if sound else 'not '}finite",
                state.clone(),
            )

    @torch.no_grad()
    def read(self) -> None:
        """Read back what was seen since the last call.

        Raises:
            NonFiniteTerm: something was not finite; the first by the order of a step is named.
        """
        flags = self._flags()
        if not flags:
            return
        # By the order of a step: what is wrong first spoils what is computed from it.
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
