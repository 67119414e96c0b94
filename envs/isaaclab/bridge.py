"""The one file that knows Isaac Lab's names (3.0.0): a robot on the ground, N times, on Newton's MuJoCo Warp."""

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

from robolearn.envs.contacts import Room, colliding_pairs
from robolearn.envs.isaaclab.convention import Measured
from robolearn.envs.isaaclab.usd import ground_usd, number_of, numbered, robot_usd
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import quiet
from robolearn.errors import ConfigError

_ROBOT = "{ENV_REGEX_NS}/Robot"
_MANAGERS = (PhysicsManager, NewtonManager, NewtonMJWarpManager)
_UNLIMITED = 1.0e6
"""Effort of a joint without a position actuator [Nm or N]; forces are clipped before they come here."""

_LOST = ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
"""Overflows by which physics is lost. A solver that stops at its limit of iterations is as it was asked to be."""


class Globals:
    """What Isaac Lab keeps in its classes about the one simulation it expects in a process, for one of several.

    `SimulationContext` is a singleton and its physics managers are classes that are never instantiated. Nothing of that
    is on the device; so each simulation of ours has its own values, laid into the classes while it is used.
    """

    _active: ClassVar[Globals | None] = None
    _pristine: ClassVar[dict[type, dict[str, Any]]] = {}

    def __init__(self) -> None:
        self._refuse_others()
        if Globals._active is None:
            Globals._pristine = {manager: _own(manager) for manager in _MANAGERS}
        self._values = _fresh(Globals._pristine)
        self._context: Any = None
        self._stage: Any = None

    @staticmethod
    def _refuse_others() -> None:
        if Globals._active is None and SimulationContext.instance() is not None:
            raise ConfigError(
                "backend=isaaclab: this process has a SimulationContext of its own; call its clear_instance() first"
            )

    def activate(self) -> None:
        """Lay these values into the classes, after keeping those that are there for whom they belong to."""
        if Globals._active is self:
            return
        self._refuse_others()
        if Globals._active is not None:
            Globals._active._keep()
        self._lay()
        Globals._active = self

    def _keep(self) -> None:
        self._values = {manager: _own(manager) for manager in _MANAGERS}
        self._context = SimulationContext.instance()
        self._stage = getattr(stages._context, "stage", None)

    def _lay(self) -> None:
        for manager, values in self._values.items():
            for name in set(_own(manager)) - set(values):
                delattr(manager, name)
            for name, value in values.items():
                setattr(manager, name, value)
        SimulationContext._instance, stages._context.stage = self._context, self._stage

    def forget(self) -> None:
        """Give the classes back as they were before there was a simulation of ours."""
        self._values, self._context, self._stage = _fresh(Globals._pristine), None, None
        self._lay()
        Globals._active = None


def _own(manager: type) -> dict[str, Any]:
    """A manager's variables. Numbers of callbacks stay unique in the process: late destructors give them back."""
    fixed = (classmethod, staticmethod, property)
    return {
        name: value
        for name, value in vars(manager).items()
        if not name.startswith(("__", "_abc")) and name != "_callback_id" and not isinstance(value, fixed)
    }


