"""N copies of a scene in Isaac Lab 3.0.0, on Newton's MuJoCo Warp; no other file uses Isaac Lab's API."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from enum import IntFlag
from typing import Any, ClassVar

import isaaclab.sim as sim_utils
import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from isaaclab.actuators import ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg, AssetBaseCfg, RigidObjectCfg
from isaaclab.physics import PhysicsManager
from isaaclab.scene import InteractiveScene, InteractiveSceneCfg
from isaaclab.sensors import ContactSensorCfg
from isaaclab.sim import SimulationCfg, SimulationContext
from isaaclab.sim.utils import stage as stages
from isaaclab.utils.timer import Timer
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg, NewtonManager, NewtonShapeCfg
from isaaclab_newton.physics.mjwarp_manager import NewtonMJWarpManager

from robolearn.envs import mjcf
from robolearn.envs.contacts import ArraySizes, colliding_pairs
from robolearn.envs.isaaclab.convention import Measured, Written
from robolearn.envs.isaaclab.usd import ground_usd, mujoco_id, object_usd, robot_usd, usd_name
from robolearn.envs.robot import Robot
from robolearn.envs.scene import GROUND, Contact, Object, Scene
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import quiet
from robolearn.errors import ConfigError

_ENV = "{ENV_REGEX_NS}"
_ENTITY = re.compile(r"/World/envs/env_\d+/([^/]+)")
"""The name of an entity in the path of one of its prims."""
_MANAGERS = (PhysicsManager, NewtonManager, NewtonMJWarpManager)
_UNLIMITED = 1.0e6
"""Effort of a joint without a position actuator [Nm or N]; the backend has already clipped its forces."""

_LOST = ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
"""Overflows that drop physics. Reaching the solver's iteration limit is not one."""


class Globals:
    """The class-level state of Isaac Lab for one of several simulations in a process.

    `SimulationContext` is a singleton and its physics managers are classes that are never instantiated. None of their
    state is on the device. So each backend stores its values, and writes them to the classes while it is used.
    """

    _active: ClassVar[Globals | None] = None
    _pristine: ClassVar[dict[type, dict[str, Any]]] = {}

    def __init__(self) -> None:
        self._check_no_other_simulation()
        if Globals._active is None:
            Globals._pristine = {manager: _class_variables(manager) for manager in _MANAGERS}
        self._values = _copied(Globals._pristine)
        self._context: Any = None
        self._stage: Any = None

    @staticmethod
    def _check_no_other_simulation() -> None:
        if Globals._active is None and SimulationContext.instance() is not None:
            raise ConfigError(
                "backend=isaaclab: this process already has a SimulationContext; call its clear_instance() first"
            )

    def activate(self) -> None:
        """Write these values to the classes, after saving those of the active simulation."""
        if Globals._active is self:
            return
        self._check_no_other_simulation()
        if Globals._active is not None:
            Globals._active._save()
        self._load()
        Globals._active = self

    def _save(self) -> None:
        self._values = {manager: _class_variables(manager) for manager in _MANAGERS}
        self._context = SimulationContext.instance()
        self._stage = getattr(stages._context, "stage", None)

    def _load(self) -> None:
        for manager, values in self._values.items():
            for name in set(_class_variables(manager)) - set(values):
                delattr(manager, name)
            for name, value in values.items():
                setattr(manager, name, value)
        SimulationContext._instance, stages._context.stage = self._context, self._stage

    def reset(self) -> None:
        """Restore the classes to their values before the first of our simulations."""
        self._values, self._context, self._stage = _copied(Globals._pristine), None, None
        self._load()
        Globals._active = None


def _class_variables(manager: type) -> dict[str, Any]:
    """A manager's class variables, without `_callback_id`: its numbers stay unique in the process, because late
    destructors return them."""
    fixed = (classmethod, staticmethod, property)
    return {
        name: value
        for name, value in vars(manager).items()
        if not name.startswith(("__", "_abc")) and name != "_callback_id" and not isinstance(value, fixed)
    }


