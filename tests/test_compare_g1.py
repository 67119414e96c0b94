"""scripts/compare_g1.py without its peers: what counts as a step, turns of two trainings, and errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
SCRIPT = SCRIPTS / "compare_g1.py"
COUNTS = "import itertools, time\nfor i in itertools.count(1):\n    time.sleep(0.01)\n    print('Total steps:', 10 * i)"
"""A program that reports 10 steps as rsl_rl does, some hundred times a second at most."""


@pytest.fixture
def compare_g1(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("compare_g1", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compare_g1", module)
    spec.loader.exec_module(module)
    return module


def test_steps_are_the_last_that_a_peer_printed_and_the_last_complete_line_of_ours(compare_g1, tmp_path):
    printed = "  Total steps: 1536 \nSteps per second: 44\n Total steps: 3072 \n"
    assert compare_g1.reported(printed, lines=False) == 3072
    assert compare_g1.reported("", lines=False) == compare_g1.reported('{"ste', lines=True) == 0
    assert compare_g1.reported('{"steps": 8}\n{"steps": 16}\n{"steps": 2', lines=True) == 16
    file = tmp_path / "metrics.jsonl"
    assert compare_g1.end_of(file) == ""
    file.write_text("".join(json.dumps({"steps": i, "fill": "x" * 1000}) + "\n" for i in range(200)))
    assert len(compare_g1.end_of(file)) == compare_g1.TAIL
    assert compare_g1.reported(compare_g1.end_of(file), lines=True) == 199


def test_only_the_side_whose_turn_it_is_makes_steps(compare_g1, tmp_path):
    sides = [compare_g1.Side(name, [sys.executable, "-c", COUNTS], tmp_path) for name in ("one", "other")]
    compare_g1.compare(sides, rounds=2, seconds=0.2)
    one, other = sides
    assert len(one.rates) == len(other.rates) == 2
    # A report of 10 steps follows at least 10 ms after the one before: 1000 steps/s at most, less one for the boundary.
    assert all(0 < rate < 1100 for side in sides for rate in side.rates)
    assert all(side.process.poll() is not None for side in sides)


def test_a_side_that_ends_is_one_line_with_the_last_of_its_output(compare_g1, tmp_path, capsys):
    side = compare_g1.Side("peer", [sys.executable, "-c", "raise SystemExit('no such task')"], tmp_path)
    with pytest.raises(SystemExit) as stopped:
        compare_g1.compare([side], rounds=1, seconds=0.0)
    assert stopped.value.code == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--mjlab", "/no/such/python"], 2),
        (["--unilab", sys.executable], 3),
        (["--unilab", sys.executable, "--rounds", "0"], 2),
        (["--unilab", sys.executable, "--folder", "."], 2),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(words: list[str], code: int):
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
