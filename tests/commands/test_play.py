"""`robolearn play`: the frames of the video, and machines without a renderer or an encoder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robolearn import config
from robolearn.cli import main
from robolearn.commands.play.play import staged
from robolearn.errors import MissingError, RunFailed
from robolearn.simulation import renderer as renderers
from robolearn.simulation import video
from robolearn.simulation.film import film
from robolearn.simulation.script import Script
from robolearn.training.build import make_env
from robolearn.training.runs import open_run, random_policy, zero_policy
from tests.as_on_gpu import no_numpy_before_cpu, warp_env

imageio = pytest.importorskip("imageio")


@pytest.fixture(scope="module")
def renderer() -> None:
    """Skips the test where no OpenGL platform works."""
    try:
        context, _ = renderers.open_context(16, 16)
    except MissingError as error:
        pytest.skip(str(error))
    context.free()


SMALL = ("--size", "320x192")
"""Small frames, which are drawn faster."""


def ask(*words: object) -> int:
    return main([str(word) for word in words])


def frames_of(path: Path) -> list[np.ndarray]:
    with imageio.get_reader(path) as reader:
        return list(reader.iter_data())


def about(path: Path) -> dict[str, object]:
    with imageio.get_reader(path) as reader:
        return reader.get_meta_data()


@pytest.mark.usefixtures("renderer")
def test_a_video_has_25_frames_a_second_of_640x480_and_shows_motion(trained, tmp_path, capsys):
    video = tmp_path / "new" / "balance.mp4"
    words = ["task.start_angle=0.6", "seed=2"]
    assert ask("play", trained, *words, "--video", video, "--seconds", 0.4) == 0
    frames = frames_of(video)
    assert len(frames) == 10  # 0.4 s
    assert {frame.shape for frame in frames} == {(480, 640, 3)}
    assert (about(video)["fps"], about(video)["codec"]) == (25, "h264")
    first, last = (frames[i][:380].astype(int) for i in (0, -1))  # above the caption
    assert first.std() > 5
    assert np.abs(last - first).max() > 50
    assert [path.name for path in video.parent.iterdir()] == ["balance.mp4"]
    last = capsys.readouterr().out.splitlines()[-1]
    for part in (str(video), "0.4 s", "640x480", "25 frames/s", "MB"):
        assert part in last


@pytest.mark.usefixtures("renderer")
def test_size_and_rate_of_a_video_can_be_chosen(trained, tmp_path):
    video = tmp_path / "a.mp4"
    words = ["--video", video, "--seconds", 0.1, "--size", "322x180", "--fps", 50]
    assert ask("play", trained, *words) == 0
    assert {frame.shape for frame in frames_of(video)} == {
        (180, 322, 3)
    }  # also where 16 does not divide them
    assert (about(video)["fps"], len(frames_of(video))) == (50, 5)


@pytest.mark.usefixtures("renderer")
def test_the_same_command_writes_the_same_frames(trained, tmp_path):
    for name in ("a.mp4", "b.mp4"):
        assert ask("play", trained, *SMALL, "--video", tmp_path / name, "--seconds", 0.2) == 0
    pairs = zip(frames_of(tmp_path / "a.mp4"), frames_of(tmp_path / "b.mp4"), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.usefixtures("renderer")
def test_a_video_continues_across_episodes(trained, tmp_path):
    video = tmp_path / "resets.mp4"
    words = ["task.episode_length_s=0.06", *SMALL, "--video", video, "--seconds", 0.4]
    assert ask("play", trained, *words) == 0
    assert len(frames_of(video)) == 10


WALKER = "pretrained:humanoid_walk"


def test_a_walker_is_filmed_on_a_tour_with_its_own_pushes_replaced_by_one():
    task, script, what = staged(open_run(WALKER), 40.0)
    assert (task.pushes, task.episode_length_s) == (None, 40.0)
    assert [push.at for push in script.pushes] == pytest.approx([34.0])  # 17 s of 20 s
    assert script.commands[0][1] == {"forward": 0.0, "sideways": 0.0, "yaw": 0.0}
    assert "pushed at 34.0 s" in what


def test_settings_of_commands_pushes_or_the_episode_are_respected():
    words = ["task.commands.forward=[1,1]", "task.pushes.speed=[1,1]"]
    found = open_run(WALKER, words)
    task, script, _ = staged(found, 40.0)
    assert not script  # the commands that the task draws
    assert (task.commands.forward, task.pushes.speed, task.episode_length_s) == ((1, 1), (1, 1), 20)
    task, script, _ = staged(open_run(WALKER, words[1:]), 20.0)
    assert script.commands
    assert not script.pushes
    assert task.pushes.speed == (1, 1)
    found = open_run(WALKER, ["task.episode_length_s=5"])
    task, script, _ = staged(found, 20.0)
    assert task.episode_length_s == 5
    assert script.commands[-1][0] < 5
    assert found.config.task.pushes is not None  # the run's own task is as it was


def test_a_given_script_replaces_the_pushes_of_the_task_and_the_tour():
    given = Script.of({"forward": 0.3}, None)
    task, script, _ = staged(open_run(WALKER), 3.0, given)
    assert (script, task.pushes) == (given, None)


# Four frames: the last shows the end of the step from 0.28 to 0.3 s.
@pytest.mark.parametrize("at", ["0.6", "0.3"])
def test_a_script_that_goes_on_after_the_video_is_refused_with_the_time(tmp_path, capsys, at):
    file = tmp_path / "script.yaml"
    file.write_text(f"pushes:\n- {{at: {at}, speed: 0.5}}\n")
    words = [*SMALL, "--script", file, "--video", tmp_path / "a.mp4", "--fps", 10]
    assert ask("play", WALKER, *words, "--seconds", 0.4) == 2
    said = capsys.readouterr().err
    assert "pushes" in said
    assert f"{at} s" in said
    assert not (tmp_path / "a.mp4").exists()


@pytest.mark.usefixtures("renderer")
def test_a_video_shorter_than_a_tour_is_drawn(tmp_path):
    words = [*SMALL, "--video", tmp_path / "a.mp4", "--seconds", 0.1, "--fps", 25]
    assert ask("play", WALKER, *words) == 0  # the tour goes on after the last frame
    assert (tmp_path / "a.mp4").exists()


@pytest.mark.usefixtures("renderer")
def test_a_script_from_a_file_is_played(tmp_path, monkeypatch):
    said = []
    drawn = video.caption
    monkeypatch.setattr(
        "robolearn.simulation.film.caption", lambda pixels, lines: said.append(lines) or drawn(pixels, lines)
    )
    told = []
    monkeypatch.setattr(
        "robolearn.simulation.film.headline", lambda pixels, text, *rest, **more: told.append(text) or pixels
    )
    file = tmp_path / "script.yaml"
    file.write_text(
        "commands:\n- {at: 0, forward: 0.3}\n- {at: 0.2, yaw: -0.5}\npushes:\n"
        "- {at: 0.1, speed: 0.5, direction: right}\n"
    )
    words = [*SMALL, "--script", file, "--video", tmp_path / "a.mp4", "--seconds", 0.4, "--fps", 10]
    assert ask("play", WALKER, *words) == 0
    assert [lines[0] for lines in said] == [
        "0.00 s   episode 1   forward",
        "0.10 s   episode 1   forward",
        "0.20 s   episode 1   turn right",
        "0.30 s   episode 1   turn right",
    ]
    assert said[0][1] == "command  forward +0.30 m/s   sideways +0.00 m/s   yaw +0.00 rad/s"
    assert told == ["pushed 0.50 m/s from the left"] * 2  # the step after 0.1 s is first seen at 0.2 s


@pytest.mark.usefixtures("renderer")
def test_the_drawn_model_has_the_base_and_joint_positions_of_the_state():
    run = config.resolve(["task=humanoid_walk", "num_envs=2", "device=cpu", "seed=4"])
    env = make_env(run)
    policy = random_policy(env, 4)
    for _ in range(8):
        env.step(policy(env.observations))
    state = env.backend.state
    with renderers.Renderer(env.robot, 64, 48) as drawing:
        pixels = drawing.draw(state, {"command": np.array([1.0, 0.0])})
        qpos = drawing.data.qpos
        base = int(drawing.model.jnt_qposadr[0])
        assert np.allclose(qpos[base : base + 3], state.robot.base_pos[0])
        assert np.allclose(qpos[base + 3 : base + 7], state.robot.base_quat[0])
        for i, name in enumerate(env.robot.joints):
            assert qpos[drawing.model.joint(name).qposadr[0]] == pytest.approx(
                float(state.robot.joint_pos[0, i])
            )
        # MuJoCo's body positions equal State's, but for the motion of one physics step.
        for i, name in enumerate(env.robot.bodies):
            assert np.allclose(drawing.data.body(name).xpos, state.robot.body_pos[0, i], atol=0.05)
    assert pixels.shape == (48, 64, 3)
    env.close()


@pytest.mark.usefixtures("renderer")
def test_without_a_camera_in_the_model_a_free_camera_follows_the_robot(monkeypatch):
    from robolearn.envs import mjcf

    # Without what _add_looks adds: sky, lights, camera.
    build = mjcf.build_model
    monkeypatch.setattr(
        mjcf, "build_model", lambda robot, backend="mujoco", visual=False: build(robot, backend)
    )
    env = make_env(config.resolve(["task=humanoid_walk", "num_envs=1", "device=cpu"]))
    with renderers.Renderer(env.robot, 64, 48) as drawing:
        assert drawing.draw(env.backend.state).std() > 1
        assert np.allclose(drawing.camera.lookat, env.backend.state.robot.base_pos[0])
    env.close()


@pytest.mark.usefixtures("renderer")
def test_drawing_frames_draws_no_random_numbers_of_the_env():
    """The first frames of a longer video are the same."""
    run = config.resolve(["task=humanoid_walk", "num_envs=1", "device=cpu"])

    def filmed(frames: int) -> list[np.ndarray]:
        env = make_env(run)
        out = list(film(env, zero_policy(env), frames, size=(320, 192)))
        env.close()
        return out

    short, long = filmed(2), filmed(4)
    assert (len(short), len(long)) == (2, 4)
    assert all(np.array_equal(a, b) for a, b in zip(short, long, strict=False))


@pytest.mark.usefixtures("renderer")
def test_dropped_contacts_end_the_video_and_name_the_setting():
    env = warp_env("humanoid_walk", 1, "backend.nconmax=3", "task.action_delay=[0,0]")
    with pytest.raises(RunFailed, match=r"raise backend\.nconmax, now 3"), no_numpy_before_cpu():
        list(film(env, zero_policy(env), 100, size=(320, 192)))


def test_a_caption_changes_only_the_lower_left_corner():
    plain = np.full((192, 320, 3), 200, np.uint8)
    written = video.caption(plain, ["1.00 s", "command forward +0.50 m/s"])
    assert written.shape == plain.shape
    assert (written[:130] == 200).all()
    assert (written[130:, 250:] == 200).all()
    assert (written[140:180, 10:100] < 200).any()
    assert (plain == 200).all()


def test_without_a_renderer_the_error_is_one_line_with_the_fix(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(renderers, "PLATFORMS", ("no_such_platform",))
    assert ask("play", trained, "--video", tmp_path / "out" / "a.mp4", "--seconds", 0.1) == 3
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "apt install libegl1" in error
    assert "libosmesa6" in error
    assert not (tmp_path / "out").exists()


def test_without_an_encoder_the_error_names_the_package(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert ask("play", trained, "--video", tmp_path / "a.mp4") == 3
    assert "pip install imageio-ffmpeg" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_osmesa_is_tried_where_egl_has_no_driver():
    """libEGL without a driver fails only when a display is opened, after PyOpenGL has picked EGL. In another process,
    because the environment variable is read once."""
    code = (
        "from robolearn.simulation import renderer as renderers\n"
        "from robolearn.errors import MissingError\n"
        "try:\n"
        "    context, on_cpu = renderers.open_context(16, 16)\n"
        "    print(type(context).__module__, on_cpu)\n"
        "    context.free()\n"
        "except MissingError as error:\n"
        "    print(error)\n"
    )
    nothing = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    nothing["__EGL_VENDOR_LIBRARY_FILENAMES"] = os.devnull
    done = subprocess.run(
        [sys.executable, "-c", code], env=nothing, capture_output=True, text=True, check=True
    )
    # OSMesa where it is installed, else an error that names both platforms.
    assert "mujoco.osmesa True" in done.stdout or ("egl: " in done.stdout and "osmesa: " in done.stdout)
    assert "PYOPENGL_PLATFORM" not in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--video", "clip.gif"], ".mp4"),
        (["--video", "clip"], ".mp4"),
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--seconds", "inf"], "--seconds"),
        (["--video", "x.mp4", "--size", "640"], "640"),
        (["--video", "x.mp4", "--size", "641x480"], "641x480"),
        (["--video", "x.mp4", "--size", "32x32"], "32x32"),
        (["--video", "x.mp4", "--size", "99999x480"], "99999x480"),
        (["--video", "x.mp4", "--fps", "0"], "--fps"),
        (["--video", "x.mp4", "--fps", "nan"], "--fps"),
        (["--video", "x.mp4", "--script", "none.yaml"], "none.yaml"),
        (["--size", "640x480"], "--size"),
        (["task.commands.forward=[1,1]"], "commands"),
    ],
)
def test_bad_input_is_exit_code_2_with_one_line_and_writes_nothing(
    words, expected, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert ask("play", trained, *words, "--output", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
