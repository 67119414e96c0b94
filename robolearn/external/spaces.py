"""Spaces: gymnasium's observation and action spaces as flat columns, or a refusal that names the space."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from robolearn.errors import ConfigError

GROUPS = ("policy", "critic")
"""Keys of a dictionary of observations that are our groups: what the robot measures, and everything."""

Box, Dict = gymnasium.spaces.Box, gymnasium.spaces.Dict


def require_actions(space: gymnasium.Space, name: str) -> gymnasium.spaces.Box:
    """The action space of one environment, which must be a Box of real numbers.

    Raises:
        ConfigError: it is another one; it is named.
    """
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"task={name}: the action space {space} is not a Box of real numbers, and policies here move motors; "
            "wrap the environment so that it takes a Box"
        )
    if not np.prod(space.shape):
        raise ConfigError(f"task={name}: the action space {space} is empty: there is nothing to learn")
    return space


def observation_columns(space: gymnasium.Space, name: str) -> dict[str, list[str]]:
    """Names of the columns of each observation group.

    A Box is one row of columns, a Dict of Boxes theirs in its own order. A Dict with `policy` and `critic` gives each
    group its own part; otherwise both see the same.

    Raises:
        ConfigError: a space in it is no Box of numbers in a row; it is named.
    """
    if isinstance(space, Dict) and set(GROUPS) <= set(space):
        found = {group: _columns(space[group], name, group) for group in GROUPS}
    else:
        found = dict.fromkeys(GROUPS, _columns(space, name, ""))
    for columns in found.values():
        twice = next((column for column in columns if columns.count(column) > 1), None)
        if twice is not None or not columns:
            what = "is empty" if twice is None else f"has two columns that would be called {twice}"
            raise ConfigError(f"task={name}: the observation space {space} {what}; change its keys or shapes")
    return found


def _columns(space: gymnasium.Space, name: str, path: str) -> list[str]:
    if isinstance(space, Dict):
        return [
            column
            for key, inner in space.items()
            for column in _columns(inner, name, f"{path}.{key}" if path else str(key))
        ]
    where = f" ({path})" if path else ""
    if not isinstance(space, Box):
        raise ConfigError(
            f"task={name}: the observation space {space}{where} is not a Box; wrap the environment with "
            "gymnasium.wrappers.FlattenObservation, or so that it observes numbers"
        )
    if len(space.shape) > 2:
        raise ConfigError(
            f"task={name}: the observation space {_short(space)}{where} is a picture, and the networks here take rows "
            "of numbers; wrap the environment so that it observes those"
        )
    width = int(np.prod(space.shape))
    return [f"{path or 'observation'}[{i}]" for i in range(width)]


def _short(space: gymnasium.spaces.Box) -> str:
    return f"Box{space.shape} of {space.dtype}"


def flatten(space: gymnasium.Space, batch: Any, num_envs: int) -> dict[str, np.ndarray]:
    """A batch of observations of N environments in `space`, as (N, D) float32 a group; copies."""
    if isinstance(space, Dict) and set(GROUPS) <= set(space):
        return {group: _flat(space[group], batch[group], num_envs) for group in GROUPS}
    rows = _flat(space, batch, num_envs)
    return dict.fromkeys(GROUPS, rows)


def _flat(space: gymnasium.Space, batch: Any, num_envs: int) -> np.ndarray:
    if isinstance(space, Dict):
        return np.concatenate([_flat(inner, batch[key], num_envs) for key, inner in space.items()], axis=1)
    return np.array(batch, np.float32).reshape(num_envs, -1)
