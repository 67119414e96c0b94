"""A guard for tests of code that must not synchronize a GPU with the host, nor copy Python numbers to it.

The guard raises for each such operation, also on a CPU: reading a number, shapes that depend on values, tensors made of
Python numbers. It cannot detect copies between devices on a machine with one device; on a GPU
`torch.cuda.set_sync_debug_mode("error")` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

SYNCHRONIZING = {
    aten._local_scalar_dense: "a number is read back (item, bool, float, int, tolist, a Python `if`)",
    aten.allclose: "two tensors are compared on the host",
    aten.equal: "two tensors are compared on the host",
    aten.nonzero: "the number of rows depends on values (nonzero, where with one argument)",
    aten.masked_select: "the number of elements depends on values (masked_select)",
    aten._unique: "the number of elements depends on values (unique)",
    aten._unique2: "the number of elements depends on values (unique)",
    aten.unique_dim: "the number of rows depends on values (unique)",
    aten.unique_consecutive: "the number of elements depends on values (unique)",
    aten.unique_dim_consecutive: "the number of rows depends on values (unique)",
    aten.bincount: "the number of bins depends on values (bincount)",
    aten.multinomial: "the weights are checked on the host (multinomial)",
    aten._linalg_check_errors: "an error code is read back (torch.linalg; take its _ex variant)",
    aten.lift_fresh: "a tensor is made of Python numbers and copied to the device",
}
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_)

COPYING = ("tensor", "as_tensor", "asarray", "from_numpy")
"""Functions of torch that make a tensor from host data."""
READING = ("item", "tolist", "numpy", "cpu", "__array__", "new_tensor")
"""Methods of a tensor that read it on the host or copy it there; on a CPU some do so without an operation."""


class HostSync(AssertionError):
    """On a GPU the operation would wait for the device, or copy to it."""


class _Guard(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        why = SYNCHRONIZING.get(packet)
        if packet is aten.lift_fresh and args[0].dim() == 0:
            # x[i] = 3.0 passes a kernel argument on a GPU; torch.tensor(3.0) is refused by COPYING.
            why = None
        if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
            why = "the number of rows depends on values (repeat_interleave without output_size)"
        if packet in INDEXING:
            masks = [x for x in tree_leaves(args[1]) if isinstance(x, torch.Tensor)]
            if any(x.dtype in (torch.bool, torch.uint8) for x in masks):
                why = "the number of rows depends on values (an index of bools)"
        if why is not None:
            raise HostSync(f"{func}: {why}")
        return func(*args, **kwargs)


def _refusing(name: str, why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise HostSync(f"{name}: {why}")

    return refuse


def _checked_to(to: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def checked(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # A torch.device may be the tensor's device; the string "cpu" always means the host.
        if "cpu" in [x for x in (*args, *kwargs.values()) if isinstance(x, str)]:
            raise HostSync("Tensor.to('cpu'): a tensor is sent to the host")
        return to(self, *args, **kwargs)

    return checked


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise HostSync, naming the operation, where the block would make the host wait for its GPU."""
    with mock.patch.object(torch.Tensor, "to", _checked_to(torch.Tensor.to)):
        patches = [
            mock.patch.object(torch, name, _refusing(f"torch.{name}", "a tensor is copied from the host"))
            for name in COPYING
        ] + [
            mock.patch.object(torch.Tensor, name, _refusing(f"Tensor.{name}", "a tensor is read on the host"))
            for name in READING
        ]
        for patch in patches:
            patch.start()
        try:
            with _Guard():
                yield
        finally:
            for patch in patches:
                patch.stop()
