"""Matrix products of a gradient step equal those of torch's layers, with either library."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robolearn.learners import products
from robolearn.learners.products import OneDnnLinear, forward, wide_amd

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@needs_onednn
def test_a_product_and_its_gradients_by_hand():
    # y = x W' + b; of the sum of y the gradients are: of x the sum of W's rows, of W the sum of x's, of b the count.
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    weight = torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]], requires_grad=True)
    bias = torch.tensor([0.5, 1.0, 1.5], requires_grad=True)
    y = OneDnnLinear.apply(x, weight, bias)
    assert y.tolist() == [[17.5, 24.0, 30.5], [39.5, 54.0, 68.5]]
    y.sum().backward()
    assert x.grad.tolist() == [[21.0, 24.0]] * 2
    assert weight.grad.tolist() == [[4.0, 6.0]] * 3
    assert bias.grad.tolist() == [2.0, 2.0, 2.0]


@needs_onednn
def test_onednn_gives_the_same_gradients_up_to_rounding(monkeypatch):
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(75, 64), nn.ReLU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 21))
    x, wanted = torch.randn(333, 75), torch.randn(333, 21)
    found = []
    for faster in (False, True):
        monkeypatch.setattr(products, "onednn_is_faster", lambda faster=faster: faster)
        loss = (forward(mlp, x) - wanted).square().mean()
        found.append((loss, torch.autograd.grad(loss, list(mlp.parameters()))))
    assert found[1][0].item() == pytest.approx(found[0][0].item(), rel=1e-6)
    for ours, theirs in zip(found[1][1], found[0][1], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)


def test_inputs_other_than_fp32_use_torchs_layers(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: pytest.fail("asked for nothing"))
    mlp = nn.Sequential(nn.Linear(3, 2)).bfloat16()
    assert forward(mlp, torch.ones(1, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_zero_rows_are_accepted(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    assert forward(nn.Sequential(nn.Linear(3, 2)), torch.zeros(0, 3)).shape == (0, 2)


@pytest.mark.parametrize(
    ("vendor", "family", "wide"),
    [
        ("AuthenticAMD", 25, False),
        ("AuthenticAMD", 26, True),
        ("GenuineIntel", 6, False),
        ("GenuineIntel", 26, False),
    ],
    ids=["Zen 4", "Zen 5", "Intel", "another vendor's family 26"],
)
def test_avx512_is_computed_at_its_full_width_from_zen_5_on(vendor, family, wide):
    text = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\nmodel name\t: EPYC\n"
    )
    assert wide_amd(text + text.replace("processor\t: 0", "processor\t: 1")) is wide


def test_a_processor_that_does_not_state_its_family_is_no_wide_one():
    assert not wide_amd("vendor_id\t: AuthenticAMD\n")
