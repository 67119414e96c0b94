"""Weights in shared memory are versioned and never torn."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from robolearn.training.asynchronous import store

WRITER = """
import sys, torch
from pathlib import Path
from robolearn.training.asynchronous.store import write_weights
folder, last = Path(sys.argv[1]), int(sys.argv[2])
for version in range(last + 1):
    write_weights(folder, version, {"a": torch.full((50_000,), float(version)), "b": {"c": torch.tensor(version)}})
"""


def test_a_reader_beside_a_writer_sees_whole_versions_that_only_grow(tmp_path):
    last = 100
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(last)])
    seen, end = [-1], time.monotonic() + 300
    while seen[-1] < last and time.monotonic() < end:
        try:
            version, weights = store.read_weights(tmp_path)  # checks the hash
        except FileNotFoundError:
            continue  # the first one is not there yet
        assert torch.equal(weights["a"], torch.full((50_000,), float(version)))
        assert int(weights["b"]["c"]) == version
        assert version >= seen[-1]
        seen.append(version)
    assert writer.wait() == 0
    assert seen[-1] == last


def test_the_newest_versions_are_kept_for_orders_that_name_them(tmp_path):
    for version in range(6):
        store.write_weights(tmp_path, version, {"x": torch.tensor(version)}, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.weights", "4.weights", "5.weights"]
    assert store.read_weights(tmp_path, 3)[1]["x"] == 3
    with pytest.raises(FileNotFoundError):
        store.read_weights(tmp_path, 2)


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"!"])
def test_damaged_weights_are_refused(tmp_path, damage):
    store.write_weights(tmp_path, 0, {"x": torch.zeros(10)})
    path = tmp_path / "0.weights"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="version 0"):
        store.read_weights(tmp_path)


def test_a_batch_stays_readable_after_its_file_is_removed(tmp_path):
    path = tmp_path / "a.batch"
    store.write_tree({"x": torch.arange(1000), "deep": [{"y": torch.ones(3, dtype=torch.bool)}]}, path)
    tree = store.read_tree(path)
    store.forget(path)
    assert torch.equal(tree["x"], torch.arange(1000))
    assert tree["deep"][0]["y"].all()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_learner_left_in_memory_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "shared_memory", lambda: tmp_path)
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom robolearn.training.asynchronous import store\n"
        "store.shared_memory = lambda: Path(sys.argv[1])\nstore.Store()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (left,) = (tmp_path / "async").iterdir()
    mine = store.Store()
    assert not left.exists()
    assert mine.folder.exists()
    mine.close()
    assert not mine.folder.exists()
