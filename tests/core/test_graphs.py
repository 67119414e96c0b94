"""A graphed function has its effect once a call, at fixed addresses: on the tape here, on CUDA where there is some."""

from __future__ import annotations

import pytest
import torch

from robolearn.core import graphs
from robolearn.core.graphs import Graphed
from tests.tape import Tape

CPU = torch.device("cpu")
DEVICES = [
    pytest.param("cpu", id="tape"),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    ),
]


def graphed(function, device: torch.device, generators=()) -> Graphed:
    return Graphed(function, device, generators, (lambda _: Tape()) if device.type == "cpu" else None)


class Doubling:
    """Doubles a number in place and counts how often Python ran it."""

    def __init__(self, device: str = "cpu") -> None:
        self.number = torch.ones((), device=device)
        self.runs = 0

    def __call__(self) -> torch.Tensor:
        self.runs += 1
        self.number.mul_(2.0)
        return self.number + 0.5


def test_on_a_cpu_the_function_is_called():
    function = Doubling()
    plain = Graphed(function, CPU)
    assert not plain.fixed
    assert [plain().item() for _ in range(6)] == [2.5, 4.5, 8.5, 16.5, 32.5, 64.5]
    assert function.runs == 6


@pytest.mark.parametrize("device", DEVICES)
def test_each_call_has_the_effect_exactly_once_whether_run_recorded_or_replayed(device):
    function = Doubling(device)
    call = graphed(function, torch.device(device))
    assert call.fixed
    assert [call().item() for _ in range(8)] == [2.0**i + 0.5 for i in range(1, 9)]
    assert function.number.item() == 256.0
    assert function.runs == graphs.WARM_UP + 1  # the recording is the last time that Python runs it


@pytest.mark.parametrize("device", DEVICES)
def test_once_recorded_its_outputs_are_the_same_tensors_every_time(device):
    function = Doubling(device)
    call = graphed(function, torch.device(device))
    for _ in range(graphs.WARM_UP):
        call()
    first, second = call(), call()
    assert first is second


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_are_read_at_their_recorded_addresses(device):
    inputs = {"x": torch.zeros(3, device=device)}
    call = graphed(lambda: inputs["x"] * 2, torch.device(device))
    for i in range(6):
        inputs["x"].fill_(float(i))
        assert call().tolist() == [2.0 * i] * 3
    # Bound to another tensor, what was recorded still reads the old one: the mistake that graphs are about.
    inputs["x"] = torch.full((3,), 100.0, device=device)
    assert call().tolist() == [10.0] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_random_numbers_are_those_without_recording(device):
    ours, theirs = (torch.Generator(device).manual_seed(3) for _ in range(2))
    call = graphed(lambda: torch.randn(4, generator=ours, device=device), torch.device(device), (ours,))
    for _ in range(7):
        assert torch.equal(call(), torch.randn(4, generator=theirs, device=device))
    ours.set_state(theirs.get_state())
    assert torch.equal(call(), torch.randn(4, generator=theirs, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_and_views_are_replayed_too(device):
    x, weight = torch.ones(2, 3, device=device), torch.ones(3, device=device, requires_grad=True)
    gradient = torch.zeros(3, device=device)

    def descend() -> None:
        rows = x[:, 1:] * weight.view(3)[1:]  # a view, a product, a view
        (found,) = torch.autograd.grad(rows.square().sum(), weight)
        gradient.copy_(found)
        with torch.no_grad():
            weight.sub_(0.125 * found)

    call = graphed(descend, torch.device(device))
    # Two rows of x = 1: the gradient is 4 w, so w halves; the first column is left out.
    for i in range(7):
        call()
        assert gradient.tolist() == [0.0, 4 * 0.5**i, 4 * 0.5**i]
        assert weight.tolist() == [1.0, 0.5 ** (i + 1), 0.5 ** (i + 1)]
    x.mul_(2.0)  # now 16 w, so w - 2 w
    call()
    assert weight.tolist() == [1.0, -(0.5**7), -(0.5**7)]


@pytest.mark.parametrize("device", DEVICES)
def test_reading_a_number_cannot_be_recorded(device):
    x = torch.ones(3, device=device)
    call = graphed(lambda: x * x.sum().item(), torch.device(device))
    for _ in range(graphs.WARM_UP - 1):
        call()
    with pytest.raises(RuntimeError, match="synchroniz"):
        call()  # the rehearsal: before a recording that would fail


def test_outputs_of_a_tape_are_nan_before_its_replay():
    x = torch.ones(2)
    tape = Tape()
    out = tape.capture(lambda: x.add_(1.0) * 3, ())
    assert x.tolist() == [1.0, 1.0]
    assert out.isnan().all()
    tape.replay()
    assert x.tolist() == [2.0, 2.0]
    assert out.tolist() == [6.0, 6.0]
