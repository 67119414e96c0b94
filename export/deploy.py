"""`robolearn deploy`: a bundle controls a simulated robot in real time."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from robolearn import config
from robolearn.config import FILE_NAME
from robolearn.config.overrides import parse
from robolearn.config.run_config import Config
from robolearn.core.contract import contract_of
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, listing, quote
from robolearn.export.bundle import RUNTIME, contract_entry, single_file
from robolearn.export.closed_loop import in_order
from robolearn.export.consistent import DELAYS
from robolearn.export.noisy_readings import NoisyReadings
from robolearn.export.record import arrays, on_robot, starts
from robolearn.external.env import ExternalEnv
from robolearn.runtime.bundle import Bundle, canonical, difference, unedited
from robolearn.runtime.contract import GIVEN
from robolearn.runtime.errors import BAD_INPUT, OK, OVER_BUDGET, Refused
from robolearn.runtime.files import read
from robolearn.runtime.main import RUNTIMES
from robolearn.runtime.measure import statistics, ticks
from robolearn.runtime.robot import Runtime
from robolearn.runtime.signature import require_signed
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.tasks.mdp.task import Task
from robolearn.training.build import build_external, make_env, make_learner_env
from robolearn.training.runs import load_config, require_no_training
from robolearn.training.train import set_threads

FELL = 1
"""Exit code where the robot fell."""


LONGEST = 86400.0
"""Largest value of --seconds [s]."""


@dataclass
class Drive:
    """Results of a real-time run."""

    took: np.ndarray
    """(n,) time from sensor readings to joint targets [s]."""
    late: np.ndarray
    """(n,) start delay of each control step [s]."""
    missed: int
    """Number of control steps whose joint targets came later than one period after the step was due."""
    began_late: int
    """Number of those in which the policy took less than a period, but the step began too late."""
    falls: int
    episode_return: float
    """Sum of the rewards."""
    seconds: float
    """Wall-clock time [s]."""
    left_out: Collection[str] = ()
    """Items of the policy whose noise the readings did not have."""


def drive(runtime: Runtime, env: Env | ExternalEnv, seconds: float) -> Drive:
    """Control one simulated robot or external environment at the control rate in wall-clock time.

    A control step computes joint targets from the readings and steps the simulation. A late step starts at once, and
    the next is due as if it had been on time, so a simulation that is too slow misses deadlines, too.

    Raises:
        ConfigError: a sensor reading is invalid, or the network's action is not finite.
        RunFailed: a term was not finite, or the simulator has dropped part of the physics.
    """
    period, count = runtime.dt, max(1, round(seconds / runtime.dt))
    took, late = np.zeros(count), np.zeros(count)
    robot = NoisyReadings(env) if isinstance(env, Env) else env
    read, send = _wiring(runtime, robot)
    missed, began_late, falls, total = 0, 0, 0, 0.0
    start_anew(runtime, env)
    given, due = read(), 0.0
    for i, due in enumerate(ticks(1 / period, count)):
        began = time.perf_counter()
        try:
            targets = runtime.step(*given)
        except ValueError as error:  # Runtime.step raises it; it must not import ConfigError
            raise ConfigError(f"the bundle cannot control the robot: {error}") from error
        done = time.perf_counter()
        took[i], late[i] = done - began, began - due
        missed += done > due + period
        began_late += done > due + period >= due + took[i]
        with torch.no_grad():
            result = env.step(
                torch.from_numpy(runtime.action[send])[None].to(env.device),
                torch.from_numpy(targets[send])[None].to(env.device),
            )
        total += float(result.reward)
        falls += int(result.terminated)
        if bool(result.done) or not (result.valid is None or bool(result.valid)):
            start_anew(runtime, env)
        given = read()  # what a simulated sensor costs is no part of a control step
    wall = max(time.perf_counter(), due + period) - (due - (count - 1) * period)
    env.check()  # after the loop: on a GPU it syncs
    left_out = robot.left_out if isinstance(robot, NoisyReadings) else ()
    return Drive(took, late, missed, began_late, falls, total, wall, left_out)


def start_anew(runtime: Runtime, env: Env | ExternalEnv) -> None:
    """Start anew, with the task state that the simulation drew."""
    drawn = {}
    if isinstance(env, Env):
        state = [name.removesuffix("_in") for name in runtime.feeds if name.endswith("_in")]
        drawn = {name: rows[0] for name, rows in starts(env, state).items()}
    runtime.reset(drawn)


def own_runtime(folder: Path, key: Path | None = None) -> ModuleType:
    """The runtime.py of a bundle as a module: what the robot will run.

    It is executed only where its hash is the manifest's, the manifest is that of the recording, and either `key` shows
    who signed it or it is the file that this version writes: hashes alone can be computed by anybody.

    Raises:
        Refused: BAD_INPUT; the manifest cannot be read, is not signed or was edited; runtime.py or config.yaml was
            changed; or runtime.py is another one and there is no `key`.
    """
    if key is not None:
        require_signed(folder, key)
    files = unedited(folder)[0].get("files")
    if not isinstance(files, dict) or not {RUNTIME, FILE_NAME} <= set(files):
        raise Refused(f"manifest.json holds no hash of {RUNTIME} and {FILE_NAME}; export again", BAD_INPUT)
    content = {name: read(folder / name) for name in (RUNTIME, FILE_NAME)}
    for name, text in content.items():
        if files[name] != hashlib.sha256(text).hexdigest():
            raise Refused(
                f"{name} was changed since the export, so it is not used; copy the bundle again", BAD_INPUT
            )
    source = content[RUNTIME]
    if key is None and source != single_file().encode():
        raise Refused(
            f"{quote(str(folder), 120)} has a {RUNTIME} that this version of RoboLearn did not write; it is executed "
            "only by robolearn deploy --key FILE.pub, where the bundle is signed: export again",
            BAD_INPUT,
        )
    module = ModuleType(f"robolearn_bundle_{files[RUNTIME][:12]}")
    module.__file__ = str(folder / RUNTIME)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    # Its hash is the manifest's: it is what the export wrote.
    exec(compile(source, module.__file__, "exec"), module.__dict__)  # noqa: S102
    return module


Result = TypeVar("Result")


def told(runtime: ModuleType, call: Callable[[], Result]) -> Result:
    """The result of `call`, in which a refusal of the bundle's runtime counts as one of ours.

    Raises:
        Refused: the bundle's runtime refused.
    """
    try:
        return call()
    except runtime.Refused as refusal:
        raise Refused(str(refusal), refusal.code) from None


def _wiring(
    runtime: Runtime, robot: NoisyReadings | ExternalEnv
) -> tuple[Callable[[], tuple[dict[str, Any], Any]], list[int]]:
    """(a function that reads sensors and command, indices of the runtime's outputs in the env's actuator order)."""
    if isinstance(robot, ExternalEnv):
        send = [runtime.actuators.index(name) for name in robot.actions.names]
        return lambda: ({GIVEN: robot.observations["policy"][0].cpu().numpy()}, ()), send
    env = robot.env
    order = [env.robot.joints.index(name) for name in runtime.joints]

    def read() -> tuple[dict[str, Any], Any]:
        sensors = in_order(arrays(robot(runtime.sensors)), order)
        return {name: rows[0] for name, rows in sensors.items()}, env.ctx.command[0].cpu().numpy()

    send = [runtime.actuators.index(actuator.joint) for actuator in env.robot.actuators]
    return read, send


def deploy(
    folder: Path,
    overrides: Sequence[str],
    seconds: float,
    runtime: str | None,
    max_missed: float,
    key: Path | None = None,
) -> int:
    """Run a bundle in the simulator in real time and print the results.

    Args:
        folder: of the bundle.
        overrides: settings of the simulation.
        seconds: duration [s].
        runtime: onnxruntime or tensorrt; None: the first available.
        max_missed: largest allowed share of missed deadlines, 0..1.
        key: file of the public ed25519 key that the bundle must be signed with; None: it need not be signed.

    Returns:
        OK; FELL where the robot fell; OVER_BUDGET where more than `max_missed` of the deadlines were missed.

    Raises:
        ConfigError: a setting is invalid or changes the robot or task of the bundle.
        Refused: the bundle is damaged, or its golden check failed.
    """
    if runtime is not None and runtime not in RUNTIMES:
        raise ConfigError(f"unknown runtime {quote(runtime)}; valid: {', '.join(RUNTIMES)}")
    if not 0 < seconds <= LONGEST:
        raise ConfigError(f"--seconds {seconds:g} is not within 0..{LONGEST:g}")
    if not 0 <= max_missed <= 1:
        raise ConfigError(f"--max-missed {max_missed:g} is not within 0..1")
    require_no_training(overrides, bundle=True)
    ours = own_runtime(folder, key)
    bundle = told(ours, lambda: ours.Bundle.load(folder))
    saved = load_config(folder, overrides)
    external = saved.backend_name == config.EXTERNAL
    if not external:
        _require_no_delay(saved, overrides)
    made = make_learner_env(saved, num_envs=1)
    try:
        if made.num_envs > 1:
            raise ConfigError(
                f"deploy drives one robot with its runtime, and task={saved.task_name} has {made.num_envs} agents; "
                "export has compared the runtime with the trained policy already"
            )
        require_its_robot(made, bundle)
    finally:
        made.close()
    run = replace(saved if external else on_robot(saved, noise=True), num_envs=1, torch_threads=1)
    name = runtime or told(ours, lambda: ours.available(bundle)[0])
    session = told(ours, lambda: ours.open_session(bundle, name))
    set_threads(run)
    env = build_external(run, 1) if external else make_env(run, num_envs=1)
    try:
        result = told(ours, lambda: drive(ours.Runtime(bundle, session), env, seconds))
    finally:
        env.close()
        session.close()
    where = "" if external else f" on {run.backend_name}"
    print(
        f"{run.task_name}{where} in real time: {len(result.took)} control steps at {bundle.rate:g} Hz "
        f"with {name}, seed {run.seed}"
    )
    if not external and (said := simulated(run.task, result.left_out)):
        print(f"  {'simulated':<19} {said}")
    if result.left_out:
        print(f"  {'not simulated':<19} noise of {listing(result.left_out)}: no single reading can have it")
    rows: dict[str, Any] = {
        "sensors to targets": statistics(result.took),
        "start delay": statistics(result.late),
    }
    for what, s in rows.items():
        figures = [f"{key} {s[f'{key}_ms']:.3f}" for key in ("p50", "p99", "jitter", "max")]
        print(f"  {what:<19} {', '.join(figures)} ms")
    share = result.missed / len(result.took)
    print(f"  {'missed deadlines':<19} {result.missed} of {len(result.took)} ({100 * share:.2f} %)")
    print(f"  {'real-time factor':<19} {len(result.took) / bundle.rate / result.seconds:.3f}")
    if external:
        print(f"  {'terminated':<19} {_count(result.falls)}")
    else:
        print(f"  {'falls':<19} {result.falls}")
    if share > max_missed:
        slow = result.missed - result.began_late
        print(
            f"too many deadlines missed: {100 * share:.2f} %, allowed {100 * max_missed:g} % (--max-missed "
            f"{max_missed:g}; measured on this machine): {result.began_late} steps began too late, because the machine "
            f"or its simulation was busy, and in {slow} the policy took longer than {1e3 / bundle.rate:g} ms"
        )
        return OVER_BUDGET
    return FELL if result.falls and not external else OK


def simulated(task: Task, left_out: Collection[str] = ()) -> str:
    """What sensors and messages do in the simulation of a task, on one line, but for the noise of the items `left_out`;
    empty where they are perfect."""
    task = task.filled()
    sensing, randomize = task.sensing.items(), task.randomize
    parts = [
        f"{name} noise {width:g}" for name, width in task.noise.items() if width and name not in left_out
    ]
    parts += [
        f"{name} {what} {value}"
        for name, each in sensing
        for what, value in each.stated().items()
        if what not in ("slow", "bias") or name not in left_out
    ]
    parts += [f"{name} {tuple(randomize[name])}" for name in SENSOR_ERRORS if name in randomize]
    parts += [f"packet loss {task.packet_loss:g}"] * (task.packet_loss > 0)
    return "; ".join(parts).replace("(", "[").replace(")", "]")


def _require_no_delay(saved: Config, overrides: Sequence[str]) -> None:
    """Refuse simulated delays that `overrides` state, also those of the training: in real time nothing is delayed on
    purpose."""
    stated = {each.dotted for each in parse(overrides)}
    for name in DELAYS:
        if f"task.{name}" in stated and max(getattr(saved.task, name)):
            raise ConfigError(
                f"task.{name} does not apply to deploy, which sends each action at once; the viewer, robolearn play "
                "BUNDLE, and scenarios of sim --suite delay what a bundle sends: task.action_delay=[LEAST,MOST]"
            )


def _count(terminated: int) -> str:
    """Text for the number of terminated episodes of an external environment, where it may mean success."""
    if not terminated:
        return "0"
    return f"{terminated} episode{'s' * (terminated > 1)}; the environment defines what that means"


def require_its_robot(env: LearnerEnv, bundle: Bundle, delays: bool = True) -> None:
    """Compare the contract of an env with the bundle's; its simulated `delays` only where asked for.

    Raises:
        ConfigError: they differ; the first difference is named.
    """
    items = env.task.items("policy") if isinstance(env, Env) else ()
    now = json.loads(canonical(contract_entry(contract_of(env), items)))
    if not delays:
        now |= {name: bundle.contract[name] for name in ("action_delay", "observation_delay")}
    if found := difference(bundle.contract, now):
        raise ConfigError(f"the bundle is for another robot or task than these settings: {found}")
