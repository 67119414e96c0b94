"""Whether networks get the observation groups in the order in which they were trained."""

from __future__ import annotations

from pathlib import Path

from robolearn import config
from robolearn.config import yaml_file
from robolearn.config.run_config import Config
from robolearn.errors import ConfigError

SUFFIX = "_groups"
"""Settings of a learner and of a task that list groups end so."""


def require_same_groups(folder: Path, run: Config, shown: str) -> None:
    """Compare the groups of a configuration with those of the run that networks are from. The same groups in another
    order have as many columns, so the weights would fit and mean something else.

    Args:
        folder: of that run.
        run: what the networks are to be used with.
        shown: begins the message: the setting that names the run, and "does" or "do".

    Raises:
        ConfigError: a setting lists the same groups in another order; it is named.
    """
    saved = yaml_file.read(folder / config.FILE_NAME)
    for section in ("learner", "task"):
        settings = saved.get(section)
        for key, before in settings.items() if isinstance(settings, dict) else ():
            now = getattr(getattr(run, section), str(key), None)
            if (
                not str(key).endswith(SUFFIX)
                or not isinstance(before, list)
                or not isinstance(now, list | tuple)
            ):
                continue
            before, now = [str(group) for group in before], [str(group) for group in now]
            if before != now and sorted(before) == sorted(now):
                raise ConfigError(
                    f"{shown} not fit this configuration: {section}.{key} were {', '.join(before)} and are now "
                    f"{', '.join(now)}; write [{','.join(before)}]"
                )
