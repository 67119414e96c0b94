"""`robolearn play` without a browser: what it refuses, what drives the robots, and how it idles."""

from __future__ import annotations

import builtins
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError, MissingError
from robolearn.training.build import make_env
from robolearn.training.runs import open_run

pytest.importorskip("mjviser")

from robolearn.commands.viewer import server as serving
from robolearn.commands.viewer import viewer as viewing
from robolearn.commands.viewer.operate import Operator, columns_of
from robolearn.commands.viewer.recording import Scene, Video
from robolearn.commands.viewer.source import BundleSource, RunSource, newest
from robolearn.commands.viewer.viewer import Viewer

PATIENCE = 60.0


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a tiny cartpole run, with the checkpoints of iterations 1 and 2, that a test may change."""
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    written = next((folder / "checkpoints").glob("*.pt"))
    for iteration in (1, 2):
        other = folder / "checkpoints" / f"iteration_{iteration:06d}.pt"
        if not other.exists():
            shutil.copy(written, other)
    return folder


@pytest.fixture
def start() -> Iterator[Callable[..., Viewer]]:
    """(task, or run folder, number of robots) -> a Viewer whose loop does not run yet."""
    made: list[tuple[Any, Any]] = []

    def begin(what: str | Path, num_envs: int = 1, follow: bool = False) -> Viewer:
        if isinstance(what, Path):
            env = make_env(open_run(str(what), ["device=cpu"]).config, num_envs=num_envs)
            source: Any = RunSource(env, what / "latest.pt", what)
        else:
            env = make_env(config.resolve([f"task={what}", "device=cpu"]), num_envs=num_envs)
            source = Still(env)
        server = serving.open_server()
        made.append((server, env))
        return Viewer(server, env, source, "test", what if isinstance(what, Path) else Path(), follow)

    yield begin
    for server, env in made:
        serving.stop(server)
        env.close()


class Still:
    """A source of zero actions."""

    name = "still"

    def __init__(self, env) -> None:
        self.env = env

    def __call__(self):
        return torch.zeros(self.env.num_envs, self.env.num_actions), None

    def reset(self, mask=None) -> None:
        pass

    def choices(self) -> list[str]:
        return [self.name]

    def switch(self, name: str) -> None:
        pass


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.02)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine on which something listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


# ---------------------------------------------------------------------------------------- what is refused


def refused(capsys, *words: object) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code = main(["play", *map(str, words)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return code, said


def test_a_port_that_was_asked_for_and_is_in_use_is_refused_by_number(trained, taken, capsys):
    code, said = refused(capsys, trained, "--port", taken)
    assert code == 2
    assert f"--port {taken}" in said


def test_without_a_port_the_next_free_one_is_taken(taken, monkeypatch):
    monkeypatch.setattr(serving, "PORT", taken)
    assert taken < serving.free_port("127.0.0.1", None) < taken + serving.TRIED


def test_an_address_that_is_not_this_machines_is_refused(trained, capsys):
    code, said = refused(capsys, trained, "--host", "192.0.2.7")  # of no machine (RFC 5737)
    assert code == 2
    assert "192.0.2.7" in said


def test_a_host_that_no_name_can_be_is_refused(taken):
    with pytest.raises(ConfigError, match=r"192\.168\.\.5"):
        serving.free_port("192.168..5", None)


def test_without_viser_the_extra_to_install_is_named(trained, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.partition(".")[0] in ("viser", "mjviser"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    code, said = refused(capsys, trained)
    assert code == 3
    assert "robolearn[viewer]" in said
    with pytest.raises(MissingError):
        serving.require_viser()


def test_a_third_party_environment_is_told_to_write_a_video(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    folder = tmp_path / "run"
    words = ["task=gymnasium:Pendulum-v1", "num_envs=4", "max_iterations=1", f"output={folder}"]
    assert main(["train", *words, "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]) == 0
    capsys.readouterr()
    code, said = refused(capsys, folder)
    assert code == 2
    assert "--video" in said
    assert "gymnasium:Pendulum-v1" in said


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--seconds", "3"], "--seconds"), (["--opponent", "x"], "--opponent"),
     (["--video", "x.mp4", "--follow"], "--follow"),
     (["--video", "x.mp4", "--port", "8080"], "--port")],
)  # fmt: skip
def test_options_of_a_video_and_of_the_viewer_are_kept_apart(
    words, option, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code, said = refused(capsys, trained, *words)
    assert code == 2
    assert option in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["pretrained:humanoid_walk", "--follow"], ["nothing/here"]])
def test_runs_that_cannot_be_shown_are_refused_by_name(words, capsys):
    code, said = refused(capsys, *words)
    assert code == 2
    assert words[0] in said


# ---------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_prints_one_url_and_ends_cleanly_when_interrupted(trained, tmp_path):
    words = [sys.executable, "-m", "robolearn.cli", "play", str(trained), "--output", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline()
        assert url.startswith("http://localhost:")
        import urllib.request

        with urllib.request.urlopen(url.strip()) as page:
            assert b"<html" in page.read().lower()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, err) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_url_is_of_localhost_and_an_open_viewer_tells_its_address_too(monkeypatch):
    assert serving.address("127.0.0.1", 8081) == "http://localhost:8081"
    assert serving.address("10.1.2.3", 8081) == "http://10.1.2.3:8081"
    monkeypatch.setattr(serving, "network_address", lambda: "192.168.1.5")
    said = serving.address("0.0.0.0", 8080)
    assert said.split()[0] == "http://localhost:8080"
    assert "192.168.1.5" in said


# ---------------------------------------------------------------------------------------- the loop


def test_nothing_is_simulated_until_a_browser_is_connected(run, start, monkeypatch):
    viewer = start(run)
    looked = []
    real = viewing.Viewer.watched.fget
    monkeypatch.setattr(viewing.Viewer, "watched", property(lambda self: looked.append(1) or real(self)))
    thread = threading.Thread(target=viewer.run)
    thread.start()
    until(lambda: len(looked) >= 3)
    done = threading.Event()
    viewer.do(done.set)  # work is done all the same
    assert done.wait(PATIENCE)
    viewer.end()
    thread.join()
    assert viewer.steps == 0
    assert viewer.drawing.frames == 1
    # Between two looks the loop sleeps, instead of keeping a core busy.
    assert viewing.IDLE >= 0.1


def test_a_run_that_fails_stands_still_and_goes_on_after_a_reset(run, start):
    viewer = start(run)
    step, source = viewer.env.step, viewer.source

    def broken(*given):
        raise ConfigError("sensor of robot 3")

    viewer.env.step = broken
    viewer.step()
    assert "robot 3" in viewer.error
    viewer.env.step = step
    viewer.reset()
    viewer.step()
    assert viewer.error == ""
    assert viewer.steps == 1
    assert viewer.source is source


def test_a_new_checkpoint_is_offered_and_only_followed_where_asked(run, start):
    (run / "checkpoints" / "iteration_000002.pt").unlink()
    viewer = start(run)
    viewer._look()
    assert viewer.source.name == "latest.pt"
    shutil.copy(run / "latest.pt", run / "checkpoints" / "iteration_000007.pt")
    viewer._look()
    assert "iteration_000007.pt" in viewer.panel.checkpoints.options
    assert viewer.source.name == "latest.pt"
    viewer.follow_training(True)
    viewer._look()
    assert viewer.source.name == "iteration_000007.pt"
    assert viewer.panel.checkpoints.value == "iteration_000007.pt"
    shutil.copy(run / "latest.pt", run / "checkpoints" / "iteration_000030.pt")
    assert newest(viewer.source) == "iteration_000030.pt"
    viewer._look()
    assert viewer.source.name == "iteration_000030.pt"


def test_a_followed_checkpoint_that_cannot_be_read_leaves_the_old_policy(run, start):
    viewer = start(run, follow=True)
    viewer._look()
    before = viewer.source.name
    (run / "checkpoints" / "iteration_000099.pt").write_bytes(b"no checkpoint")
    viewer._look()
    assert viewer.source.name == before
    assert "iteration_000099.pt" in viewer.panel.message
    viewer.step()
    assert viewer.error == ""


def test_a_switch_changes_the_actions(run, start):
    viewer = start(run)
    content = torch.load(run / "latest.pt", weights_only=True)
    for name, value in content["policy"]["state"].items():
        if name.startswith("actor.mlp"):
            value.zero_()
    torch.save(content, run / "checkpoints" / "iteration_000005.pt")
    assert float(viewer.source()[0].abs().max()) > 0
    viewer.switch("iteration_000005.pt")
    assert float(viewer.source()[0].abs().max()) == 0


@pytest.mark.slow
def test_checkpoints_of_a_training_in_another_process_are_switched_to(tmp_path, start):
    folder = tmp_path / "run"
    small = ["num_envs=8", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "checkpoint_interval=1"]
    words = ["task=cartpole_balance", "max_iterations=100000", *small, f"output={folder}"]
    training = subprocess.Popen(
        [sys.executable, "-m", "robolearn.cli", "train", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until((folder / "latest.pt").is_file)
        viewer = start(folder, follow=True)
        names = set()

        def several() -> bool:
            viewer._look()
            viewer.step()
            names.add(viewer.source.name)
            return len(names) >= 4

        until(several)
    finally:
        os.kill(training.pid, signal.SIGKILL)
        training.wait()
    assert viewer.error == ""


# ---------------------------------------------------------------------------------------- who drives


def test_the_users_command_replaces_the_tasks_and_is_given_back(make_env):
    from robolearn.tasks.humanoid_walk import HumanoidWalk

    env = make_env(HumanoidWalk(), num_envs=3)
    operator = Operator(env)
    both = torch.tensor([True, False, True])
    own = env.ctx.command.clone()
    operator.give([0.5, 0.1, -0.2], both)
    for _ in range(3):
        operator.before_step()
        env.step(torch.zeros(3, env.num_actions))
    assert torch.allclose(env.ctx.command[both], torch.tensor([0.5, 0.1, -0.2]))
    assert torch.equal(env.ctx.command[1], own[1])
    assert env.ctx.command_time[0] == pytest.approx(3 * env.dt)  # since it was given
    operator.give([9.0, 0.1, -0.2], both)  # the range ends at 1
    operator.before_step()
    env.step(torch.zeros(3, env.num_actions))
    assert float(env.ctx.command[0, 0]) == pytest.approx(1.0)
    operator.release()
    operator.before_step()
    env.step(torch.zeros(3, env.num_actions))
    assert not torch.allclose(env.ctx.command[0], torch.tensor([1.0, 0.1, -0.2]))


def test_the_sliders_show_the_commands_of_the_robot_that_is_shown(start):
    viewer = start("humanoid_walk", num_envs=2)
    steering = viewer.panel.steering
    steering.all.value = False
    steering.set({0: 1.0, 1: 0.0, 2: 0.0})  # of robot 0
    viewer.step()
    other = viewer.env.ctx.command[1].tolist()
    viewer.panel._show(1)
    assert [s.value for s in steering.sliders] == pytest.approx(other, abs=0.01)
    viewer.panel._show(0)
    assert [s.value for s in steering.sliders] == pytest.approx([1.0, 0.0, 0.0])
    steering.sliders[0].value = 0.5  # it is being moved
    steering.refresh()
    assert steering.sliders[0].value == 0.5


def test_a_push_goes_where_the_robot_faces(make_env):
    from robolearn.tasks.humanoid_walk import HumanoidWalk

    env = make_env(HumanoidWalk(), num_envs=2)
    operator = Operator(env)
    given = []
    env.push = lambda mask, jump, turn=None: given.append((mask, jump))
    half = math.sqrt(0.5)
    env.backend.state.robot.base_quat[:] = torch.tensor([half, 0.0, 0.0, half])  # faces along y
    operator.push(2.0, 90.0, torch.tensor([False, True]))
    mask, jump = given[0]
    assert mask.tolist() == [False, True]
    assert torch.allclose(jump[1], torch.tensor([-2.0, 0.0, 0.0]), atol=1e-5)  # its left is -x


def test_the_sliders_hold_the_ranges_of_any_task(start):
    walk = columns_of(make := make_env(config.resolve(["task=humanoid_walk", "device=cpu"]), num_envs=1))
    make.close()
    assert [(c.name, c.unit, c.low, c.high) for c in walk] == [
        ("forward", "m/s", -0.5, 1.0),
        ("sideways", "m/s", -0.3, 0.3),
        ("yaw", "rad/s", -0.8, 0.8),
    ]
    words = ["task=humanoid_walk", "task.commands.forward=[0.35,0.35]", "task.commands.yaw=[0,0]"]
    odd = columns_of(make := make_env(config.resolve([*words, "device=cpu"]), num_envs=1))
    make.close()
    assert odd[0].low == 0  # a robot must be able to stand
    assert odd[0].high >= 0.35
    assert (odd[2].low, odd[2].high) == (-1.0, 1.0)


@pytest.mark.parametrize("task", ["arm_reach", "arm_lift", "cartpole_balance", "ant_run", "hopper_run"])
def test_every_kind_of_task_is_shown_with_its_commands(task, start):
    viewer = start(task, 2)
    for _ in range(3):
        viewer.step()
    viewer.drawing.forces = viewer.drawing.has_contacts
    viewer.drawing.update()
    viewer.panel.refresh()
    steering = viewer.panel.steering
    commands = viewer.env.task.commands
    assert [slider.label.split()[0] for slider in steering.sliders] == list(
        commands.names if commands else ()
    )
    if commands:
        for group in steering.pad:
            for pressed in group.options:
                steering._press(pressed)
        viewer.step()
        assert torch.allclose(viewer.env.ctx.command, viewer.operator.values)
    assert viewer.error == ""


def test_a_pose_command_is_a_unit_quaternion_whatever_the_sliders_say(start):
    viewer = start("arm_reach", 1)
    viewer.panel.steering.set({3: 0.6, 4: 0.0, 5: 0.6, 6: 0.0})
    viewer.step()
    half = math.sqrt(0.5)
    assert viewer.env.ctx.command[0, 3:].tolist() == pytest.approx([half, 0, half, 0], abs=1e-5)


# ---------------------------------------------------------------------------------------- what is drawn


def test_robots_are_drawn_side_by_side_where_the_state_has_them(start):
    viewer = start("humanoid_walk", 3)
    drawing = viewer.drawing
    drawing.follow = False
    drawing.update()
    spots, state = drawing.spots, viewer.env.backend.state.robot
    assert len({tuple(spot) for spot in spots}) == 3
    shown = (group for group in drawing.scene._mesh_groups if group.handle.visible)
    group = next(group for group in shown if drawing.base in group.body_ids.tolist())
    drawn = group.handle.batched_positions.reshape(3, len(group.body_ids), 3)
    base = drawn[:, group.body_ids.tolist().index(drawing.base)]
    assert np.allclose(base, state.base_pos.numpy() + spots, atol=1e-5)
    drawing.spacing = 0.0
    drawing.follow = True
    drawing.update()
    drawn = group.handle.batched_positions.reshape(3, len(group.body_ids), 3)
    base = drawn[:, group.body_ids.tolist().index(drawing.base)]
    assert np.allclose(base[0, :2], 0.0, atol=1e-6)  # the shown robot stays in the middle
    assert np.allclose(base[0, 2], state.base_pos[0, 2])


@pytest.mark.parametrize("task", ["cartpole_balance", "arm_reach"])
def test_what_of_a_robot_cannot_move_stands_beside_every_copy(task, start):
    viewer = start(task, 2)
    drawing = viewer.drawing
    drawing.follow = False
    drawing.update()
    if task == "cartpole_balance":  # the rail is a part of the world in its file
        drawn = drawing._scenery.batched_positions
    else:  # the arm's base is a body that cannot move
        name = viewer.env.scene.first
        from robolearn.envs import mjcf

        base = int(drawing.model.body(mjcf.root_body(viewer.env.scene, name)).id)
        groups = (group for group in drawing.scene._mesh_groups if group.handle.visible)
        group = next(group for group in groups if base in group.body_ids.tolist())
        drawn = group.handle.batched_positions.reshape(2, len(group.body_ids), 3)[:, 0]
    assert np.allclose(drawn[1] - drawn[0], drawing.spots[1] - drawing.spots[0], atol=1e-6)
    assert np.linalg.norm(drawn[1] - drawn[0]) > 0.4


def test_contact_forces_are_those_of_the_state_at_the_feet(start):
    viewer = start("humanoid_walk", 1)
    robot = viewer.env.backend.state.robot
    robot.foot_force[:] = 0.0
    robot.foot_force[0, 0, 2] = viewer.drawing.weight
    for contacts in robot.contacts.values():
        contacts.force[:] = 0.0
    viewer.drawing.forces, viewer.drawing.follow = True, False
    viewer.drawing.update()
    arrow = viewer.drawing.arrows["force"]
    assert arrow.visible
    assert arrow.points.shape == (1, 2, 3)
    tail, tip = arrow.points[0]
    assert np.allclose(tail, robot.foot_pos[0, 0].numpy(), atol=1e-5)
    assert np.allclose(tip - tail, [0, 0, 0.6 * viewer.drawing.size], atol=1e-5)


def test_rewards_in_the_plot_are_those_of_the_env(start):
    viewer = start("cartpole_balance", 2)
    result = viewer.env.step(torch.full((2, 1), 0.3))
    read = viewer.probe.read(1)
    assert read["reward"].sum() * viewer.env.dt == pytest.approx(float(result.reward[1]), rel=1e-5)
    assert read["torque"].shape == (2,)
    assert read["position"].shape == read["target"].shape == (1,)


# ---------------------------------------------------------------------------------------- recordings


def test_without_opengl_a_video_says_so_and_the_viewer_goes_on(run, start, monkeypatch):
    from robolearn.commands.viewer import recording

    def missing(*given, **named):
        raise MissingError("no OpenGL without a display on this machine")

    monkeypatch.setattr(recording, "Renderer", missing)
    viewer = start(run)
    viewer.panel.recording.start()
    viewer.step()
    until(lambda: viewer.panel.recording.active.done)
    viewer.panel.refresh()
    assert "no OpenGL" in viewer.panel.recording.note.content
    assert viewer.panel.recording.active is None
    viewer.step()
    assert viewer.error == ""
    assert [path.name for path in run.iterdir() if path.suffix == ".mp4" or "part" in path.name] == []


def test_a_second_start_does_not_begin_a_second_recording(run, start, monkeypatch):
    from robolearn.commands.viewer import recording

    made = []
    monkeypatch.setattr(recording, "Scene", lambda server, path: made.append(path) or Scene(server, path))
    viewer = start(run)
    viewer.panel.recording.format.value = "Scene (.viser)"
    viewer.panel.recording.start()
    viewer.panel.recording.start()
    assert len(made) == 1


def test_a_video_has_a_frame_for_every_second_step_at_50_hz(run, start):
    from robolearn.simulation.renderer import open_context

    imageio = pytest.importorskip("imageio")
    try:
        open_context(16, 16)[0].free()
    except MissingError as error:
        pytest.skip(str(error))
    viewer = start(run)
    video = Video(viewer.env, run / "out.mp4")
    for _ in range(10):
        viewer.step()
        video.step(0)
    video.stop()
    video.join(PATIENCE)
    assert video.error == ""
    with imageio.get_reader(run / "out.mp4") as reader:
        assert reader.get_meta_data()["fps"] == 25
        assert len(list(reader.iter_data())) == 5


@pytest.mark.parametrize("kind", ["viser", "html"])
def test_a_scene_is_written_for_visers_player(kind, run, start):
    viewer = start(run)
    scene = Scene(viewer.server, run / f"out.{kind}")
    for _ in range(3):
        viewer.step()
        viewer.drawing.update()
        scene.frame(0.02)
    scene.stop()
    scene.join(PATIENCE)
    assert scene.error == ""
    assert scene.seconds == pytest.approx(0.06)
    content = (run / f"out.{kind}").read_bytes()
    assert len(content) > 1000
    assert (b"__VISER_EMBED_DATA__" in content) == (kind == "html")


# ---------------------------------------------------------------------------------------- bundles


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """The shipped walking policy as a bundle."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    words = ["--target", "jetson-thor", "pretrained:humanoid_walk", "--output", str(folder)]
    quick = ["--starts", "8", "--seconds", "0.4", "--measure-seconds", "0"]
    assert main(["export", *words, *quick]) == 0
    return folder


