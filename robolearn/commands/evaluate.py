"""`robolearn eval`: writes metrics.json from many whole episodes of a trained policy."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from robolearn.config.run_config import EXTERNAL
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.envs.state import State, Tensor, quat_rotate
from robolearn.errors import ConfigError, RunFailed
from robolearn.external.env import NO_LIMIT
from robolearn.files import replacing
from robolearn.learners.policy import Act, reset_state
from robolearn.training.build import make_learner_env
from robolearn.training.runs import Run, load_policy, open_run, require_writable
from robolearn.training.train import set_threads

SCHEMA = 1
"""Version of metrics.json's layout."""

FILE_NAME = "metrics.json"

NEVER_TRAINED = 1_000_000
"""Rank whose random numbers evaluations use; no training process has it, so the policy has not seen them."""

TRACKING = {"linear_velocity_error": "m/s", "yaw_rate_error": "rad/s"}
"""Task metrics that every metrics.json has; null where the task has no velocity commands."""


@dataclass
class Tally:
    """Results of K episodes of each of N environments: E = K N episodes, in the order they ended."""

    returns: Tensor
    """(E,) undiscounted sum of rewards."""
    steps: Tensor
    """(E,) control steps until the episode ended."""
    survived: Tensor
    """(E,) bool: the episode timed out instead of being terminated."""
    diverged: Tensor
    """(E,) bool: the simulation diverged."""
    distance: Tensor | None
    """(E,) [m] base displacement along the initial heading of the episode, up to its last control step but one: after
    the last, Env shows the start of the next episode. None for a robot with a fixed base."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Means of the task's metrics over all steps at which they are defined; None where there are none."""
    seconds: float = 0.0
    """Wall time of the simulation [s]."""
    env_steps: int = 0
    """Control steps simulated, summed over all environments, including those after their last counted episode."""


@torch.no_grad()
def tally(env: LearnerEnv, policy: Act, episodes_each: int = 1) -> Tally:
    """Run until every environment has finished `episodes_each` episodes, and count exactly those.

    The first episodes to end are mostly short ones, that is failures. So each environment contributes the same number,
    from its first one on.

    Args:
        env: the environments; all are reset first, so that all episodes are whole.
        policy: function from observations by group to actions (N, A).
        episodes_each: K.

    Raises:
        NonFiniteTerm: a term of the task is not finite on a finite State.
        RunFailed: the simulator dropped part of the physics, or an environment did not finish in time.
    """
    n, device = env.num_envs, env.device
    zeros = lambda dtype: torch.zeros(n, dtype=dtype, device=device)  # noqa: E731
    finished, steps, returns = zeros(torch.long), zeros(torch.long), zeros(torch.float64)
    sums: dict[str, Tensor] = {}
    env_steps = 0
    ended: list[tuple[Tensor, ...]] = []
    env.reset()
    reset_state(policy)
    displacement = Displacement(env)
    began = time.perf_counter()
    most = episodes_each * (env.max_episode_steps + getattr(env, "resets_take_a_step", False))
    for _ in range(most):
        counting = finished < episodes_each
        result = env.step(policy(env.observations))
        env_steps += n
        took = torch.ones_like(counting) if result.valid is None else result.valid
        steps, returns = steps + took, returns + result.reward
        for name, pair in result.metrics.items():
            both = torch.stack(pair).double() * counting
            sums[name] = sums.get(name, 0) + both.sum(dim=1)
        done = result.done
        reset_state(policy, done)
        if done.any():
            rows = (done & counting).nonzero().squeeze(-1)
            columns = (returns, steps, result.truncated, result.diverged, displacement.distance)
            ended.append(tuple(column[rows].cpu() for column in columns))
            finished += done
            returns, steps = torch.where(done, 0.0, returns), torch.where(done, 0, steps)
        displacement.update(done)
        if bool((finished >= episodes_each).all()):
            break
    seconds = time.perf_counter() - began
    env.check()  # on a GPU, errors are raised only here
    lacking = int((finished < episodes_each).sum())
    if lacking:
        # To count only the episodes that ended would count mostly failures.
        raise RunFailed(
            f"{lacking} of {n} environments had not finished {episodes_each} episodes within {most} steps: give them a "
            "time limit (task.episode_steps=1000)"
        )
    all_returns, all_steps, survived, diverged, distance = (
        torch.cat(parts) for parts in zip(*ended, strict=True)
    )
    metrics = {name: float(total / weight) if weight else None for name, (total, weight) in sums.items()}
    return Tally(
        all_returns,
        all_steps,
        survived,
        diverged,
        distance if displacement.known else None,
        metrics,
        seconds,
        env_steps,
    )


