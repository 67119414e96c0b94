"""Folders of preferences with made segments."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robolearn.learners.preference.folder import Answer, Preferences
from robolearn.learners.preference.segments import Segment

POLICY, CRITIC = 4, 5
"""Columns of the cartpole's groups."""
COLUMNS = [("joint_pos_rel", 2), ("joint_vel_rel", 2), ("last_action", 1)]
"""Items of the critic's group; the policy's are the first two."""


def fill(folder: Path, pairs: int, width: int = 0, steps: int = 10, seed: int = 0) -> Path:
    """Pairs of a cartpole's segments, of which the one with the larger actions and the larger first column of each
    group is better; `width` replaces the number of columns."""
    made, random = Preferences(folder, create=True), np.random.default_rng(seed)
    for i in range(pairs):
        levels = random.normal(size=2)
        for name, level in zip((f"a{i}", f"b{i}"), levels, strict=True):
            seen = {
                group: random.normal(size=(steps + 1, width or columns)) * 0.1
                for group, columns in (("policy", POLICY), ("critic", CRITIC))
            }
            for observed in seen.values():
                observed[:, 0] += level
            actions = np.full((steps, 1), level)
            columns = {} if width else {"policy": COLUMNS[:2], "critic": COLUMNS}
            made.add(Segment(name, seen, actions, np.zeros(steps), 0.02, "made", columns))
        made.append(Answer((f"a{i}", f"b{i}"), 1 if levels[0] > levels[1] else 2, "made"))
    return folder
