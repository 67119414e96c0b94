"""`robolearn play`: a policy to look at. Headless video today; the browser viewer is not there yet.

The MJCF is posed from State, so every backend's runs look the same and no backend renders.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from robolearn.config import OWN
from robolearn.env import Env
from robolearn.envs.backend import State
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, MissingError, one_line, quote
from robolearn.files import replacing
from robolearn.make import make_env
from robolearn.runs import Act, forget, load_policy, open_run, require_writable
from robolearn.tasks.task import Ratio
from robolearn.train import set_threads

SIZE = (1280, 720)
"""Width and height of a video [pixels]."""

FILE_NAME = "play.mp4"
CONTAINERS = (".mp4", ".mov", ".mkv")

PLATFORMS = ("egl", "osmesa")
"""How OpenGL draws without a display, in the order tried: EGL (a GPU, or Mesa in software), then OSMesa."""

ARROWS = {"command": (0.2, 0.55, 1.0, 1.0), "actual": (1.0, 0.55, 0.1, 1.0)}
"""Colours of the arrows on the floor: the commanded velocity and the robot's own; a metre for 1 m/s."""


def play(
    run: str | None,
    overrides: Iterable[str] = (),
    video: Path | None = None,
    seconds: float = 20.0,
    output: Path | None = None,
) -> Path:
    """Write a video of one robot under a run's policy, with whatever commands its task draws.

    Args:
        run: see `robolearn.runs.open_run`.
        overrides: settings to change, in Hydra's grammar; one robot is simulated whatever `num_envs` is.
        video: the file; play.mp4 without it.
        seconds: length of the video [s].
        output: folder for it; the run's own for play.mp4 and the current one for `video` without it.

    Returns:
        The file.

    Raises:
        ConfigError: the run cannot be used so, or the file cannot be written.
        MissingError: no renderer or no encoder on this machine.
        RunFailed: a term was not finite, or the simulator has dropped part of the physics.
    """
    if video is not None and video.suffix.lower() not in CONTAINERS:
        raise ConfigError(
            f"--video {quote(str(video), 120)}: name a file that ends in {', '.join(CONTAINERS)}"
        )
    if not 0 < seconds <= 3600:
        raise ConfigError(f"--seconds {seconds:g} is not within 0 to 3600")
    found = open_run(run, overrides)
    if video is None:
        path = (output or found.folder) / FILE_NAME
        print("the browser viewer is not there yet: writing a video instead")
    else:
        path = output / video if output else video
    require_writable(path.parent)
    set_threads(found.config)
    policy = load_policy(found)
    if found.config.backend_name == OWN:
        from robolearn.film import film_external

        film_external(found, policy, path, seconds)
        print(f"wrote {path}")
        return path
    env = make_env(found.config, num_envs=1)
    try:
        frames = max(1, round(seconds / env.ctx.dt))
        print(f"{found.config.task_name}, iteration {found.iteration}: {frames} frames, {SIZE[0]}x{SIZE[1]}")
        write_video(path, film(env, policy, frames), 1 / env.ctx.dt, frames)
    finally:
        env.close()
    print(f"wrote {path}")
    return path


@torch.no_grad()
def film(env: Env, policy: Act, frames: int) -> Iterator[np.ndarray]:
    """Frames (H, W, 3) uint8 of environment 0, one a control step; episodes that end simply begin anew.

    Raises:
        MissingError: nothing on this machine renders.
        RunFailed: a term was not finite, or the simulator has dropped part of the physics.
    """
    env.reset()
    forget(policy)
    episode = 1
    smooth: np.ndarray | None = None
    with Renderer(env.robot, *SIZE, backend=env.backend.capabilities.name) as renderer:
        for frame in range(frames):
            env.check()  # before it is drawn: a GPU keeps to itself what went wrong until it is asked
            state = env.backend.state
            lines = [f"{float(env.ctx.episode_time[0]):.2f} s   episode {episode}"]
            arrows: dict[str, np.ndarray] = {}
            if env.task.commands is not None:
                wanted, actual = command_of(env), velocity_of(state)
                # At 50 Hz the sway of every step would make the number unreadable.
                smooth = actual if smooth is None else smooth + 0.08 * (actual - smooth)
                lines += [_velocity("command", wanted), _velocity("actual", smooth)]
                arrows = {"command": wanted[:2], "actual": smooth[:2]}
            else:
                for name, value in env.task.metrics(state, env.ctx).items():
                    each = value.each() if isinstance(value, Ratio) else value
                    lines.append(f"{name.replace('_', ' ')} {float(each[0]):.3f}")
            yield caption(renderer.draw(state, arrows), lines)
            if frame + 1 == frames:
                break
            done = env.step(policy(env.observations["policy"])).done
            forget(policy, done)
            if bool(done[0]):
                episode, smooth = episode + 1, None


