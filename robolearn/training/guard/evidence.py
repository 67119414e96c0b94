"""What the guard writes into RUN/guard/: each decision with its evidence, and what was suspicious before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.files import replacing
from robolearn.learners.learner import Learner
from robolearn.training import replay
from robolearn.training.guard.detectors import Finding
from robolearn.training.metrics import read_metrics, rewrite

FOLDER = "guard"
"""Folder of the guard in a run folder."""
DECISIONS = "decisions.json"
SUSPICIONS = "suspicions.jsonl"
SCHEMA = 1

Film = Callable[[Config, Learner, Path], None]
"""Writes a short video of a learner's policy to a file."""


def record_suspicions(folder: Path, iteration: int, findings: list[Finding]) -> None:
    """Append what was suspicious in an iteration, a line each."""
    with (folder / SUSPICIONS).open("a", encoding="utf-8") as file:
        for finding in findings:
            file.write(json.dumps({"iteration": iteration, **asdict(finding)}) + "\n")


def forget_after(folder: Path, iteration: int) -> None:
    """Drop what was noted after an iteration, from which the run goes on."""
    path = folder / SUSPICIONS
    if path.exists():
        rewrite(path, [row for row in read_metrics(path) if row["iteration"] <= iteration])


def write_decisions(folder: Path, decisions: list[dict[str, Any]]) -> None:
    """Write all decisions so far."""
    with replacing(folder / DECISIONS) as part:
        part.write_text(json.dumps({"schema": SCHEMA, "decisions": decisions}, indent=2), encoding="utf-8")


def keep_rows(run_folder: Path, path: Path, after: int) -> None:
    """Copy the rows of metrics.jsonl after an iteration, which the run will write anew."""
    rows = [row for row in read_metrics(run_folder / "metrics.jsonl") if row["iteration"] > after]
    rewrite(path, rows)


def record_scene(
    run: Config,
    env: LearnerEnv,
    learner: Learner,
    recorder: Recorder | None,
    stem: Path,
    why: str,
    film: Film | None,
) -> dict[str, str | None]:
    """Write what the robot did: `STEM.replay`, the last second of an environment in the training, and `STEM.mp4`, a
    film of the policy, where each is possible.

    Returns:
        Names of the files, and the reason why there is no video.
    """
    out: dict[str, str | None] = {"replay": None, "video": None, "no_video": None}
    if recorder is not None and isinstance(env, Env):
        file = stem.with_suffix(replay.SUFFIX)
        replay.write(file, recorder.dump(0), 0, run, why)
        out["replay"] = file.name
    if film is None or not run.guard.video:
        out["no_video"] = "guard.video=false" if film is not None else "nothing here makes videos"
        return out
    file = stem.with_suffix(".mp4")
    try:
        film(run, learner, file)
        out["video"] = file.name
    except (ConfigError, MissingError, RunFailed) as error:
        out["no_video"] = one_line(str(error), 200)
    return out
