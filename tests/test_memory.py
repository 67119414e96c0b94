"""How many environments fit, told before the run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robolearn import config, memory
from robolearn.errors import ConfigError
from robolearn.memory import held_bytes, require_room
from robolearn.train import _probe, train

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