class Displacement:
    """Displacement of the robots of an Env since the start of their episodes; unknown for third-party environments."""

    def __init__(self, env: LearnerEnv) -> None:
        robot = getattr(env, "robot", None)
        self._env = None if robot is None or robot.base is None else cast(Env, env)
        self.known = self._env is not None
        self.distance = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        """(N,) [m] along the initial heading of each episode."""
        if self._env is not None:
            self._start, self._heading = _pose(self._env.backend.state)

    def update(self, done: Tensor) -> None:
        """Call after each step with the environments `done` (N,) whose episode it ended."""
        if self._env is None:
            return
        position, facing = _pose(self._env.backend.state)
        # Where an episode has ended, this is the start of the next one.
        self._start = torch.where(done[:, None], position, self._start)
        self._heading = torch.where(done[:, None], facing, self._heading)
        self.distance = ((position - self._start) * self._heading).sum(dim=1)


def _pose(state: State) -> tuple[Tensor, Tensor]:
    """Horizontal base position (N, 2) [m], and the horizontal direction (N, 2) the base faces, of length 1."""
    robot = state.robot
    forward = torch.tensor((1.0, 0.0, 0.0), device=robot.base_pos.device).expand_as(robot.base_pos)
    facing = quat_rotate(robot.base_quat, forward)[:, :2].double()
    return robot.base_pos[:, :2].double(), facing / facing.norm(dim=1, keepdim=True).clamp(min=1e-9)


def summarize(counted: Tally, env: LearnerEnv) -> dict[str, Any]:
    """The part of metrics.json that is computed from episodes.

    Raises:
        RunFailed: one of them is not finite.
    """
    extra = {name: value for name, value in counted.metrics.items() if name not in TRACKING}
    out: dict[str, Any] = {
        "episodes": len(counted.returns),
        "survival_rate": float(counted.survived.double().mean()),
        **{name: counted.metrics.get(name) for name in TRACKING},
        "return_mean": float(counted.returns.mean()),
        "return_std": float(counted.returns.std(correction=0)),
        "forward_distance": None if counted.distance is None else float(counted.distance.mean()),
        "episode_length_s": float(counted.steps.double().mean()) * env.dt,
        "diverged": int(counted.diverged.sum()),
        "metrics": extra,
    }
    for name, value in [*out.items(), *extra.items()]:
        if isinstance(value, float) and not math.isfinite(value):
            raise RunFailed(f"{name} is not finite over {out['episodes']} episodes: look at the task's terms")
    return out


