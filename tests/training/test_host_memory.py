"""Prediction before a run of whether its environments fit into memory."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.errors import ConfigError, RunFailed
from robolearn.training import checkpoint, host_memory
from robolearn.training.build import make_env
from robolearn.training.host_memory import enough_memory, require_room
from robolearn.training.train import _plenty, train

CPU = torch.device("cpu")
MEBI = 2**20


class Thing:
    """Takes 128 bytes per environment and 1024 bytes more, of a `meter`."""

    def __init__(self, meter: Meter, num_envs: int, scratch: int = 0) -> None:
        self.meter, self.size, self.scratch_bytes = meter, 1024 + 128 * num_envs, scratch
        meter.sizes.append(num_envs)
        meter.taken += self.size

    def close(self) -> None:
        self.meter.taken -= self.size


class Meter:
    """Fake memory with `free` bytes; only Things take some."""

    def __init__(self) -> None:
        self.free: int | None = MEBI
        self.taken = 5000
        self.sizes: list[int] = []

    def build(self, num_envs: int) -> tuple[Thing]:
        return (Thing(self, num_envs),)


@pytest.fixture
def meter(monkeypatch) -> Meter:
    made = Meter()
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: made.free)
    monkeypatch.setattr(host_memory, "taken_bytes", lambda device: made.taken)
    return made


def test_a_number_that_does_not_fit_is_refused_with_the_largest_that_does(meter):
    # 0.8 MiB minus 1024 bytes: (838860 - 1024) / 128 = 6545 environments; rounded down, 64 * 102 = 6528.
    require_room(6545, CPU, meter.build)
    with pytest.raises(ConfigError, match=r"^num_envs=6546 needs about .* at most num_envs=6528 fits$"):
        require_room(6546, CPU, meter.build)
    assert meter.sizes == [1, 1024] * 2
    assert meter.taken == 5000  # all closed


def test_scratch_bytes_of_all_parts_are_counted(meter):
    # With 128 bytes more per environment: (838860 - 1024) / 256 = 3272.
    def build(n: int) -> tuple[Thing, Thing]:
        return Thing(meter, n, 64 * n), SimpleNamespace(scratch_bytes=64 * n)

    require_room(3272, CPU, build)
    with pytest.raises(ConfigError, match=r"^num_envs=3273 .* at most num_envs=3264 fits$"):
        require_room(3273, CPU, build)


def test_the_host_memory_of_the_process_is_measured(monkeypatch):
    """256 KiB per environment, much more than other allocations of this process; garbage from before does not count."""
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: 2**32)
    gc.collect()
    gc.disable()
    garbage = SimpleNamespace(rows=np.ones((128, 2**15)))  # 32 MiB, freed by the next collection
    garbage.itself = garbage
    del garbage

    def build(n: int) -> tuple[SimpleNamespace]:
        return (SimpleNamespace(rows=np.ones((n, 2**15)), close=lambda: None),)

    # 0.8 * 4 GiB / 256 KiB = 13107
    try:
        with pytest.raises(ConfigError, match="fits") as refused:
            require_room(100_000, CPU, build)
    finally:
        gc.enable()
    assert int(str(refused.value).split("num_envs=")[2].split()[0]) == pytest.approx(13107, rel=0.1)


def test_nothing_is_built_where_memory_is_plenty_or_unknown(monkeypatch):
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: 2**40)
    require_room(4096, CPU, lambda n: pytest.fail("measured although memory is plenty"))
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: None)
    require_room(10**9, CPU, lambda n: pytest.fail("measured although free memory is unknown"))


def test_a_run_that_does_not_fit_is_refused_before_its_folder_is_created(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: 8 * MEBI)
    run = config.resolve(["task=cartpole_balance", "num_envs=1000000", f"output={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=r"num_envs=1000000 needs about .* GiB, and cpu has 0\.0 GiB free"):
        train(run)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def built(monkeypatch):
    """(num_envs, number of earlier ones still alive) of every backend built from here on."""
    made, rows = [], []
    build = MujocoBackend.__init__

    def watched(self, robot, num_envs, *rest):
        rows.append((num_envs, sum(there() is not None for there in made)))
        made.append(weakref.ref(self))
        build(self, robot, num_envs, *rest)

    monkeypatch.setattr(MujocoBackend, "__init__", watched)
    gc.collect()
    gc.disable()  # the measurement must collect garbage itself
    yield rows
    gc.enable()


def test_training_near_the_limit_measures_twice_and_frees_both(built, monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: 256 * MEBI)
    words = ["num_envs=200", "max_iterations=1", "learner.actor_hidden=[8]", f"output={tmp_path / 'run'}"]
    train(config.resolve(["task=cartpole_balance", "device=cpu", *words]))
    # 1, then 200 instead of 1024, then the run.
    assert built == [(1, 0), (200, 0), (200, 0)]


def test_make_env_measures_1_and_1024_environments(built, monkeypatch):
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: 256 * MEBI)
    make_env(config.resolve(["task=cartpole_balance", "device=cpu"]), num_envs=2000).close()
    assert built == [(1, 0), (1024, 0), (2000, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 2, 3, 300])
def test_at_most_max_2_num_envs_environments_are_measured(num_envs, meter):
    meter.free = 1000
    with pytest.raises(ConfigError, match=rf"^num_envs={num_envs} needs .* at most num_envs=0 fits$"):
        require_room(num_envs, CPU, meter.build)
    assert max(meter.sizes) == max(2, num_envs)
    meter.free = MEBI // 16
    require_room(num_envs, CPU, meter.build)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("Failed to allocate 2147483648 bytes on device 'cuda:0'"),
    ],
    ids=["numpy", "torch", "cuda", "warp"],
)
def test_a_failed_allocation_is_reported_with_the_runs_num_envs(error, monkeypatch, tmp_path):
    """Both in the environments of the run and in those built to measure."""

    def fail(self, *arguments):
        raise error

    monkeypatch.setattr(MujocoBackend, "__init__", fail)
    run = config.resolve(["task=cartpole_balance", "num_envs=5000", f"output={tmp_path / 'run'}"])
    for free in (None, MEBI):
        monkeypatch.setattr(host_memory, "free_bytes", lambda device, free=free: free)
        for start in (make_env, train):
            with pytest.raises(ConfigError, match=r"^num_envs=5000 needs more memory than there is$"):
                start(run)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error"), RunFailed("reward 'allocation' is not finite")]
)
def test_errors_other_than_failed_allocations_are_raised_unchanged(error):
    with pytest.raises(type(error), match=str(error)), enough_memory(4):
        raise error


def test_a_batch_that_does_not_fit_is_refused_where_the_environments_alone_would_fit(monkeypatch, tmp_path):
    free = 256 * MEBI
    monkeypatch.setattr(host_memory, "free_bytes", lambda device: free)
    words = ["num_envs=64", "learner.num_steps=4000", f"output={tmp_path / 'run'}"]
    run = config.resolve(["task=cartpole_balance", "device=cpu", *words])
    assert run.num_envs * host_memory.PLENTY < free
    with pytest.raises(ConfigError, match=r"^num_envs=64 needs about 0\.[3-9] GiB"):
        train(run)


@pytest.mark.parametrize("hidden", [8, 512, 4096])
def test_plenty_grows_with_the_networks_and_the_batch(hidden):
    words = [f"learner.actor_hidden=[{hidden}]", "learner.num_steps=50"]
    run = config.resolve(["task=humanoid_walk", "device=cpu", *words])
    assert _plenty(run) - host_memory.PLENTY > 50 * 4 * 2 * hidden


def test_plenty_counts_the_steps_that_follow_from_the_number_of_environments():
    words = [
        "num_envs=1024",
        "learner.num_steps=0",
        "learner.actor_hidden=[8]",
        "learner.critic_hidden=[512]",
    ]
    run = config.resolve(["task=humanoid_walk", "device=cpu", *words])
    assert _plenty(run) - host_memory.PLENTY == 8 * 4 * (1024 + 2 * 512)  # 256 over the root of 1024 is 8


def test_measuring_does_not_change_the_trained_weights(monkeypatch, tmp_path):
    def weights(free: int | None) -> dict[str, torch.Tensor]:
        monkeypatch.setattr(host_memory, "free_bytes", lambda device: free)
        words = ["num_envs=32", "max_iterations=2", "learner.num_steps=4", f"output={tmp_path / str(free)}"]
        folder = train(config.resolve(["task=cartpole_balance", "device=cpu", *words]))
        return checkpoint.load(folder / "latest.pt")["actor_state_dict"]

    plain, measured = weights(None), weights(32 * MEBI)
    assert all(torch.equal(x, measured[name]) for name, x in plain.items())


def test_the_free_memory_of_a_missing_gpu_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert host_memory.free_bytes(torch.device("cuda")) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert host_memory.free_bytes(torch.device("cuda:7")) is None


def test_torchs_cache_counts_as_free_gpu_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert host_memory.free_bytes(torch.device("cuda")) == 1300


def test_a_containers_memory_limit_is_read_from_cgroups_of_both_versions(tmp_path):
    assert host_memory._left_to_container(tmp_path) == []
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("5000\n")
    (old / "memory.usage_in_bytes").write_text("3000\n")
    (old / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 400\n")
    assert host_memory._left_to_container(tmp_path) == [5000 - 3000 + 400]
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 30\n")
    assert host_memory._left_to_container(tmp_path) == [8000 - 1000 + 30]
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory._left_to_container(tmp_path) == []
