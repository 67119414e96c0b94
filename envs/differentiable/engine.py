"""The interface of a differentiable engine, and the autograd function that runs one control step of it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from robolearn.envs.parameters import changed_by
from robolearn.envs.randomize import settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import Entity, InitialState, Tensor, quat_rotate, scene_state


class Engine(Protocol):
    """N copies of one robot: a control step and its vector-Jacobian product.

    The simulation state of an environment is a *row*; every engine uses the same `Layout`. An engine keeps no state
    between calls: the same arguments give the same result, bit for bit on a CPU. Environments are independent, so a
    non-finite row does not affect the others.
    """

    timestep: float
    """Length of one physics substep [s]."""
    params: tuple[str, ...]
    """Names of the physical parameters that differ per environment, sorted; the columns of `params` below."""

    def forward(self, rows: Tensor, targets: Tensor, params: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        """Rows (N, R) after `substeps` with constant joint `targets` (N, A), and the fields of Entity there (N, L).

        With 0 substeps only the fields are computed. Returns new tensors, outside of any autograd graph.
        """

    def backward(
        self,
        rows: Tensor,
        targets: Tensor,
        params: Tensor,
        substeps: int,
        grad_rows: Tensor,
        grad_seen: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Gradients by `rows` (N, R) and `targets` (N, A), from the gradients by the two results of `forward` with
        the same arguments. Returns new tensors.
        """

    def close(self) -> None:
        """Free its memory."""


class Layout:
    """Columns of a row (N, R) and of the outputs `seen` (N, L), with joints in the robot's order.

    A row is MuJoCo's state: for a free base its position (3), orientation wxyz (4), velocity in world axes (3) and
    angular velocity in base axes (3); then joint positions (J) and velocities (J). `seen` has every tensor of
    the robot's `Entity` in the order of `Entity.tensors`, flattened: frames and contacts of the scene last.
    """

    def __init__(self, what: Robot | Scene) -> None:
        scene = Scene.of(what)
        robot = scene.robot
        self.base = 13 if robot.base else 0
        self.joints = len(robot.joints)
        self.row = self.base + 2 * self.joints
        self._example = scene_state(scene, 1, torch.device("cpu"))[scene.first]
        self.shapes = {name: tuple(tensor.shape[1:]) for name, tensor in self._example.tensors().items()}
        """Of each tensor of the Entity, by its name, for one environment."""
        self._names = {id(tensor): name for name, tensor in self._example.tensors().items()}
        self.widths = [int(torch.Size(shape).numel()) for shape in self.shapes.values()]
        self.seen = sum(self.widths)

    def entity(self, seen: Tensor) -> Entity:
        """The Entity whose tensors are views of `seen` (N, L)."""
        parts = seen.split(self.widths, dim=1)
        views = {
            name: part.view(len(seen), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        return self._example.each(lambda tensor: views[self._names[id(tensor)]])

    def rows(self, initial: InitialState) -> Tensor:
        """The rows (N, R) of an initial state."""
        joints = (initial.joint_pos, initial.joint_vel)
        if not self.base:
            return torch.cat(joints, dim=1)
        quat = initial.base_quat / initial.base_quat.norm(dim=1, keepdim=True)
        velocity = quat_rotate(quat, initial.base_lin_vel)
        return torch.cat((initial.base_pos, quat, velocity, initial.base_ang_vel, *joints), dim=1)

    def joint_pos(self, rows: Tensor) -> Tensor:
        """Joint positions (N, J) of rows."""
        return rows[:, self.base : self.base + self.joints]


def engine_params(scene: Scene) -> tuple[str, ...]:
    """Names of the parameters that an engine needs for those of a scene, sorted: see `Engine.params`."""
    return tuple(sorted({changed_by(name) for name in settable(scene)}))


class ControlStep(torch.autograd.Function):
    """One control step as one node of the autograd graph. It saves only its inputs; backward simulates again.

    `apply(engine, rows, targets, params, substeps)` returns the two results of `Engine.forward`.
    """

    @staticmethod
    def forward(
        ctx: Any, engine: Engine, rows: Tensor, targets: Tensor, params: Tensor, substeps: int
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`."""
        # Copies: the caller may overwrite these tensors in its next step.
        rows, targets, params = (x.detach().clone() for x in (rows, targets, params))
        ctx.save_for_backward(rows, targets, params)
        ctx.engine, ctx.substeps = engine, substeps
        return engine.forward(rows, targets, params, substeps)

    @staticmethod
    @once_differentiable  # the engines have no second derivatives
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """See `Engine.backward`."""
        rows, targets, params = ctx.saved_tensors
        grad_rows, grad_targets = ctx.engine.backward(rows, targets, params, ctx.substeps, *grads)
        # Where the incoming gradient is 0 the result is 0, although the adjoint of a diverged step makes it NaN.
        nonzero = torch.cat(grads, dim=1).any(dim=1, keepdim=True)
        return None, torch.where(nonzero, grad_rows, 0.0), torch.where(nonzero, grad_targets, 0.0), None, None
