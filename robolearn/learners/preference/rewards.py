"""Gives a learner's batches the reward that is learned from preferences, and asks about new segments as training goes.

A learner makes one with `preference_rewards`, calls `relabel` with each batch before it learns from it, and adds
`told` to what it reports.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from robolearn.core.columns import units_of
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.preference import judge as judges
from robolearn.learners.preference.choose import choose, compared, observed
from robolearn.learners.preference.config import PreferenceConfig
from robolearn.learners.preference.ensemble import Ensemble
from robolearn.learners.preference.folder import Answer, Pair, Preferences
from robolearn.learners.preference.judge import Judge
from robolearn.learners.preference.recent import Recent
from robolearn.learners.preference.segments import Segment, columns_of
from robolearn.learners.rollout import Batch, BatchSource, side_by_side
from robolearn.tasks.mdp.context import Random

FURTHER = 4
"""Where the reward is learned further, it takes this part of the passes over the answers."""

MOSTLY = 0.9
"""Share of equal answers from which on this is noted."""


def preference_rewards(
    env: LearnerEnv,
    config: PreferenceConfig,
    critic_groups: Sequence[str],
    seed: int,
    shards: Shards = ONE,
) -> PreferenceRewards | None:
    """The rewards from preferences of a learner in `env`; None without `learner.preferences`.

    Raises:
        ConfigError: they cannot be learned here; names the setting.
    """
    if config.preferences is None:
        return None
    if not shards.single:
        raise ConfigError(
            "learner.preferences with ranks: each rank would read the folder at another time; leave ranks out"
        )
    if isinstance(env, BatchSource):
        raise ConfigError(
            "learner.preferences with mode=async: actors do not send what the reward is learned from; use mode=sync"
        )
    return PreferenceRewards(env, config, config.preference_groups or tuple(critic_groups), seed)


class PreferenceRewards:
    """The learned reward of one learner, see the module."""

    def __init__(self, env: LearnerEnv, config: PreferenceConfig, groups: tuple[str, ...], seed: int) -> None:
        """
        Args:
            env: the learner's.
            config: its settings.
            groups: observation groups that the reward is a function of.
            seed: of all random numbers here.

        Raises:
            ConfigError: the folder does not exist or has no answers, the script does not exist, or segments are of
                another task.
        """
        assert config.preferences is not None
        self.config, self.groups, self.dt, self.device = config, groups, env.dt, env.device
        self.widths = {name: obs.shape[1] for name, obs in env.observations.items()}
        for name in groups:
            if name not in self.widths:
                raise ConfigError(
                    f"learner.preference_groups: there is no observation group {quote(name)}"
                    f"{did_you_mean(name, self.widths)}; valid: {listing(self.widths)}"
                )
        self.columns = columns_of(env)
        self.units = units_of(env) if isinstance(env, Env) else (None, None)
        script = config.preference_script
        self.judge: Judge | None = (
            None if script is None else judges.load(script, "learner.preference_script=")
        )
        self.folder = Preferences(config.preferences, create=self.judge is not None)
        self.seed = seed
        self.random = Random(seed ^ 0x5EED, self.device)
        """Draws the networks' weights and the order of pairs."""
        self.draws = np.random.default_rng(seed ^ 0x5EED)
        """Draws segments and pairs."""
        self.iteration = 0
        """Batches so far."""
        self.asked = 0
        """Pairs that the script has compared."""
        self.pairs: list[Pair] = []
        """Pairs that the reward was learned from, in the order in which they were taken up."""
        self.targets: list[float] = []
        """Their answers, as `Answer.target`."""
        self.model: Ensemble | None = None
        self.accuracy = math.nan
        self.tag = secrets.token_hex(4)
        """In the names of the segments that this run makes: RUN, and after it went on from an older checkpoint
        RUN.BRANCH."""
        self.left: dict[str, int] = {}
        """By the tags it had before, the iteration that it went on from with another."""
        self.recent: Recent | None = None
        """The last steps of some environments, of which the script compares segments."""
        if self.judge is not None:
            steps = max(1, round(config.preference_seconds / env.dt))
            if steps > env.max_episode_steps:
                raise ConfigError(
                    f"learner.preference_seconds={config.preference_seconds:g} is {steps} control steps, and an "
                    f"episode has {env.max_episode_steps}; use up to {env.max_episode_steps * env.dt:g}"
                )
            self.recent = Recent(steps, env.num_envs, self.device)
        self._notes: list[str] = []
        self._said: set[str] = set()
        """What was noted, which is not said again."""
        self._numbers = torch.zeros(3, dtype=torch.float64, device=self.device)
        found = [answer for answer in self.folder.answers().values() if answer.target is not None]
        if self.judge is None and len(found) < 2:
            raise ConfigError(
                f"learner.preferences={quote(config.preferences, 120)} holds {len(found)} answers; robolearn prefer "
                "RUN --output FOLDER asks for them, or learner.preference_script=FILE.py:NAME gives them"
            )
        if found:
            observed(self.folder.segment(found[0].pair[0]), groups, self.widths)

    # ------------------------------------------------------------------ the hook

    @property
    def terminal_groups(self) -> tuple[str, ...]:
        """Groups whose observations of the state that each step ended in are needed in a batch."""
        return self.groups if self.recent is None else tuple(self.widths)

    def relabel(self, batch: Batch) -> None:
        """Give a batch its rewards: the task's, weighted, and the learned one, in place.

        What the learner adds later, such as the value of the state that a time-out ended in, it adds to these. The
        reward of a step that is not valid, or in which the simulation diverged, has no learned part. Every
        `preference_interval` batches, new answers are taken up first.
        """
        if self.iteration == 0:
            self._take_up()
        self.iteration += 1
        if self.recent is not None:
            self.recent.add(batch, tuple(self.widths))
        if self.config.preference_interval and self.iteration % self.config.preference_interval == 0:
            if self.judge is not None:
                self._ask(self.judge)
            self._take_up()
        self._give(batch)

    @torch.no_grad()
    def _give(self, batch: Batch) -> None:
        c = self.config
        given = c.task_reward_weight * batch.reward
        self._numbers.zero_()
        if self.model is not None:
            counted = torch.ones_like(batch.done) if batch.valid is None else batch.valid.clone()
            if batch.diverged is not None:
                counted &= ~batch.diverged
            value, apart = self.model.reward(side_by_side(batch.terminal, self.groups))
            value, apart = torch.where(counted, value, 0.0), torch.where(counted, apart, 0.0)
            given = given + self.dt * (c.preference_weight * value - c.preference_penalty * apart)
            self._numbers.copy_(torch.stack([x.double().sum() for x in (value, apart, counted)]))
        batch.reward.copy_(given)

    def told(self) -> dict[str, float]:
        """Numbers of the last batch by name; waits for the device. As those of the task's terms, `reward/preference` is
        weighted and per step, and `raw/preference` is not weighted."""
        found = {"preference/pairs": float(len(self.pairs))}
        if self.model is None:
            return found
        value, apart, steps = self._numbers.tolist()
        value, apart = value / max(steps, 1.0), apart / max(steps, 1.0)
        c = self.config
        found |= {
            "reward/preference": self.dt * c.preference_weight * value,
            "reward/preference_penalty": -self.dt * c.preference_penalty * apart,
            "raw/preference": value,
            "preference/disagreement": apart,
        }
        return found if math.isnan(self.accuracy) else found | {"preference/accuracy": self.accuracy}

    def notes(self) -> list[str]:
        """Lines for the user since the last time."""
        out, self._notes = self._notes, []
        return out

    def _note_once(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._notes.append(line)

    # ------------------------------------------------------------------ answers

    def _take_up(self) -> None:
        """Learn from the answers in the folder, where they have changed since the last time."""
        answers = {pair: a for pair, a in self.folder.answers().items() if not self._of_later(pair)}
        known = set(self.pairs)
        pairs = [
            pair
            for pair in self.pairs
            if (found := answers.get(pair)) is not None and found.target is not None
        ]
        pairs += [pair for pair, a in answers.items() if a.target is not None and pair not in known]
        targets = [float(answers[pair].target or 0.0) for pair in pairs]
        if len(pairs) < 2 or (pairs, targets) == (self.pairs, self.targets):
            return
        segments = {name: self.folder.segment(name) for pair in pairs for name in pair}
        data = compared(segments, pairs, targets, self.groups, self.device, self.widths)
        epochs = self.config.preference_epochs
        if self.model is None:
            c = self.config
            inputs = data.observations.shape[2]
            self.model = Ensemble(inputs, c.preference_members, c.preference_hidden, self.random)
        else:
            epochs = max(1, epochs // FURTHER)
        self.model.fit(
            data,
            self.random,
            epochs,
            self.config.preference_label_noise,
            self.config.preference_bootstrap,
        )
        self.accuracy = self.model.accuracy(data)
        equal = sum(target == 0.5 for target in targets)
        if equal >= MOSTLY * len(targets):
            self._note_once(
                "equal",
                f"{equal} of {len(targets)} answers in {quote(str(self.folder.folder), 120)} are equal: the learned "
                "reward tells little, and stays small",
            )
        self.pairs, self.targets = pairs, targets

    def _of_later(self, pair: Pair) -> bool:
        """Whether a pair has a segment that this run made after the point that it was resumed from, or that another one
        made which went on from one of its checkpoints: the answer is not of this history."""
        last = {**self.left, self.tag: self.iteration}
        found = [match for name in pair if (match := _MADE.fullmatch(name)) is not None]
        mine = [match for match in found if _run_of(match[1]) == _run_of(self.tag)]
        return any(int(match[2]) > last.get(match[1], -1) for match in mine)

    def _leave_tag(self, after: int) -> None:
        """Name segments anew where the folder has some of this tag of iterations later than `after`: their files are
        kept, with their answers."""
        found = [_MADE.fullmatch(name) for name in self.folder.names()]
        if any(match is not None and match[1] == self.tag and int(match[2]) > after for match in found):
            self.left[self.tag] = after
            self.tag = f"{_run_of(self.tag)}.{secrets.token_hex(4)}"

    def _ask(self, judge: Judge) -> None:
        """Let the script compare segments of the last batches with each other and with older ones."""
        c = self.config
        left = c.preference_max_pairs - self.asked if c.preference_max_pairs else c.preference_pairs
        count = min(c.preference_pairs, left)
        if count <= 0:
            return
        assert self.recent is not None
        self._leave_tag(self.iteration - 1)  # another run may have gone on from the same checkpoint
        named = f"train-{self.tag}-{self.iteration:06d}"
        source = f"training, iteration {self.iteration}"
        made = self.recent.segments(2 * count, self.draws, named, source, self.dt, self.columns, self.units)
        if not made:
            self._note_once(
                "no segment",
                f"learner.preference_script: no episode went on for preference_seconds={c.preference_seconds:g} "
                f"up to iteration {self.iteration}, so there is nothing to compare; shorter segments may be",
            )
        fresh = {segment.name: segment for segment in made}
        older = list(dict.fromkeys(name for pair in self.pairs for name in pair))
        if older:
            chosen = self.draws.choice(len(older), min(len(older), len(fresh)), replace=False)
            older = [older[i] for i in sorted(chosen)]
        segments: dict[str, Segment] = {**{name: self.folder.segment(name) for name in older}, **fresh}
        rows: Mapping[str, Tensor] | None = None
        if self.model is not None:
            rows = {
                name: torch.from_numpy(observed(segment, self.groups, self.widths)).to(self.device)
                for name, segment in segments.items()
            }
        pairs = choose(list(segments), count, self.draws, self.pairs, fresh, self.model, rows)
        for pair in pairs:
            for name in pair:
                if name in fresh:
                    self.folder.add(fresh.pop(name))
            answer = judges.ask(judge, segments[pair[0]], segments[pair[1]])
            self.folder.append(Answer(pair, answer, f"script {self.config.preference_script}"))
        self.asked += len(pairs)

    # ------------------------------------------------------------------ resuming

    def _require_same_networks(self, model: Mapping[str, Tensor]) -> None:
        """Raise ConfigError where saved networks are of other sizes than the settings say; names the setting."""
        weights = [model[f"weights.{i}"] for i in range(sum(name.startswith("weights.") for name in model))]
        if not weights or any(weight.ndim != 3 for weight in weights):
            raise ConfigError("the checkpoint's networks of the learned reward are damaged")
        c, inputs = self.config, sum(self.widths[name] for name in self.groups)
        pairs = (
            ("preference_members", len(weights[0]), c.preference_members),
            ("preference_hidden", [w.shape[2] for w in weights[:-1]], list(c.preference_hidden)),
            (
                "preference_groups",
                f"groups with {weights[0].shape[1]} columns",
                f"groups with {inputs} columns",
            ),
        )
        for name, before, now in pairs:
            if before != now:
                raise ConfigError(
                    f"learner.{name} was {before} in the checkpoint and is now {now}; the learned reward goes on with "
                    "the networks that it has"
                )

    def entries(self) -> dict[str, Any]:
        """The entries of a learner's state: `preferences`, and `recent`, which belongs to the simulation."""
        recent = {} if self.recent is None else {"recent": self.recent.state_dict()}
        return {"preferences": self.state_dict(), **recent}

    def state_dict(self) -> dict[str, Any]:
        """What exact resume needs, without the recent steps: see `Recent.state_dict`."""
        return {
            "iteration": self.iteration,
            "asked": self.asked,
            "pairs": [list(pair) for pair in self.pairs],
            "targets": list(self.targets),
            "model": None if self.model is None else self.model.saved(),
            "accuracy": self.accuracy,
            "tag": self.tag,
            "left": dict(self.left),
            "random": self.random.state(),
            "draws": _plain(self.draws),
        }

    def load_state_dict(
        self, state: Mapping[str, Any] | None, recent: Mapping[str, Any] | None = None
    ) -> None:
        """Restore what `state_dict` returned; None: the run had no preferences, and starts with the folder's."""
        if self.recent is not None:
            self.recent.load_state_dict(recent)
        if state is None:
            return
        self.iteration, self.asked = int(state["iteration"]), int(state["asked"])
        self.pairs = [(first, second) for first, second in state["pairs"]]
        self.targets = list(state["targets"])
        self.accuracy, self.tag = float(state["accuracy"]), str(state["tag"]) or self.tag
        self.left = {str(tag): int(last) for tag, last in state.get("left", {}).items()}
        self._leave_tag(self.iteration)
        self.model = None
        if state["model"] is not None:
            c, inputs = self.config, sum(self.widths[name] for name in self.groups)
            self.model = Ensemble(inputs, c.preference_members, c.preference_hidden, Random(0, self.device))
            before = {"steps": torch.zeros(())}  # of a checkpoint that does not have it
            self._require_same_networks(state["model"])
            self.model.load_state_dict({**before, **state["model"]})
        if self.random.fits(state["random"]):
            self.random.set_state(state["random"])
        self.draws.bit_generator.state = _full(state["draws"])


_MADE = re.compile(r"train-([0-9a-f]+(?:\.[0-9a-f]+)?)-(\d+)-\d+")
"""Name of a segment that a training made: tag, iteration, number."""


def _run_of(tag: str) -> str:
    return tag.partition(".")[0]


def _plain(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a generator, with its two numbers of 128 bits as text."""
    state = dict(generator.bit_generator.state)
    return {**state, "state": {name: str(value) for name, value in state["state"].items()}}


def _full(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {name: int(value) for name, value in state["state"].items()}}
