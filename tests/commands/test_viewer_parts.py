"""Parts of the viewer by themselves: a history, steps of sliders, frames of a video, the list of checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mjviser")

from robolearn.commands.viewer.operate import nice_step
from robolearn.commands.viewer.panel import LAST, _offered
from robolearn.commands.viewer.plots import History
from robolearn.commands.viewer.recording import Video


@pytest.mark.parametrize(("dt", "every"), [(0.02, 2), (0.01, 4), (0.025, 2), (0.04, 1)])
def test_a_video_has_at_most_30_frames_a_second(dt, every, tmp_path):
    video = Video(SimpleNamespace(dt=dt), tmp_path / "out.mp4")
    video.stop()
    assert video.every == every


def test_the_checkpoint_that_acts_is_offered_where_many_are_newer():
    assert _offered([str(i) for i in range(500)], "499")[-1] == "499"
    assert len(_offered([str(i) for i in range(500)], "7")) == LAST


def test_a_history_keeps_the_last_seconds_by_time_before_now():
    history = History(0.5)
    for i in range(40):
        history.add(0.5 * i, {"reward": np.array([i, 10 * i])})
    times, curve = history.curves("reward", [1])
    assert times.tolist() == [-5.0 + 0.5 * i for i in range(11)]
    assert curve.tolist() == [10.0 * i for i in range(29, 40)]


@pytest.mark.parametrize(
    ("span", "step"), [(1.5, 0.02), (0.6, 0.01), (2.0, 0.02), (100.0, 1.0), (0.27, 0.005)]
)
def test_a_slider_has_about_a_hundred_steps(span, step):
    assert nice_step(span) == pytest.approx(step)
