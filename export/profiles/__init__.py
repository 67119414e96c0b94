"""Profiles: files of a policy for other deployment stacks, one module per reader.

A profile has one function, `files(manifest, graph)`: the content of each file by its path, with the keys of that
reader and full float precision. A policy that the reader cannot run is refused, never approximated.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from robolearn.errors import ConfigError, did_you_mean, listing, quote

PROFILES: tuple[str, ...] = ("mjlab", "unitree")
"""Valid names."""


def load(name: str) -> ModuleType:
    """The module of a profile; imports only that one.

    Raises:
        ConfigError: unknown name.
    """
    if name not in PROFILES:
        hint = did_you_mean(name, PROFILES)
        raise ConfigError(f"there is no profile {quote(name)}{hint}; valid: {listing(PROFILES)}")
    return importlib.import_module(f"robolearn.export.profiles.{name}")
