"""What the launcher of a run tells its ranks, and what both ways of starting them again have in common."""

from __future__ import annotations

import os
from pathlib import Path

from robolearn.errors import RunFailed

FOLDER = "ROBOLEARN_RUN_FOLDER"
"""Environment variable with the run folder that the launcher has chosen and locked."""
RESTARTS = 5
"""How many times ranks are started again without any iteration between."""
FINAL = (1, 2, 3, 4, 70, 130)
"""Exit codes of a rank that another start would not change."""
GRACE_S = 5
"""Time that ranks have to end after one of them was lost, before they are killed [s]."""


def launched_folder() -> Path | None:
    """The run folder that a launcher has chosen for this process; None where none started it."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder else None


def started_by_launcher() -> bool:
    """Whether `launch` has started this process."""
    return FOLDER in os.environ


def lost_again(folder: Path, ranks: int) -> RunFailed:
    """The error of a run whose ranks are lost whenever they start."""
    return RunFailed(
        f"the ranks were lost {RESTARTS + 1} times in a row, with no iteration completed in between; go on from the "
        f"last checkpoint: robolearn train resume={folder} ranks={ranks}"
    )


def newest_copy() -> int:
    """The newest iteration of which there is a copy of any rank; -1 without one."""
    from robolearn.training.ranks.copies import RUN, memory_folder

    files = memory_folder(os.environ[RUN]).glob("shards_*.pt")
    return max((int(path.stem.rpartition("_")[2]) for path in files), default=-1)
