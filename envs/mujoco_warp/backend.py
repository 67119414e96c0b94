"""MuJoCo Warp: thousands of environments on one GPU; also on a CPU, for tests and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from robolearn.envs import mjcf
from robolearn.envs.backend import FEATURES, MOTORS, Capabilities, Snapshot, require_features
from robolearn.envs.contacts import array_sizes, has_convex_pairs
from robolearn.envs.model_changes import WITH_CONSTANTS, ModelChanges
from robolearn.envs.mujoco.index import EntityIndex
from robolearn.envs.mujoco_warp import kernels
from robolearn.envs.mujoco_warp.simulation import Arena, Simulation
from robolearn.envs.mujoco_warp.tables import initial_tables, published_tables
from robolearn.envs.parameters import EVERY
from robolearn.envs.randomize import InverseWeights, require_same_params, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import (
    Initial,
    InitialState,
    State,
    Targets,
    Tensor,
    by_entity,
    home,
    packed_state,
    quat_rotate_inverse,
)
from robolearn.envs.warp_graphs import Recorder, patience, quiet, require_device
from robolearn.errors import RunFailed

_HARMLESS = (mjw.OverflowType.ITERATIONS, mjw.OverflowType.LS_ITERATIONS)
LOST = mjw.OverflowType(sum(kind for kind in mjw.OverflowType if kind not in _HARMLESS))
"""Overflows that drop physics. Reaching the solver's iteration limit is not one."""

CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0")
"""Fields of the model that derive from masses, centres of mass, inertias and armatures."""

CONVEX_WORKSPACE = 80_000
"""Bytes per environment that colliding convex shapes take (measured: two boxes and cylinders 79 kB, a mesh 66 kB)."""


