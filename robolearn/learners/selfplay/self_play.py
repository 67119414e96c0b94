"""Self-play: in a share of the worlds of two agents, one of them is a past policy of the same training.

Which rows of the environments past policies act in is fixed for a run, so that nothing has to be read from a GPU: the
learner sees the other rows as environments of their own, see `OwnRows`. The worlds with past policies are divided into
lanes, and each lane has one opponent, which one batched pass per step evaluates on that lane's rows alone. A world
keeps its opponent until its episode ends: a lane holds its former opponent beside the new one for as long as an
episode may take, and each row follows the one that its episode began with.

Opponents act with the noise that they explored with: what a rating compares is then the same at all times, and the
rating of the current policy is the one it joins the pool with. In some lanes they act by their mean actions instead,
because an opponent that stands firm is harder to beat; those games do not count for the rating.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.models import MLPModel
from torch import nn
from torch.func import functional_call, vmap

from robolearn.core.env import Env
from robolearn.core.graphs import Graphed
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import Shards
from robolearn.core.step_result import StepResult
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.learners.networks import deviation
from robolearn.learners.precision import autocast
from robolearn.learners.rollout import BatchSource, side_by_side
from robolearn.learners.selfplay.config import SelfPlayConfig
from robolearn.learners.selfplay.own_rows import OwnRows
from robolearn.learners.selfplay.pool import Pool
from robolearn.learners.selfplay.rating import ANCHOR, updated
from robolearn.tasks.mdp.context import Random

WON = "won"
"""The metric of a task that is the score of finished games: 1 for a win, 0.5 for a draw, 0 for a loss."""
LANES = 8
"""Opponents at a time, at most."""
OLD, NEW = 0, 1


def self_play_of(
    env: LearnerEnv,
    config: SelfPlayConfig,
    seed: int,
    shards: Shards,
    rnn: str,
    preferences: str | None,
) -> SelfPlay | None:
    """The self-play of a learner in `env`, which has recurrent layers `rnn` and rewards from `preferences`; None with
    `learner.self_play=0`.

    Raises:
        ConfigError: it does not work here; names what is in the way.
    """
    if not config.self_play:
        return None
    where = f"learner.self_play={config.self_play:g}"
    if isinstance(env, BatchSource):
        raise ConfigError(f"{where} with mode=async: actors do not hold past policies; use mode=sync")
    if not shards.single:
        raise ConfigError(f"{where} with ranks: past policies are of one process; leave ranks out")
    if rnn != "none":
        raise ConfigError(
            f"{where} with learner.rnn={rnn}: past policies keep no recurrent state; use learner.rnn=none"
        )
    if preferences is not None:
        raise ConfigError(
            f"{where} with learner.preferences, which are of one robot's behaviour; leave one of them out"
        )
    none = "use learner.self_play=0"
    if not isinstance(env, Env):
        raise ConfigError(
            f"{where} needs a RoboLearn task of two agents; this one brings its own simulator; {none}"
        )
    name = type(env.task).__name__
    if env.agents != 2:
        raise ConfigError(f"{where}: {name} has {env.agents} agent{'s'[: env.agents > 1]}, not two; {none}")
    if env.resets_take_a_step:
        raise ConfigError(
            f"{where}: the agents of {name} end one by one, and a game ends for both; use ends_together = True in the "
            f"task, or {none}"
        )
    if WON not in env.task.metrics(env.backend.state, env.ctx):
        raise ConfigError(
            f"{where}: {name} has no metric {WON!r}, the score of finished games (1, 0.5 or 0); add it, or {none}"
        )
    return SelfPlay(env, config, seed)


class _Exploring(nn.Module):
    """An actor as a function of its observations to mean and standard deviations."""

    def __init__(self, actor: MLPModel) -> None:
        super().__init__()
        self.actor = copy.deepcopy(actor).requires_grad_(False)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.actor.mlp(self.actor.obs_normalizer(seen)).float()
        return mean, deviation(self.actor)


class SelfPlay:
    """Past policies, where they play, and the rating of the current one; of one learner."""

    def __init__(self, env: Env, config: SelfPlayConfig, seed: int) -> None:
        """Of W worlds with two agents each."""
        self.device, self.longest = env.device, env.max_episode_steps
        worlds = env.num_envs // 2
        playing = max(1, round(config.self_play * worlds))
        self.lanes = min(LANES, playing)
        each = playing // self.lanes
        world = torch.arange(self.lanes * each).view(each, self.lanes).T
        firm = config.mean_opponents * self.lanes
        if 0 < config.mean_opponents < 1 and self.lanes > 1:
            firm = min(max(1, round(firm)), self.lanes - 1)
        without_noise = torch.arange(1, self.lanes + 1) * round(firm) // self.lanes
        without_noise = without_noise.diff(prepend=torch.zeros(1, dtype=torch.int64)).bool()
        # Lanes with noise, and those without, take turns in the two seats.
        turn = torch.where(without_noise, without_noise.cumsum(0), (~without_noise).cumsum(0)) - 1
        seat = (torch.arange(each)[None, :] + turn[:, None]) % 2
        self.rows = (2 * world + seat).to(self.device)
        """(L, M) rows in which past policies act, of each lane; both seats alike."""
        self._opposite = (2 * world + 1 - seat).flatten().to(self.device)
        driven = torch.zeros(env.num_envs, dtype=torch.bool)
        driven[(2 * world + seat).flatten()] = True
        self.own = (~driven).nonzero().squeeze(-1).to(self.device)
        """(N,) rows of the current policy."""
        self._noise = (~without_noise).to(self.device, torch.float32)
        """(L,) 0 in lanes without noise."""
        self._rated = (~without_noise | without_noise.all()).tolist()
        self.pool, self.interval = Pool(config.pool_size), config.pool_interval
        self.rating, self.iteration = ANCHOR, 0
        self.random = Random(seed + 1, self.device)
        self._choice = torch.Generator().manual_seed(seed)
        self._fresh = torch.ones(self.lanes, each, dtype=torch.bool, device=self.device)
        """Whether an episode began with the lane's new opponent."""
        self._sums = torch.zeros(2, 2, self.lanes, dtype=torch.float64, device=self.device)
        """Scores of the current policy, and numbers of games, against the old and the new opponent of each lane."""
        self._steps = [self.longest * lane // self.lanes for lane in range(self.lanes)]
        """Steps since each lane got its opponent; spread, so that not all change at once."""
        self._playing: list[tuple[int, float]] = []
        """Iteration and rating of the opponents, old ones first."""
        self._views: tuple[LearnerEnv, OwnRows] | None = None

    def prepare(self, actor: MLPModel, groups: Sequence[str], precision: str) -> None:
        """Take the network of the current policy, its observation groups and its arithmetic; called once."""
        self._actor, self._groups, self._precision = actor, tuple(groups), precision
        self._network = _Exploring(actor).to(self.device)
        self._weights = {
            name: value.detach().expand(2 * self.lanes, *value.shape).clone()
            for name, value in actor.state_dict().items()
        }
        width = actor.obs_normalizer._mean.shape[1]
        self._seen = torch.zeros(self.lanes, self.rows.shape[1], width, device=self.device)
        self._decide = Graphed(self._decided, self.device, self.random.generators)

    # ------------------------------------------------------------------ the learner's side

    def around(self, env: LearnerEnv) -> OwnRows:
        """The rows of the current policy as environments; past policies act in the others."""
        if self._views is None or self._views[0] is not env:
            self._views = env, OwnRows(env, self.own, self)
        return self._views[1]

    def begun(self, env: LearnerEnv) -> OwnRows:
        """`around`, before an iteration. The first policy is the first member of the pool; every lane gets an opponent,
        where there is none yet."""
        if not self.pool.members:
            self.pool.add(self.iteration, self.rating, self._actor.state_dict())
        if not self._playing:
            self._playing = [(0, ANCHOR)] * (2 * self.lanes)
            for lane in range(self.lanes):
                self._exchange(lane)
            self._fresh.fill_(True)
        own = self.around(env)
        own.look()
        return own

    def finish(self, steps: int) -> dict[str, float]:
        """After an iteration of so many steps of each environment: update the rating, let the current policy join the
        pool where that is due, and exchange opponents.

        Returns:
            `selfplay/elo`, the rating; `selfplay/won`, the mean score against past policies, where a game has ended;
            `selfplay/games`, their number; `selfplay/pool`, the number of members.
        """
        (scores, games), self.iteration = self._sums.flatten(1).tolist(), self.iteration + 1
        self._sums.zero_()
        ratings = [rating for _, rating in self._playing]
        results = zip(ratings, games, scores, 2 * self._rated, strict=True)
        self.rating = updated(self.rating, [each[:3] for each in results if each[3]])
        if self.iteration % self.interval == 0:
            self.pool.add(self.iteration, self.rating, self._actor.state_dict())
        for lane in range(self.lanes):
            self._steps[lane] += steps
            if self._steps[lane] >= self.longest:  # every episode with the old opponent has ended
                self._exchange(lane)
                self._steps[lane] = 0
        told = {"elo": self.rating, "games": sum(games), "pool": float(len(self.pool.members))}
        if told["games"]:
            told["won"] = sum(scores) / told["games"]
        return {f"selfplay/{name}": value for name, value in told.items()}

    def _exchange(self, lane: int) -> None:
        """Draw a new opponent for a lane; the new one of before is the old one now."""
        member = self.pool.draw(self.rating, self._choice)
        old, new = lane, self.lanes + lane
        self._playing[old], self._playing[new] = self._playing[new], (member.iteration, member.rating)
        for name, stack in self._weights.items():
            stack[old].copy_(stack[new])
            stack[new].copy_(member.weights[name])
        self._fresh[lane] = False

    # ------------------------------------------------------------------ a step

    @torch.no_grad()
    def act(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Actions (L M, A) of the past policies, for the observations of all rows."""
        rows = self.rows.flatten()
        seen = side_by_side({name: observations[name][rows] for name in self._groups}, self._groups)
        self._seen.copy_(seen.view_as(self._seen))
        return self._decide()

    def _decided(self) -> Tensor:
        twice = torch.cat((self._seen, self._seen))
        weights = {f"actor.{name}": stack for name, stack in self._weights.items()}
        with autocast(self.device, self._precision):
            mean, std = vmap(lambda own, seen: functional_call(self._network, own, (seen,)))(weights, twice)
        noise = self._noise[:, None, None] * self.random.randn(*self._seen.shape[:2], mean.shape[-1])
        action = mean + std[:, None] * noise.repeat(2, 1, 1)
        old, new = action.split(self.lanes)
        return torch.where(self._fresh[..., None], new, old).flatten(0, 1)

    @torch.no_grad()
    def count(self, result: StepResult) -> None:
        """Count the games that have ended with this step of all rows."""
        won = result.metrics[WON]
        score, games = (part[self._opposite].view(self._fresh.shape).double() for part in won)
        both = torch.stack((~self._fresh, self._fresh)).double()
        self._sums += torch.stack([(both * part).sum(dim=2) for part in (score, games)])
        self._fresh |= result.done[self.rows]

    # ------------------------------------------------------------------ the rest

    def entries(self) -> dict[str, Any]:
        """The entries of a learner's state: `self_play`, and `opponents`, which belongs to the simulation."""
        kept = {
            "pool": self.pool.state_dict(),
            "rating": self.rating,
            "iteration": self.iteration,
            "choice": self._choice.get_state(),
        }
        if not self._playing:
            return {"self_play": kept}
        playing = {
            "weights": self._weights,
            "playing": [list(each) for each in self._playing],
            "fresh": self._fresh,
            "steps": list(self._steps),
            "random": self.random.state(),
        }
        return {"self_play": kept, "opponents": playing}

    def load_state_dict(self, kept: Mapping[str, Any] | None, playing: Mapping[str, Any] | None) -> None:
        """Continue with what `entries` returned. Without `self_play`, the pool begins with the policy that was loaded;
        without `opponents`, or with those of other environments, each lane draws one."""
        self.pool.members, self._playing = [], []
        if kept is None:
            return
        self.pool.load_state_dict(kept["pool"], self.device)
        self.rating, self.iteration = kept["rating"], kept["iteration"]
        self._choice.set_state(kept["choice"])
        if playing is None or playing["fresh"].shape != self._fresh.shape:
            return
        self._playing = [(int(iteration), float(rating)) for iteration, rating in playing["playing"]]
        for name, stack in self._weights.items():
            stack.copy_(playing["weights"][name])
        self._fresh.copy_(playing["fresh"])
        self._steps = list(playing["steps"])
        if self.random.fits(playing["random"]):
            self.random.set_state(playing["random"])

    def opponents(self) -> list[int]:
        """The iterations of the current opponents of the lanes."""
        return [iteration for iteration, _ in self._playing[self.lanes :]]
