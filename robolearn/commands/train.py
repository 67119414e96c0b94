"""`robolearn train`: says what is wrong with a robot, trains, and films what the guard finds."""

from __future__ import annotations

import os
from pathlib import Path

from robolearn.config import registry
from robolearn.config.run_config import EXTERNAL, Config
from robolearn.errors import MissingError, tell_line
from robolearn.learners.learner import Learner
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.team import Team, TeamRunner
from robolearn.training import train as loop
from robolearn.training.ranks.world import goes_on

SECONDS = 4.0
"""Length of a film of a finding [s]."""
SIZE = (320, 240)
"""Its width and height [pixels]."""


def train(run: Config, changes: list[str]) -> Path:
    """See `robolearn.training.train.train`; a new training first says what keeps a robot of one's own from working."""
    first = os.environ.get("RANK", "0") == "0"  # of several processes, one
    if run.backend_name != EXTERNAL and run.resume is None and first and not goes_on(run):
        tell_errors(run)
    return loop.train(run, changes, film_policy)


def tell_errors(run: Config) -> None:
    """Print, a line each, the errors of `robolearn robot` about a robot that RoboLearn does not list or that the run
    changes, with the physics step of the run.

    Raises:
        ConfigError, MissingError: see `make_robot`.
    """
    from robolearn.commands.robot import tell_idle
    from robolearn.envs import lint, mjcf
    from robolearn.training.build import make_robot

    name = run.task.robot
    entry = registry.entries("robots").get(name)
    if entry and entry.ours and not run.robot:
        return
    robot = make_robot(run)
    if run.robot:
        tell_idle(lint.idle_changes(registry.load("robots", name), run.robot))
    options = mjcf.options(robot, getattr(run.backend, "options", run.backend_name))
    step = getattr(run.backend, "timestep", 0.0) or options["timestep"]  # a package's backend may have none
    same = " and the same robot.* settings" if run.robot else ""
    for finding in lint.errors(robot, step):
        tell_line(
            f"robot {name}: {finding.check}: {finding.text} (all findings: robolearn robot {name}{same})"
        )


def film_policy(run: Config, learner: Learner, path: Path) -> None:
    """Write a film of a learner's policy, without exploration noise.

    Raises:
        ConfigError, MissingError, RunFailed: it cannot be made here.
    """
    from robolearn.simulation.film import film
    from robolearn.simulation.video import FPS, write_video
    from robolearn.training.build import build_env

    policy = learner.policy
    if run.backend_name == EXTERNAL or not isinstance(policy, Policy | Team):
        raise MissingError(f"task={run.task_name} with learner={run.learner_name} cannot be filmed")
    env, frames = build_env(run, 1), round(SECONDS * FPS)
    try:
        name = run.task_name.rpartition("/")[2]  # of a file, without its folder
        act = TeamRunner(policy) if isinstance(policy, Team) else PolicyRunner(policy)
        shown = film(env, act, frames, FPS, SIZE, title=f"{name}: what the guard found")
        write_video(path, shown, FPS, frames)
    finally:
        env.close()
