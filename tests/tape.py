"""A CUDA graph on the CPU: records the operations of a function and replays them on the same tensors.

A function that uses a tensor that is rebound later, branches in Python, or reads a number works on a CPU but fails in a
CUDA graph. With a Tape it fails on a CPU too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.no_sync import HostSync, no_host_sync


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """A `robolearn.core.graphs.Graph`. Pass `lambda device: Tape()` to `Graphed`, or replace `make_graph` by it.

    Recording runs the function, which a CUDA capture does not. So in-place writes and random generators are undone
    afterwards, and new tensors hold NaN until a replay fills them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[bool, Any, Any, Any, Any]] = []
        self.replays = 0
        self._undo: list[tuple[torch.Tensor, torch.Tensor]] = []

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Call the function."""
        return function()

    def rehearse(self, function: Callable[[], Any]) -> Any:
        """Call the function, and check that it does not synchronize.

        Raises:
            RuntimeError: it would wait for the device; the message is torch's.
        """
        try:
            with no_host_sync():
                return function()
        except HostSync as error:
            raise RuntimeError(f"called a synchronizing CUDA operation: {error}") from error

    def capture(self, function: Callable[[], Any], generators: Sequence[torch.Generator]) -> Any:
        """Record the function, then undo its writes.

        Raises:
            RuntimeError: it would wait for the device, which a capture cannot; the message is torch's.
        """
        assert not self.ops
        states = [generator.get_state() for generator in generators]
        try:
            with no_host_sync(), self:
                outputs = function()
        except HostSync as error:
            raise RuntimeError(f"operation not permitted when stream is capturing: {error}") from error
        finally:
            with torch.no_grad():
                for tensor, before in reversed(self._undo):
                    tensor.copy_(before)
            self._undo.clear()
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        self._fill_with_nan()
        return outputs

    def replay(self) -> None:
        """Run every operation again with its recorded inputs, and write to its recorded outputs."""
        self.replays += 1
        # The operations were recorded below autograd, which must not record them again.
        with torch._C._AutoDispatchBelowAutograd():
            for grad, func, args, kwargs, outputs in self.ops:
                with torch.set_grad_enabled(
                    grad
                ):  # with grad, some operations save more for the backward pass
                    again = func(*args, **kwargs)
                for fresh, recorded in zip(_tensors(again), _tensors(outputs), strict=True):
                    if _storage(fresh) != _storage(recorded):  # neither a view nor written in place
                        recorded.copy_(fresh)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._save_before_write(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._save_before_write(argument, kwargs[argument.name])
        outputs = func(*args, **kwargs)
        self.ops.append((torch.is_grad_enabled(), func, args, kwargs, outputs))
        return outputs

    def _save_before_write(self, argument: Any, value: Any) -> None:
        if argument.alias_info is not None and argument.alias_info.is_write:
            self._undo += [(x.detach(), x.detach().clone()) for x in _tensors(value)]

    @torch.no_grad()
    def _fill_with_nan(self) -> None:
        """Fill new tensors with NaN until the first replay: after a CUDA capture their content is undefined."""
        made: set[int] = set()
        for _, _, args, kwargs, outputs in self.ops:
            inputs = {_storage(x) for x in _tensors((args, kwargs))}
            for x in _tensors(outputs):
                if _storage(x) not in inputs | made:
                    made.add(_storage(x))
                    if x.is_floating_point():
                        x.detach().fill_(torch.nan)