@pytest.mark.slow
def test_a_bundle_drives_the_robots_with_its_own_controller(exported, monkeypatch):
    from robolearn.export.driver import config_of

    env = make_env(config_of(exported, ["device=cpu"]), num_envs=2)
    server = serving.open_server()
    try:
        viewer = Viewer(server, env, BundleSource(env, exported), "bundle", exported)
        assert "onnxruntime" in viewer.source.name
        for _ in range(50):
            viewer.step()
        assert viewer.error == ""
        runtime = viewer.source.driver._runtimes[1]
        order = [runtime.actuators.index(actuator.joint) for actuator in env.robot.actuators]
        assert np.allclose(env.state.episode.action[1], runtime.action[order])
        assert float(env.state.episode.time.min()) == pytest.approx(1.0)  # nobody fell
        viewer.panel.steering.set({0: 0.5})
        viewer.step()
        viewer.step()
        assert runtime.command[0] == pytest.approx(0.5)
    finally:
        serving.stop(server)
        env.close()


@pytest.mark.slow
def test_play_shows_a_bundle_and_refuses_a_damaged_one(exported, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(Viewer, "run", lambda self: seen.append(type(self.source).__name__))
    assert main(["play", str(exported), "device=cpu"]) == 0
    assert seen == ["BundleSource"]
    damaged = Path(shutil.copytree(exported, tmp_path / "damaged"))
    runtime = damaged / "runtime.py"
    runtime.write_text(runtime.read_text() + "\n# changed\n")
    capsys.readouterr()
    code, said = refused(capsys, damaged)
    assert code == 2
    assert "runtime.py" in said
    code, said = refused(capsys, exported, "--follow")
    assert code == 2