@dataclass
class MujocoWarpConfig:
    """Settings of the GPU backend."""

    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's value."""
    solver: Literal["robot", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's value."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Maximum number of solver iterations; 0 takes the robot's value."""
    nconmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for contacts, per environment on average; 0 takes the robot's value, or computes it from its geoms."""
    njmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for constraint rows of each environment; 0 takes the robot's value, or computes it from its geoms."""


class MujocoWarpBackend:
    """The `mujoco_warp` backend; the contract is `robolearn.envs.backend.Backend`.

    A step and a reset are one recorded graph each (a CUDA graph, or Warp's equivalent on a CPU), replayed on tensors
    at fixed addresses: nothing is read back and nothing is allocated. A reset runs its forward pass only over the
    environments that were reset, in batches, in a small second simulation; a forward pass of all environments would
    cost as much as a physics step. Torque, body, foot and contact fields lag one substep, as after a plain mj_step.
    If contacts or constraints do not fit their arrays, the run ends with RunFailed, which names the setting to raise:
    on a CPU at once, on a GPU at the next call of `check`.
    """

    config_class: ClassVar[type] = MujocoWarpConfig
    features: ClassVar[frozenset[str]] = frozenset(FEATURES) - {MOTORS}

    def __init__(
        self, scene: Scene | Robot, num_envs: int, device: str = "cpu", config: MujocoWarpConfig | None = None
    ) -> None:
        config = config or MujocoWarpConfig()
        self.scene = scene = Scene.of(scene)
        self.robot, self.num_envs = scene.robot, num_envs
        require_features(scene, "mujoco_warp", self.features)
        quiet()
        self.device = require_device(device, "mujoco_warp")
        self.read_at_once = self.device.type == "cpu"
        """Whether each step and reset calls `check`; on a GPU that would force a sync."""
        self._recorder = Recorder(self.device)
        self.model = mjcf.build_model(scene, "mujoco_warp")
        mjcf.override_options(self.model, config.timestep, config.solver, config.iterations)
        self.capabilities = Capabilities(
            name="mujoco_warp",
            timestep=float(self.model.opt.timestep),
            derived_lag=1,
            pd="implicit",
            exact_restore=self.device.type == "cpu",  # on a GPU the order of summation varies
            params=settable(scene, EVERY),
            features=self.features,
        )
        self._changes = ModelChanges(scene, self.model, device=self.device)
        sizes = mjcf.options(self.robot, "mujoco_warp")
        self._array_sizes = array_sizes(
            self.model,
            num_envs,
            config.nconmax or sizes.get("nconmax", 0),
            config.njmax or sizes.get("njmax", 0),
            sizes.get("self_contacts", 0),
        )
        if "joint_friction" in self._changes.fields:  # a constraint row for each joint
            self._array_sizes = replace(self._array_sizes, rows=self._array_sizes.rows + self.model.nv)
        params = {
            name: torch.full((num_envs,), value, device=self.device)
            for name, value in self._changes.nominal_values.items()
        }
        entities, self._published, self._places = packed_state(scene, num_envs, self.device)
        never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        origin = None if scene.terrain is None else torch.zeros(num_envs, 3, device=self.device)
        self._state = State(entities, params, never, origin=origin)
        with wp.ScopedDevice(self._recorder.warp), patience("MuJoCo Warp's kernels"):
            self._build()
            self._warm_up()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        """Build the simulation of all environments, the small one for resets, and torch views of both."""
        varied = self._varied_fields()
        self._sim = Simulation(self.model, self.num_envs, self._array_sizes, varied)
        self._batch_size = min(
            self.num_envs, max(256, self.num_envs // 16) if self.device.type == "cuda" else 32
        )
        if self.device.type == "cuda" and not wp.is_conditional_graph_supported():
            self._batch_size = self.num_envs  # a graph cannot loop here: all environments in one pass
        # After a reset all robots may stand on the ground: twice the average number of contacts.
        reset_sizes = replace(self._array_sizes, contacts=2 * self._array_sizes.contacts)
        self._reset_sim = Simulation(self.model, self._batch_size, reset_sizes, varied)

        def ints(values: Any, width: int = 0) -> Any:
            array = np.array(values, dtype=np.int32)
            return wp.array(array.reshape(-1, width) if width else array, dtype=int)

        self._indices = {name: EntityIndex.of(self.scene, name, self.model) for name in self.scene.entities}
        columns, moving = published_tables(
            self._indices, self._state, self._places, self.scene.terrain is not None
        )
        self._columns, self._moving = ints(columns, 6), ints(moving, 3)
        origin = self._state.origin
        self._origins = wp.zeros((1, 3), dtype=float) if origin is None else wp.from_torch(origin)
        self._items = len(columns) + len(moving)
        roots, joints, held, width = initial_tables(self._indices, self.model.nu)
        self._roots, self._joints, self._held = ints(roots, 3), ints(joints, 4), ints(held)
        self._home = {
            name: home(self.scene, name, self.num_envs, self.device) for name in self.scene.entities
        }
        n = self.num_envs
        self._every_row = ints(range(n))
        self._finite = wp.ones(n, dtype=wp.bool)
        self._overflows = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._diverged = wp.from_torch(self._state.diverged)
        self._mask = torch.zeros(n, dtype=torch.bool, device=self.device)
        self._initial = torch.zeros(n, width, device=self.device)
        self._ones, self._rank, self._masked = (wp.zeros(n, dtype=int) for _ in range(3))
        self._begin, self._count, self._remaining = (wp.zeros(1, dtype=int) for _ in range(3))
        self._rows = wp.full(self._batch_size, -1, dtype=int)
        # One for each loop: a recording takes blocks in the order and of the sizes of the pass before it.
        self._arena, self._constants_arena = Arena(self.device), Arena(self.device)
        self._step_graphs: dict[int, wp.Graph] = {}
        self._reset_graph: wp.Graph | None = None
        self._constants_graph: wp.Graph | None = None
        self._force: Tensor | None = None

    def _varied_fields(self) -> tuple[str, ...]:
        """Fields of MuJoCo Warp's model that have one row per environment."""
        fields = [name for names in self._changes.groups.values() for name in names]
        if self._changes.needs_constants or "mass_scale" in self._changes.fields:
            fields += CONSTANTS[: 4 if self.model.ntendon else 3]
        if not self._changes.needs_constants and "mass_scale" in self._changes.fields:
            weights = InverseWeights(self.model)

            def tensor(array: Any) -> Tensor:
                return torch.as_tensor(array, dtype=torch.float32, device=self.device)

            self._poles = tensor(weights.poles)
            self._mode_bodies = torch.as_tensor(weights.body_of_mode, dtype=torch.long, device=self.device)
            self._weights = {
                "dof_invweight0": tensor(weights.dofs),
                "body_invweight0": tensor(weights.bodies).flatten(0, 1),
            }
            if self.model.ntendon:
                self._weights["tendon_invweight0"] = tensor(weights.tendons)
        return tuple(fields)

    def _warm_up(self) -> None:
        """Compile every kernel by running it, then reset all environments to the home pose."""
        self._copy_inputs(torch.ones(self.num_envs, dtype=torch.bool, device=self.device), {})
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # Warp's stream reads next what torch's stream has written
        if self.device.type == "cuda" and self._changes.needs_constants:
            self._derive_constants()
            for name in CONSTANTS:
                if name in self._sim.inputs:  # those that MuJoCo computed, until something is drawn
                    self._sim.inputs_torch[name].copy_(self._sim.nominal[name])
            torch.cuda.synchronize(self.device)
        self._reset_rows()
        self._physics(1)
        self._reset_rows()
        self._overflows.zero_()
        wp.synchronize_device(self._recorder.warp)

    # ------------------------------------------------------------------ the contract

    @property
    def state(self) -> State:
        """The current State; its tensors are reused by the next step."""
        return self._state

    def place(self, mask: Tensor, origins: Tensor) -> None:
        """See `TerrainBackend.place`."""
        assert self._state.origin is not None
        self._state.origin.copy_(torch.where(mask[:, None], origins, self._state.origin))

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`."""
        self._copy_inputs(mask, by_entity(initial, self.scene.entities))
        if self._reset_graph is None:
            self._reset_graph = self._recorder.record(self._reset_rows)
        self._recorder.launch(self._reset_graph)
        self._check_now()

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`."""
        for name, targets in by_entity(joint_targets, self.scene.robots).items():
            self._sim.rows["ctrl"][:, self._indices[name].actuators].copy_(targets.detach())
        if substeps not in self._step_graphs:
            self._step_graphs[substeps] = self._recorder.record(lambda: self._physics(substeps))
        self._recorder.launch(self._step_graphs[substeps])
        self._check_now()

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        root = self._indices[self.scene.first].root
        if root is not None:
            # A free joint's linear velocity is in world axes, its angular velocity in those of the body.
            q, dof = root
            velocity = self._sim.rows["qvel"][:, dof : dof + 6]
            velocity[:, :3] += torch.where(mask[:, None], jump, 0.0)
            if turn is not None:
                own = quat_rotate_inverse(self._sim.rows["qpos"][:, q + 3 : q + 7], turn)
                velocity[:, 3:] += torch.where(mask[:, None], own, 0.0)

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`."""
        if self._force is None:
            base = self.model.body(mjcf.root_body(self.scene, self.scene.first)).id
            self._force = wp.to_torch(self._sim.data.xfrc_applied)[:, base, :3]
        self._force.copy_(force)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return {
            "rows": {name: row.clone() for name, row in self._sim.rows.items()},
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            # The rows of the model that derive from the parameters; recomputing them could round differently.
            "model": {name: self._sim.inputs_torch[name].clone() for name in self._sim.model_rows},
            "published": {k: v.clone() for k, v in self._state.tensors().items()},
            **({} if self._force is None else {"force": self._force.clone()}),
            **({} if self._state.origin is None else {"origin": self._state.origin.clone()}),
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        require_same_params(snapshot["params"], self._state.params)
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        for name, known in self._state.params.items():
            known.copy_(snapshot["params"][name][source])
        for name in self._sim.model_rows:
            self._sim.inputs_torch[name].copy_(snapshot["model"][name][source])
        for name, row in self._sim.rows.items():
            row.copy_(snapshot["rows"][name][source])
        self._state.diverged.copy_(snapshot["diverged"][source])
        if "force" in snapshot:
            self.apply_force(snapshot["force"][source])
        elif self._force is not None:
            self._force.zero_()
        for name, tensor in self._state.tensors().items():
            tensor.copy_(snapshot["published"][name][source])
        if self._state.origin is not None:
            self._state.origin.copy_(snapshot["origin"][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        for name, values in params.items():
            known = self._state.params[name]
            known.copy_(torch.where(mask, values, known))
        groups = sorted({self._changes.group_of(name) for name in params})
        for group in groups:
            self._write_fields(mask, self._changes.rows(group, self._state.params))
        if self._changes.needs_constants and not {*groups}.isdisjoint(WITH_CONSTANTS):
            self._mask.copy_(mask)
            if self._constants_graph is None:
                self._constants_graph = self._recorder.record(self._derive_constants)
            self._recorder.launch(self._constants_graph)
        elif "masses" in groups:
            self._write_fields(mask, self._constants_of_scaled_masses())

    def check(self) -> None:
        """See `Backend.check`."""
        lost = mjw.OverflowType(int(self._overflows))
        if lost:
            self._overflows.zero_()
            raise RunFailed(self._array_sizes.overflow_message(lost))

    def close(self) -> None:
        """Free the simulator's device memory."""
        self._step_graphs, self._reset_graph, self._constants_graph = {}, None, None
        self.__dict__.pop("_sim", None)
        self.__dict__.pop("_reset_sim", None)

    @property
    def scratch_bytes(self) -> int:
        """Memory [bytes] that MuJoCo Warp allocates and frees within a step, which its CUDA graphs keep: the
        workspace of the solver, of the implicit integrator and of convex collision."""
        if self._arena.blocks:
            return sum(block.numel() for block in self._arena.blocks) * self.num_envs // self._batch_size
        nv, rows = self.model.nv, self._array_sizes.rows
        square = (-(-nv // 16) * 16) ** 2
        convex = CONVEX_WORKSPACE if has_convex_pairs(self.model) else 0
        return self.num_envs * (4 * (2 * square + 6 * rows + 12 * nv + 4 * self.model.nC) + convex)

    # ------------------------------------------------------------------ recorded in graphs

    def _copy_inputs(self, mask: Tensor, initial: dict[str, InitialState]) -> None:
        """Copy the inputs of a reset to the tensors that its graph reads."""
        self._mask.copy_(mask)
        if "act" in self._sim.rows:  # currents of DC motors
            self._sim.rows["act"].masked_fill_(mask[:, None], 0.0)
        parts: list[Tensor] = []
        for name, index in self._indices.items():
            start = initial.get(name) or self._home[name]
            if index.root is not None:
                origin = self._state.origin
                place = start.base_pos if origin is None else start.base_pos + origin
                parts += [place, start.base_quat, start.base_lin_vel, start.base_ang_vel]
            parts += [start.joint_pos, start.joint_vel]
        torch.cat(parts, dim=1, out=self._initial)

    def _physics(self, substeps: int) -> None:
        for _ in range(substeps):
            mjw.step(self._sim.model, self._sim.data)
        self._publish(self._sim, self._every_row)

    def _reset_rows(self) -> None:
        """Write the masked rows, then update their State, one batch of environments at a time."""
        rows = self._sim.warp_rows
        wp.launch(
            kernels.write_initial_state, dim=self.num_envs,
            inputs=[
                wp.from_torch(self._mask), wp.from_torch(self._initial), self._roots, self._joints, self._held,
            ],
            outputs=[rows["qpos"], rows["qvel"], rows["qacc_warmstart"], rows["ctrl"]],
        )  # fmt: skip
        self._in_batches(self._forward_batch)

    def _in_batches(self, work: Callable[[], None]) -> None:
        """Do `work` for each batch of the masked environments, after their inputs are gathered for it."""
        mask = wp.from_torch(self._mask)
        wp.launch(kernels.mask_to_int, dim=self.num_envs, inputs=[mask], outputs=[self._ones])
        wp.utils.array_scan(self._ones, self._rank, inclusive=False)
        wp.launch(
            kernels.masked_indices, dim=self.num_envs, inputs=[mask, self._rank], outputs=[self._masked]
        )
        wp.launch(
            kernels.start_batches, dim=1, inputs=[self._rank, self._ones],
            outputs=[self._begin, self._count, self._remaining],
        )  # fmt: skip
        if self._batch_size == self.num_envs:
            self._batch(work)
        else:
            wp.capture_while(self._remaining, lambda: self._batch(work))

    def _batch(self, work: Callable[[], None]) -> None:
        wp.launch(
            kernels.take_batch,
            dim=self._batch_size,
            inputs=[self._masked, self._begin, self._count],
            outputs=[self._rows],
        )
        source, gathered = self._sim.inputs, self._reset_sim.inputs
        for name in source:
            wp.launch(
                kernels.gather, dim=(self._batch_size, source[name].shape[1]), inputs=[self._rows, source[name]],
                outputs=[gathered[name]],
            )  # fmt: skip
        work()
        wp.launch(
            kernels.next_batch,
            dim=1,
            inputs=[self._batch_size],
            outputs=[self._begin, self._count, self._remaining],
        )

    def _forward_batch(self) -> None:
        with self._arena.used():
            mjw.forward(self._reset_sim.model, self._reset_sim.data)
        self._publish(self._reset_sim, self._rows)

    def _publish(self, sim: Simulation, rows: wp.array) -> None:
        data = sim.data
        qpos, qvel = sim.warp_rows["qpos"], sim.warp_rows["qvel"]
        wp.launch(
            kernels.check_divergence, dim=len(rows),
            inputs=[
                rows, qpos, qvel, sim.warp_rows["ctrl"], data.ncollision, data.nacon, data.naconmax, data.nefc,
                data.njmax, int(mjw.OverflowType.NARROWPHASE), int(mjw.OverflowType.NEFC), int(LOST),
            ],
            outputs=[data.overflow, self._finite, self._diverged, wp.from_torch(self._overflows)],
        )  # fmt: skip
        wp.launch(
            kernels.publish, dim=(len(rows), self._items),
            inputs=[
                rows, self._finite, self.num_envs, self._columns, self._moving, qpos, qvel, data.qfrc_actuator,
                data.xpos, data.sensordata, self._origins,
            ],
            outputs=[wp.from_torch(self._published)],
        )  # fmt: skip

    # ------------------------------------------------------------------ physical parameters

    def _check_now(self) -> None:
        if self.read_at_once:
            self.check()

    def _write_fields(self, mask: Tensor, rows: dict[str, Tensor]) -> None:
        """Write fields of the model, (N, ...) each, in the environments in `mask` (N,)."""
        for name, new in rows.items():
            field_rows = self._sim.inputs_torch[name]
            field_rows.copy_(torch.where(mask[:, None], new.flatten(1), field_rows))

    def _constants_of_scaled_masses(self) -> dict[str, Tensor]:
        """The derived constants where all of a body's inertia is scaled with its mass, (N, ...) each: in closed form,
        see `InverseWeights`."""
        scale = self._changes.scaled_masses(self._state.params)
        gains = 1.0 / (scale[:, self._mode_bodies] + self._poles)
        if self.device.type == "cpu":
            # Row by row: the rounding of a matrix product depends on the number of rows, and an environment must have
            # the same bits among others and alone.
            rows = {name: (gains[:, None] * weights).sum(-1) for name, weights in self._weights.items()}
        else:
            rows = {name: gains @ weights.T for name, weights in self._weights.items()}
        rows["body_subtreemass"] = self._sim.nominal["body_subtreemass"] * scale
        if not self.scene.alone:  # the world's: the sum of those of the trees
            rows["body_subtreemass"][:, 0] = (self._sim.nominal["body_mass"] * scale).sum(dim=1)
        return rows

    def _derive_constants(self) -> None:
        """Derive the constants of the masked environments from their fields, as MuJoCo does."""
        derived = [name for name in CONSTANTS if name in self._sim.inputs]

        def derive() -> None:
            with self._constants_arena.used():
                mjw.set_const(self._reset_sim.model, self._reset_sim.data, restore=False)
            for name in derived:
                rows = self._sim.inputs[name]
                wp.launch(
                    kernels.scatter, dim=(self._batch_size, rows.shape[1]),
                    inputs=[self._rows, self._reset_sim.inputs[name]], outputs=[rows],
                )  # fmt: skip

        self._in_batches(derive)
