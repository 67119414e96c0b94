"""Gradient steps that are captured, stopped and skipped on the device equal eager steps that are read one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from rsl_rl.models import MLPModel

from robolearn.core import graphs
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.shards import ONE, Shards
from robolearn.learners.networks import build_model, rnn_of
from robolearn.learners.optimizer import DeviceAdam
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.update import KL, LOSSES, Update
from robolearn.learners.recurrent import ActorRecurrence
from robolearn.learners.rollout import Batch
from tests.learners.scripted import ACTIONS, WIDTHS, random_batch, symmetry
from tests.no_sync import no_host_sync
from tests.tape import Tape

STEPS, ENVS = 4, 12
SAMPLES = STEPS * ENVS


def models(rnn: str = "none", device: str = "cpu") -> tuple[MLPModel, MLPModel]:
    torch.manual_seed(3)
    actor = build_model({"policy": WIDTHS["policy"]}, ACTIONS, (8,), "elu", 0.5, rnn, 5, 1).to(device)
    critic = build_model({"critic": WIDTHS["critic"]}, 1, (8,), "elu", None).to(device)
    return actor, critic


def make(
    rnn: str = "none",
    precision: str = "fp32",
    mirrored: bool = False,
    shards=ONE,
    device: str = "cpu",
    **settings,
) -> Update:
    """An update of small networks with minibatches of about 16 samples by default."""
    settings = {"minibatch_size": 16, "max_kl": math.inf, **settings}
    actor, critic = models(rnn, device)
    layers = rnn_of(actor)
    recurrence = None
    if layers is not None:
        recurrence = ActorRecurrence(layers, ENVS)
        for x in recurrence.start:
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    return Update(
        actor,
        critic,
        PPOConfig(**settings),
        precision,
        recurrence,
        symmetry(device) if mirrored else None,
        shards=shards,
    )


def collected(update: Update, seed: int) -> tuple[Batch, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch of noise that this actor collected, on tensors of its own."""
    batch, *rest = random_batch(STEPS, ENVS, seed, update.device)
    if update.recurrence is None:
        with torch.no_grad():
            batch.mean.copy_(update.actor.mlp(update.actor.obs_normalizer(batch.observations["policy"][:-1])))
        batch.action.mul_(0.5).add_(batch.mean)
    return batch, *rest


@pytest.mark.parametrize(("bound", "shrinks"), [(0.0, False), (0.05, True), (100.0, False)])
def test_mean_actions_beyond_their_bound_shrink_and_others_are_left_alone(bound, shrinks):
    # Without advantages nothing else moves the actor.
    update = make(
        mean_bound=bound, mean_bound_coef=1.0, schedule="fixed", learning_rate=1e-2, entropy_coef=0.0
    )
    batch, advantage, returns, value = collected(update, 1)
    mean = lambda: update.actor.mlp(update.actor.obs_normalizer(batch.observations["policy"][:-1]))  # noqa: E731
    before = mean().detach().abs().amax()
    for seed in range(20):
        update.learn(batch, torch.zeros_like(advantage), returns, value, orders(2, seed=seed))
    after = mean().detach().abs().amax()
    assert (after < 0.7 * before) == shrinks
    assert (after == before) == (not shrinks)


def orders(count: int, units: int = SAMPLES, seed: int = 7) -> list[list[torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [[torch.randperm(units, generator=random)] for _ in range(count)]


def weights(update: Update) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in update.adam.parameters])


def state(update: Update) -> list[torch.Tensor]:
    """Weights, moments and counts of steps."""
    moments = [x for p in update.adam.parameters for x in update.adam.adam.state[p].values()]
    return [x.detach().clone() for x in (*update.adam.parameters, *moments)]


# ---------------------------------------------------------------------------------------- recorded

KINDS = {
    "plain": {},
    "uneven": {"minibatch_size": 10},  # five parts of 10, 10, 10, 10 and 8: two graphs
    "clipped_values": {"clip_value_loss": True},
    "mirror_image": {"mirrored": True},
    "gru": {"rnn": "gru"},
    "lstm": {"rnn": "lstm"},
    "bf16": {"precision": "bf16"},
    "stopping": {"max_kl": 0.02, "learning_rate": 1e-2},
}


