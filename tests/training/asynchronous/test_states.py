"""What actors go on from: a checkpoint's environments, for one process or for actors of any number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from robolearn.training.asynchronous.states import States, merged_means


def content(actor: int, envs: int) -> dict[str, Any]:
    """An actor's environments, whose rows have the numbers 10 actor + row."""
    rows = 10.0 * actor + torch.arange(envs)
    env = {
        "backend": {"x": rows[:, None]},
        "state": {"episode.step": rows.long(), "stats": torch.zeros(3)},
        "random": torch.full((5,), actor, dtype=torch.uint8),
    }
    return {"env": env, "state": {"random": torch.full((5,), 100 + actor, dtype=torch.uint8)}}


def kept(actors: list[int], batches: int, envs: int) -> dict[str, Any]:
    states = States(len(actors), batches, envs)
    for actor in actors:
        states.keep(actor, 7 + actor, content(actor, envs))
    return states.snapshot()


def starts_of(snapshot: dict[str, Any], count: int, envs: int, **more: Any) -> dict[int, tuple[Any, int]]:
    states = States(count, count, envs)
    states.restore(snapshot)
    return states.starts(**more)


def test_a_snapshot_has_the_environments_side_by_side_and_each_actor_goes_on_with_its_own():
    snapshot = kept([0, 1], 2, 3)
    assert snapshot["state"]["episode.step"].tolist() == [0, 1, 2, 10, 11, 12]
    assert snapshot["state"]["stats"].shape == (3,)
    state, sequence = starts_of(snapshot, 2, 3)[1]
    assert sequence == 9
    assert state["env"]["backend"]["x"].squeeze().tolist() == [10, 11, 12]
    assert state["env"]["random"].tolist() == [1] * 5
    assert state["state"]["random"].tolist() == [101] * 5


@pytest.mark.parametrize("used", [[], [0], [1], [0, 1]])
def test_a_checkpoint_soon_after_a_resume_keeps_the_actors_of_which_no_batch_was_used_yet(used):
    states = States(2, 2, 3)
    states.restore(kept([0, 1], 2, 3))
    states.starts()
    for actor in used:
        states.keep(actor, 20 + actor, content(actor, 3))
    snapshot = states.snapshot()
    assert snapshot["state"]["episode.step"].tolist() == [0, 1, 2, 10, 11, 12]
    assert snapshot["state"]["stats"].shape == (3,)
    starts = starts_of(snapshot, 2, 3)
    assert [starts[actor][1] for actor in (0, 1)] == [21 + a if a in used else 8 + a for a in (0, 1)]


def test_another_number_of_actors_divides_the_environments_anew():
    starts = starts_of(kept([0, 1], 2, 4), 4, 2)
    rows = [starts[actor][0]["env"]["state"]["episode.step"].tolist() for actor in range(4)]
    assert rows == [[0, 1], [2, 3], [10, 11], [12, 13]]
    assert starts[3][0]["state"] == {}  # new random numbers
    assert len(starts[3][0]["env"]["random"]) == 0
    assert [starts[actor][1] for actor in range(4)] == [8, 9, 0, 0]  # numbers of batches go on


def test_one_process_goes_on_from_as_many_environments_as_it_has_where_there_were_more_actors():
    snapshot = kept([0, 1, 2], 2, 2)
    assert snapshot["state"]["episode.step"].tolist() == [0, 1, 10, 11]
    state, _ = starts_of(snapshot, 3, 2)[2]
    assert state["env"]["state"]["episode.step"].tolist() == [20, 21]


def test_actors_take_over_the_environments_and_the_noise_of_one_process():
    snapshot = content(0, 4)["env"]
    starts = starts_of(snapshot, 2, 2, noise=torch.arange(4.0)[:, None])
    assert starts[1][0]["env"]["state"]["episode.step"].tolist() == [2, 3]
    assert starts[1][0]["state"]["noise"].squeeze().tolist() == [2, 3]
    (alone,) = starts_of(snapshot, 1, 4).values()
    assert alone[0]["env"]["random"].tolist() == [0] * 5  # the only actor continues the random numbers, too


def test_means_of_several_actors_weigh_episodes_by_their_number_and_the_rest_by_steps():
    one = {"steps": 10.0, "episodes": 1.0, "diverged": 0.0, "episode/return": 4.0, "reward/total": 1.0}
    two = {"steps": 30.0, "episodes": 0.0, "diverged": 1.0, "reward/total": 2.0}
    assert merged_means([one, two]) == {
        "steps": 40.0,
        "episodes": 1.0,
        "diverged": 1.0,
        "episode/return": 4.0,
        "reward/total": 1.75,
    }
