"""Phase timers, measured with a fake clock, and metrics logs after a kill and a resume."""

from __future__ import annotations

import json

import pytest
import torch

from robolearn.core import timers as phases
from robolearn.core.timers import Timers
from robolearn.training.metrics import MetricsLog, read_metrics


def test_phases_and_other_sum_to_the_wall_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
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


def test_a_phase_that_raises_is_still_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    timers = Timers()

    def fails() -> None:
        with timers("learn"):
            now[0] += 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert timers.read()["learn"] == 2.0


class FakeEvent:
    """A CUDA event with a fake clock of the device."""

    made = waits = 0
    device = 0.0  # [s]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:0"
        self.happened = FakeEvent.device

    def synchronize(self) -> None:
        FakeEvent.waits += 1

    def elapsed_time(self, other: FakeEvent) -> float:
        return 1000.0 * (other.happened - self.happened)


def test_on_a_gpu_phases_measure_device_time_and_only_read_synchronizes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    timers = Timers(torch.device("cuda:0"))
    for _ in range(2):
        timers.start()
        for phase, seconds in (("simulate", 3.0), ("learn", 2.0), ("simulate", 1.0)):
            with timers(phase):
                FakeEvent.device += seconds
            FakeEvent.device += 0.25
            now[0] += 0.001  # the host only enqueues
        assert FakeEvent.waits == 0
        now[0] += 7.497
        read = timers.read()
        assert FakeEvent.waits == 1
        assert read["simulate"] == pytest.approx(4.0)
        assert read["learn"] == pytest.approx(2.0)
        assert read["total"] == pytest.approx(7.5)
        assert read["other"] == pytest.approx(1.5)
        FakeEvent.waits = 0
    assert FakeEvent.made == 6  # reused in the second iteration


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_phases_are_measured_on_the_device():
    timers = Timers(torch.device("cuda"))
    x = torch.randn(1024, 1024, device="cuda")
    with timers("learn"):
        x = (x @ x).tanh()
    read = timers.read()
    assert 0 < read["learn"] <= read["total"]
    assert read["infer"] == 0.0


def test_a_resumed_log_drops_rows_after_its_checkpoint_and_a_truncated_last_line(tmp_path):
    rows = [{"iteration": i, "seconds": float(i)} for i in range(1, 6)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 6, "sec')
    assert len(read_metrics(path)) == 5
    log = MetricsLog(tmp_path, resume_at=3)
    assert log.damaged == []  # a kill cuts off a last line
    log.write({"iteration": 4, "seconds": 9.0})
    log.close()
    assert [row["seconds"] for row in read_metrics(path)] == [1.0, 2.0, 3.0, 9.0]


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xfe\x00",
        b"[1,2]",
        b'{"iteration": 2, "sec',
        b'{"seconds": 2.0}',
        b'{"iteration": "2"}',
        b"[" * 100_000,
    ],
    ids=["no text", "a list", "cut off", "no iteration", "a word as the iteration", "nested too deeply"],
)
@pytest.mark.parametrize("place", [1, 3], ids=["in the middle", "at the end"])
def test_a_damaged_line_of_a_log_is_left_out_and_named_and_the_others_stay(tmp_path, bad, place):
    lines = [json.dumps({"iteration": i, "seconds": float(i)}).encode() for i in (1, 3, 4)]
    lines.insert(place, bad)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    log = MetricsLog(tmp_path, resume_at=3)
    log.close()
    assert log.damaged == [place + 1]
    assert [row["iteration"] for row in read_metrics(path)] == [1, 3]


def test_every_metric_is_written_to_tensorboard_under_its_name(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path)
    log.write({"iteration": 1, "reward/alive": 0.5, "steps": 24})
    log.write({"iteration": 2, "reward/alive": 0.75, "steps": 48})
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/alive")] == [(1, 0.5), (2, 0.75)]
    assert [e.value for e in events.Scalars("run/steps")] == [24.0, 48.0]
