"""`robolearn deploy`: a bundle drives the simulator in real time, as it will drive the robot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn import config
from robolearn.config import Config
from robolearn.env import make_env
from robolearn.errors import ConfigError, quote
from robolearn.export.bundle import single_file
from robolearn.export.record import on_robot, phase_of, raw_sensors
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import OK, OVER_BUDGET
from robolearn.runtime.main import RUNTIMES, available, open_session
from robolearn.runtime.measure import statistics
from robolearn.runtime.robot import Runtime
from robolearn.train import set_threads

FELL = 1
"""Exit code where the robot did not stay up."""


@dataclass
class Drive:
    """What a drive in real time came to."""

    took: np.ndarray
    """(n,) from sensor readings to targets [s]."""
    late: np.ndarray
    """(n,) how late each control step began [s]."""
    missed: int
    """Control steps whose targets were not there before the next step was due."""
    falls: int
    episode_return: float
    """Sum of the rewards."""


def drive(runtime: Runtime, run: Config, seconds: float) -> Drive:
    """Control one simulated robot at the control rate of the clock on the wall.

    A control step reads the sensors, computes targets, and lets the simulation catch up. The simulation's own time is
    spent where a robot would move by itself, and does not count as a missed deadline unless the targets are late.
    """
    env = make_env(run, num_envs=1)
    try:
        period, count = runtime.dt, max(1, round(seconds / runtime.dt))
        took, late = np.zeros(count), np.zeros(count)
        read = [env.robot.joints.index(name) for name in runtime.joints]
        send = [runtime.actuators.index(actuator.joint) for actuator in env.robot.actuators]
        missed, falls, total = 0, 0, 0.0
        runtime.reset(float(phase_of(env)[0]))
        due = time.perf_counter() + period
        for i in range(count):
            rest = due - time.perf_counter()
            if rest > 0:
                time.sleep(rest)
            began = time.perf_counter()
            sensors = {name: rows[0] for name, rows in raw_sensors(env.backend.state).items()}
            for name in ("joint_pos", "joint_vel"):
                sensors[name] = sensors[name][read]
            targets = runtime.step(sensors, env.ctx.command[0].numpy())
            done = time.perf_counter()
            took[i], late[i] = done - began, began - due
            missed += done > due + period
            with torch.no_grad():
                result = env.step(
                    torch.from_numpy(runtime.action[send])[None], torch.from_numpy(targets[send])[None]
                )
            total += float(result.reward)
            if bool(result.done):
                falls += int(result.terminated)
                runtime.reset(float(phase_of(env)[0]))
            due += period
            if (
                time.perf_counter() > due + period
            ):  # the schedule is lost: begin a new one, the step is counted
                due = time.perf_counter()
        return Drive(took, late, missed, falls, total)
    finally:
        env.close()


def _require_same_rate(run: Config, bundle: Bundle) -> None:
    if abs(run.task.control_dt * bundle.rate - 1) > 1e-6:
        raise ConfigError(
            f"task.control_dt={run.task.control_dt:g} is not the bundle's {1 / bundle.rate:g} s: at another rate "
            "it is another policy"
        )


def deploy(
    folder: Path,
    overrides: Sequence[str],
    seconds: float,
    runtime: str | None,
    max_missed: float,
) -> int:
    """Run a bundle against the simulator, and say how it went.

    Returns:
        OK; FELL where the robot fell; OVER_BUDGET where more than `max_missed` of the deadlines were missed.

    Raises:
        ConfigError: a setting cannot be used.
        Refused: the bundle is damaged, or not the policy that was trained.
    """
    if runtime is not None and runtime not in RUNTIMES:
        raise ConfigError(f"unknown runtime {quote(runtime)}; valid: {', '.join(RUNTIMES)}")
    bundle = Bundle.load(folder)
    run = replace(on_robot(config.load(folder / config.FILE_NAME, overrides)), num_envs=1)
    _require_same_rate(run, bundle)
    name = runtime or available(bundle)[0]
    session = open_session(bundle, name)
    set_threads(replace(run, torch_threads=1))
    own = folder / "runtime.py"
    if own.is_file() and own.read_text(encoding="utf-8") != single_file():
        print(
            "note: the bundle's runtime.py is of another version of RoboLearn; this drive uses the installed one"
        )
    went = drive(Runtime(bundle, session), run, seconds)
    print(
        f"{run.task_name} on {run.backend_name} in real time: {len(went.took)} control steps at {bundle.rate:g} Hz "
        f"with {name}, seed {run.seed}"
    )
    rows: dict[str, Any] = {
        "sensors to targets": statistics(went.took),
        "begun late by": statistics(went.late),
    }
    for what, s in rows.items():
        print(f"  {what:<19} p50 {s['p50_ms']:.3f}, p99 {s['p99_ms']:.3f}, max {s['max_ms']:.3f} ms")
    share = went.missed / len(went.took)
    print(f"  {'missed deadlines':<19} {went.missed} of {len(went.took)} ({100 * share:.2f} %)")
    print(f"  {'falls':<19} {went.falls}")
    print(f"  {'reward a second':<19} {went.episode_return / (len(went.took) * bundle.rate**-1):.3f}")
    if share > max_missed:
        print(
            f"too many deadlines missed: {100 * share:.2f} %, allowed {100 * max_missed:g} % (measured here)"
        )
        return OVER_BUDGET
    return FELL if went.falls else OK
