"""starts.json: versions, commit and machine of each start of a training."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest
import torch

from robolearn import __version__
from robolearn.cli import main
from robolearn.training import origin


def starts(folder):
    return json.loads((folder / "starts.json").read_text())["starts"]


def test_a_training_records_versions_and_machine_at_its_start_and_when_it_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["num_envs=8", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "learner.num_steps=4"]
    assert main(["train", "task=cartpole_balance", *small, "max_iterations=2", "output=run"]) == 0
    (first,) = starts(tmp_path / "run")
    assert first["iteration"] == 0
    assert first["versions"]["robolearn"] == __version__
    assert first["versions"]["torch"] == metadata.version("torch")
    assert first["versions"]["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert first["machine"]["cores"] >= 1
    assert first["machine"]["memory_gb"] > 0
    assert main(["train", "resume=run", "max_iterations=3"]) == 0
    again, second = starts(tmp_path / "run")
    assert again == first
    assert second["iteration"] == 2
    assert second["at"] >= first["at"]
    assert main(["train", "resume=run", "output=other", "max_iterations=4"]) == 0
    assert [entry["iteration"] for entry in starts(tmp_path / "other")] == [3]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"starts": 3}', '{"starts": null}'])
def test_a_damaged_record_is_written_anew(tmp_path, content):
    (tmp_path / "starts.json").write_text(content)
    origin.record_start(tmp_path, 5, origin.here(torch.device("cpu")))
    assert [entry["iteration"] for entry in starts(tmp_path)] == [5]


def git(folder, *words):
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_checkout_and_says_where_files_differ_from_it(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "tag", "v1")  # a tag is no commit
    assert origin.commit(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert origin.commit(tmp_path) == f"{commit}-dirty"


def test_the_commit_of_a_project_around_an_installed_copy_is_not_taken(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    inside = tmp_path / "site-packages"
    inside.mkdir()
    assert origin.commit(inside) is None
