"""MuJoCo on the CPU: thousands of environments stepped by C threads (mujoco.batch) over one model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError

from robolearn.envs import mjcf
from robolearn.envs.backend import FEATURES, MOTORS, Capabilities, Snapshot, require_features
from robolearn.envs.model_changes import WITH_CONSTANTS, ModelChanges
from robolearn.envs.mujoco.index import EntityIndex, Offsets
from robolearn.envs.mujoco.timers import stop_timers
from robolearn.envs.parameters import EVERY
from robolearn.envs.randomize import require_same_params, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import (
    Initial,
    State,
    Targets,
    Tensor,
    by_entity,
    home,
    quat_rotate,
    quat_rotate_inverse,
    scene_state,
)
from robolearn.errors import RunFailed, one_line

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] counts as divergence."""

_DIVERGENCE_WARNINGS = [
    int(mujoco.mjtWarning.mjWARN_BADQPOS),
    int(mujoco.mjtWarning.mjWARN_BADQVEL),
    int(mujoco.mjtWarning.mjWARN_BADQACC),
    int(mujoco.mjtWarning.mjWARN_BADCTRL),
]

_ROOM_WARNINGS = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]

_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)


@dataclass
class MujocoConfig:
    """Settings of the CPU backend."""

    threads: int = field(default=0, metadata={"min": 0, "max": 1024})
    """Simulation threads; 0 uses every core."""
    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's value."""
    solver: Literal["robot", "pgs", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's value."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Maximum number of solver iterations; 0 takes the robot's value."""


class MujocoBackend:
    """The `mujoco` backend; the contract is `robolearn.envs.backend.Backend`.

    Every tensor named after an MjData field is a zero-copy view of the batch's float64 rows; `_publish` converts the
    columns that the State shows. Torque, body, foot and contact fields lag one substep, as after a plain mj_step:
    a further forward pass would cost a third of the simulation's speed.
    """

    config_class: ClassVar[type] = MujocoConfig
    features: ClassVar[frozenset[str]] = frozenset(FEATURES) - {MOTORS}

    def __init__(
        self, scene: Scene | Robot, num_envs: int, device: str = "cpu", config: MujocoConfig | None = None
    ) -> None:
        config = config or MujocoConfig()
        self.scene = scene = Scene.of(scene)
        self.robot = scene.robot
        require_features(scene, "mujoco", self.features)
        if torch.device(device).type != "cpu":
            raise ValueError(f"backend=mujoco runs on the CPU, not on device={device}; use device=cpu")
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.model = mjcf.build_model(scene, "mujoco")
        mjcf.override_options(self.model, config.timestep, config.solver, config.iterations)
        self.capabilities = Capabilities(
            name="mujoco",
            timestep=float(self.model.opt.timestep),
            derived_lag=1,
            pd="implicit",
            exact_restore=True,
            params=settable(scene, EVERY),
            features=self.features,
        )
        self._changes = ModelChanges(scene, self.model, torch.float64)
        stop_timers()
        self._batch = Batch(self.model, num_envs, config.threads)
        self._rows = torch.from_numpy(self._batch.state)
        self._warning = torch.from_numpy(self._batch.warning)
        self._qpos = self._field("qpos")
        self._qvel = self._field("qvel")
        self._ctrl = self._field("ctrl")
        self._expanded: dict[str, np.ndarray] = {}
        self._told = False
        self._force: Tensor | None = None
        self._entities = scene_state(scene, num_envs, self.device)
        self._indices = {name: EntityIndex.of(scene, name, self.model) for name in scene.entities}
        self._offsets = Offsets(num_envs) if scene.terrain is not None else None
        self._shown: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Views: columns of the State's tensors, the columns of MuJoCo's rows that they show, and what is subtracted
        from positions on a terrain."""
        for name, index in self._indices.items():
            tensors = self._entities[name].tensors()
            for each in index.published:
                shown = tensors[each.path].flatten(1)[:, each.first : each.first + len(each.columns)]
                source = self._field(each.source)
                offset = self._offsets.of(each) if self._offsets is not None else None
                self._show(shown, source.view(num_envs, -1), each.columns, offset)
        self._shown_arrays = [
            (shown.numpy(), source.numpy(), None if offset is None else offset.numpy())
            for shown, source, offset in self._shown
        ]
        self._state = State(
            self._entities,
            {name: torch.full((num_envs,), value) for name, value in self._changes.nominal_values.items()},
            torch.zeros(num_envs, dtype=torch.bool),
            origin=None if self._offsets is None else torch.zeros(num_envs, 3),
        )
        self._batch.reset()
        self._publish()

    def _field(self, name: str) -> Tensor:
        """A live view (N, ...) of an MjData field in the batch."""
        array = self._batch.bind(name)[:]
        # The batch marks computed fields as read-only. We only read them; torch has no read-only tensors.
        array.flags.writeable = True
        return torch.from_numpy(array)

    def _show(self, shown: Tensor, source: Tensor, columns: list[int], offset: Tensor | None) -> None:
        """Publish columns of `source` (N, k), less `offset` (N, len(columns)), as `shown` (N, len(columns)).

        Each range of adjacent columns becomes one slice: slices are views, which copy several times faster than
        columns picked by index.
        """
        start = 0
        for end in range(1, len(columns) + 1):
            if end == len(columns) or columns[end] != columns[end - 1] + 1:
                less = None if offset is None else offset[:, start:end]
                self._shown.append(
                    (shown[:, start:end], source[:, columns[start] : columns[end - 1] + 1], less)
                )
                start = end

    @property
    def state(self) -> State:
        """The current State; its tensors are reused by the next step."""
        return self._state

    def place(self, mask: Tensor, origins: Tensor) -> None:
        """See `TerrainBackend.place`."""
        assert self._offsets is not None
        assert self._state.origin is not None
        self._state.origin[mask] = origins[mask]
        self._offsets.set(self._state.origin)

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`."""
        ids = mask.nonzero().squeeze(-1)
        if not len(ids):
            return
        rows = ids.numpy()
        given = by_entity(initial, self.scene.entities)
        # No forward pass yet: the initial state is not written, and its forces must not warm-start the solver.
        force = None if self._force is None else self._force[ids].clone()
        self._batch.reset(rows, stage=_NO_STAGE)
        if self._force is not None and force is not None:
            self._force[ids] = force  # it stays, see `Backend.apply_force`
        here = ids[:, None]
        for name, index in self._indices.items():
            start = given.get(name) or home(self.scene, name, self.num_envs, self.device)
            if index.root is not None:
                qpos, dof = index.root
                quat = start.base_quat[ids]
                place = start.base_pos[ids].double()
                if self._state.origin is not None:
                    place += self._state.origin[ids].double()
                self._qpos[ids, qpos : qpos + 3] = place
                self._qpos[ids, qpos + 3 : qpos + 7] = quat.double()
                # MuJoCo's free joint: linear velocity in the world, angular in the body.
                self._qvel[ids, dof : dof + 3] = quat_rotate(quat, start.base_lin_vel[ids]).double()
                self._qvel[ids, dof + 3 : dof + 6] = start.base_ang_vel[ids].double()
            joint_pos = start.joint_pos[ids].double()
            self._qpos[here, index.joint_qpos] = joint_pos
            self._qvel[here, index.joint_dof] = start.joint_vel[ids].double()
            # Hold the initial joint positions: with joint targets of 0 the first torques and contact forces would be
            # those of a robot pulled to its zero position.
            self._ctrl[here, index.servos] = joint_pos[:, index.servo_joints]
        self._state.diverged[ids] = False
        try:
            self._batch.forward(rows)
        except SimulationError as error:
            self._give_up(error)
        self._publish(ids)

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`."""
        for name, targets in by_entity(joint_targets, self.scene.robots).items():
            self._ctrl[:, self._indices[name].actuators].copy_(targets.detach())
        failed = None
        try:
            self._batch.step(nstep=substeps)
        except SimulationError as error:
            # The environments that the error names did not step; all others have taken every substep.
            failed = error
        self._publish()
        speed = self._qvel.abs().amax(dim=1)
        self._state.diverged.copy_(~(speed < ABSURD_SPEED))
        # MuJoCo resets a simulation that became NaN and continues silently; only its warning counters show it.
        if self._batch.warning[..., 1].any():
            counted = (self._warning[:, _DIVERGENCE_WARNINGS, 1] > 0).any(dim=1)
            self._warning[counted] = 0  # each warning is reported once
            self._state.diverged |= counted
        if failed is not None:
            self._give_up(failed)

    def _give_up(self, error: SimulationError) -> None:
        """Mark the environments that MuJoCo could not step as diverged; warn about the first such error."""
        self._state.diverged[torch.from_numpy(error.ids)] = True
        if not self._told:
            self._told = True
            warnings.warn(f"{one_line(str(error))}; such environments count as diverged", stacklevel=3)

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        rows = mask.nonzero().squeeze(-1)
        root = self._indices[self.scene.first].root
        if root is not None and len(rows):
            q, dof = root
            # A free joint's linear velocity is in world axes, its angular velocity in those of the body.
            self._qvel[rows, dof : dof + 3] += jump[rows].double()
            if turn is not None:
                quat = self._qpos[rows, q + 3 : q + 7]
                self._qvel[rows, dof + 3 : dof + 6] += quat_rotate_inverse(quat, turn[rows].double())

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`."""
        if self._force is None:
            self._force = self._field("xfrc_applied")[
                :, self.model.body(mjcf.root_body(self.scene, self.scene.first)).id, :3
            ]
        self._force.copy_(force)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return {
            "rows": self._rows.clone(),
            "warning": self._warning.clone(),
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            "published": {k: v.clone() for k, v in self._state.tensors().items()},
            **({} if self._state.origin is None else {"origin": self._state.origin.clone()}),
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        require_same_params(snapshot["params"], self._state.params)
        source = torch.arange(self.num_envs) if source_rows is None else source_rows
        everywhere = torch.ones(self.num_envs, dtype=torch.bool)
        changed = {
            name: values[source]
            for name, values in snapshot["params"].items()
            if not torch.equal(values[source], self._state.params[name])
        }
        if changed:
            self.set_params(everywhere, changed)
        self._rows.copy_(snapshot["rows"][source])
        self._warning.copy_(snapshot["warning"][source])
        self._state.diverged.copy_(snapshot["diverged"][source])
        for name, tensor in self._state.tensors().items():
            tensor.copy_(snapshot["published"][name][source])
        if self._offsets is not None and self._state.origin is not None:
            self._state.origin.copy_(snapshot["origin"][source])
            self._offsets.set(self._state.origin)

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        rows = mask.nonzero().squeeze(-1).numpy()
        if not len(rows):
            return
        for name, values in params.items():
            self._state.params[name][mask] = values[mask]
        drawn = {name: value[rows] for name, value in self._state.params.items()}
        for group in sorted({self._changes.group_of(name) for name in params}):
            for name, changed in self._changes.rows(group, drawn).items():
                self._expand(name)[rows] = changed.numpy()
            if group in WITH_CONSTANTS:
                self._batch.set_const(rows)

    def check(self) -> None:
        """See `Backend.check`."""
        if (self._warning[:, _ROOM_WARNINGS, 1] > 0).any():
            self._warning[:, _ROOM_WARNINGS] = 0
            raise RunFailed(
                "MuJoCo had no room for all contacts or constraints and has dropped some: give the robot's MJCF "
                'more, such as <size memory="10M"/>'
            )

    def close(self) -> None:
        """Free the simulator's threads and host memory."""
        for name in (
            "_batch",
            "_rows",
            "_warning",
            "_qpos",
            "_qvel",
            "_ctrl",
            "_shown",
            "_shown_arrays",
            "_force",
            "_expanded",
        ):
            self.__dict__.pop(name, None)  # a view keeps the whole batch alive

    def _expand(self, model_field: str) -> np.ndarray:
        # Expanded on first use: a field that is not randomized costs nothing per step.
        if model_field not in self._expanded:
            self._expanded[model_field] = self._batch.expand(model_field)
        return self._expanded[model_field]

    def _publish(self, rows: Tensor | None = None) -> None:
        """Convert MuJoCo's rows to the State's convention, in place: all of them, or those with indices `rows`."""
        if rows is None:
            for shown, source, offset in self._shown:
                # The difference in float64, before the State's float32.
                shown.copy_(source if offset is None else source - offset)
        else:
            # Through NumPy, whose indexing of a few rows costs a third of torch's.
            ids = rows.numpy()
            with np.errstate(all="ignore"):  # beyond the range of float32 are 0 and inf, as in torch
                for seen, of, less in self._shown_arrays:
                    seen[ids] = of[ids] if less is None else of[ids] - less[ids]
        here = slice(None) if rows is None else rows
        for name, index in self._indices.items():
            if index.root is not None:
                entity, dof = self._entities[name], index.root[1]
                velocity = self._qvel[here, dof : dof + 3].float()
                entity.base_lin_vel[here] = quat_rotate_inverse(entity.base_quat[here], velocity)
