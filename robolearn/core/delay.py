"""Values that arrive some control steps late, by a different number in each environment."""

from __future__ import annotations

import torch

from robolearn.core.env_state import Named
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Random


class DelayLine:
    """Holds the last rows of N environments and hands out the one `lag` steps old; lag 0 is a plain wire.

    It keeps nothing itself. Its state is a node of the EnvState: `lag` (N,) int64 and, with a delay, `past`
    (N, longest lag + 1, width), the newest first.
    """

    def __init__(self, steps: tuple[int, int]) -> None:
        """The range that lags are drawn from [control steps]."""
        self.steps = steps

    def empty(self, num_envs: int, width: int, device: torch.device) -> Named:
        """A line of lag 0 on which nothing is on its way."""
        lag = torch.zeros(num_envs, dtype=torch.long, device=device)
        longest = self.steps[1]
        past = {"past": torch.zeros(num_envs, longest + 1, width, device=device)} if longest else {}
        return {"lag": lag, **past}

    def push(self, line: Named, value: Tensor) -> tuple[Tensor, Named]:
        """Take this step's rows (N, width).

        Returns:
            The rows that arrive in this step, and the line after it.
        """
        if "past" not in line:
            return value, line
        past = torch.cat((value[:, None], line["past"][:, :-1]), dim=1)
        rows = torch.arange(len(value), device=value.device)
        return past[rows, line["lag"]], {**line, "past": past}

    def draw(self, line: Named, random: Random, value: Tensor) -> Named:
        """A line with new lags everywhere, on which `value` (N, width) has been coming for ever."""
        if "past" not in line:
            return line
        low, high = self.steps
        lag = random.uniform(low, high + 1, len(line["lag"])).long().clamp(max=high)
        return {"lag": lag, "past": value[:, None].expand_as(line["past"]).contiguous()}
