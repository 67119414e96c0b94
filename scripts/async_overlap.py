"""How much of the possible overlap mode=async reaches, with simulation and learning of a known length.

    python scripts/async_overlap.py
    python scripts/async_overlap.py --simulate 0.6 --learn 0.4 --staleness 0,1,3 --engine ray

Both sleep, so the result does not depend on how many cores the machine has. A task whose steps sleep and a learner that
sleeps before it learns are added to cartpole; a synchronous training and asynchronous ones are run, each in a process
of its own, and the time of an iteration is compared after the first few.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from robolearn.training.metrics import read_metrics

STEPS = 10
"""Steps of a batch."""
SKIPPED = 5
"""First iterations, which are not counted: actors start, and nothing is ahead yet."""


def seconds_of(
    folder: Path, name: str, iterations: int, args: argparse.Namespace, *words: str
) -> list[dict[str, Any]]:
    """The logged iterations of a training."""
    here = Path(__file__).resolve().with_name("delays.py")
    small = ["num_envs=8", f"learner.num_steps={STEPS}", "learner.num_epochs=1", "checkpoint_interval=1000"]
    command = [
        sys.executable,
        "-m",
        "robolearn.cli",
        "train",
        f"task={here}:SlowTask",
        f"learner={here}:SlowPPO",
    ]
    env = {**os.environ, "SIMULATE": str(args.simulate / STEPS), "LEARN": str(args.learn)}
    run = [*small, f"max_iterations={iterations}", f"output={folder / name}", *words]
    subprocess.run([*command, *run], check=True, env=env, stdout=subprocess.DEVNULL)
    return read_metrics(folder / name / "metrics.jsonl")


def an_iteration(rows: list[dict[str, Any]]) -> float:
    """Mean time of an iteration [s]."""
    return float(rows[-1]["seconds"] - rows[SKIPPED - 1]["seconds"]) / (len(rows) - SKIPPED)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", type=float, default=0.6, help="time of a batch [s]")
    parser.add_argument("--learn", type=float, default=0.4, help="time of an update [s]")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--staleness", default="0,1,3")
    parser.add_argument("--engine", default="local", choices=("local", "ray"))
    args = parser.parse_args()
    possible = (args.simulate + args.learn) / max(args.simulate, args.learn)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = an_iteration(seconds_of(folder, "sync", args.iterations, args))
        print(f"synchronous: {alone:.3f} s an iteration; possible with overlap: {possible:.2f} times as fast")
        for staleness in map(int, args.staleness.split(",")):
            place = folder / f"place{staleness}.yaml"
            placement = {"engine": args.engine, "staleness": staleness, "actor": {"count": 1}}
            place.write_text(json.dumps(placement), encoding="utf-8")
            words = ("mode=async", f"placement={place}")
            rows = seconds_of(folder, f"async{staleness}", args.iterations, args, *words)
            took, counted = an_iteration(rows), rows[SKIPPED:]
            learner, actor = (
                sum(r[f"async/{k}"] for r in counted) / len(counted) for k in ("learner_busy", "actors_busy")
            )
            print(
                f"staleness {staleness}: {took:.3f} s an iteration, {alone / took:.2f} times as fast; largest lag "
                f"{max(row['async/lag_max'] for row in rows):.0f}; busy: learner {learner:.0%}, actor {actor:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
