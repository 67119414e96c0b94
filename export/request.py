"""The arguments of `robolearn export`, checked before any stage runs."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from robolearn.config import registry
from robolearn.config.run_config import EXTERNAL, Config
from robolearn.core.contract import Contract
from robolearn.errors import ConfigError, did_you_mean, quote
from robolearn.export import profiles, target, team
from robolearn.export.bundle import require_replaceable
from robolearn.export.closed_loop import SECONDS, STARTS
from robolearn.export.onnx.graph import PRECISIONS
from robolearn.export.target import ExportTarget
from robolearn.learners.saved import find_run
from robolearn.runtime.bundle import canonical, difference
from robolearn.runtime.cuda import device_tree_model
from robolearn.runtime.engine import device
from robolearn.runtime.errors import NOT_HERE, Refused
from robolearn.runtime.measure import LEAST_STEPS
from robolearn.runtime.signature import private_key
from robolearn.training import runs
from robolearn.training.build import build_external
from robolearn.training.runs import Run

LARGEST_STARTS = 100_000


@dataclass(frozen=True)
class Request:
    """Arguments of one export."""

    run: str | None = None
    """See `robolearn.training.runs.open_run`."""
    overrides: tuple[str, ...] = ()
    target: str = "host"
    precision: str = "fp32"
    rate: float | None = None
    """Control rate on the robot [Hz]; None: that of the policy."""
    output: Path | None = None
    """Folder of the bundle; None: RUN/export/TARGET."""
    profiles: tuple[str, ...] = ()
    starts: int = STARTS
    """Paired starts of the closed loop."""
    seconds: float = SECONDS
    """Length of each [s]."""
    measure_seconds: float = 10.0
    """Duration of the measurement at the control rate [s]; 0: no measurement."""
    require_engine: bool = False
    require_measured: bool = False
    require_sim2sim: float | None = None
    """Least survival in other simulators, as a share of that in its own; None: they are not tried."""
    sign: Path | None = None
    """File of an ed25519 private key to sign the bundle with."""
    policy: str | None = None
    """Name of the policy to export, of a run with several; None: all of them."""


@dataclass(frozen=True)
class Checked:
    """A checked request."""

    request: Request
    found: Run
    target: ExportTarget
    on_target: bool
    """Whether this machine is the export target."""
    board: str | None
    """Name of this machine in its device tree; None where it has none."""
    engine_here: str
    """Why no engine can be built here for the export target; empty where one can."""
    trained: Config
    """Configuration of the run: `found.config` without `changes`."""
    changes: tuple[str, ...]
    """The overrides, without those that only name a file of the run again."""
    saved: Contract | None
    """The contract in the run's folder; None where it has none."""
    folder: Path
    """Of the bundle."""
    period: float
    """Control period [s]."""
    policy: str | None = None
    """Name of the policy to export, of a run with several; None: it has one."""


def check_request(request: Request) -> Checked:
    """Check a request before any stage runs.

    Raises:
        ConfigError: run, export target, precision, rate, profile, a number or the folder is invalid.
        Refused: NOT_HERE where this machine cannot do what --require-engine or --require-measured asks.
    """
    wanted = target.load(request.target)
    if request.precision not in PRECISIONS:
        hint = did_you_mean(request.precision, PRECISIONS) or "."
        raise ConfigError(
            f"unknown precision {quote(request.precision)}{hint} Valid: {', '.join(PRECISIONS)}"
        )
    for name in request.profiles:
        profiles.load(name)
    if request.sign is not None:
        private_key(request.sign)  # before the long stages
    if not 4 <= request.starts <= LARGEST_STARTS:
        raise ConfigError(f"--starts {request.starts} is not within 4..{LARGEST_STARTS}")
    for option, value, low in (
        ("--seconds", request.seconds, 0.02),
        ("--measure-seconds", request.measure_seconds, 0),
    ):
        if not low <= value <= 86400:
            raise ConfigError(f"{option} {value:g} is not within {low:g}..86400")
    if request.require_sim2sim is not None and not 0 <= request.require_sim2sim <= 1:
        raise ConfigError(f"--require-sim2sim {request.require_sim2sim:g} is not within 0..1")
    if request.rate is not None and not (math.isfinite(request.rate) and request.rate > 0):
        raise ConfigError(
            f"--rate {request.rate:g} Hz is not a control rate; give a positive number, or omit it"
        )

    board = device_tree_model()
    on_target = target.here(wanted, board)
    if request.require_measured and (not on_target or not request.measure_seconds):
        why = "--measure-seconds 0 measures nothing; raise it"
        if not on_target:
            why = f"this machine is {board or 'another'}; export on the target, or run there: python runtime.py measure"
        raise Refused(f"--require-measured for {wanted.name}: {why}", NOT_HERE)
    engine_here = _engine_here(wanted, on_target)
    if request.require_engine and engine_here:
        raise Refused(f"--require-engine for {wanted.name}: {engine_here}", NOT_HERE)
    if request.precision == "bf16" and request.require_measured and engine_here:
        raise Refused(f"--require-measured in bf16 needs TensorRT: {engine_here}", NOT_HERE)

    changes = tuple(word for word in request.overrides if not _names_a_file(word))
    for word in changes:
        if word.partition("=")[0].partition(".")[0] == "learner":
            raise ConfigError(f"{quote(word)} could change the network; omit learner settings")
        if word.lstrip("+~").startswith("task.rewards"):
            raise ConfigError(
                f"{quote(word)} would change the return, which the closed loop compares; omit reward settings"
            )
    found = runs.open_run(request.run, request.overrides)
    files = tuple(word for word in request.overrides if _names_a_file(word))
    trained = runs.open_run(request.run, files).config if changes else found.config
    period = trained.task.control_dt
    if found.config.backend_name == EXTERNAL:
        if request.require_sim2sim is not None:
            raise ConfigError(
                f"--require-sim2sim: task={found.config.task_name} brings its own simulator; there is no other one"
            )
        if request.profiles:
            raise ConfigError(
                f"--profile {request.profiles[0]} needs joints, and task={found.config.task_name} has none; omit it"
            )
        period = _period_of(found.config)
    if request.rate is not None and abs(request.rate * period - 1) > 0.01:
        raise ConfigError(
            f"--rate {request.rate:g} Hz: the policy was trained at {1 / period:g} Hz (control_dt={period:g} s) and "
            "works only at that rate; omit --rate, or train with another task.control_dt"
        )
    least = LEAST_STEPS * period
    if request.require_measured and request.measure_seconds < least:
        raise Refused(
            f"--require-measured needs {LEAST_STEPS} control steps: --measure-seconds {least:g} or more",
            NOT_HERE,
        )
    _require_finite(found)
    folder = Path(os.path.abspath(request.output or found.folder / "export" / wanted.name))
    chosen = team.require_policy(found, request.policy)
    if chosen is None and team.of(found) is not None:
        team.require_replaceable(folder)
    else:
        require_replaceable(folder)
    runs.require_writable(folder.parent)
    saved = _saved_contract(found)
    return Checked(
        *(request, found, wanted, on_target, board, engine_here, trained, changes, saved, folder, period),
        policy=chosen,
    )


