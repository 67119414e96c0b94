"""The scripts run, at sizes that say nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from robolearn.cli import main

SCRIPTS = Path(__file__).parent.parent / "scripts"


def test_the_benchmark_prints_three_rates_and_their_ratios(tmp_path):
    words = ["task=humanoid_walk", "num_envs=16", "learner.num_steps=4", "--rounds", "2", "--warmup", "1"]
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "benchmark.py"), *words, "--json", str(out)],
        capture_output=True,
        text=True,
        check=True,
    )
    medians = json.loads(out.read_text())
    for name in ("raw", "env", "training"):
        assert f"  {name} " in done.stdout
        assert medians[name] > 0
    assert 0 < medians["training / raw"] < medians["env / raw"] < 2


def test_the_curves_of_a_run_become_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "task=cartpole_balance", "num_envs=16", "max_iterations=2", "output=run"]) == 0
    subprocess.run([sys.executable, str(SCRIPTS / "plot_run.py"), "run", "docs/curve.png"], check=True)
    assert (tmp_path / "docs" / "curve.png").read_bytes().startswith(b"\x89PNG")