@contextmanager
def on_tape(tapes: list[Tape]) -> Iterator[None]:
    """Capture what is made in this context, and collect the tapes."""

    def make_graph(device: torch.device) -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    with mock.patch.object(graphs, "make_graph", make_graph):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_give_the_same_parameters_and_losses_as_eager_steps(kind):
    tapes = []
    eager = make(**KINDS[kind])
    with on_tape(tapes):
        recorded = make(**KINDS[kind])
    units = ENVS if "rnn" in KINDS[kind] else SAMPLES
    began, whole, fewer = weights(eager), 2 * len(orders(1, units)[0][0].chunk(eager.parts(SAMPLES))), 0
    for iteration in range(5):
        reports = []
        for update, graphs_of in ((eager, nullcontext()), (recorded, on_tape(tapes))):
            update.read_at_once = False
            # Each on tensors of its own, at other addresses than the last.
            with graphs_of:
                update.learn(*collected(update, iteration), orders(2, units, seed=iteration))
            reports.append(update.read())
            if update.recurrence is not None:
                update.recurrence.begin()
        assert reports[1] == pytest.approx(reports[0], rel=1e-5, abs=1e-6)
        fewer += reports[0]["gradient_steps"] < whole
    assert (weights(eager) - weights(recorded)).abs().max() <= 1e-6
    assert (weights(eager) - began).abs().max() > 1e-3
    assert (fewer > 0) == (kind == "stopping")
    assert len(tapes) == 2 + (kind == "uneven")
    assert min(tape.replays for tape in tapes) > 0


def test_steps_are_captured_again_after_loading_a_checkpoint():
    eager = make()
    with on_tape([]):
        recorded = make()
    for update, graphs_of in ((eager, nullcontext()), (recorded, on_tape([]))):
        update.read_at_once = False
        with graphs_of:
            for iteration in range(6):
                update.learn(*collected(update, iteration), orders(2))
                update.read()
                if iteration == 2:
                    update.adam.load_state_dict(update.adam.state_dict())
                    update.clear_graphs()
    assert (weights(eager) - weights(recorded)).abs().max() <= 1e-6


@pytest.mark.parametrize("kind", ["plain", "mirror_image", "gru", "bf16", "stopping"])
def test_an_update_never_syncs_with_the_host(kind):
    update = make(**KINDS[kind])
    update.read_at_once = False
    batch = collected(update, 0)
    drawn = orders(2, ENVS if kind == "gru" else SAMPLES)
    with no_host_sync():
        update.learn(*batch, drawn)
    with pytest.raises(AssertionError, match="tolist"), no_host_sync():
        update.read()  # ... which is where it waits
    assert update.read()["gradient_steps"] > 0


# ---------------------------------------------------------------------------------------- stopped


@pytest.mark.parametrize("at_once", [True, False])
def test_no_step_is_taken_beyond_max_kl(at_once):
    drawn = orders(8)
    whole = {"minibatch_size": SAMPLES, "learning_rate": 1e-2}
    stopped = make(max_kl=0.02, **whole)
    batch = collected(stopped, 0)
    stopped.read_at_once = at_once
    stopped.learn(*batch, drawn)
    report = stopped.read()
    steps = int(report["gradient_steps"])
    assert 1 <= steps < 8
    # The same as if no more had been asked for, to the bit, and the count of steps with it.
    fewer = make(**whole)
    fewer.learn(*batch, drawn[:steps])
    assert all(map(torch.equal, state(stopped), state(fewer)))
    assert stopped.adam.adam.state[stopped.adam.parameters[0]]["step"].item() == steps
    told = set(LOSSES) - {"reference_kl"}
    assert {k: report[k] for k in told} == {k: v for k, v in fewer.read().items() if k in told}
    assert report["learning_rate"] == pytest.approx(1e-2 / 1.5)
    # ... and one more would have been too far.
    further = make(**whole)
    further.learn(*batch, drawn[: steps + 1])
    assert further._losses[KL] > 0.02
    # The next iteration begins anew.
    stopped.learn(*collected(stopped, 1), drawn[:1])
    assert stopped.read()["gradient_steps"] == 1


