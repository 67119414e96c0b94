"""Old import paths: `import robolearn.env` gives `robolearn.core.env`, with a note where to find it now.

The public ones (`PUBLIC`) stay for good and say nothing.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

PUBLIC = {
    "robolearn.gymnasium_ids": "robolearn.views.gymnasium_ids",
    "robolearn.make": "robolearn.training.build",
    "robolearn.sb3": "robolearn.views.sb3",
}
"""Short names that the documentation uses."""

MOVED = {
    "robolearn.checkpoint": "robolearn.training.checkpoint",
    "robolearn.contract": "robolearn.core.contract",
    "robolearn.env": "robolearn.core.env",
    "robolearn.evaluate": "robolearn.commands.evaluate",
    "robolearn.gymnasium_tasks": "robolearn.views.gymnasium_tasks",
    "robolearn.learner_env": "robolearn.core.learner_env",
    "robolearn.registry": "robolearn.config.registry",
    "robolearn.rollout": "robolearn.learners.rollout",
    "robolearn.runs": "robolearn.training.runs",
    "robolearn.step_result": "robolearn.core.step_result",
    "robolearn.tasks.commands": "robolearn.tasks.mdp.commands",
    "robolearn.tasks.context": "robolearn.tasks.mdp.context",
    "robolearn.tasks.observations": "robolearn.tasks.mdp.observations",
    "robolearn.tasks.quality": "robolearn.tasks.mdp.gait_metrics",
    "robolearn.tasks.symmetry": "robolearn.tasks.mdp.symmetry",
    "robolearn.tasks.task": "robolearn.tasks.mdp.task",
    "robolearn.tasks.terms": "robolearn.tasks.mdp.terms",
    "robolearn.train": "robolearn.training.train",
}
"""Modules of the first version; each import of an old name warns."""


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module under its old name, after every other finder has failed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for an old name, None for any other."""
        known = fullname in PUBLIC or fullname in MOVED
        return importlib.util.spec_from_loader(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the old name."""
        old = module.__name__
        if old in MOVED:
            warnings.warn(f"{old} is now {MOVED[old]}: import it from there", FutureWarning, stacklevel=2)
        # The import system returns what stands in sys.modules afterwards.
        sys.modules[old] = importlib.import_module(PUBLIC.get(old) or MOVED[old])


def install() -> None:
    """Let old names be imported; a second call changes nothing."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
