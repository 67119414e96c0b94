"""Measures how well a policy climbs: the share of tries on stairs, slopes and rough ground that succeed.

    python scripts/climbing.py RUN                        each obstacle with its share; exit code 1 where one is too low
    python scripts/climbing.py RUN --episodes 512 --json climbing.json
    python scripts/climbing.py RUN --only 'stairs up' --only 'slope up, 20'
    python scripts/climbing.py pretrained:humanoid_walk --set task=humanoid_rough --set task.history.policy=1
                                                          a policy that never saw any, without a history

RUN is a run folder, a checkpoint or pretrained:NAME. In a try a robot stands in the middle of a tile, faces the
obstacle and is told to walk straight at it. It succeeds when it is 4 m further: beyond the last step, at the end of
the slope, without a fall and in time. Policies act by their mean, without pushes and under nominal physics, with seeds
that training never uses.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch
from shared import in_folder
from walking import NOMINAL, count, unrandomized

from robolearn.core.env import Env
from robolearn.envs.state import InitialState, Tensor
from robolearn.envs.terrain.kinds import KINDS
from robolearn.errors import ConfigError, MissingError, quote
from robolearn.simulation.episodes import NEVER_TRAINED, tally
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run
from robolearn.training.train import set_threads

DISTANCE = 4.0
"""From the middle of a tile to its end [m]."""
SECONDS = 2.0
"""Time for a try, as a multiple of what it takes at the commanded speed."""
SETTINGS = [
    *NOMINAL,
    "task.commands.sideways=[0,0]",
    "task.commands.yaw=[-0.5,0.5]",
    "task.commands.heading=1",
    "task.commands.heading_range=[0,0]",
    "task.commands.standing=0",
    "task.commands.seconds=[100,100]",
    "task.moving_starts=0",
    "task.terrain.rows=1",
    "task.terrain.columns=8",
    "task.terrain.start_level=0",
    f"task.terrain.size={2 * DISTANCE:g}",
    "task.terrain.ends=true",
]
"""Straight ahead, which is where the robot faces, on eight tiles alike."""


@dataclass(frozen=True)
class Obstacle:
    """One kind of ground, and the share of tries that should succeed on it; None: no such bound."""

    name: str
    kind: str
    setting: str
    value: float
    least: float | None = None

    @property
    def overrides(self) -> list[str]:
        """Settings of a terrain of it alone: dictionaries are merged, and the run may have stated other kinds."""
        shares = ", ".join(f"{kind}: {int(kind == self.kind)}" for kind in KINDS)
        return [
            f"task.terrain.kinds={{{shares}}}",
            f"task.terrain.{self.setting}=[{self.value:g},{self.value:g}]",
        ]


OBSTACLES = (
    Obstacle("level ground", "rough", "roughness", 0.0),
    Obstacle("bumps of 5 cm", "rough", "roughness", 0.05),
    *(
        Obstacle(f"stairs {way}, {100 * height:g} cm", f"stairs_{way}", "step_height", height, least)
        for way in ("up", "down")
        for height, least in ((0.05, 0.8), (0.10, 0.8), (0.15, None))
    ),
    *(
        Obstacle(f"slope {way}, {angle:g} degrees", f"slope_{way}", "slope", angle, 0.8)
        for way in ("up", "down")
        for angle in (10.0, 20.0)
    ),
)


class Tries:
    """Counts in which environments the first episode ends at the far end of the tile."""

    def __init__(self, env: Env) -> None:
        self.succeeded = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._ended = torch.zeros_like(self.succeeded)
        env.watch = self._look

    def _look(self, env: Env) -> None:
        outcome = env.state.outcome
        there = env.backend.state.robot.base_pos[:, 0] > DISTANCE
        first = outcome["done"] & ~self._ended
        self.succeeded |= first & there & ~outcome["terminated"]
        self._ended |= first


def ahead(task: Any) -> None:
    """Let the robots of a task start facing along x."""
    before = task.initial_state

    def start(num_envs: int, ctx: Any, random: Any) -> InitialState:
        initial: InitialState = before(num_envs, ctx, random)
        level: Tensor = torch.zeros_like(initial.base_quat)
        level[:, 0] = 1.0
        initial.base_quat = level
        return initial

    task.initial_state = start


def share(run: str, obstacle: Obstacle, extra: list[str], episodes: int, speed: float) -> dict[str, Any]:
    """The share of tries on an obstacle that succeed, and of those in which the robot falls."""
    seconds = SECONDS * DISTANCE / speed
    command = [f"task.commands.forward=[{speed:g},{speed:g}]", f"task.episode_length_s={seconds:g}"]
    task = [item for item in extra if item.startswith("task=")]
    others = [e for e in extra if e not in task]
    found = open_run(
        run, [*task, *unrandomized(run, extra), *SETTINGS, *command, *obstacle.overrides, *others]
    )
    set_threads(found.config)
    ahead(found.config.task)
    env = make_env(found.config, num_envs=episodes, rank=NEVER_TRAINED)
    try:
        tries = Tries(env)
        counted = tally(env, load_policy(found))
    finally:
        env.close()
    fell = ~counted.survived
    return {
        "succeeded": float(tries.succeeded.float().mean()),
        "fell": float(fell.double().mean()),
        "seconds": float(counted.steps.double().mean()) * env.dt,
    }


def chosen(only: list[str]) -> list[Obstacle]:
    """The obstacles in whose names one of these stands; all where there is none.

    Raises:
        ConfigError: one stands in no name.
    """
    for text in only:
        if not any(text in each.name for each in OBSTACLES):
            names = "; ".join(each.name for each in OBSTACLES)
            raise ConfigError(f"--only {quote(text)} is part of no obstacle's name (valid: {names})")
    return [each for each in OBSTACLES if not only or any(text in each.name for text in only)]


def climb(
    run: str, extra: list[str], episodes: int, speed: float, obstacles: list[Obstacle]
) -> dict[str, dict[str, Any]]:
    """Measure and print obstacles."""
    out = {}
    print(f"{run}: {episodes} tries each at {speed:g} m/s")
    for obstacle in obstacles:
        one = out[obstacle.name] = share(run, obstacle, extra, episodes, speed)
        bound = "" if obstacle.least is None else f" (at least {100 * obstacle.least:.0f} %)"
        mark = "ok  " if passes(obstacle, one) else "FAIL"
        print(
            f"  {mark}  {obstacle.name:<24}{100 * one['succeeded']:6.1f} %{bound}"
            f"{'':{max(1, 18 - len(bound))}}falls {100 * one['fell']:5.1f} %",
            flush=True,
        )
    return out


def passes(obstacle: Obstacle, found: dict[str, Any]) -> bool:
    """Whether enough tries succeed."""
    return obstacle.least is None or found["succeeded"] >= obstacle.least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--episodes", type=count, default=256, help="tries on each obstacle")
    parser.add_argument("--speed", type=float, default=0.6, help="commanded speed [m/s]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting to change")
    parser.add_argument("--json", type=in_folder, help="also write the numbers here")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="obstacles with it in their name"
    )
    arguments = parser.parse_args()
    obstacles = chosen(arguments.only)
    torch.manual_seed(0)
    found = climb(arguments.run, arguments.set, arguments.episodes, arguments.speed, obstacles)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(int(not all(passes(each, found[each.name]) for each in obstacles)))


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        raise SystemExit(f"climbing.py: {error}") from None
