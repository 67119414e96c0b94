"""Our PPO's gradient steps beside those of rsl_rl's own PPO: the same batch, permutation, weights and settings.

    python scripts/compare_update.py task=humanoid_walk num_envs=4096 [--rounds N] [--warmup N] [--json FILE]

Exit codes are those of `robolearn`; 1 where the losses of the first gradient step differ.

What both learn from is collected once, by our learner: observations as its networks see them (folded by a gait clock
where there is one), actions, means and deviations, values, returns and normalized advantages. Both begin with the same
weights, normalizers and moments of Adam, at the same fixed step size, and take every step. rsl_rl cuts minibatches
by one permutation a batch and uses it in every epoch; it is drawn here from the same seed and given to ours.

Left out on both sides: collecting, values and advantages (where the two differ: rsl_rl bootstraps time-outs from
another state and normalizes by the unbiased deviation), the normalizers' own update, and steering the step size (rsl_rl
does after every minibatch, ours once an iteration). In both are reading the losses and what each prepares: ours
normalizes a batch once and works out the densities of its actions again, rsl_rl normalizes each minibatch.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from rsl_rl.algorithms import PPO as RslRlPPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor, nn

from robolearn import config
from robolearn.commands.bench.bench import about, require_writable, title, warmed_up, write
from robolearn.commands.bench.rates import Spread, timed
from robolearn.commands.exits import exit_code
from robolearn.config.schema import Config
from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.ppo.update import Update
from robolearn.learners.rollout import Batch
from robolearn.training.build import make_env
from robolearn.training.train import set_threads

LOSSES = ("surrogate", "value", "entropy")
"""What both report of an update."""

TOLERANCE = 1e-5
"""How far the first step's losses may lie apart, relative to their size; see `apart`."""

SEED = 0
WARM_UP = 8
"""Gradient steps before the first that is timed: more than `robolearn.core.graphs` needs before it replays."""

Losses = dict[str, float]
Table = dict[str, tuple[float, float, float]]
"""By loss: ours, rsl_rl's, and how far they lie apart."""


@dataclass(frozen=True)
class Comparison:
    """An update of ours beside rsl_rl's; a ratio is rsl_rl's time over ours, the median of the rounds' own."""

    samples: int
    epochs: int
    minibatches: int
    learning_rate: float
    seconds: dict[str, Spread]
    """Of a whole update, by contender: robolearn_fp32, rsl_rl_fp32 and, where the run learns in bf16, both in that."""
    ratios: dict[str, float]
    """fp32: both in fp32. as_used: rsl_rl's fp32, which is what it does unless told otherwise, over ours as this run
    learns. bf16: both in bf16, where the run is."""
    first: Table
    """Losses of the first gradient step, both in fp32."""
    whole: Table
    """Means over the whole update, both in fp32."""
    weights_apart: float
    """Difference of the weights after it, over their change in it (norms of all together). Rounding alone gives 1e-6,
    until some sample falls on the other side of a clip or of a ReLU's edge; from there on it grows."""

    @property
    def equal(self) -> bool:
        """Whether the losses of the first step are the same but for rounding."""
        return all(difference <= TOLERANCE for _, _, difference in self.first.values())  # a NaN is not


def require_comparable(run: Config) -> None:
    """Refuse, before anything is built, what cannot be compared.

    Raises:
        ConfigError: the run's learner is not, or not in this way, the algorithm of rsl_rl.
    """
    if run.learner_name != "ppo":
        raise ConfigError(
            f"PPO's update is compared, and learner={run.learner_name} is another algorithm; use learner=ppo"
        )
    if run.learner.rnn != "none":
        raise ConfigError(
            "with a memory rsl_rl takes environments in their order, ours in a random one; use learner.rnn=none"
        )


def apart(name: str, ours: float, theirs: float) -> float:
    """How far a loss of ours lies from theirs, relative to its size.

    The surrogate is a mean of terms of size 1 (advantages are normalized) that all but cancel, and the entropy a
    sum of such terms: their size is at least 1. The squared error's is its own.
    """
    size = max(abs(theirs), 1e-12 if name == "value" else 1.0)
    return abs(ours - theirs) / size


def compare(env: Env, learner: PPO, rounds: int) -> Comparison:
    """Collect a batch, learn from it in both ways, and time both, `rounds` times in turn.

    The learner itself does not learn from it.

    Raises:
        ConfigError: the learner also learns from mirror images.
        RunFailed: a gradient was not finite.
    """
    if learner.update.symmetry is not None:
        raise ConfigError("what is learned from mirror images is not compared; use learner.symmetry=none")
    devices = [env.device] if env.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        return _Trial(env, learner).run(rounds)


class _Trial:
    def __init__(self, env: Env, learner: PPO) -> None:
        learner.collect(env)
        value, advantage, returns = (x.clone() for x in learner._estimates())
        self.stored = Stored(learner.batch, value, learner._normalized(advantage), returns)
        self.learner, self.device, self.samples = learner, env.device, value.numel()
        wanted = learner.config
        self.minibatches = nearest_divisor(self.samples, self.samples / wanted.minibatch_size)
        self.config = dataclasses.replace(
            wanted,
            schedule="fixed",
            learning_rate=learner.learning_rate,
            max_kl=math.inf,  # every step is taken
            minibatch_size=self.samples // self.minibatches,
        )

    def run(self, rounds: int) -> Comparison:
        """See `compare`."""
        fp32 = self.ours("fp32"), self.theirs(mixed=False)
        # One minibatch, of as many samples as it is given.
        first_ours = self.ours("fp32", num_epochs=1, minibatch_size=self.samples)
        size = self.config.minibatch_size
        first = _side_by_side(first_ours.learn(self.order()[:size]), fp32[1].learn_once())
        whole, weights_apart = self.whole(*fp32)
        contenders: dict[str, Ours | Theirs] = {"rsl_rl_fp32": fp32[1], "robolearn_fp32": fp32[0]}
        used = self.learner.precision
        if used != "fp32":
            contenders |= {
                f"robolearn_{used}": self.ours(used),
                f"rsl_rl_{used}": self.theirs(mixed=True),
            }
        seconds = self.race(contenders, rounds)

        def ratio(theirs: str, ours: str) -> float:
            pairs = zip(seconds[f"rsl_rl_{theirs}"], seconds[f"robolearn_{ours}"], strict=True)
            return median(a / b for a, b in pairs)

        return Comparison(
            samples=self.samples,
            epochs=self.config.num_epochs,
            minibatches=self.minibatches,
            learning_rate=self.config.learning_rate,
            seconds={name: Spread.of(values) for name, values in seconds.items()},
            ratios={"fp32": ratio("fp32", "fp32"), "as_used": ratio("fp32", used), used: ratio(used, used)},
            first=first,
            whole=whole,
            weights_apart=weights_apart,
        )

    def ours(self, precision: str, **settings: int) -> Ours:
        return Ours(self.learner, dataclasses.replace(self.config, **settings), precision, self.stored)

    def theirs(self, mixed: bool) -> Theirs:
        return Theirs(self.learner, self.config, self.minibatches, self.stored, mixed)

    def order(self) -> Tensor:
        """The permutation that rsl_rl draws first of all in its update."""
        torch.manual_seed(SEED)
        return torch.randperm(self.samples, device=self.device)

    def whole(self, ours: Ours, theirs: Theirs) -> tuple[Table, float]:
        """Losses of a whole update, and how far the weights lie apart after it."""
        table = _side_by_side(ours.learn(self.order()), theirs.learn())
        a, b, before = (
            torch.cat([x.flatten() for x in xs])
            for xs in (ours.start.parameters, theirs.start.parameters, theirs.start.weights)
        )
        return table, float((a - b).norm() / (b - before).norm())

    def race(self, contenders: Mapping[str, Ours | Theirs], rounds: int) -> dict[str, list[float]]:
        """Seconds of an update by contender, one a round, each beginning where the others do."""
        order, names = self.order(), list(contenders)
        steps = self.config.num_epochs * self.minibatches

        def work(name: str) -> Callable[[], Losses]:
            contender = contenders[name]
            if isinstance(contender, Theirs):
                return contender.update
            return lambda: contender.update(order)

        for name in names:
            for _ in range(-(-WARM_UP // steps)):
                contenders[name].start.restore()
                work(name)()
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for i in range(rounds):
            # Another one first in each round: none always runs after the same one.
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                contenders[name].start.restore()
                seconds[name].append(timed(work(name), self.device))
        return seconds


@dataclass(frozen=True)
class Stored:
    """A batch and what was estimated of it, (T, N) each; advantages are normalized."""

    batch: Batch
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Start:
    """Weights and moments where an update begins. They are put back into the tensors they came from, which graphs
    have recorded the addresses of."""

    def __init__(self, networks: list[nn.Module], adam: torch.optim.Optimizer) -> None:
        self.parameters = [p.detach() for network in networks for p in network.parameters()]
        self.weights = [p.clone() for p in self.parameters]
        self.adam = adam
        self.moments = {p: {k: x.clone() for k, x in state.items()} for p, state in adam.state.items()}

    def restore(self) -> None:
        """Go back there."""
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            parameter.copy_(weight)
        for parameter, state in self.adam.state.items():
            for name, x in state.items():
                if parameter in self.moments:
                    x.copy_(self.moments[parameter][name])
                else:
                    x.zero_()  # made by the first step


class Ours:
    """The gradient steps of `robolearn.learners.ppo.update`, on networks of their own."""

    def __init__(self, learner: PPO, config: PPOConfig, precision: str, stored: Stored) -> None:
        self.stored, self.epochs = stored, config.num_epochs
        actor, critic = copy.deepcopy(learner.actor), copy.deepcopy(learner.critic)
        self._update = Update(actor, critic, config, precision)
        self._update.adam.load_state_dict(_moments(learner))
        self._update.adam.set_rate(config.learning_rate)
        self.start = Start([actor, critic], self._update.adam.adam)

    def update(self, order: Tensor) -> Losses:
        """What is timed: all steps of an update with this permutation in every epoch, and its losses."""
        stored = self.stored
        orders = [order] * self.epochs
        self._update.learn(stored.batch, stored.advantage, stored.returns, stored.value, orders)
        return self._update.read()

    def learn(self, order: Tensor) -> Losses:
        """An update from the start."""
        self.start.restore()
        return self.update(order)


class Theirs:
    """rsl_rl's PPO as it comes, with the same networks, and the batch in its storage."""

    def __init__(
        self, learner: PPO, config: PPOConfig, minibatches: int, stored: Stored, mixed: bool
    ) -> None:
        c, batch = config, stored.batch
        obs = TensorDict({name: obs[0] for name, obs in batch.observations.items()}, [batch.reward.shape[1]])
        groups = {"actor": ["policy"], "critic": ["critic"]}
        like = {"activation": c.activation, "obs_normalization": True}
        width = batch.action.shape[-1]
        std_range = tuple(learner.actor.distribution.std_range)
        gaussian = {"class_name": "GaussianDistribution", "std_range": std_range}
        actor = MLPModel(obs, groups, "actor", width, c.actor_hidden, distribution_cfg=gaussian, **like)
        critic = MLPModel(obs, groups, "critic", 1, c.critic_hidden, **like)
        for own, given in ((actor, learner.actor), (critic, learner.critic)):
            own.load_state_dict(given.state_dict())
            own.obs_normalizer.eval()  # it normalizes, and learns nothing more
        self.alg = RslRlPPO(
            actor,
            critic,
            _storage(obs, learner, stored),
            num_learning_epochs=c.num_epochs,
            num_mini_batches=minibatches,
            clip_param=c.clip,
            value_loss_coef=c.value_loss_coef,
            entropy_coef=c.entropy_coef,
            learning_rate=c.learning_rate,
            max_grad_norm=c.max_grad_norm,
            use_clipped_value_loss=c.clip_value_loss,
            schedule="fixed",
            normalize_advantage_per_mini_batch=False,
            use_mixed_precision=mixed,
            device=str(learner.device),
        )
        self._take_moments(learner)
        self.start = Start([self.alg.actor, self.alg.critic], self.alg.optimizer)

    def _take_moments(self, learner: PPO) -> None:
        """The moments of our Adam for theirs, which stays the kind that rsl_rl chose."""
        adam = self.alg.optimizer
        given = _moments(learner)["state"]
        adam.load_state_dict({"state": given, "param_groups": adam.state_dict()["param_groups"]})
        for state in adam.state.values():
            # Ours counts its steps on the device. Theirs looks at the count in every step, and would wait for it.
            state["step"] = state["step"].to("cpu", torch.float32)

    def update(self) -> Losses:
        """What is timed: rsl_rl's own update, with the permutation that `SEED` gives."""
        torch.manual_seed(SEED)
        losses: Losses = self.alg.update()
        return losses

    def learn(self) -> Losses:
        """An update from the start."""
        self.start.restore()
        return self.update()

    def learn_once(self) -> Losses:
        """The losses of the first gradient step alone, from the start."""
        storage, whole = self.alg.storage, self.alg.storage.mini_batch_generator

        def only_first(*arguments: Any) -> Iterator[Any]:
            return islice(whole(*arguments), 1)

        storage.mini_batch_generator = only_first
        try:
            losses = self.learn()
        finally:
            del storage.mini_batch_generator
        # It divides by how many there should have been.
        steps = self.alg.num_learning_epochs * self.alg.num_mini_batches
        return {name: x * steps for name, x in losses.items()}


def _moments(learner: PPO) -> dict[str, Any]:
    """What the learner's Adam has gathered; copied, because torch's `load_state_dict` keeps the tensors it is given."""
    return copy.deepcopy(learner.update.adam.state_dict())


def _storage(obs: TensorDict, learner: PPO, stored: Stored) -> RolloutStorage:
    """rsl_rl's storage with our batch in it."""
    batch, device = stored.batch, str(learner.device)
    steps, num_envs, width = batch.action.shape
    storage = RolloutStorage("rl", num_envs, steps, obs, [width], device)
    for name, obs in batch.observations.items():
        storage.observations[name].copy_(obs[:-1])
    storage.actions.copy_(batch.action)
    with torch.no_grad():
        distribution = learner.actor.distribution
        std = distribution.std_param.clamp(*distribution.std_range).expand_as(batch.mean).clone()
        log_prob = torch.distributions.Normal(batch.mean, std).log_prob(batch.action).sum(dim=-1)
    storage.distribution_params = (batch.mean.clone(), std)
    storage.actions_log_prob.copy_(log_prob.unsqueeze(-1))
    storage.values.copy_(stored.value.unsqueeze(-1))
    storage.returns.copy_(stored.returns.unsqueeze(-1))
    storage.advantages.copy_(stored.advantage.unsqueeze(-1))
    return storage


def _side_by_side(ours: Losses, theirs: Losses) -> Table:
    return {name: (ours[name], theirs[name], apart(name, ours[name], theirs[name])) for name in LOSSES}


def nearest_divisor(whole: int, wanted: float) -> int:
    """The divisor of `whole` nearest to `wanted`: rsl_rl drops what is left over, ours makes the parts unequal."""
    return min((d for d in range(1, whole + 1) if whole % d == 0), key=lambda d: abs(d - wanted))


def lines(update: dict[str, Any]) -> list[str]:
    """The comparison, for a terminal."""
    u = update
    told = [
        f"update beside rsl_rl's, from the same batch, permutation and weights: {u['samples']} samples,",
        f"{u['epochs']} epochs of {u['minibatches']} minibatches, step size {u['learning_rate']:g}",
        f"{'':<16}{'ms':>12}{'lowest':>12}{'highest':>12}",
    ]
    for name, spread in u["seconds"].items():
        numbers = "".join(f"{1000 * spread[key]:>12,.1f}" for key in ("median", "low", "high"))
        told.append(f"{name.replace('_', ' ').replace('rsl rl', 'rsl_rl'):<16}{numbers}")
    used = "rsl_rl in fp32, ours as this run learns"
    ways = {"fp32": "both in fp32", "as_used": used, "bf16": "both in bf16"}
    told += ["", "rsl_rl's time over ours"]
    told += [f"{ratio:>8.2f}  {ways[name]}" for name, ratio in u["ratios"].items()]
    for head, key in (("first step", "first"), ("whole update", "whole")):
        told += ["", f"{head:<16}{'robolearn':>14}{'rsl_rl':>14}{'apart':>12}"]
        for name in LOSSES:
            ours, theirs, difference = u[key][name]
            told.append(f"{name:<16}{ours:>14.7f}{theirs:>14.7f}{difference:>12.1e}")
    verdict = "are the same" if u["equal"] else "DIFFER"
    told.append(f"{'weights':<16}{'':>28}{u['weights_apart']:>12.1e}  of their change")
    return [*told, "", f"the losses of the first step {verdict}, within {TOLERANCE:g}"]


def run(words: list[str], rounds: int, warmup: int, output: Path | None) -> int:
    """Compare a run's update, print it, and write it where asked for; the exit code."""
    settings = config.resolve(words)
    require_comparable(settings)
    require_writable(output)
    set_threads(settings)
    with closing(make_env(settings)) as env:
        learner = warmed_up(settings, words, env, warmup)
        found = compare(env, cast(PPO, learner), rounds)
        machine = about(settings, env, learner, rounds, warmup)
    update = {**asdict(found), "equal": found.equal}
    print("\n".join((title(machine), *lines(update))))
    if output is not None:
        write(output, words, machine, [{"num_envs": settings.num_envs, "update": update}])
    return 0 if found.equal else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of a training run")
    parser.add_argument("--rounds", type=int, default=7, help="how often every update is timed")
    parser.add_argument("--warmup", type=int, default=3, help="training iterations before that")
    parser.add_argument("--json", type=Path, help="write everything measured here too")
    asked = parser.parse_intermixed_args(argv)
    return exit_code(lambda: run(asked.words, max(1, asked.rounds), max(0, asked.warmup), asked.json))


if __name__ == "__main__":
    sys.exit(main())
