"""The commands of an Env: drawn anew where they expire, and those that steer follow the robot."""

from __future__ import annotations

import torch

from robolearn.core import env_state
from robolearn.core.env_state import EpisodeState
from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.commands import Command, Drawn
from robolearn.tasks.mdp.context import Context, Random


def drawn(commands: Command, num_envs: int, random: Random, level: Tensor | None) -> Drawn:
    """New commands for every environment, at its `level` (N,) of the curriculum; None: all of their range."""
    new = commands.sample(num_envs, random)
    return new if level is None else new._replace(values=commands.eased(new.values, level))


def redraw(
    commands: Command, episode: EpisodeState, dt: float, random: Random, level: Tensor | None
) -> Tensor:
    """Draw new commands where those of `episode` have expired after one more step of `dt` [s]: (N,) bool."""
    left = episode.command_left - dt
    expired = left <= 0
    command, seconds, aim = drawn(commands, len(left), random, level)
    episode.command = torch.where(expired[:, None], command, episode.command)
    episode.command_time = torch.where(expired, 0.0, episode.command_time)
    episode.command_left = torch.where(expired, seconds, left)
    episode.aim = env_state.where(expired, aim, episode.aim)
    return expired


@torch.no_grad()
def follow(
    commands: Command, episode: EpisodeState, state: State, ctx: Context, mask: Tensor | None = None
) -> None:
    """Let the commands, of the rows `mask` (N,) or of all, follow the state of the robot."""
    values = commands.follow(episode.command, episode.aim, state, ctx)
    episode.command = values if mask is None else env_state.where(mask, values, episode.command)
