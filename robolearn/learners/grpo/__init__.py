"""GRPO: learning from groups of rollouts with one start, without a critic. Read `grpo.py` first; `advantage.py`
compares the rollouts of a group, `config.py` has the settings, `update.py` the gradient steps."""

from robolearn.learners.grpo.grpo import GRPO

__all__ = ["GRPO"]
