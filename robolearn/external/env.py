"""ExternalEnv: environments of another library with the interface that learners use (`LearnerEnv`)."""

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
"""Name, in a contract, of observations and actions that the robot's own software assembles."""

NO_LIMIT = 100_000
"""Steps after which an evaluation stops waiting for an environment without a time limit."""

WIDEST = 1e6
"""Bounds of an action space beyond this count as unbounded."""


@dataclass(frozen=True)
class Actions:
    """Maps a policy's actions to an environment's: offset + scale x action, clipped."""

    low: Tensor
    """(A,) lower bounds of the environment's actions; -inf without a bound."""
    high: Tensor
    """(A,) upper bounds; inf without a bound."""
    offset: Tensor
    """(A,)."""
    scale: Tensor
    """(A,)."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, low: Any, high: Any, kind: str, device: torch.device, names: tuple[str, ...] = ()) -> Actions:
        """From the bounds (A,) of an action space; `kind` is `ExternalTask.actions`. Unbounded ones are not scaled."""
        low, high = (
            torch.as_tensor(np.array(x, np.float32).ravel(), device=device).clone() for x in (low, high)
        )
        bounded = (low.abs() <= WIDEST) & (high.abs() <= WIDEST) & (kind == "scaled")
        offset = torch.where(bounded, (low + high) / 2, 0.0)
        scale = torch.where(bounded, (high - low) / 2, 1.0)
        return cls(low, high, offset, scale, names or tuple(f"action[{i}]" for i in range(len(low))))

    def given(self, action: Tensor) -> Tensor:
        """The environment's actions (N, A)."""
        return torch.clamp(self.offset + self.scale * action, self.low, self.high)


@dataclass
class Transition:
    """Result of one step of N external environments, on the Env's device."""

    observations: dict[str, Tensor]
    """(N, D) per group; of the new episode where one ended and the environment has reset itself."""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    terminal: dict[str, Tensor]
    """(N, D) per group, of the state that each step ended in."""
    valid: Tensor | None = None
    """(N,) bool: see `StepResult.valid`."""
    log: dict[str, float] = field(default_factory=dict)
    """Numbers that the environment logs, by name."""


