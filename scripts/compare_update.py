"""Compares the gradient steps of robolearn's PPO with rsl_rl's: the same batch, permutation, weights and settings.

    python scripts/compare_update.py task=humanoid_walk num_envs=4096 [--rounds N] [--warmup N] [--json FILE]

Exit codes are those of `robolearn`; 1 where the losses of the first gradient step differ.

robolearn's learner collects one batch for both: observations as its networks receive them, actions, means and
standard deviations, values, returns and normalized advantages. Both start with the same weights, normalizers and Adam
moments, use the same fixed learning rate, and take every step. rsl_rl draws one permutation per batch and uses it in
every epoch; robolearn gets the same permutation from the same seed.

Not included on either side: collection, values and advantages (rsl_rl bootstraps time-outs from another state and
normalizes by the unbiased standard deviation), the update of the normalizers, and the adaptation of the learning rate
(rsl_rl adapts it after every minibatch, robolearn once per iteration). Included are reading the losses and each side's
preparation: robolearn normalizes a batch once and recomputes the log-probabilities of its actions, rsl_rl normalizes
each minibatch.
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
"""Losses that both sides report."""

TOLERANCE = 1e-5
"""Largest relative difference of the losses of the first step; see `relative_difference`."""

SEED = 0
WARM_UP = 8
"""Gradient steps before timing starts: more than `robolearn.core.graphs` runs before it replays a CUDA graph."""

Losses = dict[str, float]
Table = dict[str, tuple[float, float, float]]
"""By loss: robolearn's value, rsl_rl's value, relative difference."""


@dataclass(frozen=True)
class Comparison:
    """An update by both sides. A ratio is rsl_rl's time over robolearn's, the median of the ratios of each round."""

    samples: int
    epochs: int
    minibatches: int
    learning_rate: float
    seconds: dict[str, Spread]
    """Of a whole update, by contender: robolearn_fp32, rsl_rl_fp32 and, if the run uses bf16, both in bf16."""
    ratios: dict[str, float]
    """fp32: both in fp32. as_used: rsl_rl in fp32, its default, over robolearn in the precision of the run. bf16: both
    in bf16, if the run uses it."""
    first: Table
    """Losses of the first gradient step, both in fp32."""
    whole: Table
    """Means over the whole update, both in fp32."""
    products: Spread
    """Seconds of the matrix products of an update alone, in fp32: the layers forward and backward, without activations,
    losses and Adam. No implementation with these products is faster."""
    operations: float
    """Multiplications and additions in them."""
    weights_apart: float
    """Norm of the difference of all weights after the update, over the norm of their change in it. Rounding alone gives
    1e-6, until a sample falls on the other side of a clip or of a ReLU's kink; then it grows."""

    @property
    def equal(self) -> bool:
        """Whether the losses of the first step are equal within `TOLERANCE`."""
        return all(difference <= TOLERANCE for _, _, difference in self.first.values())  # false for NaN


def require_comparable(cfg: Config) -> None:
    """Check, before anything is built, that the update can be compared.

    Raises:
        ConfigError: the learner is not PPO, or uses a variant that rsl_rl does not have.
    """
    if cfg.learner_name != "ppo":
        raise ConfigError(f"learner={cfg.learner_name} cannot be compared with rsl_rl's PPO; use learner=ppo")
    if cfg.learner.rnn != "none":
        raise ConfigError(
            f"learner.rnn={cfg.learner.rnn} cannot be compared: rsl_rl orders the environments of recurrent "
            "minibatches differently; use learner.rnn=none"
        )
    if cfg.learner.estimated_groups:
        raise ConfigError(
            f"learner.estimated_groups={list(cfg.learner.estimated_groups)} cannot be compared: rsl_rl has no "
            "estimates; use learner.estimated_groups=[]"
        )


def relative_difference(name: str, ours: float, theirs: float) -> float:
    """Difference of a loss between robolearn and rsl_rl, relative to its size.

    The surrogate is a mean of terms of size 1 (advantages are normalized) that nearly cancel, and the entropy a sum
    of such terms, so their size is at least 1. The size of the value loss is its value.
    """
    size = max(abs(theirs), 1e-12 if name == "value" else 1.0)
    return abs(ours - theirs) / size


