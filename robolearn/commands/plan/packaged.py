"""YAML files that come with `robolearn plan`, by name, and files of the user by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from robolearn.errors import ConfigError, listing, quote


def names(folder: str) -> list[str]:
    """Names of the files in a folder of this package."""
    found = (resources.files(__package__) / folder).iterdir()
    return sorted(Path(file.name).stem for file in found if file.name.endswith(".yaml"))


def find(folder: str, option: str, name: str, hint: str = "") -> Path:
    """The file that an option names.

    Raises:
        ConfigError: it is no name and no file; `hint` ends the message.
    """
    if name in names(folder):
        return Path(str(resources.files(__package__) / folder / f"{name}.yaml"))
    if not Path(name).exists():
        raise ConfigError(
            f"{option} {quote(name, 120)} is no file and no name; valid names: {listing(names(folder))}{hint}"
        )
    return Path(name)
