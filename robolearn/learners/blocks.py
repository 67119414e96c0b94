"""Gradients of symmetric networks with half the multiplications.

A layer of a network that `equivariance` keeps symmetric maps what is the same for a mirror image, even parts, to even
parts, and what changes its sign, odd parts, to odd parts. Of hidden units x1 and their mirror images x2 the even parts
are x1 + x2 and the odd ones x1 - x2. With W = [[A, B], [B, A]] and y = W x:

    y1 + y2 = (A + B) (x1 + x2),    y1 - y2 = (A - B) (x1 - x2)

These two products have half the multiplications of the whole one. Activations act on x1 and x2, so between layers there
are sums and differences. They cost little while their data is in the cache: some rows at a time go through all layers.

Only the first half of a layer's rows is read, [A, B], and only it gets a gradient: the sum of what both halves have in
the whole network. `Equivariance.project_gradients`, the mean with the mirror image, then gives each half its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import elu_, linear

from robolearn.envs.state import Tensor
from robolearn.learners.products import onednn_is_faster
from robolearn.tasks.mdp.symmetry import Reflection

LEAST_ROWS, LEAST_UNITS = 1536, 128
"""Samples for a thread, and units of the smallest hidden layer, from which this pays. Measured with one thread on a
Sapphire Rapids, 256 and 128 units: 1.25 times as fast with 4096 samples, 1.03 with 1024; 64 and 64 units: slower."""
ROWS = 1024
"""Samples that go through all layers at a time; 256 units of them are 1 MiB."""

aten = torch.ops.aten
ACTIVATIONS: dict[type, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda g, y, out: aten.threshold_backward(g, y, 0.0, grad_input=out)),
    nn.ELU: (elu_, lambda g, y, out: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y, grad_input=out)),
    nn.Tanh: (torch.tanh_, lambda g, y, out: aten.tanh_backward(g, y, grad_input=out)),
}
"""Activations, in place, and their gradient: from that of the result y, g, into `out`, which may be g. Swish is left
out: its gradient does not follow from its result."""


def can_halve(mlp: nn.Sequential) -> bool:
    """Whether `Blocks` can compute this network, and it pays for layers of this size on this processor."""
    hidden = [layer.out_features for layer in mlp if isinstance(layer, nn.Linear)][:-1]
    large = bool(hidden) and min(hidden) >= LEAST_UNITS
    return large and type(mlp[1]) in ACTIVATIONS and not onednn_is_faster()


class Blocks:
    """Outputs of a symmetric network, differentiable: the hidden layers by their blocks, the small last one as it is.

    For fp32 on a CPU by MKL. It was not measured in bf16, with oneDNN's AVX-512 or on a GPU: products are faster there,
    and sums and differences are not.
    """

    def __init__(self, mlp: nn.Sequential, seen: Reflection) -> None:
        """`mlp`, for which `can_halve` holds, has inputs (B, I) that are reflected by `seen`."""
        *self._hidden, self._output = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        self._activation = type(mlp[1])
        identity, index = torch.eye(len(seen.sign)), torch.arange(len(seen.sign))
        one_of_pair, fixed = seen.permutation > index, seen.permutation == index
        even, odd = one_of_pair | (fixed & (seen.sign > 0)), one_of_pair | (fixed & (seen.sign < 0))
        # A part is an input that is itself even or odd, or half the sum or difference of two.
        image = seen(identity).t()
        rows = torch.cat((0.5 * (identity + image)[even], 0.5 * (identity - image)[odd]))
        self._widths = int(even.sum()), int(odd.sum())
        self._basis = rows.t().contiguous()
        self._inverse = self._basis / rows.square().sum(dim=1)  # its transpose; the rows are orthogonal

    def parts(self, x: Tensor) -> Tensor:
        """Even parts of the inputs x (..., I), followed by the odd ones: (..., I) together."""
        return x @ self._basis

    def __call__(self, parts: Tensor) -> Tensor:
        """The outputs (B, O) for inputs whose `parts` (B, I) are given."""
        blocks: list[Tensor] = []
        for layer in self._hidden:
            half = layer.out_features // 2
            weight = layer.weight[:half]
            if not blocks:
                blocks += (weight @ self._inverse).split(self._widths, dim=1)
            else:
                left, right = (0.5 * weight).chunk(2, dim=1)  # half, because hidden parts are sums, not means
                blocks += (left + right, left - right)
            blocks.append(layer.bias[:half])
        hidden = HiddenLayers.apply(*parts.split(self._widths, dim=1), self._activation, *blocks)
        return linear(hidden, self._output.weight, self._output.bias)


class HiddenLayers(torch.autograd.Function):
    """Units (B, H) of the last hidden layer, from even parts (B, E) and odd parts (B, O) of the inputs."""

    @staticmethod
    def forward(ctx: Any, even: Tensor, odd: Tensor, activation: type, *blocks: Tensor) -> Tensor:
        """`blocks` are three for each layer: for even parts (H/2, E), for odd ones (H/2, O), and the bias (H/2,)."""
        act, _ = ACTIVATIONS[activation]
        units, kept = even.new_empty(len(even), 2 * len(blocks[-1])), []
        first, *others = _threes(blocks)
        for e, o, out in zip(even.split(ROWS), odd.split(ROWS), units.split(ROWS), strict=True):
            a, b = _products(e, o, first)
            for layer in others:
                _mix(a, b)
                act(a), act(b)
                kept += [a, b, a + b, a - b]
                a, b = _products(kept[-2], kept[-1], layer)
            left, right = out.chunk(2, dim=1)
            torch.add(a, b, out=left)
            torch.sub(a, b, out=right)
            act(out)
        ctx.activation, ctx.count = activation, len(blocks)
        ctx.save_for_backward(even, odd, units, *blocks, *kept)
        return units

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the blocks; none of the inputs, which are data."""
        _, slope = ACTIVATIONS[ctx.activation]
        even, odd, units, *saved = ctx.saved_tensors
        blocks, kept = saved[: ctx.count], iter(saved[ctx.count :])
        totals = [torch.zeros_like(block) for block in blocks]
        first, *others = list(zip(_threes(blocks), _threes(totals), strict=True))
        rows = (x.split(ROWS) for x in (even, odd, units, gradient))
        for e, o, out, g in zip(*rows, strict=True):
            before = [[next(kept) for _ in range(4)] for _ in others]
            left, right = slope(g, out, torch.empty_like(out)).chunk(2, dim=1)
            a, b = left + right, left - right
            for (layer, total), (y1, y2, *inputs) in zip(others[::-1], before[::-1], strict=True):
                _add_gradients(total, a, b, *inputs)
                a, b = a @ layer[0], b @ layer[1]
                _mix(a, b)
                slope(a, y1, a), slope(b, y2, b)
                _mix(a, b)
            _add_gradients(first[1], a, b, e, o)
        return None, None, None, *totals


def _threes(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    return [tensors[k : k + 3] for k in range(0, len(tensors), 3)]


def _products(even: Tensor, odd: Tensor, layer: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return linear(even, layer[0], layer[2]), linear(odd, layer[1])


def _mix(a: Tensor, b: Tensor) -> None:
    """Make a and b their sum and their difference."""
    a.add_(b)
    torch.sub(a, b, alpha=2, out=b)


def _add_gradients(total: Sequence[Tensor], a: Tensor, b: Tensor, even: Tensor, odd: Tensor) -> None:
    """Add a layer's gradients to `total`; a and b are those of the sums and the differences of its halves."""
    total[0].addmm_(a.t(), even)
    total[1].addmm_(b.t(), odd)
    total[2].add_(a.sum(dim=0))
