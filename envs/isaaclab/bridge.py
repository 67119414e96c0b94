"""N copies of a robot on the ground in Isaac Lab 3.0.0, on Newton's MuJoCo Warp; no other file uses Isaac Lab's API."""

from __future__ import annotations

import contextlib
import io
import logging
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
from isaaclab.assets import ArticulationCfg, AssetBaseCfg
from isaaclab.physics import PhysicsManager
from isaaclab.scene import InteractiveScene, InteractiveSceneCfg
from isaaclab.sensors import ContactSensorCfg
from isaaclab.sim import SimulationCfg, SimulationContext
from isaaclab.sim.utils import stage as stages
from isaaclab.utils.timer import Timer
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg, NewtonManager, NewtonShapeCfg
from isaaclab_newton.physics.mjwarp_manager import NewtonMJWarpManager

from robolearn.envs.contacts import ArraySizes, colliding_pairs
from robolearn.envs.isaaclab.convention import Measured
from robolearn.envs.isaaclab.usd import ground_usd, mujoco_id, robot_usd, usd_name
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import quiet
from robolearn.errors import ConfigError

_ROBOT = "{ENV_REGEX_NS}/Robot"
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
        self, robot: Robot, model: mujoco.MjModel, num_envs: int, device: torch.device, sizes: ArraySizes
    ) -> None:
        """`model` is the robot's MuJoCo scene, whose options the solver takes."""
        self._globals = Globals()
        self._globals.activate()
        self._grounded, self._floating = bool(robot.feet), robot.base is not None
        try:
            with silence():
                self._build(robot, model, num_envs, device, sizes)
        except BaseException:
            self.close()
            raise

    def _build(
        self, robot: Robot, model: mujoco.MjModel, n: int, device: torch.device, sizes: ArraySizes
    ) -> None:
        names = dof_names(model)
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
        scene = InteractiveSceneCfg(num_envs=n, env_spacing=0.0, replicate_physics=True)
        drives = {a.joint: a for a in robot.actuators if a.kind == "position"}

        def per_joint(value: str, default: float) -> dict[str, float]:
            return {name: getattr(drives.get(joint), value, default) for name, joint in names.items()}

        scene.robot = ArticulationCfg(
            prim_path=_ROBOT,
            spawn=sim_utils.UsdFileCfg(
                usd_path=str(robot_usd(robot)),
                activate_contact_sensors=bool(robot.feet),
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
        if robot.base is not None or robot.feet:
            scene.ground = AssetBaseCfg(
                prim_path="/World/ground", spawn=sim_utils.UsdFileCfg(usd_path=str(ground_usd()))
            )
        if robot.feet:
            feet = "|".join(usd_name("body", model.body(foot).id) for foot in robot.feet)
            scene.feet = ContactSensorCfg(prim_path=f"{_ROBOT}/.*/(?:{feet})[^/]*")
        self._scene = InteractiveScene(scene)
        self._sim.reset()
        self._scene.update(self._sim.get_physics_dt())
        self._robot = self._scene["robot"]
        self._feet = self._scene["feet"] if robot.feet else None
        self._solver, self._state = NewtonManager._solver, NewtonManager.get_state_0()
        self._solver.mjw_model.opt.warn_overflow = False
        # The first step copies what the articulation has set to the solver and overwrites its rows, so take that step
        # here, before any reset.
        self._sim.step(render=False)
        self._scene.update(self._sim.get_physics_dt())
        self.overflow()
        self.joint_names = [names.get(name, name) for name in self._robot.joint_names]
        self.body_names = [model.body(mujoco_id(name)).name for name in self._robot.body_names]
        found = self._feet.sensor_names if self._feet else []
        self.sensor_names = [model.body(mujoco_id(name)).name for name in found]
        self.origins: Tensor = self._scene.env_origins.to(device=device, dtype=torch.float32).clone()
        self.solver_model: mujoco.MjModel = self._solver.mj_model
        """Newton's version of the robot, as MuJoCo compiled it."""
        labels = NewtonManager.get_model().body_label
        indices = self._solver.mjc_body_to_newton.numpy()[0]
        self.solver_bodies = [model.body(0 if b < 0 else mujoco_id(labels[b])).name for b in indices]
        """Names of its bodies in the MJCF, in its order."""

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

    def read(self) -> Measured:
        """The current measurements: live views, which the caller copies."""
        self._globals.activate()
        data = self._robot.data
        pose, joints = data.body_link_pose_w.torch, data.joint_pos.torch
        force = self._feet.data.net_forces_w.torch if self._feet else joints.new_zeros(len(joints), 0, 3)
        return Measured(joints, data.joint_vel.torch, pose, data.body_link_vel_w.torch, force)

    def write(
        self, mask: Tensor, base_pose: Tensor, base_vel: Tensor, joint_pos: Tensor, joint_vel: Tensor
    ) -> None:
        """Set the state of the environments in `mask` (N,) bool.

        Base pose (N, 7), xyzw, and velocity (N, 6) in world axes; joints (N, J) in Isaac Lab's order. Clears warm
        starts and sensors, and updates what `read` returns for these environments, forces included.
        """
        self._globals.activate()
        robot, env_mask = self._robot, wp.from_torch(mask.contiguous(), dtype=wp.bool)
        robot.reset(env_mask=env_mask)
        if self._feet:
            self._feet.reset(env_mask=env_mask)
        if self._floating:
            robot.write_root_link_pose_to_sim_mask(root_pose=base_pose.contiguous(), env_mask=env_mask)
            robot.write_root_link_velocity_to_sim_mask(root_velocity=base_vel.contiguous(), env_mask=env_mask)
        robot.write_joint_state_to_sim_mask(
            position=joint_pos.contiguous(), velocity=joint_vel.contiguous(), env_mask=env_mask
        )
        NewtonManager.forward()
        if self._feet:
            self._update_contacts()

    def _update_contacts(self) -> None:
        """Compute the contact forces of the current state by a forward pass of the solver; keeps its warm starts."""
        solver, data = self._solver, self._solver.mjw_data
        with wp.ScopedDevice(solver.model.device):
            solver._apply_mjc_control(solver.model, self._state, NewtonManager.get_control(), data)
            solver._update_mjc_data(data, solver.model, self._state)
            mjw.forward(solver.mjw_model, data)
            NewtonManager._update_sensors(None)
        assert self._feet is not None
        # A sensor at time zero, as after its reset, reads zero.
        self._feet.update(self._sim.get_physics_dt(), force_recompute=True)

    def command(self, position: Tensor, effort: Tensor) -> None:
        """Hold positions (N, J) for the drives and forces (N, J), which are added, in Isaac Lab's order."""
        self._globals.activate()
        self._robot.actuators.target_command.set_position_mask(value=position.contiguous())
        self._robot.actuators.target_command.set_effort_mask(value=effort.contiguous())
        self._scene.write_data_to_sim()

    def step(self, substeps: int) -> None:
        """Take `substeps` physics steps."""
        self._globals.activate()
        for _ in range(substeps):
            self._sim.step(render=False)
        self._scene.update(substeps * self._sim.get_physics_dt())

    def rows(self) -> dict[str, Tensor]:
        """The simulation state, (N, ...) each: live views, to be read and written.

        `joint_q` and `joint_qd` begin with a free base: its world position and xyzw; the linear velocity of its
        centre of mass and its angular velocity, world axes.
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
        for name in ("_robot", "_feet", "_scene", "_solver", "_state"):
            self.__dict__.pop(name, None)
        try:
            with silence():
                SimulationContext.clear_instance()
        finally:
            self.__dict__.pop("_sim", None)
            self._globals.reset()


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
