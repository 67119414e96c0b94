"""Which measurements in latency.json a verdict on this machine takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from robolearn.runtime.main import _machine, _read_latency, _with


def measured(runtime: str, p99: float, count: int = 3000, **machine: Any) -> dict[str, Any]:
    paced = {"count": count, "p50_ms": 0.1, "p99_ms": p99, "max_ms": p99, "rate_hz": 50.0}
    return {"runtime": runtime, "paced": paced, "board": None, **machine}


def test_a_measurement_of_another_pc_stays_beside_that_of_this_one():
    theirs = measured("onnxruntime", 0.2, processor="a workstation's")
    ours = measured("onnxruntime", 9.0, processor="the robot's")
    saved = _with({"measured": [theirs]}, [ours])
    assert saved["measured"] == [theirs, ours]
    assert [_machine(each) for each in saved["measured"]] == [
        (None, "a workstation's"),
        (None, "the robot's"),
    ]


def test_a_newer_measurement_of_the_same_machine_replaces_the_one_before_unless_it_is_too_short():
    before, after = (measured("onnxruntime", p99, processor="x") for p99 in (1.0, 2.0))
    assert _with({"measured": [before]}, [after])["measured"] == [after]
    short = measured("onnxruntime", 3.0, count=10, processor="x")
    assert _with({"measured": [after]}, [short])["measured"] == [after]


@pytest.mark.parametrize("lost", ["p50_ms", "p99_ms", "max_ms", "rate_hz", "count"])
def test_times_that_lack_a_number_are_not_read(tmp_path, lost):
    damaged = measured("onnxruntime", 1.0)
    del damaged["paced"][lost]
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"schema": 1, "measured": [damaged]}))
    assert _read_latency(path)["measured"] == []