def command_of(env: Env) -> np.ndarray:
    """What environment 0 is asked to do: forward, sideways [m/s], yaw rate [rad/s]."""
    return _row(env.ctx.command)


def velocity_of(state: State) -> np.ndarray:
    """The same of what the robot in environment 0 does, in base axes."""
    return np.array([*_row(state.robot.base_lin_vel)[:2], _row(state.robot.base_ang_vel)[2]])


def _row(values: torch.Tensor) -> np.ndarray:
    """Environment 0 of a tensor (N, ...), on the CPU."""
    return values[0].double().cpu().numpy()


def _velocity(label: str, values: np.ndarray) -> str:
    forward, sideways, yaw = values
    return f"{label:<8} forward {forward:+.2f} m/s   sideways {sideways:+.2f} m/s   yaw {yaw:+.2f} rad/s"


# ---------------------------------------------------------------------- drawing


class Renderer:
    """Draws one environment's State off screen; a context manager, so that OpenGL's memory is freed.

    MuJoCo's own renderer takes its OpenGL platform from MUJOCO_GL where `mujoco` is imported; by then
    nobody has asked for a video. So the OpenGL context is made here, on the first platform that works.
    """

    def __init__(self, robot: Robot, width: int, height: int, backend: str = "mujoco") -> None:
        """`backend` names the solver options in robot.yaml; they change nothing that is seen.

        Raises:
            MissingError: no platform works; the message says what to install.
        """
        try:
            import mujoco

            from robolearn.envs import mjcf
        except ImportError as error:
            raise MissingError(f"a video needs MuJoCo ({error}): pip install 'robolearn[mujoco]'") from error
        options = backend if backend in robot.solver else next(iter(robot.solver))
        self.model = model = mjcf.build_model(robot, options, visual=True)
        self.data = mujoco.MjData(model)
        self._base = int(model.jnt_qposadr[model.body(robot.base).jntadr[0]]) if robot.base else None
        self._joints = [int(model.joint(name).qposadr[0]) for name in robot.joints]
        self._drawn: Any = None
        self.context, on_cpu = open_context(width, height)
        try:
            if on_cpu:
                # A sixth of the time, for a picture that lacks its reflection and little else.
                quality = model.vis.quality
                quality.shadowsize, quality.offsamples = min(quality.shadowsize, 2048), 0
                quality.numslices, quality.numstacks = min(quality.numslices, 24), min(quality.numstacks, 24)
            model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
            model.vis.global_.offheight = max(model.vis.global_.offheight, height)
            self._drawn = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150.value)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._drawn)
        except BaseException:
            self.close()
            raise
        self.scene = mujoco.MjvScene(model, maxgeom=2000)
        self.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = not on_cpu
        self.options = mujoco.MjvOption()
        self.rectangle = mujoco.MjrRect(0, 0, width, height)
        self.camera = mujoco.MjvCamera()
        track = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA.value, "track")
        if track >= 0:
            self.camera.type, self.camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, track
        else:
            mujoco.mjv_defaultFreeCamera(model, self.camera)
            self.camera.azimuth, self.camera.elevation = 140, -15

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything of OpenGL's."""
        if self._drawn is not None:
            self._drawn.free()
            self._drawn = None
        if self.context is not None:
            self.context.free()
            self.context = None

    def draw(self, state: State, arrows: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Environment 0 of `state` as (H, W, 3) uint8, with arrows (2,) [m/s] in base axes on the floor."""
        import mujoco

        robot, qpos = state.robot, self.data.qpos
        if self._base is not None:
            qpos[self._base : self._base + 3] = _row(robot.base_pos)
            qpos[self._base + 3 : self._base + 7] = _row(robot.base_quat)
        qpos[self._joints] = _row(robot.joint_pos)
        # What drawing needs of mj_forward, and no dynamics.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        if self._base is not None and self.camera.type == mujoco.mjtCamera.mjCAMERA_FREE.value:
            self.camera.lookat[:] = _row(robot.base_pos)
        every = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self.model, self.data, self.options, None, self.camera, every, self.scene)
        for name, velocity in (arrows or {}).items():
            self._arrow(state, velocity, ARROWS[name])
        pixels = np.empty((self.rectangle.height, self.rectangle.width, 3), np.uint8)
        self.context.make_current()
        mujoco.mjr_render(self.rectangle, self.scene, self._drawn)
        mujoco.mjr_readPixels(pixels, None, self.rectangle, self._drawn)
        return pixels[::-1]  # OpenGL's first row is the lowest

    def _arrow(self, state: State, velocity: np.ndarray, colour: tuple[float, ...]) -> None:
        import mujoco

        if self.scene.ngeom >= self.scene.maxgeom or np.linalg.norm(velocity) < 0.05:
            return
        w, x, y, z = _row(state.robot.base_quat)
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        forward, left = np.array([math.cos(yaw), math.sin(yaw)]), np.array([-math.sin(yaw), math.cos(yaw)])
        tail = np.array([*_row(state.robot.base_pos)[:2], 0.02])
        tip = tail + np.array([*(velocity[0] * forward + velocity[1] * left), 0.0])
        geom = self.scene.geoms[self.scene.ngeom]
        arrow = mujoco.mjtGeom.mjGEOM_ARROW
        mujoco.mjv_initGeom(geom, arrow, np.zeros(3), np.zeros(3), np.zeros(9), np.array(colour, np.float32))
        mujoco.mjv_connector(geom, arrow, 0.015, tail, tip)
        self.scene.ngeom += 1


def open_context(width: int, height: int) -> tuple[Any, bool]:
    """A current OpenGL context without a display, and whether the CPU draws in it.

    MUJOCO_GL=egl or =osmesa asks for that platform alone.

    Raises:
        MissingError: none can be made.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower().strip()
    problems = []
    for platform in (asked,) if asked in PLATFORMS else PLATFORMS:
        context = None
        try:
            context = importlib.import_module(f"mujoco.{platform}").GLContext(width, height)
            context.make_current()
            name = importlib.import_module("OpenGL.GL").glGetString(0x1F01)  # GL_RENDERER
            return context, any(word in name.lower() for word in (b"llvmpipe", b"softpipe", b"swrast"))
        except Exception as error:  # a missing library shows as almost any error, from ctypes to PyOpenGL
            problems.append(f"{platform}: {one_line(str(error), 60) or type(error).__name__}")
            if context is not None:
                context.free()
            _forget_opengl()
    raise MissingError(
        "nothing on this machine renders without a display; apt install libegl1 libgl1 (or libosmesa6 libgl1). "
        + "; ".join(problems)
    )


def _forget_opengl() -> None:
    """PyOpenGL settles on one platform where it is imported; forgotten, it can settle on another."""
    os.environ.pop("PYOPENGL_PLATFORM", None)
    for name in list(sys.modules):
        if name.partition(".")[0] == "OpenGL" or name in {
            "mujoco.egl.egl_ext",
            *(f"mujoco.{p}" for p in PLATFORMS),
        }:
            del sys.modules[name]


def caption(pixels: np.ndarray, lines: list[str]) -> np.ndarray:
    """The picture (H, W, 3) uint8 with lines of text in its lower left corner, on a darkened ground."""
    from PIL import Image, ImageDraw, ImageFont

    height = pixels.shape[0]
    size = max(10, height // 36)
    font = ImageFont.load_default(size)
    step, margin = round(1.4 * size), size
    top = height - margin - step * len(lines)
    width = round(max(font.getlength(line) for line in lines)) + 2 * margin
    out = pixels.copy()
    out[top - margin // 2 : height - margin // 2, margin // 2 : margin // 2 + width] //= 2
    picture = Image.fromarray(out)
    drawn = ImageDraw.Draw(picture)
    for i, line in enumerate(lines):
        red, green, blue, _ = ARROWS.get(line.split()[0], (0.92, 0.92, 0.92, 1))
        colour = (round(255 * red), round(255 * green), round(255 * blue))
        drawn.text((margin, top + i * step), line, fill=colour, font=font)
    return np.asarray(picture)


# ---------------------------------------------------------------------- encoding


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float, total: int) -> None:
    """Encode frames (H, W, 3) uint8 as H.264, whole or not at all; shows progress on a terminal.

    Raises:
        ConfigError: the file cannot be written.
        MissingError: there is no encoder.
    """
    from rich.progress import track

    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]
        import PIL  # noqa: F401

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"a video needs an encoder ({error}): pip install imageio-ffmpeg pillow"
        ) from error
    quality = ["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart"]
    rest = iter(frames)
    first = next(rest)  # a machine without a renderer fails here, before there is a file
    size = (first.shape[1], first.shape[0])
    with replacing(path) as part:
        writer = imageio_ffmpeg.write_frames(
            str(part), size, fps=fps, codec="libx264", quality=None, output_params=quality
        )
        try:
            writer.send(None)
            for frame in track(chain((first,), rest), "video", total, disable=not sys.stderr.isatty()):
                writer.send(np.ascontiguousarray(frame))
        finally:
            writer.close()
