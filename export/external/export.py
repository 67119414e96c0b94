"""Exporting the policy of somebody else's environment: no robot, no joints; the observation is the user's to put
together, and an action becomes what that environment would be given."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from robolearn.commands.evaluate import NEVER_TRAINED
from robolearn.config.run_config import Config
from robolearn.core.contract import Contract
from robolearn.errors import ConfigError, RunFailed
from robolearn.export.closed_loop import Gap, Late
from robolearn.export.external.loop import ExternalGap, closed_loop, one_step_late, record
from robolearn.export.external.report import report
from robolearn.export.record import Recording
from robolearn.export.request import Checked
from robolearn.external.env import ExternalEnv
from robolearn.learners.policy import Act
from robolearn.runtime.bundle import Bundle, canonical, difference
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.sessions import Session
from robolearn.training.build import build_external

UNITS = {
    "observations": "as the environment gives them",
    "targets": "what the environment is given: clip(offset + scale x action, lower, upper)",
    "control_dt": "s",
}
"""The manifest's `units`."""

PROBES = (-1e3, -2.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 1e3)
"""Actions that a manifest's mapping is compared with the environment's over."""


class ExternalTrial:
    """Somebody else's environments, which a bundle is held against. The other kind is `stages.RobotTrial`."""

    report = staticmethod(report)

    def __init__(self, checked: Checked, act: Act) -> None:
        self.checked, self.act = checked, act
        self.config = _in_one_process(checked.found.config)

    def contract(self) -> Contract:
        """The policy's contract.

        Raises:
            ConfigError: the environment is not the one of training any more, or an override makes another of it.
        """
        now, _ = _contract(self.config)
        trained, known, saved = now, True, self.checked.saved
        if self.checked.changes:
            trained, known = _contract(_in_one_process(self.checked.trained))
        if not known:  # nobody knew the control period in training: to tell it now changes nothing
            trained = replace(trained, control_dt=now.control_dt)
            saved = saved and replace(saved, control_dt=now.control_dt)
        if saved is not None and (found := difference(_plain(saved), _plain(trained))):
            raise ConfigError(
                f"the run's contract.json and its environment as it is now disagree: {found}; the environment was "
                "changed since training, or contract.json was"
            )
        if found := difference(_plain(trained), _plain(now)):
            raise ConfigError(
                f"the settings change what was trained: {found}; here they may only change the environment that it is "
                "tried in; train with them instead"
            )
        return now

    def title(self, contract: Contract) -> str:
        """What is exported."""
        return contract.task

    def notes(self) -> dict[str, Any]:
        """What else the manifest says."""
        return {"units": UNITS, "command_ranges": {}}

    def record(self, robots: int, steps: int) -> Recording:
        """What the trained policy does."""
        env = build_external(self.config, robots, NEVER_TRAINED)
        try:
            return record(env, self.act, steps)
        except RunFailed as error:
            raise Refused(f"the trained policy itself does not run: {error}", NOT_THE_SAME) from None
        finally:
            env.close()

    def agree(self, bundle: Bundle, recording: Recording) -> str:
        """Hold the written contract against a fresh environment; what was found.

        Raises:
            Refused: they differ; the first difference is named.
        """
        env = build_external(self.config, len(PROBES), NEVER_TRAINED)
        try:
            require_consistent(bundle, env)
        finally:
            env.close()
        columns, actions = (len(x) for x in (env.columns["policy"], env.actions.names))
        return f"columns ({columns}), actions ({actions}), their scale and ends, and dt as the environment's; replayed"

    def closed_loop(self, bundle: Bundle, driving: Session) -> tuple[Gap, Late]:
        """The bundle beside the trained policy; and with its outputs one control step late."""
        asked = self.checked.request
        gap = closed_loop(self.config, self.act, bundle, driving, asked.starts, asked.seconds)
        return gap, one_step_late(self.config, bundle, driving, asked.starts, asked.seconds)

    def findings(self, gap: Gap, late: Late) -> list[tuple[str, str, str]]:
        """Lines about them, as `stages.show` takes them."""
        assert isinstance(gap, ExternalGap)
        said = "outputs one control step late: numbers that are not finite"
        if ran := math.isfinite(late.mean_return):
            said = f"outputs one control step late: return {late.mean_return:.4g}, in time {gap.bundle_return:.4g}; "
            said += f"{round(gap.starts * (1 - late.survival))} of {gap.starts} terminated"
        return [
            ("ok" if gap.thorough and gap.decided else "warn", "closed loop", str(gap)),
            ("ok" if ran else "warn", "delay", said),
        ]


def require_consistent(bundle: Bundle, env: ExternalEnv) -> None:
    """Hold a bundle's contract against an environment: names, order and number of columns, time, and what becomes of
    actions.

    Raises:
        Refused: the first difference is named.
    """
    contract, actions = bundle.contract, env.actions
    (item,) = contract["observations"]
    width = int(env.observations["policy"].shape[1])
    pairs: list[tuple[str, Any, Any]] = [("control_dt", contract["control_dt"], env.dt)]
    pairs.append(("width of the observation", item["width"], width))
    pairs += [
        (f"column {i} of the observation", said, own)
        for i, (said, own) in enumerate(zip(item["columns"], env.columns["policy"], strict=False))
    ]
    pairs.append(("actions", [a["joint"] for a in contract["actions"]], list(actions.names)))
    ends = {"offset": actions.offset, "scale": actions.scale, "lower": actions.low, "upper": actions.high}
    for i, said in enumerate(contract["actions"]):
        for key, own in ends.items():
            value = float(own[i])
            pairs.append((f"{key} of {said['joint']}", said[key], value if math.isfinite(value) else None))
    for name, said, is_so in pairs:
        if said != is_so:
            raise Refused(f"the manifest is not the environment's: {name}: {said} and {is_so}", NOT_THE_SAME)
    probes = torch.tensor(PROBES, device=env.device)[:, None].expand(-1, env.num_actions)
    column = {key: np.array([a[key] for a in contract["actions"]], float) for key in ("offset", "scale")}
    low, high = (
        np.array([end if a[key] is None else a[key] for a in contract["actions"]], float)
        for key, end in (("lower", -math.inf), ("upper", math.inf))
    )
    said_given = np.clip(column["offset"] + column["scale"] * probes.cpu().numpy(), low, high)
    off = np.abs(said_given - env.actions.given(probes).cpu().numpy())
    if not (off <= 1e-5 * np.maximum(1.0, np.abs(said_given))).all():
        row, i = divmod(int(np.nanargmax(off)), off.shape[1])
        raise Refused(
            f"the manifest is not the environment's: {PROBES[row]:g} as {actions.names[i]} is another number there",
            NOT_THE_SAME,
        )


def _contract(config: Config) -> tuple[Contract, bool]:
    """The contract of an environment, and whether its control period is known."""
    env = build_external(config, 1)
    try:
        return env.contract(), env.dt_known
    finally:
        env.close()


def _in_one_process(config: Config) -> Config:
    """The same environments without a process for each of them: hundreds are made here."""
    if getattr(config.task, "vectorization", "") != "async":
        return config
    task: Any = config.task
    return replace(config, task=replace(task, vectorization="sync"))


def _plain(contract: Contract) -> Any:
    return json.loads(canonical(asdict(contract)))
