"""Drawing: the State of every robot in viser's scene. MuJoCo places the bodies, mjviser shows them; no GL is needed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from mjviser import ViserMujocoScene
from mjviser.conversions import merge_geoms

from robolearn.core.env import Env
from robolearn.envs import mjcf
from robolearn.envs.elements import compiled
from robolearn.envs.state import State, Tensor
from robolearn.envs.visuals import FIELD_OF_VIEW
from robolearn.simulation.posed import Placing
from robolearn.simulation.renderer import ARROWS
from robolearn.tasks.mdp.commands import VelocityCommands
from robolearn.tasks.mdp.terms import forward_axis

if TYPE_CHECKING:
    import viser

FORCE = (0.84, 0.2, 0.25)
"""Colour of contact forces."""
FLOOR = {"command": 0.02, "actual": 0.05}
"""Height of the arrows on the floor [m]."""
PHONE = 2.4
"""How much further the camera is away on a tall screen."""
GRAVITY = 9.81
STANDING_ARROW = 0.6
"""Length of the arrow of a force that carries the robot's weight [m], for a robot 1 m tall."""
MOST_SAMPLES = 500_000
"""Samples of a terrain beyond which only every second, third, ... is drawn: a browser takes 40 bytes for each."""
SMALL = 0.05
"""Arrows shorter than this [m] are left out."""


