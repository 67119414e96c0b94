"""Beats: which rank is late, worked out from what the ranks last wrote."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from robolearn.training.ranks.beats import Beats, late
from robolearn.training.ranks.watch import BEAT_S
from tests.training.ranks.processes import alive, until


@pytest.fixture
def beat(tmp_path):
    """Writes the beat of a rank whose process has the id 100 + rank; times are seconds ago."""

    def write(rank: int, at: float = 0.0, since: float | None = None, left: float = 0.0, **more: Any) -> None:
        now = time.monotonic()
        message = {
            "pid": 100 + rank,
            "at": now - at,
            "since": None if since is None else now - since,
            "left": now - left,
            "started": True,
            "phase": "learn of iteration 3",
            **more,
        }
        (tmp_path / f"beat_{rank}.json").write_text(json.dumps(message))

    return write


PIDS = {0: 100, 1: 101}


def test_a_rank_that_does_not_write_any_more_is_stopped(beat, tmp_path):
    beat(0, since=9.0)
    beat(1, at=21.0, since=30.0)
    assert late(tmp_path, PIDS, 20.0) == {1: "learn of iteration 3"}
    assert late(tmp_path, PIDS, 22.0) == {}


def test_a_rank_hangs_that_others_wait_for_and_that_has_not_waited_itself(beat, tmp_path):
    beat(0, since=21.0)
    beat(1, left=22.0)
    assert late(tmp_path, PIDS, 20.0) == {1: "learn of iteration 3"}
    beat(1, left=0.5)  # it has waited, too, and has just gone on
    assert late(tmp_path, PIDS, 20.0) == {}
    beat(1, since=21.0)  # both wait: for the lighthouse
    assert late(tmp_path, PIDS, 20.0) == {}


def test_a_rank_that_has_not_done_an_iteration_may_still_compile(beat, tmp_path):
    beat(0, since=21.0)
    beat(1, left=22.0, started=False)
    assert late(tmp_path, PIDS, 20.0) == {}


def test_the_beat_of_a_process_that_was_there_before_does_not_count(beat, tmp_path):
    beat(1, at=100.0)
    assert late(tmp_path, {1: 999}, 20.0) == {}


def test_a_living_rank_writes_what_it_does(tmp_path: Path):
    beats = Beats(tmp_path, 0)
    beats.started, beats.phase = True, lambda: "simulate of iteration 7"
    beats.enter()
    first = json.loads((tmp_path / "beat_0.json").read_text())["at"]
    while (message := json.loads((tmp_path / "beat_0.json").read_text()))["at"] == first:
        time.sleep(0.05)
    beats.close()
    assert message["phase"] == "simulate of iteration 7"
    assert message["since"] is not None


def test_a_rank_whose_folder_is_gone_still_ends_with_its_launcher(tmp_path):
    folder = tmp_path / "memory"
    rank = (
        "import time; from pathlib import Path; from robolearn.training.ranks.beats import Beats; "
        f"beats = Beats(Path({str(folder)!r}), 0); time.sleep(600)"
    )
    made = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {rank!r}]); print(p.pid)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-u", "-c", f"{made}; time.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    try:
        until((folder / "beat_0.json").exists, 60)
        shutil.rmtree(folder)  # as another launcher does with what a killed one has left
        time.sleep(3 * BEAT_S)
        assert alive(pid)
        launcher.kill()
        launcher.wait()
        until(lambda: not alive(pid), 30)
    finally:
        launcher.kill()
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
