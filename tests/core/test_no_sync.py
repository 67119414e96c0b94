"""The guard finds what would make a host wait for its GPU, and lets everything else pass."""

from __future__ import annotations

import pytest
import torch

from tests.no_sync import HostSync, no_host_sync

X = torch.arange(6.0)
MASK = X > 2
TABLE = torch.ones(6, 2)

WAITING = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(MASK.any()),
    "if": lambda x: 1 if MASK[0] else 2,
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "to_cpu": lambda x: x.to("cpu"),
    "nonzero": lambda x: MASK.nonzero(),
    "where": lambda x: torch.where(MASK),
    "masked_select": lambda x: x.masked_select(MASK),
    "bool_index": lambda x: x[MASK],
    "bool_index_of_rows": lambda x: TABLE[MASK, 0],
    "bool_assignment": lambda x: TABLE.clone().__setitem__(MASK, 3.0),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "multinomial": lambda x: x.multinomial(1),
    "unique": lambda x: x.unique(),
    "unique_rows": lambda x: TABLE.unique(dim=0),
    "unique_consecutive": torch.unique_consecutive,
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "inverse": lambda x: torch.linalg.inv(torch.eye(2)),
    "tensor": lambda x: torch.tensor([1.0, 2.0]),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0]),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "index_of_a_list": lambda x: x[[0, 2]],
}

PASSING = {
    "arithmetic": lambda x: (2 * x + 1).clamp(max=3.0).sum(),
    "where": lambda x: torch.where(MASK, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(MASK, 0.0),
    "index_of_rows": lambda x: TABLE[x.long()],
    "index_select": lambda x: TABLE.index_select(0, x.long()),
    "assignment": lambda x: TABLE.clone().__setitem__(2, 3.0),
    "row": lambda x: TABLE[3],
    "made_there": lambda x: torch.zeros(3) + torch.full((3,), 2.0) + torch.arange(3),
    "random": lambda x: torch.randn(3, generator=torch.Generator()),
    "permutation": lambda x: torch.randperm(6),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long(), output_size=15),
    "to_dtype": lambda x: x.to(torch.float64).to(x.device),
    "shape": lambda x: [len(row) for row in TABLE],
    "finite": lambda x: torch.isfinite(x).all(),
}


@pytest.mark.parametrize("name", WAITING)
def test_operations_that_wait_or_copy_are_found(name):
    WAITING[name](X)  # it is allowed outside
    with pytest.raises(HostSync), no_host_sync():
        WAITING[name](X)
    WAITING[name](X)  # ... and after it


@pytest.mark.parametrize("name", PASSING)
def test_operations_on_the_device_pass(name):
    with no_host_sync():
        PASSING[name](X)


def test_operations_in_the_backward_pass_are_found_too():
    weight = torch.ones(6, requires_grad=True)
    with no_host_sync():
        (weight * X).sum().backward()
    with pytest.raises(HostSync), no_host_sync():
        weight[MASK].sum().backward()
