"""ExternalEnv: somebody else's environments behind the interface of our own Env, as far as a learner sees it."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from robolearn.core.contract import SCHEMA, Contract
from robolearn.core.episode_stats import EpisodeStats
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.step_result import StepResult
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError

OBSERVED = "given"
"""What a contract calls an observation that the robot's own software puts together."""


NO_LIMIT = 100_000
"""Steps after which an evaluation gives up on an environment that states no time limit."""

WIDEST = 1e6
"""A wider action space is no range to span: its ends stand for none."""


@dataclass(frozen=True)
class Actions:
    """How a policy's actions become an environment's: offset + scale x action, clipped."""

    low: Tensor
    """(A,) the least the environment takes; -inf where it sets no bound."""
    high: Tensor
    """(A,) the most."""
    offset: Tensor
    """(A,)."""
    scale: Tensor
    """(A,)."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, low: Any, high: Any, kind: str, device: torch.device, names: tuple[str, ...] = ()) -> Actions:
        """From the bounds (A,) of an action space; `kind` as `ExternalTask.actions`. Those without bounds stay."""
        low, high = (
            torch.as_tensor(np.array(x, np.float32).ravel(), device=device).clone() for x in (low, high)
        )
        bounded = (low.abs() <= WIDEST) & (high.abs() <= WIDEST) & (kind == "scaled")
        offset = torch.where(bounded, (low + high) / 2, 0.0)
        scale = torch.where(bounded, (high - low) / 2, 1.0)
        return cls(low, high, offset, scale, names or tuple(f"action[{i}]" for i in range(len(low))))

    def given(self, action: Tensor) -> Tensor:
        """What the environment gets, (N, A)."""
        return torch.clamp(self.offset + self.scale * action, self.low, self.high)


@dataclass
class Transition:
    """What one step of N external environments came to, on the Env's device."""

    observations: dict[str, Tensor]
    """(N, D) a group, of the new episode where one ended and the environment has reset itself already."""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    terminal: dict[str, Tensor]
    """(N, D) a group, of the state that each step ended in."""
    valid: Tensor | None = None
    """(N,) bool: see `StepResult.valid`."""
    log: dict[str, float] = field(default_factory=dict)
    """Numbers that the environment tells about itself."""