def _copied(values: dict[type, dict[str, Any]]) -> dict[type, dict[str, Any]]:
    """The same values with copied containers."""
    return {
        manager: {k: type(v)(v) if type(v) in (dict, list, set) else v for k, v in variables.items()}
        for manager, variables in values.items()
    }


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress what Isaac Lab, Newton and Warp print while they build: banners, tables, times. Errors are raised."""
    quiet()
    Timer.enable_display_output = False
    for name in ("isaaclab", "isaaclab_newton", "isaaclab_physx", "newton"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Bridge:
    """N robots in Isaac Lab, in its conventions; see `robolearn.envs.isaaclab.convention.Measured`.

    All environments are at the same place (a spacing of 0): they are separate worlds and cannot touch, and positions
    near the origin keep their float32 precision.
    """

    def __init__(
        self, scene: Scene, model: mujoco.MjModel, num_envs: int, device: torch.device, sizes: ArraySizes
    ) -> None:
        """`model` is the MuJoCo model of the scene, whose options the solver takes."""
        self._globals = Globals()
        self._globals.activate()
        self._moves = {name: scene.moves(name) for name in scene.entities}
        try:
            with silence():
                self._build(scene, model, num_envs, device, sizes)
        except BaseException:
            self.close()
            raise

    def _build(
        self, scene: Scene, model: mujoco.MjModel, n: int, device: torch.device, sizes: ArraySizes
    ) -> None:
        self._sim = SimulationContext(
            SimulationCfg(
                dt=float(model.opt.timestep),
                device=str(device),
                create_stage_in_memory=True,  # not the stage of another simulation
                gravity=tuple(float(g) for g in model.opt.gravity),
                physics=NewtonCfg(
                    solver_cfg=solver_options(model, sizes),
                    # Contacts begin where surfaces meet, as in MuJoCo; Isaac Lab's default margin is 1 cm.
                    default_shape_cfg=NewtonShapeCfg(margin=0.0, gap=0.0),
                ),
            )
        )
        self._alone = {name: mjcf.build_model(robot, "isaaclab") for name, robot in scene.robots.items()}
        """The MuJoCo model of each robot alone, whose ids are in the names of its USD file."""
        config = InteractiveSceneCfg(num_envs=n, env_spacing=0.0, replicate_physics=True)
        for name, entity in scene.entities.items():
            made = (
                _object(scene, name, entity)
                if isinstance(entity, Object)
                else _articulation(scene, name, entity, self._alone[name])
            )
            setattr(config, f"entity_{name}", made)
        if scene.grounded:
            config.ground = AssetBaseCfg(
                prim_path="/World/ground", spawn=sim_utils.UsdFileCfg(usd_path=str(ground_usd()))
            )
        for name, robot in scene.robots.items():
            if robot.feet:
                setattr(config, f"feet_{name}", ContactSensorCfg(prim_path=self._paths(name, robot.feet)))
        asked = [(name, label) for name, labels in scene.contacts.items() for label in labels]
        for number, (name, label) in enumerate(asked):
            setattr(config, f"contact_{number}", self._contact(scene, name, scene.contacts[name][label]))
        self._scene = InteractiveScene(config)
        self._sim.reset()
        self._scene.update(self._sim.get_physics_dt())
        self._assets = {name: self._scene[f"entity_{name}"] for name in scene.entities}
        self._feet = {name: self._scene[f"feet_{name}"] for name, robot in scene.robots.items() if robot.feet}
        self._contacts = {key: self._scene[f"contact_{number}"] for number, key in enumerate(asked)}
        self._sensors = [*self._feet.values(), *self._contacts.values()]
        self._solver, self._state = NewtonManager._solver, NewtonManager.get_state_0()
        self._solver.mjw_model.opt.warn_overflow = False
        # The first step copies what the articulation has set to the solver and overwrites its rows, so take that step
        # here, before any reset.
        self._sim.step(render=False)
        self._scene.update(self._sim.get_physics_dt())
        self.overflow()
        self.joint_names: dict[str, list[str]] = {name: [] for name in scene.objects}
        """Names of the joints of each entity in its file, in Isaac Lab's order; likewise the following."""
        self.body_names: dict[str, list[str]] = {}
        for name, robot_model in self._alone.items():
            names = dof_names(robot_model)
            self.joint_names[name] = [names.get(each, each) for each in self._assets[name].joint_names]
        for name, asset in self._assets.items():
            self.body_names[name] = [self._body(name, each) for each in asset.body_names]
        self.sensor_names = {
            name: [self._body(name, each) for each in self._feet[name].sensor_names]
            if name in self._feet
            else []
            for name in scene.entities
        }
        self.contact_names = {
            key: [self._body(key[0], each) for each in sensor.sensor_names]
            for key, sensor in self._contacts.items()
        }
        self.origins: Tensor = self._scene.env_origins.to(device=device, dtype=torch.float32).clone()
        self.solver_model: mujoco.MjModel = self._solver.mj_model
        """Newton's version of the robot, as MuJoCo compiled it."""
        newton = NewtonManager.get_model()
        indices = self._solver.mjc_body_to_newton.numpy()[0]
        self.solver_bodies = ["world" if b < 0 else self._named(scene, newton.body_label[b]) for b in indices]
        """Names of its bodies in the model of the scene, in its order."""
        self.roots = self._free_roots(newton)
        """For each entity that moves freely, the first column of its root in `joint_q` and in `joint_qd`."""

    def _body(self, entity: str, name: str) -> str:
        """The name in its file of an entity's body with this USD path or name; of an object `object`."""
        if entity not in self._alone:
            return "object"
        found: str = self._alone[entity].body(mujoco_id(name)).name
        return found

    def _named(self, scene: Scene, path: str) -> str:
        """The name in the model of the scene of the body with this USD path."""
        found = _ENTITY.match(path)
        assert found, path
        return scene.prefix(found[1]) + self._body(found[1], path)

    def _paths(self, entity: str, bodies: tuple[str, ...]) -> str:
        """A path expression for bodies of an entity, by their names in its file; without names for all of them."""
        if entity not in self._alone:
            return f"{_ENV}/{entity}/.*/{usd_name('body', 1)}"
        model = self._alone[entity]
        chosen = bodies or [model.body(number).name for number in range(1, model.nbody)]
        names = "|".join(usd_name("body", model.body(body).id) for body in chosen)
        return f"{_ENV}/{entity}/.*/(?:{names})"

    def _contact(self, scene: Scene, name: str, contact: Contact) -> ContactSensorCfg:
        config = ContactSensorCfg(prim_path=self._paths(name, contact.bodies))
        other, _, body = contact.other.partition("/")
        if other == GROUND:
            config.filter_shape_prim_expr = ["/World/ground/.*"]
        elif other:
            config.filter_prim_paths_expr = [self._paths(other, (body,) if body else ())]
        return config

    def _free_roots(self, newton: Any) -> dict[str, tuple[int, int]]:
        free = int(newton_joint_type("FREE"))
        kinds, children = newton.joint_type.numpy(), newton.joint_child.numpy()
        starts = newton.joint_q_start.numpy(), newton.joint_qd_start.numpy()
        roots: dict[str, tuple[int, int]] = {}
        for joint in range(len(kinds)):
            found = _ENTITY.match(newton.body_label[int(children[joint])])
            if kinds[joint] == free and found and found[1] not in roots:  # the first environment's
                roots[found[1]] = int(starts[0][joint]), int(starts[1][joint])
        return roots

    def limit_drives(self, efforts: dict[int, float]) -> None:
        """Make each drive one actuator, limited as MuJoCo limits a position actuator.

        `efforts` maps joint ids of `solver_model` to efforts [Nm or N]. Newton makes two actuators per drive, for
        stiffness and for damping, and clips their sum at the joint. That is equal until the drive saturates. Then
        MuJoCo's implicit integrator leaves the damping of a clipped actuator out of its matrix, which it can only do
        if the actuator itself is limited.
        """
        if not efforts:
            return
        rows = self.model_rows("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")
        gains, bias, ranges = rows.values()
        limited = wp.to_torch(self._solver.mjw_model.actuator_forcelimited)
        driven_joint = self._solver.mj_model.actuator_trnid[:, 0]
        for joint, effort in efforts.items():
            pair = [int(i) for i in (driven_joint == joint).nonzero()[0]]
            stiff = [i for i in pair if float(bias[0, i, 2]) == 0.0]
            damp = [i for i in pair if float(bias[0, i, 2]) != 0.0]
            assert max(len(stiff), len(damp)) == 1, f"joint {joint} has other actuators than a drive"
            if stiff and damp:
                bias[:, stiff[0], 2] = bias[:, damp[0], 2]
                gains[:, damp[0]], bias[:, damp[0]] = 0.0, 0.0
            for i in pair:
                limited[i] = True
                ranges[:, i, 0], ranges[:, i, 1] = -effort, effort

    def read(self) -> dict[str, Measured]:
        """The current measurements of each entity: live views, which the caller copies."""
        self._globals.activate()
        return {name: self._read(name, asset) for name, asset in self._assets.items()}

    def _read(self, name: str, asset: Any) -> Measured:
        data = asset.data
        pose, velocity = data.body_link_pose_w.torch, data.body_link_vel_w.torch
        none = pose.new_zeros(len(pose), 0)
        jointed = name in self._alone
        joints = (data.joint_pos.torch, data.joint_vel.torch) if jointed else (none, none)
        feet = self._feet.get(name)
        force = feet.data.net_forces_w.torch if feet else pose.new_zeros(len(pose), 0, 3)
        contacts = {}
        for (entity, label), sensor in self._contacts.items():
            if entity == name:
                found = sensor.data
                by_other = found.force_matrix_w
                contacts[label] = found.net_forces_w.torch if by_other is None else by_other.torch.sum(dim=2)
        return Measured(*joints, pose, velocity, force, contacts)

    def write(self, mask: Tensor, starts: dict[str, Written]) -> None:
        """Set the state of each entity in the environments in `mask` (N,) bool.

        Clears warm starts and sensors, and updates what `read` returns for these environments, forces included.
        """
        self._globals.activate()
        env_mask = wp.from_torch(mask.contiguous(), dtype=wp.bool)
        for sensor in self._sensors:
            sensor.reset(env_mask=env_mask)
        for name, asset in self._assets.items():
            start = starts[name]
            asset.reset(env_mask=env_mask)
            if self._moves[name]:
                asset.write_root_link_pose_to_sim_mask(root_pose=start.pose.contiguous(), env_mask=env_mask)
                asset.write_root_link_velocity_to_sim_mask(
                    root_velocity=start.velocity.contiguous(), env_mask=env_mask
                )
            if name in self._alone:
                asset.write_joint_state_to_sim_mask(
                    position=start.joint_pos.contiguous(),
                    velocity=start.joint_vel.contiguous(),
                    env_mask=env_mask,
                )
        NewtonManager.forward()
        if self._sensors:
            self._update_contacts()

    def _update_contacts(self) -> None:
        """Compute the contact forces of the current state by a forward pass of the solver; keeps its warm starts."""
        solver, data = self._solver, self._solver.mjw_data
        with wp.ScopedDevice(solver.model.device):
            solver._apply_mjc_control(solver.model, self._state, NewtonManager.get_control(), data)
            solver._update_mjc_data(data, solver.model, self._state)
            mjw.forward(solver.mjw_model, data)
            NewtonManager._update_sensors(None)
        for sensor in self._sensors:
            # A sensor at time zero, as after its reset, reads zero.
            sensor.update(self._sim.get_physics_dt(), force_recompute=True)

    def command(self, commands: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Hold, for each robot, positions (N, J) for the drives and forces (N, J), which are added, in Isaac Lab's
        order."""
        self._globals.activate()
        for name, (position, effort) in commands.items():
            target = self._assets[name].actuators.target_command
            target.set_position_mask(value=position.contiguous())
            target.set_effort_mask(value=effort.contiguous())
        self._scene.write_data_to_sim()

    def step(self, substeps: int) -> None:
        """Take `substeps` physics steps."""
        self._globals.activate()
        for _ in range(substeps):
            self._sim.step(render=False)
        self._scene.update(substeps * self._sim.get_physics_dt())

    def rows(self) -> dict[str, Tensor]:
        """The simulation state, (N, ...) each: live views, to be read and written.

        In `joint_q` and `joint_qd` a free root has its world position and xyzw; the linear velocity of its centre of
        mass and its angular velocity, world axes. `roots` says where.
        """
        state, n = self._state, len(self.origins)
        return {
            "joint_q": wp.to_torch(state.joint_q).view(n, -1),
            "joint_qd": wp.to_torch(state.joint_qd).view(n, -1),
            "warm_start": wp.to_torch(self._solver.mjw_data.qacc_warmstart),
        }

    def model_rows(self, *names: str) -> dict[str, Tensor]:
        """The solver's parameters by MuJoCo's names, (N, ...) each: live views.

        Writing them directly avoids Newton's notification, which recomputes all environments and costs two physics
        steps.
        """
        model, n = self._solver.mjw_model, len(self.origins)
        found = {}
        for name in names:
            array = model.stat.meaninertia if name == "meaninertia" else getattr(model, name)
            assert array.shape[0] == n, f"{name} is shared by all environments"
            found[name] = wp.to_torch(array)
        return found

    def overflow(self) -> IntFlag:
        """The overflows in any environment since the last call; falsy without any."""
        bits: Tensor = wp.to_torch(self._solver.mjw_data.overflow)
        lost = mjw.OverflowType(0)
        for value in bits.unique().tolist():
            lost |= mjw.OverflowType(value)
        bits.zero_()
        return lost & _LOST

    def close(self) -> None:
        """Free the simulation."""
        self._globals.activate()
        for name in ("_assets", "_feet", "_contacts", "_sensors", "_scene", "_solver", "_state"):
            self.__dict__.pop(name, None)
        try:
            with silence():
                SimulationContext.clear_instance()
        finally:
            self.__dict__.pop("_sim", None)
            self._globals.reset()


def _articulation(scene: Scene, name: str, robot: Robot, model: mujoco.MjModel) -> ArticulationCfg:
    """One robot; `model` is its MuJoCo model alone."""
    names = dof_names(model)
    drives = {a.joint: a for a in robot.actuators if a.kind == "position"}

    def per_joint(value: str, default: float) -> dict[str, float]:
        return {label: getattr(drives.get(joint), value, default) for label, joint in names.items()}

    place = scene.place(name)
    contacts = bool(robot.feet) or _touched(scene, name)
    config = ArticulationCfg(
        prim_path=f"{_ENV}/{name}",
        spawn=sim_utils.UsdFileCfg(
            usd_path=str(robot_usd(robot)),
            activate_contact_sensors=contacts,
            articulation_props=sim_utils.ArticulationRootPropertiesCfg(
                enabled_self_collisions=touches_itself(model)
            ),
        ),
        actuators={
            "all": ImplicitActuatorCfg(
                joint_names_expr=[".*"],
                stiffness=per_joint("kp", 0.0),
                damping=per_joint("kd", 0.0),
                joint_effort_limit=per_joint("effort", _UNLIMITED),
            )
        },
    )
    # Isaac Lab refuses a default position beyond a joint's limits, as 0 is for many knees.
    home = dict(zip(robot.joints, robot.home, strict=True))
    config.init_state.joint_pos = {label: home[joint] for label, joint in names.items()}
    if not scene.moves(name):
        config.init_state.pos, config.init_state.rot = place.position, (*place.quat[1:], place.quat[0])
    return config


def _object(scene: Scene, name: str, thing: Object) -> RigidObjectCfg:
    return RigidObjectCfg(
        prim_path=f"{_ENV}/{name}",
        spawn=sim_utils.UsdFileCfg(
            usd_path=str(object_usd(thing)), activate_contact_sensors=_touched(scene, name)
        ),
        init_state=RigidObjectCfg.InitialStateCfg(pos=thing.position, rot=(*thing.quat[1:], thing.quat[0])),
    )


def _touched(scene: Scene, name: str) -> bool:
    """Whether a contact of the scene is about an entity."""
    others = {c.other.partition("/")[0] for asked in scene.contacts.values() for c in asked.values()}
    return bool(scene.contacts.get(name)) or name in others


def newton_joint_type(name: str) -> int:
    """Newton's number of a kind of joint."""
    import newton

    return int(getattr(newton.JointType, name))


def solver_options(model: mujoco.MjModel, sizes: ArraySizes) -> MJWarpSolverCfg:
    """Convert MuJoCo's options to those of Isaac Lab's MuJoCo Warp solver."""
    option = model.opt

    def enum_name(prefix: str, enum: Any, value: int) -> str:
        return str(enum(value).name).removeprefix(prefix).lower()

    return MJWarpSolverCfg(
        njmax=sizes.rows,
        nconmax=sizes.contacts,
        iterations=int(option.iterations),
        ls_iterations=int(option.ls_iterations),
        ccd_iterations=int(option.ccd_iterations),
        solver=enum_name("mjSOL_", mujoco.mjtSolver, option.solver),
        integrator=enum_name("mjINT_", mujoco.mjtIntegrator, option.integrator),
        cone=enum_name("mjCONE_", mujoco.mjtCone, option.cone),
        impratio=float(option.impratio),
        tolerance=float(option.tolerance),
    )


def dof_names(model: mujoco.MjModel) -> dict[str, str]:
    """Our joint names by Isaac Lab's, where joints that share a body are named as axes of the first: first:0, ..."""
    names: dict[str, str] = {}
    for body in range(model.nbody):
        joints = [
            joint
            for joint in range(model.njnt)
            if model.jnt_bodyid[joint] == body and model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE
        ]
        for axis, joint in enumerate(joints):
            first = usd_name("joint", joints[0])
            names[first if len(joints) == 1 else f"{first}:{axis}"] = model.joint(joint).name
    return names


def touches_itself(model: mujoco.MjModel) -> bool:
    """Whether geoms of the robot, including those of a fixed base, can touch one another."""
    return any(model.geom_bodyid[a] and model.geom_bodyid[b] for a, b in colliding_pairs(model))
