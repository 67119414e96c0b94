"""Demonstrations in robomimic's layout of HDF5 files, which robosuite, MimicGen and Isaac Lab's recorder write too.

    data/demo_0/obs/<name>   (T, D) before each step
    data/demo_0/actions      (T, A)
    data/demo_0/rewards      (T,), may be left out
    data/demo_0/terminated   (T,) or (), may be left out: the episode ended for good
    data                     attribute env_args: JSON, with env_kwargs.control_freq [1/s]; may be left out

Mandlekar et al. (2021), "What Matters in Learning from Offline Human Demonstrations for Robot Manipulation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.errors import ConfigError, MissingError, listing, quote
from robolearn.learners.demonstrations.demonstrations import Recorded
from robolearn.learners.demonstrations.npz import numbers

SUFFIXES = (".hdf5", ".h5")


def read(path: Path, names: Collection[str] | None = None) -> Recorded:
    """The content of a file; with `names`, observations of these names alone, where it has them.

    Raises:
        ConfigError: it is not such a file, or its episodes differ in what they hold.
        MissingError: h5py is not installed.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        raise MissingError(f"{quote(str(path), 120)} needs h5py: pip install 'robolearn[demos]'") from None
    shown = quote(str(path), 120)
    try:
        with h5py.File(path, "r") as file:
            return _content(file, path, shown, h5py, names)
    except (OSError, RuntimeError, KeyError) as error:  # KeyError: a link that leads nowhere
        raise ConfigError(f"{shown} cannot be read as an HDF5 file ({error})") from None


def _content(file: Any, path: Path, shown: str, h5py: Any, wanted: Collection[str] | None) -> Recorded:
    data = file.get("data")
    if not isinstance(data, h5py.Group):
        raise ConfigError(
            f"{shown} has no group 'data' with episodes demo_0, demo_1, ...; it has {listing(file)}"
        )
    names = sorted((n for n in data if isinstance(data.get(n), h5py.Group)), key=_number)
    observed: dict[str, list[np.ndarray]] = {}
    others: set[str] = set()
    actions, rewards, lengths, terminated = [], [], [], []
    for i, name in enumerate(names):
        demo = data[name]
        obs = demo.get("obs")
        if not isinstance(demo.get("actions"), h5py.Dataset) or not isinstance(obs, h5py.Group):
            raise ConfigError(f"{shown}: data/{name} has no obs/ or no actions; it has {listing(demo)}")
        action = _numbers(demo["actions"], f"data/{name}/actions", shown)
        found = {}
        for key in obs:
            part = obs.get(key)  # None: a link that leads nowhere
            asked = wanted is not None and key in wanted
            if asked and not isinstance(part, h5py.Dataset):
                raise ConfigError(f"{shown}: data/{name}/obs/{key} is no array, or a link that leads nowhere")
            if asked or (wanted is None and isinstance(part, h5py.Dataset) and 1 <= part.ndim <= 2):
                found[key] = part
            else:
                others.add(key)
        if i == 0:
            observed = {key: [] for key in found}
        if set(found) != set(observed):
            differing = sorted(set(found) ^ set(observed))[0]
            raise ConfigError(
                f"{shown}: obs/{differing} is in some episodes only, such as not in all up to {name}"
            )
        for key, part in found.items():
            array = _numbers(part, f"data/{name}/obs/{key}", shown)
            if len(array) != len(action) or (observed[key] and array.shape[1] != observed[key][0].shape[1]):
                raise ConfigError(
                    f"{shown}: data/{name}/obs/{key} has the shape {array.shape}, and there are {len(action)} actions"
                )
            observed[key].append(array)
        actions.append(action)
        lengths.append(len(action))
        for key in ("rewards", "terminated"):
            part = demo.get(key)
            if key in demo and not (isinstance(part, h5py.Dataset) and part.dtype.kind in "fiub"):
                raise ConfigError(f"{shown}: data/{name}/{key} holds no numbers")
        if "rewards" in demo:
            rewards.append(np.asarray(demo["rewards"], np.float32).reshape(-1))
            if len(rewards[-1]) != len(action):
                raise ConfigError(
                    f"{shown}: data/{name}/rewards has {len(rewards[-1])} numbers, and there are {len(action)} actions"
                )
        terminated.append(bool(np.asarray(demo["terminated"]).any()) if "terminated" in demo else False)
    if len({a.shape[1] for a in actions}) > 1:
        raise ConfigError(f"{shown}: the actions of its episodes have different widths")
    if not names:
        raise ConfigError(f"{shown} holds no episode")
    return Recorded(
        str(path),
        {key: np.concatenate(parts) for key, parts in observed.items()},
        np.concatenate(actions),
        np.asarray(lengths, np.int64),
        np.asarray(terminated, bool),
        np.concatenate(rewards) if len(rewards) == len(names) else None,
        dt=_period(data),
        others=tuple(sorted(others)),
    )


def _numbers(dataset: Any, name: str, shown: str) -> np.ndarray:
    if dataset.dtype.kind not in "fiub":
        raise ConfigError(f"{shown}: {name} holds no numbers")
    return numbers(np.asarray(dataset), name, shown)


def _number(name: str) -> tuple[int, str]:
    """demo_2 comes before demo_10."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else -1, name


def _period(data: Any) -> float | None:
    try:
        frequency = json.loads(data.attrs["env_args"])["env_kwargs"]["control_freq"]
        return 1.0 / float(frequency)
    except (KeyError, ValueError, TypeError, ZeroDivisionError):
        return None
