"""Which deployment stacks a policy can be written for: one module a reader.

A profile has one function, `files(manifest, graph)`: the content of each file by its path, in the keys of that
reader and at full float precision. What the reader cannot run is refused, never approximated.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from robolearn.errors import ConfigError, did_you_mean, listing, quote

PROFILES: tuple[str, ...] = ("mjlab", "unitree")
"""Names that `load` knows."""


def load(name: str) -> ModuleType:
    """The module of a profile; only that one is imported.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PROFILES:
        hint = did_you_mean(name, PROFILES)
        raise ConfigError(f"there is no profile {quote(name)}{hint}; profiles: {listing(PROFILES)}")
    return importlib.import_module(f"robolearn.export.profiles.{name}")
