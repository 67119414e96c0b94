"""Settings of rewards from preferences, which learners that can take them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PreferenceConfig:
    """Rewards that are learned from preferences; see docs/preferences.md."""

    preferences: str | None = None
    """Folder of preferences, from which a reward is learned that takes its place beside the task's. null: none."""
    preference_weight: float = field(default=1.0, metadata={"min": 0.0, "max": 1e6})
    """Weight per second of the learned reward, which has mean 0 and standard deviation 1 over the compared segments."""
    preference_penalty: float = field(default=0.1, metadata={"min": 0.0, "max": 1e6})
    """Weight per second of the disagreement of the reward's networks, which is taken off: what they have not seen
    compared is not to be exploited."""
    task_reward_weight: float = field(default=1.0, metadata={"min": 0.0, "max": 1e6})
    """Factor on the task's own reward, with `preferences`."""
    preference_groups: tuple[str, ...] = ()
    """Observation groups that the learned reward is a function of; []: the critic's."""
    preference_members: int = field(default=5, metadata={"min": 1, "max": 64})
    """Networks of the learned reward, whose mean it is."""
    preference_hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of each of them."""
    preference_bootstrap: bool = False
    """Learn each of them from its own sample of the answers, drawn with replacement; they start from different weights
    in any case."""
    preference_label_noise: float = field(default=0.1, metadata={"min": 0.0, "max": 0.9})
    """Share of the answers that are taken to be random, so that a wrong one does not count without bound."""
    preference_epochs: int = field(default=40, metadata={"min": 1, "max": 10_000})
    """Passes over the answers where the reward is first learned; a quarter of it where it is learned further."""
    preference_interval: int = field(default=10, metadata={"min": 0, "max": 1_000_000})
    """Iterations after which new answers are taken up; 0: only those at the start are."""
    preference_script: str | None = None
    """`path.py:judge`, a function that compares segments of the current policy every `preference_interval` iterations:
    judge(first, second) returns 1 or 2 for the better one, or 0. null: answers come from elsewhere."""
    preference_pairs: int = field(default=20, metadata={"min": 1, "max": 10_000})
    """Pairs that the script compares each time."""
    preference_max_pairs: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Pairs that it compares in the whole run, at most; 0: no limit."""
    preference_seconds: float = field(default=1.0, metadata={"above": 0.0, "max": 60.0})
    """Length of the segments that it compares [s]."""

    def validate_preferences(self) -> None:
        """Raise ValueError for settings of preferences that contradict each other."""
        if self.preferences is None:
            given: dict[str, Any] = {
                "task_reward_weight": self.task_reward_weight != 1.0,
                "preference_script": self.preference_script is not None,
            }
            for name, is_set in given.items():
                if is_set:
                    raise ValueError(
                        f"{name}={getattr(self, name)} needs preferences; add learner.preferences=FOLDER"
                    )
            return
        if not self.preferences:
            raise ValueError("preferences='' names no folder; use null for none")
        if self.preference_script is not None and not self.preference_interval:
            raise ValueError("preference_interval=0 never asks preference_script; raise it")
        if len(set(self.preference_groups)) < len(self.preference_groups):
            raise ValueError(f"preference_groups={list(self.preference_groups)} names a group twice")
        sizes = self.preference_hidden
        if not sizes or min(sizes) < 1 or max(sizes) > 4096:
            raise ValueError(
                f"preference_hidden={list(sizes)} must be one or more layer sizes within 1..4096"
            )
