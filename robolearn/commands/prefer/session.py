"""Chooses pairs of segments, in rounds, and keeps what was answered."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable

import numpy as np
import torch

from robolearn.errors import ConfigError, quote
from robolearn.files import replacing
from robolearn.learners.preference.choose import choose, compared, observed
from robolearn.learners.preference.config import PreferenceConfig
from robolearn.learners.preference.ensemble import Ensemble
from robolearn.learners.preference.folder import SKIP, Answer, Pair, Preferences
from robolearn.learners.preference.segments import Segment
from robolearn.tasks.mdp.context import Random

ROUND = 20
"""Pairs that are chosen at once."""
AHEAD = 4
"""Unanswered pairs below which a new round is made."""
LEARNED = 10
"""Answers from which pairs are chosen by the networks' disagreement."""
PASSES = 10
"""Over the answers: choosing pairs needs less than training on the reward does."""
QUEUE = "queue.json"

Make = Callable[[int, str, int], list[Segment]]
"""(number, beginning of the names, seed) -> new segments."""


class Session:
    """The pairs of a folder; its methods may be called by several threads."""

    def __init__(self, folder: Preferences, make: Make, wanted: int, seed: int, by: str) -> None:
        """
        Args:
            folder: of the answers, in which a session that ended is continued.
            make: simulates new segments.
            wanted: answers that the folder is to hold at the end.
            seed: of all random numbers.
            by: who answers.
        """
        self.folder, self.make, self.wanted, self.seed, self.by = folder, make, wanted, seed, by
        self.lock = threading.RLock()
        self.queue = self._saved_queue()
        self.accuracy: float | None = None
        """Of a reward that was learned from the answers so far, on those that were held out."""

    # ------------------------------------------------------------------ answers

    @property
    def answered(self) -> int:
        """Number of pairs with an answer; a skipped one has none."""
        return sum(answer.answer != SKIP for answer in self.folder.answers().values())

    @property
    def done(self) -> bool:
        """Whether there are as many as wanted."""
        return self.answered >= self.wanted

    def open(self, count: int) -> list[Pair]:
        """The next pairs, at most `count`."""
        with self.lock:
            known = self.folder.answers()
            return [pair for pair in self.queue if pair not in known][:count]

    def answer(self, pair: Pair, answer: int | str) -> None:
        """Keep an answer; one to a pair that is not asked is not kept."""
        with self.lock:
            if pair in self.queue and pair not in self.folder.answers():
                self.folder.append(Answer(pair, answer, self.by))

    def undo(self) -> None:
        """Take the last answer back and ask its pair again."""
        with self.lock:
            mine = [pair for pair, a in self.folder.answers().items() if a.by == self.by]
            if not mine:
                return
            pair = self.folder.last(mine)
            self.folder.append(Answer(pair, None, self.by))
            if pair not in self.queue:
                self.queue.insert(0, pair)
                self._save_queue()

    # ------------------------------------------------------------------ rounds

    def refill(self) -> bool:
        """Make a new round where few pairs are left: whether it has."""
        left, answered = len(self.open(AHEAD + self.wanted)), self.answered
        need = self.wanted - answered - left
        if need <= 0 or left >= AHEAD:
            return False
        names = self.folder.names()
        number = 1 + max([int(m[1]) for name in names if (m := re.match(r"prefer-(\d+)-", name))], default=0)
        seed = int(np.random.SeedSequence((self.seed, number)).generate_state(1)[0])
        count = min(ROUND, need)
        # For few pairs too, segments of every checkpoint: the robots of one may fall too early for any.
        made = {
            each.name: each for each in self.make(2 * max(count, ROUND // 2), f"prefer-{number:04d}", seed)
        }
        if len(made) < 2:
            raise ConfigError(
                "no two segments of this length fit into an episode; ask for shorter ones with --seconds, or name a "
                "RUN whose robot stays up longer"
            )
        model, groups = self._model(seed, next(iter(made.values())))
        rows = None
        if model is not None:
            rows = {name: torch.from_numpy(observed(each, groups)) for name, each in made.items()}
        pairs = choose(list(made), count, np.random.default_rng(seed), (), (), model, rows)
        for name in dict.fromkeys(name for pair in pairs for name in pair):
            self.folder.add(made[name])
        with self.lock:
            known = self.folder.answers()
            self.queue = [pair for pair in self.queue if pair not in known] + pairs
            self._save_queue()
        return True

    def _model(self, seed: int, like: Segment) -> tuple[Ensemble | None, tuple[str, ...]]:
        """A reward learned from the answers so far, and its observation groups; None while they are few."""
        settings = PreferenceConfig()
        groups = ("critic",) if "critic" in like.observations else tuple(like.observations)
        answers = [a for a in self.folder.answers().values() if a.target is not None]
        if len(answers) < LEARNED:
            return None, groups
        segments = {name: self.folder.segment(name) for a in answers for name in a.pair}
        pairs, targets = [a.pair for a in answers], [float(a.target or 0.0) for a in answers]
        data = compared(segments, pairs, targets, groups, torch.device("cpu"))
        random = Random(seed, torch.device("cpu"))
        model = Ensemble(
            data.observations.shape[2], settings.preference_members, settings.preference_hidden, random
        )
        model.fit(data, random, PASSES, settings.preference_label_noise)
        found = model.accuracy(data)
        self.accuracy = None if np.isnan(found) else found
        return model, groups

    # ------------------------------------------------------------------ the queue on disk

    def _saved_queue(self) -> list[Pair]:
        path = self.folder.folder / QUEUE
        if not path.exists():
            return []
        try:
            pairs = [(str(first), str(second)) for first, second in json.loads(path.read_text("utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{quote(str(path), 120)} is damaged; remove it ({error})") from error
        there = set(self.folder.names())
        return [pair for pair in pairs if there.issuperset(pair)]

    def _save_queue(self) -> None:
        with replacing(self.folder.folder / QUEUE) as part:
            part.write_text(json.dumps(self.queue), encoding="utf-8")