class ExternalEnv:
    """N of somebody else's environments, reset by themselves as their episodes end.

    A door derives from it: `_start` and `_advance` talk to the environments. Actions are mapped to their space here,
    numbers that are not finite are told by name, episodes are counted.
    """

    gradients = False
    resets_take_a_step = False

    def __init__(
        self,
        name: str,
        num_envs: int,
        device: torch.device,
        dt: float,
        max_episode_steps: int,
        actions: Actions,
        columns: dict[str, list[str]],
    ) -> None:
        """
        Args:
            name: as the user wrote it.
            num_envs: N.
            device: of the tensors that come and go.
            dt: control period [s]; 0 where nobody knows it.
            max_episode_steps: no episode is longer.
            actions: the action space.
            columns: for each observation group what each of its columns is called.
        """
        self.name, self.num_envs, self.device = name, num_envs, device
        self.dt_known, self.dt = dt > 0, dt or 1.0
        """Control period [s]; 1 where it is not known, so that seconds are steps."""
        self.max_episode_steps = max_episode_steps
        self.actions, self.columns = actions, columns
        self.num_actions = len(actions.low)
        self.capabilities = Capabilities(
            name=name, timestep=self.dt, derived_lag=0, pd="explicit", exact_restore=False
        )
        self.read_at_once = device.type == "cpu"
        self.observations: dict[str, Tensor] = {}
        self.terminal_observations: dict[str, Tensor] = {}
        self.episode_step = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.episode_return = torch.zeros(num_envs, device=device)
        self._stats = EpisodeStats(["environment"], [], torch.ones(1, device=device), 1.0)
        self._sums = self._stats.empty()
        self._logged: dict[str, list[float]] = {}
        self._spoiled: dict[str, Tensor] = {}
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._nobody = ~self._everywhere

    # ------------------------------------------------------------------ what a door fills in

    @abstractmethod
    def _start(self, stagger: bool) -> dict[str, Tensor]:
        """Reset every environment; their observations (N, D) a group. `stagger`: spread their ages where possible."""
        raise NotImplementedError

    @abstractmethod
    def _advance(self, actions: Tensor) -> Transition:
        """One step with `actions` (N, A) of the environment's own space."""
        raise NotImplementedError

    def render(self) -> np.ndarray:
        """A picture (H, W, 3) uint8 of the first environment.

        Raises:
            ConfigError: it draws none.
        """
        raise ConfigError(f"task={self.name} draws no pictures")

    def close(self) -> None:
        """Free the environments."""

    # ------------------------------------------------------------------ what a learner sees

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere; see `Env.reset`."""
        self.observations = self._start(stagger)
        self.terminal_observations = dict(self.observations)
        self.episode_step = torch.zeros_like(self.episode_step)
        self.episode_return = torch.zeros_like(self.episode_return)
        self._look(self.observations, None)
        return self.observations

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period; `action` (N, A) of a policy. `joint_targets` (N, A) replace it where given.

        Raises:
            NonFiniteTerm: action, reward or an observation is not finite. On a GPU `drain` raises it.
        """
        action = action.detach().to(self.device)
        self._require_finite("action", action, self.actions.names)
        given = self.actions.given(action) if joint_targets is None else joint_targets.to(self.device)
        now = self._advance(given)
        self._look(now.terminal, now.reward)
        if now.terminal is not now.observations:
            self._look(now.observations, None)
        valid = self._everywhere if now.valid is None else now.valid
        terminated = now.terminated & valid
        truncated = now.truncated & ~now.terminated & valid
        reward = torch.where(valid, now.reward, 0.0)
        done = terminated | truncated
        # Where a reset took a step of its own, that step is no part of an episode.
        self.episode_step = self.episode_step + valid
        self.episode_return = self.episode_return + reward
        self._sums = self._stats.add(
            self._sums,
            reward[:, None],
            [],
            done,
            terminated,
            self._nobody,
            self.episode_return,
            self.episode_step * self.dt,
            valid,
        )
        self.episode_step = torch.where(done, 0, self.episode_step)
        self.episode_return = torch.where(done, 0.0, self.episode_return)
        for name, value in now.log.items():
            self._logged.setdefault(name, []).append(value)
        self.observations, self.terminal_observations = now.observations, now.terminal
        return StepResult(
            now.observations, reward, terminated, truncated, now.terminal, self._nobody, valid=now.valid
        )

    def check(self) -> None:
        """Raise NonFiniteTerm for what was not finite since the last call and, on a GPU, could not be told at once."""
        for what, bad in self._spoiled.items():
            if bool(bad.any()):
                self._spoiled = {}
                raise NonFiniteTerm(f"{what} of task={self.name} was not finite since the last iteration")

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name; see `EpisodeStats.means`. What the environment logged is in `metric/`."""
        self.check()
        logged = {f"metric/{name}": sum(values) / len(values) for name, values in self._logged.items()}
        self._logged = {}
        means, self._sums = self._stats.means(self._sums), self._stats.empty()
        return means | logged

    def symmetry(self) -> None:
        """Nothing is known of its left and right."""
        return

    def detach(self) -> None:
        """No gradient comes out of it."""

    def snapshot(self) -> dict[str, Any]:
        """Nothing: other people's environments cannot be put back where they were."""
        return {}

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Never called: a checkpoint holds no simulation of it."""
        raise NotImplementedError

    def contract(self) -> Contract:
        """What is known of the policy's two ends: columns in order, and how actions become the environment's."""
        policy = self.columns["policy"]
        rows = zip(self.actions.names, self.actions.offset.tolist(), self.actions.scale.tolist(), strict=True)
        ends = zip(_finite(self.actions.low), _finite(self.actions.high), strict=True)
        return Contract(
            schema=SCHEMA,
            task=re.sub(r":.*/([^/]+\.py:)", r":\1", self.name),  # wherever a user's file lies
            robot="",
            control_dt=self.dt,
            observations=[{"name": OBSERVED, "width": len(policy), "column": 0, "columns": policy}],
            joints=[],
            actions=[
                {
                    "joint": name,
                    "kind": OBSERVED,
                    "kp": 0.0,
                    "kd": 0.0,
                    "effort": 0.0,
                    "offset": o,
                    "scale": s,
                }
                | {"lower": low, "upper": high}
                for (name, o, s), (low, high) in zip(rows, ends, strict=True)
            ],
            command=[],
            action_delay=(0, 0),
            observation_delay=(0, 0),
            extra={},
        )

    def _look(self, groups: dict[str, Tensor], reward: Tensor | None) -> None:
        if reward is not None:
            self._require_finite("reward", reward[:, None], ("reward",))
        for group, values in groups.items():
            self._require_finite(f"{group} observation", values, self.columns[group])

    def _require_finite(self, kind: str, values: Tensor, names: Any) -> None:
        if not self.read_at_once:
            bad = ~torch.isfinite(values).all()
            self._spoiled[kind] = self._spoiled[kind] | bad if kind in self._spoiled else bad
            return
        if bool(torch.isfinite(values.sum())):
            return
        guilty = (~torch.isfinite(values)).nonzero().tolist()
        if guilty:
            row, column = guilty[0]
            raise NonFiniteTerm(
                f"{kind} {names[column]!r} of task={self.name} is not finite in environment {row} at step "
                f"{int(self.episode_step[row])} of its episode"
            )


def _finite(limits: Tensor) -> list[float | None]:
    """JSON has no infinity: an action without a bound has null."""
    return [x if abs(x) != float("inf") else None for x in limits.tolist()]