class Drawing:
    """The robots of an Env in viser's scene, on a grid of `spacing` metres; agents of a world are drawn in one place.

    The simulators place every robot around the same origin. With `follow`, the world moves below the robot that is
    shown, so that every browser's camera may turn around it.
    """

    def __init__(self, server: viser.ViserServer, env: Env) -> None:
        """Send the model's meshes to the server."""
        self.server, self.env = server, env
        scene, self.agents = env.scene, env.agents
        self.count = env.num_envs // env.agents
        """Number of worlds."""
        spec = mjcf.build_spec(scene, env.backend.capabilities.name, visual=True)
        if self.count > 1:
            # mjviser draws bodies that cannot move once; as mocap bodies, each robot has its own.
            for body in spec.worldbody.bodies:
                if not list(body.joints):
                    body.mocap = True
        _thin(spec)
        self.model = compiled(scene.robot, spec)
        self.data = mujoco.MjData(self.model)
        self._placing = Placing(scene, self.model)
        self._bases = [
            int(self.model.body(mjcf.root_body(scene, name)).id) for name in env.agent_names or (scene.first,)
        ]
        self._touched = {
            (name, label): [
                int(self.model.body(body).id) for body in mjcf.contact_bodies(scene, name, contact)
            ]
            for name, contacts in scene.contacts.items()
            for label, contact in contacts.items()
        }
        """Bodies in the model on which each contact's forces are."""
        self._feet = {
            int(self.model.body(scene.prefix(name) + foot).id)
            for name, robot in scene.robots.items()
            for foot in robot.feet
        }
        """Bodies whose forces the State has anyway."""
        self.weight = GRAVITY * float(self.model.body_subtreemass[self._bases[0]])
        self.shown = 0
        """The robot that is followed, commanded and plotted: one of N, of worlds with several agents in their order."""
        self.alone, self.follow, self.in_place, self.forces, self.commands = False, True, False, False, True
        """Whether only that robot is drawn, it stays in the middle, all stay above their spots, contact forces and
        commands are drawn."""
        view = self._default_view()
        self.size = view["size"]
        apart = 1.2 * max(self.size, view["extent"] if self.agents > 1 else 0.0)
        self.spacing = round(max(0.5, apart), 1) if self.count > 1 else 0.0
        with server.atomic():
            self._scenery = self._add_scenery() if self.count > 1 else None
            self.scene = ViserMujocoScene(server, self.model, self.count)
            self.scene.camera_tracking_enabled = False
            self.arrows = {
                name: server.scene.add_arrows(
                    f"/arrows/{name}",
                    np.zeros((1, 2, 3), np.float32),
                    np.array(colour[:3]),
                    shaft_radius=0.012 * self.size,
                    head_radius=0.03 * self.size,
                    head_length=0.06 * self.size,
                    visible=False,
                )
                for name, colour in (*ARROWS.items(), ("force", FORCE))
            }
            self.goals = server.scene.add_batched_axes(
                "/goals",
                np.tile([1.0, 0, 0, 0], (env.num_envs, 1)),
                np.zeros((env.num_envs, 3)),
                axes_length=0.12 * self.size, axes_radius=0.008 * self.size,
                visible=False,
            )  # fmt: skip
        camera = server.initial_camera
        camera.position, camera.look_at, camera.fov = view["eye"], view["center"], math.radians(FIELD_OF_VIEW)

        self._view = view
        server.on_client_connect(self._frame_for_phone)
        self._smooth: np.ndarray | None = None
        self.place, self.quat, self.ahead = np.zeros(3), np.array([1.0, 0, 0, 0]), np.array([1.0, 0])
        """Of the robot that is shown, where it was last drawn: base position (3,) and orientation wxyz (4,), and the
        horizontal direction (2,) that it faces."""
        self.floor = 0.0
        """Height of the ground below the robot that is shown, as it is drawn [m]."""
        self.after: list[Callable[[], None]] = []
        """Called in each frame, after the robots were drawn."""
        self.frames = 0
        """How many frames were drawn."""

    def _frame_for_phone(self, client: viser.ClientHandle) -> None:
        """Look from further away, and below the robots, where the panel covers the lower half of a tall screen."""
        camera, view = client.camera, self._view
        if camera.image_height <= camera.image_width:
            return
        for _ in range(100):  # the browser first takes the initial camera, and would overwrite this one
            if np.allclose(camera.position, view["eye"], atol=1e-2):
                break
            time.sleep(0.1)
        camera.position = view["center"] + PHONE * (view["eye"] - view["center"])
        camera.look_at = view["center"] - np.array([0, 0, 0.75 * self.size])

    @property
    def world(self) -> int:
        """The world of the robot that is shown."""
        return self.shown // self.agents

    @property
    def base(self) -> int:
        """The body in the model that is the base of the robot that is shown."""
        return self._bases[self.shown % self.agents]

    @property
    def has_contacts(self) -> bool:
        """Whether the State says anything about contact forces: of feet, or of contacts that the scene asks for."""
        return bool(self._touched) or any(robot.feet for robot in self.env.scene.robots.values())

    @property
    def spots(self) -> np.ndarray:
        """(W, 3) where the origin of each world is drawn [m]."""
        if self.env.scene.terrain is not None:
            return np.zeros((self.count, 3))  # robots are where they are on the terrain
        columns = math.ceil(math.sqrt(self.count))
        row, column = np.divmod(np.arange(self.count), columns)
        places = np.stack((-row, column - (columns - 1) / 2, np.zeros(self.count)), axis=1)
        return np.asarray(self.spacing * places)

    def update(self) -> None:
        """Draw the current State."""
        state, model, data = self.env.backend.state, self.model, self.data
        positions = self._placing.qpos(state)[:: self.agents]
        xpos, xmat = np.zeros((self.count, model.nbody, 3)), np.zeros((self.count, model.nbody, 3, 3))
        for i in range(self.count):
            data.qpos[:] = positions[i]
            mujoco.mj_kinematics(model, data)
            xpos[i], xmat[i] = data.xpos, data.xmat.reshape(-1, 3, 3)
        anchor = np.zeros(3)
        if self.follow:
            anchor[:2] = xpos[self.world, self.base, :2] + self.spots[self.world, :2]
            if state.origin is not None:
                anchor[2] = float(state.origin[self.world, 2])
        move = self.spots - anchor
        if self.in_place:
            move[:, :2] -= xpos[:, self.base, :2] - xpos[self.world, self.base, :2]
        mocap = np.tile(data.mocap_pos, (self.count, 1, 1)) + move[:, None]
        turned = np.tile(data.mocap_quat, (self.count, 1, 1))
        self.place, self.quat = (
            xpos[self.world, self.base] + move[self.world],
            _numbers(state.robot.base_quat)[self.shown],
        )
        ahead = _numbers(forward_axis(state.robot.base_quat))[self.shown, :2]
        self.ahead = ahead / max(float(np.linalg.norm(ahead)), 1e-9)
        with self.server.atomic():
            self.scene.env_idx, self.scene.show_only_selected = self.world, self.alone
            self.scene.update_from_arrays(xpos + move[:, None], xmat, mocap, turned)
            self.scene.fixed_bodies_frame.position = -anchor
            if self._scenery is not None:
                self._scenery.batched_positions = move.astype(np.float32)
            # The State's positions are relative to the origins of a terrain.
            origins = 0.0 if state.origin is None else _numbers(state.origin)
            self.floor = float(self._below(state, move + origins)[self.world])
            self._draw_arrows(state, xpos, move, move + origins)
            for work in self.after:
                work()
        self.frames += 1

    def _add_scenery(self) -> Any:
        """A copy for each robot of what its file has in the world itself, such as the rail of a cart; None without any.
        mjviser, which would draw it once, finds it transparent."""
        model, ground = self.model, _is_ground(self.model)
        seen = (model.geom_rgba[:, 3] > 0) & (model.geom_group < 3)
        found = np.flatnonzero((model.geom_bodyid == 0) & ~ground & seen).tolist()
        if not found:
            return None
        mesh = merge_geoms(model, found)
        model.geom_rgba[found, 3] = 0.0
        turned = np.tile([1.0, 0, 0, 0], (self.count, 1))
        return self.server.scene.add_batched_meshes_trimesh(
            "/scenery", mesh, batched_wxyzs=turned, batched_positions=self.spots, lod="off"
        )

    def _draw_arrows(self, state: State, xpos: np.ndarray, move: np.ndarray, shift: np.ndarray) -> None:
        """Draw arrows and goals. Of each world, bodies are moved by `move`, places in the State by `shift`, (W, 3)."""
        worlds = [self.world] if self.alone else list(range(self.count))
        rows = [world * self.agents + k for world in worlds for k in range(self.agents)]
        arrows: dict[str, np.ndarray] = {}
        commands = self.env.task.commands
        own = getattr(commands, "drawn", commands)  # those of the task behind the operator's
        goals = self.env.task.goal(state, self.env.ctx) if self.commands else None
        self.goals.visible = goals is not None
        if self.commands and isinstance(own, VelocityCommands):
            arrows |= self._velocities(state, rows, shift.repeat(self.agents, axis=0))
        if goals is not None:
            self._draw_goals(goals, rows, shift.repeat(self.agents, axis=0))
        if self.forces and self.has_contacts:
            arrows["force"] = self._forces(state, xpos, worlds, move, shift)
        for name, handle in self.arrows.items():
            points = arrows.get(name, np.zeros((0, 2, 3)))
            points = points[np.linalg.norm(points[:, 1] - points[:, 0], axis=1) > SMALL * self.size]
            if len(points):
                handle.points = points.astype(np.float32)
            handle.visible = bool(len(points))

    def _velocities(self, state: State, rows: list[int], shift: np.ndarray) -> dict[str, np.ndarray]:
        """Arrows (n, 2, 3) on the floor: the commanded and the actual velocity, 1 m long for 1 m/s."""
        robot = state.robot
        ahead = _numbers(forward_axis(robot.base_quat))
        ahead /= np.maximum(np.linalg.norm(ahead, axis=1, keepdims=True), 1e-9)
        left = np.stack((-ahead[:, 1], ahead[:, 0]), axis=1)
        actual = _numbers(robot.base_lin_vel[:, :2])
        # Smoothed: the sway of each step would make it unreadable.
        self._smooth = actual if self._smooth is None else self._smooth + 0.15 * (actual - self._smooth)
        tails = _numbers(robot.base_pos) + shift
        below = self._below(state, shift).repeat(self.agents)
        out = {}
        commanded = _numbers(self.env.ctx.command)[:, :2]
        for name, wanted in (("command", commanded), ("actual", self._smooth)):
            tails[:, 2] = below + FLOOR[name]
            tips = tails.copy()
            tips[:, :2] += wanted[:, :1] * ahead + wanted[:, 1:2] * left
            out[name] = np.stack((tails, tips), axis=1)[rows]
        return out

    def _below(self, state: State, shift: np.ndarray) -> np.ndarray:
        """(N,) height of the ground below each robot, as it is drawn [m]; (W,) zeros on flat ground."""
        ctx = self.env.ctx
        if ctx.terrain is None:
            return np.zeros(self.count)
        return _numbers(ctx.ground(state.robot.base_pos[:, :2])) + shift[:, 2]

    def _draw_goals(self, goals: Tensor, rows: list[int], shift: np.ndarray) -> None:
        place, quat = _numbers(goals[:, :3]), _numbers(goals[:, 3:])
        if not quat.shape[1]:
            quat = np.tile([1.0, 0.0, 0.0, 0.0], (len(place), 1))
        self.goals.batched_positions = (place + shift)[rows].astype(np.float32)
        self.goals.batched_wxyzs = quat[rows].astype(np.float32)

    def _forces(
        self, state: State, xpos: np.ndarray, worlds: list[int], move: np.ndarray, shift: np.ndarray
    ) -> np.ndarray:
        """Arrows (n, 2, 3) of the State's contact forces, at feet and at the bodies that the scene asks for."""
        places, forces = [], []
        for entity in state.entities.values():
            if entity.foot_force.shape[1]:
                places.append(_numbers(entity.foot_pos)[:: self.agents] + (shift - move)[:, None])
                forces.append(_numbers(entity.foot_force)[:: self.agents])
        for (name, label), bodies in self._touched.items():
            others = [i for i, body in enumerate(bodies) if body not in self._feet]
            places.append(xpos[:, [bodies[i] for i in others]])
            forces.append(_numbers(state.entities[name].contacts[label].force)[:: self.agents, others])
        scale = STANDING_ARROW * self.size / max(self.weight, 1e-9)
        tails = (np.concatenate(places, axis=1) + move[:, None])[worlds].reshape(-1, 3)
        tips = tails + scale * np.concatenate(forces, axis=1)[worlds].reshape(-1, 3)
        return np.stack((tails, tips), axis=1)

    def _default_view(self) -> dict[str, Any]:
        """Eye and centre (3,) [m] of a camera that shows the robots, the robot's size [m], and how far a world extends
        horizontally [m]."""
        data = mujoco.MjData(self.model)
        scene = self.env.scene
        data.qpos[:] = mjcf.home_qpos(scene, self.model)
        mujoco.mj_kinematics(self.model, data)
        mujoco.mj_comPos(self.model, data)
        mujoco.mj_camlight(self.model, data)
        camera = self.model.camera("track").id
        eye, forward = data.cam_xpos[camera].copy(), -data.cam_xmat[camera].reshape(3, 3)[:, 2]
        solid = ~_is_ground(self.model)
        low = (data.geom_xpos - self.model.geom_rbound[:, None])[solid].min(axis=0)
        high = (data.geom_xpos + self.model.geom_rbound[:, None])[solid].max(axis=0)
        center = (low + high) / 2
        distance = float((center - eye) @ forward)
        back = 1.0 + 0.35 * (math.ceil(math.sqrt(self.count)) - 1)
        return {
            "eye": center - back * distance * forward,
            "center": center,
            "size": float(min(2.0, max(0.3, (high - low).max()))),
            "extent": float((high - low)[:2].max()),
        }


