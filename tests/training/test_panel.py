"""The progress panel of a run, on a terminal and in a log."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from robolearn.training.panel import Panel, clock, one_line

ROW = {
    "iteration": 30,
    "steps": 2_949_120,
    "seconds": 119.0,
    "steps_per_second": 30_012.0,
    "episode/length": 2.234,
    "episode/fall_rate": 0.98,
    "metric/linear_velocity_error": 0.441,
    "reward/total": 0.1166,
    "reward/track_velocity": 0.03,
    "raw/track_velocity": 0.5,
    "loss/kl": 0.031,
    "time/simulate": 1.8,
    "time/infer": 0.3,
    "time/learn": 0.9,
    "time/synchronize": 0.0,
    "time/other": 0.0,
    "time/total": 3.0,
}


@pytest.mark.parametrize("width", [80, 200])
def test_the_panel_shows_progress_phases_rewards_and_episodes_at_any_width(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with Panel("humanoid_walk", 150, console) as panel:
        panel.show(ROW)
        console.print(panel._render(ROW, 360.0))
    shown = console.file.getvalue()
    for text in (
        "30/150",
        "2.95M steps",
        "30.0k steps/s",
        "ETA 6:00",
        "simulate 60 %",
        "infer 10 %",
        "learn 30 %",
    ):
        assert text in shown.replace("\n", " "), text
    for text in ("linear_velocity_error", "track_velocity", "length", "kl"):
        assert text in shown, text


def test_a_log_line_has_progress_rate_reward_episode_and_metrics():
    assert one_line(ROW, 150, 360.0) == (
        " 30/150  1:59  30.0k steps/s  reward 0.1166  episode 2.23 s, 98 % end early  "
        "linear_velocity_error 0.441  ETA 6:00"
    )
    assert clock(3725) == "1:02:05"


def test_a_closed_output_pipe_does_not_stop_the_panel():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed, Panel("cartpole", 3, Console(file=closed)) as panel:
        for _ in range(3):
            panel.show(ROW)
            panel.note("still here")
