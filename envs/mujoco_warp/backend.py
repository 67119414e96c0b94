"""MuJoCo Warp: thousands of environments on one GPU, and the same on a CPU for tests and for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from robolearn.envs import mjcf
from robolearn.envs.backend import Capabilities, Snapshot
from robolearn.envs.contacts import has_convex_pairs, room_for
from robolearn.envs.mujoco_warp import kernels
from robolearn.envs.mujoco_warp.simulation import Arena, Simulation
from robolearn.envs.randomize import InverseWeights, nominal, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, State, Tensor, robot_entity
from robolearn.envs.warp_graphs import Recorder, patience, quiet, require_device
from robolearn.errors import RunFailed

_SLOW = (mjw.OverflowType.ITERATIONS, mjw.OverflowType.LS_ITERATIONS)
LOST = mjw.OverflowType(sum(kind for kind in mjw.OverflowType if kind not in _SLOW))
"""Overflows by which physics is lost. A solver that stops at its limit of iterations is as it was asked to be."""


CONVEX_WORKSPACE = 80_000
"""Bytes an environment that colliding convex shapes take (two boxes and cylinders: 79 kB, a mesh: 66 kB)."""


@dataclass
class MujocoWarpConfig:
    """The GPU backend's own settings."""

    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's own."""
    solver: Literal["robot", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's own."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Iterations of the solver, at most; 0 takes the robot's own."""
    nconmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Room for contacts, an environment on average; 0 takes the robot's own, or what its geoms can need."""
    njmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Room for constraint rows in each environment; 0 takes the robot's own, or what its contacts can need."""


class MujocoWarpBackend:
    """The `mujoco_warp` backend; the contract is `robolearn.envs.backend.Backend`.

    Everything a step or a reset does is one recorded graph each (CUDA's, or Warp's own on a CPU), replayed on
    tensors that never move: nothing is read back and nothing is allocated. A reset runs its forward pass only over
    the environments that were reset, in groups, in a small simulation beside the large one; a forward pass of all
    would cost as much as a physics step. Torque, body, foot and contact fields lag one substep behind, as after any
    plain mj_step. What does not fit the arrays for contacts and constraints ends the run with what to set: on a
    CPU at once, on a GPU when `check` is next called.
    """

    config_class: ClassVar[type] = MujocoWarpConfig

    def __init__(
        self, robot: Robot, num_envs: int, device: str = "cpu", config: MujocoWarpConfig | None = None
    ) -> None:
        config = config or MujocoWarpConfig()
        self.robot, self.num_envs = robot, num_envs
        quiet()
        self.device = require_device(device, "mujoco_warp")
        self.read_at_once = self.device.type == "cpu"
        """Whether each step looks for what was dropped; on a GPU that would wait for the step."""
        self._recorder = Recorder(self.device)
        self.model = mjcf.build_model(robot, "mujoco_warp")
        mjcf.override_options(self.model, config.timestep, config.solver, config.iterations)
        self.capabilities = Capabilities(
            name="mujoco_warp",
            timestep=float(self.model.opt.timestep),
            derived_lag=1,
            pd="implicit",
            exact_restore=self.device.type == "cpu",  # on a GPU sums are added up in any order
            params=settable(robot),
        )
        sizes = robot.solver["mujoco_warp"]
        self._room = room_for(
            self.model, config.nconmax or sizes.get("nconmax", 0), config.njmax or sizes.get("njmax", 0)
        )
        self._entity = robot_entity(robot, num_envs, self.device)
        params = {
            name: torch.full((num_envs,), nominal(name, self.model), device=self.device)
            for name in sorted(self.capabilities.params)
        }
        self._state = State(
            {"robot": self._entity}, params, torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        )
        with wp.ScopedDevice(self._recorder.warp), patience("MuJoCo Warp's kernels"):
            self._build()
            self._warm_up()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        """The simulation of all environments, the small one for resets, and torch's views of both."""
        varied = self._varied_fields()
        self._sim = Simulation(self.model, self.num_envs, self._room, varied)
        self._group = min(self.num_envs, max(256, self.num_envs // 16) if self.device.type == "cuda" else 32)
        if self.device.type == "cuda" and not wp.is_conditional_graph_supported():
            self._group = self.num_envs  # a graph cannot loop here: everybody in one pass
        # Robots that start stand on the ground, all of them: twice the room that does on average.
        spacious = replace(self._room, contacts=2 * self._room.contacts)
        self._resets = Simulation(self.model, self._group, spacious, varied)
        model, robot = self.model, self.robot

        def ints(values: Any) -> Any:
            return wp.array(np.array(values, dtype=np.int32), dtype=int)

        joints = [model.joint(name) for name in robot.joints]
        starts = [
            [model.sensor(f"{foot}_{kind}").adr[0] for kind in ("pos", "quat", "vel", "force")]
            for foot in robot.feet
        ]
        self._joint_qpos = ints([j.qposadr[0] for j in joints])
        self._joint_dof = ints([j.dofadr[0] for j in joints])
        self._bodies = ints([model.body(name).id for name in robot.bodies])
        self._foot_sensors = ints(np.array(starts).reshape(-1, 4))
        self._has_gains = torch.tensor([a.kind == "position" for a in robot.actuators], device=self.device)
        self._held = ints(
            [robot.actuated[i] if a.kind == "position" else -1 for i, a in enumerate(robot.actuators)]
        )
        self._items = 1 + len(robot.joints) + len(robot.bodies) + len(robot.feet)

        n, j = self.num_envs, len(robot.joints)
        self._every_row = ints(range(n))
        self._sound = wp.ones(n, dtype=wp.bool)
        self._overflows = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._diverged = wp.from_torch(self._state.diverged)
        self._mask = torch.zeros(n, dtype=torch.bool, device=self.device)
        self._pose = {
            name: torch.zeros(n, width, device=self.device)
            for name, width in (("base", 13), ("joint_pos", j), ("joint_vel", j))
        }
        self._ones, self._before, self._listed = (wp.zeros(n, dtype=int) for _ in range(3))
        self._begin, self._count, self._more = (wp.zeros(1, dtype=int) for _ in range(3))
        self._rows = wp.full(self._group, -1, dtype=int)
        self._arena = Arena(self.device)
        self._steps: dict[int, wp.Graph] = {}
        self._reset_graph: wp.Graph | None = None

    def _varied_fields(self) -> tuple[str, ...]:
        """Fields of MuJoCo Warp's model of which every environment has its own."""
        fields = ["geom_friction"]
        if "gain_scale" in self.capabilities.params:
            fields += ["actuator_gainprm", "actuator_biasprm"]
        if "mass_scale" in self.capabilities.params:
            fields += ["body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"]
            weights = InverseWeights(self.model)

            def tensor(array: Any) -> Tensor:
                return torch.as_tensor(array, dtype=torch.float32, device=self.device)

            self._poles = tensor(weights.poles)
            self._weights = {
                "dof_invweight0": tensor(weights.dofs),
                "body_invweight0": tensor(weights.bodies).flatten(0, 1),
            }
            if self.model.ntendon:
                fields.append("tendon_invweight0")
                self._weights["tendon_invweight0"] = tensor(weights.tendons)
        return tuple(fields)

    def _warm_up(self) -> None:
        """Compile every kernel by running it, then start from a clean home pose."""
        zeros = torch.zeros(self.num_envs, 3, device=self.device)
        upright = torch.zeros(self.num_envs, 4, device=self.device)
        upright[:, 0] = 1.0
        home = torch.tensor(self.robot.home, device=self.device).expand(self.num_envs, -1)
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._take(everywhere, InitialState(zeros, upright, zeros, zeros, home, torch.zeros_like(home)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # Warp's stream is about to read what torch's has written
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

    def reset(self, mask: Tensor, pose: InitialState) -> None:
        """See `Backend.reset`."""
        self._take(mask, pose)
        if self._reset_graph is None:
            self._reset_graph = self._recorder.record(self._reset_rows)
        self._recorder.launch(self._reset_graph)
        self._check_now()

    def step(self, targets: Tensor, substeps: int) -> None:
        """See `Backend.step`."""
        self._sim.rows["ctrl"].copy_(targets.detach())
        if substeps not in self._steps:
            self._steps[substeps] = self._recorder.record(lambda: self._physics(substeps))
        self._recorder.launch(self._steps[substeps])
        self._check_now()

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """See `Backend.push`."""
        if self.robot.base:
            velocity = self._sim.rows["qvel"][:, :3]  # a free joint's velocity is the world's
            velocity += torch.where(mask[:, None], jump, 0.0)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        return {
            "rows": {name: row.clone() for name, row in self._sim.rows.items()},
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            # The rows of the model that follow from them: computed again they might be rounded otherwise.
            "model": {name: self._sim.everything_torch[name].clone() for name in self._sim.model_rows},
            "published": {k: v.clone() for k, v in self._entity.tensors().items()},
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        for name, known in self._state.params.items():
            known.copy_(snapshot["params"][name][source])
        for name in self._sim.model_rows:
            self._sim.everything_torch[name].copy_(snapshot["model"][name][source])
        for name, row in self._sim.rows.items():
            row.copy_(snapshot["rows"][name][source])
        self._state.diverged.copy_(snapshot["diverged"][source])
        for name, tensor in self._entity.tensors().items():
            tensor.copy_(snapshot["published"][name][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        for name, values in params.items():
            known = self._state.params[name]
            known.copy_(torch.where(mask, values, known))
            getattr(self, f"_apply_{name}")(mask, values)

    def check(self) -> None:
        """See `Backend.check`."""
        lost = mjw.OverflowType(int(self._overflows))
        if lost:
            self._overflows.zero_()
            raise RunFailed(self._room.remedy(lost))

    def close(self) -> None:
        """Free the simulator's memory."""
        self._steps, self._reset_graph = {}, None
        self.__dict__.pop("_sim", None)
        self.__dict__.pop("_resets", None)

    @property
    def scratch_bytes(self) -> int:
        """Memory that MuJoCo Warp takes and gives back within a step, which its graphs keep: the workspace of the
        solver, of the implicit integrator and of the collision of convex shapes."""
        if self._arena.blocks:
            return sum(block.numel() for block in self._arena.blocks) * self.num_envs // self._group
        nv, rows = self.model.nv, self._room.rows
        square = (-(-nv // 16) * 16) ** 2
        convex = CONVEX_WORKSPACE if has_convex_pairs(self.model) else 0
        return self.num_envs * (4 * (2 * square + 6 * rows + 12 * nv + 4 * self.model.nC) + convex)

    # ------------------------------------------------------------------ what the graphs hold

    def _take(self, mask: Tensor, pose: InitialState) -> None:
        """Copy what a reset is given to where its graph reads it."""
        self._mask.copy_(mask)
        base = (pose.base_pos, pose.base_quat, pose.base_lin_vel, pose.base_ang_vel)
        torch.cat(base, dim=1, out=self._pose["base"])
        self._pose["joint_pos"].copy_(pose.joint_pos)
        self._pose["joint_vel"].copy_(pose.joint_vel)

    def _physics(self, substeps: int) -> None:
        for _ in range(substeps):
            mjw.step(self._sim.model, self._sim.data)
        self._publish(self._sim, self._every_row)

    def _reset_rows(self) -> None:
        """Write the masked rows, then make their State current, a group of environments at a time."""
        rows = self._sim.warp_rows
        wp.launch(
            kernels.write_pose, dim=self.num_envs,
            inputs=[
                wp.from_torch(self._mask), *(wp.from_torch(x) for x in self._pose.values()), bool(self.robot.base),
                self._joint_qpos, self._joint_dof, self._held,
            ],
            outputs=[rows["qpos"], rows["qvel"], rows["qacc_warmstart"], rows["ctrl"]],
        )  # fmt: skip
        mask = wp.from_torch(self._mask)
        wp.launch(kernels.count_masked, dim=self.num_envs, inputs=[mask], outputs=[self._ones])
        wp.utils.array_scan(self._ones, self._before, inclusive=False)
        wp.launch(kernels.list_masked, dim=self.num_envs, inputs=[mask, self._before], outputs=[self._listed])
        wp.launch(
            kernels.first_group, dim=1, inputs=[self._before, self._ones],
            outputs=[self._begin, self._count, self._more],
        )  # fmt: skip
        if self._group == self.num_envs:
            self._reset_group()
        else:
            wp.capture_while(self._more, self._reset_group)

    def _reset_group(self) -> None:
        wp.launch(
            kernels.take_group,
            dim=self._group,
            inputs=[self._listed, self._begin, self._count],
            outputs=[self._rows],
        )
        source, target = self._sim.everything, self._resets.everything
        for name in source:
            wp.launch(
                kernels.gather, dim=(self._group, source[name].shape[1]), inputs=[self._rows, source[name]],
                outputs=[target[name]],
            )  # fmt: skip
        with self._arena.used():
            mjw.forward(self._resets.model, self._resets.data)
        self._publish(self._resets, self._rows)
        wp.launch(
            kernels.next_group, dim=1, inputs=[self._group], outputs=[self._begin, self._count, self._more]
        )

    def _publish(self, sim: Simulation, rows: wp.array) -> None:
        data, state = sim.data, self._entity.tensors()
        qpos, qvel = sim.warp_rows["qpos"], sim.warp_rows["qvel"]
        wp.launch(
            kernels.judge, dim=len(rows),
            inputs=[
                rows, qpos, qvel, sim.warp_rows["ctrl"], data.ncollision, data.nacon, data.naconmax, data.nefc,
                data.njmax, int(mjw.OverflowType.NARROWPHASE), int(mjw.OverflowType.NEFC), int(LOST),
            ],
            outputs=[data.overflow, self._sound, self._diverged, wp.from_torch(self._overflows)],
        )  # fmt: skip
        wp.launch(
            kernels.publish, dim=(len(rows), self._items),
            inputs=[
                rows, self._sound, bool(self.robot.base), self._joint_qpos, self._joint_dof, self._bodies,
                self._foot_sensors, qpos, qvel, data.qfrc_actuator, data.xpos, data.sensordata,
            ],
            outputs=[wp.from_torch(tensor, dtype=wp.float32) for tensor in state.values()],
        )  # fmt: skip

    # ------------------------------------------------------------------ the rest

    def _check_now(self) -> None:
        if self.read_at_once:
            self.check()

    def _apply_friction(self, mask: Tensor, value: Tensor) -> None:
        # MuJoCo takes the larger of the two surfaces' friction, so both get it.
        sliding = self._sim.view("geom_friction", -1, 3)[:, :, 0]
        sliding.copy_(torch.where(mask[:, None], value[:, None], sliding))

    def _apply_gain_scale(self, mask: Tensor, value: Tensor) -> None:
        # Force actuators keep their own.
        theirs = mask[:, None, None] & self._has_gains[None, :, None]
        for name, columns in (("actuator_gainprm", slice(0, 1)), ("actuator_biasprm", slice(1, 3))):
            sizes = (len(self.robot.actuators), -1)
            own = self._sim.nominal[name].view(1, *sizes)[:, :, columns]
            ours = self._sim.view(name, *sizes)[:, :, columns]
            ours.copy_(torch.where(theirs, own * value[:, None, None], ours))

    def _apply_mass_scale(self, mask: Tensor, value: Tensor) -> None:
        gains = 1.0 / (value[:, None] + self._poles)
        rows = {name: gains @ weights.T for name, weights in self._weights.items()}
        for name in ("body_mass", "body_inertia", "body_subtreemass"):
            rows[name] = self._sim.nominal[name] * value[:, None]
        for name, scaled in rows.items():
            ours = self._sim.everything_torch[name]
            ours.copy_(torch.where(mask[:, None], scaled, ours))
