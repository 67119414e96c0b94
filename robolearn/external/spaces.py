"""gymnasium's observation and action spaces as flat columns; a space that does not fit is refused by name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from robolearn.errors import ConfigError

GROUPS = ("policy", "critic")
"""Keys of a Dict space that are observation groups: what the robot measures, and everything."""

Box, Dict = gymnasium.spaces.Box, gymnasium.spaces.Dict


def require_actions(space: gymnasium.Space, name: str) -> gymnasium.spaces.Box:
    """The action space of one environment, which must be a Box of real numbers.

    Raises:
        ConfigError: it is another space, which is named.
    """
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"task={name}: the action space {space} is not a Box of real numbers, which policies need; wrap "
            "the environment so that it takes a Box"
        )
    if not np.prod(space.shape):
        raise ConfigError(f"task={name}: the action space {space} is empty: there is nothing to learn")
    return space


def observation_columns(space: gymnasium.Space, name: str) -> dict[str, list[str]]:
    """Names of the columns of each observation group.

    A Dict of Boxes has its Boxes' columns in the order of its keys. In a Dict with the keys `policy` and `critic` each
    is a group; otherwise both groups are the whole space.

    Raises:
        ConfigError: a space in it is not a Box of at most two dimensions; it is named.
    """
    if isinstance(space, Dict) and set(GROUPS) <= set(space):
        found = {group: _columns(space[group], name, group) for group in GROUPS}
    else:
        found = dict.fromkeys(GROUPS, _columns(space, name, ""))
    for columns in found.values():
        twice = next((column for column in columns if columns.count(column) > 1), None)
        if twice is not None or not columns:
            what = "is empty" if twice is None else f"has two columns of the name {twice}"
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
            "gymnasium.wrappers.FlattenObservation, or so that it observes a Box"
        )
    if len(space.shape) > 2:
        raise ConfigError(
            f"task={name}: the observation space {_short(space)}{where} is an image, but policies take flat "
            "observations; wrap the environment so that it gives those"
        )
    width = int(np.prod(space.shape))
    return [f"{path or 'observation'}[{i}]" for i in range(width)]


def _short(space: gymnasium.spaces.Box) -> str:
    return f"Box{space.shape} of {space.dtype}"


def flatten(space: gymnasium.Space, batch: Any, num_envs: int) -> dict[str, np.ndarray]:
    """A batch of observations of N environments in `space`, as (N, D) float32 per group; copies."""
    if isinstance(space, Dict) and set(GROUPS) <= set(space):
        return {group: _flat(space[group], batch[group], num_envs) for group in GROUPS}
    rows = _flat(space, batch, num_envs)
    return dict.fromkeys(GROUPS, rows)


def _flat(space: gymnasium.Space, batch: Any, num_envs: int) -> np.ndarray:
    if isinstance(space, Dict):
        return np.concatenate([_flat(inner, batch[key], num_envs) for key, inner in space.items()], axis=1)
    return np.array(batch, np.float32).reshape(num_envs, -1)
