"""The parts of the MuJoCo Warp backend: simulations with views of their rows, and device memory for CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from robolearn.envs.contacts import ArraySizes
from robolearn.envs.state import Tensor


class Simulation:
    """MuJoCo Warp's model and data for some environments, and two-dimensional views of their rows.

    `varied` names the fields of the model that have one row per environment.
    """

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, sizes: ArraySizes, varied: tuple[str, ...]
    ) -> None:
        of_model = [name for name in varied if not name.startswith("opt.")]
        self.model = mjw.put_model(model, batch_sizes=dict.fromkeys(of_model, num_envs))
        if "opt.gravity" in varied:
            gravity = np.tile(np.asarray(model.opt.gravity, dtype=np.float32), (num_envs, 1))
            self.model.opt.gravity = wp.array(gravity, dtype=wp.vec3)
        self.model.opt.warn_overflow = 0  # `check` reports it once, with the setting to raise
        self.model.opt.contact_sensor_maxmatch = max(self.model.opt.contact_sensor_maxmatch, sizes.contacts)
        if wp.get_device().is_cuda:
            self.model.opt.graph_conditional = wp.is_conditional_graph_supported()
        self.data = mjw.make_data(model, nworld=num_envs, nconmax=sizes.contacts, njmax=sizes.rows)
        self.rows: dict[str, Tensor] = {}
        """(N, ...) torch views of the simulation state."""
        states = ("qpos", "qvel", "qacc_warmstart", "ctrl", *(("act",) if model.na else ()))
        for name in states:
            self.rows[name] = wp.to_torch(getattr(self.data, name))
        self.warp_rows = {name: wp.from_torch(row) for name, row in self.rows.items()}
        self.inputs_torch = {name: self.rows[name] for name in ("qpos", "qvel", "ctrl")}
        """(N, k) torch views of all inputs of a forward pass."""
        for name in varied:
            array = attrgetter(name)(self.model)
            self.inputs_torch[name] = wp.to_torch(array).view(num_envs, -1)
        self.model_rows = tuple(name for name in self.inputs_torch if name not in self.rows)
        """The names of those inputs that belong to the model."""
        self.inputs = {name: wp.from_torch(x) for name, x in self.inputs_torch.items()}
        self.nominal = {name: self.inputs_torch[name][0].clone() for name in varied}
        """(k,) the values of the varied fields before randomization."""

    def view(self, name: str, *shape: int) -> Tensor:
        """A field as (N, *shape)."""
        return self.inputs_torch[name].view(self.data.nworld, *shape)


class Arena:
    """Device memory for allocations inside a loop of a CUDA graph, where CUDA allows none.

    A first pass allocates the blocks; while the graph is recorded they are reused in the same order.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: list[Tensor] = []
        self.taken = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make Warp allocate from this arena; does nothing on a CPU, where graphs may allocate."""
        if self.device.type != "cuda":
            yield
            return
        self.taken = 0
        with wp.ScopedAllocator(wp.device_from_torch(self.device), self):
            yield

    def allocate(self, size_in_bytes: int) -> int:
        """The address of a block of `size_in_bytes` bytes (Warp's allocator protocol)."""
        if self.taken == len(self.blocks):
            self.blocks.append(torch.empty(max(size_in_bytes, 1), dtype=torch.uint8, device=self.device))
        block = self.blocks[self.taken]
        assert block.numel() >= size_in_bytes, "the recording allocates other sizes than the pass before it"
        self.taken += 1
        return block.data_ptr()

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Does nothing: the graph keeps the blocks (Warp's allocator protocol)."""
