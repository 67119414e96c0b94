"""Names of the columns of observations and units of the actions of an Env, for files that other programs read."""

from __future__ import annotations

import numpy as np

from robolearn.core.contract import contract_of
from robolearn.core.env import Env


def columns_of(env: Env) -> dict[str, tuple[str, ...]]:
    """The name of each column by observation group: the item, with a number where it has several columns."""
    return {
        group: tuple(
            item.name if width == 1 else f"{item.name}[{i}]" for item, width in items for i in range(width)
        )
        for group, items in env.columns.items()
    }


def units_of(env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset (A,) of the joint targets, offset + scale x action; see `Contract.actions`."""
    actions = contract_of(env).actions
    scale, offset = ([each[name] for each in actions] for name in ("scale", "offset"))
    return np.asarray(scale, np.float32), np.asarray(offset, np.float32)
