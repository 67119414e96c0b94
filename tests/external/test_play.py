"""`play` of external environments: the video, and errors in one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.commands.play import external as films
from robolearn.errors import MissingError
from robolearn.simulation.renderer import open_context
from tests.external.test_export import trained

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

ACTORS = Path(__file__).with_name("actors.py")


def read(video: Path) -> tuple[tuple[int, int], float, int]:
    """Size, rate and number of frames."""
    frames = imageio_ffmpeg.read_frames(str(video))
    told = next(frames)
    return told["size"], told["fps"], len(list(frames))


@pytest.fixture(scope="module")
def push(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "push", f"gymnasium:{ACTORS}:Push")


def play(capfd, run: Path, name: str, *words: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr."""
    capfd.readouterr()
    named = [f"task=gymnasium:{ACTORS}:{name}"] if name else []
    code = main(["play", str(run), *named, *words])
    return code, capfd.readouterr().err.splitlines()


def test_the_video_has_a_frame_per_step_with_time_episode_and_return(push, tmp_path, capfd, monkeypatch):
    told = []
    monkeypatch.setattr(films, "caption", lambda picture, lines: told.extend(lines) or picture)
    video = tmp_path / "push.mp4"
    code, said = play(capfd, push, "Push", "--video", str(video), "--seconds", "2.3")
    assert (code, said) == (0, [])
    # 75x50 pixels eight times larger are 600x400, on black that is a multiple of 16 wide and high.
    assert read(video) == ((608, 400), 10.0, 23)
    assert told[0] == "0.00 s   episode 1   return 0.00"
    assert told[19].startswith("1.90 s   episode 1   return -")
    assert told[20] == "0.00 s   episode 2   return 0.00"
    assert (told[21].split()[0], len(told)) == ("0.10", 23)


def test_without_a_control_period_the_caption_counts_steps(tmp_path, capfd, monkeypatch):
    run = trained(tmp_path / "run", f"gymnasium:{ACTORS}:Timeless")
    told = []
    monkeypatch.setattr(films, "caption", lambda picture, lines: told.extend(lines) or picture)
    assert play(capfd, run, "Timeless", "--video", str(tmp_path / "a.mp4"), "--seconds", "0.1") == (0, [])
    assert [line.partition("   ")[0] for line in told] == ["step 0", "step 1", "step 2"]


def test_small_images_are_enlarged_and_centered():
    picture = np.arange(3 * 200 * 300, dtype=np.uint8).reshape(200, 300, 3)
    out = films.framed(picture)
    assert out.shape == (400, 608, 3)
    np.testing.assert_array_equal(out[::2, 4:-4:2], picture)
    assert not out[:, :4].any()
    tall = np.ones((480, 480, 3), np.uint8)
    np.testing.assert_array_equal(films.framed(tall), tall)


@pytest.mark.parametrize(
    ("name", "why"), [("Blank", "does not render images"), ("Crooked", "which is no picture")]
)
def test_an_environment_that_does_not_render_is_code_2_in_one_line(name, why, tmp_path, capfd):
    run = trained(tmp_path / "run", f"gymnasium:{ACTORS}:{name}")
    code, said = play(capfd, run, name, "--video", str(tmp_path / "a.mp4"))
    assert (code, len(said), why in said[-1]) == (2, 1, True), said
    assert not (tmp_path / "a.mp4").exists()


UNDRAWN = """
import gymnasium

class Undrawn(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"]}
    dt = 0.1

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}

class Telling(Undrawn):
    def render(self):
        raise NotImplementedError("ask the author")

class Silent(Undrawn):
    def render(self):
        raise RuntimeError
"""


@pytest.mark.parametrize(
    ("name", "code", "ends"),
    [
        ("Undrawn", 2, "Undrawn does not render images"),
        ("Telling", 2, "Telling does not render images: ask the author"),
        ("Silent", 3, "Silent does not draw on this machine: RuntimeError"),
    ],
)
def test_errors_of_rendering_are_one_line_without_a_trailing_colon(name, code, ends, tmp_path, capfd):
    (tmp_path / "envs.py").write_text(UNDRAWN)
    task = f"gymnasium:{tmp_path}/envs.py:{name}"
    run = trained(tmp_path / "run", task)
    got, said = play(capfd, run, "", f"task={task}", "--video", str(tmp_path / "a.mp4"))
    assert (got, len(said), said[-1].endswith(ends)) == (code, 1, True), said


def test_a_missing_package_for_rendering_is_code_3_in_one_line(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)  # as if it were not installed
    run = trained(tmp_path / "run", "gymnasium:Pendulum-v1")
    code, said = play(capfd, run, "", "--video", str(tmp_path / "a.mp4"))
    assert (code, len(said), "pygame" in said[-1]) == (3, 1, True), said


def test_mujoco_environments_are_drawn_without_a_display(tmp_path, capfd, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    try:
        open_context(64, 64)[0].free()
    except MissingError as error:
        pytest.skip(str(error))
    run = trained(tmp_path / "run", "gymnasium:HalfCheetah-v5")
    frames = []
    monkeypatch.setattr(films, "caption", lambda picture, lines: frames.append(picture) or picture)
    code, said = play(capfd, run, "", "--video", str(tmp_path / "a.mp4"), "--seconds", "0.15")
    # MuJoCo 3.17 warns of an attribute in gymnasium's model.
    assert (code, [line for line in said if line and "settotalmass" not in line]) == (0, [])
    assert read(tmp_path / "a.mp4") == ((480, 480), 20.0, 3)
    assert frames[0].std() > 10  # there is something to see
    assert "MUJOCO_GL" not in os.environ