def test_an_iteration_without_a_step_reports_no_losses():
    update = make(max_kl=1e-9, desired_kl=1e-9)
    before = weights(update)
    update.learn(*random_batch(STEPS, ENVS, seed=0), orders(2))  # whose means are not this actor's
    report = update.read()
    assert torch.equal(weights(update), before)
    assert report["gradient_steps"] == 0
    assert not report.keys() & set(LOSSES)


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("at_once", [True, False])
def test_a_nan_advantage_skips_its_step_and_all_after_it_and_is_named(at_once):
    update, sound = make(), make(minibatch_size=SAMPLES)
    batch, advantage, returns, value = collected(update, 0)
    order = torch.arange(SAMPLES)
    sound.learn(batch, advantage, returns, value, [[order[:16]]])  # the first of three parts, whole
    advantage.view(-1)[20] = math.nan  # in the second part
    update.read_at_once = at_once
    call = update.learn if at_once else update.read
    arguments = (batch, advantage, returns, value, [[order]])
    if not at_once:
        update.learn(*arguments)
        arguments = ()
    with pytest.raises(NonFiniteTerm, match=r"the gradient is not finite.*: advantage \(surrogate nan"):
        call(*arguments)
    assert all(map(torch.equal, state(update), state(sound)))
    assert float(update.adam.rate) == 1e-3
    assert update.adam.adam.state[update.adam.parameters[0]]["step"].item() == 1


def spoil_policy(update, batch, returns):
    batch.observations["policy"][1, 2, 3] = math.nan


def spoil_critic(update, batch, returns):
    batch.observations["critic"][1, 2, 3] = math.inf


def spoil_returns(update, batch, returns):
    returns[0, 0] = math.nan


def spoil_weight(update, batch, returns):
    update.critic.mlp[-1].bias.data[:] = math.inf


