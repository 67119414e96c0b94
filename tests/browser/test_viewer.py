"""The viewer of `robolearn play` in a real browser, on a desktop and on a phone."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robolearn.learners import saved
from robolearn.training.build import make_env
from robolearn.training.runs import open_run

pytest.importorskip("mjviser")

from robolearn.commands.viewer import server as serving
from robolearn.commands.viewer.source import RunSource
from robolearn.commands.viewer.viewer import Viewer

SCREENS = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
PATIENCE = 60.0
"""A browser that draws on the CPU of a busy machine takes long [s]; nothing is asserted about it."""

HARMLESS = (
    "Unable to preventDefault inside passive event listener",
)  # viser's client listens to wheel and touch passively; Chromium says that the page may then scroll, too


@pytest.fixture(scope="module")
def viewer(tmp_path_factory) -> Iterator[Viewer]:
    """A viewer of two robots with the shipped walking policy, in a run folder with two more checkpoints."""
    folder = tmp_path_factory.mktemp("viewed") / "run"
    (folder / "checkpoints").mkdir(parents=True)
    shipped = saved.PRETRAINED / "humanoid_walk"
    shutil.copy(shipped / "config.yaml", folder)
    for name in ("latest.pt", "checkpoints/iteration_000100.pt", "checkpoints/iteration_000200.pt"):
        shutil.copy(shipped / "policy.pt", folder / name)
    found = open_run(str(folder), ["device=cpu"])
    env = make_env(found.config, num_envs=2)
    server = serving.open_server()
    # Cheap to draw without a GPU: no shadows, and still unless a test has it move.
    server.scene.configure_default_lights(True, cast_shadow=False)
    made = Viewer(server, env, RunSource(env, folder / "latest.pt", folder), "test", folder)
    made.panel.pause(True)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.end()
    thread.join()
    serving.stop(server)
    env.close()


@pytest.fixture(scope="module", params=list(SCREENS))
def page(request, chromium, viewer) -> Iterator[Any]:
    """The viewer's page on a screen; nothing may have gone wrong in the browser by the end."""
    context = chromium.new_context(**SCREENS[request.param])
    opened = context.new_page()
    opened.set_default_timeout(1000 * PATIENCE)
    opened.said = []
    opened.on("console", lambda m: opened.said.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("requestfailed", lambda request: opened.said.append(request.url))
    opened.goto(f"http://localhost:{viewer.server.get_port()}")
    opened.get_by_role("tab", name="Drive").wait_for()
    until(lambda: viewer.watched)
    yield opened
    context.close()
    until(lambda: not viewer.watched)


@pytest.fixture(autouse=True)
def _nothing_goes_wrong(page, viewer) -> Iterator[None]:
    yield
    assert [text for text in page.said if not any(known in text for known in HARMLESS)] == []
    assert viewer.error == ""


def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.05)


def settle(viewer: Viewer) -> None:
    """Wait until the loop has done all work that was handed in before."""
    done = threading.Event()
    viewer.do(done.set)
    assert done.wait(PATIENCE)


def simulate(viewer: Viewer, count: int) -> None:
    """Control steps in the loop's thread, as fast as they go."""

    def run() -> None:
        for _ in range(count):
            viewer.step()

    viewer.do(run)
    settle(viewer)


def row(page, label: str) -> Any:
    """The row of the panel with a label; viser breaks labels with <wbr>."""
    return page.locator(f"xpath=//label[normalize-space(.)='{label}']/ancestor::*[3]")


def press(page, name: str) -> None:
    button = page.get_by_role("button", name=name, exact=True)
    button.scroll_into_view_if_needed()
    button.click()


def tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def write(page, label: str, value: str) -> None:
    """Type a value into the number beside a slider."""
    field = row(page, label).locator("input[type=text]")
    field.scroll_into_view_if_needed()
    field.fill(value)
    field.press("Enter")


