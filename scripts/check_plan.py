"""Compares `robolearn plan` with the run that it plans: steps per second, time, peak memory.

    python scripts/check_plan.py task=cartpole_balance
    python scripts/check_plan.py task=humanoid_walk num_envs=1024 max_iterations=200

Run it when nothing else runs; it prints the load before each part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch

from robolearn.commands.plan.measure import watched
from robolearn.training.metrics import read_metrics


def main(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "robolearn.cli"]
        print(f"load {os.getloadavg()[0]:.1f} before the plan", flush=True)
        output = ["--json", str(folder / "plan.json")]
        subprocess.run([*command, "plan", *words, *output], check=True, stdout=subprocess.DEVNULL)
        plan = json.loads((folder / "plan.json").read_text())["plan"]
        print(f"load {os.getloadavg()[0]:.1f} before the run", flush=True)
        train = [*command, "train", *words, f"output={folder / 'run'}"]
        done = watched(train, torch.device("cpu"), folder / "errors")
        rows = read_metrics(folder / "run" / "metrics.jsonl")
        print(f"load {os.getloadavg()[0]:.1f} after it")
    steps = rows[-1]["steps"] / sum(row["time/total"] for row in rows)
    late = rows[len(rows) // 2 :]
    late_steps = (late[-1]["steps"] - late[0]["steps"]) / sum(row["time/total"] for row in late[1:])
    print(f"{'':<28}{'predicted':>12}{'measured':>12}{'error':>9}")
    phases = {
        name: sum(row[f"time/{name}"] for row in rows) / len(rows) * 1e3
        for name in ("simulate", "infer", "learn")
    }
    for what, predicted, measured in (
        ("steps/s", plan["steps_per_second"], steps),
        ("steps/s of the second half", plan["steps_per_second"], late_steps),
        ("seconds", plan["seconds"], done.wall),
        ("memory [MB]", plan["memory"]["host"] / 1e6, done.host / 1e6),
        *((f"{k} [ms]", 1e3 * plan["iteration_seconds"][k], v) for k, v in phases.items()),
    ):
        print(f"{what:<28}{predicted:>12,.1f}{measured:>12,.1f}{100 * (predicted / measured - 1):>+7.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
