"""Our environments going out: gymnasium, stable-baselines3, rsl_rl.

May import: commands (to draw pictures) and what stands below it. Read `gymnasium.py` first.
"""

from robolearn.views.gymnasium import as_gymnasium
from robolearn.views.rsl_rl import as_rsl_rl

__all__ = ["as_gymnasium", "as_rsl_rl"]
