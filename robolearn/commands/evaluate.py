"""`robolearn eval`: writes metrics.json from many whole episodes of a trained policy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from robolearn.config.run_config import EXTERNAL
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, RunFailed
from robolearn.external.env import NO_LIMIT
from robolearn.files import replacing
from robolearn.simulation.episodes import NEVER_TRAINED, Tally, tally
from robolearn.simulation.recording import Recording, require_file
from robolearn.tasks.mdp.sensing import noisy
from robolearn.training.build import make_learner_env
from robolearn.training.runs import Run, load_policy, open_run, require_writable
from robolearn.training.train import set_threads

SCHEMA = 1
"""Version of metrics.json's layout."""

FILE_NAME = "metrics.json"

TRACKING = {"linear_velocity_error": "m/s", "yaw_rate_error": "rad/s"}
"""Task metrics that every metrics.json has; null where the task has no velocity commands."""


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
    record: Path | None = None,
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
        record: write the episodes to this NPZ file, as demonstrations.

    Returns:
        The content of metrics.json.

    Raises:
        ConfigError: the run or an override is invalid, or the folder cannot be written to.
        RunFailed: a term or a result was not finite.
    """
    found = open_run(run, overrides)
    folder = output or found.folder
    require_writable(folder)
    if record is not None:
        require_file(record)
        require_writable(record.parent)
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
    summary, counted, dt, limit = _episodes(found, num_envs, each, record)
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
        "observation_noise": noisy(config.task),
        # Simulated seconds of one environment per second of wall time. Only these two differ between repetitions.
        "real_time_factor": counted.env_steps / (len(counted.returns) / each) * dt / counted.seconds,
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


def _episodes(
    run: Run, num_envs: int, each: int, record: Path | None = None
) -> tuple[dict[str, Any], Tally, float, float | None]:
    """Summary and tally of a run's episodes, the control period [s], and the time limit of an episode [s]; None where a
    third-party environment has no limit."""
    policy = load_policy(run)
    env = make_learner_env(run.config, num_envs=num_envs, rank=NEVER_TRAINED)
    try:
        recording = None if record is None else Recording(env)
        counted = tally(env, policy, each, recording)
        limit: float | None = env.max_episode_steps * env.dt
        if run.config.backend_name != EXTERNAL:
            limit = run.config.task.episode_length_s
        elif env.max_episode_steps == NO_LIMIT:
            limit = None
        summary = summarize(counted, env)
        if recording is not None and record is not None:
            print(f"wrote {recording.write(record, run.config.task_name)} episodes to {record}")
        return summary, counted, env.dt, limit
    finally:
        env.close()


def table(metrics: dict[str, Any]) -> str:
    """The content of metrics.json as a table."""
    limit = metrics["episode_limit_s"]
    rows = [
        ("survival rate", f"{100 * metrics['survival_rate']:.1f} %"),
        *(
            (name.replace("_", " "), _number(metrics[name], unit))
            for name, unit in {**TRACKING, "forward_distance": "m"}.items()
            if metrics[name] is not None
        ),
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
    worlds = metrics["num_envs"] * metrics["episodes_each"]
    agents = "" if metrics["episodes"] == worlds else f" of {metrics['episodes'] // worlds} agents"
    noise = "with" if metrics["observation_noise"] else "without"
    where = "" if metrics["backend"] == EXTERNAL else f" on {metrics['backend']}"
    head = (
        f"{metrics['task']}{where}, iteration {metrics['iteration']}, seed {metrics['seed']}: "
        f"{worlds} episodes{agents}, mean action, {noise} observation noise"
    )
    width = max(len(name) for name, _ in rows)
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3f} {unit}".rstrip()
