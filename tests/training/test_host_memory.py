"""How many environments fit, told before the run."""

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
from robolearn.training import host_memory as memory
from robolearn.training.build import make_env
from robolearn.training.host_memory import enough_memory, held_bytes, require_room
from robolearn.training.train import _plenty, _probe, train

CPU = torch.device("cpu")
MEBI = 2**20


def thing(num_envs: int) -> SimpleNamespace:
    """100 bytes an environment in tensors and 28 in an array, and a kibibyte that does not grow."""
    return SimpleNamespace(
        rows=torch.zeros(num_envs, 25),
        view=None,
        table={"numbers": np.zeros((num_envs, 7), np.float32)},
        weights=[torch.zeros(256)],
        close=lambda: None,
    )


def test_bytes_are_counted_once_wherever_they_are_seen_from():
    made = thing(10)
    made.view = made.rows[:3]
    assert held_bytes(made) == 10 * 128 + 1024
    assert held_bytes(made, made.table) == 10 * 128 + 1024
    made.scratch_bytes = 5000
    assert held_bytes(made) == 10 * 128 + 1024 + 5000


def test_gradients_are_counted_too():
    weight = torch.zeros(8, requires_grad=True)
    weight.sum().backward()
    assert held_bytes(SimpleNamespace(weight=weight)) == 64


def test_a_number_that_does_not_fit_is_refused_with_the_largest_that_would(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: MEBI)
    # 0.8 of a mebibyte, less a kibibyte: room for (838860 - 1024) / 128 = 6545 environments; 64 * 102 = 6528.
    require_room(6545, CPU, thing)
    with pytest.raises(ConfigError, match=r"^num_envs=6546 needs about .* at most num_envs=6528 fits$"):
        require_room(6546, CPU, thing)


def test_nothing_is_built_where_there_is_plenty(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**40)
    require_room(4096, CPU, lambda n: pytest.fail("measured for nothing"))
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    require_room(10**9, CPU, lambda n: pytest.fail("the system does not tell"))


@pytest.mark.parametrize("task", ["cartpole_balance", "humanoid_walk"])
def test_what_a_run_holds_grows_in_proportion_to_its_environments(task):
    run = config.resolve([f"task={task}"])
    sizes = []
    for num_envs in (256, 512, 1024):
        made = _probe(run, num_envs)
        sizes.append(held_bytes(made))
        made.close()
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.01)


def test_training_refuses_before_it_makes_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 8 * MEBI)
    run = config.resolve(["task=cartpole_balance", "num_envs=1000000", f"output={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=r"num_envs=1000000 needs about .* GiB, and cpu has 0\.0 GiB free"):
        train(run)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def built(monkeypatch):
    """(num_envs, how many built before are still there) of every backend built from here on."""
    made, rows = [], []
    build = MujocoBackend.__init__

    def watched(self, robot, num_envs, *rest):
        rows.append((num_envs, sum(there() is not None for there in made)))
        made.append(weakref.ref(self))
        build(self, robot, num_envs, *rest)

    monkeypatch.setattr(MujocoBackend, "__init__", watched)
    gc.collect()
    gc.disable()  # or it might do by chance what the measurement must do itself
    yield rows
    gc.enable()


def test_training_near_the_limit_measures_twice_and_keeps_neither(built, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 256 * MEBI)
    words = ["num_envs=200", "max_iterations=1", "learner.actor_hidden=[8]", f"output={tmp_path / 'run'}"]
    train(config.resolve(["task=cartpole_balance", "device=cpu", *words]))
    # Not more than were asked for, and half as many; then the run.
    assert built == [(100, 0), (200, 0), (200, 0)]


def test_an_env_alone_is_measured_at_most_twice_too(built, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 256 * MEBI)
    make_env(config.resolve(["task=cartpole_balance", "device=cpu"]), num_envs=2000).close()
    assert built == [(512, 0), (1024, 0), (2000, 0)]


@pytest.mark.parametrize("num_envs", [1, 2, 3, 300])
def test_few_environments_are_measured_with_no_more_than_those(num_envs, monkeypatch):
    sizes = []

    def build(n: int) -> SimpleNamespace:
        sizes.append(n)
        return thing(n)

    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match=rf"^num_envs={num_envs} needs .* at most num_envs=0 fits$"):
        require_room(num_envs, CPU, build)
    assert max(sizes) == max(2, num_envs)
    monkeypatch.setattr(memory, "free_bytes", lambda device: MEBI // 16)
    require_room(num_envs, CPU, build)


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
def test_an_allocation_that_fails_is_told_of_the_number_that_was_asked_for(error, monkeypatch, tmp_path):
    """In the environments themselves, and in those that only measure: nobody has asked for their number."""

    def fail(self, *arguments):
        raise error

    monkeypatch.setattr(MujocoBackend, "__init__", fail)
    run = config.resolve(["task=cartpole_balance", "num_envs=5000", f"output={tmp_path / 'run'}"])
    for free in (None, MEBI):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        for start in (make_env, train):
            with pytest.raises(ConfigError, match=r"^num_envs=5000 needs more memory than there is$"):
                start(run)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error"), RunFailed("reward 'allocation' is not finite")]
)
def test_other_errors_are_not_taken_for_memory(error):
    with pytest.raises(type(error), match=str(error)), enough_memory(4):
        raise error


def test_a_long_batch_is_measured_where_the_environments_alone_would_fit(monkeypatch, tmp_path):
    free = 256 * MEBI
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    words = ["num_envs=64", "learner.num_steps=4000", f"output={tmp_path / 'run'}"]
    run = config.resolve(["task=cartpole_balance", "device=cpu", *words])
    assert run.num_envs * memory.PLENTY < free
    with pytest.raises(ConfigError, match=r"^num_envs=64 needs about 0\.[3-9] GiB"):
        train(run)


@pytest.mark.parametrize("hidden", [8, 512, 4096])
def test_plenty_is_more_than_a_run_holds(hidden):
    words = [f"learner.actor_hidden=[{hidden}]", "learner.num_steps=50"]
    run = config.resolve(["task=humanoid_walk", "device=cpu", *words])
    few, more = (_probe(run, n) for n in (8, 24))
    assert (held_bytes(more) - held_bytes(few)) / 16 < _plenty(run)
    assert _plenty(run) - memory.PLENTY > 50 * 4 * 2 * hidden
    for made in (few, more):
        made.close()


def test_a_gpu_that_is_not_there_has_no_free_memory_to_tell_of(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert memory.free_bytes(torch.device("cuda")) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert memory.free_bytes(torch.device("cuda:7")) is None


def test_what_torch_keeps_of_a_gpu_without_using_it_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert memory.free_bytes(torch.device("cuda")) == 1300


def test_a_containers_limit_is_read_from_control_groups_of_both_versions(tmp_path):
    assert memory._group_limit(tmp_path) is None
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("5000\n")
    (old / "memory.usage_in_bytes").write_text("3000\n")
    (old / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 400\n")
    assert memory._group_limit(tmp_path) == 5000 - 3000 + 400
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 30\n")
    assert memory._group_limit(tmp_path) == 8000 - 1000 + 30
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._group_limit(tmp_path) is None
