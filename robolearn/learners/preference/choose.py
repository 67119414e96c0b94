"""Which pairs to ask about: random ones at first, then those that the networks of the reward disagree about.

Christiano et al. (2017), sec. 2.2.4, and Lee et al. (2021), "B-Pref: Benchmarking Preference-Based Reinforcement
Learning".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.preference.ensemble import Compared, Ensemble
from robolearn.learners.preference.folder import Pair
from robolearn.learners.preference.segments import Segment

CANDIDATES = 10
"""Random pairs among which each asked one is chosen."""
HELD_OUT = 10
"""About one in this many pairs is not learned from, and tells how accurate the reward is."""
_TAG = re.compile(r"(?<=^train-)[0-9a-f.]+(?=-\d+-\d+$)")
"""What is random in the names of a training's segments."""


def held_out(pairs: Sequence[Pair]) -> list[bool]:
    """Which of these pairs are not learned from: about one in `HELD_OUT`.

    A hash of the two names tells, in either order, so that other answers change nothing about it. Where all would be
    held out, none is; and of `HELD_OUT` or more, one is in any case.
    """

    def number(pair: Pair) -> int:
        names = "\n".join(sorted(_TAG.sub("", name) for name in pair))
        return int.from_bytes(hashlib.blake2b(names.encode(), digest_size=8).digest())

    numbers = [number(pair) for pair in pairs]
    found = [each % HELD_OUT == 0 for each in numbers]
    if len(found) >= HELD_OUT and not any(found):
        found[numbers.index(min(numbers))] = True
    return [False] * len(found) if all(found) else found


def compared(
    segments: Mapping[str, Segment],
    pairs: Sequence[Pair],
    targets: Sequence[float],
    groups: Sequence[str],
    device: torch.device,
    widths: Mapping[str, int] | None = None,
) -> Compared:
    """Pairs of segments as tensors on a device; see `held_out` for those that are not learned from.

    Args:
        segments: by name.
        pairs: names of the segments of each pair.
        targets: wanted probability that the first one is better, of each pair.
        groups: observation groups of the reward.
        device: of the result.
        widths: by group, the columns of the environments; None: those of the segments.

    Raises:
        ConfigError: a segment lacks a group, or has other columns.
    """
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    found = [observed(segments[name], groups, widths) for name in names]
    longest = max(len(each) for each in found)
    observations = torch.zeros(len(found), longest, found[0].shape[1])
    counted = torch.zeros(len(found), longest)
    for i, each in enumerate(found):
        if each.shape[1] != observations.shape[2]:
            raise ConfigError(
                f"segments {names[0]} and {names[i]} have {observations.shape[2]} and {each.shape[1]} columns of "
                f"{listing(groups)}: they are of different tasks or robots; use a folder for each"
            )
        observations[i, : len(each)] = torch.from_numpy(each)
        counted[i, : len(each)] = 1.0
    place = {name: i for i, name in enumerate(names)}
    first, second = (torch.tensor([place[pair[i]] for pair in pairs]) for i in (0, 1))
    left_out = torch.tensor(held_out(pairs))
    made = (observations, counted, first, second, torch.tensor(targets, dtype=torch.float32), left_out)
    return Compared(*(part.to(device) for part in made))


def observed(segment: Segment, groups: Sequence[str], widths: Mapping[str, int] | None = None) -> np.ndarray:
    """(T, D) a segment's observations after each step, of these groups side by side.

    Raises:
        ConfigError: it lacks a group, or its columns are not as many as `widths` say.
    """
    for name in groups:
        if name not in segment.observations:
            raise ConfigError(
                f"segment {segment.name} has no observation group {quote(name)}"
                f"{did_you_mean(name, segment.observations)}; valid: {listing(segment.observations)}"
            )
        width = segment.observations[name].shape[1]
        if widths is not None and widths[name] != width:
            raise ConfigError(
                f"segment {segment.name} has {width} columns of observation group {name}, and the task {widths[name]}: "
                "it is of another task, robot or other observations"
            )
    return np.concatenate([segment.observations[name][1:] for name in groups], axis=1).astype(np.float32)


def choose(
    names: Sequence[str],
    count: int,
    random: np.random.Generator,
    asked: Collection[Pair] = (),
    fresh: Collection[str] = (),
    disagreement: Ensemble | None = None,
    observations: Mapping[str, Tensor] | None = None,
) -> list[Pair]:
    """New pairs of these segments, at most `count`.

    Args:
        names: of the segments.
        count: wanted number.
        random: draws them.
        asked: pairs that are left out, in either order.
        fresh: where given, each pair has one of these segments at least.
        disagreement: networks whose disagreement is preferred; None: pairs are random.
        observations: with it, (T, D) of each segment, of one length.

    Returns:
        Pairs of different segments, the order within each random.
    """
    left_out = {frozenset(pair) for pair in asked}
    found: dict[frozenset[str], Pair] = {}
    wanted = count * (CANDIDATES if disagreement is not None else 1)
    leads = [name for name in names if name in fresh] if fresh else list(names)
    for _ in range(20 * wanted):
        if len(found) == wanted or len(names) < 2 or not leads:
            break
        one, other = (each[int(random.integers(len(each)))] for each in (leads, names))
        key = frozenset((one, other))
        if one != other and key not in left_out and key not in found:
            found[key] = (one, other) if random.random() < 0.5 else (other, one)
    pairs = list(found.values())
    if disagreement is None or observations is None or len(pairs) <= count:
        return pairs[:count]
    used = list(dict.fromkeys(name for pair in pairs for name in pair))
    place = {name: i for i, name in enumerate(used)}
    stacked = _padded([observations[name] for name in used])
    device = stacked[0].device
    first, second = (torch.tensor([place[pair[i]] for pair in pairs], device=device) for i in (0, 1))
    nothing = torch.zeros(len(pairs), device=device)
    data = Compared(*stacked, first, second, nothing, nothing.bool())
    spread = disagreement.preferred(data).std(dim=0, correction=0)
    best = spread.cpu().argsort(descending=True, stable=True)[:count]
    return [pairs[i] for i in best.tolist()]


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Observations (S, T, D) and which steps count (S, T), of (T, D) each."""
    observations = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    counted = torch.nn.utils.rnn.pad_sequence([torch.ones_like(x[:, 0]) for x in rows], batch_first=True)
    return observations, counted
