"""Plots the curves of a run from its metrics.jsonl into one picture.

python scripts/plot_run.py RUN curves.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from robolearn.config import yaml_file
from robolearn.training.metrics import read_metrics

CURVES = {
    "reward/total": "reward a step",
    "episode/length": "episode length [s]",
    "episode/fall_rate": "share of episodes that end early",
    "metric/linear_velocity_error": "velocity error [m/s]",
    "metric/yaw_rate_error": "yaw rate error [rad/s]",
    "steps_per_second": "steps/s, learning included",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    rows = read_metrics(arguments.run / "metrics.jsonl")
    cfg = yaml_file.read(arguments.run / "config.yaml")
    names = [name for name in CURVES if any(name in row for row in rows)]
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), sharex=True)
    for axis, name in zip(axes.flat, names, strict=False):
        points = [(row["seconds"] / 60, row[name]) for row in rows if name in row]
        axis.plot(*zip(*points, strict=True), color="#d9541e", linewidth=1.6)
        axis.set_title(CURVES[name], fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=min(0.0, *(y for _, y in points)))
    for axis in axes[-1]:
        axis.set_xlabel("minutes of training")
    last = rows[-1]
    figure.suptitle(
        f"{cfg['task']['name']}, {cfg['num_envs']} environments on backend={cfg['backend']['name']}, "
        f"seed {cfg['seed']}: {last['steps'] / 1e6:.1f} million steps in {last['seconds'] / 60:.1f} minutes",
        fontsize=11,
    )
    figure.tight_layout()
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.picture, dpi=110)


if __name__ == "__main__":
    main()
