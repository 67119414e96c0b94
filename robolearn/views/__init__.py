"""RoboLearn's environments for other libraries: gymnasium, PettingZoo, stable-baselines3, rsl_rl.

May import: simulation (to render) and the layers below it. Read `gymnasium.py` first.
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
    """Import a view at its first use: `gymnasium_ids` is in this package too and must import fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
