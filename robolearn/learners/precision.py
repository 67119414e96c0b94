"""The arithmetic of the networks: single precision, or bfloat16 where the processor multiplies it."""

from __future__ import annotations

import torch


def choose_precision(wanted: str, device: torch.device) -> str:
    """`wanted` itself, "fp32" or "bf16", and for "auto" what the device is faster with."""
    if wanted != "auto":
        return wanted
    if device.type == "cpu":
        # Without a bf16 multiplier (AMX, or AVX-512's own) the casts cost more than they save.
        fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
        return "bf16" if fast else "fp32"
    # Older GPUs than Ampere only emulate it.
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which networks compute with that precision."""
    # No cache of cast weights: one that outlives the recording of a graph would give another its addresses, and
    # none is cast twice anyway.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
