"""sweep.json: what a sweep consists of and how far it is, written atomically at every change of a run's status.

runs/sweeps/cartpole_balance/2026-01-31_12-00-00/
  sweep.json            this file
  gamma-0.97_seed-1/    a run's folder, as `robolearn train` writes it, and train.log with its output
  table.csv             the table of runs; groups.csv: means over seeds
  compare.html          the page of `robolearn report --compare`
  study.journal         of a search: Optuna's trials
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robolearn import __version__
from robolearn.errors import ConfigError, quote
from robolearn.files import replacing

FILE_NAME = "sweep.json"
SCHEMA = 1
"""Version of the file's layout."""

WAITING, RUNNING, FINISHED, FAILED, STOPPED, PRUNED = (
    "waiting",
    "running",
    "finished",
    "failed",
    "stopped",
    "pruned",
)
STATUSES = (WAITING, RUNNING, FINISHED, FAILED, STOPPED, PRUNED)

DIRECTIONS, PRUNERS = ("maximize", "minimize"), ("median", "asha", "none")
"""What a search may be for, and what may end trials that fall behind; the first of each is usual."""


@dataclass
class RunState:
    """One run of a sweep."""

    name: str
    """Name of its folder."""
    settings: dict[str, str]
    """The settings that vary, as text in Hydra's grammar."""
    iterations: int
    """`max_iterations` of the run."""
    status: str = WAITING
    error: str = ""
    """The last line of a failed run's output."""
    exit_code: int | None = None
    trial: int | None = None
    """Of a search: number of Optuna's newest trial with these settings."""
    value: float | None = None
    """Of a search: the metric at the end of the run."""


@dataclass
class SearchSettings:
    """How a search is made."""

    trials: int
    metric: str
    direction: str
    pruner: str
    seed: int


@dataclass
class Sweep:
    """A sweep on disk."""

    folder: Path
    words: list[str]
    """The settings as the user wrote them."""
    jobs: int = 0
    """Runs at once on this machine; 0: it was not chosen."""
    threads: int = 1
    """Threads of each run."""
    own_threads: list[str] = field(default_factory=list)
    """The settings of threads that are added to each run."""
    last: int = 0
    """Number of iterations that the metrics at the end are means of; 0: the last tenth."""
    columns: list[str] = field(default_factory=list)
    """Columns of the table; empty: the usual ones."""
    search: SearchSettings | None = None
    runs: list[RunState] = field(default_factory=list)

    def save(self) -> None:
        """Write sweep.json."""
        content = {"schema": SCHEMA, "robolearn": __version__, **dataclasses.asdict(self)}
        content.pop("folder")
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        with replacing(self.folder / FILE_NAME) as part:
            part.write_text(text, encoding="utf-8")

    def path(self, run: RunState) -> Path:
        """Folder of a run."""
        return self.folder / run.name

    def count(self, *statuses: str) -> int:
        """Number of runs with one of these statuses."""
        return sum(run.status in statuses for run in self.runs)


def exists(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / FILE_NAME).is_file()


def load(folder: Path) -> Sweep:
    """Read a sweep.

    Raises:
        ConfigError: there is none, or its file is damaged or of another version.
    """
    path = folder / FILE_NAME
    shown = quote(str(path), 120)
    if not path.is_file():
        what = "is a run, not a sweep" if (folder / "config.yaml").is_file() else f"has no {FILE_NAME}"
        if not folder.exists():
            what = "does not exist"
        raise ConfigError(f"{quote(str(folder), 120)} {what}; resume=DIR names the folder of a sweep")
    try:
        content = json.loads(path.read_bytes())
        schema = content.pop("schema")
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        raise ConfigError(f"{shown} is damaged: it is no sweep") from None
    if schema != SCHEMA:
        raise ConfigError(f"{shown} has schema {schema}, and this version of RoboLearn reads schema {SCHEMA}")
    try:
        content.pop("robolearn")
        search = content.pop("search")
        runs = [RunState(**run) for run in content.pop("runs")]
        sweep = Sweep(folder, **content, runs=runs, search=SearchSettings(**search) if search else None)
        _check(sweep)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigError(f"{shown} is damaged: {error}") from None
    return sweep


def _check(sweep: Sweep) -> None:
    """Raise ValueError where a value cannot be right: the file may have been edited."""

    def whole(value: Any, least: int = 0) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    for name, least in (("threads", 1), ("jobs", 0), ("last", 0)):
        if not whole(getattr(sweep, name), least):
            raise ValueError(f"{name} is a number of at least {least}")

    def texts(values: Any) -> bool:
        return isinstance(values, list) and all(isinstance(value, str) for value in values)

    if not (texts(sweep.words) and texts(sweep.own_threads) and texts(sweep.columns)):
        raise ValueError("words, own_threads and columns are lists of texts")
    for run in sweep.runs:
        if not isinstance(run.name, str) or not re.fullmatch(r"\w[\w.+-]*", run.name):
            raise ValueError(f"{quote(run.name)} is no name of a run's folder")
        if run.status not in STATUSES or not isinstance(run.iterations, int):
            raise ValueError(f"the status or iterations of {quote(run.name)}")
        if not all(isinstance(value, str) for value in run.settings.values()):
            raise ValueError(f"the settings of {quote(run.name)}")
        numbers = (run.exit_code, run.trial)
        if not all(number is None or isinstance(number, int) for number in numbers):
            raise ValueError(f"the exit_code or trial of {quote(run.name)}")
        if not isinstance(run.error, str) or not isinstance(run.value, (int, float, type(None))):
            raise ValueError(f"the error or value of {quote(run.name)}")
    of = sweep.search
    if of is None:
        return
    if not whole(of.trials, 1) or not whole(of.seed):
        raise ValueError("trials and seed of the search are numbers")
    if not isinstance(of.metric, str):
        raise ValueError("the metric of the search is the name of a column")
    for name, valid in (("direction", DIRECTIONS), ("pruner", PRUNERS)):
        if getattr(of, name) not in valid:
            raise ValueError(f"the {name} of the search is one of {', '.join(valid)}")
