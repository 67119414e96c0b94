"""Whole episodes of a policy, counted: what `eval`, `sim --suite` and comparisons between simulators measure."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

import torch

from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.envs.state import State, Tensor, quat_rotate
from robolearn.errors import RunFailed
from robolearn.learners.policy import Act, reset_state
from robolearn.simulation.recording import Recording

NEVER_TRAINED = 1_000_000
"""Rank whose random numbers evaluations use; no training process has it, so the policy has not seen them."""


@dataclass
class Tally:
    """Results of K episodes of each of N environments: E = K N episodes, in the order they ended."""

    returns: Tensor
    """(E,) undiscounted sum of rewards."""
    steps: Tensor
    """(E,) control steps until the episode ended."""
    survived: Tensor
    """(E,) bool: the episode timed out instead of being terminated."""
    diverged: Tensor
    """(E,) bool: the simulation diverged."""
    distance: Tensor | None
    """(E,) [m] base displacement along the initial heading of the episode, up to its last control step but one: after
    the last, Env shows the start of the next episode. None for a robot with a fixed base."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Means of the task's metrics over all steps at which they are defined; None where there are none."""
    seconds: float = 0.0
    """Wall time of the simulation [s]."""
    env_steps: int = 0
    """Control steps simulated, summed over all environments, including those after their last counted episode."""


@torch.no_grad()
def tally(env: LearnerEnv, policy: Act, episodes_each: int = 1, recording: Recording | None = None) -> Tally:
    """Run until every environment has finished `episodes_each` episodes, and count exactly those.

    The first episodes to end are mostly short ones, that is failures. So each environment contributes the same number,
    from its first one on.

    Args:
        env: the environments; all are reset first, so that all episodes are whole.
        policy: function from observations by group to actions (N, A).
        episodes_each: K.
        recording: notes the steps of the counted episodes.

    Raises:
        NonFiniteTerm: a term of the task is not finite on a finite State.
        RunFailed: the simulator dropped part of the physics, or an environment did not finish in time.
    """
    n, device = env.num_envs, env.device
    zeros = lambda dtype: torch.zeros(n, dtype=dtype, device=device)  # noqa: E731
    finished, steps, returns = zeros(torch.long), zeros(torch.long), zeros(torch.float64)
    sums: dict[str, Tensor] = {}
    env_steps = 0
    ended: list[tuple[Tensor, ...]] = []
    env.reset()
    reset_state(policy)
    displacement = Displacement(env)
    began = time.perf_counter()
    most = episodes_each * (env.max_episode_steps + getattr(env, "resets_take_a_step", False))
    for _ in range(most):
        counting = finished < episodes_each
        action = policy(env.observations)
        if recording is not None:
            recording.before(env.observations, action)
        result = env.step(action)
        if recording is not None:
            recording.after(result, counting)
        env_steps += n
        took = torch.ones_like(counting) if result.valid is None else result.valid
        steps, returns = steps + took, returns + result.reward
        for name, pair in result.metrics.items():
            both = torch.stack(pair).double() * counting
            sums[name] = sums.get(name, 0) + both.sum(dim=1)
        done = result.done
        begins = done | ~took
        reset_state(policy, begins)
        if done.any():
            rows = (done & counting).nonzero().squeeze(-1)
            columns = (returns, steps, result.truncated, result.diverged, displacement.distance)
            ended.append(tuple(column[rows].cpu() for column in columns))
            finished += done
            returns, steps = torch.where(done, 0.0, returns), torch.where(done, 0, steps)
        displacement.update(begins)
        if bool((finished >= episodes_each).all()):
            break
    seconds = time.perf_counter() - began
    env.check()  # on a GPU, errors are raised only here
    lacking = int((finished < episodes_each).sum())
    if lacking:
        # To count only the episodes that ended would count mostly failures.
        raise RunFailed(
            f"{lacking} of {n} environments had not finished {episodes_each} episodes within {most} steps: give them a "
            "time limit (task.episode_steps=1000)"
        )
    all_returns, all_steps, survived, diverged, distance = (
        torch.cat(parts) for parts in zip(*ended, strict=True)
    )
    metrics = {name: float(total / weight) if weight else None for name, (total, weight) in sums.items()}
    return Tally(
        all_returns,
        all_steps,
        survived,
        diverged,
        distance if displacement.known else None,
        metrics,
        seconds,
        env_steps,
    )


class Displacement:
    """Displacement of the robots of an Env since the start of their episodes; unknown for third-party environments."""

    def __init__(self, env: LearnerEnv) -> None:
        robot = getattr(env, "robot", None)
        self._env = None if robot is None or robot.base is None else cast(Env, env)
        self.known = self._env is not None
        self.distance = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        """(N,) [m] along the initial heading of each episode."""
        if self._env is not None:
            self._start, self._heading = _pose(self._env.backend.state)

    def update(self, done: Tensor) -> None:
        """Call after each step with the environments `done` (N,) whose episode it ended."""
        if self._env is None:
            return
        position, facing = _pose(self._env.backend.state)
        # Where an episode has ended, this is the start of the next one.
        self._start = torch.where(done[:, None], position, self._start)
        self._heading = torch.where(done[:, None], facing, self._heading)
        self.distance = ((position - self._start) * self._heading).sum(dim=1)


def _pose(state: State) -> tuple[Tensor, Tensor]:
    """Horizontal base position (N, 2) [m], and the horizontal direction (N, 2) the base faces, of length 1."""
    robot = state.robot
    forward = torch.tensor((1.0, 0.0, 0.0), device=robot.base_pos.device).expand_as(robot.base_pos)
    facing = quat_rotate(robot.base_quat, forward)[:, :2].double()
    return robot.base_pos[:, :2].double(), facing / facing.norm(dim=1, keepdim=True).clamp(min=1e-9)
