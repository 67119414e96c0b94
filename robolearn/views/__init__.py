"""Our environments going out: gymnasium, stable-baselines3, rsl_rl.

May import: commands (to draw pictures) and what stands below it. Read `gymnasium.py` first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robolearn.views.gymnasium import as_gymnasium
    from robolearn.views.rsl_rl import as_rsl_rl

__all__ = ["as_gymnasium", "as_rsl_rl"]

_MODULES = {"as_gymnasium": "robolearn.views.gymnasium", "as_rsl_rl": "robolearn.views.rsl_rl"}


def __getattr__(name: str) -> Any:
    """Import a view where it is asked for: `robolearn.gymnasium_ids` lives here too and must stay light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
