"""What staleness costs and brings: the same training with policies that are 0, 1, 3, ... updates old.

    python scripts/measure_staleness.py                                       the table of docs/async.md
    python scripts/measure_staleness.py --iterations 1500 num_envs=1024       until it walks
    python scripts/measure_staleness.py --output runs/staleness --resume      goes on where it was stopped

K + 1 actors have all environments each, and an update takes one batch, so that nearly every batch is K updates old:
that is what is measured, not what a free choice would give. The time to walk is that of the first iteration from which
fewer than a tenth of the episodes of ten iterations end early and the velocity is wrong by less than 0.3 m/s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared import machine

from robolearn.training.metrics import read_metrics

ROWS = {
    "lag": "async/lag_mean",
    "largest": "async/lag_max",
    "importance variance": "loss/importance_variance",
    "effective samples": "loss/effective_sample_size",
    "KL to behaviour": "loss/behaviour_kl",
    "learner busy": "async/learner_busy",
    "actors busy": "async/actors_busy",
    "reward a step": "reward/total",
    "episode [s]": "episode/length",
}
"""Columns that are means of what an iteration logs, over the last quarter of a training."""
WINDOW = 10


def trained(folder: Path, staleness: int | None, words: list[str], resume: bool) -> list[dict[str, Any]]:
    """The log of a training with this staleness; None: synchronous."""
    name = "sync" if staleness is None else f"staleness{staleness}"
    run, mode = folder / name, []
    if staleness is not None:
        place = folder / f"{name}.yaml"
        content = {"staleness": staleness, "batches": 1, "actor": {"count": staleness + 1}}
        place.write_text(json.dumps(content), encoding="utf-8")
        mode = ["mode=async", f"placement={place}"]
    if resume and (run / "latest.pt").exists():
        wanted = next(word for word in words if word.startswith("max_iterations="))
        if read_metrics(run / "metrics.jsonl")[-1]["iteration"] >= int(wanted.partition("=")[2]):
            return read_metrics(run / "metrics.jsonl")
        mode, words = [], [f"resume={run}", wanted]
    else:
        shutil.rmtree(run, ignore_errors=True)
        words = [*words, f"output={run}"]
    command = [sys.executable, "-m", "robolearn.cli", "train", *words, *mode]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_metrics(run / "metrics.jsonl")


def walks(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The iteration from which it walks, None where it never does."""
    for i in range(WINDOW, len(rows) + 1):
        seen = rows[i - WINDOW : i]
        fall = sum(row.get("episode/fall_rate", 1.0) for row in seen) / WINDOW
        error = sum(row.get("metric/linear_velocity_error", 1.0) for row in seen) / WINDOW
        if fall < 0.1 and error < 0.3:
            return seen[0]
    return None


def line(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """A row of the table."""
    last, walking = rows[-max(1, len(rows) // 4) :], walks(rows)

    def mean(key: str) -> str:
        values = [row[key] for row in last if key in row]
        return f"{sum(values) / len(values):.3g}" if values else "-"

    # The first iterations wait for actors to start.
    begin = min(5, len(rows) - 1)
    steps = rows[-1]["steps"] - rows[begin - 1]["steps"] if begin else rows[-1]["steps"]
    seconds = rows[-1]["seconds"] - (rows[begin - 1]["seconds"] if begin else 0.0)
    until = "-" if walking is None else f"{walking['seconds'] / 60:.1f} min, {walking['steps'] / 1e6:.1f} M"
    return [name, *(mean(key) for key in ROWS.values()), f"{steps / seconds:.0f}", until]


def main() -> None:
    """Train, and print the table after each training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--staleness", default="0,1,3,5,10")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument(
        "--resume", action="store_true", help="keep what --output has; without it, its trainings are replaced"
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of all trainings")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    usual = [
        "task=humanoid_walk",
        "num_envs=256",
        f"max_iterations={args.iterations}",
        "checkpoint_interval=100",
    ]
    print(f"{machine(None)}\nrobolearn train {' '.join([*usual, *args.words])}\n")
    heads = ["staleness", *ROWS, "steps/s", "walks after"]
    print(f"| {' | '.join(heads)} |\n|{'|'.join('---' for _ in heads)}|", flush=True)
    for staleness in (None, *map(int, args.staleness.split(","))):
        rows = trained(args.output, staleness, [*usual, *args.words], args.resume)
        print(
            f"| {' | '.join(line('synchronous' if staleness is None else str(staleness), rows))} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