def compare(env: Env, learner: PPO, rounds: int) -> Comparison:
    """Collect a batch, learn from it with both implementations, and time both, `rounds` times in turn.

    The learner is not changed.

    Raises:
        ConfigError: the learner uses mirror symmetry.
        RunFailed: a gradient was not finite.
    """
    if learner.symmetry is not None:
        raise ConfigError(
            "learner.symmetry cannot be compared: rsl_rl's PPO here has none; use learner.symmetry=none"
        )
    devices = [env.device] if env.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        return _Comparer(env, learner).run(rounds)


class _Comparer:
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
            max_kl=math.inf,  # no early stop
            minibatch_size=self.samples // self.minibatches,
        )

    def run(self, rounds: int) -> Comparison:
        """See `compare`."""
        fp32 = self.robolearn("fp32"), self.rsl_rl(mixed=False)
        # A single minibatch with all samples of the given order.
        first_robolearn = self.robolearn("fp32", num_epochs=1, minibatch_size=self.samples)
        size = self.config.minibatch_size
        first = _side_by_side(first_robolearn.learn(self.order()[:size]), fp32[1].learn_once())
        whole, weights_apart = self.whole(*fp32)
        contenders: dict[str, RobolearnUpdate | RslRlUpdate] = {
            "rsl_rl_fp32": fp32[1],
            "robolearn_fp32": fp32[0],
        }
        used = self.learner.precision
        if used != "fp32":
            contenders |= {
                f"robolearn_{used}": self.robolearn(used),
                f"rsl_rl_{used}": self.rsl_rl(mixed=True),
            }
        seconds = self.time_updates(contenders, rounds)
        products = MatrixProducts(
            [self.learner.actor, self.learner.critic],
            self.config.minibatch_size,
            fp32[0].epochs * self.minibatches,
        )
        products.update()

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
            products=Spread.of([timed(products.update, self.device) for _ in range(rounds)]),
            operations=products.operations,
            first=first,
            whole=whole,
            weights_apart=weights_apart,
        )

    def robolearn(self, precision: str, **settings: int) -> RobolearnUpdate:
        return RobolearnUpdate(
            self.learner, dataclasses.replace(self.config, **settings), precision, self.stored
        )

    def rsl_rl(self, mixed: bool) -> RslRlUpdate:
        return RslRlUpdate(self.learner, self.config, self.minibatches, self.stored, mixed)

    def order(self) -> Tensor:
        """The permutation that rsl_rl draws first in its update."""
        torch.manual_seed(SEED)
        return torch.randperm(self.samples, device=self.device)

    def whole(self, ours: RobolearnUpdate, theirs: RslRlUpdate) -> tuple[Table, float]:
        """Losses of a whole update, and the relative difference of the weights after it."""
        table = _side_by_side(ours.learn(self.order()), theirs.learn())
        a, b, before = (
            torch.cat([x.flatten() for x in xs])
            for xs in (ours.start.parameters, theirs.start.parameters, theirs.start.weights)
        )
        return table, float((a - b).norm() / (b - before).norm())

    def time_updates(
        self, contenders: Mapping[str, RobolearnUpdate | RslRlUpdate], rounds: int
    ) -> dict[str, list[float]]:
        """Seconds of an update by contender, one per round, all from the same initial weights and moments."""
        order, names = self.order(), list(contenders)
        steps = self.config.num_epochs * self.minibatches

        def work(name: str) -> Callable[[], Losses]:
            contender = contenders[name]
            if isinstance(contender, RslRlUpdate):
                return contender.update
            return lambda: contender.update(order)

        for name in names:
            for _ in range(-(-WARM_UP // steps)):
                contenders[name].start.restore()
                work(name)()
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for i in range(rounds):
            # Rotate the order in each round, so that no contender always runs after the same one.
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                contenders[name].start.restore()
                seconds[name].append(timed(work(name), self.device))
        return seconds


@dataclass(frozen=True)
class Stored:
    """A batch with its value estimates, normalized advantages and returns, (T, N) each."""

    batch: Batch
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Start:
    """Initial weights and Adam moments of an update. `restore` writes them in place, because CUDA graphs have recorded
    the addresses of the tensors."""

    def __init__(self, networks: list[nn.Module], adam: torch.optim.Optimizer) -> None:
        self.parameters = [p.detach() for network in networks for p in network.parameters()]
        self.weights = [p.clone() for p in self.parameters]
        self.adam = adam
        self.moments = {p: {k: x.clone() for k, x in state.items()} for p, state in adam.state.items()}

    def restore(self) -> None:
        """Restore the initial weights and moments."""
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            parameter.copy_(weight)
        for parameter, state in self.adam.state.items():
            for name, x in state.items():
                if parameter in self.moments:
                    x.copy_(self.moments[parameter][name])
                else:
                    x.zero_()  # created by the first step


class RobolearnUpdate:
    """The gradient steps of `robolearn.learners.ppo.update`, on copies of the networks."""

    def __init__(self, learner: PPO, config: PPOConfig, precision: str, stored: Stored) -> None:
        self.stored, self.epochs = stored, config.num_epochs
        actor, critic = copy.deepcopy(learner.actor), copy.deepcopy(learner.critic)
        self._update = Update(actor, critic, config, precision, workers=learner.workers)
        self._update.adam.load_state_dict(_moments(learner))
        self._update.adam.set_rate(config.learning_rate)
        self.start = Start([actor, critic], self._update.adam.adam)

    def update(self, order: Tensor) -> Losses:
        """The timed part: all steps of an update with this permutation in every epoch, and reading the losses."""
        stored = self.stored
        orders = [[order]] * self.epochs
        self._update.learn(stored.batch, stored.advantage, stored.returns, stored.value, orders)
        return self._update.read()

    def learn(self, order: Tensor) -> Losses:
        """An update from the initial weights and moments."""
        self.start.restore()
        return self.update(order)


class MatrixProducts:
    """The matrix products of the gradient steps, on numbers of their own: the upper limit of the speed of an update.

    Each layer has one forward and one for its weights' gradient, and all but a network's first one for its input's.
    """

    def __init__(self, networks: list[nn.Module], samples: int, steps: int) -> None:
        self.steps = steps
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.operations = 0.0
        for network in networks:
            weights = [m.weight.detach() for m in network.modules() if isinstance(m, nn.Linear)]
            for i, weight in enumerate(weights):
                x, gradient = (torch.randn(samples, n, device=weight.device) for n in weight.shape[::-1])
                self._add(x, weight.T)
                self._add(gradient.T, x)
                if i:
                    self._add(gradient, weight)

    def _add(self, a: Tensor, b: Tensor) -> None:
        self.pairs.append((a, b, torch.empty(a.shape[0], b.shape[1], device=a.device)))
        self.operations += 2.0 * a.shape[0] * a.shape[1] * b.shape[1] * self.steps

    def update(self) -> None:
        """The timed part: the products of all steps."""
        for _ in range(self.steps):
            for a, b, out in self.pairs:
                torch.mm(a, b, out=out)


class RslRlUpdate:
    """rsl_rl's unmodified PPO with the same networks, and the batch in its storage."""

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
        for network, source in ((actor, learner.actor), (critic, learner.critic)):
            network.load_state_dict(source.state_dict())
            network.obs_normalizer.eval()  # normalize without updating the statistics
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
        """Copy robolearn's Adam moments into rsl_rl's optimizer, which keeps its parameter settings."""
        adam = self.alg.optimizer
        moments = _moments(learner)["state"]
        adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})
        for state in adam.state.values():
            # robolearn counts steps on the device. rsl_rl's Adam reads the count in each step, which would sync.
            state["step"] = state["step"].to("cpu", torch.float32)

    def update(self) -> Losses:
        """The timed part: rsl_rl's update, with the permutation of `SEED`."""
        torch.manual_seed(SEED)
        losses: Losses = self.alg.update()
        return losses

    def learn(self) -> Losses:
        """An update from the initial weights and moments."""
        self.start.restore()
        return self.update()

    def learn_once(self) -> Losses:
        """The losses of the first gradient step only, from the initial weights and moments."""
        storage, whole = self.alg.storage, self.alg.storage.mini_batch_generator

        def only_first(*arguments: Any) -> Iterator[Any]:
            return islice(whole(*arguments), 1)

        storage.mini_batch_generator = only_first
        try:
            losses = self.learn()
        finally:
            del storage.mini_batch_generator
        # rsl_rl divides by the number of steps of a whole update.
        steps = self.alg.num_learning_epochs * self.alg.num_mini_batches
        return {name: x * steps for name, x in losses.items()}


