"""CUDA graphs of functions that replace a tree of tensors.

An Env step makes new tensors and a new EnvState of them. A CUDA graph replays its kernels on the addresses that it was
recorded with. `Places` joins the two: every tensor that the next call reads has a fixed place, and the end of a call
copies its results there, as part of the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from robolearn.core.env_state import Named, leaves, with_leaves
from robolearn.core.graphs import Graph, Graphed

Tree = TypeVar("Tree")


class Places(Generic[Tree]):
    """A tree whose tensors have fixed addresses; `get` and `put` read and replace the tree where it is stored."""

    def __init__(self, get: Callable[[], Tree], put: Callable[[Tree], None]) -> None:
        self.get, self.put = get, put
        self.fixed: Named = {}

    def settle(self) -> None:
        """Copy every new tensor to its fixed place, and put the tree of the fixed places."""
        tree, moved = self.get(), {}
        held = {tensor.untyped_storage().data_ptr() for tensor in self.fixed.values()}
        for name, tensor in leaves(tree).items():
            place = self.fixed.get(name)
            if place is tensor:
                continue
            # A tensor in the place of another leaf (the action, which is now the previous action) would be overwritten
            # before it is read.
            alias = place is None or tensor.untyped_storage().data_ptr() in held
            moved[name] = tensor.clone() if alias else tensor
        for name, tensor in moved.items():
            place = self.fixed.setdefault(name, tensor)
            if place is not tensor:
                place.copy_(tensor)
        self.bind()

    def bind(self) -> None:
        """Put the tree of the fixed places in place of the current tree."""
        self.put(with_leaves(self.get(), self.fixed))


class Captured:
    """A function that replaces a tree with places, recorded as a CUDA graph on a CUDA device.

    Tensors that it stores outside of the tree are valid until its next call.
    """

    def __init__(
        self,
        function: Callable[[], None],
        places: Places,
        device: torch.device,
        generators: list[torch.Generator],
        make: Callable[[torch.device], Graph | None] | None = None,
    ) -> None:
        """`generators` and `make` as for `Graphed`."""
        self.function, self.places = function, places
        self.graphed: Graphed[None] | None = Graphed(self._settled, device, generators, make)

    def _settled(self) -> None:
        self.function()
        self.places.settle()

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self) -> None:
        """Call the function once, or replay it."""
        self.places.settle()  # tensors of a reset or a restore since the last call
        if self.graphed is None:
            self._settled()
            return
        recorded = self.graphed.recorded
        try:
            self.graphed()
        except RuntimeError as error:
            if recorded or not any(word in str(error) for word in ("captur", "synchroniz")):
                raise
            # The failed recording changed no tensor. From now on the function runs kernel by kernel.
            first = str(error).splitlines()[0]
            warnings.warn(
                f"{self.function.__name__.strip('_')} of the environment runs without a CUDA graph, which is slow: a "
                f"term or initial state of the task synchronizes with the device, as torch.tensor does: {first}",
                stacklevel=2,
            )
            self.places.bind()
            self.graphed = None
            self._settled()
