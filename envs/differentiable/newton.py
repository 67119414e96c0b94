"""Control steps of any robot by Newton's Featherstone solver, and their derivatives."""

from __future__ import annotations

from typing import Any

import mujoco
import newton
import numpy as np
import torch
import warp as wp

from robolearn.envs.differentiable import newton_kernels as kernels
from robolearn.envs.differentiable.engine import Layout
from robolearn.envs.differentiable.newton_model import SINK, Description, Link
from robolearn.envs.differentiable.supported import compliance
from robolearn.envs.randomize import nominal, settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import Recorder, patience, quiet

MEANINGS = ("friction", "gain_scale", "mass_scale")
"""The parameters, in the order in which the kernels know them."""


class NewtonEngine:
    """Any robot of hinges, slides and a free base; `robolearn.envs.differentiable.engine.Engine` is the contract.

    Newton's `SolverFeatherstone` does the multibody dynamics. Everything that acts on it is ours
    (`newton_kernels.py`) and is computed once a substep: actuators clipped to their effort, damping, springs, stops,
    and the ground as spring-dampers at points of the feet. Newton's collision pipeline is not used, limbs pass
    through one another, and only geoms that MuJoCo would let touch the floor touch it.

    What `backward` returns is the derivative of what `forward` computed. It is no good guide where a foot touches
    down or lifts off (the force is continuous there, its derivative is not), or where a motor or a stop begins to
    bear. Tests hold smooth motion to 1e-3 of finite differences and sustained contact to 1e-2.

    Two faults of Newton 1.8 spoil gradients, and are worked around here:

    1. A solver keeps its mass matrix and Jacobian, and overwrites them in its next step; the way back then takes
       the last step's for all. So each substep has a solver of its own.
    2. `eval_rigid_tau` turns the body forces it is given into another frame in place, and its adjoint then takes the
       result for what it was given. So right before each such adjoint the forces are put back: a copy, recorded
       on the tape behind the substep.

    Forward and backward (which simulates again, taped) are recorded graphs over tensors that never move, on a CPU as
    on a GPU; one pair for each number of substeps. Memory grows with the substeps of a control step only: with
    the humanoid it takes 0.14 MB an environment and substep.

    `_solver_each` and `_restore_forces` switch the work-arounds off, for the tests that show what they are for.
    """

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        device: torch.device,
        model: mujoco.MjModel,
        options: dict[str, Any],
        *,
        _solver_each: bool = True,
        _restore_forces: bool = True,
    ) -> None:
        """`model` is the robot's own for this backend, `options` may hold `contact_stiffness` [N/m],
        `contact_damping` [s/m] and `contact_friction_speed` [m/s]. Nothing is compiled before the first step.

        Raises:
            ValueError: in one line, where the robot has something that cannot be simulated or an option is wrong.
        """
        quiet()
        self.timestep = float(model.opt.timestep)
        self.params = tuple(sorted(settable(robot)))
        self._robot, self._count = robot, num_envs
        self._recorder = Recorder(device)
        self._solver_each, self._restore_forces = _solver_each, _restore_forces
        self._graphs: dict[tuple[str, int], wp.Graph] = {}
        self._substeps: list[_Substep] = []
        self._solver: Any = None
        # Newton tells too little about its types: what it makes is Any here.
        self._model: Any = None
        self._start: Any = None
        described = Description(robot, model)
        with wp.ScopedDevice(self._recorder.warp):
            self._joints, self._places = described.joints(), described.places()
            self._points = described.points(*compliance(robot, model, options, SINK, 1.0))
            self._model = _newton_model(described, num_envs)
            self._allocate(described)

    # ------------------------------------------------------------------ the contract

    def forward(self, rows: Tensor, targets: Tensor, params: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`."""
        self._take(rows, targets, params)
        self._run("forward", substeps)
        return _torch(self._rows_out).clone(), _torch(self._seen).clone()

    def backward(
        self,
        rows: Tensor,
        targets: Tensor,
        params: Tensor,
        substeps: int,
        grad_rows: Tensor,
        grad_seen: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.backward`."""
        self._take(rows, targets, params)
        _torch(self._grad_rows).copy_(grad_rows)
        _torch(self._grad_seen).copy_(grad_seen)
        self._run("backward", substeps)
        # Where nothing comes back nothing goes on, even where the simulation was not finite (0 times NaN is NaN).
        some = ((grad_rows != 0).any(dim=1) | (grad_seen != 0).any(dim=1))[:, None]
        by_rows, by_targets = _torch(self._rows.grad), _torch(self._targets.grad)
        return torch.where(some, by_rows, 0.0), torch.where(some, by_targets, 0.0)

    def close(self) -> None:
        """Free its memory. It cannot be used any more."""
        self._graphs.clear()
        self._substeps.clear()
        self._solver = self._start = self._model = None

    # ------------------------------------------------------------------ building

    def _allocate(self, described: Description) -> None:
        """What does not depend on the number of substeps."""
        n, layout = self._count, Layout(self._robot)

        def floats(width: int, requires_grad: bool = False) -> wp.array:
            return wp.zeros((n, width), dtype=float, requires_grad=requires_grad)

        self._rows, self._targets = floats(layout.row, True), floats(len(self._robot.actuators), True)
        self._params = floats(len(self.params))
        self._rows_out, self._seen = floats(layout.row, True), floats(layout.seen, True)
        self._grad_rows, self._grad_seen = floats(layout.row), floats(layout.seen)
        column = [self.params.index(name) if name in self.params else -1 for name in MEANINGS]
        self._columns = wp.vec3i(*column)
        self._frictions, self._gains, self._masses = (
            wp.full(n, nominal(name, described.model), dtype=float) for name in MEANINGS
        )
        inertia = np.zeros((len(described.links), 6, 6), dtype=np.float32)
        for i, link in enumerate(described.links):
            inertia[i, :3, :3], inertia[i, 3:, 3:] = link.mass * np.eye(3), link.inertia
        self._nominal: wp.array = wp.array(inertia, dtype=wp.spatial_matrix)
        self._inertia = wp.zeros((n, len(inertia)), dtype=wp.spatial_matrix)
        self._com = self._model.body_com.reshape((n, -1))
        self._start = _State(self._model, n)

    def _grow(self, substeps: int) -> None:
        """Have states, forces and solvers for so many substeps."""
        while len(self._substeps) < substeps:
            if self._solver_each or self._solver is None:
                # The tiled matrix products take a tenth of the plain ones' time, on a CPU too.
                self._solver = newton.solvers.SolverFeatherstone(
                    self._model, angular_damping=0.0, use_tile_gemm=True
                )
                self._solver.body_I_m = (
                    self._inertia.flatten()
                )  # each environment's own, and no copy a solver
            before = self._substeps[-1].after if self._substeps else self._start
            self._substeps.append(_Substep(self._model, self._count, self._solver, before))

    # ------------------------------------------------------------------ what the graphs hold

    def _simulate(self, substeps: int, tape: wp.Tape) -> None:
        """From `_rows`, `_targets` and `_params` to `_rows_out` and `_seen`."""
        n = self._count
        joints, points = len(self._robot.joints), len(self._points.link)
        wp.launch(
            kernels.read_params, dim=n, inputs=[self._params, self._columns],
            outputs=[self._frictions, self._gains, self._masses],
        )  # fmt: skip
        wp.launch(
            kernels.scale_masses, dim=self._inertia.shape, inputs=[self._masses, self._nominal],
            outputs=[self._inertia],
        )  # fmt: skip
        self._seen.zero_()
        with tape:
            state = self._start
            wp.launch(
                kernels.unpack, dim=(n, 1 + joints), inputs=[self._rows, self._joints, self._places],
                outputs=[state.joint_q, state.joint_qd],
            )  # fmt: skip
            newton.eval_fk(self._model, state.all.joint_q, state.all.joint_qd, state.all)
            for substep in self._substeps[:substeps]:
                self._substep(substep, tape)
                state = substep.after
            items = 1 + joints + len(self._robot.bodies) + len(self._robot.feet) + points
            wp.launch(
                kernels.publish, dim=(n, items),
                inputs=[
                    state.joint_q, state.joint_qd, state.body_q, state.body_qd, self._com, self._targets,
                    self._gains, self._frictions, self._joints, self._points, self._places,
                ],
                outputs=[self._rows_out, self._seen],
            )  # fmt: skip

    def _substep(self, substep: _Substep, tape: wp.Tape) -> None:
        n, before, after = self._count, substep.before, substep.after
        wp.launch(
            kernels.drive, dim=(n, len(self._robot.joints)),
            inputs=[before.joint_q, before.joint_qd, self._targets, self._gains, self._joints],
            outputs=[substep.joint_f],
        )  # fmt: skip
        before.body_f.zero_()
        if len(self._points.link):
            wp.launch(
                kernels.touch, dim=(n, len(self._points.link)),
                inputs=[before.body_q, before.body_qd, self._com, self._frictions, self._points],
                outputs=[before.body_f],
            )  # fmt: skip
        substep.solver.step(before.all, after.all, substep.control, None, self.timestep)
        if self._restore_forces:
            tape.record_func(lambda: wp.copy(after.all.body_f_ext, before.all.body_f), [])

    def _differentiate(self, substeps: int, gradients: list[wp.array]) -> list[wp.array]:
        """Simulate and go back, with `gradients` zeroed in between; the gradients that this used."""
        tape = wp.Tape()
        self._simulate(substeps, tape)
        for gradient in gradients:
            gradient.zero_()
        wp.copy(self._rows_out.grad, self._grad_rows)
        wp.copy(self._seen.grad, self._grad_seen)
        tape.backward()
        # Once each, however many views of them there are.
        arrays = [gradient for gradient in tape.gradients.values() if isinstance(gradient, wp.array)]
        return list({gradient.ptr: gradient for gradient in arrays}.values())

    # ------------------------------------------------------------------ running

    def _take(self, rows: Tensor, targets: Tensor, params: Tensor) -> None:
        _torch(self._rows).copy_(rows)
        _torch(self._targets).copy_(targets)
        _torch(self._params).copy_(params)

    def _run(self, way: str, substeps: int) -> None:
        """Launch the graph of one way, recorded when first needed."""
        key = (way, substeps)
        if key not in self._graphs:
            with wp.ScopedDevice(self._recorder.warp), patience("Newton's kernels"):
                self._graphs[key] = self._recorded(way, substeps)
        self._recorder.launch(self._graphs[key])

    def _recorded(self, way: str, substeps: int) -> wp.Graph:
        """A graph, after one run that compiles, allocates, and finds which gradients there are."""
        if self._recorder.device.type == "cuda":
            torch.cuda.synchronize(
                self._recorder.device
            )  # Warp's stream is about to read what torch's has written
        self._grow(substeps)
        if way == "forward":
            self._simulate(substeps, wp.Tape())
            graph = self._recorder.record(lambda: self._simulate(substeps, wp.Tape()))
        else:
            gradients = self._differentiate(substeps, [])
            graph = self._recorder.record(lambda: self._differentiate(substeps, gradients))
        wp.synchronize_device(self._recorder.warp)
        return graph


class _State:
    """One of Newton's states, `all`, with views (N, ...) of its flat arrays."""

    def __init__(self, model: Any, num_envs: int) -> None:
        self.all: Any = model.state(requires_grad=True)
        self.joint_q, self.joint_qd, self.body_q, self.body_qd, self.body_f = (
            getattr(self.all, name).reshape((num_envs, -1))
            for name in ("joint_q", "joint_qd", "body_q", "body_qd", "body_f")
        )


class _Substep:
    """What one substep works with, and where it ends."""

    def __init__(self, model: Any, num_envs: int, solver: Any, before: _State) -> None:
        self.solver, self.before, self.after = solver, before, _State(model, num_envs)
        self.control = model.control(clone_variables=False)
        self.control.joint_f = wp.zeros_like(model.joint_f, requires_grad=True)
        self.joint_f = self.control.joint_f.reshape((num_envs, -1))


def _torch(array: wp.array) -> Tensor:
    return wp.to_torch(array, requires_grad=False)


def _newton_model(described: Description, num_envs: int) -> Any:
    """As many copies of the robot, without shapes, drives or limits: their forces are ours."""
    mujoco_model = described.model
    builder = newton.ModelBuilder()
    trees: dict[int, list[int]] = {}
    for link in described.links:
        child = builder.add_link(
            mass=link.mass, com=wp.vec3(*link.com), inertia=wp.mat33(*link.inertia.ravel())
        )
        joint = _add_joint(builder, mujoco_model, link, child)
        trees.setdefault(int(mujoco_model.body_rootid[link.body]), []).append(joint)
    for joints in trees.values():
        builder.add_articulation(joints)
    all_of_them = newton.ModelBuilder()
    all_of_them.replicate(builder, num_envs)
    model = all_of_them.finalize(skip_all_validations=True)
    model.set_gravity(tuple(mujoco_model.opt.gravity))
    # Said only now: solvers and states get gradients, while the model's own numbers need none.
    model.requires_grad = True
    return model


def _add_joint(builder: newton.ModelBuilder, model: mujoco.MjModel, link: Link, child: int) -> int:
    """The joint between a link and its parent: one of Newton's for all of a body in MuJoCo."""
    if model.jnt_type[link.joints[0]] == mujoco.mjtJoint.mjJNT_FREE:
        return builder.add_joint_free(child)
    slides: list[Any] = []
    hinges: list[Any] = []
    for j in link.joints:
        axis = newton.ModelBuilder.JointDofConfig(
            axis=wp.vec3(*model.jnt_axis[j]), armature=float(model.dof_armature[model.jnt_dofadr[j]]),
            limit_ke=0.0, limit_kd=0.0,
        )  # fmt: skip
        (slides if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE else hinges).append(axis)
    anchor = wp.transform(wp.vec3(*model.jnt_pos[link.joints[-1]]), wp.quat_identity())
    w, x, y, z = link.quat
    kind = newton.JointType.D6
    if len(link.joints) == 1:
        kind = newton.JointType.REVOLUTE if hinges else newton.JointType.PRISMATIC
    return builder.add_joint(
        kind, link.parent, child, linear_axes=slides, angular_axes=hinges, child_xform=anchor,
        parent_xform=wp.transform(wp.vec3(*link.pos), wp.quat(x, y, z, w)) * anchor,
    )  # fmt: skip
