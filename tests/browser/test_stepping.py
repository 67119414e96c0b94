"""`robolearn replay --view` in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robolearn import config
from robolearn.commands.replay import _rows, _told
from robolearn.commands.viewer.stepping import Stepping
from robolearn.core.recorder import Recorder
from robolearn.training import replay
from robolearn.training.build import make_env


def test_a_slider_steps_through_the_recorded_second(chromium: Any, tmp_path: Path) -> None:
    import torch

    run = config.resolve(["task=humanoid_walk", "backend=mujoco"])
    env = make_env(run, num_envs=2)
    recorder = Recorder.install(env)
    for _ in range(10):
        env.step(torch.zeros(2, env.num_actions))
    path = tmp_path / "x.replay"
    replay.write(path, recorder.dump(0), 0, run, "a test")
    recorded = replay.read(path)
    with replay.opened(recorded, tmp_path) as opened:
        states: list[Any] = []
        rows = list(_rows(recorded, opened, states))
        stepping = Stepping(opened.scene, states, [_told(row) for row in rows], opened.dt, "127.0.0.1", None)
        try:
            stepping.playing.value = False
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.goto(stepping.url)
            page.wait_for_selector("canvas")
            page.get_by_text("0.20 s before the end").wait_for()
            stepping.step.value = len(rows) - 1
            stepping.tick(0.0)
            page.get_by_text("0.00 s before the end").wait_for()
            # Playing goes from the end to the beginning: 5 control steps of 0.02 s at a quarter of real time.
            stepping.playing.value = True
            stepping.tick(0.4)
            assert int(stepping.step.value) == 4
            page.close()
        finally:
            stepping.close()
