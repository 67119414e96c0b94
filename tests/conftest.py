"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from robolearn.config import registry  # before torch: it sets how torch's threads wait

# isort: split
import torch

OUTSIDE = Path(__file__).parent / "fixtures" / "outside"


def install(site: Path, project: Path) -> None:
    """Write the metadata that `pip install` of `project` writes to `site`, without network and build."""
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
        f"Summary: {about['description']}\n"
    )
    groups = about["entry-points"].items()
    lines = [line for g, rows in groups for line in (f"[{g}]", *(f"{k} = {v}" for k, v in rows.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """tests/fixtures/outside as an installed package: task longpole_balance, robot longpole, backend careful.

    The value is the environment in which a subprocess has it installed too.
    """
    site = tmp_path / "site-packages"
    install(site, OUTSIDE)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.syspath_prepend(str(site))
    registry.refresh()
    yield {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(OUTSIDE)))}
    monkeypatch.undo()
    registry.refresh()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # a slow machine that does something else as well
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


pytest_plugins = ["tests.factories"]
