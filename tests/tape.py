"""A CUDA graph's contract on the CPU: what a function did to its tensors, op by op, done again at the same addresses.

A function that holds on to a tensor which has been rebound, that decides something in Python, or that reads a
number, passes on a CPU and fails in a graph. On a tape it fails here.
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
    """A `robolearn.core.graphs.Graph`. Give `lambda device: Tape()` to `Graphed`, or put it in place of `make_graph`.

    Recording takes running the function, which a capture does not do: what it wrote and drew is put back
    afterwards, and what it made holds NaN until a replay fills it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[bool, Any, Any, Any, Any]] = []
        self.replays = 0
        self._undo: list[tuple[torch.Tensor, torch.Tensor]] = []

    def warm_up(self, function: Callable[[], Any]) -> Any:
        """Just call it."""
        return function()

    def rehearse(self, function: Callable[[], Any]) -> Any:
        """Call it under guard.

        Raises:
            RuntimeError: it waits for the device; worded as torch does.
        """
        try:
            with no_host_sync():
                return function()
        except HostSync as error:
            raise RuntimeError(f"called a synchronizing CUDA operation: {error}") from error

    def capture(self, function: Callable[[], Any], generators: Sequence[torch.Generator]) -> Any:
        """Record it, and undo it.

        Raises:
            RuntimeError: it waits for the device, which no capture can; worded as torch does.
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
        self._spoil()
        return outputs

    def replay(self) -> None:
        """Run every operation again on the tensors it had, into the tensors it gave."""
        self.replays += 1
        # Where they were recorded: below autograd, which must not follow them a second time.
        with torch._C._AutoDispatchBelowAutograd():
            for grad, func, args, kwargs, outputs in self.ops:
                with torch.set_grad_enabled(grad):  # some operations keep more for a backward pass
                    again = func(*args, **kwargs)
                for fresh, recorded in zip(_tensors(again), _tensors(outputs), strict=True):
                    if _storage(fresh) != _storage(recorded):  # neither a view nor written in place
                        recorded.copy_(fresh)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._remember(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._remember(argument, kwargs[argument.name])
        outputs = func(*args, **kwargs)
        self.ops.append((torch.is_grad_enabled(), func, args, kwargs, outputs))
        return outputs

    def _remember(self, argument: Any, value: Any) -> None:
        if argument.alias_info is not None and argument.alias_info.is_write:
            self._undo += [(x.detach(), x.detach().clone()) for x in _tensors(value)]

    @torch.no_grad()
    def _spoil(self) -> None:
        """Nobody may read what was made before it is made: on a GPU there is no telling what stands there."""
        made: set[int] = set()
        for _, _, args, kwargs, outputs in self.ops:
            given = {_storage(x) for x in _tensors((args, kwargs))}
            for x in _tensors(outputs):
                if _storage(x) not in given | made:
                    made.add(_storage(x))
                    if x.is_floating_point():
                        x.detach().fill_(torch.nan)
