"""Renderer: draws a State of any backend off screen, with MuJoCo."""

from __future__ import annotations

import importlib
import math
import os
import sys
from types import TracebackType
from typing import Any

import numpy as np
import torch

from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import State
from robolearn.errors import MissingError, one_line
from robolearn.simulation.coarse import coarsen
from robolearn.simulation.ground import ground_of
from robolearn.simulation.window import Window

PLATFORMS = ("egl", "osmesa")
"""OpenGL platforms without a display, in the order tried: EGL (a GPU, or Mesa in software), then OSMesa."""


ARROWS = {"command": (0.2, 0.55, 1.0, 1.0), "actual": (1.0, 0.55, 0.1, 1.0)}
"""Colours of the arrows on the floor: commanded and actual velocity. They are 1 m long for 1 m/s beside a robot of a
person's size, and shorter beside a smaller one."""
PUSHED = (1.0, 0.25, 0.45, 1.0)
"""Colour of the arrow of a push."""

TALL_BASE = 0.7
"""Height of the base [m] of a robot of a person's size."""

COARSE = 600
"""Pictures of fewer lines than this are drawn with coarser shapes and shadows on a CPU [pixels]."""


class Renderer:
    """Draws the State of one environment off screen; a context manager that frees OpenGL's resources.

    `mujoco.Renderer` takes the OpenGL platform that MUJOCO_GL names when `mujoco` is imported, which is too early. So
    the OpenGL context is created here, on the first platform that works.
    """

    def __init__(
        self, scene: Scene | Robot, width: int, height: int, backend: str = "mujoco", lift: float = 0.0
    ) -> None:
        """Load the visual model of a scene.

        Args:
            width, height: of the pictures [pixels].
            backend: names solver options of robot.yaml, which do not affect drawing.
            lift: how far the robot that the camera follows is moved up in the picture, as a share of its height.

        Raises:
            MissingError: no OpenGL platform works; the message says what to install.
        """
        try:
            import mujoco

            from robolearn.envs import mjcf
            from robolearn.simulation.posed import Placing
        except ImportError as error:
            raise MissingError(f"a video needs MuJoCo ({error}): pip install 'robolearn[mujoco]'") from error
        scene = Scene.of(scene)
        self.model = model = mjcf.build_model(scene, backend, visual=True)
        self.data = mujoco.MjData(model)
        self._placing = Placing(scene, model)
        self._ground = ground_of(scene)
        self._window = (
            None if scene.terrain is None or scene.terrain.flat else Window(model, scene.terrain.heights)
        )
        free = scene.robot.base is not None
        self._follows = free and scene.ring is None
        self._scale = min(1.0, scene.robot.home_height / TALL_BASE) if free else 1.0
        self._drawn: Any = None
        pixel = self._pixel(height)
        self.context, on_cpu = open_context(width, height)
        try:
            if on_cpu:
                # Draws ten times as fast, without reflections and with slightly coarser shapes and shadows.
                quality = model.vis.quality
                shadow, slices, stacks = (1024, 16, 8) if height < COARSE else (2048, 24, 16)
                quality.shadowsize, quality.offsamples = min(quality.shadowsize, shadow), 0
                quality.numslices = min(quality.numslices, slices)
                quality.numstacks = min(quality.numstacks, stacks)
                coarsen(model, pixel)
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
        if lift and track >= 0 and self._follows:
            below = lift * height * pixel * model.cam_mat0[track].reshape(3, 3)[:, 1]
            model.cam_pos0[track] -= below
            model.cam_poscom0[track] -= below
        self._aims = [np.array(places) for places in self._turned()]

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free OpenGL's resources."""
        if self._drawn is not None:
            self._drawn.free()
            self._drawn = None
        if self.context is not None:
            self.context.free()
            self.context = None

    def face(self, heading: float) -> None:
        """Turn the camera and the lights that follow the robot about the vertical, by `heading` [rad], so that a robot
        that faces that way is seen as one that faces along x is otherwise. Does nothing where they follow no robot."""
        if not self._follows:
            return
        c, s = math.cos(heading), math.sin(heading)
        turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])
        for place, original in zip(self._turned(), self._aims, strict=True):
            # The columns of a vector (3,), or of a matrix (9,) by rows.
            place[:] = (turn @ original.reshape(-1, 3, place.shape[-1] // 3)).reshape(place.shape)

    def _turned(self) -> list[np.ndarray]:
        """Positions and directions of the cameras and lights that follow the robot, as the model's own memory."""
        model = self.model
        return [
            *(model.cam_pos0, model.cam_poscom0, model.cam_mat0),
            *(model.light_pos0, model.light_poscom0, model.light_dir0),
        ]

    def _pixel(self, height: int) -> float:
        """Size of a pixel [m] at the body that is nearest to the camera, with the robot at the origin."""
        import mujoco

        model, data = self.model, self.data
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA.value, "track")
        if camera >= 0:
            distance = float(np.linalg.norm(data.xpos[1:] - data.cam_xpos[camera], axis=1).min())
            view = float(model.cam_fovy[camera])
        else:
            distance, view = 1.5 * float(model.stat.extent), float(model.vis.global_.fovy)
        return 2 * distance * math.tan(math.radians(view) / 2) / height

    def draw(
        self,
        state: State,
        arrows: dict[str, np.ndarray] | None = None,
        goal: np.ndarray | None = None,
        push: np.ndarray | None = None,
        index: int = 0,
    ) -> np.ndarray:
        """Environment `index` of `state` as (H, W, 3) uint8, with arrows of velocities (2,) [m/s] in base axes, the
        pose that a command asks for: `goal` (3,) position or (7,) with its orientation, in the world, and a `push` of
        the robot's base (3,) [m/s] in world axes."""
        import mujoco

        self.data.qpos[:] = self._placing.qpos(state, slice(index, index + 1))[0]
        origin = np.zeros(3) if state.origin is None else row(state.origin, index)
        place = row(state.robot.base_pos, index) + origin
        if self._window is not None and self._window.follow(place[:2]):
            self.context.make_current()
            mujoco.mjr_uploadHField(self.model, self._drawn, 0)
        # The parts of mj_forward that drawing needs, without dynamics.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        if self._follows and self.camera.type == mujoco.mjtCamera.mjCAMERA_FREE.value:
            self.camera.lookat[:] = place
        every = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self.model, self.data, self.options, None, self.camera, every, self.scene)
        base = place, row(state.robot.base_quat, index)
        for i, (name, velocity) in enumerate((arrows or {}).items()):
            self._on_floor(*base, velocity, ARROWS[name], i)
        if push is not None:
            self._push(base[0], push)
        if goal is not None:
            self._mark(np.concatenate((goal[:3] + origin, goal[3:])))
        pixels = np.empty((self.rectangle.height, self.rectangle.width, 3), np.uint8)
        self.context.make_current()
        mujoco.mjr_render(self.rectangle, self.scene, self._drawn)
        mujoco.mjr_readPixels(pixels, None, self.rectangle, self._drawn)
        return pixels[::-1]  # OpenGL's first row is at the bottom

    def _mark(self, goal: np.ndarray) -> None:
        """Draw a ball at a position, with three short axes where the goal has an orientation."""
        import mujoco

        shapes = mujoco.mjtGeom
        self._add(shapes.mjGEOM_SPHERE, np.full(3, 0.015), goal[:3], np.eye(3), (0.2, 0.55, 1.0, 0.6))
        if len(goal) < 7:
            return
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, goal[3:7])
        axes = turn.reshape(3, 3)
        for axis in range(3):
            # A capsule lies along its z axis: turn that onto the axis to be drawn.
            along = np.roll(axes, 2 - axis, axis=1)
            colour = tuple(0.9 if i == axis else 0.15 for i in range(3))
            self._add(
                shapes.mjGEOM_CAPSULE,
                np.array([0.004, 0.004, 0.03]),
                goal[:3] + 0.03 * axes[:, axis],
                along,
                (*colour, 0.8),
            )

    def _add(
        self, shape: Any, size: np.ndarray, pos: np.ndarray, axes: np.ndarray, colour: tuple[float, ...]
    ) -> None:
        import mujoco

        if self.scene.ngeom < self.scene.maxgeom:
            geom = self.scene.geoms[self.scene.ngeom]
            mujoco.mjv_initGeom(geom, shape, size, pos, axes.flatten(), np.array(colour, np.float32))
            self.scene.ngeom += 1

    def _on_floor(
        self, pos: np.ndarray, quat: np.ndarray, velocity: np.ndarray, colour: tuple[float, ...], i: int
    ) -> None:
        """Draw the i-th arrow under a base; each lies on the one before and is thinner, so that all can be seen."""
        if np.linalg.norm(velocity) < 0.05:
            return
        w, x, y, z = quat
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        forward, left = np.array([math.cos(yaw), math.sin(yaw)]), np.array([-math.sin(yaw), math.cos(yaw)])
        floor = self._ground(pos[0], pos[1])
        tail = np.array([*pos[:2], floor + (0.02 + 0.025 * i) * self._scale])
        tip = tail + self._scale * np.array([*(velocity[0] * forward + velocity[1] * left), 0.0])
        self._arrow(tail, tip, (0.02 - 0.008 * i) * self._scale, colour)

    def _push(self, pos: np.ndarray, jump: np.ndarray) -> None:
        """Draw a level arrow that ends at the base, from where it is pushed; longer for a harder push."""
        jump = np.array([*jump[:2], 0.0])
        size = float(np.linalg.norm(jump))
        if size:
            tip = pos - 0.15 * self._scale * jump / size
            length = self._scale * (0.4 + 0.4 * min(size, 2.0))
            self._arrow(tip - length * jump / size, tip, 0.025 * self._scale, PUSHED)

    def _arrow(self, tail: np.ndarray, tip: np.ndarray, radius: float, colour: tuple[float, ...]) -> None:
        import mujoco

        if self.scene.ngeom >= self.scene.maxgeom:
            return
        geom = self.scene.geoms[self.scene.ngeom]
        arrow = mujoco.mjtGeom.mjGEOM_ARROW
        mujoco.mjv_initGeom(geom, arrow, np.zeros(3), np.zeros(3), np.zeros(9), np.array(colour, np.float32))
        mujoco.mjv_connector(geom, arrow, radius, tail, tip)
        self.scene.ngeom += 1


def open_context(width: int, height: int) -> tuple[Any, bool]:
    """A current OpenGL context without a display, and whether it draws on the CPU.

    With MUJOCO_GL=egl or =osmesa only that platform is tried.

    Raises:
        MissingError: no platform works.
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
        except Exception as error:  # a missing library raises almost any error, in ctypes or PyOpenGL
            problems.append(f"{platform}: {one_line(str(error), 60) or type(error).__name__}")
            if context is not None:
                context.free()
            _unload_opengl()
    raise MissingError(
        "no OpenGL without a display on this machine; apt install libegl1 libgl1 (or libosmesa6 libgl1). "
        + "; ".join(problems)
    )


def _unload_opengl() -> None:
    """Unload PyOpenGL, which picks its platform at import, so that it can pick another."""
    os.environ.pop("PYOPENGL_PLATFORM", None)
    for name in list(sys.modules):
        if name.partition(".")[0] == "OpenGL" or name in {
            "mujoco.egl.egl_ext",
            *(f"mujoco.{p}" for p in PLATFORMS),
        }:
            del sys.modules[name]


def row(values: torch.Tensor, index: int = 0) -> np.ndarray:
    """Environment `index` of a tensor (N, ...), on the CPU."""
    return values[index].double().cpu().numpy()
