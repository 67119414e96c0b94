"""Made-up run folders: curves whose numbers are worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robolearn import config
from robolearn.config import yaml_file


def settings(*words: str, seed: int = 1) -> dict[str, Any]:
    """The content of a config.yaml."""
    resolved = config.resolve(["task=cartpole_balance", f"seed={seed}", *words])
    folder_free = config.run_config.to_dict(resolved)
    folder_free["resume"] = folder_free["output"] = None
    return folder_free


def make_run(
    folder: Path, values: Sequence[float], *words: str, seed: int = 1, steps: int = 100, **more: Any
) -> Path:
    """A run with one iteration for each value of episode/return; `more` are other columns, one value for all rows."""
    folder.mkdir(parents=True)
    yaml_file.write(settings(*words, seed=seed), folder / "config.yaml")
    rows = []
    for i, value in enumerate(values, 1):
        row = {"iteration": i, "steps": steps * i, "seconds": 60.0 * i, "episode/return": value, **more}
        rows.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(rows))
    return folder