def evaluate(
    run: str | None,
    overrides: Iterable[str] = (),
    episodes: int = 512,
    output: Path | None = None,
    gap: bool = False,
) -> dict[str, Any]:
    """Evaluate a run and write metrics.json.

    The policy is deterministic (the mean action) and episodes are whole. Observation noise, delays, randomization and
    commands are those of the run, unless overridden. Without an override `num_envs=`, min(num_envs, episodes)
    environments are used; each contributes one episode, or more where that is not enough.

    Args:
        run: see `robolearn.training.runs.open_run`.
        overrides: settings to change, in Hydra's grammar.
        episodes: minimum number of episodes; each environment contributes the same number.
        output: folder of metrics.json; None: the run folder.
        gap: evaluate on the run's backend too, and report the difference in return.

    Returns:
        The content of metrics.json.

    Raises:
        ConfigError: the run or an override is invalid, or the folder cannot be written to.
        RunFailed: a term or a result was not finite.
    """
    found = open_run(run, overrides)
    folder = output or found.folder
    require_writable(folder)
    config = found.config
    own = [word for word in overrides if not word.startswith(("backend=", "backend."))]
    home = open_run(run, own) if gap else None
    if home and home.config.backend_name == config.backend_name:
        raise ConfigError(
            f"--gap compares two simulators, and both are {config.backend_name}; name another with --backend"
        )
    asked = any(word.startswith("num_envs=") for word in found.overrides)
    num_envs = config.num_envs if asked else min(config.num_envs, episodes)
    each = -(-episodes // num_envs)
    set_threads(config)
    summary, counted, dt, limit = _episodes(found, num_envs, each)
    metrics = {
        "schema": SCHEMA,
        **summary,
        "task": config.task_name,
        "run": found.name,
        "iteration": found.iteration,
        "backend": config.backend_name,
        "seed": config.seed,
        "overrides": list(found.overrides),
        "num_envs": num_envs,
        "episodes_each": each,
        "episode_limit_s": limit,
        "observation_noise": any(config.task.noise.values()),
        # Simulated seconds of one environment per second of wall time. Only these two differ between repetitions.
        "real_time_factor": counted.env_steps / num_envs * dt / counted.seconds,
        "steps_per_second": counted.env_steps / counted.seconds,
    }
    if home:
        there = _episodes(home, num_envs, each)[0]["return_mean"]
        metrics["gap"] = {
            "backend": home.config.backend_name,
            "return_mean": there,
            "relative": (metrics["return_mean"] - there) / max(abs(there), 1e-9),
        }
    path = folder / FILE_NAME
    with replacing(path) as part:
        part.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(table(metrics))
    print(f"wrote {path}")
    return metrics


def _episodes(run: Run, num_envs: int, each: int) -> tuple[dict[str, Any], Tally, float, float | None]:
    """Summary and tally of a run's episodes, the control period [s], and the time limit of an episode [s]; None where a
    third-party environment has no limit."""
    policy = load_policy(run)
    env = make_learner_env(run.config, num_envs=num_envs, rank=NEVER_TRAINED)
    try:
        counted = tally(env, policy, each)
        limit: float | None = env.max_episode_steps * env.dt
        if run.config.backend_name != EXTERNAL:
            limit = run.config.task.episode_length_s
        elif env.max_episode_steps == NO_LIMIT:
            limit = None
        return summarize(counted, env), counted, env.dt, limit
    finally:
        env.close()


def table(metrics: dict[str, Any]) -> str:
    """The content of metrics.json as a table."""
    limit = metrics["episode_limit_s"]
    rows = [
        ("survival rate", f"{100 * metrics['survival_rate']:.1f} %"),
        *((name.replace("_", " "), _number(metrics[name], unit)) for name, unit in TRACKING.items()),
        ("forward distance", _number(metrics["forward_distance"], "m")),
        ("return", f"{metrics['return_mean']:.3f} +- {metrics['return_std']:.3f}"),
        (
            "episode length",
            f"{metrics['episode_length_s']:.2f} s{'' if limit is None else f' of {limit:g} s'}",
        ),
        *((name.replace("_", " "), _number(value, "")) for name, value in metrics["metrics"].items()),
        ("diverged", str(metrics["diverged"])),
        (
            "real-time factor",
            f"{metrics['real_time_factor']:.1f} ({metrics['steps_per_second']:.0f} steps/s)",
        ),
    ]
    if "gap" in metrics:
        there = metrics["gap"]
        rows.append(
            (
                f"return on {there['backend']}",
                f"{there['return_mean']:.3f}, gap {100 * there['relative']:+.1f} %",
            )
        )
    noise = "with" if metrics["observation_noise"] else "without"
    where = "" if metrics["backend"] == EXTERNAL else f" on {metrics['backend']}"
    head = (
        f"{metrics['task']}{where}, iteration {metrics['iteration']}, seed {metrics['seed']}: "
        f"{metrics['episodes']} episodes, mean action, {noise} observation noise"
    )
    width = max(len(name) for name, _ in rows)
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3f} {unit}".rstrip()
