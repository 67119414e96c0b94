"""How much of the simulator's speed reaches training: three rates side by side in one run.

    python scripts/benchmark.py task=humanoid_walk num_envs=4096

raw        the backend alone: the run's own recorded targets, pushes, resets and parameters, replayed
env        the environment with inference: terms, resets, observations, actions
training   everything, with learning

Every round measures the three one after the other from the same state, so that a machine whose speed
drifts, drifts for all three. Medians over the rounds; the ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch

from robolearn import config
from robolearn.env import Env, make_env
from robolearn.learners.ppo import PPO
from robolearn.metrics import PHASES
from robolearn.rollout import collect
from robolearn.train import make_learner, set_threads

CALLS = ("step", "reset", "push", "set_params")


class Recorder:
    """Stands between Env and backend and remembers all that is asked of it."""

    def __init__(self, env: Env) -> None:
        self.env, self.calls = env, []
        self.real = {name: getattr(env.backend, name) for name in CALLS}

    def __enter__(self) -> Recorder:
        for name, function in self.real.items():
            setattr(self.env.backend, name, self._recording(function))
        return self

    def _recording(self, function):
        def record(first, second):
            self.calls.append((function, (first.clone(), second)))
            function(first, second)

        return record

    def __exit__(self, *error: object) -> None:
        for name in CALLS:
            delattr(self.env.backend, name)

    def replay(self) -> float:
        """Seconds for the backend to do it all again."""
        began = time.perf_counter()
        for function, arguments in self.calls:
            function(*arguments)
        return time.perf_counter() - began


def measure(env: Env, learner: PPO) -> dict[str, float]:
    """Steps a second of one round, and the phases of its training iteration."""
    start, noise = env.snapshot(), learner.random.get_state()

    def rewind() -> None:
        env.restore(start)
        learner.random.set_state(noise)

    with Recorder(env) as recorder:
        collect(env, learner.batch, learner._act, learner.timers)
    rewind()
    raw = recorder.replay()
    rewind()
    began = time.perf_counter()
    collect(env, learner.batch, learner._act, learner.timers)
    collecting = time.perf_counter() - began
    rewind()
    report = learner.iterate(env)
    steps, total = report.steps, report.seconds["total"]
    out = {"raw": steps / raw, "env": steps / collecting, "training": steps / total}
    phases = {name: report.seconds[name] / total for name in (*PHASES, "other")}
    # What perfect overlap of simulating and learning could give at most.
    busiest = max(report.seconds["simulate"] + report.seconds["infer"], report.seconds["learn"])
    return out | {
        "env / raw": raw / collecting,
        "training / raw": raw / total,
        "overlap ceiling": total / busiest,
        **phases,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", default=["task=humanoid_walk"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=3, help="training iterations before the first round")
    parser.add_argument("--json", type=Path, help="write the medians here too")
    arguments = parser.parse_args()
    run = config.resolve(arguments.overrides)
    set_threads(run)
    env = make_env(run)
    learner = make_learner(run, env)
    for _ in range(arguments.warmup):
        learner.iterate(env)
    rounds = [measure(env, learner) for _ in range(arguments.rounds)]
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    print(
        f"{run.task_name}, {run.num_envs} environments, {env.substeps} substeps of "
        f"{env.backend.capabilities.timestep:g} s, {cpu}, {len(os.sched_getaffinity(0))} cores, "
        f"{torch.get_num_threads()} torch threads, {learner.precision}, medians of {len(rounds)} rounds"
    )
    for name in ("raw", "env", "training"):
        low, high = min(r[name] for r in rounds), max(r[name] for r in rounds)
        print(f"  {name:<18}{medians[name]:>10,.0f} steps/s   ({low:,.0f} to {high:,.0f})")
    for name in ("env / raw", "training / raw", "overlap ceiling"):
        print(f"  {name:<18}{medians[name]:>10.3f}")
    print(
        "  training's time:  "
        + "  ".join(f"{name} {100 * medians[name]:.1f} %" for name in (*PHASES, "other"))
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"command": arguments.overrides, "cpu": cpu, **medians}, indent=1) + "\n"
        )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