def too_large(update, batch, returns):
    returns[0, 0] = 1e30  # finite, but the norm of its gradient is not: the sum of squares of 1e30 and more


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (spoil_policy, "actor observations"),
        (spoil_critic, "critic observations"),
        (spoil_returns, "returns"),
        (spoil_weight, r"weights critic\.mlp\.2\.bias"),
        (too_large, r"gradient of critic\.mlp\.0\.weight"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_first_non_finite_tensor_is_named(spoil, name, at_once):
    update = make()
    update.read_at_once = at_once
    batch, advantage, returns, value = collected(update, 0)
    spoil(update, batch, returns)
    before = weights(update)
    message = rf": {name} \(.*lower learner\.learning_rate"
    with pytest.raises(NonFiniteTerm, match=message) as error:  # noqa: PT012
        update.learn(batch, advantage, returns, value, [[torch.arange(SAMPLES)]])
        assert not at_once
        update.read()
    assert "\n" not in str(error.value)
    assert (weights(update) == before).logical_or(~torch.isfinite(before)).all() or spoil is spoil_policy


# ---------------------------------------------------------------------------------------- steered


@pytest.mark.parametrize(
    ("rate", "kl", "stopped", "expected"),
    [
        (1e-3, 0.03, False, 1e-3 / 1.5),  # beyond twice the wanted .01
        (1e-3, 0.004, False, 1.5e-3),  # below half of it
        (1e-3, 0.02, False, 1e-3),  # the borders themselves change nothing
        (1e-3, 0.005, False, 1e-3),
        (1e-3, 0.001, True, 1e-3 / 1.5),  # stopped, whatever the last epoch was
        (8e-3, 0.001, False, 1e-2),  # never above .01 ...
        (1.2e-5, 0.5, False, 1e-5),  # ... nor below .00001
    ],
)
def test_the_rate_follows_the_divergence_of_the_last_epoch(rate, kl, stopped, expected):
    update = make(learning_rate=rate, max_kl=0.06)
    update._epoch[KL], update._epoch[-1] = 3 * kl, 3.0  # the sum over three steps
    update._stopped.fill_(stopped)
    with no_host_sync():
        update._adapt_rate()
    assert float(update.adam.rate) == pytest.approx(expected, rel=1e-12)
    assert float(update.adam.adam.param_groups[0]["lr"]) == float(update.adam.rate)


def test_a_fixed_rate_never_changes():
    update = make(schedule="fixed", learning_rate=2e-3)
    update._stopped.fill_(True)
    update._adapt_rate()
    assert float(update.adam.rate) == 2e-3


def test_only_the_last_epoch_counts_for_the_rate_and_every_step_for_the_report():
    update = make()
    update.learn(*collected(update, 0), orders(3))
    assert update._epoch[-1].item() == 3.0  # 48 samples in parts of 16
    report = update.read()
    assert report["gradient_steps"] == 9.0
    assert report["kl"] == pytest.approx((update._sums[KL] / 9).item())


# ---------------------------------------------------------------------------------------- minibatches


def spy_on(update: Update) -> list[torch.Tensor]:
    """The returns of each minibatch, as gathered."""
    seen, original = [], update._gradient_step

    def spy(chosen):
        go_on = original(chosen)
        seen.append(update._minibatches[len(chosen[0])][0][0].part["returns"].clone())
        return go_on

    update._gradient_step = spy
    return seen


def test_a_batch_is_split_into_equal_parts_that_contain_all_samples():
    update = make(minibatch_size=10)
    seen = spy_on(update)
    batch, advantage, returns, value = collected(update, 0)
    update.learn(batch, advantage, returns, value, orders(2))
    assert [len(x) for x in seen] == 2 * [10, 10, 10, 10, 8]
    for epoch in (seen[:5], seen[5:]):
        assert torch.equal(torch.cat(epoch).sort().values, returns.flatten().sort().values)
    assert not torch.equal(torch.cat(seen[:5]), torch.cat(seen[5:]))


def test_the_given_permutations_are_used():
    update = make()
    seen = spy_on(update)
    batch, advantage, returns, value = collected(update, 0)
    update.learn(batch, advantage, returns, value, [[torch.arange(SAMPLES).flip(0)]])
    assert torch.equal(torch.cat(seen), returns.flatten().flip(0))


def test_a_minibatch_is_learned_with_the_mirror_image_of_raw_observations():
    update = make(mirrored=True)
    normalizer = update.actor.obs_normalizer
    normalizer._mean[:] = torch.linspace(-1.0, 1.0, WIDTHS["policy"])
    normalizer._std[:] = torch.linspace(0.5, 2.0, WIDTHS["policy"])
    given, seen, through = collected(update, 0), [], update._through

    def watched(mlp, x):
        if mlp is update.actor.mlp:
            seen.append(x)
        return through(mlp, x)

    update._through = watched
    update.learn(*given, [[torch.arange(SAMPLES)]])
    raw = given[0].observations["policy"][:-1].flatten(0, 1)[:16]
    assert [len(x) for x in seen] == [32, 32, 32]
    assert torch.allclose(seen[0][:16], normalizer(raw), atol=1e-6)
    assert torch.allclose(seen[0][16:], normalizer(symmetry().groups["policy"](raw)), atol=1e-5)


def test_ranks_average_gradients_and_divergence_in_one_exchange():
    seen = []

    def exchange(tensor):
        seen.append(tensor.shape)
        return [tensor, torch.zeros_like(tensor)]  # the other rank's numbers are 0

    of_two = Shards(2, range(1), [range(1), range(1, 2)], exchange)
    update = make(shards=of_two, minibatch_size=2 * SAMPLES)
    update.learn(*random_batch(STEPS, ENVS, seed=0), orders(1))
    assert seen.count(update.adam.shared.shape) == 1
    alone = make(minibatch_size=SAMPLES)
    alone.learn(*random_batch(STEPS, ENVS, seed=0), orders(1))
    assert update.read()["kl"] == pytest.approx(alone.read()["kl"] / 2)

    nothing = Shards(2, range(1), [range(1), range(1, 2)], lambda x: [torch.zeros_like(x)] * 2)
    update = make(shards=nothing)
    before = weights(update)
    update.learn(*collected(update, 0), orders(1))
    assert torch.equal(weights(update), before)


def test_gradients_and_divergence_share_one_tensor():
    adam = DeviceAdam(dict(zip(("actor", "critic"), models(), strict=True)), 1e-3, 1.0)
    span = range(adam.shared.data_ptr(), adam.shared.data_ptr() + 4 * adam.shared.numel())
    assert all(
        g.data_ptr() in span and g.data_ptr() % 16 == adam.shared.data_ptr() % 16 for g in adam.gradients
    )
    assert adam.extra.data_ptr() in span
