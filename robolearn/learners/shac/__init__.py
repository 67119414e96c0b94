"""SHAC: first-order gradients through the simulator. Read `shac.py` first; `config.py` has its settings."""

from robolearn.learners.shac.shac import SHAC

__all__ = ["SHAC"]
