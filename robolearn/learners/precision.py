"""Arithmetic of the networks: single precision or bfloat16."""

from __future__ import annotations

import torch


def choose_precision(wanted: str) -> str:
    """`wanted` if it is "fp32" or "bf16"; for "auto" the faster one that learns as well: "fp32".

    bf16 rounds a policy's mean by about 0.02 of its standard deviation, as small as that becomes. The logarithms of the
    ratios of PPO get an error of 0.07 to 0.12 by it (`scripts/rounding.py`); a whole iteration changes them by 0.17, at
    a KL divergence of 0.015. A humanoid that learned so is pushed over more often (docs/experiments.md).
    """
    return "fp32" if wanted == "auto" else wanted


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which networks compute in that precision."""
    # No cache of cast weights: a cache that outlives the capture of a CUDA graph would pass stale addresses to the next
    # one, and no weight is cast twice anyway.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
