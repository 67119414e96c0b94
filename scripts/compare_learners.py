"""Compares learners: environment steps and wall time until a task is solved, over seeds, as a picture and a table.

    python scripts/compare_learners.py task=cartpole_swingup --metric upright --solved 0.7 \\
      --seeds 5 --picture docs/images/cartpole_swingup_learners.png
    python scripts/compare_learners.py task=hopper_run --metric forward_speed --solved 3 --survival 0.9 \\
      --seeds 3 --picture docs/images/hopper_run_learners.png

Each run is the command `robolearn train task=... learner=... seed=...` in a separate process, one after the other.
About every half second of training the deterministic policy is evaluated over 64 whole episodes on the backend
`--judge`, the same for all learners; evaluation and start-up (compiling kernels) are not counted. A run has solved the
task at the first of two consecutive evaluations in which the metric is at least `--solved` and at least a share
`--survival` of the episodes do not end early. A run ends a few evaluations later, after `max_iterations`, or after
`--minutes` of training.

`--with ppo:learner.gamma=0.98` is a setting of one learner. Other words are settings of all learners.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

COLOURS = ("#d1495b", "#2e6f95", "#66a182", "#8d6a9f")


def train_one(
    task: list[str],
    learner: str,
    seed: int,
    judge: str,
    metric: str,
    minutes: float,
    solved: float,
    survival: float,
) -> dict[str, Any]:
    """One run: evaluations as [steps, seconds, metric, survival, return], and steps and seconds until solved."""
    import torch

    from robolearn import config
    from robolearn.simulation.episodes import NEVER_TRAINED, tally
    from robolearn.training.build import make_env
    from robolearn.training.train import make_learner, set_threads

    cfg = config.resolve([*task, f"learner={learner}", f"seed={seed}"])
    set_threads(cfg)
    env = make_env(cfg)
    judge_cfg = config.resolve([*task, f"learner={learner}", f"backend={judge}", f"seed={seed}"])
    judge_env = make_env(judge_cfg, num_envs=64, rank=NEVER_TRAINED)
    trained = make_learner(cfg, env)
    evaluations: list[list[float]] = []
    steps, seconds, due, since = 0, 0.0, 0.0, 0
    for _ in range(cfg.max_iterations):
        if seconds >= 60 * minutes or since >= 5:
            break
        report = trained.iterate(env)
        steps, seconds = steps + report.steps, seconds + report.seconds["total"]
        if seconds < due:
            continue
        due = seconds + max(0.5, 0.02 * seconds)
        with torch.no_grad():
            counted = tally(judge_env, trained.policy)
        survived = float(counted.survived.double().mean())
        evaluations.append(
            [steps, seconds, counted.metrics[metric] or 0.0, survived, float(counted.returns.mean())]
        )
        since += bool(since) or first_solved(evaluations, solved, survival) is not None
    found = first_solved(evaluations, solved, survival)
    backend = type(env.backend).__name__
    env.close()
    judge_env.close()
    return {"learner": learner, "seed": seed, "backend": backend, "looks": evaluations, "solved": found}


def first_solved(evaluations: list[list[float]], solved: float, survival: float) -> list[float] | None:
    """Steps and seconds of the first of two consecutive evaluations that reach `solved` and `survival`."""
    for a, b in pairwise(evaluations):
        if all(e[2] >= solved and e[3] >= survival for e in (a, b)):
            return a[:2]
    return None


def spread(values: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(values):,.3g} ({min(values):,.3g} to {max(values):,.3g})"


def table(runs: list[dict[str, Any]], learners: list[str]) -> str:
    """A Markdown table with one row per learner."""
    lines = [
        "| learner | solved | thousand steps, median (spread) | seconds, median (spread) |",
        "|---|---|---|---|",
    ]
    for learner in learners:
        found = [r["solved"] for r in runs if r["learner"] == learner]
        done = [f for f in found if f]
        cells = [spread([f[0] / 1000 for f in done]), spread([f[1] for f in done])] if done else ["-", "-"]
        lines.append(f"| {learner} | {len(done)} of {len(found)} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def picture(
    path: Path, runs: list[dict[str, Any]], learners: list[str], arguments: argparse.Namespace
) -> None:
    """Plot the metric over steps and over seconds, one line per run."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for column, (axis, name) in enumerate(
        zip(axes, ("environment steps", "seconds of training"), strict=True)
    ):
        for learner, colour in zip(learners, COLOURS, strict=False):
            for k, run in enumerate(r for r in runs if r["learner"] == learner):
                evaluations = run["looks"]
                label = f"learner={learner}" if k == 0 else None
                axis.plot(
                    [x[column] for x in evaluations],
                    [x[2] for x in evaluations],
                    color=colour,
                    lw=1.4,
                    alpha=0.75,
                    label=label,
                )
            done = [r["solved"][column] for r in runs if r["learner"] == learner and r["solved"]]
            if done:
                axis.axvline(statistics.median(done), color=colour, ls="--", lw=1)
        axis.axhline(arguments.solved, color="0.4", lw=0.8, ls=":")
        axis.set_xscale("log")
        axis.set_xlabel(name)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(f"{arguments.metric} on {arguments.judge}")
    axes[0].legend(frameon=False)
    task = next((w.partition("=")[2] for w in arguments.words if w.startswith("task=")), "")
    figure.suptitle(
        f"{task}: solved at {arguments.metric} >= {arguments.solved:g} (dashed: median)", fontsize=11
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE")
    parser.add_argument("--learners", default="shac,ppo")
    parser.add_argument("--with", dest="extra", action="append", default=[], metavar="LEARNER:KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--metric", required=True)
    parser.add_argument("--solved", type=float, required=True)
    parser.add_argument(
        "--survival", type=float, default=0.0, help="share of episodes that must not end early"
    )
    parser.add_argument("--judge", default="mujoco", help="backend of the evaluations")
    parser.add_argument("--minutes", type=float, default=5.0, help="longest training of a run")
    parser.add_argument("--picture", type=Path)
    parser.add_argument(
        "--json", type=Path, help="file of all measurements; runs that it has are not repeated"
    )
    parser.add_argument("--one", nargs=2, metavar=("LEARNER", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    learners = arguments.learners.split(",")
    if arguments.one:
        learner, seed = arguments.one
        extra = [w.partition(":")[2] for w in arguments.extra if w.partition(":")[0] == learner]
        words = [*arguments.words, *extra]
        found = train_one(
            words,
            learner,
            int(seed),
            arguments.judge,
            arguments.metric,
            arguments.minutes,
            arguments.solved,
            arguments.survival,
        )
        print(json.dumps(found))
        return
    runs: list[dict[str, Any]] = []
    if arguments.json and arguments.json.exists():
        before = json.loads(arguments.json.read_text(encoding="utf-8"))
        if before["words"] != arguments.words + arguments.extra:
            raise SystemExit(f"--json {arguments.json} has runs of {before['words']}; choose another file")
        runs = before["runs"]
    for seed in range(1, arguments.seeds + 1):
        for learner in learners:  # in turns, so that a drift of the machine's speed affects all learners
            if any(r["learner"] == learner and r["seed"] == seed for r in runs):
                continue
            command = [sys.executable, __file__, *sys.argv[1:], "--one", learner, str(seed)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{learner} seed {seed}: solved at {runs[-1]['solved']}", file=sys.stderr, flush=True)
            if arguments.json:
                cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
                machine = f"{platform.processor() or platform.machine()}, {cores} cores"
                content = {"words": arguments.words + arguments.extra, "machine": machine, "runs": runs}
                arguments.json.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(table(runs, learners))
    if arguments.picture:
        picture(arguments.picture, runs, learners, arguments)


if __name__ == "__main__":
    main()
