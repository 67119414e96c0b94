"""What the runs of a sweep start from and learn from: looked up before anything starts, and not read."""

from __future__ import annotations

from collections.abc import Iterator

from robolearn.config.run_config import Config
from robolearn.errors import ConfigError, quote
from robolearn.learners import saved
from robolearn.learners.demonstrations.reading import found
from robolearn.learners.preference.folder import Preferences

RUNS = ("reference", "teacher")
"""Settings of RoboLearn's learners that name a run."""


def require(run: Config) -> None:
    """Check that the runs, recordings and preferences that a configuration names exist.

    Raises:
        ConfigError: one does not; names the setting.
    """
    for setting, name in _runs(run):
        try:
            saved.find_run(name)
        except ConfigError as error:
            raise ConfigError(f"{setting}={quote(name, 120)}: {error}") from error
    if not _is_ours(run):
        return
    for path in found(getattr(run.learner, "paths", ())):
        if not path.exists():
            raise ConfigError(f"learner.demonstrations={quote(str(path), 120)}: there is no such file")
    folder = getattr(run.learner, "preferences", None)
    # With a script the folder is made by the training.
    if folder is not None and getattr(run.learner, "preference_script", None) is None:
        Preferences(folder)


def _runs(run: Config) -> Iterator[tuple[str, str]]:
    """The settings that name a run, and its name."""
    if run.weights is not None:
        yield "weights", run.weights
    for setting in RUNS if _is_ours(run) else ():
        name = getattr(run.learner, setting, None)
        if name is not None:
            yield f"learner.{setting}", name


def _is_ours(run: Config) -> bool:
    """Whether the learner is one of RoboLearn's: what the settings of others name is theirs to say."""
    return type(run.learner).__module__.startswith("robolearn.")
