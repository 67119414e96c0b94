"""Export of a policy of an external environment: no robot and no joints. The user's software assembles the observation,
and the outputs are the inputs of that environment."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from robolearn.config.run_config import Config
from robolearn.core.contract import Contract
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, RunFailed
from robolearn.export import bundle as bundles
from robolearn.export.closed_loop import DelayResult, Gap
from robolearn.export.controller import Exportable
from robolearn.export.external.controller import GivenController
from robolearn.export.external.loop import ExternalGap, closed_loop, one_step_late, record
from robolearn.export.external.report import report
from robolearn.export.record import Recording
from robolearn.export.request import Checked
from robolearn.external.env import ExternalEnv
from robolearn.learners.policy import Act
from robolearn.runtime.bundle import Bundle, canonical, difference
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.sessions import Session
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.training.build import build_external

UNITS = {
    "observations": "as the environment gives them",
    "targets": "what the environment is given: clip(offset + scale x action, lower, upper)",
    "control_dt": "s",
}
"""The manifest's `units`."""

PROBES = (-1e3, -2.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 1e3)
"""Actions for which the manifest's mapping is compared with the environment's."""


class ExternalTrial:
    """Checks of a bundle in external environments; `stages.RobotTrial` has the same methods for robots."""

    report = staticmethod(report)

    def __init__(self, checked: Checked, act: Act) -> None:
        self.checked, self.act = checked, act
        self.config = _in_one_process(checked.found.config)

    def contract(self) -> Contract:
        """The policy's contract.

        Raises:
            ConfigError: the environment has changed since training, or an override changes it.
        """
        now, _ = _contract(self.config)
        trained, known, saved = now, True, self.checked.saved
        if self.checked.changes:
            trained, known = _contract(_in_one_process(self.checked.trained))
        if not known:  # the control period was unknown in training, so setting it now changes nothing
            trained = replace(trained, control_dt=now.control_dt)
            saved = saved and replace(saved, control_dt=now.control_dt)
        if saved is not None and (found := difference(_plain(saved), _plain(trained))):
            raise ConfigError(
                f"the run's contract.json and its environment differ: {found}; the environment or contract.json was "
                "changed since training"
            )
        if found := difference(_plain(trained), _plain(now)):
            raise ConfigError(
                f"the settings change the policy's contract: {found}; settings of export may only change the "
                "environment of the closed loop; train with them instead"
            )
        return now

    def title(self, contract: Contract) -> str:
        """Name of the exported task."""
        return contract.task

    def notes(self, controller: Exportable) -> dict[str, Any]:
        """Further entries of the manifest."""
        return {"units": UNITS, "command_ranges": {}}

    def entry(self, contract: Contract) -> dict[str, Any]:
        """The contract as in the manifest."""
        return bundles.contract_entry(contract)

    def controller(self, network: nn.Module, recurrent: dict[str, Tensor]) -> Exportable:
        """What runs beside the user's software, around the exported network."""
        env = build_external(self.config, 1, NEVER_TRAINED)
        try:
            return GivenController(len(env.columns["policy"]), env.actions, network, recurrent)
        finally:
            env.close()

    def write(self, folder: Path, controller: Exportable) -> None:
        """Nothing: there is no robot."""

    def record(self, robots: int, steps: int, controller: Exportable) -> Recording:
        """Record `steps` control steps of the trained policy in `robots` environments."""
        env = build_external(self.config, robots, NEVER_TRAINED)
        try:
            return record(env, self.act, steps, {k: v.numpy() for k, v in controller.initial.items()})
        except RunFailed as error:
            raise Refused(f"the trained policy cannot be run: {error}", NOT_THE_SAME) from None
        finally:
            env.close()

    def agree(self, bundle: Bundle, recording: Recording) -> str:
        """Compare the written contract with a new environment; returns a line for the user.

        Raises:
            Refused: NOT_THE_SAME; the first difference is named.
        """
        env = build_external(self.config, len(PROBES), NEVER_TRAINED)
        try:
            require_consistent(bundle, env)
        finally:
            env.close()
        columns, actions = (len(x) for x in (env.columns["policy"], env.actions.names))
        return f"columns ({columns}), actions ({actions}), scale, limits and dt equal the environment's; replayed"

    def closed_loop(self, bundle: Bundle, driving: Session) -> tuple[Gap, DelayResult]:
        """Compare the bundle with the trained policy; then run it with outputs one control step late."""
        request = self.checked.request
        gap = closed_loop(self.config, self.act, bundle, driving, request.starts, request.seconds)
        return gap, one_step_late(self.config, bundle, driving, request.starts, request.seconds)

    def findings(self, gap: Gap, late: DelayResult) -> list[tuple[str, str, str]]:
        """Arguments of `stages.show` for both results."""
        assert isinstance(gap, ExternalGap)
        said = "outputs one control step late: the return is not finite"
        if ran := math.isfinite(late.mean_return):
            said = f"outputs one control step late: return {late.mean_return:.4g}, on time {gap.bundle_return:.4g}; "
            said += f"{round(gap.starts * (1 - late.survival))} of {gap.starts} terminated"
        return [
            ("ok" if gap.thorough and gap.conclusive else "warn", "closed loop", str(gap)),
            ("ok" if ran else "warn", "delay", said),
        ]


