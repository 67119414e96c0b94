"""DelayLine: values that arrive some control steps late, by a different number in each environment."""

from __future__ import annotations

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random


class DelayLine:
    """Holds the last rows of N environments and hands out the one `lag` steps old; lag 0 is a plain wire."""

    def __init__(self, steps: tuple[int, int], num_envs: int, width: int, device: torch.device) -> None:
        self.steps = steps
        self.lag = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.past = torch.zeros(steps[1] + 1, num_envs, width, device=device) if steps[1] else None
        """(lag + 1, N, width), the newest first."""

    def push(self, value: Tensor) -> Tensor:
        """Take this step's rows (N, width), return the rows that arrive in this step."""
        if self.past is None:
            return value
        self.past = torch.cat((value[None], self.past[:-1]))
        return self._arriving()

    def draw(self, mask: Tensor, random: Random, value: Tensor) -> None:
        """Draw new lags where `mask` (N,) is set, and fill the past there with `value` (N, width)."""
        if self.past is None:
            return
        low, high = self.steps
        lag = random.uniform(low, high + 1, len(self.lag)).long().clamp(max=high)
        self.lag = torch.where(mask, lag, self.lag)
        self.past = torch.where(mask[:, None], value, self.past)

    def _arriving(self) -> Tensor:
        assert self.past is not None
        return self.past[self.lag, torch.arange(len(self.lag), device=self.lag.device)]

    def snapshot(self) -> dict[str, Tensor]:
        """Lags (N,) and, with a delay, the past (N, lag + 1, width)."""
        rows = {} if self.past is None else {"past": self.past.transpose(0, 1).clone()}
        return {"lag": self.lag.clone(), **rows}

    def restore(self, snapshot: dict[str, Tensor], rows: Tensor) -> None:
        """Take environment i from row `rows[i]` of a snapshot."""
        self.lag = snapshot["lag"][rows]
        if self.past is not None:
            self.past = snapshot["past"][rows].transpose(0, 1).contiguous()
