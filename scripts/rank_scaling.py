"""How training scales from 1 to 16 ranks, with the time of simulating and learning made by delays.

    python scripts/rank_scaling.py
    python scripts/rank_scaling.py --task humanoid_walk --envs 4096 --ranks 1,2,4,8,16

A short real training with ranks=1 measures how long an iteration simulates and learns. Then real ranks train a cartpole
that sleeps its share of these times, with a network of about as many weights: what they exchange, and how often, is
real. So each rank has a machine of its own, as it were, though all exchanges still pass through the processors of this
one. Beside it stands the model of `robolearn plan`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from robolearn.commands.plan.formulas import VALUE, Link, sum_seconds
from robolearn.commands.plan.network import measure
from robolearn.training.metrics import read_metrics

STEPS, ENVS, SHARDS = 4, 64, 16
"""Of the cartpole: steps of a batch, environments, shards."""
SKIPPED = 4
"""First iterations, which are not counted."""
WEIGHTS = 210_000
"""Weights of actor and critic with 320 and 320 units, as many as those of a humanoid and its critic, about."""


def trained(folder: Path, *words: str, **environment: str) -> list[dict[str, Any]]:
    """The logged iterations of a training, without the first ones."""
    command = [sys.executable, "-m", "robolearn.cli", "train", *words, f"output={folder}"]
    env = {**os.environ, **environment}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    return read_metrics(folder / "metrics.jsonl")[SKIPPED:]


def middle(rows: list[dict[str, Any]], name: str) -> float:
    """Median of a column."""
    return median(float(row[name]) for row in rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="humanoid_walk")
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--iterations", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = (f"task={args.task}", f"num_envs={args.envs}", "ranks=1", "max_iterations=12")
        real = trained(folder / "real", *words)
        simulate = middle(real, "time/simulate") + middle(real, "time/infer")
        learn = middle(real, "time/learn")
        steps = middle(real, "loss/gradient_steps")
        network = measure()
        link = Link(network.latency, network.bandwidth)
        print(
            f"{args.task} {args.envs}: simulates {simulate:.3f} s, learns {learn:.3f} s, {steps:.0f} gradient steps; "
            f"between two processes here {1e6 * network.latency:.0f} us, {8e-9 * network.bandwidth:.1f} Gb/s"
        )
        print("ranks  iteration  speed-up  efficiency  model  waiting")
        small = [
            f"num_envs={ENVS}",
            f"shards={SHARDS}",
            f"learner.num_steps={STEPS}",
            "checkpoint_interval=1000",
        ]
        # One minibatch an epoch: as many gradient steps as the real training took.
        small += [
            f"learner.num_epochs={steps:.0f}",
            "learner.max_kl=1000",
            "torch_threads=1",
            "backend.threads=1",
        ]
        small += [f"learner.{which}_hidden=[320,320]" for which in ("actor", "critic")]
        here, alone, model_alone = Path(__file__).resolve().with_name("delays.py"), 0.0, 0.0
        for ranks in map(int, args.ranks.split(",")):
            part = -(-SHARDS // ranks) / SHARDS  # of the rank with most shards
            rows = trained(
                folder / f"ranks{ranks}",
                *(f"task={here}:SlowTask", f"learner={here}:SlowPPO", *small),
                *(f"ranks={ranks}", f"max_iterations={args.iterations + SKIPPED}"),
                SIMULATE=str(simulate * part / STEPS),
                LEARN=str(learn * part),
            )
            took = middle(rows, "time/total")
            model = (simulate + learn) * part + steps * sum_seconds(ranks, VALUE * WEIGHTS, link, SHARDS)
            alone, model_alone = alone or took, model_alone or model
            waited = middle(rows, "rank0/waiting") / took if ranks > 1 else 0.0
            print(
                f"{ranks:5}  {took:7.3f} s  {alone / took:8.2f}  {alone / took / ranks:10.0%}  "
                f"{model_alone / model / ranks:5.0%}  {waited:7.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
