"""Runs the trainings of a sweep as Ray tasks, on the cluster of RAY_ADDRESS or on this machine's cores.

A task starts `robolearn train` as a process of its node, as `robolearn.commands.sweep.jobs` does here. The sweep's
folder is on storage that all nodes share: it carries checkpoints, metrics, and the file that asks a run to stop. Where
a node is lost, Ray runs its tasks again on another one, and they resume from their checkpoints.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from robolearn.commands.exits import BAD_INPUT, INTERRUPTED, RUN_FAILED
from robolearn.commands.sweep.jobs import Job, LocalJob, Training
from robolearn.commands.sweep.state import FILE_NAME
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, MissingError, one_line, quote

STOP = ".stop"
"""File in a run folder that asks its training to stop; it holds how often it was asked to."""

RETRIES = 3
"""How often a task is run again after its node or its worker was lost."""

PAUSE = 0.5
"""Seconds between two looks of a task at its process and at STOP."""


def connect() -> Any:
    """The package, connected to the cluster of RAY_ADDRESS, or to a Ray of this machine that ends with the process.

    Raises:
        MissingError: Ray is not installed.
        ConfigError: there is no cluster at RAY_ADDRESS.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's future behaviour: a task without GPUs keeps the CUDA_VISIBLE_DEVICES of its node.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingError(f"--ray needs Ray ({error}): pip install 'robolearn[cluster]'") from error
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    _require_open(address)
    more: dict[str, Any] = {"address": address} if address else {}
    if not address:
        more = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**more, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"RAY_ADDRESS={address}" if address else "on this machine"
        token = (
            "" if os.environ.get("RAY_AUTH_MODE") else "; a cluster with a token needs RAY_AUTH_MODE=token"
        )
        raise ConfigError(f"Ray cannot be reached, {where}: {error}{token}") from error
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's own handler would end the sweep with another exit code
    return ray


def _require_open(address: str | None) -> None:
    """Refuse an address where nothing listens: Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition("//")[2].rpartition(":")
    if not (colon and port.isdigit()):
        return  # "auto", or none
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"there is no Ray cluster at RAY_ADDRESS={quote(str(address), 120)} ({error}); start one with ray start "
            "--head, or unset RAY_ADDRESS to use this machine"
        ) from error


def share_of_cluster(total: int, jobs: int | None) -> int:
    """Threads of each run: the cluster's cores shared among the runs at once, at most those of its smallest node."""
    ray = connect()
    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    nodes = [int(cores) for cores in nodes if cores >= 1] or [1]
    return max(1, min(sum(nodes) // min(jobs or total, total), *nodes))


class RayPlace:
    """A Ray cluster; see `robolearn.commands.sweep.jobs.Place`.

    Args:
        threads: CPUs that a run occupies.
        gpu: whether each run occupies a GPU, where the cluster has any.
    """

    def __init__(self, threads: int, gpu: bool) -> None:
        self.ray = connect()
        resources = self.ray.cluster_resources()
        self.cores, self.gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0)) if gpu else 0
        self.threads = threads
        self._task = self.ray.remote(_train).options(
            num_cpus=threads, num_gpus=1 if self.gpus else 0, max_retries=RETRIES
        )

    def slots(self) -> int:
        """Number of runs that the cluster has room for."""
        return max(1, self.gpus or self.cores // self.threads)

    def start(self, training: Training) -> Job:
        """See `Place`; the task waits in Ray's queue until a node has room."""
        return RayJob(self.ray, self._task, training)

    def close(self) -> None:
        """Leave the cluster; one of this machine ends."""
        self.ray.shutdown()


class RayJob:
    """A training as a Ray task; see `robolearn.commands.sweep.jobs.Job`."""

    def __init__(self, ray: Any, task: Any, training: Training) -> None:
        self.ray = ray
        self.stop_file = Path(training.folder) / STOP
        self.stop_file.unlink(missing_ok=True)
        self.reference = task.remote(training)
        self._result: tuple[int, str] | None = None
        self._asked = 0

    def poll(self) -> int | None:
        """See `Job`."""
        if self._result is None and self.ray.wait([self.reference], timeout=0)[0]:
            try:
                self._result = self.ray.get(self.reference)
            except self.ray.exceptions.TaskCancelledError:
                self._result = INTERRUPTED, ""
            except self.ray.exceptions.RayError as error:
                said = next(iter(str(error).splitlines()), type(error).__name__)
                self._result = RUN_FAILED, one_line(f"its node or worker was lost: {said}")
            self.stop_file.unlink(missing_ok=True)
        return None if self._result is None else self._result[0]

    def stop(self) -> None:
        """See `Job`."""
        self._asked += 1
        self.stop_file.parent.mkdir(parents=True, exist_ok=True)
        self.stop_file.write_text(str(self._asked), encoding="utf-8")
        if self._asked > 1:  # a task that still waits for a node reads no file
            self.ray.cancel(self.reference, force=self._asked > 2)

    def why(self) -> str:
        """See `Job`."""
        return self._result[1] if self._result else ""


def _train(training: Training) -> tuple[int, str]:
    """Train on this node; the exit code, and why where it is not 0."""
    folder = Path(training.folder)
    if not (folder.parent / FILE_NAME).is_file():
        return (
            BAD_INPUT,
            f"node {platform.node()} does not see {folder.parent}: choose a folder that all nodes share, output=DIR",
        )
    if _asked(folder):
        return INTERRUPTED, ""
    try:
        job = LocalJob(training)
    except OSError as error:
        return BAD_INPUT, f"on node {platform.node()}: {error}"
    stopped = 0
    while (code := job.poll()) is None:
        try:
            while stopped < _asked(folder):
                stopped += 1
                job.stop()
            time.sleep(PAUSE)
        except KeyboardInterrupt:  # ray.cancel
            job.stop()
    return code, job.why() if code else ""


def _asked(folder: Path) -> int:
    with suppress(OSError, ValueError):
        return int((folder / STOP).read_text(encoding="utf-8"))
    return 0
