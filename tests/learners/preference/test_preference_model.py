"""The reward that is learned from preferences: its loss, normalization, disagreement, and how well it is learned."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.learners.preference.choose import choose, held_out
from robolearn.learners.preference.ensemble import Compared, Ensemble, bradley_terry
from robolearn.tasks.mdp.context import Random

CPU = torch.device("cpu")


def compared(
    observations: torch.Tensor, first: list[int], second: list[int], target: list[float]
) -> Compared:
    """Pairs of segments (S, T, D), none held out."""
    return Compared(
        observations,
        torch.ones(observations.shape[:2]),
        torch.tensor(first),
        torch.tensor(second),
        torch.tensor(target),
        torch.zeros(len(first), dtype=torch.bool),
    )


def linear(weights: list[list[float]]) -> Ensemble:
    """Networks without hidden layers, f_k(x) = w_k x."""
    made = Ensemble(len(weights[0]), len(weights), (), Random(1, CPU))
    with torch.no_grad():
        made.weights[0].copy_(torch.tensor(weights).unsqueeze(-1))
        made.biases[0].zero_()
    return made


def test_the_loss_is_the_cross_entropy_of_a_logistic_probability():
    first, second = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0])
    # P(first) = 1 / (1 + exp(-1)) = 0.731059.
    found = bradley_terry(first, second, torch.tensor([1.0, 0.0, 0.5]))
    yes, no = -math.log(0.7310586), -math.log(0.2689414)
    assert found.tolist() == pytest.approx([yes, no, (yes + no) / 2], abs=1e-5)


def test_the_gradient_of_the_loss_is_the_probability_minus_the_target():
    apart = torch.tensor([1.0, 1.0, 1.0, 0.0], requires_grad=True)
    target = torch.tensor([1.0, 0.0, 0.5, 0.5])
    bradley_terry(apart, torch.zeros(4), target).sum().backward()
    assert apart.grad is not None
    # dL/dd = sigmoid(d) - target; an equal pair with equal rewards is where it should be.
    assert apart.grad.tolist() == pytest.approx([-0.2689414, 0.7310586, 0.2310586, 0.0], abs=1e-6)


def test_with_random_answers_a_wrong_one_costs_a_bounded_amount():
    far = torch.tensor([50.0])
    # P = 0.8 sigmoid + 0.1: a wrong answer of a sure model costs -log 0.1.
    assert bradley_terry(far, -far, torch.tensor([0.0]), 0.2).item() == pytest.approx(
        -math.log(0.1), rel=1e-5
    )
    assert bradley_terry(far, -far, torch.tensor([0.0])).item() == pytest.approx(100.0)
    nearby = torch.tensor([1.0]), torch.tensor([0.0])
    wanted = -math.log(0.8 * 0.7310586 + 0.1)
    assert bradley_terry(*nearby, torch.tensor([1.0]), 0.2).item() == pytest.approx(wanted, rel=1e-5)


def test_the_reward_has_mean_0_and_spread_1_over_the_compared_steps():
    model = linear([[1.0], [3.0]])
    rows = torch.tensor([[0.0], [2.0]])
    model.normalize(rows)
    # Rewards 0, 2 and 0, 6: means 1 and 3, spreads 1 and 3, both normalized to -1, 1.
    assert model.mean.flatten().tolist() == [1.0, 3.0]
    assert model.std.flatten().tolist() == [1.0, 3.0]
    value, apart = model.reward(rows)
    assert value.tolist() == pytest.approx([-1.0, 1.0])
    assert apart.tolist() == pytest.approx([0.0, 0.0])
    assert model.reward(torch.tensor([[5.0]]))[0].tolist() == pytest.approx([4.0])


def test_the_disagreement_is_the_spread_of_the_normalized_rewards():
    model = linear([[1.0, 0.0], [0.0, 1.0]])
    # Columns of mean 0 and spread 1 that do not vary together: both networks are normalized already, and their mean has
    # the spread sqrt(1/2).
    model.normalize(torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]))
    assert float(model.scale) == pytest.approx(math.sqrt(0.5))
    value, apart = model.reward(torch.tensor([[[3.0, 1.0]], [[2.0, 2.0]]]))
    # Rewards 3 and 1: mean 2, spread 1; both over sqrt(1/2). Rewards 2 and 2 agree.
    assert value.flatten().tolist() == pytest.approx([2 * math.sqrt(2)] * 2)
    assert apart.flatten().tolist() == pytest.approx([math.sqrt(2), 0.0])


def test_a_shorter_segment_counts_its_own_steps_only():
    model = linear([[1.0]])
    observations = torch.tensor([[[1.0], [2.0], [4.0]], [[1.0], [100.0], [100.0]]])
    counted = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    # Sums 7 and 1 over the three steps of the longest.
    assert model.returns(observations, counted).tolist() == [[pytest.approx(7 / 3), pytest.approx(1 / 3)]]


def test_sums_are_divided_by_the_steps_of_the_longest_segment_that_was_first_learned_from():
    model = linear([[1.0]])
    model.steps.fill_(2.0)
    assert model.returns(torch.tensor([[[1.0], [2.0], [4.0]]]), torch.ones(1, 3)).tolist() == [[3.5]]
    observations = torch.randn(2, 3, 1, generator=torch.Generator().manual_seed(1))
    model = Ensemble(1, 2, (4,), Random(1, CPU))
    model.fit(compared(observations, [0], [1], [1.0]), Random(1, CPU), 1)
    model.fit(compared(observations.repeat(1, 4, 1), [0], [1], [1.0]), Random(1, CPU), 1)
    assert float(model.steps) == 3.0


def test_accuracy_is_that_of_the_reward_that_is_given_also_where_lengths_differ():
    model = linear([[1.0]])
    # Rewards 1, 1, 1, 1 and 2, 2: the longer one has the larger sum, 4 and 4.5 - as long as no mean is taken off.
    observations = torch.tensor([[[1.0], [1.0], [1.0], [1.5]], [[2.0], [2.0], [0.0], [0.0]]])
    data = compared(observations, [0], [1], [1.0])
    data.counted[1, 2:] = 0.0
    data.held_out[:] = True
    model.normalize(data.rows(), centered=False)
    assert model.mean.tolist() == [[0.0]]
    assert model.accuracy(data) == 1.0
    model.normalize(data.rows(), centered=True)
    assert model.accuracy(data) == 0.0
    model.fit(data, Random(1, CPU), 0)
    assert model.mean.tolist() == [[0.0]]
    # Networks of rewards x and -10 x: their mean falls with x, that of the normalized ones is 0.
    model = linear([[1.0], [-10.0]])
    data = compared(torch.tensor([[[1.0]], [[-1.0]]]), [1], [0], [1.0])
    data.held_out[:] = True
    model.normalize(data.rows())
    assert model.accuracy(data) == 0.0


def test_equal_answers_alone_make_no_large_reward():
    observations = torch.randn(40, 10, 3, generator=torch.Generator().manual_seed(1))
    data = compared(observations, list(range(20)), list(range(20, 40)), [0.5] * 20)
    model = Ensemble(3, 5, (64, 64), Random(1, CPU))
    model.fit(data, Random(1, CPU), 40)
    assert float(model.reward(observations)[0].std()) < 0.3


def test_the_reward_of_networks_that_hardly_vary_is_enlarged_no_more_than_tenfold():
    model = linear([[0.01], [0.01]])
    model.normalize(torch.tensor([[-1.0], [1.0]]))
    assert model.reward(torch.tensor([[1.0]]))[0].tolist() == pytest.approx([0.1])
    # Two opposite ones: their mean, 0.005 x on a scale of 1, is divided by 0.1 at the least.
    model = linear([[1.01], [-1.0]])
    model.normalize(torch.tensor([[-1.0], [1.0]]))
    assert abs(model.reward(torch.tensor([[1.0]]))[0].item()) < 1e-5


def test_equal_answers_make_two_rewards_equal():
    observations = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]])
    # The first two are equal, and each is better than the third.
    data = compared(observations, [0, 0, 1], [1, 2, 2], [0.5, 1.0, 1.0])
    random = Random(1, CPU)
    model = Ensemble(2, 3, (16,), random)
    model.fit(data, random, 150)
    value, _ = model.reward(observations[:, 0])
    assert abs(float(value[0] - value[1])) < 0.3
    assert float(value[0] - value[2]) > 1.0


def test_a_bootstrapped_network_does_not_see_every_answer_and_all_of_them_differ():
    random = Random(3, CPU)
    observations = torch.randn(40, 1, 2, generator=random.generator)
    data = compared(observations, list(range(20)), list(range(20, 40)), [1.0] * 20)
    models = []
    for bootstrap in (False, True):
        random = Random(3, CPU)
        models.append(Ensemble(2, 4, (8,), random))
        models[-1].fit(data, random, 5, bootstrap=bootstrap)
    assert not torch.equal(models[0].weights[0], models[1].weights[0])
    assert float(models[1].preferred(data).std(dim=0).max()) > 0


def made_data(kind: str, seed: int, pairs: int) -> tuple[Compared, Compared]:
    """Segments of made features and answers of a known utility, a tenth of them wrong; and new pairs with true ones."""
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(8, generator=random)

    def utility(x: torch.Tensor) -> torch.Tensor:
        if kind == "linear":
            return x @ weights
        return 2 * x[..., 0].abs() + x[..., 1].tanh() - (x[..., 2] - 1).square()

    def drawn(count: int, wrong: float) -> Compared:
        base = torch.randn(2 * count, 1, 8, generator=random)
        observations = base + 0.3 * torch.randn(2 * count, 10, 8, generator=random)
        returns = utility(observations).sum(dim=1)
        true = (returns[:count] > returns[count:]).float()
        target = torch.where(torch.rand(count, generator=random) < wrong, 1 - true, true)
        data = compared(observations, list(range(count)), list(range(count, 2 * count)), target.tolist())
        data.held_out[:] = wrong == 0
        return data

    return drawn(pairs, 0.1), drawn(500, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("kind", "pairs"), [("linear", 400), ("nonlinear", 800)])
def test_nine_of_ten_new_pairs_are_right_though_a_tenth_of_the_answers_is_wrong(kind, pairs, seed):
    data, new = made_data(kind, seed, pairs)
    random = Random(seed, CPU)
    model = Ensemble(8, 5, (32, 32), random)
    assert model.accuracy(new) < 0.75
    model.fit(data, random, 20, noise=0.1)
    assert model.accuracy(new) >= 0.9


def test_accuracy_counts_held_out_pairs_that_are_not_equal():
    model = linear([[1.0]])
    observations = torch.tensor([[[0.0]], [[1.0]], [[2.0]]])
    # Right, wrong, equal, and right but learned from.
    data = compared(observations, [1, 0, 0, 2], [0, 1, 1, 0], [1.0, 1.0, 0.5, 1.0])
    data.held_out = torch.tensor([True, True, True, False])
    assert model.accuracy(data) == 0.5
    data.held_out[:] = False
    assert math.isnan(model.accuracy(data))


def test_held_out_pairs_depend_on_their_names_alone():
    pairs = [(f"a{i}", f"b{i}") for i in range(2000)]
    found = held_out(pairs)
    assert 0.07 < sum(found) / len(found) < 0.13
    assert held_out([(second, first) for first, second in pairs]) == found
    assert held_out(pairs[500:]) == found[500:]
    # What is random in the names of a training's segments does not count.
    one, two = (
        [(f"train-{tag}-000010-{i:04d}", f"train-{tag}-000010-{i + 1:04d}") for i in range(200)]
        for tag in ("0a1b2c3d", "99999999.0a1b2c3d")
    )
    assert held_out(one) == held_out(two)
    out = pairs[found.index(True)]
    assert held_out([out]) == [False]  # one must be learned from
    few = [pair for pair, is_out in zip(pairs, found, strict=True) if not is_out][:10]
    assert sum(held_out(few)) == 1
    assert sum(held_out(few[:9])) == 0


def test_pairs_are_chosen_where_the_networks_disagree():
    import numpy as np

    # The networks agree about the first column and disagree about the sign of the second.
    model = linear([[1.0, 5.0], [1.0, -5.0]])
    observations = {
        "a": torch.tensor([[0.0, 0.0]]),
        "b": torch.tensor([[1.0, 0.0]]),
        "c": torch.tensor([[0.0, 1.0]]),
    }
    pairs = choose(list(observations), 2, np.random.default_rng(0), (), (), model, observations)
    assert {frozenset(pair) for pair in pairs} == {frozenset("ac"), frozenset("bc")}
    left = choose(list(observations), 9, np.random.default_rng(0), [("c", "a")])
    assert {frozenset(pair) for pair in left} == {frozenset("ab"), frozenset("bc")}
    fresh = choose(list(observations), 9, np.random.default_rng(0), (), ("b",))
    assert {frozenset(pair) for pair in fresh} == {frozenset("ab"), frozenset("bc")}