def require_consistent(bundle: Bundle, env: ExternalEnv) -> None:
    """Compare a bundle's contract with an environment: columns, actions, control period, and the mapping of actions.

    Raises:
        Refused: NOT_THE_SAME; the first difference is named.
    """
    contract, actions = bundle.contract, env.actions
    (item,) = contract["observations"]
    width = int(env.observations["policy"].shape[1])
    pairs: list[tuple[str, Any, Any]] = [("control_dt", contract["control_dt"], env.dt)]
    pairs.append(("width of the observation", item["width"], width))
    pairs += [
        (f"column {i} of the observation", stated, actual)
        for i, (stated, actual) in enumerate(zip(item["columns"], env.columns["policy"], strict=False))
    ]
    pairs.append(("actions", [a["joint"] for a in contract["actions"]], list(actions.names)))
    ends = {"offset": actions.offset, "scale": actions.scale, "lower": actions.low, "upper": actions.high}
    for i, action in enumerate(contract["actions"]):
        for key, values in ends.items():
            value = float(values[i])
            pairs.append(
                (f"{key} of {action['joint']}", action[key], value if math.isfinite(value) else None)
            )
    for name, stated, actual in pairs:
        if stated != actual:
            raise Refused(
                f"the manifest differs from the environment: {name}: the manifest says {stated}, the environment "
                f"{actual}",
                NOT_THE_SAME,
            )
    probes = torch.tensor(PROBES, device=env.device)[:, None].expand(-1, env.num_actions)
    column = {key: np.array([a[key] for a in contract["actions"]], float) for key in ("offset", "scale")}
    low, high = (
        np.array([end if a[key] is None else a[key] for a in contract["actions"]], float)
        for key, end in (("lower", -math.inf), ("upper", math.inf))
    )
    mapped = np.clip(column["offset"] + column["scale"] * probes.cpu().numpy(), low, high)
    off = np.abs(mapped - env.actions.given(probes).cpu().numpy())
    if not (off <= 1e-5 * np.maximum(1.0, np.abs(mapped))).all():
        row, i = divmod(int(np.nanargmax(off)), off.shape[1])
        raise Refused(
            f"the manifest differs from the environment: {PROBES[row]:g} as {actions.names[i]} is mapped "
            "differently",
            NOT_THE_SAME,
        )


def _contract(config: Config) -> tuple[Contract, bool]:
    """(contract of the environment, whether its control period is known)."""
    env = build_external(config, 1)
    try:
        return env.contract(), env.dt_known
    finally:
        env.close()


def _in_one_process(config: Config) -> Config:
    """The configuration without one process per environment, since export makes hundreds of environments."""
    if getattr(config.task, "vectorization", "") != "async":
        return config
    task: Any = config.task
    return replace(config, task=replace(task, vectorization="sync"))


def _plain(contract: Contract) -> Any:
    return json.loads(canonical(asdict(contract)))
