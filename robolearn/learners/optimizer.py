"""Adam whose step size, and the flag that skips a step, are tensors on the device.

Nothing is read back to the host, so that a whole gradient step can be captured as a CUDA graph.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor

ALIGN = 4
"""Every gradient starts at a multiple of this many floats: vector loads need 16 bytes."""


class DeviceAdam:
    """Adam (Kingma and Ba, 2015, "Adam: A Method for Stochastic Optimization") for several networks.

    Each network's gradient is clipped by its own norm. All gradients are in one flat tensor with further numbers that a
    step depends on, so that ranks exchange everything in one operation.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        rate: float,
        max_norm: float,
        betas: tuple[float, float] = (0.9, 0.999),
        extra: int = 1,
        shards: Shards = ONE,
    ) -> None:
        """`networks` by name, all on one device; `max_norm` bounds each network's gradient norm; `betas` are Adam's;
        `extra` is how many numbers are averaged with the gradients over `shards`."""
        self.shards = shards
        named = {f"{n}.{k}": p for n, module in networks.items() for k, p in _trained(module)}
        self.names, self.parameters = list(named), list(named.values())
        self.max_norm, self.betas = max_norm, betas
        device = self.parameters[0].device
        starts, end = [], 0
        for parameter in self.parameters:
            starts.append(end)
            end += parameter.numel() + -parameter.numel() % ALIGN
        size = end + extra

        def views(flat: Tensor) -> list[Tensor]:
            pairs = zip(starts, self.parameters, strict=True)
            return [flat[start : start + p.numel()].view_as(p) for start, p in pairs]

        self.shared = torch.zeros(size, device=device)
        """(G + E,) the flat gradients and `extra`, averaged over shards before a step."""
        self.extra = self.shared[end:]
        """(E,) averaged with the gradients."""
        self.gradients = views(self.shared)
        self._parts = [] if shards.single else [torch.zeros(size, device=device) for _ in shards.mine]
        self._kept: dict[int, Sequence[Tensor]] = {}
        self._gradients = [views(part) for part in self._parts]
        self._extras = [part[end:] for part in self._parts]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        # Each network's range in the list of parameters and in the flat tensor.
        counts = [len(_trained(module)) for module in networks.values()]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        self._spans = [
            (slice(last - count, last), slice(starts[last - count], (*starts, end)[last]))
            for count, last in zip(counts, ends, strict=True)
        ]
        self.rate = torch.tensor(rate, dtype=torch.float64, device=device)
        """() step size, float64: an adaptive schedule multiplies it up and down for a whole run."""
        # Adam's kernel reads a float32 copy on a GPU, and the rate itself on a CPU.
        self._kernel_rate = self.rate if device.type == "cpu" else self.rate.float()
        self._capturable = device.type == "cuda"
        self.skip = torch.zeros((), device=device)
        """() 1 if the last `step` was skipped, else 0."""
        self.adam = torch.optim.Adam(
            self.parameters, lr=self._kernel_rate, betas=betas, fused=True, capturable=self._capturable
        )
        # With found_inf set, torch's kernels leave weights, moments and step count as they are. GradScaler sets it too.
        self.adam.found_inf = self.skip  # type: ignore[attr-defined]
        # It would warn about the uncaptured steps before a capture, which are intended.
        self.adam._warned_capturable_if_run_uncaptured = True

    def take(
        self, gradients: Sequence[Tensor], extra: Tensor | None = None, shard: int | None = None
    ) -> None:
        """Copy these gradients, one per parameter, and `extra` (E,) into the flat tensor for the next step.

        With `shard`, into that of this shard of the process; `average` then computes those of the step.
        """
        torch._foreach_copy_(self.gradients if shard is None else self._gradients[shard], list(gradients))
        if extra is not None:
            (self.extra if shard is None else self._extras[shard]).copy_(extra)
        # Allocated last, they are at the top of a CPU's heap. If they were freed, malloc would return the memory of the
        # whole step to the system, and the next step would have to allocate it again.
        self._kept[shard or 0] = gradients

    def average(self) -> None:
        """Average the gradients, and `extra`, over the shards of all ranks; nothing where there is one."""
        if not self.shards.single:
            self.shared.copy_(self.shards.mean(self._parts))

    def clip(self) -> tuple[Tensor, Tensor]:
        """Scale each network's gradient to a norm of at most `max_norm`.

        Returns:
            The norm of each parameter's gradient (P,) before clipping, and () bool: all are finite.
        """
        norms = torch.stack(torch._foreach_norm(self.gradients))
        totals = [torch.linalg.vector_norm(norms[rows]) for rows, _ in self._spans]
        for total, (_, flat) in zip(totals, self._spans, strict=True):
            self.shared[flat].mul_((self.max_norm / (total + 1e-6)).clamp(max=1.0))
        return norms, torch.isfinite(torch.stack(totals).sum())

    def step(self, skip: Tensor) -> None:
        """One step of Adam; where `skip` () bool is set, parameters, moments and step count stay unchanged."""
        self.skip.copy_(skip)
        self.adam.step()

    def set_rate(self, rate: Tensor | float) -> None:
        """Set the step size, a tensor () on the device or a number, from the next step on."""
        if isinstance(rate, Tensor):
            self.rate.copy_(rate)
        else:
            self.rate.fill_(rate)
        if self._kernel_rate is not self.rate:
            self._kernel_rate.copy_(self.rate)

    def state_dict(self) -> dict[str, Any]:
        """The state of torch's Adam with plain numbers in the parameter groups, so that any Adam can load it."""
        state = self.adam.state_dict()
        groups = [{**g, "lr": float(self.rate), "capturable": False} for g in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load moments and step count of an Adam over the same parameters; its rate and betas are ignored.

        The moments are new tensors afterwards: a CUDA graph captured before must be captured again.
        """
        # Fused, capturable and the device of the step count depend on this device, not on the saved one.
        here = {"lr": self._kernel_rate, "betas": self.betas}
        here |= {"fused": True, "foreach": None, "capturable": self._capturable}
        groups = [{**g, **here} for g in state["param_groups"]]
        # Copies: torch would keep the given tensors, which another optimizer may still use.
        self.adam.load_state_dict({"state": copy.deepcopy(state["state"]), "param_groups": groups})
        for group in self.adam.param_groups:
            group["lr"] = self._kernel_rate  # torch has replaced it by a copy


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Its parameters that take gradients, with their names."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]
