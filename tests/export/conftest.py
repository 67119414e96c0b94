"""Bundles for tests: exported once per module, copied where a test changes them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from robolearn import config
from robolearn.cli import main
from robolearn.export import stages
from robolearn.export.onnx import graph
from robolearn.export.profiles import PROFILES
from robolearn.runtime.files import sha256_of
from robolearn.training.train import train

QUICK = ["--starts", "8", "--seconds", "0.4", "--measure-seconds", "0"]
"""Runs every stage without timing, so that results do not depend on the load of the machine."""


@pytest.fixture(autouse=True)
def short_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of a test record 3 robots for 80 steps, which takes a tenth of the time; those of fixtures record all."""
    monkeypatch.setattr(stages, "RECORDED", (3, 80))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped walking policy as a bundle for jetson-thor, with every profile; read only."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    words = ["--target", "jetson-thor", "pretrained:humanoid_walk", "--output", str(folder)]
    words += [word for name in PROFILES for word in ("--profile", name)]
    assert main(["export", *words, *QUICK]) == 0
    return folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A copy of `exported` that a test may change."""
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
def forge() -> Callable[[Path], None]:
    """(bundle): recompute hashes and the recording's manifest after a change, as a forger would."""

    def forge_anew(folder: Path) -> None:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        for part in ("controller", "policy"):
            manifest[part]["sha256"] = sha256_of(folder / manifest[part]["file"])
        manifest["files"] = {name: sha256_of(folder / name) for name in manifest["files"]}
        manifest["golden"]["sha256"] = ""
        with np.load(folder / "golden.npz") as file:
            arrays = {name: file[name] for name in file.files if name != "manifest"}
        np.savez(folder / "golden.npz", manifest=np.array(json.dumps(manifest)), **arrays)
        manifest["golden"]["sha256"] = sha256_of(folder / "golden.npz")
        path.write_text(json.dumps(manifest))

    return forge_anew


RECURRENT = ["learner.rnn_hidden=16", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]


@pytest.fixture(scope="module", params=["gru", "lstm"])
def recurrent(request, tmp_path_factory) -> Path:
    """A tiny run with a recurrent policy."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    words = [f"learner.rnn={request.param}", "num_envs=8", "max_iterations=2", *RECURRENT, f"output={folder}"]
    return train(config.resolve(["task=cartpole_balance", *words]))


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a tiny run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def export(capfd, run, *words, quick=QUICK) -> tuple[int, str]:
    """Exit code and stderr, which is one line where the export fails."""
    code = main(["export", str(run), *quick, *map(str, words)])
    said = capfd.readouterr().err
    assert said.count("\n") == (1 if code not in (0, 4) else 0), said
    return code, said


def nothing_left(run: Path) -> bool:
    return not (run / "export").exists() and not list(run.rglob("*.part*"))


def stripped(policy):
    """A copy of a policy without its normalizer."""
    broken = copy.deepcopy(policy)
    broken.actor.obs_normalizer = nn.Identity()
    return broken


def without_normalizer(policy, *rest):
    return graph.build_graph(stripped(policy), *rest)
