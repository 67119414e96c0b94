"""Adam on the device: its step size is a tensor there, and so is the word whether it may step at all.

Nothing here is read back, so that a whole gradient step can be recorded as a CUDA graph.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from robolearn.envs.state import Tensor

ALIGN = 4
"""Every gradient starts at a multiple of so many floats: vector loads need 16 bytes."""


class DeviceAdam:
    """Adam (Kingma and Ba, 2015, "Adam: A Method for Stochastic Optimization") for several networks.

    Each network's gradient is clipped to a norm of its own. All gradients lie in one flat tensor, so that ranks
    average them in one go, and with them one number more that a step depends on.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        rate: float,
        max_norm: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        """`networks` by name, all on one device; `max_norm` of each network's gradient; `betas` of Adam."""
        named = {f"{n}.{k}": p for n, module in networks.items() for k, p in module.named_parameters()}
        self.names, self.parameters = list(named), list(named.values())
        self.max_norm, self.betas = max_norm, betas
        device = self.parameters[0].device
        starts, end = [], 0
        for parameter in self.parameters:
            starts.append(end)
            end += parameter.numel() + -parameter.numel() % ALIGN
        self.shared = torch.zeros(end + 1, device=device)
        """(G + 1,) the flat gradients and `extra`: what ranks average before a step."""
        self.extra = self.shared[-1]
        """() averaged with the gradients."""
        self.gradients = [
            self.shared[start : start + p.numel()].view_as(p)
            for start, p in zip(starts, self.parameters, strict=True)
        ]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        # Where each network's parameters begin, in the list of them and in the flat tensor.
        counts = [len(list(module.parameters())) for module in networks.values()]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        self._spans = [
            (slice(last - count, last), slice(starts[last - count], (*starts, end)[last]))
            for count, last in zip(counts, ends, strict=True)
        ]
        self.rate = torch.tensor(rate, dtype=torch.float64, device=device)
        """() step size, float64: it is multiplied up and down for a whole run."""
        # What Adam's kernel on a GPU reads is float32; on a CPU it reads the rate itself.
        self._kernel_rate = self.rate if device.type == "cpu" else self.rate.float()
        self._capturable = device.type == "cuda"
        self.skip = torch.zeros((), device=device)
        """() 1 where the last `step` changed nothing, else 0."""
        self.adam = torch.optim.Adam(
            self.parameters, lr=self._kernel_rate, betas=betas, fused=True, capturable=self._capturable
        )
        # torch's word for "the gradients are not finite": the kernels leave weights, moments and the count of
        # steps as they are. GradScaler sets it in the same way.
        self.adam.found_inf = self.skip  # type: ignore[attr-defined]
        # It would warn of the runs before a graph is recorded, which are meant.
        self.adam._warned_capturable_if_run_uncaptured = True

    def take(self, gradients: tuple[Tensor, ...]) -> None:
        """Keep these gradients, one a parameter, for the next step."""
        torch._foreach_copy_(self.gradients, gradients)
        # Made last, they lie on top of a CPU's heap. Without them there all of a step's memory below would go
        # back to the system after it, and be asked for again by the next.
        self._kept = gradients

    def clip(self) -> tuple[Tensor, Tensor]:
        """Scale each network's gradient to a norm of at most `max_norm`.

        Returns:
            The norm of each parameter's gradient (P,) before, and () bool whether all are finite.
        """
        norms = torch.stack(torch._foreach_norm(self.gradients))
        totals = [torch.linalg.vector_norm(norms[own]) for own, _ in self._spans]
        for total, (_, flat) in zip(totals, self._spans, strict=True):
            self.shared[flat].mul_((self.max_norm / (total + 1e-6)).clamp(max=1.0))
        return norms, torch.isfinite(torch.stack(totals).sum())

    def step(self, skip: Tensor) -> None:
        """Change the parameters, or where `skip` () bool is set change nothing at all, not even the moments."""
        self.skip.copy_(skip)
        self.adam.step()

    def set_rate(self, rate: Tensor | float) -> None:
        """Use another step size, a tensor () of the device or a number, from the next step on."""
        if isinstance(rate, Tensor):
            self.rate.copy_(rate)
        else:
            self.rate.fill_(rate)
        if self._kernel_rate is not self.rate:
            self._kernel_rate.copy_(self.rate)

    def state_dict(self) -> dict[str, Any]:
        """torch's own, with plain numbers for what lies on this device: any Adam takes it."""
        state = self.adam.state_dict()
        groups = [{**g, "lr": float(self.rate), "capturable": False} for g in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments and the count of steps of an Adam over the same parameters, whatever its rate and betas.

        The tensors of the moments are new ones afterwards: a graph recorded before must be recorded again.
        """
        # How it computes is this device's affair, and with it where the count of steps belongs.
        own = {"lr": self._kernel_rate, "betas": self.betas}
        own |= {"fused": True, "foreach": None, "capturable": self._capturable}
        groups = [{**g, **own} for g in state["param_groups"]]
        # Copies: torch would go on with the very tensors it is given, which may be another's.
        self.adam.load_state_dict({"state": copy.deepcopy(state["state"]), "param_groups": groups})
        for group in self.adam.param_groups:
            group["lr"] = self._kernel_rate  # torch has copied it
