"""Bundles to test with: exported once, copied for those who break them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robolearn.cli import main
from robolearn.runtime.bundle import sha256_of

QUICK = ["--starts", "8", "--seconds", "0.4", "--measure-seconds", "0"]
"""Enough to run every stage; nothing is timed, so nothing depends on how busy the machine is."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped walking policy as a bundle for jetson-thor. Not to be changed."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    words = ["--target", "jetson-thor", "pretrained:humanoid_walk", "--output", str(folder)]
    assert main(["export", *words, *QUICK]) == 0
    return folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A copy of it, to be broken."""
    return Path(shutil.copytree(exported, tmp_path / "copied"))


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict], None]], None]:
    """(bundle, change): change a bundle's manifest.json."""

    def change_manifest(folder: Path, change: Callable[[dict], None]) -> None:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return change_manifest


@pytest.fixture
def rehash(edit: Callable[[Path, Callable[[dict], None]], None]) -> Callable[[Path], None]:
    """Make the manifest's hashes those of the files, as a forger would."""

    def hash_anew(folder: Path) -> None:
        def change(manifest: dict) -> None:
            for part in ("graph", "golden"):
                manifest[part]["sha256"] = sha256_of(folder / manifest[part]["file"])

        edit(folder, change)

    return hash_anew
