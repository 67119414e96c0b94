"""MuJoCo on the CPU: thousands of environments stepped by C threads (mjbatch) over one MJCF."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import mujoco
import numpy as np
import torch
from mjbatch import Batch

from robolearn.envs import mjcf
from robolearn.envs.backend import Capabilities, Snapshot
from robolearn.envs.randomize import nominal, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import Pose, State, Tensor, quat_rotate, quat_rotate_inverse, robot_entity
from robolearn.errors import RunFailed

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] is a diverged simulation, not a robot."""

_DIVERGENCE_WARNINGS = [
    int(mujoco.mjtWarning.mjWARN_BADQPOS),
    int(mujoco.mjtWarning.mjWARN_BADQVEL),
    int(mujoco.mjtWarning.mjWARN_BADQACC),
    int(mujoco.mjtWarning.mjWARN_BADCTRL),
]

_ROOM_WARNINGS = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]


@dataclass
class MujocoConfig:
    """The CPU backend's own settings."""

    threads: int = field(default=0, metadata={"min": 0, "max": 1024})
    """Simulation threads; 0 uses every core."""
    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's own."""
    solver: Literal["robot", "pgs", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's own."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Iterations of the solver, at most; 0 takes the robot's own."""


class MujocoBackend:
    """The `mujoco` backend; the contract is `robolearn.envs.backend.Backend`.

    Positions and velocities are zero-copy views of mjbatch's own float64 rows, converted once a
    step; sensor values arrive from its threads in float32. Torque, body, foot and contact fields lag one
    substep behind, as after any plain mj_step: a further forward pass would cost a third of the
    simulation's speed.
    """

    config_class: ClassVar[type] = MujocoConfig

    def __init__(
        self, robot: Robot, num_envs: int, device: str = "cpu", config: MujocoConfig | None = None
    ) -> None:
        config = config or MujocoConfig()
        if torch.device(device).type != "cpu":
            raise ValueError(f"backend=mujoco runs on the CPU, not on device={device}; use device=cpu")
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.robot = robot
        self.model = mjcf.build_model(robot, "mujoco")
        mjcf.override_options(self.model, config.timestep, config.solver, config.iterations)
        self.capabilities = Capabilities(
            name="mujoco",
            timestep=float(self.model.opt.timestep),
            derived_lag=1,
            pd="implicit",
            exact_restore=True,
            params=settable(robot),
        )
        self._batch = Batch(self.model, num_envs, config.threads)
        self._rows = self._batch.bind("state")
        self._qpos = self._batch.bind("qpos")
        self._qvel = self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")
        self._warning = self._batch.bind("warning")
        self._torque = torch.from_numpy(self._batch.bind("qfrc_actuator", np.float32))
        self._xpos = torch.from_numpy(self._batch.bind("xpos", np.float32))
        self._sensors = self._batch.bind("sensordata", np.float32)
        self._index()
        self._expanded: dict[str, np.ndarray] = {}
        self._entity = robot_entity(robot, num_envs, self.device)
        self._state = State(
            {"robot": self._entity},
            {
                name: torch.full((num_envs,), nominal(name, self.model))
                for name in sorted(self.capabilities.params)
            },
            torch.zeros(num_envs, dtype=torch.bool),
        )
        self._batch.reset()
        self._blank = self._rows[0].copy()
        self._publish()

    def _index(self) -> None:
        """Where the robot's joints, bodies and feet stand in MuJoCo's arrays."""
        model, robot = self.model, self.robot
        joints = [model.joint(name) for name in robot.joints]
        self._joint_qpos = _columns([int(j.qposadr[0]) for j in joints])
        self._joint_dof = _columns([int(j.dofadr[0]) for j in joints])
        self._body_ids = torch.tensor([model.body(name).id for name in robot.bodies], dtype=torch.long)
        sensors = {
            kind: [torch.from_numpy(self._sensor(f"{foot}_{kind}")) for foot in robot.feet]
            for kind in ("pos", "quat", "vel", "force")
        }
        self._foot_sensors = sensors
        self._pd = [i for i, a in enumerate(robot.actuators) if a.kind == "position"]
        self._pd_joints = [robot.actuated[i] for i in self._pd]

    def _sensor(self, name: str) -> np.ndarray:
        sensor = self.model.sensor(name)
        return self._sensors[:, sensor.adr[0] : sensor.adr[0] + sensor.dim[0]]

    @property
    def state(self) -> State:
        """The current State; its tensors are reused by the next step."""
        return self._state

    def reset(self, mask: Tensor, pose: Pose) -> None:
        """See `Backend.reset`."""
        ids = mask.nonzero().squeeze(-1)
        if not len(ids):
            return
        rows = ids.numpy()
        # Rows written since the last step (a restore) would be laid over mj_resetData: start from a blank one.
        self._rows[rows] = self._blank
        self._batch.reset(rows)
        if self.robot.base:
            self._qpos[rows, :3] = pose.base_pos[ids].numpy()
            self._qpos[rows, 3:7] = pose.base_quat[ids].numpy()
            # MuJoCo's free joint: linear velocity in the world, angular in the body.
            self._qvel[rows, :3] = quat_rotate(pose.base_quat[ids], pose.base_lin_vel[ids]).numpy()
            self._qvel[rows, 3:6] = pose.base_ang_vel[ids].numpy()
        self._qpos[rows[:, None], np.arange(self.model.nq)[self._joint_qpos]] = pose.joint_pos[ids].numpy()
        self._qvel[rows[:, None], np.arange(self.model.nv)[self._joint_dof]] = pose.joint_vel[ids].numpy()
        # Hold the pose: with targets left at 0 the first torques and contact forces would be those of a
        # robot being pulled to its zero position.
        self._ctrl[rows[:, None], self._pd] = pose.joint_pos[ids][:, self._pd_joints].numpy()
        self._batch.forward(rows)
        self._publish()
        self._state.diverged[ids] = False

    def step(self, targets: Tensor, substeps: int) -> None:
        """See `Backend.step`."""
        self._ctrl[:] = targets.numpy()
        self._batch.step(nstep=substeps)
        self._publish()
        # MuJoCo resets a simulation that turned NaN and goes on silently; only its counters tell.
        gave_up = torch.from_numpy((self._warning[:, _DIVERGENCE_WARNINGS, 1] > 0).any(axis=1))
        if gave_up.any():
            self._warning[gave_up.numpy()] = 0  # told once; the next one counts from zero
        speed = torch.from_numpy(self._qvel).abs().amax(dim=1)
        self._state.diverged.copy_(gave_up | ~(speed < ABSURD_SPEED))

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """See `Backend.push`."""
        rows = mask.nonzero().squeeze(-1)
        if self.robot.base and len(rows):
            self._qvel[rows.numpy(), :3] += jump[rows].numpy()  # a free joint's velocity is the world's

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return {
            "rows": torch.from_numpy(self._rows.copy()),
            "warning": torch.from_numpy(self._warning.copy()),
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            "published": {k: v.clone() for k, v in self._entity.tensors().items()},
            # What `_publish` reads: a later reset of other rows publishes these again.
            "derived": {k: v.clone() for k, v in self._derived().items()},
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs) if source_rows is None else source_rows
        everywhere = torch.ones(self.num_envs, dtype=torch.bool)
        changed = {
            name: values[source]
            for name, values in snapshot["params"].items()
            if not torch.equal(values[source], self._state.params[name])
        }
        if changed:
            self.set_params(everywhere, changed)
        self._rows[:] = snapshot["rows"][source].numpy()
        self._warning[:] = snapshot["warning"][source].numpy()
        self._state.diverged.copy_(snapshot["diverged"][source])
        for name, tensor in self._entity.tensors().items():
            tensor.copy_(snapshot["published"][name][source])
        for name, tensor in self._derived().items():
            tensor.copy_(snapshot["derived"][name][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        rows = mask.nonzero().squeeze(-1).numpy()
        if not len(rows):
            return
        for name, values in params.items():
            value = values[mask].double().numpy()
            if name == "friction":
                # MuJoCo takes the larger of the two surfaces' friction, so both get it.
                self._expand("geom_friction")[rows, :, 0] = value[:, None]
            elif name == "gain_scale":
                for column, model_field in (
                    (slice(0, 1), "actuator_gainprm"),
                    (slice(1, 3), "actuator_biasprm"),
                ):
                    nominal = getattr(self.model, model_field)[self._pd, column]
                    self._expand(model_field)[rows[:, None], self._pd, column] = (
                        nominal * value[:, None, None]
                    )
            elif name == "mass_scale":
                self._expand("body_mass")[rows] = self.model.body_mass * value[:, None]
                self._expand("body_inertia")[rows] = self.model.body_inertia * value[:, None, None]
                self._batch.set_const(rows)
            self._state.params[name][mask] = values[mask]

    def check(self) -> None:
        """See `Backend.check`."""
        if (self._warning[:, _ROOM_WARNINGS, 1] > 0).any():
            self._warning[:, _ROOM_WARNINGS] = 0
            raise RunFailed(
                "MuJoCo had no room for all contacts or constraints and has dropped some: give the robot's MJCF "
                'more, such as <size memory="10M"/>'
            )

    def close(self) -> None:
        """Free the simulator's threads and memory."""
        self._batch = None  # type: ignore[assignment]

    def _expand(self, model_field: str) -> np.ndarray:
        # Expanded only when first used: a field that nobody randomizes costs nothing per step.
        if model_field not in self._expanded:
            self._expanded[model_field] = self._batch.expand(model_field)
        return self._expanded[model_field]

    def _derived(self) -> dict[str, Tensor]:
        return {"torque": self._torque, "xpos": self._xpos, "sensors": torch.from_numpy(self._sensors)}

    def _publish(self) -> None:
        """Convert MuJoCo's rows into the State's convention, in place."""
        robot = self._entity
        qpos, qvel = torch.from_numpy(self._qpos), torch.from_numpy(self._qvel)
        if self.robot.base:
            robot.base_pos.copy_(qpos[:, :3])
            robot.base_quat.copy_(qpos[:, 3:7])
            robot.base_lin_vel.copy_(quat_rotate_inverse(robot.base_quat, qvel[:, :3].float()))
            robot.base_ang_vel.copy_(qvel[:, 3:6])
        robot.joint_pos.copy_(qpos[:, self._joint_qpos])
        robot.joint_vel.copy_(qvel[:, self._joint_dof])
        robot.joint_torque.copy_(self._torque[:, self._joint_dof])
        if len(self._body_ids):
            robot.body_pos.copy_(self._xpos[:, self._body_ids])
        for f in range(len(self.robot.feet)):
            robot.foot_pos[:, f].copy_(self._foot_sensors["pos"][f])
            robot.foot_quat[:, f].copy_(self._foot_sensors["quat"][f])
            robot.foot_lin_vel[:, f].copy_(self._foot_sensors["vel"][f])
            robot.foot_force[:, f].copy_(self._foot_sensors["force"][f])


def _columns(indices: list[int]) -> slice | list[int]:
    """A slice (a view, no copy) where the robot's joint order is also MuJoCo's, the indices otherwise."""
    first = indices[0]
    if indices == list(range(first, first + len(indices))):
        return slice(first, first + len(indices))
    return indices
