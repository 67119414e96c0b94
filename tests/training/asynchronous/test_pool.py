"""The pool under every order of events: batches delivered, actors lost, in any place."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import Any

import pytest

from robolearn.config.placement import ActorRole, EvaluatorRole, Placement
from robolearn.errors import ConfigError, RunFailed
from robolearn.training.asynchronous import pool as pool_module
from robolearn.training.asynchronous.engine import Done, Event, Failed, Lost, Ready, Setup
from robolearn.training.asynchronous.pool import Pool, Stopped

SETUP = Setup("actor", 0, 1, 1, 1, "fp32", 1, "", (), "")


class Scripted:
    """An engine without processes, whose events a test causes."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.orders: dict[str, tuple[int, int]] = {}
        self.started: list[tuple[int, Any]] = []
        self.setups: list[Setup] = []
        self.index: dict[str, int] = {}
        self.released: list[Any] = []
        self.loaded: list[Any] = []
        self.number, self.lock = 0, threading.Lock()
        self.builds, self.wanted = True, None

    def start(self, incarnation: str, setup: Setup, state: Any) -> None:
        assert state not in self.released
        self.started.append((setup.index, state))
        self.setups.append(setup)
        self.index[incarnation] = setup.index
        if self.builds:
            self.events.append(Ready(incarnation))

    def order(self, incarnation: str, version: int) -> None:
        with self.lock:
            assert incarnation not in self.orders
            self.orders[incarnation] = self.index[incarnation], version

    def place_wanted(self, incarnation: str) -> str | None:
        return self.wanted

    def poll(self, seconds: float) -> list[Event]:
        if not self.events:
            time.sleep(0.0005)
            return []
        return [self.events.popleft()]

    def cause(self, draw: random.Random, lose: float) -> None:
        """Let one of the ordered actors deliver, or be lost."""
        with self.lock:
            if not self.orders:
                return
            incarnation = draw.choice(sorted(self.orders))
            del self.orders[incarnation]
            self.number += 1
            lost = draw.random() < lose
            self.events.append(
                Lost(incarnation, "was lost") if lost else Done(incarnation, f"batch {self.number}", 0.0)
            )

    def kill(self, incarnation: str) -> None:
        self.orders.pop(incarnation, None)

    def publish(self, version: int, weights: dict[str, Any]) -> None:
        pass

    def put(self, tree: Any) -> Any:
        return tree

    def load(self, handle: Any) -> Any:
        assert handle not in self.released
        return handle

    def release(self, handle: Any) -> None:
        assert handle not in self.released
        self.released.append(handle)

    def close(self) -> None:
        pass


def pool_of(
    engine: Scripted, staleness: int, batches: int, actors: int, note: Any = lambda line: None, **more: Any
) -> Pool:
    role = ActorRole(count=actors, envs=1)
    placement = Placement(staleness=staleness, batches=batches, actor=role, **more)
    return Pool(engine, placement, SETUP, {}, note)


@pytest.mark.parametrize(
    ("staleness", "batches", "actors"), [(0, 3, 3), (1, 1, 2), (2, 3, 3), (3, 2, 5), (1, 4, 2)]
)
def test_whatever_happens_each_batch_is_used_once_in_time_and_released_once(staleness, batches, actors):
    for seed in range(4):
        draw, engine = random.Random(seed), Scripted()
        used: dict[int, list[int]] = {}
        stop = threading.Event()

        def happen(
            draw: random.Random = draw, engine: Scripted = engine, stop: threading.Event = stop
        ) -> None:
            while not stop.is_set():
                engine.cause(draw, lose=0.1)
                time.sleep(draw.random() * 0.001)

        with pool_of(engine, staleness, batches, actors) as pool:
            thread = threading.Thread(target=happen)
            thread.start()
            for version in range(25):
                pool.publish(version, {})
                taken = [pool.take(lambda: False) for _ in range(batches)]
                for batch in taken:
                    engine.load(batch.handle)
                    assert 0 <= version - batch.key.version <= staleness
                    used.setdefault(batch.key.actor, []).append(batch.key.sequence)
                for batch in taken:
                    pool.used(batch)
            stop.set()
            thread.join()
        for numbers in used.values():
            assert numbers == list(range(len(numbers)))
        assert sum(map(len, used.values())) == 25 * batches
        if staleness == 0:
            assert {len(numbers) for numbers in used.values()} == {25}  # one of each actor in every update


def test_an_actor_that_was_lost_goes_on_from_its_last_batch():
    engine = Scripted()
    with pool_of(engine, 0, 1, 1) as pool:
        for version in range(2):
            pool.publish(version, {})
            while not engine.orders:
                time.sleep(0.001)
            engine.cause(random.Random(0), lose=0)
            pool.used(pool.take(lambda: False))
        pool.publish(2, {})
        while not engine.orders:
            time.sleep(0.001)
        engine.cause(random.Random(0), lose=1)
        while len(engine.started) < 2:
            time.sleep(0.001)
        assert engine.started == [(0, None), (0, "batch 2")]


def test_an_actor_that_is_lost_again_and_again_ends_the_run():
    engine = Scripted()
    with pool_of(engine, 0, 1, 1) as pool:
        pool.publish(0, {})
        thread = threading.Thread(target=lambda: [_lose(engine) for _ in range(4)])
        thread.start()
        with pytest.raises(RunFailed, match="actor 0"):
            pool.take(lambda: False)
        thread.join()