def picture(page) -> np.ndarray:
    """The page's pixels (H, W, 3)."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def test_the_robots_are_drawn(page, viewer):
    # The humanoid's joints are black; floor and background are not. Above the panel of a phone, left of a desktop's.
    phone = page.viewport_size["width"] < 640

    def dark() -> int:
        whole = picture(page)
        return int(((whole[140:335] if phone else whole[:, :900]).max(axis=2) < 45).sum())

    until(lambda: dark() > 300)


def test_the_simulation_pauses_and_goes_on(page, viewer):
    press(page, "Play")
    until(lambda: not viewer.paused)
    begin = viewer.steps
    until(lambda: viewer.steps > begin + 10)
    press(page, "Pause")
    until(lambda: viewer.paused)
    settle(viewer)
    begin = viewer.steps
    press(page, "Step")
    until(lambda: viewer.steps == begin + 1)
    press(page, "Reset")
    until(lambda: float(viewer.env.state.episode.time.max()) == 0)
    write(page, "Speed", "0.5")
    until(lambda: viewer.speed == 0.5)


def test_a_slider_changes_the_command_and_then_the_motion(page, viewer):
    tab(page, "Drive")
    write(page, "forward [m/s]", "0.8")
    until(lambda: bool(viewer.operator.mine.all()))
    write(page, "sideways [m/s]", "0")
    write(page, "yaw [rad/s]", "0")
    until(lambda: viewer.operator.values[0].tolist() == pytest.approx([0.8, 0.0, 0.0]))
    simulate(viewer, 100)  # 2 s
    env, speeds = viewer.env, []
    assert torch.allclose(env.ctx.command, torch.tensor([0.8, 0.0, 0.0]))
    for _ in range(10):  # a second: a walking robot is slower and faster within each stride
        simulate(viewer, 5)
        speeds.append(env.backend.state.robot.base_lin_vel[:, 0].clone())
    assert float(torch.stack(speeds).mean(dim=0).min()) > 0.4
    # The thumb of the slider moves with the keys; the commands follow.
    thumb = row(page, "forward [m/s]").get_by_role("slider")
    thumb.focus()
    for _ in range(10):
        thumb.press("ArrowLeft")
    until(lambda: float(viewer.operator.values[0, 0]) < 0.65)
    row(page, "My commands").get_by_role("checkbox").uncheck()
    until(lambda: not bool(viewer.operator.mine.any()))
    simulate(viewer, 2)
    assert not torch.allclose(env.ctx.command[0], viewer.operator.values[0])


def test_the_pad_changes_a_command_by_a_tenth_of_its_range(page, viewer):
    tab(page, "Drive")
    press(page, "■ Zero")
    until(lambda: bool(viewer.operator.mine.all()))
    settle(viewer)
    for name in ("▲", "◀", "↻"):
        press(page, name)
    # Ranges -0.5..1, -0.3..0.3 and -0.8..0.8.
    wanted = torch.tensor([0.15, 0.06, -0.16])
    until(lambda: torch.allclose(viewer.operator.values[0], wanted, atol=0.011))
    press(page, "■ Zero")
    until(lambda: not bool(viewer.operator.values.any()))


def test_a_push_changes_the_velocity_at_once(page, viewer):
    tab(page, "Drive")
    simulate(viewer, 1)
    robot = viewer.env.backend.state.robot
    before = robot.base_lin_vel.clone()
    press(page, "left")
    write(page, "Size [m/s]", "2")
    until(lambda: viewer.panel.steering.speed.value == 2)
    press(page, "Push")
    settle(viewer)
    count = viewer.steps
    press(page, "Step")
    until(lambda: viewer.steps == count + 1)
    settle(viewer)
    jump = robot.base_lin_vel - before
    # 2 m/s to the left, less what gravity and the legs do in one control step.
    assert float(jump[:, 1].min()) > 1.2
    assert float(jump[:, 0].abs().max()) < 1.0
    press(page, "Reset")
    settle(viewer)


def test_another_checkpoint_is_chosen_from_the_list(page, viewer):
    tab(page, "Policy")
    for name in ("iteration_000100.pt", "iteration_000200.pt"):
        row(page, "Checkpoint").get_by_role("combobox").click()
        page.get_by_role("option", name=name).click()
        until(lambda name=name: viewer.source.name == name)
    until(lambda: "iteration_000200.pt" in page.inner_text("body"))


def test_the_plots_show_curves(page, viewer):
    tab(page, "Plots")
    simulate(viewer, 100)
    until(lambda: page.locator(".uplot canvas").count() >= 2)
    lengths = "() => Object.values(window.__viserTestpoints.uplots).map(u => u.chart.data[0].length)"
    until(lambda: min(page.evaluate(lengths), default=0) > 20)
    ink = """() => [...document.querySelectorAll('.uplot canvas')].filter(c => c.width > 0).map(c => {
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0;
        for (let i = 0; i < d.length; i += 4)
            if (d[i + 3] > 100 && Math.max(d[i], d[i+1], d[i+2]) - Math.min(d[i], d[i+1], d[i+2]) > 60) n++;
        return n;
    })"""
    until(lambda: min(page.evaluate(ink)) > 100)  # coloured pixels: axes and grid are grey


def test_a_torque_and_an_observation_can_be_chosen(page, viewer):
    tab(page, "Plots")
    for folder in ("Torques", "Observations"):
        title = page.get_by_text(folder, exact=True)
        title.scroll_into_view_if_needed()
        title.click()
    until(lambda: page.locator(".uplot canvas").count() >= 4)
    choice = row(page, "Item").get_by_role("combobox")
    choice.scroll_into_view_if_needed()
    choice.click()
    page.get_by_role("option", name="joint_vel_rel", exact=True).first.click()
    width = next(width for item, width in viewer.env.columns["policy"] if item.name == "joint_vel_rel")
    charts = "() => Object.values(window.__viserTestpoints.uplots).map(u => u.chart.series.length)"
    until(lambda: 1 + min(width, 12) in page.evaluate(charts))


def test_every_control_is_on_the_screen(page, viewer):
    width = page.viewport_size["width"]
    for name in ("Drive", "View", "Policy", "Plots", "Record"):
        tab(page, name)
        page.wait_for_timeout(300)
        boxes = page.evaluate(
            """() => [...document.querySelectorAll('button, input:not([type=hidden]), label, [role=slider]')]
            .filter(e => e.checkVisibility()).map(e => {
                const b = e.getBoundingClientRect();
                return [e.textContent || e.id, b.left, b.right];
            })"""
        )
        assert len(boxes) > 5
        for text, left, right in boxes:
            assert left >= 0, (name, text)
            assert right <= width, (name, text)
        cut = page.evaluate(
            """() => [...document.querySelectorAll('label, button, button *, .mantine-Tabs-tab')]
            .filter(e => e.checkVisibility() && getComputedStyle(e).overflowX != 'visible'
                         && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""
        )
        assert cut == []


