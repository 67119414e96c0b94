"""`robolearn grad-check`: gradients through a simulator, held against finite differences."""

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
from robolearn.commands.grad_check.scenes import Scenes, smooth_throughout, stood_throughout, touched_down
from robolearn.config import registry
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, RunFailed
from robolearn.tasks.mdp.task import Task
from robolearn.training.build import make_env
from robolearn.training.train import set_threads

STEPS = (1, 8)
"""Control steps that gradients are taken over; in the middle of the longer half of the environments start again."""

SMOOTH, STANDING, ONSET, REWARD = "smooth motion", "sustained contact", "contact onset", "reward"
LIMITS = {SMOOTH: 1e-3, STANDING: 1e-2}
"""Largest relative error that is accepted."""
REWARD_LIMIT = 1e-3
"""The same for the reward of a robot without feet, which nothing can touch."""
COARSE = 1e-3
"""Difference step for which an onset's differences are told too [m, rad, m/s]: one that crosses touchdowns."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    regime: str
    steps: int
    agreement: Agreement
    limit: float | None
    """None: it is told, not asserted."""
    present: str = ""
    """What of the regime there was, where not all of it: then it is not asserted either."""

    @property
    def passed(self) -> bool | None:
        """None: not asserted."""
        return None if self.limit is None or self.present else self.agreement.worst <= self.limit

    def __str__(self) -> str:
        verdict = {True: "PASS", False: "FAIL", None: "reported"}[self.passed]
        limit = "-" if self.limit is None else f"{self.limit:.0e}"
        worst, middle = self.agreement.worst, self.agreement.median
        line = f"{self.regime:<18}{self.steps:>6}{worst:>11.1e}{middle:>11.1e}{limit:>8}  {verdict}"
        return f"{line}   {self.present}" if self.present else line


def grad_check(overrides: Iterable[str], directions: int = 16, num_envs: int = 16) -> bool:
    """Compare gradients with finite differences, print a table and say what to expect of each line.

    Args:
        overrides: settings in Hydra's grammar, as of a training run; without a backend, or with `auto`, one that has
            gradients is taken.
        directions: random directions for each line of the table.
        num_envs: robots side by side, instead of the settings' own number.

    Returns:
        Whether everything asserted is within its limit.

    Raises:
        ConfigError: the settings cannot be, or the backend has no gradients.
        MissingError: the backend is not installed.
        RunFailed: a simulation diverged.
    """
    run = _resolved(overrides)
    set_threads(run)
    with closing(make_env(run, num_envs)) as env:
        if not env.gradients:
            other = registry.giving("gradients")
            raise ConfigError(
                f"backend={run.backend_name} has no gradients" + (f"; use {other}" if other else "")
            )
        twin = _in_float64(run, env)
        reference = twin.backend if twin else None
        number = "float64 of the same equations" if twin else "float32, without forces and torques"
        print(
            f"{run.task_name} on {run.backend_name}: {env.num_envs} robots, {directions} directions, seed {run.seed}\n"
            f"gradients in float32; central differences in {number}\n\n"
            f"{'regime':<18}{'steps':>6}{'worst':>11}{'median':>11}{'limit':>8}  verdict"
        )
        rows = []
        random = torch.Generator().manual_seed(run.seed)
        scenes = Scenes(env.backend, env.robot, env.substeps, env.ctx.dt, random)
        for regime, make, holds in _regimes(scenes):
            for steps in STEPS:
                scene = make(steps)
                present = _present(regime, env.backend, scene, holds)
                agreement = compare_states(env.backend, reference, scene, directions, random)
                rows.append(Row(regime, steps, agreement, LIMITS.get(regime), present))
                print(rows[-1], flush=True)
        for steps in STEPS:
            agreement = reward_agreement(env, twin, steps, directions, random)
            rows.append(Row(REWARD, steps, agreement, None if env.robot.feet else REWARD_LIMIT))
            print(rows[-1], flush=True)
        print("\n" + "\n".join(_notes(rows)))
    return all(row.passed is not False for row in rows)


def _resolved(overrides: Iterable[str]) -> Config:
    words = [word for word in overrides if word.strip() != "backend=auto"]
    # First, so that one the user names comes after it.
    return config.resolve([f"backend={registry.pick_backend('auto', ('gradients',))}", *words])


class _DoubleEnv(Env):
    """An Env whose tensors are float64 where they would be float32; random numbers are still those of float32."""

    def __init__(self, task: Task, robot: Robot, backend: Backend, seed: int) -> None:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            super().__init__(task, robot, backend, seed)
        finally:
            torch.set_default_dtype(usual)

    def _rewards(self, diverged: Tensor) -> Tensor:
        # Env's are float32 at the end, whatever they are made of: too coarse to take differences of.
        state = self.backend.state
        columns = [term(state, self.ctx).double() for term in self._reward_terms.values()]
        return torch.where(diverged[:, None], 0.0, torch.stack(columns, dim=1))

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """See `Env.restore`; the snapshot may be a float32 Env's."""
        random = snapshot["random"]
        super().restore({**_widened(snapshot), "random": random}, source_rows)


