"""The last steps of some environments of a training, from which segments are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.learners.preference.segments import Columns, Segment
from robolearn.learners.rollout import Batch

ENVS = 64
"""Environments that are remembered, at most."""
BEFORE, AFTER = "before.", "after."


class Recent:
    """The last steps of up to `ENVS` environments, at least `steps` of each."""

    def __init__(self, steps: int, num_envs: int, device: torch.device) -> None:
        """`steps`: of a segment; `device` of the batches."""
        self.steps, self.device = steps, device
        # Evenly spaced: neighbours may be alike, as where the level of a terrain follows the number.
        count = min(num_envs, ENVS)
        self._index = torch.arange(count, device=device) * num_envs // count
        self._rows: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, batch: Batch, groups: Sequence[str]) -> None:
        """Add a batch with these observation groups, in the rewards of the task; drops what is too old."""
        took = torch.ones_like(batch.done) if batch.valid is None else batch.valid
        if batch.diverged is not None:
            took = took & ~batch.diverged
        data = {
            "action": batch.action,
            "reward": batch.reward,
            "done": batch.done,
            "took": took,
            **{BEFORE + name: batch.observations[name][:-1] for name in groups},
            **{AFTER + name: batch.terminal[name] for name in groups},
        }
        length = max(self.steps, len(batch.reward))
        for name, value in data.items():
            now = value.index_select(1, self._index)
            before = self._rows.get(name)
            self._rows[name] = now if before is None else torch.cat((before, now))[-length:]

    def segments(
        self,
        count: int,
        random: np.random.Generator,
        named: str,
        source: str,
        dt: float,
        columns: Columns,
        units: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
    ) -> list[Segment]:
        """At most `count` segments, drawn at random: each is within one episode, whose last step may be its own, and
        has valid steps only. `units`: scale and offset of the actions. Waits for the device."""
        if not self._rows:
            return []
        rows = {name: value.cpu().numpy() for name, value in self._rows.items()}
        places = windows(rows["done"], rows["took"], self.steps)
        chosen = random.permutation(len(places))[:count]
        out = []
        for i, place in enumerate(chosen):
            start, env = places[place]
            span = slice(start, start + self.steps)
            names = [name.removeprefix(BEFORE) for name in rows if name.startswith(BEFORE)]
            # After a step, the observations are those before the next one; of the last, those it ended in.
            observations = {
                name: np.concatenate([rows[BEFORE + name][span, env], rows[AFTER + name][span, env][-1:]])
                for name in names
            }
            out.append(
                Segment(
                    f"{named}-{i:04d}",
                    observations,
                    rows["action"][span, env],
                    rows["reward"][span, env],
                    dt,
                    source,
                    {group: list(items) for group, items in columns.items()},
                    scale=units[0],
                    offset=units[1],
                )
            )
        return out

    def state_dict(self) -> dict[str, Any]:
        """The steps."""
        return dict(self._rows)

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore what `state_dict` returned; None: the simulation starts anew, and nothing is known of before."""
        self._rows = {} if state is None else {k: v.to(self.device, copy=True) for k, v in state.items()}


def windows(done: np.ndarray, took: np.ndarray, steps: int) -> list[tuple[int, int]]:
    """(first step, environment) of every stretch of `steps` steps in which none but the last ends an episode, of `done`
    (L, M), and all are valid, `took` (L, M)."""
    length, envs = done.shape
    found = []
    for start in range(length - steps + 1):
        ended = np.any(done[start : start + steps - 1], axis=0)
        valid = np.all(took[start : start + steps], axis=0)
        found += [(start, env) for env in range(envs) if valid[env] and not ended[env]]
    return found
