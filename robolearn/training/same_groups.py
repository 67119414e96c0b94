"""Whether networks get the observation groups in the order in which they were trained."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from robolearn import config
from robolearn.config import yaml_file
from robolearn.config.run_config import Config
from robolearn.errors import ConfigError

INPUTS = ("actor_groups", "critic_groups", "estimated_groups", "policy_groups")
"""Settings of a learner, or of an external task, that list the groups which networks get."""
ALL = (*INPUTS, "preference_groups")


def require_same_groups(folder: Path, run: Config, shown: str, names: Collection[str] = INPUTS) -> None:
    """Compare the groups of a configuration with those of the run that networks are from. The same groups in another
    order have as many columns, so the weights would fit and mean something else.

    Args:
        folder: of that run.
        run: what the networks are to be used with.
        shown: begins the message: the setting that names the run, and "does" or "do".
        names: of the settings to compare.

    Raises:
        ConfigError: a setting lists the same groups in another order; it is named.
    """
    saved = yaml_file.read(folder / config.FILE_NAME)
    for section in ("learner", "task"):
        settings = saved.get(section)
        for key, before in settings.items() if isinstance(settings, dict) else ():
            now = getattr(getattr(run, section), str(key), None)
            if key not in names or not isinstance(before, list) or not isinstance(now, list | tuple):
                continue
            before, now = [str(group) for group in before], [str(group) for group in now]
            if before != now and sorted(before) == sorted(now):
                raise ConfigError(
                    f"{shown} not fit this configuration: {section}.{key} were {', '.join(before)} and are now "
                    f"{', '.join(now)}; write [{','.join(before)}]"
                )