def _moments(learner: PPO) -> dict[str, Any]:
    """A copy of the state of the learner's Adam, because torch's `load_state_dict` keeps the tensors that it gets."""
    return copy.deepcopy(learner.update.adam.state_dict())


def _storage(obs: TensorDict, learner: PPO, stored: Stored) -> RolloutStorage:
    """rsl_rl's storage, filled with the batch."""
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
    return {
        name: (ours[name], theirs[name], relative_difference(name, ours[name], theirs[name]))
        for name in LOSSES
    }


def nearest_divisor(whole: int, wanted: float) -> int:
    """The divisor of `whole` nearest to `wanted`, because rsl_rl drops a remainder and robolearn does not."""
    return min((d for d in range(1, whole + 1) if whole % d == 0), key=lambda d: abs(d - wanted))


def _numbers(spread: dict[str, float]) -> str:
    return "".join(f"{1000 * spread[key]:>12,.1f}" for key in ("median", "low", "high"))


def _rate(update: dict[str, Any]) -> str:
    """The speed of the matrix products, and the part of robolearn's update that they are."""
    products = update["products"]["median"]
    part = products / update["seconds"]["robolearn_fp32"]["median"]
    return f"{update['operations'] / products / 1e9:,.0f} GFLOP/s, {100 * part:.0f} % of robolearn in fp32"


