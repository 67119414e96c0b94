"""Methods that rebind the tensors they go on from, as graphs that work on tensors which never move.

Env is written as if memory were free: a step makes new tensors and rebinds its attributes to them. A CUDA graph
replays its kernels on the very addresses it was recorded with. Between the two stands `Slots`: every tensor the
next call starts from has a fixed place, and what a call has made is copied there at its end, as part of the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from robolearn.core.graphs import Graph, Graphed

Tensor = torch.Tensor
Place = tuple[Any, str]
"""An object and the name of its attribute: a tensor, or a dict of tensors by name."""


class Slots:
    """The tensors an object goes on from, each in a fixed place."""

    def __init__(self, places: Callable[[], list[Place]]) -> None:
        self.places = places
        self.fixed: dict[tuple[int, str, str], Tensor] = {}

    def _found(self) -> Iterator[tuple[tuple[int, str, str], Any, str, Tensor]]:
        for i, (owner, name) in enumerate(self.places()):
            value = getattr(owner, name)
            for key, tensor in value.items() if isinstance(value, dict) else [("", value)]:
                yield (i, name, key), owner, name, tensor

    def settle(self) -> None:
        """Copy what was rebound into its fixed place, and bind that again."""
        moved = []
        held = {tensor.untyped_storage().data_ptr() for tensor in self.fixed.values()}
        for slot, owner, name, tensor in self._found():
            place = self.fixed.get(slot)
            if place is tensor:
                continue
            # One that stands in another's place (the action that is now the previous one) would be overwritten
            # before it is read.
            if place is None or tensor.untyped_storage().data_ptr() in held:
                tensor = tensor.clone()
            moved.append((slot, owner, name, tensor))
        for slot, owner, name, tensor in moved:
            place = self.fixed.setdefault(slot, tensor)
            if place is not tensor:
                place.copy_(tensor)
            if slot[2]:
                getattr(owner, name)[slot[2]] = place
            else:
                setattr(owner, name, place)

    def bind(self) -> None:
        """Bind every fixed place again, whatever was bound meanwhile."""
        for slot, owner, name, _ in list(self._found()):
            if slot[2]:
                getattr(owner, name)[slot[2]] = self.fixed[slot]
            else:
                setattr(owner, name, self.fixed[slot])


class Captured:
    """A method of an object with slots, recorded as a graph where its device has them.

    What it leaves in attributes that are no slots stays valid until it is called again.
    """

    def __init__(
        self,
        function: Callable[[], None],
        slots: Slots,
        device: torch.device,
        generators: list[torch.Generator],
        make: Callable[[torch.device], Graph | None] | None = None,
    ) -> None:
        """`generators` and `make` as for `Graphed`."""
        self.function, self.slots = function, slots
        self.graphed: Graphed[None] | None = Graphed(self._settled, device, generators, make)

    def _settled(self) -> None:
        self.function()
        self.slots.settle()

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self) -> None:
        """Run it once."""
        self.slots.settle()  # what a reset or a restore has rebound since
        if self.graphed is None:
            self._settled()
            return
        recorded = self.graphed.recorded
        try:
            self.graphed()
        except RuntimeError as error:
            if recorded or not any(word in str(error) for word in ("captur", "synchroniz")):
                raise
            # It has got nowhere: its slots are as they were. What cannot be recorded works kernel by kernel.
            first = str(error).splitlines()[0]
            warnings.warn(
                f"{self.function.__name__.strip('_')} of the environment runs without a CUDA graph, so slowly: a term "
                f"or pose of the task waits for the device or copies to it, as torch.tensor(...) does ({first})",
                stacklevel=2,
            )
            self.slots.bind()
            self.graphed = None
            self._settled()
