"""The backend `isaaclab`: Isaac Lab 3 on Newton's MuJoCo Warp, converted to RoboLearn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import Capabilities, Snapshot
from robolearn.envs.contacts import array_sizes
from robolearn.envs.isaaclab import convention
from robolearn.envs.isaaclab.fidelity import Match, differences
from robolearn.envs.randomize import InverseWeights, nominal, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, State, Tensor, robot_entity
from robolearn.errors import ConfigError, RunFailed

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] counts as divergence."""

SETTABLE = (
    "timestep", "solver", "iterations", "ls_iterations", "ccd_iterations", "integrator", "cone", "impratio",
    "tolerance", "nconmax", "njmax",
)  # fmt: skip
"""Options of `solver.isaaclab` that Isaac Lab accepts."""


@dataclass
class IsaacLabConfig:
    """Settings of the Isaac Lab backend."""

    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's value."""
    solver: Literal["robot", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's value."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Maximum number of solver iterations; 0 takes the robot's value."""
    nconmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for contacts, per environment on average; 0 takes the robot's value, or computes it from its geoms."""
    njmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for constraint rows of each environment; 0 takes the robot's value, or computes it from nconmax."""


class IsaacLabBackend:
    """The `isaaclab` backend; the contract is `robolearn.envs.backend.Backend`.

    Position actuators are drives inside the solver. All fields are at time t except `foot_force`, which is that of
    the last substep: contacts are computed at its beginning and act through it. After a reset it is that of the
    initial state. Several instances can exist at once, although Isaac Lab's classes allow one simulation per process.
    """

    config_class: ClassVar[type] = IsaacLabConfig

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        device: str = "cpu",
        config: IsaacLabConfig | None = None,
        bridge: Callable[..., Any] | None = None,
    ) -> None:
        """`bridge` is for tests: a class to use instead of `robolearn.envs.isaaclab.bridge.Bridge`."""
        config = config or IsaacLabConfig()
        self.robot, self.num_envs = robot, num_envs
        self.model = _model(robot, config)
        if bridge is None:
            from robolearn.envs.warp_graphs import quiet, require_device

            quiet()  # before the import of Isaac Lab, which initializes Warp
            self.device = require_device(device, "isaaclab")
            from robolearn.envs.isaaclab.bridge import Bridge

            bridge = Bridge
        else:
            self.device = torch.device(device)
        self.capabilities = Capabilities(
            name="isaaclab",
            timestep=float(self.model.opt.timestep),
            derived_lag=0,
            pd="implicit",
            exact_restore=self.device.type == "cpu",  # on a GPU the order of summation varies
            params=settable(robot),
        )
        sizes = mjcf.options(robot, "isaaclab")
        self._array_sizes = array_sizes(
            self.model, config.nconmax or sizes.get("nconmax", 0), config.njmax or sizes.get("njmax", 0)
        )
        self._bridge = bridge(robot, self.model, num_envs, self.device, self._array_sizes)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        robot, n = self.robot, self.num_envs
        try:
            match = Match(self.model, self._bridge.solver_model, self._bridge.solver_bodies)
        except ValueError as error:
            raise ConfigError(f"{robot.mjcf}: its conversion to USD changes the robot: {error}") from None
        lost = differences(self.model, self._bridge.solver_model, match)
        if lost:
            raise ConfigError(
                f"{robot.mjcf}: its conversion to USD changes the robot, which backend=isaaclab does not support: "
                + "; ".join(lost[:3])
            )
        joint_id = {a.joint: self.model.joint(a.joint).id for a in robot.actuators if a.kind == "position"}
        self._bridge.limit_drives(
            {int(match.joints[joint_id[a.joint]]): a.effort for a in robot.actuators if a.joint in joint_id}
        )
        self._origins: Tensor = self._bridge.origins
        self._joints = self._order(robot.joints, self._bridge.joint_names)
        self._bodies = self._order(robot.bodies, self._bridge.body_names)
        self._feet = self._order(robot.feet, self._bridge.body_names)
        self._sensors = self._order(robot.feet, self._bridge.sensor_names)
        self._base = self._bridge.body_names.index(robot.base) if robot.base else -1
        self._actuated = list(robot.actuated)
        self._soles = self._sole_sites()
        drives = robot.actuators

        def row(values: list[float]) -> Tensor:
            return torch.tensor(values, device=self.device)

        self._kp, self._kd = row([a.kp for a in drives]), row([a.kd for a in drives])
        self._effort = row([a.effort for a in drives])
        self._drives = torch.tensor([a.kind == "position" for a in drives], device=self.device)
        self._entity = robot_entity(robot, n, self.device)
        params = {
            name: torch.full((n,), nominal(name, self.model), device=self.device)
            for name in sorted(self.capabilities.params)
        }
        self._state = State(
            {"robot": self._entity}, params, torch.zeros(n, dtype=torch.bool, device=self.device)
        )
        self._joint_targets = torch.zeros(n, len(drives), device=self.device)
        self._varied = self._parameters(match)
        zeros = torch.zeros(n, 3, device=self.device)
        upright = torch.zeros(n, 4, device=self.device)
        upright[:, 0] = 1.0
        raised = zeros.clone()
        raised[:, 2] = robot.home_height
        home = torch.tensor(robot.home, device=self.device).repeat(n, 1)
        everywhere = torch.ones(n, dtype=torch.bool, device=self.device)
        self.reset(everywhere, InitialState(raised, upright, zeros, zeros, home, torch.zeros_like(home)))

    def _order(self, names: tuple[str, ...], isaaclab_names: list[str]) -> convention.Order:
        try:
            return convention.Order(names, isaaclab_names, self.device)
        except ValueError as error:
            raise ConfigError(f"{self.robot.mjcf}: {error}") from None

    def _sole_sites(self) -> convention.Soles:
        sites = [self.model.site(foot) for foot in self.robot.feet]

        def rows(values: list[Any], width: int) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device).view(len(sites), width)

        return convention.Soles(
            rows([site.pos.tolist() for site in sites], 3), rows([site.quat.tolist() for site in sites], 4)
        )

    # ------------------------------------------------------------------ the contract

    @property
    def state(self) -> State:
        """The current State; its tensors are reused by the next step."""
        return self._state

    def reset(self, mask: Tensor, initial: InitialState) -> None:
        """See `Backend.reset`."""
        if not bool(mask.any()):
            return
        # Hold the initial joint positions; force actuators apply nothing.
        held = torch.where(self._drives, initial.joint_pos[:, self._actuated], 0.0)
        self._joint_targets = torch.where(mask[:, None], held, self._joint_targets)
        self._write_targets()
        self._bridge.write(
            mask,
            convention.world_pose(initial.base_pos, initial.base_quat, self._origins),
            convention.world_velocity(initial.base_quat, initial.base_lin_vel, initial.base_ang_vel),
            self._joints.to_isaaclab(initial.joint_pos),
            self._joints.to_isaaclab(initial.joint_vel),
        )
        self._publish(mask)
        self._state.diverged.masked_fill_(mask, False)

    def step(self, joint_targets: Tensor, substeps: int) -> None:
        """See `Backend.step`."""
        # Joint targets that are not finite count as divergence; that robot holds its last finite joint targets.
        finite = joint_targets.isfinite().all(dim=1)
        self._joint_targets = torch.where(finite[:, None], joint_targets.detach(), self._joint_targets)
        self._write_targets()
        self._bridge.step(substeps)
        self._publish(None)
        robot = self._entity
        speeds = torch.cat([robot.base_lin_vel, robot.base_ang_vel, robot.joint_vel], dim=1).abs().amax(dim=1)
        finite &= torch.cat([robot.base_pos, robot.joint_pos], dim=1).isfinite().all(dim=1)
        self._state.diverged.copy_(~(speeds < ABSURD_SPEED) | ~finite)

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """See `Backend.push`."""
        if self.robot.base:
            # The velocity of the centre of mass, which the same jump changes.
            velocity = self._bridge.rows()["joint_qd"][:, :3]
            velocity += torch.where(mask[:, None], jump, 0.0)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        rows = {name: row.clone() for name, row in self._bridge.rows().items()}
        self._shift_origins(rows["joint_q"], -1.0)
        return {
            "rows": rows,
            "targets": self._joint_targets.clone(),
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            # The rows of the model that derive from the parameters; recomputing them could round differently.
            "model": {name: row.clone() for name, row in self._varied.items()},
            "published": {k: v.clone() for k, v in self._entity.tensors().items()},
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        for name, row in self._bridge.rows().items():
            row.copy_(snapshot["rows"][name][source])
        self._shift_origins(self._bridge.rows()["joint_q"], 1.0)
        for name, row in self._varied.items():
            row.copy_(snapshot["model"][name][source])
        for name, known in self._state.params.items():
            known.copy_(snapshot["params"][name][source])
        self._joint_targets = snapshot["targets"][source].clone()
        self._state.diverged.copy_(snapshot["diverged"][source])
        for name, tensor in self._entity.tensors().items():
            tensor.copy_(snapshot["published"][name][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        for name, values in params.items():
            known = self._state.params[name]
            known.copy_(torch.where(mask, values, known))
            for field_name, rows in getattr(self, f"_{name}_rows")(values).items():
                varied = self._varied[field_name]
                varied.copy_(torch.where(mask.view(-1, *[1] * (varied.dim() - 1)), rows, varied))

    def check(self) -> None:
        """See `Backend.check`."""
        lost = self._bridge.overflow()
        if lost:
            raise RunFailed(self._array_sizes.overflow_message(lost).replace("mujoco_warp", "isaaclab"))

    def close(self) -> None:
        """Free the simulator."""
        bridge, self._bridge = getattr(self, "_bridge", None), None
        if bridge is not None:
            bridge.close()

    @property
    def scratch_bytes(self) -> int:
        """Memory [bytes] outside of tensors: the solver's workspace within a step, and Isaac Lab's Python and USD
        objects of the environments (measured: about 5 kB per body).
        """
        square = (-(-self.model.nv // 16) * 16) ** 2
        workspace = 4 * (2 * square + 6 * self._array_sizes.rows + 12 * self.model.nv)
        return self.num_envs * (workspace + 5_000 * self.model.nbody)

    # ------------------------------------------------------------------ conversion

    def _write_targets(self) -> None:
        """Write positions for the drives, and forces, clipped here, for the force actuators."""
        position = torch.where(self._drives, self._joint_targets, 0.0)
        force = torch.where(self._drives, 0.0, self._joint_targets.clamp(-self._effort, self._effort))
        self._bridge.command(self._to_joints(position), self._to_joints(force))

    def _to_joints(self, values: Tensor) -> Tensor:
        """Values (N, A) of actuators as (N, J) of joints in Isaac Lab's order, zero for passive joints."""
        joints = values.new_zeros(self.num_envs, len(self.robot.joints))
        joints[:, self._actuated] = values
        return self._joints.to_isaaclab(joints)

    def _shift_origins(self, joint_q: Tensor, sign: float) -> None:
        """Add the environments' origins to a free base's position, or subtract them with `sign` -1."""
        if self.robot.base:
            joint_q[:, :3] += sign * self._origins

    def _publish(self, mask: Tensor | None) -> None:
        """Convert Isaac Lab's measurements to State, in all rows or those in `mask`."""
        measured, robot = self._bridge.read(), self._entity
        position = convention.without_origins(measured.body_pose[..., :3], self._origins)
        found = {
            "joint_pos": self._joints.from_isaaclab(measured.joint_pos),
            "joint_vel": self._joints.from_isaaclab(measured.joint_vel),
            "body_pos": self._bodies.from_isaaclab(position),
            "foot_force": self._sensors.from_isaaclab(measured.contact_force),
        }
        if self._base >= 0:
            pose, velocity = measured.body_pose[:, self._base], measured.body_vel[:, self._base]
            found["base_pos"], found["base_quat"] = position[:, self._base], convention.to_wxyz(pose[:, 3:])
            found["base_lin_vel"], found["base_ang_vel"] = convention.link_velocity(pose, velocity)
        quat = convention.to_wxyz(self._feet.from_isaaclab(measured.body_pose)[..., 3:])
        found["foot_pos"], found["foot_quat"], found["foot_lin_vel"] = self._soles.in_world(
            self._feet.from_isaaclab(position), quat, self._feet.from_isaaclab(measured.body_vel)
        )
        found["joint_torque"] = self._torque(found["joint_pos"], found["joint_vel"])
        for name, value in found.items():
            published = getattr(robot, name)
            if mask is not None:
                value = torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, published)
            published.copy_(value)

    def _torque(self, joint_pos: Tensor, joint_vel: Tensor) -> Tensor:
        """The torques (N, J) of the actuators at these joint positions and velocities."""
        scale = self._state.params.get("gain_scale", torch.ones(1, device=self.device))[:, None]
        error = self._joint_targets - joint_pos[:, self._actuated]
        pd = scale * (self._kp * error - self._kd * joint_vel[:, self._actuated])
        torque = torch.zeros_like(joint_pos)
        commanded = torch.where(self._drives, pd, self._joint_targets)
        torque[:, self._actuated] = commanded.clamp(-self._effort, self._effort)
        return torque

    # ------------------------------------------------------------------ parameters

    def _parameters(self, match: Match) -> dict[str, Tensor]:
        """The solver's rows that `set_params` writes; stores their nominal values."""
        names = ["geom_friction"]
        if "gain_scale" in self.capabilities.params:
            names += ["actuator_gainprm", "actuator_biasprm"]
        if "mass_scale" in self.capabilities.params:
            names += ["body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"]
            names += ["meaninertia"]
            weights = InverseWeights(self.model)

            def tensor(array: Any) -> Tensor:
                return torch.as_tensor(array, dtype=torch.float32, device=self.device)

            self._poles, self._mean_inertia = tensor(weights.poles), weights.mean_inertia
            # One row per degree of freedom and body of Newton's model, in its order.
            self._dof_weights = tensor(weights.dofs[match.dofs.argsort()])
            self._body_weights = tensor(weights.bodies[match.bodies.argsort()])
        varied: dict[str, Tensor] = self._bridge.model_rows(*names)
        self._nominal = {name: row.clone() for name, row in varied.items()}
        return varied

    def _friction_rows(self, value: Tensor) -> dict[str, Tensor]:
        # MuJoCo takes the larger of the two surfaces' friction, so both get it.
        rows = self._nominal["geom_friction"].clone()
        rows[..., 0] = value[:, None]
        return {"geom_friction": rows}

    def _gain_scale_rows(self, value: Tensor) -> dict[str, Tensor]:
        # Every actuator in the solver is a position drive; forces bypass the solver's actuators.
        names = ("actuator_gainprm", "actuator_biasprm")
        return {name: self._nominal[name] * value[:, None, None] for name in names}

    def _mass_scale_rows(self, value: Tensor) -> dict[str, Tensor]:
        gains = 1.0 / (value[:, None] + self._poles)
        slope, rest = self._mean_inertia
        rows = {
            "meaninertia": slope * value + rest,
            "dof_invweight0": gains @ self._dof_weights.T,
            "body_invweight0": torch.einsum("nv,bkv->nbk", gains, self._body_weights),
        }
        for name in ("body_mass", "body_inertia", "body_subtreemass"):
            rows[name] = self._nominal[name] * value.view(-1, *[1] * (self._nominal[name].dim() - 1))
        return rows


def _model(robot: Robot, config: IsaacLabConfig) -> mujoco.MjModel:
    """The robot's MuJoCo scene with the options of Isaac Lab's solver."""
    model = mjcf.build_model(robot, "isaaclab")
    for name in mjcf.options(robot, "isaaclab"):
        if name not in SETTABLE:
            raise ConfigError(
                f"{robot.source}: solver.isaaclab.{name} cannot be set in Isaac Lab; remove it (valid: "
                f"{', '.join(SETTABLE)})"
            )
    mjcf.override_options(model, config.timestep, config.solver, config.iterations)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        raise ConfigError(
            f"{robot.source}: solver.isaaclab.solver is PGS, which Isaac Lab lacks (valid: Newton, CG)"
        )
    return model
