"""Phase timers against a clock moved by hand, and logs that survive a kill and a resume."""

from __future__ import annotations

import json

import pytest

from robolearn import metrics
from robolearn.metrics import MetricsLog, Timers, read_metrics


def test_phases_and_what_none_of_them_accounts_for_sum_to_the_wall_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    timers = Timers()
    for phase, seconds in (("simulate", 3.0), ("infer", 0.5), ("simulate", 1.0), ("learn", 2.0)):
        with timers(phase):
            now[0] += seconds
        now[0] += 0.25
    assert timers.read() == {
        "simulate": 4.0,
        "infer": 0.5,
        "learn": 2.0,
        "synchronize": 0.0,
        "other": 1.0,
        "total": 7.5,
    }
    timers.start()
    assert timers.read()["total"] == 0.0


def test_a_phase_that_fails_is_still_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    timers = Timers()

    def fails() -> None:
        with timers("learn"):
            now[0] += 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert timers.read()["learn"] == 2.0


def test_a_resumed_log_drops_what_came_after_its_checkpoint_and_a_line_cut_off_by_a_kill(tmp_path):
    rows = [{"iteration": i, "seconds": float(i)} for i in range(1, 6)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 6, "sec')
    assert len(read_metrics(path)) == 5
    log = MetricsLog(tmp_path, resume_at=3)
    log.write({"iteration": 4, "seconds": 9.0})
    log.close()
    assert [row["seconds"] for row in read_metrics(path)] == [1.0, 2.0, 3.0, 9.0]


def test_every_number_reaches_tensorboard_under_its_own_name(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path)
    log.write({"iteration": 1, "reward/alive": 0.5, "steps": 24})
    log.write({"iteration": 2, "reward/alive": 0.75, "steps": 48})
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/alive")] == [(1, 0.5), (2, 0.75)]
    assert [e.value for e in events.Scalars("run/steps")] == [24.0, 48.0]
