"""`robolearn grad-check`: compares gradients through a simulator with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from robolearn import config
from robolearn.commands.grad_check.differences import (
    Agreement,
    Scene,
    compare_returns,
    compare_states,
    simulate,
)
from robolearn.commands.grad_check.scenes import Scenes, airborne_throughout, stood_throughout, touched_down
from robolearn.config import registry
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.actuators.backend import with_motors
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, RunFailed
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.task import Task
from robolearn.training.build import make_env, make_scene
from robolearn.training.train import set_threads

STEPS = (1, 8)
"""Numbers of control steps of the rollouts; in the middle of the longer one, half of the environments are reset."""

SMOOTH, STANDING, ONSET, REWARD = "smooth motion", "sustained contact", "contact onset", "reward"
LIMITS = {SMOOTH: 1e-3, STANDING: 1e-2}
"""Largest accepted relative error, by regime."""
REWARD_LIMIT = 1e-3
"""Largest accepted relative error of the reward of a robot without feet, which has no contacts."""
COARSE = 1e-3
"""Difference step [m, rad, m/s] whose error at contact onset is reported too: large enough to cross touchdowns."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    regime: str
    steps: int
    agreement: Agreement
    limit: float | None
    """None: reported, not asserted."""
    incomplete: str = ""
    """How many environments were in the regime, if not all; the row is then not asserted."""

    @property
    def passed(self) -> bool | None:
        """Whether the worst error is within the limit; None where it is not asserted."""
        return None if self.limit is None or self.incomplete else self.agreement.worst <= self.limit

    def __str__(self) -> str:
        verdict = {True: "PASS", False: "FAIL", None: "reported"}[self.passed]
        limit = "-" if self.limit is None else f"{self.limit:.0e}"
        worst, median = self.agreement.worst, self.agreement.median
        line = f"{self.regime:<18}{self.steps:>6}{worst:>11.1e}{median:>11.1e}{limit:>8}  {verdict}"
        return f"{line}   {self.incomplete}" if self.incomplete else line


def grad_check(overrides: Iterable[str], directions: int = 16, num_envs: int = 16) -> bool:
    """Compare gradients with finite differences, print a table and a note on each regime.

    Args:
        overrides: settings in Hydra's grammar, as of a training run; without a backend, or with `auto`, a backend
            with gradients is chosen.
        directions: random directions for each line of the table.
        num_envs: number of environments, instead of the `num_envs` of the settings.

    Returns:
        Whether everything asserted is within its limit.

    Raises:
        ConfigError: a setting is invalid, or the backend has no gradients.
        MissingError: the backend is not installed.
        RunFailed: a simulation diverged.
    """
    cfg = _resolve(overrides)
    set_threads(cfg)
    with closing(make_env(cfg, num_envs)) as env:
        if not env.gradients:
            other = registry.giving("gradients")
            raise ConfigError(
                f"backend={cfg.backend_name} has no gradients" + (f"; use {other}" if other else "")
            )
        twin = _in_float64(cfg, env)
        reference = twin.backend if twin else None
        number = "float64 of the same equations" if twin else "float32, without forces and torques"
        print(
            f"{cfg.task_name} on {cfg.backend_name}: {env.num_envs} robots, {directions} directions, seed {cfg.seed}\n"
            f"gradients in float32; central differences in {number}\n\n"
            f"{'regime':<18}{'steps':>6}{'worst':>11}{'median':>11}{'limit':>8}  verdict"
        )
        rows = []
        random = torch.Generator().manual_seed(cfg.seed)
        scenes = Scenes(env.backend, env.robot, env.substeps, env.ctx.dt, random)
        for regime, make, in_regime in _regimes(scenes):
            for steps in STEPS:
                scene = make(steps)
                incomplete = _incomplete(regime, env.backend, scene, in_regime)
                agreement = compare_states(env.backend, reference, scene, directions, random)
                rows.append(Row(regime, steps, agreement, LIMITS.get(regime), incomplete))
                print(rows[-1], flush=True)
        for steps in STEPS:
            agreement = reward_agreement(env, twin, steps, directions, random)
            rows.append(Row(REWARD, steps, agreement, None if env.robot.feet else REWARD_LIMIT))
            print(rows[-1], flush=True)
        print("\n" + "\n".join(_notes(rows)))
    return all(row.passed is not False for row in rows)


def _resolve(overrides: Iterable[str]) -> Config:
    words = [word for word in overrides if word.strip() != "backend=auto"]
    # The default comes first, so that a backend named by the user overrides it.
    return config.resolve([f"backend={registry.pick_backend('auto', ('gradients',))}", *words])


