"""Credits bound the lag for actors of any speed, and never stop all of them."""

from __future__ import annotations

import random

import pytest

from robolearn.training.asynchronous.credits import feasible, may_begin


def test_a_batch_is_due_with_the_update_after_which_it_would_be_too_old():
    # Version 5, staleness 1, updates of 2 batches, 1 more needed for this one. A batch of version 4 is due now.
    assert feasible([4], 5, 1, 1, 2)
    assert not feasible([4, 4], 5, 1, 1, 2)
    assert feasible([4, 5, 5], 5, 1, 1, 2)  # this update takes the first, the next one the others
    assert not feasible([4, 5, 5, 5], 5, 1, 1, 2)


def test_without_staleness_only_what_the_update_needs_may_begin():
    assert may_begin(waiting=1, ahead=0, needed=2)
    assert not may_begin(waiting=2, ahead=0, needed=2)
    assert not may_begin(waiting=0, ahead=0, needed=0)  # the learner learns: new weights come first
    assert may_begin(waiting=0, ahead=2, needed=0)


@pytest.mark.parametrize("staleness", [0, 1, 3, 10])
@pytest.mark.parametrize(("actors", "batches"), [(1, 1), (4, 4), (3, 2), (2, 5), (5, 3)])
def test_with_actors_of_any_speed_no_batch_gets_too_old_and_none_is_lost(staleness, actors, batches):
    actors = min(actors, batches * (1 + staleness))  # placement refuses more
    for seed in range(5):
        draw = random.Random(seed)
        speeds = [draw.choice([1.0, 0.3, 0.02]) for _ in range(actors)]
        collecting: dict[int, int] = {}
        ready: list[tuple[int, int]] = []
        version, needed, used, idle = 0, batches, 0, 0
        for _ in range(3000):
            waiting = [*collecting.values(), *(v for _, v in ready)]
            progress = False
            actor = draw.randrange(actors)
            if actor not in collecting and may_begin(len(waiting), staleness * batches, needed):
                collecting[actor] = version
                progress = True
            elif actor in collecting and draw.random() < speeds[actor]:
                ready.append((actor, collecting.pop(actor)))
                progress = True
            for chosen in list(ready):
                others = [*collecting.values(), *(v for each, v in ready if (each, v) != chosen)]
                others += [chosen[1]] * (ready.count(chosen) - 1)
                if needed and feasible(others, version, staleness, needed - 1, batches):
                    ready.remove(chosen)
                    assert 0 <= version - chosen[1] <= staleness
                    needed, used, progress = needed - 1, used + 1, True
            if needed == 0 and draw.random() < 0.5:
                version, needed = version + 1, batches
            idle = 0 if progress or needed == 0 else idle + 1
            assert idle < 1500  # something always goes on
        assert used > 10
