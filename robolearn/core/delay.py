"""Delay lines: values that arrive some control steps late, a different number in each environment."""

from __future__ import annotations

import torch

from robolearn.core.env_state import Named
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.task import Task


class DelayLine:
    """Stores the last rows of N environments and returns the one that is `lag` steps old; lag 0 is no delay.

    Its state is a node of the EnvState: `lag` (N,) int64 and, with a delay, `past`
    (N, longest lag + 1, width), the newest first.
    """

    def __init__(self, steps: tuple[int, int]) -> None:
        """`steps` is the range that lags are drawn from [control steps]."""
        self.steps = steps

    @property
    def delays(self) -> bool:
        """Whether any lag can be drawn but 0."""
        return self.steps[1] > 0

    def empty(self, num_envs: int, width: int, device: torch.device) -> Named:
        """A line of lag 0 that holds zeros."""
        lag = torch.zeros(num_envs, dtype=torch.long, device=device)
        longest = self.steps[1]
        past = {"past": torch.zeros(num_envs, longest + 1, width, device=device)} if longest else {}
        return {"lag": lag, **past}

    def push(self, line: Named, value: Tensor) -> tuple[Tensor, Named]:
        """Put in this step's rows (N, width).

        Returns:
            The rows (N, width) that arrive in this step, and the line after it.
        """
        if "past" not in line:
            return value, line
        past = torch.cat((value[:, None], line["past"][:, :-1]), dim=1)
        rows = torch.arange(len(value), device=value.device)
        return past[rows, line["lag"]], {**line, "past": past}

    def draw(self, line: Named, random: Random, value: Tensor, level: Tensor | None = None) -> Named:
        """A line with new lags that is filled with `value` (N, width). Lags are from the lowest part of the range, the
        share `level` (N,) of it; None: all of it."""
        if "past" not in line:
            return line
        low, high = self.steps
        above = random.uniform(0, high - low + 1, len(line["lag"]))
        if level is not None:
            above = above * (level * (high - low) + 1) / (high - low + 1)
        lag = low + above.long().clamp(max=high - low)
        return {"lag": lag, "past": value[:, None].expand_as(line["past"]).contiguous()}


def delayed_targets(
    delay: DelayLine, line: Named, task: Task, ctx: Context, action: Tensor, given: Tensor | None
) -> tuple[Tensor, Named]:
    """The joint targets (N, A) that reach the motors in this step, and the line after it.

    Args:
        delay: of actions.
        line: its state.
        task, ctx: which make joint targets of the actions that arrive.
        action: (N, A) the policy's.
        given: (N, A) joint targets that a controller computed; they arrive as late as an action. None: those of the
            action.
    """
    if given is None:
        arriving, line = delay.push(line, action)
        return task.joint_targets(arriving, ctx), line
    if not delay.delays:
        return given, line
    # A line begins with actions of 0, so what is given is stored as the distance from their targets.
    rest = task.joint_targets(torch.zeros_like(action), ctx)
    arriving, line = delay.push(line, given - rest)
    return rest + arriving, line