def _fresh(values: dict[type, dict[str, Any]]) -> dict[type, dict[str, Any]]:
    """The same with containers of their own."""
    return {
        manager: {k: type(v)(v) if type(v) in (dict, list, set) else v for k, v in own.items()}
        for manager, own in values.items()
    }


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Without what Isaac Lab, Newton and Warp print while they build: banners, tables, times. Errors are raised."""
    quiet()
    Timer.enable_display_output = False
    for name in ("isaaclab", "isaaclab_newton", "isaaclab_physx", "newton"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Bridge:
    """N robots in Isaac Lab, in its own conventions; see `robolearn.envs.isaaclab.convention.Measured`.

    Environments stand on one another (a spacing of 0): they are worlds of their own and cannot touch, and no position
    loses digits to a place far from the world's origin.
    """

    def __init__(
        self, robot: Robot, model: mujoco.MjModel, num_envs: int, device: torch.device, room: Room
    ) -> None:
        """`model` is the robot's MuJoCo scene; its options are those of the solver."""
        self._globals = Globals()
        self._globals.activate()
        self._grounded, self._floating = bool(robot.feet), robot.base is not None
        try:
            with silence():
                self._build(robot, model, num_envs, device, room)
        except BaseException:
            self.close()
            raise

    def _build(self, robot: Robot, model: mujoco.MjModel, n: int, device: torch.device, room: Room) -> None:
        names = dof_names(model)
        self._sim = SimulationContext(
            SimulationCfg(
                dt=float(model.opt.timestep),
                device=str(device),
                create_stage_in_memory=True,  # never the stage of another simulation
                gravity=tuple(float(g) for g in model.opt.gravity),
                physics=NewtonCfg(
                    solver_cfg=solver_options(model, room),
                    # Contacts begin where surfaces meet, as in MuJoCo; Isaac Lab's own margin is 1 cm.
                    default_shape_cfg=NewtonShapeCfg(margin=0.0, gap=0.0),
                ),
            )
        )
        scene = InteractiveSceneCfg(num_envs=n, env_spacing=0.0, replicate_physics=True)
        drives = {a.joint: a for a in robot.actuators if a.kind == "position"}

        def each(value: str, otherwise: float) -> dict[str, float]:
            return {there: getattr(drives.get(ours), value, otherwise) for there, ours in names.items()}

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
                    stiffness=each("kp", 0.0),
                    damping=each("kd", 0.0),
                    joint_effort_limit=each("effort", _UNLIMITED),
                )
            },
        )
        if robot.base is not None or robot.feet:
            scene.ground = AssetBaseCfg(
                prim_path="/World/ground", spawn=sim_utils.UsdFileCfg(usd_path=str(ground_usd()))
            )
        if robot.feet:
            feet = "|".join(numbered("body", model.body(foot).id) for foot in robot.feet)
            scene.feet = ContactSensorCfg(prim_path=f"{_ROBOT}/.*/(?:{feet})[^/]*")
        self._scene = InteractiveScene(scene)
        self._sim.reset()
        self._scene.update(self._sim.get_physics_dt())
        self._robot = self._scene["robot"]
        self._feet = self._scene["feet"] if robot.feet else None
        self._solver, self._state = NewtonManager._solver, NewtonManager.get_state_0()
        self._solver.mjw_model.opt.warn_overflow = False
        # What the articulation has set since is told to the solver with the first step, which writes its rows anew:
        # that step is taken here, and nowhere that anybody looks at.
        self._sim.step(render=False)
        self._scene.update(self._sim.get_physics_dt())
        self.overflow()
        self.joint_names = [names.get(name, name) for name in self._robot.joint_names]
        self.body_names = [model.body(number_of(name)).name for name in self._robot.body_names]
        found = self._feet.sensor_names if self._feet else []
        self.sensor_names = [model.body(number_of(name)).name for name in found]
        self.origins: Tensor = self._scene.env_origins.to(device=device, dtype=torch.float32).clone()
        self.solver_model: mujoco.MjModel = self._solver.mj_model
        """What Newton made of the robot, as MuJoCo compiled it."""
        labels = NewtonManager.get_model().body_label
        numbers = self._solver.mjc_body_to_newton.numpy()[0]
        self.solver_bodies = [model.body(0 if b < 0 else number_of(labels[b])).name for b in numbers]
        """Its bodies, in its order, by our names."""

    def limit_drives(self, efforts: dict[int, float]) -> None:
        """One actuator a drive, limited as MuJoCo limits a position actuator; efforts by joint of `solver_model`.

        Newton makes two of each, for stiffness and for damping, and clips their sum at the joint. Short of saturation
        that is the same. In it MuJoCo's implicit integrator leaves the damping of a clipped actuator out of its
        matrix, which it can only where the actuator itself is limited.
        """
        if not efforts:
            return
        rows = self.model_rows("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")
        gains, bias, ends = rows.values()
        limited = wp.to_torch(self._solver.mjw_model.actuator_forcelimited)
        moved = self._solver.mj_model.actuator_trnid[:, 0]
        for joint, effort in efforts.items():
            pair = [int(i) for i in (moved == joint).nonzero()[0]]
            stiff = [i for i in pair if float(bias[0, i, 2]) == 0.0]
            damp = [i for i in pair if float(bias[0, i, 2]) != 0.0]
            assert max(len(stiff), len(damp)) == 1, f"joint {joint} has other actuators than a drive"
            if stiff and damp:
                bias[:, stiff[0], 2] = bias[:, damp[0], 2]
                gains[:, damp[0]], bias[:, damp[0]] = 0.0, 0.0
            for i in pair:
                limited[i] = True
                ends[:, i, 0], ends[:, i, 1] = -effort, effort

    def read(self) -> Measured:
        """Everything as it is now; live views, to be copied."""
        self._globals.activate()
        data = self._robot.data
        pose, joints = data.body_link_pose_w.torch, data.joint_pos.torch
        force = self._feet.data.net_forces_w.torch if self._feet else joints.new_zeros(len(joints), 0, 3)
        return Measured(joints, data.joint_vel.torch, pose, data.body_link_vel_w.torch, force)

    def write(
        self, mask: Tensor, base_pose: Tensor, base_vel: Tensor, joint_pos: Tensor, joint_vel: Tensor
    ) -> None:
        """Put the environments in `mask` there, at rest otherwise.

        A base's pose (N, 7), xyzw, and velocity (N, 6) in world axes; joints (N, J) in Isaac Lab's order. Clears warm
        starts and sensors, and makes what `read` tells of them current, forces included.
        """
        self._globals.activate()
        robot, chosen = self._robot, wp.from_torch(mask.contiguous(), dtype=wp.bool)
        robot.reset(env_mask=chosen)
        if self._feet:
            self._feet.reset(env_mask=chosen)
        if self._floating:
            robot.write_root_link_pose_to_sim_mask(root_pose=base_pose.contiguous(), env_mask=chosen)
            robot.write_root_link_velocity_to_sim_mask(root_velocity=base_vel.contiguous(), env_mask=chosen)
        robot.write_joint_state_to_sim_mask(
            position=joint_pos.contiguous(), velocity=joint_vel.contiguous(), env_mask=chosen
        )
        NewtonManager.forward()
        if self._feet:
            self._find_contacts()

    def _find_contacts(self) -> None:
        """Contact forces at the present state: a forward pass of the solver, whose warm starts it leaves alone."""
        solver, data = self._solver, self._solver.mjw_data
        with wp.ScopedDevice(solver.model.device):
            solver._apply_mjc_control(solver.model, self._state, NewtonManager.get_control(), data)
            solver._update_mjc_data(data, solver.model, self._state)
            mjw.forward(solver.mjw_model, data)
            NewtonManager._update_sensors(None)
        assert self._feet is not None
        # A sensor whose time is zero, as after its reset, shows zeros.
        self._feet.update(self._sim.get_physics_dt(), force_recompute=True)

    def command(self, position: Tensor, effort: Tensor) -> None:
        """Positions (N, J) for the drives and forces (N, J) added to them, in Isaac Lab's order; they are held."""
        self._globals.activate()
        self._robot.actuators.target_command.set_position_mask(value=position.contiguous())
        self._robot.actuators.target_command.set_effort_mask(value=effort.contiguous())
        self._scene.write_data_to_sim()

    def step(self, substeps: int) -> None:
        """So many physics steps."""
        self._globals.activate()
        for _ in range(substeps):
            self._sim.step(render=False)
        self._scene.update(substeps * self._sim.get_physics_dt())

    def rows(self) -> dict[str, Tensor]:
        """What the next step follows from, (N, ...) each: live memory, to be read and written.

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
        """The solver's own parameters by MuJoCo's names, (N, ...) each: live memory.

        They are written there and nowhere else, which spares Newton's notification: it works everything out again for
        all environments, at the price of two physics steps.
        """
        model, n = self._solver.mjw_model, len(self.origins)
        found = {}
        for name in names:
            array = model.stat.meaninertia if name == "meaninertia" else getattr(model, name)
            assert array.shape[0] == n, f"{name} is shared by all environments"
            found[name] = wp.to_torch(array)
        return found

    def overflow(self) -> IntFlag:
        """What was dropped for want of room, of all environments since the last call; false where nothing was."""
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
            self._globals.forget()


def solver_options(model: mujoco.MjModel, room: Room) -> MJWarpSolverCfg:
    """MuJoCo's options as those of MuJoCo Warp in Isaac Lab."""
    option = model.opt

    def word(prefix: str, enum: Any, value: int) -> str:
        return str(enum(value).name).removeprefix(prefix).lower()

    return MJWarpSolverCfg(
        njmax=room.rows,
        nconmax=room.contacts,
        iterations=int(option.iterations),
        ls_iterations=int(option.ls_iterations),
        ccd_iterations=int(option.ccd_iterations),
        solver=word("mjSOL_", mujoco.mjtSolver, option.solver),
        integrator=word("mjINT_", mujoco.mjtIntegrator, option.integrator),
        cone=word("mjCONE_", mujoco.mjtCone, option.cone),
        impratio=float(option.impratio),
        tolerance=float(option.tolerance),
    )


def dof_names(model: mujoco.MjModel) -> dict[str, str]:
    """Isaac Lab's name of each joint, and ours: joints that share a body are one of several axes there, first:0, ..."""
    names: dict[str, str] = {}
    for body in range(model.nbody):
        joints = [
            joint
            for joint in range(model.njnt)
            if model.jnt_bodyid[joint] == body and model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE
        ]
        for axis, joint in enumerate(joints):
            first = numbered("joint", joints[0])
            names[first if len(joints) == 1 else f"{first}:{axis}"] = model.joint(joint).name
    return names


def touches_itself(model: mujoco.MjModel) -> bool:
    """Whether geoms of the robot, those of a base that is fixed among them, can touch one another."""
    return any(model.geom_bodyid[a] and model.geom_bodyid[b] for a, b in colliding_pairs(model))