class _DoubleEnv(Env):
    """An Env with float64 tensors in place of float32; its random numbers are still drawn in float32."""

    def __init__(self, task: Task, robot: Robot, backend: Backend, seed: int) -> None:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            super().__init__(task, robot, backend, seed)
        finally:
            torch.set_default_dtype(default)

    def _rewards(self, ctx: Context, lost: Tensor | None) -> Tensor:
        # Env rounds rewards to float32, which is too coarse for differences.
        columns = [term(self.backend.state, ctx).double() for term in self._reward_terms.values()]
        raw = torch.stack(columns, dim=1)
        return raw if lost is None else torch.where(lost[:, None], 0.0, raw)

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """See `Env.restore`. The snapshot may be that of a float32 Env."""
        random = snapshot["random"]
        super().restore({**_to_float64(snapshot), "random": random}, source_rows)


def _to_float64(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_float64(item) for name, item in value.items()}
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _in_float64(cfg: Config, env: Env) -> Env | None:
    """The same Env and state in float64; None where the simulator has no float64."""
    if cfg.backend_name != "differentiable" or cfg.backend.engine != "own":
        return None
    from robolearn.envs.differentiable.double import DoubleBackend

    double = with_motors(
        lambda scene: DoubleBackend(scene, env.num_envs, str(env.device), cfg.backend),
        make_scene(cfg, env.robot),
    )
    twin = _DoubleEnv(cfg.task, env.robot, double, cfg.seed)
    twin.restore(env.snapshot())
    return twin


def _regimes(
    scenes: Scenes,
) -> list[tuple[str, Callable[[int], Scene], Callable[..., Tensor]]]:
    """Name, function that makes a scene of T control steps, and test (N,) of which environments are in the regime."""
    grounded = [
        (STANDING, scenes.standing, stood_throughout),
        (ONSET, scenes.onset, touched_down),
    ]
    return [(SMOOTH, scenes.smooth, airborne_throughout), *(grounded if scenes.grounded else [])]


@torch.no_grad()
def _incomplete(regime: str, backend: Backend, scene: Scene, in_regime: Callable[..., Tensor]) -> str:
    """A note where some environments are not in the regime; empty where all are."""
    rollout = simulate(backend, scene, {})
    if rollout.diverged.any():
        raise RunFailed(f"{regime}: {int(rollout.diverged.sum())} of {backend.num_envs} simulations diverged")
    count = int(in_regime(rollout).sum())
    return (
        "" if count == backend.num_envs else f"only {count} of {backend.num_envs} robots were in this regime"
    )


def reward_agreement(
    env: Env, twin: Env | None, steps: int, directions: int, random: torch.Generator
) -> Agreement:
    """Compare gradients of each environment's summed rewards by all actions, from the initial states of its episodes.

    With more than one step, half of the environments time out in the middle. Every rollout repeats the same random
    numbers.

    Args:
        env: the Env to check, in float32.
        twin: the same Env in float64, for the differences; None uses `env`.
        steps: control steps.
        directions: number of random directions.
        random: generator of the directions and actions.
    """
    env.reset()
    if steps > 1:
        late = torch.arange(env.num_envs, device=env.device) % 2 == 1
        env.episode_step = torch.where(late, max(0, env.max_episode_steps - steps // 2), env.episode_step)
    start = env.snapshot()

    def returns_in(env: Env) -> Callable[[Tensor], Tensor]:
        def returns(actions: Tensor) -> Tensor:
            env.restore(start)
            env.detach()
            return torch.stack([env.step(action).reward.double() for action in actions]).sum(dim=0)

        return returns

    actions = 0.6 * torch.rand(steps, env.num_envs, env.num_actions, generator=random) - 0.3
    reference = returns_in(twin) if twin else None
    return compare_returns(returns_in(env), reference, actions.to(env.device), directions, random)


def _notes(rows: list[Row]) -> list[str]:
    """One line per regime that explains its errors."""
    last = {row.regime: row for row in rows}
    notes = {
        SMOOTH: "exact to rounding; there is no contact and all forces are smooth.",
        STANDING: "exact to rounding, which the stiff ground amplifies.",
        REWARD: f"through Env.step, as in training; over {STEPS[-1]} steps, half of the episodes end in the middle.",
    }
    if ONSET in last:
        error = last[ONSET].agreement.by_step[COARSE]
        notes[ONSET] = (
            "exact before and after a touchdown. Gradients do not include the touchdown itself: "
            f"differences that cross it, with a step of {COARSE:g}, differ by {error:.1e} "
            f"(median, {STEPS[-1]} steps)."
        )
        notes[REWARD] += " Robots start in the air: as contact onset."
    return [f"{regime}: {notes[regime]}" for regime in last]
