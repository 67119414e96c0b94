"""DPO: Rafailov et al. (2023), "Direct Preference Optimization: Your Language Model is Secretly a Reward Model".

A segment's actions take the place of a response, and its observations that of the prompt. No reward is learned and no
experience is collected: the policy becomes likelier to act as in the preferred segments, relative to the reference.

For control this is an approximation. In the paper the normalizing constant Z(x) of the policy that a reward implies
cancels between two responses to one prompt x; here the two segments start in different states, whose constants differ,
and come into further ones by the dynamics, so that what is left of them is ignored. The more alike the starts, the
better.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, quote
from robolearn.learners.dpo.config import DPOConfig
from robolearn.learners.engine import ConstantSteps, Engine, Net
from robolearn.learners.learner import Report
from robolearn.learners.losses import log_prob
from robolearn.learners.networks import deviation
from robolearn.learners.policy import Policy
from robolearn.learners.preference.choose import held_out
from robolearn.learners.preference.ensemble import bradley_terry
from robolearn.learners.preference.folder import Pair, Preferences
from robolearn.learners.reference import Reference
from robolearn.learners.rollout import BatchSource
from robolearn.learners.units import require_same
from robolearn.tasks.mdp.context import Random


def dpo_loss(first: Tensor, second: Tensor, target: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """DPO's loss (B,): Rafailov et al., eq. 7, and for uncertain answers Mitchell (2023), "A note on DPO with noisy
    preferences".

    Args:
        first, second: (B,) log pi(actions) - log pi_ref(actions) of the two segments, summed over their steps.
        target: (B,) wanted probability that the first is better: 1, 0, or 1/2.
        beta: how closely the policy is held to the reference.
        smoothing: share of the answers that are taken to be wrong.
    """
    believed = smoothing + (1 - 2 * smoothing) * target
    return bradley_terry(beta * first, beta * second, believed)


class Update(Engine):
    """DPO's gradient steps; a sample is a pair of segments."""

    losses = ("dpo", "train_accuracy", "margin")

    def __init__(self, policy: Policy, config: DPOConfig) -> None:
        self.config, self.actor = config, policy.actor
        net = Net("actor", tuple(policy.spec.inputs), policy.actor, acts=True)
        steps = ConstantSteps(config.minibatch_size, config.learning_rate, config.max_grad_norm)
        super().__init__((net,), steps, "fp32")

    def learn(self, tables: dict[str, Tensor], orders: Sequence[Sequence[Tensor]]) -> None:
        """Take the gradient steps of an iteration on pairs, tables (P, ...) by name, see `DPO`."""
        self._reset_sums()
        self._tables = tables
        self.take(orders, len(tables["target"]))

    def objective(self, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """DPO's loss, the share of answered pairs that the policy agrees with, and by how much."""
        first, second = self.ratios(part).unbind(dim=1)
        loss = dpo_loss(first, second, part["target"], self.config.beta, self.config.label_smoothing).mean()
        side = (2 * part["target"] - 1).sign()
        agreed, margin = agreement(first, second, side), self.config.beta * (side * (first - second)).mean()
        return loss, torch.stack((loss, agreed, margin))

    def ratios(self, part: Mapping[str, Tensor]) -> Tensor:
        """(B, 2) log pi(actions) - log pi_ref(actions) of the two segments of B pairs."""
        seen, action = part["actor"], part["action"]
        mean = self._outputs(self.networks[0], seen.flatten(0, 2)).float()
        mine = log_prob(action.flatten(0, 2), mean, deviation(self.actor)).view(action.shape[:3])
        return ((mine - part["reference"]) * part["counted"]).sum(dim=2)


def agreement(first: Tensor, second: Tensor, side: Tensor) -> Tensor:
    """() share of the pairs (B,) with a better segment, `side` 1 or -1, whose ratio is the larger one; equal ones have
    the side 0 and do not count."""
    right = ((first - second) * side > 0).float()
    return right.sum() / side.abs().sum().clamp(min=1.0)


class DPO:
    """A learner from a folder of preferences; `iterate` passes over its answers."""

    config_class: ClassVar[type] = DPOConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    refuses_weights: ClassVar[str] = "the policy starts as its reference; use learner.reference=RUN"
    """Why it cannot start with the networks of another run, and what to use."""

    def __init__(self, env: LearnerEnv, config: DPOConfig, seed: int = 1, shards: Shards = ONE) -> None:
        """
        Raises:
            ConfigError: there is no reference policy or none that can be compared, the folder has no answers, or its
                segments are of another task.
        """
        if not shards.single or isinstance(env, BatchSource):
            raise ConfigError("learner=dpo trains in one process; leave ranks and mode=async out")
        config.validate()
        assert config.reference is not None
        assert config.preferences is not None
        self.config, self.device = config, env.device
        self.reference = Reference(config.reference, env.num_actions, self.device, env)
        spec = self.reference.policy.spec
        for name, width in spec.inputs.items():
            here = env.observations[name].shape[1] if name in env.observations else 0
            if here != width:
                raise ConfigError(
                    f"learner.reference={quote(config.reference, 120)} takes {width} columns of observation group "
                    f"{quote(name)}, and the task has {here}; use one of the same task"
                )
        self._policy = Policy(spec, copy.deepcopy(self.reference.policy.actor)).to(self.device)
        self._policy.actor.mlp.requires_grad_(True)  # not the noise: with it, both segments become likelier
        self._env = env
        self.update = Update(self._policy, config)
        self.random = Random(seed, self.device)
        self.timers = Timers(self.device)
        self.folder = Preferences(config.preferences)
        answers = [a for a in self.folder.answers().values() if a.target is not None]
        if len(answers) < 2:
            raise ConfigError(
                f"learner.preferences={quote(config.preferences, 120)} holds {len(answers)} answers; robolearn prefer "
                "RUN --output FOLDER asks for them"
            )
        self._use([a.pair for a in answers], [float(a.target or 0.0) for a in answers])
        env.reset(stagger=True)

    @property
    def policy(self) -> Policy:
        """The current policy. It shares this learner's weights; its exploration noise is the reference's."""
        return self._policy

    # ------------------------------------------------------------------ pairs

    @torch.no_grad()
    def _use(self, pairs: Sequence[Pair], targets: Sequence[float]) -> None:
        """Learn from these answers: make the tables (P, 2, T, ...) of the pairs, the reference's densities among them.
        Some are held out, see `held_out`."""
        self.pairs, self.targets = list(pairs), list(targets)
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        rows = [self._segment(name) for name in names]
        seen, action = (
            torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True).to(self.device)
            for part in zip(*rows, strict=True)
        )
        lengths = torch.tensor([len(each[0]) for each in rows], device=self.device)
        counted = (torch.arange(seen.shape[1], device=self.device) < lengths[:, None]).float()
        actor = self.reference.policy.actor
        normalized = actor.obs_normalizer(seen)
        mean = actor.mlp(normalized).float()
        of_reference = log_prob(action, mean, self.reference.std)
        place = {name: i for i, name in enumerate(names)}
        index = torch.tensor([[place[name] for name in pair] for pair in pairs], device=self.device)
        by_segment = {"actor": normalized, "action": action, "reference": of_reference, "counted": counted}
        tables = {name: value[index] for name, value in by_segment.items()}
        tables["target"] = torch.tensor(self.targets, device=self.device)
        left_out = torch.tensor(held_out(self.pairs), device=self.device)
        self.tables = {name: value[~left_out] for name, value in tables.items()}
        self.held_out = {name: value[left_out] for name, value in tables.items()}

    def _segment(self, name: str) -> tuple[Tensor, Tensor]:
        """(T, D) what the policy observed before each step of a segment, and the actions (T, A)."""
        segment = self.folder.segment(name)
        parts = []
        for group, width in self._policy.spec.inputs.items():
            seen = segment.observations.get(group)
            if seen is None or seen.shape[1] != width:
                there = "none" if seen is None else str(seen.shape[1])
                raise ConfigError(
                    f"segment {name} has {there} columns of observation group {quote(group)}, and the policy takes "
                    f"{width}: it is of another task, robot or other observations"
                )
            parts.append(torch.from_numpy(seen[:-1]).float())
        if segment.actions.shape[1] != self._policy.spec.actions:
            raise ConfigError(
                f"segment {name} has {segment.actions.shape[1]} actions, and the policy {self._policy.spec.actions}: "
                "it is of another robot"
            )
        require_same(segment.dt, segment.scale, segment.offset, self._env, f"segment {name}")
        return torch.cat(parts, dim=1), torch.from_numpy(segment.actions).float()

    # ------------------------------------------------------------------ learning

    def iterate(self, env: LearnerEnv) -> Report:
        """Pass over the answers, then simulate the mean actions for a look at the policy.

        Raises:
            NonFiniteTerm: a term of the Env or a gradient was not finite.
        """
        self.timers.start()
        with self.timers("learn"):
            count = len(self.tables["target"])
            orders = [
                [torch.randperm(count, generator=self.random.generator, device=self.device)]
                for _ in range(self.config.num_epochs)
            ]
            self.update.learn(self.tables, orders)
        for _ in range(self.config.num_steps):
            with self.timers("infer"):
                action = self._policy.act(env.observations)
                assert isinstance(action, Tensor)
            with self.timers("simulate"):
                env.step(action)
        with self.timers("synchronize"):
            drained = env.drain()
            losses = self.update.read()
            drained |= self._held_out_accuracy()
        return Report(self.config.num_steps * env.num_envs, losses, drained, self.timers.read())

    @torch.no_grad()
    def _held_out_accuracy(self) -> dict[str, float]:
        """`preference/pairs`, and `preference/accuracy` on those held out, where there are any that are not equal."""
        found = {"preference/pairs": float(len(self.pairs))}
        if not len(self.held_out["target"]):
            return found
        side = (2 * self.held_out["target"] - 1).sign()
        if not bool(side.any()):
            return found
        first, second = self.update.ratios(self.held_out).unbind(dim=1)
        return found | {"preference/accuracy": float(agreement(first, second, side))}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, random state, and the answers that are learned from."""
        return {
            "actor_state_dict": self._policy.actor.state_dict(),
            "optimizer_state_dict": self.update.adam.state_dict(),
            "learning_rate": float(self.update.adam.rate),
            "random": self.random.state(),
            "pairs": [list(pair) for pair in self.pairs],
            "targets": list(self.targets),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, or the actor of another learner's checkpoint."""
        self._policy.actor.load_state_dict(state["actor_state_dict"])
        if "pairs" in state:
            self._use([(first, second) for first, second in state["pairs"]], state["targets"])
        if "optimizer_state_dict" in state:
            self.update.adam.load_state_dict(state["optimizer_state_dict"])
            self.update.clear_graphs()
        self.update.adam.set_rate(state.get("learning_rate", self.config.learning_rate))
        if "random" in state and self.random.fits(state["random"]):
            self.random.set_state(state["random"])
