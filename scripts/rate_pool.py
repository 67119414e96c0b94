"""Rates the checkpoints of trainings by games against a frozen pool of policies.

    robolearn train task=sumo seed=1 checkpoint_interval=50 output=runs/sumo1
    robolearn train task=sumo seed=2 checkpoint_interval=50 output=runs/sumo2
    python scripts/rate_pool.py runs/sumo1 runs/sumo2 --pool runs/sumo1 --members 6 --checkpoints 6 --games 40

The pool is `--members` policies of one training: the untrained one, which the training's own pool still has, and
checkpoints spread over it. They meet each other, and every checkpoint meets each of them, in both seats. Ratings are of
maximum likelihood on Elo's scale, with the untrained policy at 1000; intervals are 95 %, from the Fisher information.
A checkpoint that is in the pool is rated once, by all its games. Policies act by their means, or with `--explore` with
the noise that they learned with.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, RunFailed
from robolearn.files import replacing
from robolearn.learners import saved
from robolearn.learners.networks import deviation
from robolearn.learners.policy import Observations, Policy, PolicyRunner
from robolearn.learners.selfplay.rating import fit
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.simulation.games import both_seats, play
from robolearn.training.build import make_env
from robolearn.training.runs import open_run
from robolearn.training.train import set_threads

Player = tuple[str, int]
"""A run folder, and an iteration of it; 0 is the untrained policy."""


def spread(items: list[int], count: int) -> list[int]:
    """`count` of the items, evenly spread, with the last one; all, if there are no more."""
    if len(items) <= count:
        return items
    return [items[round((k + 1) * len(items) / count) - 1] for k in range(count)]


def iterations(run: str) -> list[int]:
    """The iterations of a run's checkpoints."""
    folder, _ = saved.find_run(run)
    found = sorted(int(path.stem.split("_")[1]) for path in (folder / "checkpoints").glob("iteration_*.pt"))
    if not found:
        raise ConfigError(f"{run} has no checkpoints/")
    return found


def policy_of(player: Player) -> PolicyRunner:
    """The policy of a player.

    Raises:
        ConfigError: its checkpoint cannot be read, or the training had no pool with the untrained one.
    """
    run, iteration = player
    folder, latest = saved.find_run(run)
    if iteration:
        return PolicyRunner(Policy.load(str(folder / "checkpoints" / f"iteration_{iteration:06d}.pt")))
    content = saved.load(latest, folder)
    kept = [m for m in content.get("self_play", {}).get("pool", []) if m["iteration"] == 0]
    if not kept:
        raise ConfigError(
            f"{run} keeps no untrained policy: train with learner.self_play, or choose another --pool"
        )
    weights = {f"actor.{name}": value for name, value in kept[0]["weights"].items()}
    entry = {"spec": content["policy"]["spec"], "state": weights}
    return PolicyRunner(Policy.from_checkpoint({"policy": entry}, run))


class Exploring:
    """A policy with its exploration noise."""

    def __init__(self, runner: PolicyRunner, seed: int) -> None:
        self.runner, self.std = runner, deviation(runner.policy.actor)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, observations: Observations) -> Tensor:
        """Actions (N, A) for observations by group."""
        mean = self.runner(observations)
        return mean + self.std * torch.randn(mean.shape, generator=self.generator)

    def reset(self, done: Tensor | None = None) -> None:
        """Reset the recurrent state."""
        self.runner.reset(done)


def rated(arguments: argparse.Namespace) -> dict[str, Any]:
    """The ratings of all players, and the games they are from."""
    pool = [(arguments.pool, 0)]
    pool += [(arguments.pool, i) for i in spread(iterations(arguments.pool), arguments.members - 1)]
    players = list(pool)
    for run in arguments.runs:
        for iteration in spread(iterations(run), arguments.checkpoints):
            if (run, iteration) not in players:
                players.append((run, iteration))
    fixed, others = list(range(len(pool))), list(range(len(pool), len(players)))
    pairs = both_seats(fixed) + both_seats(others, fixed)
    per_world = max(1, arguments.games // 2)
    found = open_run(arguments.runs[0], arguments.overrides)
    set_threads(found.config)
    policies: list[Any] = [policy_of(player) for player in players]
    if arguments.explore:
        policies = [Exploring(policy, seed) for seed, policy in enumerate(policies)]
    scores, games = np.zeros((2, len(players), len(players)))
    size = max(1, arguments.worlds)
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        env = make_env(found.config, len(some), NEVER_TRAINED)
        try:
            won, count = play(env, policies, some, per_world)
        finally:
            env.close()
        scores, games = scores + won, games + count
        print(
            f"{min(start + size, len(pairs))} of {len(pairs)} pairs have played", file=sys.stderr, flush=True
        )
    ratings = fit(scores, games)
    rows = []
    for k, (run, iteration) in enumerate(players):
        low, high = ratings.interval(k)
        against = [int(j) for j in fixed if j != k]
        rows.append(
            {
                "run": run,
                "iteration": iteration,
                "in_pool": k < len(pool),
                "rating": float(ratings.ratings[k]),
                "interval": [low, high],
                "score": float(scores[k, against].sum() / games[k, against].sum()),
                "games": int(games[k, against].sum()),
            }
        )
    return {"players": rows, "scores": scores.tolist(), "games": games.tolist(), "seed": found.config.seed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="run folders; KEY=VALUE changes a setting of the games")
    parser.add_argument("--pool", help="the run whose policies are the pool; the first one by default")
    parser.add_argument("--members", type=int, default=6, help="of the pool, the untrained policy among them")
    parser.add_argument("--checkpoints", type=int, default=6, help="of each run")
    parser.add_argument("--games", type=int, default=40, help="of each pair, half of them in either seat")
    parser.add_argument("--explore", action="store_true", help="act with exploration noise")
    parser.add_argument("--worlds", type=int, default=256, help="simulated at a time")
    parser.add_argument("--output", type=Path, help="JSON file of ratings, scores and games")
    arguments = parser.parse_intermixed_args()
    arguments.overrides = [word for word in arguments.runs if "=" in word and not Path(word).exists()]
    arguments.runs = [word for word in arguments.runs if word not in arguments.overrides]
    if not arguments.runs or arguments.members < 2 or min(arguments.checkpoints, arguments.games) < 1:
        parser.error(
            "name a run; the pool has two members at least, and there is a game and a checkpoint at least"
        )
    arguments.pool = arguments.pool or arguments.runs[0]
    torch.set_grad_enabled(False)
    try:
        found = rated(arguments)
    except (ConfigError, MissingError, RunFailed) as error:
        print(f"rate_pool: {error}", file=sys.stderr)
        return 2
    print("| run | iteration | rating | 95 % | score against the pool | games |\n|---|---|---|---|---|---|")
    for row in found["players"]:
        low, high = row["interval"]
        name = Path(row["run"]).name + (" (pool)" if row["in_pool"] else "")
        print(
            f"| {name} | {row['iteration']} | {row['rating']:.0f} | {low:.0f} to {high:.0f} | "
            f"{row['score']:.2f} | {row['games']} |"
        )
    if arguments.output:
        with replacing(arguments.output) as part:
            part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
