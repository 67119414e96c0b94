"""PPO with a privileged critic. Read `ppo.py` first; `config.py` has its settings, `update.py` its gradient steps."""

from robolearn.learners.ppo.ppo import PPO

__all__ = ["PPO"]
