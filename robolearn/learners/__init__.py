"""Learning algorithms, one a file. A learner is one file here and one row below."""

from __future__ import annotations

from robolearn.registry import Row

LEARNERS = {
    "ppo": Row(
        "robolearn.learners.ppo:PPO",
        "proximal policy optimization with a central critic",
        devices=("cpu", "cuda"),
    ),
    "shac": Row(
        "robolearn.learners.shac:SHAC",
        "short-horizon actor-critic: first-order gradients through the simulator",
        devices=("cpu", "cuda"),
    ),
}
"""Our learners by name."""