def lines(update: dict[str, Any]) -> list[str]:
    """The lines to print of a comparison."""
    u = update
    out = [
        f"update of robolearn and rsl_rl from the same batch, permutation and weights: {u['samples']} samples,",
        f"{u['epochs']} epochs of {u['minibatches']} minibatches, learning rate {u['learning_rate']:g}",
        f"{'':<16}{'ms':>12}{'lowest':>12}{'highest':>12}",
    ]
    for name, spread in u["seconds"].items():
        out.append(f"{name.replace('_', ' ').replace('rsl rl', 'rsl_rl'):<16}{_numbers(spread)}")
    out.append(f"{'products alone':<16}{_numbers(u['products'])}  {_rate(u)}")
    used = "rsl_rl in fp32, robolearn in the precision of this run"
    ways = {"fp32": "both in fp32", "as_used": used, "bf16": "both in bf16"}
    out += ["", "rsl_rl's time over robolearn's"]
    out += [f"{ratio:>8.2f}  {ways[name]}" for name, ratio in u["ratios"].items()]
    for head, key in (("first step", "first"), ("whole update", "whole")):
        out += ["", f"{head:<16}{'robolearn':>14}{'rsl_rl':>14}{'difference':>12}"]
        for name in LOSSES:
            ours, theirs, difference = u[key][name]
            out.append(f"{name:<16}{ours:>14.7f}{theirs:>14.7f}{difference:>12.1e}")
    verdict = "are the same" if u["equal"] else "DIFFER"
    out.append(f"{'weights':<16}{'':>28}{u['weights_apart']:>12.1e}  of their change")
    return [*out, "", f"the losses of the first step {verdict}, within {TOLERANCE:g}"]


def run(words: list[str], rounds: int, warmup: int, output: Path | None) -> int:
    """Compare the update of a run, print the result, write it to `output`, and return the exit code."""
    cfg = config.resolve(words)
    require_comparable(cfg)
    require_writable(output)
    set_threads(cfg)
    with closing(make_env(cfg)) as env:
        learner = warmed_up(cfg, words, env, warmup)
        found = compare(env, cast(PPO, learner), rounds)
        machine = about(cfg, env, learner, rounds, warmup)
    update = {**asdict(found), "equal": found.equal}
    print("\n".join((title(machine), *lines(update))))
    if output is not None:
        write(output, words, machine, [{"num_envs": cfg.num_envs, "update": update}])
    return 0 if found.equal else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of a training run")
    parser.add_argument("--rounds", type=int, default=7, help="timed updates of each contender")
    parser.add_argument("--warmup", type=int, default=3, help="training iterations before the comparison")
    parser.add_argument("--json", type=Path, help="also write the measurements here")
    args = parser.parse_intermixed_args(argv)
    return exit_code(lambda: run(args.words, max(1, args.rounds), max(0, args.warmup), args.json))


if __name__ == "__main__":
    sys.exit(main())
