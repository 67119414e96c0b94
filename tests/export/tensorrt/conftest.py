"""The fixture of the engine tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from robolearn.runtime import cuda
from tests.export.tensorrt.robot import Robot


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Robot]:
    folder = tmp_path / "bundle"
    folder.mkdir()
    monkeypatch.setattr(cuda, "DEVICE_TREE_MODEL", tmp_path / "model")
    monkeypatch.setenv("PATH", str(tmp_path))
    made = Robot(folder, monkeypatch)
    yield made
    assert made.gpu.faults == []
