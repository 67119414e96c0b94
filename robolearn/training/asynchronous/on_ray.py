"""The Ray engine: actors on the nodes of a Ray cluster, which exchange tensors through its object store.

The object store of a node is in its memory, and Ray copies objects between nodes where one needs them. Tensors travel
as NumPy arrays, which Ray shares without copying.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from robolearn.config.placement import Placement
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, quote
from robolearn.training.asynchronous.engine import Done, Event, Failed, Lost, Ready, Setup

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SCHEDULER_EVENTS", "0")  # the pool reports what an actor waits for
try:
    import ray
    from ray.exceptions import RayActorError, RayError
except ImportError as error:
    raise MissingError(
        "engine: ray needs the package ray; install it with: pip install 'robolearn[cluster]'"
    ) from error

POLL_S = 0.01
"""Time between two looks at what actors have done [s]."""
CONNECT_S = 5.0
"""Longest time for a connection to the cluster's address [s]."""
START = "start a cluster with ray start --head, or leave address out, and train starts one on this machine"
"""What to do where there is no cluster."""
Reference = Any
"""A reference to an object in Ray's store."""


class RayEngine:
    """See `Engine`."""

    def __init__(self, placement: Placement) -> None:
        """Connect to the cluster of the placement, or start one on this machine.

        Raises:
            ConfigError: there is no cluster at that address.
        """
        self._keep = placement.staleness + 2
        evaluator = placement.evaluator.cores if placement.evaluator is not None else 0
        cores = placement.actor.count * placement.actor.cores + evaluator
        # Ray handles signals itself from now on; a training must still save its checkpoint.
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._ours = not ray.is_initialized()
        # num_cpus counts what Ray places, not the cores that this machine has.
        own: dict[str, Any] = {"address": "local", "num_cpus": cores}
        given = own if placement.address is None else {"address": placement.address}
        try:
            if self._ours:
                if placement.address not in (None, "local"):
                    _require_cluster(str(placement.address))
                ray.init(include_dashboard=False, logging_level=logging.ERROR, **given)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if isinstance(error, ConfigError):
                raise
            # Ray's own text has the address.
            raise ConfigError(f"{error}; {START}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)
        self._actors: dict[str, Any] = {}
        self._calls: dict[Reference, tuple[str, Reference | None]] = {}
        self._weights: dict[int, Reference] = {}
        self._places: dict[str, tuple[Reference, Setup]] = {}
        self._show = _hide_deaths()

    def start(self, incarnation: str, setup: Setup, state: Reference | None) -> None:
        """See `Engine`."""
        gpus = setup.resources.get("GPU", 0)
        options: dict[str, Any] = {
            "num_cpus": setup.cores,
            "num_gpus": gpus,
            "resources": {name: x for name, x in setup.resources.items() if name != "GPU"},
            "max_restarts": 0,  # the pool starts another one, which goes on where this one was
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(setup.cores)}},
        }
        if setup.labels:
            options["label_selector"] = setup.labels
        # Lists of processes show the name of the class: ray::actor-0, ray::actor-0.work.
        remote: Any = ray.remote(type(setup.label, (RayWorker,), {}))
        actor = remote.options(**options).remote()
        self._actors[incarnation] = actor
        self._places[incarnation] = actor.__ray_ready__.remote(), setup
        call = actor.build.remote(asdict(setup), state)
        self._calls[call] = incarnation, None

    def order(self, incarnation: str, version: int) -> None:
        """See `Engine`."""
        said, batch = (
            self._actors[incarnation].work.options(num_returns=2).remote(self._weights[version], version)
        )
        self._calls[said] = incarnation, batch

    def poll(self, seconds: float) -> list[Event]:
        """See `Engine`."""
        if not self._calls:
            time.sleep(min(seconds, POLL_S))
            return []
        # Shortly: another thread may give an order meanwhile, of which this call would not know.
        done, _ = ray.wait(list(self._calls), num_returns=1, timeout=min(seconds, POLL_S))
        events = [self._event(call) for call in done]
        return [event for event in events if event is not None]

    def _event(self, call: Reference) -> Event | None:
        """What a call that has ended says; None where another thread has just killed the process."""
        if (known := self._calls.pop(call, None)) is None:
            return None
        incarnation, batch = known
        try:
            said: Any = ray.get(call)
        except RayActorError:
            self._forget(incarnation)
            return Lost(incarnation, "its process or its node ended")
        except RayError as error:
            self._forget(incarnation)
            return Lost(incarnation, f"{type(error).__name__} of Ray")
        if "failed" in said:
            return Failed(incarnation, *said["failed"])
        if batch is None:
            return Ready(incarnation)
        return Done(incarnation, batch, **said)

    def _forget(self, incarnation: str) -> None:
        self._actors.pop(incarnation, None)
        self._places.pop(incarnation, None)
        for call in [call for call, of in list(self._calls.items()) if of[0] == incarnation]:
            self._calls.pop(call, None)

    def kill(self, incarnation: str) -> None:
        """See `Engine`."""
        if (actor := self._actors.get(incarnation)) is not None:
            ray.kill(actor)
            self._forget(incarnation)

    def place_wanted(self, incarnation: str) -> str | None:
        """See `Engine`."""
        if (known := self._places.get(incarnation)) is None:
            return None
        ready, setup = known
        if ray.wait([ready], timeout=0)[0]:
            return None
        return place_wanted(setup, [node for node in ray.nodes() if node["Alive"]])

    def publish(self, version: int, weights: dict[str, Any]) -> None:
        """See `Engine`."""
        self._weights[version] = ray.put(to_numpy(weights))
        for old in [each for each in self._weights if each <= version - self._keep]:
            del self._weights[old]

    def put(self, tree: Any) -> Reference:
        """See `Engine`."""
        return ray.put(to_numpy(tree))

    def load(self, handle: Reference) -> Any:
        """See `Engine`."""
        return to_torch(ray.get(handle))

    def release(self, handle: Reference) -> None:
        """Does nothing: Ray counts references."""

    def close(self) -> None:
        """See `Engine`."""
        for incarnation in list(self._actors):
            self.kill(incarnation)
        self._show()
        if self._ours:
            ray.shutdown()


