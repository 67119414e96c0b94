"""EpisodeStats: sums over steps and episodes of an Env, on its device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.task import Ratio


def as_ratios(found: Mapping[str, Tensor | Ratio], lost: Tensor | None) -> dict[str, Ratio]:
    """Metrics by name, (N,) each, as pairs of a total and a weight; of a number alone the weight is 1. Rows `lost` (N,)
    bool count in none. They are copies: a metric may be a view of a State, which the next reset overwrites."""
    if not found:
        return {}
    pairs = [v if isinstance(v, Ratio) else Ratio(v, torch.ones_like(v)) for v in found.values()]
    table = torch.stack([part for pair in pairs for part in pair])
    rows = (table if lost is None else torch.where(lost, 0.0, table)).unbind()
    return {name: Ratio(*pair) for name, *pair in zip(found, rows[::2], rows[1::2], strict=True)}


class EpisodeStats:
    """Sums over steps and finished episodes. The EnvState stores them: `add` returns new ones, `means` reads them."""

    def __init__(
        self, terms: list[str], metrics: list[str], weights: Tensor, dt: float, shards: int = 0
    ) -> None:
        """Reward terms with their weights (K,) a second, metrics by name, the control period [s], and the number of
        shards whose sums are kept apart; 0: sums of all environments."""
        self.shards = shards
        self.terms, self.metrics, self.dt = terms, metrics, dt
        self.per_step = [weight * dt for weight in weights.tolist()]
        """Reward of a raw term of 1 in one step."""
        self.device = weights.device

    def empty(self) -> Tensor:
        """Sums at 0, float64: raw terms, metrics (all totals, then all weights), then steps, episodes,
        terminated, diverged, and the returns and seconds of the finished episodes. With shards a row for each."""
        size = len(self.terms) + 2 * len(self.metrics) + 6
        shape = (self.shards, size) if self.shards else (size,)
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @torch.no_grad()
    def add(
        self,
        sums: Tensor,
        raw: Tensor,
        metrics: list[Ratio],
        done: Tensor,
        terminated: Tensor,
        diverged: Tensor,
        returns: Tensor,
        seconds: Tensor,
        counted: Tensor | None = None,
    ) -> Tensor:
        """`sums` and one step of N environments: raw terms (N, K), metrics as pairs of (N,), the rest (N,) each;
        `counted` (N,) bool selects the rows that are steps (all by default).

        Sums carry no autograd graph: it would keep the tensors of every step.
        """
        steps = torch.ones_like(done) if counted is None else counted
        counts = (steps, done, terminated, diverged, done * returns, done * seconds)
        columns = [*(m.total for m in metrics), *(m.weight for m in metrics), *counts]
        if self.shards:
            # One sum for all columns: one for each column of each shard would take longer than the rest of the step.
            table = torch.cat(
                (raw.double(), torch.stack([column.double() for column in columns], dim=1)), dim=1
            )
            return sums + table.view(self.shards, -1, table.shape[1]).sum(dim=1)
        per_step = torch.stack(columns).sum(dim=1, dtype=torch.float64)
        return sums + torch.cat((raw.sum(dim=0, dtype=torch.float64), per_step))

    def means(self, sums: Tensor) -> dict[str, float]:
        """Means by name: `reward/<term>` (weighted, per step),
        `raw/<term>`, `metric/<name>` (where any step counted), `episode/return`, `episode/length` [s],
        `episode/fall_rate`, counts.
        """
        values = sums.tolist()
        raw, values = values[: len(self.terms)], values[len(self.terms) :]
        metrics, (steps, episodes, terminated, diverged, returns, seconds) = values[:-6], values[-6:]
        per_step = max(steps, 1.0)
        out = {"steps": steps, "episodes": episodes, "diverged": diverged}
        if episodes:
            out["episode/return"] = returns / episodes
            out["episode/length"] = seconds / episodes
            out["episode/fall_rate"] = terminated / episodes
        weighted = [r * w for r, w in zip(raw, self.per_step, strict=True)]
        out["reward/total"] = sum(weighted) / per_step
        out |= {f"reward/{k}": v / per_step for k, v in zip(self.terms, weighted, strict=True)}
        out |= {f"raw/{k}": v / per_step for k, v in zip(self.terms, raw, strict=True)}
        half = len(self.metrics)
        for name, total, weight in zip(self.metrics, metrics[:half], metrics[half:], strict=True):
            if weight:
                out[f"metric/{name}"] = total / weight
        return out
