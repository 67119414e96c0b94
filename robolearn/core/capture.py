"""Functions from one tree of tensors to the next, as CUDA graphs, which work on tensors that never move.

Env is written as if memory were free: a step makes new tensors and a new EnvState of them. A CUDA graph replays its
kernels on the very addresses it was recorded with. Between the two stands `Places`: every tensor that the next call
starts from has a fixed place, and what a call has made is copied there at its end, as part of the graph.
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
    """A tree whose tensors have fixed places; `get` and `put` read and replace it where it is kept."""

    def __init__(self, get: Callable[[], Tree], put: Callable[[Tree], None]) -> None:
        self.get, self.put = get, put
        self.fixed: Named = {}

    def settle(self) -> None:
        """Copy what is new into its fixed place, and put the tree of the fixed places."""
        tree, moved = self.get(), {}
        held = {tensor.untyped_storage().data_ptr() for tensor in self.fixed.values()}
        for name, tensor in leaves(tree).items():
            place = self.fixed.get(name)
            if place is tensor:
                continue
            # One that stands in another's place (the action that is now the previous one) would be overwritten
            # before it is read.
            alias = place is None or tensor.untyped_storage().data_ptr() in held
            moved[name] = tensor.clone() if alias else tensor
        for name, tensor in moved.items():
            place = self.fixed.setdefault(name, tensor)
            if place is not tensor:
                place.copy_(tensor)
        self.bind()

    def bind(self) -> None:
        """Put the tree of the fixed places, whatever was put meanwhile."""
        self.put(with_leaves(self.get(), self.fixed))


class Captured:
    """A function that replaces a tree with places, recorded as a graph where its device has them.

    What it leaves elsewhere stays valid until it is called again.
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
        """Run it once."""
        self.places.settle()  # what a reset or a restore has put since
        if self.graphed is None:
            self._settled()
            return
        recorded = self.graphed.recorded
        try:
            self.graphed()
        except RuntimeError as error:
            if recorded or not any(word in str(error) for word in ("captur", "synchroniz")):
                raise
            # It has got nowhere: its places are as they were. What cannot be recorded works kernel by kernel.
            first = str(error).splitlines()[0]
            warnings.warn(
                f"{self.function.__name__.strip('_')} of the environment runs without a CUDA graph, so slowly: a term "
                f"or initial state of the task waits for the device or copies to it, as torch.tensor does: {first}",
                stacklevel=2,
            )
            self.places.bind()
            self.graphed = None
            self._settled()
