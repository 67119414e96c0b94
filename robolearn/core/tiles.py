"""Tiles of a terrain that the environments of an Env are on: levels that rise and fall, origins, and their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from robolearn.core.learner_env import LEVEL
from robolearn.core.shards import ONE, Shards
from robolearn.envs.backend import Backend, TerrainBackend
from robolearn.envs.state import State, Tensor
from robolearn.envs.terrain import Ground, Terrain
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.task import Task

ROW, COLUMN = f"{LEVEL}terrain", "terrain_column"
"""Names in the per-env state of the row and the column (N,) int64 of each environment's tile in a training. The row may
be one beyond the last: a random one is drawn at the next reset."""


class Tiles:
    """Where on the terrain of a scene each environment is; does nothing on flat ground.

    In a training of a task with levels the columns are dealt out in turn and stay, and rows, the levels, follow what
    the robot achieves (`Task.terrain_change`). Otherwise rows and columns are drawn anew at each reset.
    """

    def __init__(
        self,
        terrain: Terrain | None,
        levels: bool,
        num_envs: int,
        device: torch.device,
        shards: Shards = ONE,
    ) -> None:
        self.terrain = terrain
        self.ground = None if terrain is None else Ground.of(terrain.heights, device)
        """The surface, for terms."""
        self._levels, self._num_envs, self._device = levels, num_envs, device
        self._first_env = shards.mine.start * (num_envs // shards.count)
        self._total = shards.total * (num_envs // shards.count)
        if terrain is not None:
            self._origins = torch.tensor(terrain.heights.origins, device=device)
            reach = torch.tensor(terrain.heights.reach, device=device)
            self._limit = reach - terrain.border / 2

    def added_to(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """A task's per-env state, and beside it the first tiles; as it is on flat ground."""
        if self.terrain is None or not self._levels:
            return own
        number = torch.arange(self._num_envs, device=self._device) + self._first_env
        columns, levels = self.terrain.columns, self.terrain.start_level + 1
        column = number % columns if self._total >= columns else number * columns // self._total
        return {**own, ROW: number // columns % levels, COLUMN: column}

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the level in the per-env state; () without levels."""
        return (ROW,) if self.terrain is not None and self._levels else ()

    def reached(self, own: dict[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A per-env state whose levels are, in each column, the mean that it had in an EnvState, given by path."""
        rows, columns = saved.get(f"per_env.{ROW}"), saved.get(f"per_env.{COLUMN}")
        if self.terrain is None or ROW not in own or rows is None or columns is None:
            return own
        means = torch.full((self.terrain.columns,), rows.float().mean().item(), device=self._device)
        for column in columns.unique().tolist():
            if column < len(means):
                means[column] = rows[columns == column].float().mean().item()
        level = means[own[COLUMN]].round().long().clamp(0, self.terrain.rows)
        return {**own, ROW: level}

    def changed(
        self, per_env: dict[str, Tensor], task: Task, state: State, ctx: Context, ended: Tensor
    ) -> dict[str, Tensor]:
        """The per-env state after the episodes `ended` (N,) bool: levels rise and fall as the task says."""
        if self.terrain is None or not self._levels:
            return per_env
        level = (per_env[ROW] + task.terrain_change(state, ctx).long()).clamp(0, self.terrain.rows)
        return {**per_env, ROW: torch.where(ended, level, per_env[ROW])}

    def begin(
        self, mask: Tensor, per_env: dict[str, Tensor], random: Random, backend: Backend
    ) -> dict[str, Tensor]:
        """Place the environments of `mask` (N,), where new episodes begin, on their tiles; the new per-env state."""
        if self.terrain is None:
            return per_env
        row = self._drawn(random, self.terrain.rows)
        if not self._levels:
            column = self._drawn(random, self.terrain.columns)
        else:
            column, last = per_env[COLUMN], per_env[ROW]
            row = torch.where(mask & (last >= self.terrain.rows), row, last)
            per_env = {**per_env, ROW: row}
            row = row.clamp(max=self.terrain.rows - 1)  # of those that are not reset now
        cast(TerrainBackend, backend).place(mask, self._origins[row, column])
        return per_env

    def _drawn(self, random: Random, count: int) -> Tensor:
        """(N,) int64 numbers from 0 to `count` - 1."""
        return random.uniform(0.0, float(count), self._num_envs).long().clamp(max=count - 1)

    def left(self, state: State, timed_out: Tensor) -> Tensor:
        """(N,) bool: the episode's time is over, or its robot has left its tile, or reached the border."""
        if self.terrain is None or state.origin is None:
            return timed_out
        place = state.robot.base_pos[:, :2]
        if self.terrain.ends:
            beyond = place.abs().amax(dim=1) > self.terrain.size / 2
        else:
            beyond = ((place + state.origin[:, :2]).abs() > self._limit).any(dim=1)
        return timed_out | beyond
