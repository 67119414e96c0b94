"""TensorTask and TensorEnv: simulators that step N robots at once, in tensors on one device."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, listing
from robolearn.external.env import NO_LIMIT, Actions, ExternalEnv, Transition
from robolearn.external.failures import failing
from robolearn.external.task import ExternalTask

POLICY = ("policy", "actor")
"""Names under which the policy's observation group is looked up, in this order."""

CRITIC = ("critic", "state", "states", "privileged")
"""Names of the critic's group; without one the critic observes the policy's."""


@dataclass
class TensorTask(ExternalTask):
    """A task with a configuration object, whose environments have named observation groups."""

    devices: ClassVar[tuple[str, ...]] = ("cuda", "cpu")

    cfg: dict[str, Any] = field(default_factory=dict, metadata={"open": True})
    """Settings of the task's configuration object by dotted key: task.cfg.episode_length_s=5."""
    policy_groups: list[str] = field(default_factory=list)
    """Observation groups of the policy, side by side; empty: the group `policy` or `actor`."""
    critic_groups: list[str] = field(default_factory=list)
    """Observation groups of the critic; empty: the group `critic`, else the policy's."""


class Groups:
    """The environment's observation groups that policy and critic observe, as flat rows."""

    def __init__(
        self,
        task: TensorTask,
        first: Any,
        terms: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        """
        Args:
            task: its `policy_groups` and `critic_groups` choose groups.
            first: the environment's first observations by group.
            terms: names and widths of a group's terms, in order, where they are known.

        Raises:
            ConfigError: the policy's group is not determined, a group does not exist, or it is an image.
        """
        if not isinstance(first, Mapping):
            raise ConfigError(
                f"task={task.name} observes {type(first).__name__}, not a dictionary of groups such as `policy`"
            )
        self._parts = _chosen(task, list(first))
        for group in {part for parts in self._parts.values() for part in parts}:
            _require_rows(first[group], task.name, group)
        self.columns = {
            ours: [column for part in parts for column in _columns(first[part], part, terms.get(part, ()))]
            for ours, parts in self._parts.items()
        }
        """Names of the columns of `policy` and `critic`."""

    def rows(self, observed: Mapping[str, Any]) -> dict[str, Tensor]:
        """(N, D) float32 per group; copies, because the environment overwrites its tensors."""
        made: dict[tuple[str, ...], Tensor] = {}
        for parts in self._parts.values():
            if parts not in made:
                made[parts] = torch.cat([_flat(observed[part]) for part in parts], dim=1)
        return {ours: made[parts] for ours, parts in self._parts.items()}


def _chosen(task: TensorTask, there: list[str]) -> dict[str, tuple[str, ...]]:
    def named(wanted: list[str], setting: str) -> tuple[str, ...]:
        for group in wanted:
            if group not in there:
                raise ConfigError(
                    f"task.{setting}: task={task.name} has no observation group {group!r}; valid: {listing(there)}"
                )
        return tuple(wanted)

    policy = named(task.policy_groups, "policy_groups") or tuple(g for g in POLICY if g in there)[:1]
    if not policy and len(there) == 1:
        policy = (there[0],)
    if not policy:
        raise ConfigError(
            f"task={task.name} has the observation groups {listing(there)}: choose the policy's, "
            f"task.policy_groups=[{there[0] if there else 'GROUP'}]"
        )
    critic = named(task.critic_groups, "critic_groups") or tuple(g for g in CRITIC if g in there)[:1]
    return {"policy": policy, "critic": critic or policy}


def _require_rows(values: Any, name: str, path: str) -> None:
    if isinstance(values, Mapping):
        for key, inner in values.items():
            _require_rows(inner, name, f"{path}.{key}")
        return
    if not isinstance(values, torch.Tensor):
        raise ConfigError(f"task={name}: the observation {path} is {type(values).__name__}, not a tensor")
    if values.ndim > 3 or values.dtype == torch.uint8:
        shape = "x".join(str(size) for size in values.shape[1:])
        raise ConfigError(
            f"task={name}: the observation group {path} is an image ({shape}), but policies take flat "
            "observations; choose other groups with task.policy_groups and task.critic_groups"
        )


def _flat(values: Any) -> Tensor:
    if isinstance(values, Mapping):
        return torch.cat([_flat(inner) for inner in values.values()], dim=1)
    rows: Tensor = values.detach().reshape(len(values), -1).to(torch.float32)
    return rows


def _columns(values: Any, path: str, terms: Sequence[tuple[str, int]]) -> list[str]:
    if isinstance(values, Mapping):
        return [column for key, inner in values.items() for column in _columns(inner, str(key), ())]
    width = _flat(values).shape[1]
    if values.ndim == 2 and sum(size for _, size in terms) == width:
        return [f"{term}[{i}]" for term, size in terms for i in range(size)]
    return [f"{path}[{i}]" for i in range(width)]


class TensorEnv(ExternalEnv):
    """Environments simulated by one object with `reset`, `step` and, in some cases, managers.

    A door derives from it and implements `_advance`: how episodes end, and where their terminal observations are.
    """

    joints: ClassVar[str] = "joint_names"
    """The attribute of an action term with the names of its joints."""

    def __init__(self, task: TensorTask, inner: Any, device: torch.device) -> None:
        """
        Args:
            task: its settings.
            inner: the object with all environments; closed if this constructor raises.
            device: of actions, observations and rewards.

        Raises:
            ConfigError: its observations or actions do not fit a policy.
        """
        self.inner = inner
        try:
            with failing("reset", task.name):
                first, _ = inner.reset()
            columns = self._observed(task, first, device)
            actions = self._actions(task, device)
        except BaseException:
            self.close()
            raise
        # 0 means no time limit.
        limit = int(inner.max_episode_length) or NO_LIMIT
        dt = task.control_dt or float(inner.step_dt)
        super().__init__(task.name, inner.num_envs * self.agents, device, dt, limit, actions, columns)
        # With a finite horizon a time-out is a termination: it is not bootstrapped.
        self._finite = bool(getattr(inner.cfg, "is_finite_horizon", False))
        self.reset()

    def _observed(self, task: TensorTask, first: Any, device: torch.device) -> dict[str, list[str]]:
        """Names of the columns of each observation group, of which `first` are the first observations.

        Raises:
            ConfigError: the observations do not fit a policy.
        """
        self._groups = Groups(task, first, terms_of(self.inner))
        return self._groups.columns

    @abstractmethod
    def _actions(self, task: TensorTask, device: torch.device) -> Actions:
        """The mapping of actions. Raises ConfigError if the action space does not fit a policy."""
        raise NotImplementedError

    def _start(self, stagger: bool) -> dict[str, Tensor]:
        with failing("reset", self.name):
            observed, _ = self.inner.reset()
        rows = self._rows(observed)
        # Tasks spread them by themselves where all environments are reset; episodes are to be whole.
        self.inner.episode_length_buf[:] = 0
        if stagger:
            # Spread ages over the episode; otherwise all environments would time out in the same step, again and again.
            ages = torch.randint_like(self.inner.episode_length_buf, self.max_episode_steps)
            self.inner.episode_length_buf[:] = ages
        return rows

    def _transition(
        self,
        observations: dict[str, Tensor],
        terminal: dict[str, Tensor],
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        log: Mapping[str, Any] | None,
    ) -> Transition:
        """A Transition of the environments' tensors, copied where the environments overwrite them."""
        truncated = truncated.to(self.device, torch.bool, copy=True)
        terminated = terminated.to(self.device, torch.bool, copy=True)
        if self._finite:
            terminated, truncated = terminated | truncated, torch.zeros_like(truncated)
        return Transition(
            observations,
            reward.to(self.device, torch.float32, copy=True),
            terminated,
            truncated,
            terminal,
            log=self._log(log),
        )

    def _log(self, log: Mapping[str, Any] | None) -> dict[str, float]:
        """The numbers that an environment logs; of tensors, their mean."""
        numbers = {key: _number(value) for key, value in (log or {}).items()}
        return {key: value for key, value in numbers.items() if value is not None}

    def _rows(self, observed: Mapping[str, Any]) -> dict[str, Tensor]:
        return {group: rows.to(self.device) for group, rows in self._groups.rows(observed).items()}

    def _action_names(self, width: int) -> tuple[str, ...]:
        """Names of the columns of an action: term and joint, or term and number; () without an action manager."""
        manager = getattr(self.inner, "action_manager", None)
        if manager is None:
            return ()
        names: list[str] = []
        for term, size in zip(manager.active_terms, manager.action_term_dim, strict=True):
            joints = getattr(manager.get_term(term), self.joints, None) or ()
            each = (
                [f".{joint}" for joint in joints] if len(joints) == size else [f"[{i}]" for i in range(size)]
            )
            names += [f"{term}{one}" for one in each]
        return tuple(names) if len(names) == width else ()

    def close(self) -> None:
        """Free the environments."""
        self.inner.close()


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppress what simulators and Warp print while they start, and from then on the warnings of `loggers`.

    Exceptions and logged errors are not suppressed.
    """
    importlib.import_module("robolearn.envs.warp_graphs").quiet()
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def terms_of(inner: Any) -> dict[str, list[tuple[str, int]]]:
    """Names and widths of the terms of each observation group; empty without an observation manager."""
    manager = getattr(inner, "observation_manager", None)
    if manager is None:
        return {}
    found: dict[str, list[tuple[str, int]]] = {}
    for group, names in manager.active_terms.items():
        sizes = [int(torch.Size(shape).numel()) for shape in manager.group_obs_term_dim[group]]
        found[group] = list(zip(names, sizes, strict=True))
    return found


def mixed(ended: Tensor, there: Mapping[str, Tensor], elsewhere: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(N, D) per group: `there` for environments in `ended` (N,), `elsewhere` for the others."""
    return {group: torch.where(ended[:, None], there[group], elsewhere[group]) for group in elsewhere}


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.detach().float().mean()) if value.numel() else None
    return float(value) if isinstance(value, int | float) else None
