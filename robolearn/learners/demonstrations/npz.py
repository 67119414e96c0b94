"""RoboLearn's own format of demonstrations: one NPZ file, which `robolearn eval --record` writes.

    schema                   1
    observations/<group>     (M, D) float32, before each step
    actions                  (M, A) float32
    rewards                  (M,) float32, may be left out
    terminated, truncated    (M,) bool; one of them is set in the last step of each episode
    columns/<group>          (D,) names, may be left out; as the following:
    control_dt               () [s]
    action_scale, action_offset   (A,) joint target = offset + scale x action
    task, robot              () names, for the reader

It is read without pickles, so it cannot execute code.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from robolearn.errors import ConfigError, listing, quote
from robolearn.files import replacing
from robolearn.learners.demonstrations.demonstrations import Recorded

SCHEMA = 1
"""Version of the layout."""
SUFFIX = ".npz"
_OBSERVED, _NAMED = "observations/", "columns/"


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays of the layout above, without `schema`, atomically."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, schema=np.int64(SCHEMA), **arrays)  # type: ignore[arg-type]


def read(path: Path) -> Recorded:
    """The content of a file.

    Raises:
        ConfigError: it is not such a file, is damaged, has another schema, or holds pickled objects.
    """
    shown = quote(str(path), 120)
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise ConfigError(f"{shown} is no NPZ file, but a single array")
        with content:
            arrays = {name: content[name] for name in content.files}
    except ConfigError:
        raise
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise ConfigError(f"{shown} is refused: it holds pickled objects and could run code") from None
        raise ConfigError(f"{shown} is damaged ({error})") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, RuntimeError) as error:
        # RuntimeError: encrypted, or compressed in a way that is not known (NotImplementedError).
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{shown} cannot be read as an NPZ file ({why})") from None
    for name in ("actions", "terminated", "truncated"):
        if name not in arrays:
            raise ConfigError(f"{shown} has no array {quote(name)}; it has {listing(arrays)}")
    for name in ("terminated", "truncated"):
        if arrays[name].dtype.kind not in "fiub":
            raise ConfigError(f"{shown}: {name} holds no true and false but {arrays[name].dtype}")
    schema = arrays.get("schema", np.int64(SCHEMA))
    if schema.shape != () or schema != SCHEMA:
        raise ConfigError(f"{shown} has schema {schema} and this RoboLearn reads schema {SCHEMA}")
    ended = [np.asarray(arrays[name]).astype(bool).reshape(-1) for name in ("terminated", "truncated")]
    if len(ended[0]) != len(ended[1]):
        raise ConfigError(f"{shown}: terminated has {len(ended[0])} rows and truncated {len(ended[1])}")
    ends = np.flatnonzero(ended[0] | ended[1])
    if len(ended[0]) and (not len(ends) or ends[-1] != len(ended[0]) - 1):
        raise ConfigError(
            f"{shown}: the last episode does not end: neither terminated nor truncated is set in the last row"
        )
    for name in ("action_scale", "action_offset"):
        if name in arrays and (arrays[name].ndim != 1 or not len(arrays[name])):
            raise ConfigError(
                f"{shown}: {name} has the shape {arrays[name].shape}; one number an action is needed, (A,)"
            )
    if "control_dt" in arrays and arrays["control_dt"].size != 1:
        raise ConfigError(f"{shown}: control_dt holds {arrays['control_dt'].size} numbers; one is needed")
    known = {name: numbers(arrays[name], name, shown) for name in arrays if name.startswith(_OBSERVED)}
    optional = {name: arrays.get(name) for name in ("rewards", "action_scale", "action_offset", "control_dt")}
    reward, scale, offset, dt = (
        None if array is None else numbers(array, name, shown) for name, array in optional.items()
    )
    return Recorded(
        str(path),
        {name.removeprefix(_OBSERVED): array for name, array in known.items()},
        numbers(arrays["actions"], "actions", shown),
        np.diff(ends, prepend=-1).astype(np.int64),
        ended[0][ends],
        None if reward is None else reward.reshape(-1),
        {
            name.removeprefix(_NAMED): tuple(str(each) for each in array.reshape(-1))
            for name, array in arrays.items()
            if name.startswith(_NAMED)
        },
        None if dt is None else float(dt.reshape(-1)[0]),
        scale,
        offset,
    )


def numbers(array: np.ndarray, name: str, shown: str) -> np.ndarray:
    """The array as float32, one column where it has none; `name` and `shown`, its file, are for messages.

    Raises:
        ConfigError: it does not hold numbers, or a single one where there should be a row a step.
    """
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{shown}: {name} holds no numbers but {array.dtype}")
    if not array.ndim and name != "control_dt":
        raise ConfigError(f"{shown}: {name} is a single number; a row a step is needed")
    out: np.ndarray = array.astype(np.float32)
    return out[:, None] if out.ndim == 1 and name not in _FLAT else out


_FLAT = ("rewards", "action_scale", "action_offset")
"""Arrays that have one dimension."""
