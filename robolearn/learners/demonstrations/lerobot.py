"""Demonstrations in LeRobot's layout of dataset folders, versions 2.0 to 3.0 (Cadene et al., 2024, "LeRobot").

    meta/info.json           codebase_version, fps, features
    data/**/*.parquet        a row a step: observation.state, action, episode_index, frame_index, and where there are
                             any next.reward and other numeric observations

Version 2 has one file an episode, version 3 files of many. Images and videos are not learned from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.errors import ConfigError, MissingError, listing, quote
from robolearn.learners.demonstrations.demonstrations import Recorded

INFO = Path("meta") / "info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
_OBSERVATION = "observation."


def is_dataset(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (path / INFO).is_file()


def read(path: Path) -> Recorded:
    """The content of a folder.

    Raises:
        ConfigError: it is not such a folder, is of another version, or a file in it is damaged.
        MissingError: pyarrow is not installed.
    """
    shown = quote(str(path), 120)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingError(f"{shown} needs pyarrow: pip install 'robolearn[demos]'") from None
    info = _info(path, shown)
    tables = []
    for file in sorted((path / "data").rglob("*.parquet")):
        try:
            # What the files contain counts, not what their folders are called.
            tables.append(pq.read_table(file, columns=_numeric(pq.read_schema(file), pa), partitioning=None))
        except (OSError, pa.ArrowException) as error:
            first = (str(error).splitlines() or [""])[0]
            raise ConfigError(f"{quote(str(file), 120)} cannot be read as Parquet ({first})") from None
    if not tables:
        raise ConfigError(f"{shown} has no Parquet files under data/")
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{shown}: its files have different columns ({first})") from None
    for name in ("action", "episode_index"):
        if name not in table.column_names:
            raise ConfigError(f"{shown} has no column {quote(name)}; it has {listing(table.column_names)}")
    if not table.num_rows:
        raise ConfigError(f"{shown} holds no episode: its files have no rows")
    arrays = {name: _array(table[name], name, shown, pa) for name in table.column_names}
    for name in ("episode_index", "frame_index", "next.reward"):
        if name in arrays and arrays[name].shape[1] != 1:
            raise ConfigError(
                f"{shown}: {name} has {arrays[name].shape[1]} columns; one number a row is needed"
            )
    episode = arrays["episode_index"].reshape(-1).astype(np.int64)
    frame = arrays.get("frame_index", np.arange(len(episode))).reshape(-1)
    order = np.lexsort((frame, episode))
    lengths = np.unique(episode, return_counts=True)[1].astype(np.int64)
    reward = arrays.get("next.reward")
    fps = info.get("fps")
    valid = isinstance(fps, (int, float)) and not isinstance(fps, bool) and fps > 0
    return Recorded(
        str(path),
        {
            name: array[order].astype(np.float32)
            for name, array in arrays.items()
            if name.startswith(_OBSERVATION)
        },
        arrays["action"][order].astype(np.float32),
        lengths,
        np.zeros(len(lengths), bool),  # next.done is set at the end of every episode
        None if reward is None else reward.reshape(-1)[order].astype(np.float32),
        dt=1.0 / fps if valid else None,  # type: ignore[operator]
    )


def _info(path: Path, shown: str) -> dict[str, Any]:
    try:
        info = json.loads((path / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown}: {INFO} cannot be read ({error})") from None
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in VERSIONS:
        raise ConfigError(
            f"{shown} is of LeRobot version {quote(version)}, and versions {listing(VERSIONS)} are read"
        )
    assert isinstance(info, dict)
    return info


def _numeric(schema: Any, pa: Any) -> list[str]:
    """The columns of numbers, or of lists of numbers."""

    def number(kind: Any) -> bool:
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))

    return [field.name for field in schema if number(field.type)]


def _array(column: Any, name: str, shown: str, pa: Any) -> np.ndarray:
    """A column as (M, D)."""
    if column.null_count:
        raise ConfigError(f"{shown}: {name} has {column.null_count} rows without a value (null)")
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)):
        plain: np.ndarray = column.to_numpy()
        return plain[:, None]
    rows = len(column)
    flat: np.ndarray = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    sizes = np.unique(pa.compute.list_value_length(column).to_numpy()) if rows else np.zeros(1)
    if len(sizes) != 1 or len(flat) != rows * int(sizes[0]):
        raise ConfigError(f"{shown}: {name} has rows of different widths")
    return flat.reshape(rows, -1)