def test_the_ball_at_the_tip_of_the_command_is_dragged(page, viewer):
    if page.viewport_size["width"] < 640:
        pytest.skip("a mouse; on a phone the ball may be below the panel")
    tab(page, "Drive")
    press(page, "■ Zero")
    press(page, "Reset")
    frames = viewer.drawing.frames
    simulate(viewer, 1)
    until(lambda: viewer.drawing.frames > frames)
    knob = viewer.panel.steering.handle
    (client,) = viewer.server.get_clients().values()

    def drag() -> bool:
        # On a slow machine the page may not have drawn the ball yet where it is taken hold of.
        page.wait_for_timeout(1000)
        x, y = on_screen(client.camera, np.array(knob.ball.position))
        page.mouse.move(x, y)
        page.mouse.down()
        for i in range(1, 9):
            page.mouse.move(x + 12 * i, y + 6 * i)
            page.wait_for_timeout(100)
        page.mouse.up()
        page.wait_for_timeout(1000)
        return float(viewer.operator.values[0, :2].abs().max()) > 0.1

    until(drag)
    settle(viewer)
    # The ball is where the pointer is, as far as the ranges of the commands let it.
    assert bool(viewer.operator.mine.all())


def on_screen(camera: Any, point: np.ndarray) -> tuple[float, float]:
    """Where a point of the world is on the page, of a pinhole camera that looks along its z axis with y down."""
    w, x, y, z = camera.wxyz
    turn = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    right, down, ahead = turn.T @ (point - camera.position)
    focal = camera.image_height / 2 / np.tan(camera.fov / 2)
    return camera.image_width / 2 + focal * right / ahead, camera.image_height / 2 + focal * down / ahead


def test_a_recording_of_the_scene_is_written(page, viewer):
    tab(page, "Record")
    row(page, "Format").get_by_role("combobox").click()
    page.get_by_role("option", name="Scene (.viser)").click()
    press(page, "Record")
    until(lambda: viewer.panel.recording.active is not None)
    for _ in range(10):
        frames = viewer.drawing.frames
        simulate(viewer, 3)
        until(lambda frames=frames: viewer.drawing.frames > frames)
    press(page, "Stop")
    until(lambda: viewer.panel.recording.last is not None)
    path = viewer.panel.recording.last
    assert path.suffix == ".viser"
    assert path.parent == Path(viewer.folder)
    assert path.stat().st_size > 10_000
    with page.expect_download() as downloading:
        press(page, "Download")
        save = page.get_by_role("link", name=path.name)
        save.wait_for()
        save.click()
    assert Path(downloading.value.path()).stat().st_size == path.stat().st_size
    viewer.panel.recording.last = None