def _widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _widened(item) for name, item in value.items()}
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _in_float64(run: Config, env: Env) -> Env | None:
    """The same in float64, each environment's own parameters included; None where there is no such simulator."""
    if run.backend_name != "differentiable" or run.backend.engine != "own":
        return None
    from robolearn.envs.differentiable.double import DoubleBackend

    double = DoubleBackend(env.robot, env.num_envs, str(env.device), run.backend)
    twin = _DoubleEnv(run.task, env.robot, double, run.seed)
    twin.restore(env.snapshot())
    return twin


def _regimes(
    scenes: Scenes,
) -> list[tuple[str, Callable[[int], Scene], Callable[..., Tensor]]]:
    """Name, how to make a scene of so many control steps, and in which environments it is what its name says."""
    grounded = [
        (STANDING, scenes.standing, stood_throughout),
        (ONSET, scenes.onset, touched_down),
    ]
    return [(SMOOTH, scenes.smooth, smooth_throughout), *(grounded if scenes.grounded else [])]


@torch.no_grad()
def _present(regime: str, backend: Backend, scene: Scene, holds: Callable[..., Tensor]) -> str:
    """Empty where every environment is in the regime."""
    rollout = simulate(backend, scene, {})
    if rollout.lost.any():
        raise RunFailed(f"{regime}: {int(rollout.lost.sum())} of {backend.num_envs} simulations diverged")
    count = int(holds(rollout).sum())
    return "" if count == backend.num_envs else f"only {count} of {backend.num_envs} robots were in it"


def reward_agreement(
    env: Env, twin: Env | None, steps: int, directions: int, random: torch.Generator
) -> Agreement:
    """Gradients of each environment's summed rewards by all its actions, from the poses its episodes start in.

    Of the environments half time out in the middle of several steps. All random numbers repeat.

    Args:
        env: what is checked, in float32.
        twin: the same in float64, to take the differences of; None takes them of `env`.
        steps: control steps.
        directions: how many random directions.
        random: they and the actions are drawn here.
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
    """What to expect of each line, one a regime."""
    last = {row.regime: row for row in rows}
    told = {
        SMOOTH: "exact but for rounding; nothing touches, and forces have all their derivatives.",
        STANDING: "exact but for rounding, which a stiff ground magnifies.",
        REWARD: f"through Env.step, as learners have it; of {STEPS[-1]} steps, half of the episodes end in the middle.",
    }
    if ONSET in last:
        apart = last[ONSET].agreement.by_step[COARSE]
        told[ONSET] = (
            "exact on either side of the instant a point touches. What happens at that instant no gradient sees: "
            f"differences that cross it, with a step of {COARSE:g}, are apart by {apart:.1e} "
            f"(median, {STEPS[-1]} steps)."
        )
        told[REWARD] += " Robots start in the air: as contact onset."
    return [f"{regime}: {told[regime]}" for regime in last]
