"""A flight recorder: keeps what entered a simulator in the last second, so that a failure can be replayed bit for bit.

It stands between an Env and its backend and notes every call that changes the simulation: joint targets, pushes,
parameters, resets. A dump holds one environment: a snapshot from before, and its inputs since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from robolearn.core.checksum import checksum
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.envs.agents import AgentBackend
from robolearn.envs.backend import Backend, Capabilities, Snapshot, TerrainBackend
from robolearn.envs.scene import ROBOT
from robolearn.envs.state import Initial, InitialState, State, Targets, Tensor, by_entity

SECONDS = 1.0
"""A dump reaches back at least this far [s], where the simulation is as old."""

Event = dict[str, Any]
"""One call of a backend: `kind` and its arguments, of plain values and tensors."""


@dataclass
class _Stretch:
    """A snapshot and the calls since."""

    snapshot: Snapshot
    events: list[Event] = field(default_factory=list)
    steps: int = 0


class Recorder:
    """A Backend that passes every call on to another one and remembers those of the last second."""

    def __init__(self, backend: Backend, steps: int, agents: int = 1) -> None:
        """`steps`: length of a stretch in control steps; one to two stretches are kept. There are `agents` environments
        of the Env, which are numbered here, for each of the backend."""
        self._backend, self._length, self._agents = backend, max(1, steps), agents
        self.num_envs, self.device = backend.num_envs, backend.device
        self.capabilities: Capabilities = backend.capabilities
        self.features = backend.features
        self._older: _Stretch | None = None
        self._newer = _Stretch(backend.snapshot())
        self._armed: int | None = None
        self._end: dict[str, Any] | None = None
        self._catches_divergence = False
        self._held: tuple[int, dict[str, Any]] | None = None

    @classmethod
    def install(cls, env: Env, seconds: float = SECONDS) -> Recorder:
        """Record an Env from now on."""
        agents = env.backend if isinstance(env.backend, AgentBackend) else None
        backend = env.backend if agents is None else agents.worlds
        if isinstance(backend, Recorder):
            return backend
        recorder = cls(backend, round(seconds / env.dt), env.agents)
        made = cast(Backend, recorder)  # its features are those of one backend, not of a class
        if agents is None:
            env.backend = made
        else:
            agents.worlds = made
        return recorder

    @classmethod
    def for_training(cls, env: LearnerEnv) -> Recorder | None:
        """Record until the first environment diverges, which is held; None for environments that a replay could not
        repeat bit for bit."""
        if not isinstance(env, Env) or env.gradients or not env.capabilities.exact_restore:
            return None
        recorder = cls.install(env)
        recorder._catches_divergence = True
        return recorder

    @property
    def state(self) -> State:
        """See `Backend.state`."""
        return self._backend.state

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`."""
        starts = (
            {} if isinstance(initial, Mapping) and not initial else by_entity(initial, self.state.entities)
        )
        if self._armed is not None and bool(mask[self._armed // self._agents]):
            self._held = self._armed, self._end or self.dump(self._armed)
            self._armed = self._end = None
        self._note("reset", mask=mask.clone(), initial={k: _cloned(vars(v)) for k, v in starts.items()})
        self._backend.reset(mask, initial)

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`."""
        targets = dict(joint_targets) if isinstance(joint_targets, Mapping) else {ROBOT: joint_targets}
        if self._newer.steps >= self._length:
            self._older, self._newer = self._newer, _Stretch(self._backend.snapshot())
        self._end = None  # the episode goes on
        self._note("step", targets=_cloned(targets), substeps=substeps)
        self._newer.steps += 1
        self._backend.step(joint_targets, substeps)
        if self._catches_divergence and bool(self.state.diverged.any()):
            self._catches_divergence = False
            row = self._agents * int(self.state.diverged.nonzero()[0])
            self._held = row, self.dump(row)

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        if mask.any():
            self._note("push", mask=mask.clone(), **_cloned({"jump": jump, "turn": turn}))
        self._backend.push(mask, jump, turn)

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`."""
        self._note("force", **_cloned({"force": force}))
        self._backend.apply_force(force)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return self._backend.snapshot()

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        self._backend.restore(snapshot, source_rows)
        self._older, self._newer = None, _Stretch(self._backend.snapshot())

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        self._keep_end(mask)
        self._note("params", mask=mask.clone(), params=_cloned(params))
        self._backend.set_params(mask, params)

    def place(self, mask: Tensor, origins: Tensor) -> None:
        """See `TerrainBackend.place`."""
        self._keep_end(mask)
        self._note("place", mask=mask.clone(), **_cloned({"origins": origins}))
        cast(TerrainBackend, self._backend).place(mask, origins)

    def check(self) -> None:
        """See `Backend.check`."""
        self._backend.check()

    def close(self) -> None:
        """See `Backend.close`."""
        self._backend.close()

    def arm(self, env: int) -> None:
        """Hold a dump of environment `env` when its episode ends next, from just before the next one replaces it."""
        self._armed = env

    def take(self) -> tuple[int, dict[str, Any]] | None:
        """(environment, its dump) that is held, once; None where none is."""
        held, self._held = self._held, None
        return held

    def _keep_end(self, mask: Tensor) -> None:
        """Keep what an armed dump would hold: place and parameters of the next episode come before its start."""
        if self._armed is not None and self._end is None and bool(mask[self._armed // self._agents]):
            self._end = self.dump(self._armed)

    def _note(self, kind: str, **values: Any) -> None:
        self._newer.events.append({"kind": kind, **values})

    def dump(self, env: int) -> dict[str, Any]:
        """What a replay of environment `env`, or of its world, needs: `snapshot`, `events`, and the `checksum` of its
        State now."""
        env //= self._agents
        stretches = [s for s in (self._older, self._newer) if s is not None]
        events = [_row(event, env, self.num_envs) for stretch in stretches for event in stretch.events]
        return {
            "snapshot": _row(stretches[0].snapshot, env, self.num_envs),
            "events": [event for event in events if event is not None],
            "checksum": checksum(self.state.rows(torch.tensor([env], device=self.device))),
        }


def play_event(backend: Backend, event: Event) -> None:
    """Repeat one recorded call in a backend of one environment."""
    device = backend.device
    mask = torch.ones(1, dtype=torch.bool, device=device)
    kind = event["kind"]
    if kind == "step":
        backend.step({name: value.to(device) for name, value in event["targets"].items()}, event["substeps"])
    elif kind == "push":
        turn = None if event["turn"] is None else event["turn"].to(device)
        backend.push(mask, event["jump"].to(device), turn)
    elif kind == "force":
        backend.apply_force(event["force"].to(device))
    elif kind == "params":
        backend.set_params(mask, {name: value.to(device) for name, value in event["params"].items()})
    elif kind == "place":
        cast(TerrainBackend, backend).place(mask, event["origins"].to(device))
    elif kind == "reset":
        starts = {
            name: InitialState(**{k: v.to(device) for k, v in start.items()})
            for name, start in event["initial"].items()
        }
        backend.reset(mask, starts)


def _cloned(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def _row(value: Any, env: int, num_envs: int) -> Any:
    """One environment of a tree of tensors (N, ...); None for an event that is not of this environment."""
    if isinstance(value, dict):
        mask = value.get("mask")
        if "kind" in value and isinstance(mask, torch.Tensor) and not bool(mask[env]):
            return None
        return {k: _row(v, env, num_envs) for k, v in value.items() if k != "mask"}
    if isinstance(value, torch.Tensor):
        if value.shape[:1] != (num_envs,):
            raise ValueError(f"a tensor {tuple(value.shape)} has no row for each of {num_envs} environments")
        return value[env : env + 1].detach().cpu().clone()
    return value
