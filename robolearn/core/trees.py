"""Tensors in dictionaries and tuples: copied, moved to a device, cut off the graph they came from."""

from __future__ import annotations

from typing import Any

import torch

from robolearn.envs.state import Tensor


def copied(value: Any, rows: Tensor | None = None) -> Any:
    """Copies of tensors in dictionaries; with `rows`, int64 (N,), of those rows in that order."""
    if isinstance(value, dict):
        return {k: copied(v, rows) for k, v in value.items()}
    return value.clone() if rows is None else value[rows]


def moved(value: Any, device: torch.device) -> Any:
    """The same on another device; what is no tensor as it is."""
    if isinstance(value, dict):
        return {k: moved(v, device) for k, v in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def detached(value: Any) -> Any:
    """The same numbers, in the same memory, without a graph behind them: no gradient goes through them."""
    if isinstance(value, dict):
        return {k: detached(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(detached(v) for v in value)
    return value.detach() if isinstance(value, Tensor) else value
