"""What a differentiable engine is, and the bridge that puts one control step of it into PyTorch's graph."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from robolearn.envs.robot import Robot
from robolearn.envs.state import Entity, InitialState, Tensor, quat_rotate


class Engine(Protocol):
    """N copies of one robot: a control step, and the product of a vector with its Jacobian.

    What a step goes on from is a *row*, laid out the same whatever the engine (see `Layout`). It keeps nothing
    between calls: the same arguments give the same result, bit for bit on a CPU. Rows of different environments
    never mix, so that one which is not finite spoils no other.
    """

    timestep: float
    """Length of one physics substep [s]."""
    params: tuple[str, ...]
    """Physical parameters that each environment has its own of, sorted; the columns of `params` below."""

    def forward(self, rows: Tensor, targets: Tensor, params: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        """Rows (N, R) after `substeps` with `targets` (N, A) held, and what is seen there, (N, L).

        With 0 substeps only what is seen. New tensors, not part of any graph.
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
        """Gradients by `rows` (N, R) and `targets` (N, A), given those by the two results of `forward` at the same
        arguments. New tensors.
        """

    def close(self) -> None:
        """Free its memory."""


class Layout:
    """Where everything stands in a row (N, R) and in what is seen (N, L), in the robot's own joint order.

    A row is MuJoCo's state: for a free base its position (3), orientation wxyz (4), velocity in the world (3) and
    angular velocity in base axes (3); then joint positions (J) and velocities (J). What is seen is every field of
    `Entity` in its order, flattened.
    """

    def __init__(self, robot: Robot) -> None:
        self.base = 13 if robot.base else 0
        self.joints = len(robot.joints)
        self.row = self.base + 2 * self.joints
        b, f, j = len(robot.bodies), len(robot.feet), self.joints
        self.shapes: dict[str, tuple[int, ...]] = {
            "base_pos": (3,),
            "base_quat": (4,),
            "base_lin_vel": (3,),
            "base_ang_vel": (3,),
            "joint_pos": (j,),
            "joint_vel": (j,),
            "joint_torque": (j,),
            "body_pos": (b, 3),
            "foot_pos": (f, 3),
            "foot_quat": (f, 4),
            "foot_lin_vel": (f, 3),
            "foot_force": (f, 3),
        }
        self.widths = [int(torch.Size(shape).numel()) for shape in self.shapes.values()]
        self.seen = sum(self.widths)

    def entity(self, seen: Tensor) -> Entity:
        """What is seen (N, L) as the fields of State; views of it."""
        parts = seen.split(self.widths, dim=1)
        return Entity(
            **{k: part.view(len(seen), *self.shapes[k]) for k, part in zip(self.shapes, parts, strict=True)}
        )

    def rows(self, pose: InitialState) -> Tensor:
        """The rows (N, R) that stand in `pose`."""
        joints = (pose.joint_pos, pose.joint_vel)
        if not self.base:
            return torch.cat(joints, dim=1)
        quat = pose.base_quat / pose.base_quat.norm(dim=1, keepdim=True)
        velocity = quat_rotate(quat, pose.base_lin_vel)
        return torch.cat((pose.base_pos, quat, velocity, pose.base_ang_vel, *joints), dim=1)

    def joint_pos(self, rows: Tensor) -> Tensor:
        """Joint positions (N, J) of rows."""
        return rows[:, self.base : self.base + self.joints]


class ControlStep(torch.autograd.Function):
    """One control step as one node of PyTorch's graph. Only its inputs are kept: the way back simulates again.

    `apply(engine, rows, targets, params, substeps)` gives `forward`'s two results.
    """

    @staticmethod
    def forward(
        ctx: Any, engine: Engine, rows: Tensor, targets: Tensor, params: Tensor, substeps: int
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`."""
        # Copies: whoever owns these may write the next step's into the same memory.
        rows, targets, params = (x.detach().clone() for x in (rows, targets, params))
        ctx.save_for_backward(rows, targets, params)
        ctx.engine, ctx.substeps = engine, substeps
        return engine.forward(rows, targets, params, substeps)

    @staticmethod
    @once_differentiable  # a second derivative would need the engines' own
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """See `Engine.backward`."""
        rows, targets, params = ctx.saved_tensors
        by_rows, by_targets = ctx.engine.backward(rows, targets, params, ctx.substeps, *grads)
        # Nothing asked, nothing answered: on the way back through a simulation that blew up 0 becomes NaN.
        asked = torch.cat(grads, dim=1).any(dim=1, keepdim=True)
        return None, torch.where(asked, by_rows, 0.0), torch.where(asked, by_targets, 0.0), None, None
