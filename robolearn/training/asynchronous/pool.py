"""Pool: the actors of a run, what each is doing, and the batches that they have delivered.

A thread reads what the engine reports and gives orders, so that an actor goes on at once while the learner learns. The
learner's own thread publishes weights and takes batches.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from robolearn.config.placement import Placement
from robolearn.errors import EXIT_CODES, OtherRankFailed, RunFailed
from robolearn.training.asynchronous.credits import feasible, may_begin
from robolearn.training.asynchronous.engine import Done, Engine, Event, Failed, Handle, Lost, Ready, Setup
from robolearn.training.asynchronous.ledger import Key

RESTARTS = 3
"""How many times an actor is replaced without a batch, of any actor, between."""
PLACE_S = 60.0
"""Time after which an actor that has no place to run is reported, or `timeout` where that is shorter [s]."""


class Stopped(Exception):
    """The wait for a batch has ended because the run is to stop."""


@dataclass(eq=False)
class Delivered:
    """A batch that waits for its use."""

    key: Key
    handle: Handle
    arrived: int
    busy: float
    simulate: float


@dataclass
class Actor:
    """One actor, through all its incarnations."""

    setup: Setup
    state: Handle | None
    """What a new incarnation starts from: the newest batch, or the state of a checkpoint."""
    sequence: int
    """Of the next batch to begin."""
    incarnation: str = ""
    ready: bool = False
    """Whether it can take an order."""
    version: int | None = None
    """Of the batch that it collects; None without an order."""
    ordered: float = 0.0
    """When it was given its order, or was started."""
    report_after: float = 0.0
    """Time without being ready after which that is reported next [s]."""
    lost: int = 0
    """Incarnations that were lost since the last batch of any actor."""
    waiting: deque[Delivered] = field(default_factory=deque)
    leaving: bool = False

    taken: int = 0
    """Batches that the current update has taken."""

    @property
    def held(self) -> int:
        """Batches that no update has used, with the one that it collects."""
        return len(self.waiting) + self.taken + (self.version is not None)


class Pool:
    """The actors of a run; a context manager that starts them and ends them."""

    def __init__(
        self,
        engine: Engine,
        placement: Placement,
        setup: Setup,
        starts: Mapping[int, tuple[Any, int]],
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            engine: starts and reaches the actors.
            placement: how many there are, and how far they may be ahead.
            setup: of an actor; `index` is replaced.
            starts: of actors that go on, by number: the state, and the number of the next batch.
            note: takes lines for the user, on another thread.
        """
        self.engine, self.placement, self.note = engine, placement, note
        self._setup, self._starts = setup, starts
        self.version, self.needed = 0, 0
        self.restarts = 0
        """Actors replaced so far."""
        self.busy = 0.0
        """Time that actors have been busy, in batches that were delivered [s]."""
        self.evaluations: deque[dict[str, float]] = deque()
        self._actors: dict[int, Actor] = {}
        self._evaluator: Actor | None = None
        self._arrivals = 0
        self._taken: list[Delivered] = []
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="pool", daemon=True)

    def __enter__(self) -> Pool:
        with self._changed:
            self._resize(self.placement.actor.count)
            if (role := self.placement.evaluator) is not None:
                setup = replace(
                    self._setup,
                    role="evaluator",
                    envs=role.episodes,
                    cores=role.cores,
                    resources=role.resources,
                    labels=role.labels,
                    device=role.device,
                )
                self._evaluator = Actor(setup, None, 0)
                self._begin(self._evaluator)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._closing = True
        self._thread.join()
        self.engine.close()

    # ------------------------------------------------------------------ the learner's side

    @property
    def actors(self) -> int:
        """Number of actors that can collect now."""
        with self._changed:
            return sum(actor.ready or actor.version is not None for actor in self._actors.values())

    def publish(self, version: int, weights: dict[str, Any]) -> None:
        """Give the weights of a version to the actors; an update of it begins."""
        self.engine.publish(version, weights)
        with self._changed:
            self.version, self.needed = version, self.placement.batches
            self._order_all()

    def take(self, stopping: Callable[[], bool]) -> Delivered:
        """The next batch of the current update.

        Raises:
            Stopped: `stopping` is true.
            ConfigError, MissingError, RunFailed, OtherRankFailed: an actor has failed, and has said why.
        """
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                if (chosen := self._choose()) is not None:
                    self._taken.append(chosen)
                    self._actors[chosen.key.actor].taken += 1
                    self.needed -= 1
                    self._order_all()
                    return chosen
                if stopping():
                    raise Stopped
                self._changed.wait(0.1)

    def used(self, batch: Delivered) -> None:
        """An update has used a batch, whose content is not needed any more."""
        with self._changed:
            self._taken.remove(batch)
            actor = self._actors[batch.key.actor]
            actor.taken -= 1
            if actor.state is not batch.handle:
                self.engine.release(batch.handle)

    def evaluate(self) -> None:
        """Let the evaluator, if there is one that is not busy, evaluate the current version."""
        with self._changed:
            if (evaluator := self._evaluator) is not None and evaluator.ready and evaluator.version is None:
                self._give(evaluator)

    def resize(self, count: int) -> None:
        """Change the number of actors; those with the highest numbers leave after their batch."""
        with self._changed:
            self._resize(count)

    # ------------------------------------------------------------------ under the lock

    def _choose(self) -> Delivered | None:
        """Take out a batch that the current update may use: of those that wait, the oldest version first."""
        waiting = self._waiting()
        first = [actor.waiting[0] for actor in self._actors.values() if actor.waiting]
        for batch in sorted(first, key=lambda each: (each.key.version, each.arrived)):
            others = list(waiting)
            others.remove(batch.key.version)
            p = self.placement
            if feasible(others, self.version, p.staleness, self.needed - 1, p.batches):
                self._actors[batch.key.actor].waiting.popleft()
                return batch
        return None

    def _waiting(self) -> list[int]:
        """Versions of all batches that are not used."""
        versions = [batch.key.version for actor in self._actors.values() for batch in actor.waiting]
        return versions + [a.version for a in self._actors.values() if a.version is not None]

    def _order_all(self) -> None:
        """Give an order to each actor that may begin a batch; first to those that hold fewest."""
        p = self.placement
        staying = sum(not actor.leaving for actor in self._actors.values())
        most = (p.staleness + 1) * -(-p.batches // max(1, staying))
        for actor in sorted(self._actors.values(), key=lambda each: each.held):
            if not actor.ready or actor.version is not None or actor.leaving or actor.held >= most:
                continue
            if not may_begin(len(self._waiting()), p.ahead, self.needed):
                return
            self._give(actor)

    def _give(self, actor: Actor) -> None:
        actor.version, actor.ordered = self.version, time.monotonic()
        self.engine.order(actor.incarnation, self.version)

    def _resize(self, count: int) -> None:
        for index in range(count):
            if index not in self._actors:
                state, sequence = self._starts.get(index, (None, 0))
                handle = None if state is None else self.engine.put(state)
                self._actors[index] = Actor(replace(self._setup, index=index), handle, sequence)
            actor = self._actors[index]
            actor.leaving = False
            if not actor.incarnation:
                self._begin(actor)
        for index, actor in self._actors.items():
            if index >= count:
                actor.leaving = True
                self._let_go(actor)

    def _let_go(self, actor: Actor) -> None:
        """End an actor that leaves, once it has no order."""
        if actor.leaving and actor.version is None and actor.incarnation:
            self.engine.kill(actor.incarnation)
            actor.incarnation, actor.ready = "", False

    def _begin(self, actor: Actor) -> None:
        actor.incarnation, actor.ready, actor.version = uuid.uuid4().hex, False, None
        actor.ordered, actor.report_after = time.monotonic(), min(PLACE_S, self.placement.timeout)
        self.engine.start(actor.incarnation, actor.setup, actor.state)

    def _everyone(self) -> list[Actor]:
        return [*self._actors.values(), *([self._evaluator] if self._evaluator is not None else [])]

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            while True:
                events = self.engine.poll(0.2)
                with self._changed:
                    if self._closing:
                        return
                    for event in events:
                        self._handle(event)
                    self._replace_silent()
                    self._report_unready()
                    self._order_all()
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _handle(self, event: Event) -> None:
        actor = next((a for a in self._everyone() if a.incarnation == event.incarnation), None)
        if actor is None:
            return
        if isinstance(event, Ready):
            actor.ready = True
        elif isinstance(event, Done):
            self._deliver(actor, event)
        elif isinstance(event, Failed):
            self._error = self._error or _error(actor, event)
        elif isinstance(event, Lost):
            self._replace(actor, f"was lost ({event.why})")

    def _deliver(self, actor: Actor, event: Done) -> None:
        version, actor.version, actor.lost = actor.version, None, 0
        assert version is not None
        if actor is self._evaluator:
            self.evaluations.append(event.numbers)
            return
        for other in self._actors.values():
            other.lost = 0  # the run goes on
        key = Key(actor.setup.index, actor.incarnation, actor.sequence, version)
        self._arrivals += 1
        self.busy += event.busy
        if actor.state is not None and not any(
            batch.handle is actor.state for batch in (*actor.waiting, *self._taken)
        ):
            self.engine.release(actor.state)
        actor.waiting.append(Delivered(key, event.result, self._arrivals, event.busy, event.simulate))
        actor.state, actor.sequence = event.result, actor.sequence + 1
        self._let_go(actor)

    def _replace(self, actor: Actor, why: str) -> None:
        if actor.leaving:
            actor.incarnation, actor.ready, actor.version = "", False, None
            return
        actor.lost += 1
        self.restarts += 1
        if actor.lost > RESTARTS:
            self._error = RunFailed(
                f"{actor.setup.name} {why}, for the {actor.lost}th time without a batch between; the last checkpoint "
                "is kept"
            )
            return
        self.note(f"{actor.setup.name} {why}; another one takes its place")
        self._begin(actor)

    def _replace_silent(self) -> None:
        """Replace actors whose batch takes too long."""
        for actor in self._everyone():
            late = time.monotonic() - actor.ordered > self.placement.timeout
            if late and actor.version is not None:
                self.engine.kill(actor.incarnation)
                self._replace(actor, f"has not delivered within timeout={self.placement.timeout:g} s")

    def _report_unready(self) -> None:
        """Name those that are started and do not become ready, after twice the time each further time. They are not
        replaced: a cluster may get more nodes, and another process would have to build the same."""
        now, found = time.monotonic(), dict[str, list[str]]()
        unready = [actor for actor in self._everyone() if actor.incarnation and not actor.ready]
        if not any(now - actor.ordered >= actor.report_after for actor in unready):
            return
        for actor in unready:
            waited = now - actor.ordered
            if waited < 0.8 * actor.report_after:  # those that started a little later share the line
                continue
            wanted = self.engine.place_wanted(actor.incarnation)
            if wanted is None and waited < 0.8 * self.placement.timeout:
                continue
            actor.report_after = 2 * waited
            why = f"waiting for {wanted}" if wanted else "still building its environments"
            found.setdefault(why, []).append(
                f"{actor.setup.name} is not ready {waited:.0f} s after its start"
            )
        for why, names in found.items():
            others = f", and {len(names) - 1} more" if len(names) > 1 else ""
            self.note(f"{names[0]}{others}: {why}")


def _error(actor: Actor, event: Failed) -> Exception:
    for kind, code in EXIT_CODES.items():
        if code == event.code:
            return kind(f"{actor.setup.name}: {event.message}")
    print(f"robolearn: {actor.setup.name}: {event.message}", file=sys.stderr, flush=True)
    return OtherRankFailed(event.code)