class RayWorker:
    """The process of an actor or an evaluator on Ray."""

    def build(self, setup: Mapping[str, Any], state: Any) -> dict[str, Any]:
        """Build what the setup describes; `failed` has exit code and message of an error."""
        from robolearn.training.asynchronous.process import described
        from robolearn.training.asynchronous.worker import ActorWorker, EvaluatorWorker

        try:
            made = Setup(**setup)
            # Copies: arrays in Ray's store cannot be written to.
            given = None if state is None else to_torch(state, copy=True)
            self._worker = ActorWorker(made, given) if made.role == "actor" else EvaluatorWorker(made)
        except BaseException as error:
            return {"failed": described(error)}
        return {}

    def work(self, weights: Any, version: int) -> tuple[dict[str, Any], Any]:
        """Collect a batch, or evaluate: what to say of it, and the batch."""
        from robolearn.training.asynchronous.process import described
        from robolearn.training.asynchronous.worker import EvaluatorWorker

        began = time.perf_counter()
        given, worker = to_torch(weights, copy=True), self._worker
        try:
            if isinstance(worker, EvaluatorWorker):
                numbers = {**worker.evaluate(given), "version": version}
                return {"busy": time.perf_counter() - began, "numbers": numbers}, None
            batch = to_numpy(worker.collect(given))
        except BaseException as error:
            return {"failed": described(error)}, None
        return {"busy": time.perf_counter() - began, "simulate": worker.seconds["simulate"]}, batch

    def pid(self) -> int:
        """The id of this process."""
        return os.getpid()


def place_wanted(setup: Setup, nodes: list[dict[str, Any]]) -> str:
    """What a process needs of a node, and what of it no node of the cluster has.

    Args:
        setup: of the process.
        nodes: of the cluster, as `ray.nodes` gives them.
    """
    needs = {"CPU": setup.cores, **setup.resources}
    wants = [f"{name}: {amount:g}" for name, amount in needs.items()]
    wants += [f"label {name}: {value}" for name, value in setup.labels.items()]
    having = [
        {f"{name}: {needs[name]:g}" for name in needs if node["Resources"].get(name, 0) >= needs[name]}
        | {f"label {k}: {v}" for k, v in setup.labels.items() if node.get("Labels", {}).get(k) == v}
        for node in nodes
    ]
    missing = [want for want in wants if not any(want in has for has in having)]
    if missing:
        why = f"no node has {', '.join(missing)}"
    elif any(len(has) == len(wants) for has in having):
        why = "nodes that have them are busy"
    else:
        why = "no node has all of them"
    return f"a place on the Ray cluster, which needs {', '.join(wants)} ({why})"


def _require_cluster(address: str) -> None:
    """Raise ConfigError where nothing answers at the address of a cluster, for which Ray would wait for minutes."""
    found = address
    if address == "auto":
        try:
            from ray._private.services import get_ray_address_from_environment

            found = get_ray_address_from_environment("auto", None)
        except ConnectionError as error:
            raise ConfigError(f"address: auto finds no Ray cluster on this machine; {START}") from error
        except Exception:  # another version of Ray: it looks for the address by itself
            return
    shown = quote(found) if found == address else f"auto, which is {quote(found)}"
    host, _, port = found.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address takes HOST:PORT, auto or local, not {shown}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        raise ConfigError(f"address: {shown}: no Ray cluster answers there ({why}); {START}") from error
    with suppress(ImportError):
        from ray._private import ray_constants

        # Where something else answers there, Ray tries again each second, with a warning, 20 times by default.
        ray_constants.NUM_REDIS_GET_RETRIES = min(3, getattr(ray_constants, "NUM_REDIS_GET_RETRIES", 3))


def _hide_deaths() -> Callable[[], None]:
    """Hide the lines that Ray prints for each process that ends, which the pool names in one line; Ray has no setting
    for this. Errors and output of the processes themselves are shown as before.

    Returns:
        Shows them again.
    """
    with suppress(ImportError, AttributeError):  # another version of Ray
        from ray._private import worker

        before = worker.print_to_stdstream

        def show(data: dict[str, Any], *more: Any, **options: Any) -> None:
            if not any(line.startswith("A worker died or was killed") for line in data.get("lines", ())):
                before(data, *more, **options)

        worker.print_to_stdstream = show
        return lambda: setattr(worker, "print_to_stdstream", before)
    return lambda: None


def to_numpy(tree: Any) -> Any:
    """A tree of tensors as one of arrays, which share their memory where they are on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu().numpy()
    if isinstance(tree, Mapping):
        return {key: to_numpy(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(to_numpy(value) for value in tree)
    return tree


def to_torch(tree: Any, copy: bool = False) -> Any:
    """A tree of arrays as one of tensors; without `copy` they share their memory and are not to be written to."""
    if isinstance(tree, (np.ndarray, np.generic)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the array cannot be written to
            tensor = torch.from_numpy(np.asarray(tree))
        return tensor.clone() if copy else tensor
    if isinstance(tree, Mapping):
        return {key: to_torch(value, copy) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(to_torch(value, copy) for value in tree)
    return tree
