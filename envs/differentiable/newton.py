"""Control steps of any robot by Newton's Featherstone solver, and their derivatives."""

from __future__ import annotations

from typing import Any

import mujoco
import newton
import numpy as np
import torch
import warp as wp

from robolearn.envs.differentiable import newton_kernels as kernels
from robolearn.envs.differentiable.engine import Layout, engine_params
from robolearn.envs.differentiable.newton_model import SINK, Description, Link
from robolearn.envs.differentiable.supported import compliance
from robolearn.envs.randomize import nominal, parameter
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import Recorder, patience, quiet

PARAMETERS = ("friction", "gain_scale", "mass_scale")
"""The physical parameters, in the order of the kernels' arguments."""


class NewtonEngine:
    """Any robot of hinges, slides and a free base; implements `robolearn.envs.differentiable.engine.Engine`.

    Newton's `SolverFeatherstone` does the multibody dynamics. `newton_kernels.py` computes all applied forces once
    per substep: actuators clipped to their effort, damping, springs, stops, and the ground as spring-dampers at the
    contact points. Newton's collision pipeline is not used: limbs pass through one another, and only geoms that
    collide with the floor in MuJoCo touch it.

    `backward` returns the derivative of what `forward` computed. It predicts finite changes badly where a foot
    touches down or lifts off (the force is continuous there, its derivative is not) and where a motor or a stop
    engages. Tests require 1e-3 agreement with finite differences in smooth motion and 1e-2 in sustained contact.

    Work-arounds for two bugs of Newton 1.8 that make gradients wrong:

    1. A solver overwrites its mass matrix and Jacobian in each step, and the backward pass then uses those of the
       last step for every step. So each substep has a separate solver.
    2. `eval_rigid_tau` transforms its input body forces in place, and its adjoint then reads the transformed values.
       So a copy recorded on the tape after the substep restores the forces right before that adjoint.

    Forward and backward (which simulates again, on a tape) are recorded Warp graphs over buffers at fixed addresses,
    on CPU and GPU, one pair per number of substeps. Memory grows only with the substeps of a control step: the
    humanoid takes 0.14 MB per environment and substep.

    `_solver_each` and `_restore_forces` switch the work-arounds off, for the tests that prove them necessary.
    """

    def __init__(
        self,
        scene: Scene | Robot,
        num_envs: int,
        device: torch.device,
        model: mujoco.MjModel,
        options: dict[str, Any],
        *,
        _solver_each: bool = True,
        _restore_forces: bool = True,
    ) -> None:
        """`model` is the robot's model for this backend; `options` may hold `contact_stiffness` [N/m],
        `contact_damping` [s/m] and `contact_friction_speed` [m/s]. Kernels are compiled at the first step.

        Raises:
            ConfigError: names an unsupported feature of the robot or a wrong option, and the fix.
        """
        quiet()
        self.timestep = float(model.opt.timestep)
        self._scene = scene = Scene.of(scene)
        self._robot, self._count = scene.robot, num_envs
        self.params = engine_params(scene)
        self._recorder = Recorder(device)
        self._solver_each, self._restore_forces = _solver_each, _restore_forces
        self._graphs: dict[tuple[str, int], wp.Graph] = {}
        self._substeps: list[_Substep] = []
        self._solver: Any = None
        self._model: Any = None  # Newton's types are incomplete
        self._start: Any = None
        description = Description(scene, model)
        with wp.ScopedDevice(self._recorder.warp):
            self._joints, self._places = description.joints(), description.places()
            self._points = description.points(*compliance(self._robot, model, options, SINK, 1.0))
            self._asked = description.asked()
            self._model = _newton_model(description, num_envs)
            self._allocate(description)

    # ------------------------------------------------------------------ Engine

    def forward(self, rows: Tensor, targets: Tensor, params: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`."""
        self._set_inputs(rows, targets, params)
        self._launch("forward", substeps)
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
        self._set_inputs(rows, targets, params)
        _torch(self._grad_rows).copy_(grad_rows)
        _torch(self._grad_seen).copy_(grad_seen)
        self._launch("backward", substeps)
        # Where the incoming gradient is 0 the result is 0, even if the simulation was not finite (0 times NaN is NaN).
        nonzero = ((grad_rows != 0).any(dim=1) | (grad_seen != 0).any(dim=1))[:, None]
        by_rows, by_targets = _torch(self._rows.grad), _torch(self._targets.grad)
        return torch.where(nonzero, by_rows, 0.0), torch.where(nonzero, by_targets, 0.0)

    def close(self) -> None:
        """See `Engine.close`. The engine cannot be used afterwards."""
        self._graphs.clear()
        self._substeps.clear()
        self._solver = self._start = self._model = None

    # ------------------------------------------------------------------ building

    def _allocate(self, description: Description) -> None:
        """Allocate the buffers that do not depend on the number of substeps."""
        n, layout = self._count, Layout(self._scene)

        def floats(width: int, requires_grad: bool = False) -> wp.array:
            return wp.zeros((n, width), dtype=float, requires_grad=requires_grad)

        self._rows, self._targets = floats(layout.row, True), floats(len(self._robot.actuators), True)
        self._params = floats(len(self.params))
        self._rows_out, self._seen = floats(layout.row, True), floats(layout.seen, True)
        self._grad_rows, self._grad_seen = floats(layout.row), floats(layout.seen)
        column = [self.params.index(name) if name in self.params else -1 for name in PARAMETERS]
        self._columns = wp.vec3i(*column)
        self._frictions, self._gains, self._masses = (
            wp.full(
                n, nominal(parameter(name, self._scene, description.model), description.model), dtype=float
            )
            for name in PARAMETERS
        )
        inertia = np.zeros((len(description.links), 6, 6), dtype=np.float32)
        for i, link in enumerate(description.links):
            inertia[i, :3, :3], inertia[i, 3:, 3:] = link.mass * np.eye(3), link.inertia
        self._nominal: wp.array = wp.array(inertia, dtype=wp.spatial_matrix)
        self._inertia = wp.zeros((n, len(inertia)), dtype=wp.spatial_matrix)
        self._com = self._model.body_com.reshape((n, -1))
        self._start = _State(self._model, n)

    def _allocate_substeps(self, substeps: int) -> None:
        """Allocate states, forces and solvers for at least this many substeps."""
        while len(self._substeps) < substeps:
            if self._solver_each or self._solver is None:
                # Tiled matrix products take a tenth of the time of the plain ones, also on a CPU.
                self._solver = newton.solvers.SolverFeatherstone(
                    self._model, angular_damping=0.0, use_tile_gemm=True
                )
                # The inertias differ per environment; all solvers share one array.
                self._solver.body_I_m = self._inertia.flatten()
            before = self._substeps[-1].after if self._substeps else self._start
            self._substeps.append(_Substep(self._model, self._count, self._solver, before))

    # ------------------------------------------------------------------ contents of the recorded graphs

    def _simulate(self, substeps: int, tape: wp.Tape) -> None:
        """Compute `_rows_out` and `_seen` from `_rows`, `_targets` and `_params`."""
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
            frames, touched = len(self._asked.link), len(self._asked.touched)
            if frames:
                wp.launch(
                    kernels.publish_frames, dim=(n, frames),
                    inputs=[state.body_q, state.body_qd, self._com, self._asked], outputs=[self._seen],
                )  # fmt: skip
            if touched and points:
                wp.launch(
                    kernels.publish_contacts, dim=(n, touched, points),
                    inputs=[
                        state.body_q, state.body_qd, self._com, self._frictions, self._points, self._asked,
                    ],
                    outputs=[self._seen],
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
        """Simulate, zero `gradients`, and run the backward pass. Returns the gradient arrays that it used."""
        tape = wp.Tape()
        self._simulate(substeps, tape)
        for gradient in gradients:
            gradient.zero_()
        wp.copy(self._rows_out.grad, self._grad_rows)
        wp.copy(self._seen.grad, self._grad_seen)
        tape.backward()
        # Several views of one array share a pointer: list each array once.
        arrays = [gradient for gradient in tape.gradients.values() if isinstance(gradient, wp.array)]
        return list({gradient.ptr: gradient for gradient in arrays}.values())

    # ------------------------------------------------------------------ running

    def _set_inputs(self, rows: Tensor, targets: Tensor, params: Tensor) -> None:
        _torch(self._rows).copy_(rows)
        _torch(self._targets).copy_(targets)
        _torch(self._params).copy_(params)

    def _launch(self, direction: str, substeps: int) -> None:
        """Launch the graph of a direction ("forward" or "backward"); record it at the first use."""
        key = (direction, substeps)
        if key not in self._graphs:
            with wp.ScopedDevice(self._recorder.warp), patience("Newton's kernels"):
                self._graphs[key] = self._record(direction, substeps)
        self._recorder.launch(self._graphs[key])

    def _record(self, direction: str, substeps: int) -> wp.Graph:
        """Record a graph, after one execution that compiles, allocates and collects the gradient arrays."""
        if self._recorder.device.type == "cuda":
            # Warp's stream reads what torch's stream has written.
            torch.cuda.synchronize(self._recorder.device)
        self._allocate_substeps(substeps)
        if direction == "forward":
            self._simulate(substeps, wp.Tape())
            graph = self._recorder.record(lambda: self._simulate(substeps, wp.Tape()))
        else:
            gradients = self._differentiate(substeps, [])
            graph = self._recorder.record(lambda: self._differentiate(substeps, gradients))
        wp.synchronize_device(self._recorder.warp)
        return graph


class _State:
    """A state of Newton, `all`, with views (N, ...) of its flat arrays."""

    def __init__(self, model: Any, num_envs: int) -> None:
        self.all: Any = model.state(requires_grad=True)
        self.joint_q, self.joint_qd, self.body_q, self.body_qd, self.body_f = (
            getattr(self.all, name).reshape((num_envs, -1))
            for name in ("joint_q", "joint_qd", "body_q", "body_qd", "body_f")
        )


class _Substep:
    """Solver, control and states of one substep."""

    def __init__(self, model: Any, num_envs: int, solver: Any, before: _State) -> None:
        self.solver, self.before, self.after = solver, before, _State(model, num_envs)
        self.control = model.control(clone_variables=False)
        self.control.joint_f = wp.zeros_like(model.joint_f, requires_grad=True)
        self.joint_f = self.control.joint_f.reshape((num_envs, -1))


def _torch(array: wp.array) -> Tensor:
    return wp.to_torch(array, requires_grad=False)


def _newton_model(description: Description, num_envs: int) -> Any:
    """Newton's model of N robots, without shapes, drives and limits, whose forces `newton_kernels.py` computes."""
    mujoco_model = description.model
    builder = newton.ModelBuilder()
    trees: dict[int, list[int]] = {}
    for link in description.links:
        child = builder.add_link(
            mass=link.mass, com=wp.vec3(*link.com), inertia=wp.mat33(*link.inertia.ravel())
        )
        joint = _add_joint(builder, mujoco_model, link, child)
        trees.setdefault(int(mujoco_model.body_rootid[link.body]), []).append(joint)
    for joints in trees.values():
        builder.add_articulation(joints)
    replicas = newton.ModelBuilder()
    replicas.replicate(builder, num_envs)
    model = replicas.finalize(skip_all_validations=True)
    model.set_gravity(tuple(mujoco_model.opt.gravity))
    # Set after `finalize`: solvers and states get gradients, the model's constants do not.
    model.requires_grad = True
    return model


def _add_joint(builder: newton.ModelBuilder, model: mujoco.MjModel, link: Link, child: int) -> int:
    """Add one joint of Newton for all MuJoCo joints between a link and its parent."""
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