def _thin(spec: mujoco.MjSpec) -> None:
    """Leave out samples of a terrain that has too many to be drawn."""
    for field in spec.hfields:
        rows, columns = field.nrow, field.ncol
        step = math.ceil(math.sqrt(rows * columns / MOST_SAMPLES))
        if step == 1:
            continue
        heights = np.reshape(field.userdata, (rows, columns))[::step, ::step]
        left_out = (columns - 1) % step, (rows - 1) % step
        reach = [
            r * (1 - out / (n - 1)) for r, out, n in zip(field.size, left_out, (columns, rows), strict=False)
        ]
        floor = spec.geom("floor")
        floor.pos = floor.pos - np.array([field.size[0] - reach[0], field.size[1] - reach[1], 0.0])
        # MuJoCo scales heights to the range 0 to 1: of those that are left it may be smaller.
        low, span = float(heights.min()), float(np.ptp(heights)) or 1.0
        floor.pos[2] += low * field.size[2]
        field.size = [*reach, span * field.size[2], field.size[3]]
        field.nrow, field.ncol = heights.shape
        field.userdata = heights.flatten()


def _is_ground(model: mujoco.MjModel) -> np.ndarray:
    """(G,) bool: the geoms that are floors or terrains."""
    kinds = mujoco.mjtGeom
    return np.isin(model.geom_type, (int(kinds.mjGEOM_PLANE), int(kinds.mjGEOM_HFIELD)))


def _numbers(values: Tensor) -> np.ndarray:
    """A tensor on the CPU, in double precision."""
    return values.detach().double().cpu().numpy().copy()
