"""Logs from files by their ending."""

from __future__ import annotations

from pathlib import Path

from robolearn.simulation.sysid import log
from robolearn.simulation.sysid.log import Log


def read(path: Path) -> Log:
    """Read a log.

    Raises:
        ConfigError: the file cannot be read, or is not a log.
    """
    return log.read(path)