def test_an_actor_may_be_lost_any_number_of_times_while_others_deliver():
    engine = Scripted()
    with pool_of(engine, 1, 1, 2) as pool:
        for version in range(12):
            pool.publish(version, {})
            while len(engine.orders) < 2:
                time.sleep(0.001)
            with engine.lock:
                by_index = {index: incarnation for incarnation, (index, _) in engine.orders.items()}
                engine.orders.clear()
            # Actor 0 delivers first, so that its batch is not too old; actor 1 never does.
            engine.events.append(Done(by_index[0], f"batch {version}", 0.0))
            engine.events.append(Lost(by_index[1], "was lost"))
            pool.used(pool.take(lambda: False))
        assert pool.restarts >= 11


def _lose(engine: Scripted) -> None:
    while not engine.orders:
        time.sleep(0.001)
    engine.cause(random.Random(0), lose=1)


def test_an_actor_that_does_not_deliver_in_time_is_replaced():
    engine = Scripted()
    with pool_of(engine, 0, 1, 1, timeout=0.05) as pool:
        pool.publish(0, {})
        while len(engine.started) < 2:
            time.sleep(0.001)
        assert pool.restarts >= 1


@pytest.mark.parametrize("wanted", [None, "a node with 1 sim"])
def test_an_actor_that_does_not_become_ready_is_named_rarely_and_not_replaced(wanted):
    engine, said = Scripted(), []
    engine.builds, engine.wanted = False, wanted
    with pool_of(engine, 0, 1, 1, said.append, timeout=0.02) as pool:
        pool.publish(0, {})
        while len(said) < 3:
            time.sleep(0.001)
    assert len(engine.started) == 1
    assert pool.restarts == 0
    assert all(line.startswith("actor 0 ") for line in said)
    assert all((wanted or "environments") in line for line in said)
    assert len(said) < 12  # doubled each time: not every look, of which there is one in 0.5 ms


def test_actors_that_wait_for_the_same_share_a_line():
    engine, said = Scripted(), []
    engine.builds, engine.wanted = False, "a node with 1 sim"
    with pool_of(engine, 0, 3, 3, said.append, timeout=0.5):
        while not said:
            time.sleep(0.001)
    assert "2 more" in said[0]


def test_an_actor_without_a_place_is_named_before_the_timeout_and_one_that_builds_is_not(monkeypatch):
    monkeypatch.setattr(pool_module, "PLACE_S", 0.01)
    for wanted in (None, "a node with 1 sim"):
        engine, said = Scripted(), []
        engine.builds, engine.wanted = False, wanted
        with pool_of(engine, 0, 1, 1, said.append, timeout=3600.0):
            while wanted and not said:
                time.sleep(0.001)
            time.sleep(0.05)
        assert bool(said) == bool(wanted)


def test_the_evaluator_that_is_lost_is_named_with_the_reason():
    engine, said = Scripted(), []
    with pool_of(engine, 1, 1, 1, said.append, evaluator=EvaluatorRole()):
        (found,) = [
            name for name in engine.index if engine.setups[list(engine.index).index(name)].role != "actor"
        ]
        engine.events.append(Lost(found, "killed by SIGKILL"))
        while not said:
            time.sleep(0.001)
    assert said == ["the evaluator was lost (killed by SIGKILL); another one takes its place"]


def test_an_evaluator_has_the_device_and_the_cores_of_its_role():
    engine = Scripted()
    with pool_of(engine, 1, 1, 1, evaluator=EvaluatorRole(device="cuda:1", cores=3)):
        found = {setup.role: (setup.device, setup.cores) for setup in engine.setups}
    assert found == {"actor": (None, 1), "evaluator": ("cuda:1", 3)}


def test_an_error_of_an_actor_has_its_class_and_name():
    engine = Scripted()
    with pool_of(engine, 1, 1, 1) as pool:
        pool.publish(0, {})
        while not engine.orders:
            time.sleep(0.001)
        (incarnation,) = engine.orders
        engine.events.append(Failed(incarnation, 2, "a wrong setting"))
        with pytest.raises(ConfigError, match="actor 0: a wrong setting"):
            pool.take(lambda: False)


def test_a_stop_ends_the_wait_for_a_batch():
    engine = Scripted()
    with pool_of(engine, 1, 1, 1) as pool:
        pool.publish(0, {})
        with pytest.raises(Stopped):
            pool.take(lambda: True)


@pytest.mark.parametrize(("batches", "actors", "fewer"), [(4, 4, 1), (8, 8, 3), (4, 4, 2)])
def test_fewer_actors_go_on_to_collect_all_batches_of_an_update(batches, actors, fewer):
    draw, engine, stop = random.Random(0), Scripted(), threading.Event()

    def happen() -> None:
        while not stop.is_set():
            engine.cause(draw, lose=0.0)
            time.sleep(0.0005)

    thread = threading.Thread(target=happen)
    with pool_of(engine, 1, batches, actors) as pool:
        thread.start()
        began = time.monotonic()
        try:
            for version in range(6):
                if version == 2:
                    pool.resize(fewer)
                pool.publish(version, {})
                taken = [pool.take(lambda: time.monotonic() - began > 60.0) for _ in range(batches)]
                for batch in taken:
                    pool.used(batch)
        finally:
            stop.set()
            thread.join()
