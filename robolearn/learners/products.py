"""Matrix products in fp32 on a CPU, by the faster of the two libraries in torch.

torch uses MKL, which takes its AVX2 kernels on processors not made by Intel. oneDNN, which torch uses for bf16, takes
AVX-512 on any processor. Measured on an AMD Zen 5, 4096 x 256 times 256 x 128: 0.6 ms instead of 1.36 ms. A Zen 4
computes AVX-512 in two halves: one core takes 2.4 ms instead of 2.7, and what needs MKL (`blocks`) is faster still.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robolearn.envs.state import Tensor


class OneDnnLinear(torch.autograd.Function):
    """x W' + b in fp32 by oneDNN: x (B, I), W (O, I), b (O,)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The product (B, O)."""
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Gradients of x, W and b; None for x where autograd does not need it."""
        x, weight = ctx.saved_tensors
        of_x = _product(gradient, weight.t(), None) if ctx.needs_input_grad[0] else None
        return of_x, _product(gradient.t(), x.t(), None), gradient.sum(dim=0)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The operator of torch.compile's linear layers on a CPU; no public function calls it in fp32.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor has full AVX-512 that MKL does not use, and this torch has the operator."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or not wide_amd(cpu.read_text(encoding="utf-8", errors="replace")):
        return False
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    try:
        return torch.equal(_product(x, weight, None), torch.full((2, 4), 3.0))
    except (AttributeError, RuntimeError, TypeError):
        return False


def wide_amd(cpuinfo: str) -> bool:
    """Whether a text of /proc/cpuinfo is of an AMD processor that computes AVX-512 at its full width: Zen 5 or later,
    whose families are 26 and above."""
    family = re.search(r"^cpu family\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return "AuthenticAMD" in cpuinfo and family is not None and int(family[1]) >= 26


def forward(mlp: nn.Sequential, x: Tensor) -> Tensor:
    """Outputs of `mlp` for x (B, I), differentiable; equal to `mlp(x)` up to rounding."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not len(x) or not onednn_is_faster():
        return mlp(x)
    for layer in mlp:
        x = OneDnnLinear.apply(x, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(x)
    return x
