"""DeviceAdam: clipping, skipped steps and its saved state."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from robolearn.learners.optimizer import DeviceAdam


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(2)
    return {"actor": nn.Linear(3, 5), "critic": nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 1))}


def gradients(adam: DeviceAdam, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    return tuple(scale * torch.randn(p.shape, generator=random) for p in adam.parameters)


def step(adam: DeviceAdam, seed: int, skip: bool = False, scale: float = 1.0) -> None:
    adam.take(gradients(adam, seed, scale))
    adam.clip()
    adam.step(torch.tensor(skip))


def everything(adam: DeviceAdam) -> list[torch.Tensor]:
    moments = [x for p in adam.parameters for x in adam.adam.state[p].values()]
    return [x.detach().clone() for x in (*adam.parameters, *moments)]


def test_each_network_is_clipped_by_its_own_norm():
    adam = DeviceAdam(
        {"actor": nn.Linear(1, 2, bias=False), "critic": nn.Linear(1, 1, bias=False)}, 1e-3, 1.0
    )
    adam.take((torch.tensor([[3.0], [4.0]]), torch.tensor([[0.5]])))
    norms, finite = adam.clip()
    assert norms.tolist() == [5.0, 0.5]
    assert finite
    assert adam.gradients[0].flatten().tolist() == pytest.approx([0.6, 0.8])  # 5 is cut to 1
    assert adam.gradients[1].item() == 0.5  # and .5 stays


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_gradient_is_found_with_its_parameter(bad):
    adam = DeviceAdam(networks(), 1e-3, 1.0)
    assert adam.names[:2] == ["actor.weight", "actor.bias"]
    given = gradients(adam, 0)
    given[1][3] = bad
    adam.take(given)
    norms, finite = adam.clip()
    assert not finite
    assert torch.isfinite(norms).tolist() == [True, False, True, True, True, True]


def test_a_step_equals_torchs_adam_after_clipping():
    ours, theirs = networks(), networks()
    adam = DeviceAdam(ours, 3e-3, 1.0)
    plain = torch.optim.Adam([p for m in theirs.values() for p in m.parameters()], lr=3e-3)
    for seed in range(4):
        step(adam, seed, scale=2.0)
        for p, g in zip(plain.param_groups[0]["params"], gradients(adam, seed, 2.0), strict=True):
            p.grad = g
        for module in theirs.values():
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        plain.step()
    for p, q in zip(adam.parameters, plain.param_groups[0]["params"], strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_a_skipped_step_keeps_weights_moments_and_step_count_bit_for_bit():
    skipping, straight = DeviceAdam(networks(), 1e-3, 1.0), DeviceAdam(networks(), 1e-3, 1.0)
    step(skipping, 0)
    step(straight, 0)
    before = everything(skipping)
    step(skipping, 1, skip=True, scale=float("nan"))
    assert all(map(torch.equal, everything(skipping), before))
    assert skipping.adam.state[skipping.parameters[0]]["step"].item() == 1.0
    step(skipping, 2)
    step(straight, 2)
    assert all(map(torch.equal, everything(skipping), everything(straight)))
    assert not torch.equal(everything(skipping)[0], before[0])


def test_a_new_rate_is_used_from_the_next_step_on():
    adam = DeviceAdam({"actor": nn.Linear(1, 1, bias=False)}, 0.5, 100.0)
    weight = adam.parameters[0]
    for rate, given in ((0.5, 0.5), (0.25, 0.25), (0.125, torch.tensor(0.125, dtype=torch.float64))):
        adam.set_rate(given)
        before = weight.item()
        adam.take((torch.full((1, 1), 4.0),))
        adam.step(torch.tensor(False))
        # With one gradient all along, both moments are it and its square: a step is the rate.
        assert before - weight.item() == pytest.approx(rate, rel=1e-5)


def test_the_saved_state_has_plain_numbers_and_loads_into_any_adam():
    adam = DeviceAdam(networks(), 1e-3, 1.0)
    step(adam, 0)
    adam.set_rate(2e-3)
    file = io.BytesIO()
    torch.save(adam.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert saved["param_groups"][0]["lr"] == 2e-3
    assert type(saved["param_groups"][0]["lr"]) is float
    assert saved["param_groups"][0]["capturable"] is False
    other = networks()
    plain = torch.optim.Adam([p for m in other.values() for p in m.parameters()], lr=1.0)
    plain.load_state_dict(saved)
    for p in plain.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    plain.step()


def test_it_loads_older_checkpoints_and_states_of_other_adams():
    ours, theirs = networks(), networks()
    adam = DeviceAdam(ours, 7e-3, 1.0)
    plain = torch.optim.Adam([p for m in theirs.values() for p in m.parameters()], lr=1e-4)
    for seed in (0, 1):
        for p, g in zip(plain.param_groups[0]["params"], gradients(adam, seed), strict=True):
            p.grad = g
        plain.step()
    state = plain.state_dict()
    assert state["param_groups"][0]["fused"] is None
    adam.load_state_dict(state)
    assert float(adam.rate) == 7e-3  # the learner sets the rate
    group = adam.adam.param_groups[0]
    assert group["lr"] is adam.rate
    assert group["fused"] is True
    adam.set_rate(1e-4)
    for p, q in zip(adam.parameters, plain.param_groups[0]["params"], strict=True):
        p.data.copy_(q.data)
    given = gradients(adam, 2)
    for p, g in zip(plain.param_groups[0]["params"], given, strict=True):
        p.grad = g
    plain.step()
    adam.take(given)
    adam.step(torch.tensor(False))
    for p, q in zip(adam.parameters, plain.param_groups[0]["params"], strict=True):
        assert torch.allclose(p, q, atol=1e-7)


def test_the_loaded_state_is_a_copy():
    first, second = DeviceAdam(networks(), 1e-3, 1.0), DeviceAdam(networks(), 1e-3, 1.0)
    step(first, 0)
    saved = first.state_dict()
    kept = copy.deepcopy(saved)
    second.load_state_dict(saved)
    step(second, 1)
    for name, x in saved["state"][0].items():
        assert torch.equal(x, kept["state"][0][name])
