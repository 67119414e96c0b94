"""One side of a comparison between simulators: a policy's episodes, what it observed, and probes of the robot alone.

A side runs in this process, or in that of another Python (Isaac Lab needs an environment of its own): then

    PYTHON -m robolearn.simulation.side REQUEST.json RESULT.npz

All sides of a comparison draw the same starts, commands, pushes and noise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import EXTERNAL
from robolearn.core.env import Env
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line, quote
from robolearn.files import replacing
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.simulation.probes import probe
from robolearn.simulation.trial import Moment, PolicyDriver, run_trial
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run

SAME_DEVICE = "device=cpu"
"""Random numbers differ from one kind of device to the other: only on one of them all sides draw the same."""

TRACED = 64
"""Environments whose observations are kept."""


@dataclass(frozen=True)
class Request:
    """What a side simulates."""

    run: str
    """See `robolearn.training.runs.open_run`."""
    words: tuple[str, ...]
    """Settings, `backend=` among them."""
    episodes: int


@dataclass
class Side:
    """What a simulator gave."""

    backend: str
    dt: float
    """Control period [s]."""
    episodes: dict[str, np.ndarray]
    """(N,) by measure: the first episode of each environment, in the order of the environments."""
    observations: np.ndarray
    """(T, K, D) float32: what the policy observed in the first episodes of K environments; NaN after their ends."""
    columns: list[str]
    """Names of the D columns."""
    probes: dict[str, np.ndarray] = field(default_factory=dict)
    """See `probe`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """`joints` and `actuators` in their order, `timestep` [s], `pd`, `seconds`, `steps`, `iteration`, `task`; `agents`
    of a world, which are neighbouring environments."""

    def save(self, path: Path) -> None:
        """Write it to an .npz file; nothing in it is executed when it is read."""
        arrays = {f"episodes/{k}": v for k, v in self.episodes.items()}
        arrays |= {f"probes/{k}": v for k, v in self.probes.items()}
        plain = {"backend": self.backend, "dt": self.dt, "columns": self.columns, "facts": self.facts}
        with replacing(path) as part:
            named: dict[str, Any] = {
                "observations": self.observations,
                "plain": np.array(json.dumps(plain)),
                **arrays,
            }
            np.savez(part, **named)

    @classmethod
    def load(cls, path: Path) -> Side:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            plain = json.loads(str(arrays["plain"]))
            parts: dict[str, dict[str, np.ndarray]] = {"episodes": {}, "probes": {}}
            for name in arrays.files:
                head, _, rest = name.partition("/")
                if head in parts:
                    parts[head][rest] = arrays[name]
            observed = arrays["observations"]
            named = parts["episodes"], observed, plain["columns"], parts["probes"], plain["facts"]
            return cls(plain["backend"], plain["dt"], *named)


def simulate(request: Request, python: str | None = None) -> Side:
    """Simulate a side, in another Python where one is named.

    Raises:
        ConfigError, MissingError, RunFailed: see `open_run`, `make_env` and `run_trial`; or the other Python failed.
    """
    if python is None:
        return _here(request)
    with tempfile.TemporaryDirectory() as folder:
        asked, given = Path(folder, "request.json"), Path(folder, "side.npz")
        asked.write_text(json.dumps(asdict(request)), encoding="utf-8")
        command = [python, "-m", __name__, str(asked), str(given)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError as error:
            raise ConfigError(f"--python {quote(python, 120)}: {error.strerror}") from error
        if done.returncode or not given.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RunFailed(f"{quote(python, 120)} failed: {one_line(last, 250)}")
        for line in done.stderr.splitlines():  # what it tells the user, such as a robot with other motors
            if line.startswith("robolearn: "):
                print(line, file=sys.stderr, flush=True)
        return Side.load(given)


def _here(request: Request) -> Side:
    found = open_run(request.run, request.words)
    if found.config.backend_name == EXTERNAL:
        raise ConfigError(
            f"task={found.config.task_name} brings its own simulator; it has no other one to compare with"
        )
    torch.set_num_threads(found.config.torch_threads or 1)
    policy = load_policy(found)
    # Curricula are off; episodes are whole, and begin as in every evaluation.
    env = make_env(found.config, num_envs=request.episodes, rank=NEVER_TRAINED)
    try:
        env.paired = True
        watch, seen = _watch(env)
        trial = run_trial(env, lambda e: PolicyDriver(e, policy), observers=(watch,))
        if trial.problem:
            raise RunFailed(f"on {found.config.backend_name}: {trial.problem}")
        order = np.argsort(trial.envs, kind="stable")
        columns = [
            item.name if width == 1 else f"{item.name}[{i}]"
            for item, width in env.columns["policy"]
            for i in range(width)
        ]
        side = Side(
            found.config.backend_name,
            env.dt,
            {name: values[order] for name, values in trial.episodes.items()},
            seen(),
            columns,
            facts={
                "joints": list(env.robot.joints),
                "actuators": [actuator.joint for actuator in env.robot.actuators],
                "timestep": env.capabilities.timestep,
                "pd": env.capabilities.pd,
                "derived_lag": env.capabilities.derived_lag,
                "agents": env.agents,
                "iteration": found.iteration,
                "task": found.config.task_name,
                "robot": env.robot.name,
                "run": found.name,
                "seconds": trial.seconds,
                "steps": trial.steps,
            },
        )
    finally:
        env.close()
    side.probes = probe(found.config)
    return side


def _watch(env: Env) -> tuple[Callable[[Moment], None], Callable[[], np.ndarray]]:
    """(observer, function that returns the observations it has seen)."""
    kept = min(TRACED, env.num_envs)
    rows: list[np.ndarray] = []
    alive = torch.ones(kept, dtype=torch.bool, device=env.device)

    def watch(moment: Moment) -> None:
        observed = moment.result.terminal_observations["policy"][:kept]
        rows.append(torch.where(alive[:, None], observed, torch.nan).float().cpu().numpy().copy())
        alive.logical_and_(~moment.result.done[:kept])

    return watch, lambda: np.stack(rows)


def main(words: list[str]) -> int:
    """Simulate the request of the first file and write the side to the second."""
    asked, given = (Path(word) for word in words)
    content = json.loads(asked.read_text(encoding="utf-8"))
    try:
        side = _here(Request(content["run"], tuple(content["words"]), content["episodes"]))
    except (ConfigError, MissingError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    side.save(given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
