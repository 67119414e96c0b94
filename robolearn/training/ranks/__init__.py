"""Several processes that train one policy: `robolearn train ... ranks=N`, or under torchrun.

Read `world.py` first: what the training loop sees, this rank, its shards and what ranks exchange. `launch.py`
starts the ranks of one machine with torch's elastic agent and restarts them; `copies.py` keeps the state of the last
iterations in memory, from which they go on; `watch.py` finds the rank that others wait for.

With `recovery=takeover`, `supervise.py` starts the ranks, `takeover.py` joins them and `beats.py` finds one that hangs.
`cut.py` is `rollout_share`; `slow.py` names a slow rank.
"""

from __future__ import annotations

import os

LOST = 75
"""Exit code of a rank that another one has left; our launcher starts all of them again."""


class Regrouped(Exception):
    """A rank has come or gone; those that take part load the newest copies and go on."""


def under_torchrun() -> bool:
    """Whether torchrun, or our launcher, has started this process as a rank."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ
