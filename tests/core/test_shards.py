"""Shards: sums and random numbers that do not depend on which rank has which part."""

from __future__ import annotations

import pytest
import torch

from robolearn.core.curricula import Curricula
from robolearn.core.episode_stats import EpisodeStats
from robolearn.core.shards import Shards, blocks, owned
from robolearn.tasks.mdp.context import Random
from tests.threaded_ranks import together

CPU = torch.device("cpu")


def test_a_rank_sends_the_fewest_nodes_that_its_parts_complete():
    assert blocks(range(16)) == [(0, 16)]
    assert blocks(range(6)) == [(0, 4), (4, 2)]
    assert blocks(range(5, 11)) == [(5, 1), (6, 2), (8, 2), (10, 1)]


def test_parts_are_divided_as_equally_as_can_be_among_neighbours():
    assert owned(16, 4) == [range(4), range(4, 8), range(8, 12), range(12, 16)]
    assert owned(16, 3) == [range(5), range(5, 10), range(10, 16)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_numbers_are_added_in_pairs_whatever_the_number_of_ranks(ranks):
    # In pairs: (1e8 + 1) + (-1e8 + 1) = 1e8 - 1e8 = 0 in float32; one after the other it would be 1.
    numbers = torch.tensor([1e8, 1.0, -1e8, 1.0])
    for result in together(4, ranks, lambda shards: shards.sum([numbers[i] for i in shards.mine])):
        assert result.item() == 0.0


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("size", [1000, 10_001])  # the larger one in slices
def test_sums_have_the_same_bits_for_every_number_of_ranks(ranks, size):
    numbers = torch.randn(16, size, generator=torch.Generator().manual_seed(0))
    (alone,) = together(16, 1, lambda shards: shards.mean(list(numbers)))
    for result in together(16, ranks, lambda shards: shards.mean([numbers[i] for i in shards.mine])):
        assert torch.equal(result, alone)
    assert torch.allclose(alone, numbers.mean(dim=0), atol=1e-6)


def test_a_number_of_shards_that_is_no_power_of_two_is_refused():
    with pytest.raises(ValueError, match="12"):
        Shards(12)


def test_the_random_numbers_of_a_shard_do_not_depend_on_the_others():
    whole = Random(Shards(4).seeds(7), CPU)
    part = Random(Shards(4, range(1, 3), owned(4, 2)).seeds(7), CPU)
    for _ in range(3):
        assert torch.equal(whole.uniform(0.0, 1.0, 8, 3)[2:6], part.uniform(0.0, 1.0, 4, 3))
        assert torch.equal(whole.randn(80)[20:60], part.randn(40))


def test_shards_in_which_no_env_is_done_draw_nothing():
    one, other = (Random(Shards(2).seeds(7), CPU) for _ in range(2))
    with one.only([False, True]):
        drawn = one.rand(4)
    assert drawn[:2].tolist() == [0.0, 0.0]
    assert torch.equal(one.generators[0].get_state(), other.generators[0].get_state())
    assert torch.equal(drawn[2:], other.rand(4)[2:])


def test_a_state_of_several_generators_is_restored_row_by_row():
    random = Random([1, 2, 3], CPU)
    state = random.state()
    first = random.rand(6)
    random.set_state(state)
    assert torch.equal(random.rand(6), first)
    assert not random.fits(state[:2])


def test_the_state_of_a_single_shard_can_be_joined_with_those_of_others():
    alone, other = Random([4], CPU), Random([5, 6], CPU)
    assert alone.state().dim() == 2
    assert torch.cat((alone.state(), other.state())).shape[0] == 3
    assert Random(4, CPU).state().dim() == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_sums_of_episodes_have_the_same_bits_for_every_number_of_ranks(ranks):
    envs, terms = 16, 3
    weights = torch.ones(terms)
    generator = torch.Generator().manual_seed(0)
    raw, returns, seconds = torch.randn(envs, terms, generator=generator), torch.randn(envs), torch.rand(envs)
    done = torch.arange(envs) % 2 == 0

    def sums(shards: Shards) -> torch.Tensor:
        size = envs // shards.total
        rows = slice(size * shards.mine.start, size * shards.mine.stop)
        stats = EpisodeStats(["a", "b", "c"], [], weights, 0.02, shards.count)
        given = [x[rows] for x in (raw, done, done & False, done & False, returns, seconds)]
        added = stats.add(stats.empty(), given[0], [], *given[1:])
        assert added.shape[0] == shards.count
        return shards.sum(added.unbind())

    (alone,) = together(4, 1, sums)
    for found in together(4, ranks, sums):
        assert torch.equal(found, alone)
    assert alone[terms].item() == envs  # steps
    assert alone[terms + 1].item() == envs / 2  # episodes


def test_with_many_envs_a_level_follows_its_own_shard_alone():
    change = torch.tensor([0.0, 2.0, 4.0, 8.0])
    curricula = Curricula.__new__(Curricula)
    curricula._shards = Shards(2)
    assert curricula._mean(change).tolist() == [1.0, 1.0, 6.0, 6.0]
    curricula._shards = Shards()
    assert curricula._mean(change).item() == 3.5


def test_rows_of_parts_of_different_sizes_are_counted_over_all_ranks():
    def counted(shards: Shards) -> int:
        shards.uneven = True
        return shards.total_rows([torch.zeros(1 + part) for part in shards.mine])

    assert together(4, 2, counted) == [10, 10]
    assert together(4, 1, counted) == [10]
