"""What a MuJoCo Warp backend consists of: simulations with views of their rows, and memory for its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from robolearn.envs.contacts import Room
from robolearn.envs.state import Tensor


class Simulation:
    """MuJoCo Warp's model and data for some environments, and two-dimensional views of what differs among them."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, room: Room, varied: tuple[str, ...]) -> None:
        self.model = mjw.put_model(model, batch_sizes=dict.fromkeys(varied, num_envs))
        self.model.opt.warn_overflow = 0  # told once, with the remedy, by `check`
        self.model.opt.contact_sensor_maxmatch = max(self.model.opt.contact_sensor_maxmatch, room.contacts)
        if wp.get_device().is_cuda:
            self.model.opt.graph_conditional = wp.is_conditional_graph_supported()
        self.data = mjw.make_data(model, nworld=num_envs, nconmax=room.contacts, njmax=room.rows)
        self.rows: dict[str, Tensor] = {}
        """(N, ...) torch views of what a simulation goes on from."""
        for name in ("qpos", "qvel", "qacc_warmstart", "ctrl"):
            self.rows[name] = wp.to_torch(getattr(self.data, name))
        self.warp_rows = {name: wp.from_torch(row) for name, row in self.rows.items()}
        self.everything_torch = {name: self.rows[name] for name in ("qpos", "qvel", "ctrl")}
        """(N, k) torch views of all that a forward pass depends on."""
        for name in varied:
            array = getattr(self.model, name)
            self.everything_torch[name] = wp.to_torch(array).view(num_envs, -1)
        self.model_rows = tuple(name for name in self.everything_torch if name not in self.rows)
        """Those of them that belong to the model."""
        self.everything = {name: wp.from_torch(x) for name, x in self.everything_torch.items()}
        self.nominal = {name: self.everything_torch[name][0].clone() for name in varied}
        """(k,) the model's own values."""

    def view(self, name: str, *shape: int) -> Tensor:
        """A field as (N, *shape)."""
        return self.everything_torch[name].view(self.data.nworld, *shape)


class Arena:
    """Memory for what is allocated inside a loop of a CUDA graph, which may hold no allocation: made in a first run,
    and handed out again, in the same order, while the graph is recorded."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: list[Tensor] = []
        self.taken = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let Warp allocate here. A CPU's graphs may allocate, and take nothing."""
        if self.device.type != "cuda":
            yield
            return
        self.taken = 0
        with wp.ScopedAllocator(wp.device_from_torch(self.device), self):
            yield

    def allocate(self, size_in_bytes: int) -> int:
        """The address of so many bytes; Warp's protocol."""
        if self.taken == len(self.blocks):
            self.blocks.append(torch.empty(max(size_in_bytes, 1), dtype=torch.uint8, device=self.device))
        block = self.blocks[self.taken]
        assert block.numel() >= size_in_bytes, "a recording allocates what the run before it did"
        self.taken += 1
        return block.data_ptr()

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Nothing: the blocks are kept for the graph; Warp's protocol."""