def _period_of(config: Config) -> float:
    """Control period of an external environment [s].

    Raises:
        ConfigError: neither the environment nor task.control_dt states it.
    """
    if config.task.control_dt:
        return float(config.task.control_dt)
    env = build_external(config, 1)
    try:
        if not env.dt_known:
            raise ConfigError(
                f"task={config.task_name} does not state its control period, which a robot needs: add "
                "task.control_dt=0.02, in seconds, here or in training"
            )
        return env.dt
    finally:
        env.close()


def _names_a_file(word: str) -> bool:
    """Whether an override names a file, such as `task=my_task.py:MyTask`."""
    key, _, value = word.partition("=")
    return key in ("task", "task.robot", "backend", "learner") and (
        ".py:" in value or registry.is_file(value)
    )


def _engine_here(wanted: ExportTarget, on_target: bool) -> str:
    if not on_target:
        return "an engine runs only on the device that built it; on the robot: python runtime.py build"
    try:
        device()
    except Refused as error:
        return str(error)
    return ""


def _require_finite(found: Run) -> None:
    """Refuse weights that are not finite; the first is named."""
    # The policy entry is what is exported; the actor's weights are what a resume would train further.
    entry = found.content.get("policy")
    entry = entry if isinstance(entry, dict) else {}
    states = {"": entry.get("state")}
    states |= {f"{name}.": each.get("state") for name, each in entry.get("policies", {}).items()}
    exported = {
        f"{name}{key}": value
        for name, state in states.items()
        if isinstance(state, dict)
        for key, value in state.items()
    }
    for name, value in {**found.content.get("actor_state_dict", {}), **exported}.items():
        if isinstance(value, torch.Tensor) and not bool(torch.isfinite(value.float()).all()):
            bad = int((~torch.isfinite(value.float())).sum())
            raise ConfigError(
                f"{quote(found.name, 120)}: weight {name} is not finite in {bad} of {value.numel()} entries because "
                "training diverged; export an earlier checkpoint from checkpoints/"
            )


def _saved_contract(found: Run) -> Contract | None:
    """The contract.json of the run; None where there is none."""
    path = find_run(found.name)[0] / "contract.json"
    if not path.is_file():
        return None
    try:
        return Contract.load(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{quote(str(path), 120)} cannot be used: {error}") from None


def require_same(checked: Checked, trained: Contract, now: Contract) -> None:
    """Refuse an export whose contract differs from the one in training.

    Args:
        checked: the request.
        trained: contract of the run's configuration.
        now: contract with the overrides of the command.

    Raises:
        ConfigError: contract.json differs from the contract of robot and task today, or an override changes the
            contract; the first difference is named.
    """
    if checked.saved is not None and (found := difference(_plain(checked.saved), _plain(trained))):
        raise ConfigError(
            f"the run's contract.json and the robot differ: {found}; the file of the robot or task, or contract.json, "
            "was changed since training"
        )
    if found := difference(_plain(trained), _plain(now)):
        raise ConfigError(
            f"the settings change the policy's contract: {found}; settings of export may only change the simulation of "
            "the closed loop, such as task.pushes.speed; train with them instead"
        )


def _plain(contract: Contract) -> Any:
    return json.loads(canonical(asdict(contract)))
