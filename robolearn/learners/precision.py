"""Arithmetic of the networks: single precision, or bfloat16 where the processor multiplies it in hardware."""

from __future__ import annotations

import torch


def choose_precision(wanted: str, device: torch.device) -> str:
    """`wanted` if it is "fp32" or "bf16"; for "auto" the faster one on the device."""
    if wanted != "auto":
        return wanted
    if device.type == "cpu":
        # Without bf16 multiplication in hardware (AMX or AVX512-BF16) the casts cost more than they save.
        fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
        return "bf16" if fast and library_has_bf16() else "fp32"
    # GPUs older than Ampere only emulate bf16.
    return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp32"


def library_has_bf16() -> bool:
    """Whether this process may use AVX-512: `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` limit what torch and oneDNN
    use of the processor, and where they do, bf16 is emulated at a tenth of the speed."""
    torch_may = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch_may and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which networks compute in that precision."""
    # No cache of cast weights: a cache that outlives the capture of a CUDA graph would pass stale addresses to the next
    # one, and no weight is cast twice anyway.
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
