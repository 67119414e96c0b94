"""What actors go on from: their environments after the last batch that was used, in a checkpoint and at a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from robolearn.envs.state import Tensor
from robolearn.training.ranks.world import joined_rows

STATS = "stats"
"""Sums in an Env's state, which are 0 after a batch; all else in it are rows of environments."""


class States:
    """The state of each actor after the last of its batches that an update has used."""

    def __init__(self, count: int, batches: int, envs: int) -> None:
        """`count` actors with `envs` environments each, and `batches` batches of an update."""
        self.count, self.batches, self.envs = count, batches, envs
        self._kept: dict[int, tuple[dict[str, Any], int]] = {}
        self._snapshot: dict[str, Any] = {}

    def keep(self, actor: int, sequence: int, content: Mapping[str, Any]) -> None:
        """An update has used this batch of an actor, its newest."""
        self._kept[actor] = {"env": content["env"], "state": content["state"]}, sequence + 1

    def snapshot(self) -> dict[str, Any]:
        """As `Env.snapshot`, with the environments of an update, so that one process can go on from it; `asynchronous`
        has what else the actors need. Empty where environments cannot be saved."""
        if not self._kept:
            return self._snapshot
        members = sorted(self._kept)
        states = [self._kept[actor][0] for actor in members]
        if not states[0]["env"]:
            return {}
        whole = _joined([state["env"] for state in states])
        more: dict[str, Any] = {
            "actors": members,
            "sequences": [self._kept[actor][1] for actor in members],
            "random": torch.stack([state["state"]["random"] for state in states]),
        }
        if "noise" in states[0]["state"]:
            more["noise"] = torch.stack([state["state"]["noise"] for state in states])
        if members != list(range(self.batches)):
            # More actors than an update has batches, or fewer so far: one process takes as many rows as it has.
            more["env"] = whole
            whole = _joined([states[i % len(states)]["env"] for i in range(self.batches)])
        return {**whole, "asynchronous": more}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._snapshot = snapshot

    def starts(self, noise: Tensor | None = None) -> dict[int, tuple[Any, int]]:
        """State and number of the next batch of each actor that goes on; `noise` (N, A) is that of a learner that has
        collected by itself."""
        if not self._snapshot:
            return {}
        saved = dict(self._snapshot)
        more = saved.pop("asynchronous", {})
        whole = more.get("env", saved)
        rows = len(whole["state"]["episode.step"])
        before = {actor: i for i, actor in enumerate(more.get("actors", ()))}
        same = bool(before) and rows == self.envs * len(before)
        sequences = dict(zip(before, more.get("sequences", ()), strict=True))
        out: dict[int, tuple[Any, int]] = {}
        for actor in range(self.count):
            mine = same and actor in before
            place = before[actor] if mine else actor
            # Where actors have other numbers of environments now, each takes its share, from the start again if needed.
            index = (place * self.envs + torch.arange(self.envs)) % rows
            parts = {
                "backend": whole["backend"],
                "state": {k: x for k, x in whole["state"].items() if k != STATS},
            }
            env = _rows(parts, index)
            env["random"] = _random(whole["random"], place, rows // self.envs)
            state: dict[str, Any] = {}
            if mine:
                state["random"] = more["random"][place]
            if mine and "noise" in more:
                state["noise"] = more["noise"][place]
            elif not before and noise is not None and len(noise) == rows:
                state["noise"] = noise.cpu()[index]
            out[actor] = {"env": env, "state": state}, sequences.get(actor, 0)
            if mine:  # a checkpoint may come before an update uses its next batch
                stats = whole["state"][STATS]
                sums = stats if stats.dim() == 1 else stats[place : place + 1]
                complete = {**env, "state": {**env["state"], STATS: sums}}
                self._kept[actor] = {"env": complete, "state": state}, sequences[actor]
        return out


def _joined(snapshots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One snapshot of those of several actors."""
    # Copies, also of a single one: what Ray has delivered lies in one block, which a checkpoint cannot save in parts.
    out: dict[str, Any] = joined_rows([{k: x for k, x in s.items() if k != "random"} for s in snapshots])
    if (first := snapshots[0]["state"][STATS]).dim() == 1:  # not those of a shard
        out["state"][STATS] = first.clone()
    random = [snapshot["random"] for snapshot in snapshots]
    return {
        **out,
        "random": random[0].clone() if len(random) == 1 else torch.stack([x.flatten() for x in random]),
    }


def _random(states: Tensor, place: int, parts: int) -> Tensor:
    """The generator's state of an actor, of those of all; a state that does not fit is ignored by the actor."""
    if states.dim() == 1:
        return states if parts == 1 else states[:0]
    return states[place] if len(states) == parts and place < parts else states[:0, 0]


def _rows(tree: Any, index: Tensor) -> Any:
    if isinstance(tree, Tensor):
        return tree[index] if tree.dim() else tree
    if isinstance(tree, dict):
        return {key: _rows(value, index) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_rows(value, index) for value in tree)
    return tree


def merged_means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means by name, as `Env.drain` returns them, of those of several actors: episodes are weighted by their number,
    everything else by steps."""
    if len(parts) == 1:
        return dict(parts[0])
    out: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [part for part in parts if name in part]
        if name in ("steps", "episodes", "diverged"):
            out[name] = sum(part[name] for part in having)
            continue
        weights = [part["episodes" if name.startswith("episode/") else "steps"] for part in having]
        total = sum(w * part[name] for w, part in zip(weights, having, strict=True))
        out[name] = total / max(sum(weights), 1e-9)
    return out