class ExternalEnv:
    """N external environments, each reset when its episode ends.

    A door derives from it and implements `_start` and `_advance`. This class maps actions to the environments' space,
    raises on non-finite numbers by name, and counts episodes.
    """

    gradients = False
    resets_take_a_step = False
    agents = 1
    """Agents of a world, which are neighbouring rows."""

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
            name: as written on the command line.
            num_envs: N.
            device: of actions, observations and rewards.
            dt: control period [s]; 0 where it is unknown.
            max_episode_steps: time limit in steps, or NO_LIMIT.
            actions: the action space.
            columns: names of the columns of each observation group.
        """
        self.name, self.num_envs, self.device = name, num_envs, device
        self.dt_known, self.dt = dt > 0, dt or 1.0
        """Control period [s]; 1 where it is unknown, so that seconds are steps."""
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
        self._non_finite: dict[str, Tensor] = {}
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._nowhere = ~self._everywhere

    # ------------------------------------------------------------------ implemented by a door

    @abstractmethod
    def _start(self, stagger: bool) -> dict[str, Tensor]:
        """Reset all environments; returns observations (N, D) per group. `stagger`: spread episode ages if possible."""
        raise NotImplementedError

    @abstractmethod
    def _advance(self, actions: Tensor) -> Transition:
        """One step with `actions` (N, A) in the environment's space."""
        raise NotImplementedError

    def render(self) -> np.ndarray:
        """An image (H, W, 3) uint8 of the first environment.

        Raises:
            ConfigError: the environment does not render.
        """
        raise ConfigError(f"task={self.name} does not render images")

    def close(self) -> None:
        """Free the environments."""

    # ------------------------------------------------------------------ used by a learner

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode in all environments; see `Env.reset`."""
        self.observations = self._start(stagger)
        self.terminal_observations = dict(self.observations)
        self.episode_step = torch.zeros_like(self.episode_step)
        self.episode_return = torch.zeros_like(self.episode_return)
        self._check_step(self.observations, None)
        return self.observations

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period with a policy's `action` (N, A), or with `joint_targets` (N, A) in its place if given.

        Raises:
            NonFiniteTerm: action, reward or an observation is not finite. On a GPU `drain` raises it.
        """
        action = action.detach().to(self.device)
        self._require_finite("action", action, self.actions.names)
        given = self.actions.given(action) if joint_targets is None else joint_targets.to(self.device)
        now = self._advance(given)
        self._check_step(now.terminal, now.reward)
        if now.terminal is not now.observations:
            self._check_step(now.observations, None)
        valid = self._everywhere if now.valid is None else now.valid
        terminated = now.terminated & valid
        truncated = now.truncated & ~now.terminated & valid
        reward = torch.where(valid, now.reward, 0.0)
        done = terminated | truncated
        # A step that only resets is not part of an episode.
        self.episode_step = self.episode_step + valid
        self.episode_return = self.episode_return + reward
        self._sums = self._stats.add(
            self._sums,
            reward[:, None],
            [],
            done,
            terminated,
            self._nowhere,
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
            now.observations, reward, terminated, truncated, now.terminal, self._nowhere, valid=now.valid
        )

    def check(self) -> None:
        """Raise NonFiniteTerm for non-finite numbers since the last call; on a GPU `step` does not check them."""
        for what, bad in self._non_finite.items():
            if bool(bad.any()):
                self._non_finite = {}
                raise NonFiniteTerm(f"{what} of task={self.name} was not finite since the last iteration")

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name; see `EpisodeStats.means`. What the environment logs is `metric/NAME`."""
        self.check()
        logged = {f"metric/{name}": sum(values) / len(values) for name, values in self._logged.items()}
        self._logged = {}
        means, self._sums = self._stats.means(self._sums), self._stats.empty()
        return means | logged

    def symmetry(self) -> None:
        """None: the left-right symmetry of an external environment is unknown."""
        return

    def detach(self) -> None:
        """Does nothing: there are no gradients."""

    def snapshot(self) -> dict[str, Any]:
        """Empty: the state of an external environment cannot be saved."""
        return {}

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Never called: checkpoints do not hold the state of external environments."""
        raise NotImplementedError

    def contract(self) -> Contract:
        """The policy's interface: names of the observation columns, and the mapping of actions."""
        policy = self.columns["policy"]
        rows = zip(self.actions.names, self.actions.offset.tolist(), self.actions.scale.tolist(), strict=True)
        ends = zip(_finite(self.actions.low), _finite(self.actions.high), strict=True)
        return Contract(
            schema=SCHEMA,
            task=re.sub(r":.*/([^/]+\.py:)", r":\1", self.name),  # without the folder of a user's file
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

    def _check_step(self, groups: dict[str, Tensor], reward: Tensor | None) -> None:
        if reward is not None:
            self._require_finite("reward", reward[:, None], ("reward",))
        for group, values in groups.items():
            self._require_finite(f"{group} observation", values, self.columns[group])

    def _require_finite(self, kind: str, values: Tensor, names: Any) -> None:
        if not self.read_at_once:
            found = ~torch.isfinite(values).all()
            self._non_finite[kind] = self._non_finite[kind] | found if kind in self._non_finite else found
            return
        if bool(torch.isfinite(values.sum())):
            return
        bad = (~torch.isfinite(values)).nonzero().tolist()
        if bad:
            row, column = bad[0]
            raise NonFiniteTerm(
                f"{kind} {names[column]!r} of task={self.name} is not finite in environment {row} at step "
                f"{int(self.episode_step[row])} of its episode"
            )


def _finite(limits: Tensor) -> list[float | None]:
    """The limits, None where there is no bound: JSON has no infinity."""
    return [x if abs(x) != float("inf") else None for x in limits.tolist()]
