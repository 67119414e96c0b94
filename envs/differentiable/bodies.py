"""Kinematics, mass matrix and bias forces of a tree of rigid bodies, for numbers or symbols.

The algorithms are those of Featherstone (2008, "Rigid Body Dynamics Algorithms"): composite rigid bodies for the mass
matrix, recursive Newton-Euler for the bias forces. Velocities, forces and inertias are taken about the origin of the
root body, which keeps precision far from the world's origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robolearn.envs.differentiable.symbols import Scalar, cos, sin, total
from robolearn.envs.differentiable.tree import Joint, Tree
from robolearn.envs.differentiable.vectors import (
    IDENTITY,
    ZERO,
    Matrix,
    Vector,
    add,
    cross,
    dot,
    matmul,
    quat_multiply,
    rotate,
    rotation_about,
    rotation_of,
    scale,
    sub,
    transposed,
)


@dataclass
class Inertia:
    """Mass, mass times centre of mass, and the rotational inertia about the reference point."""

    mass: Scalar
    moment: Vector
    rotational: Matrix

    def __add__(self, other: Inertia) -> Inertia:
        rows = [add(a, b) for a, b in zip(self.rotational, other.rotational, strict=True)]
        return Inertia(self.mass + other.mass, add(self.moment, other.moment), rows)

    def times(self, angular: Vector, linear: Vector) -> tuple[Vector, Vector]:
        """Angular and linear momentum of a velocity, or torque and force of an acceleration."""
        rotational = add(rotate(self.rotational, angular), cross(self.moment, linear))
        return rotational, add(scale(self.mass, linear), cross(angular, self.moment))


@dataclass
class Dof:
    """Motion at unit velocity of one degree of freedom: angular velocity, and velocity of the reference point."""

    angular: Vector
    linear: Vector
    body: int
    parent: int
    """The degree of freedom before it on the way to the root; -1 for none."""
    angular_rate: Vector
    linear_rate: Vector
    """Time derivatives of `angular` and `linear`."""


@dataclass
class Frame:
    """Position, orientation and velocity of a body."""

    rotation: Matrix
    quat: list[Scalar]
    position: Vector
    """Of its origin relative to the root's origin, in world axes."""
    root: Vector
    """The root's origin in the world."""
    angular: Vector
    linear: Vector
    """Velocity of the reference point."""
    last_dof: int
    """The last degree of freedom that moves the body; -1 for a fixed body."""


WORLD = Frame(IDENTITY, [1.0, 0.0, 0.0, 0.0], ZERO, ZERO, ZERO, ZERO, -1)


class Bodies:
    """The bodies of one tree. `row` is a list of scalars, with the columns of `Layout`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def joints(self) -> list[Joint]:
        """All joints, in the order of their degrees of freedom."""
        return [joint for body in self.tree.bodies for joint in body.joints]

    def speeds(self, row: Sequence[Scalar]) -> list[Scalar]:
        """Velocities (V,) in the order of the degrees of freedom."""
        return [row[j.velocity + k] for j in self.joints() for k in range(j.size)]

    # ------------------------------------------------------------------ kinematics

    def frames(self, row: Sequence[Scalar]) -> tuple[list[Frame], list[Dof]]:
        """Frames of all bodies, parents first, and motions of all degrees of freedom."""
        frames: list[Frame] = []
        dofs: list[Dof] = []
        for index, body in enumerate(self.tree.bodies):
            parent = frames[body.parent] if body.parent >= 0 else WORLD
            rotation = matmul(parent.rotation, body.rotation)
            quat = quat_multiply(parent.quat, body.quat)
            if body.parent >= 0:
                root, position = parent.root, add(parent.position, rotate(parent.rotation, body.position))
            else:
                root, position = [*body.position], ZERO
            angular, linear, last = parent.angular, parent.linear, parent.last_dof
            for joint in body.joints:
                motions: list[tuple[Vector, Vector]]
                if joint.kind == "free":
                    root, quat = list(row[:3]), list(row[3:7])
                    rotation, position = rotation_of(quat), ZERO
                    axes = transposed(rotation)
                    motions = [(ZERO, e) for e in IDENTITY] + [(a, ZERO) for a in axes]
                elif joint.kind == "slide":
                    axis = rotate(rotation, joint.axis)
                    step = scale(row[joint.position] - joint.reference, axis)
                    if body.parent < 0:
                        root = add(root, step)
                    else:
                        position = add(position, step)
                    motions = [(ZERO, axis)]
                else:
                    axis = rotate(rotation, joint.axis)
                    anchor = add(position, rotate(rotation, joint.anchor))
                    angle = row[joint.position] - joint.reference
                    rotation = matmul(rotation, rotation_about(joint.axis, sin(angle), cos(angle)))
                    half = 0.5 * angle
                    quat = quat_multiply(quat, [cos(half), *scale(sin(half), joint.axis)])
                    position = sub(anchor, rotate(rotation, joint.anchor))
                    motions = [(axis, cross(anchor, axis))]
                for number, (turn, slide) in enumerate(motions):
                    # The rotation axes of a free joint move with the base, not with each other.
                    if joint.kind != "free" or number in (0, 3):
                        before = angular, linear
                    angular_rate = cross(before[0], turn)
                    linear_rate = add(cross(before[1], turn), cross(before[0], slide))
                    if joint.kind == "free" and number < 3:
                        angular_rate, linear_rate = ZERO, ZERO
                    dofs.append(Dof(turn, slide, index, last, angular_rate, linear_rate))
                    last = len(dofs) - 1
                    speed = row[joint.velocity + number]
                    angular, linear = add(angular, scale(speed, turn)), add(linear, scale(speed, slide))
            frames.append(Frame(rotation, quat, position, root, angular, linear, last))
        return frames, dofs

    def velocity(self, frame: Frame, point: Vector) -> Vector:
        """Velocity, in world axes, of the point of a body at `point` (relative to the root's origin)."""
        return add(frame.linear, cross(frame.angular, point))

    def inertias(self, frames: list[Frame]) -> list[Inertia]:
        """Inertia of each body about the root's origin, in world axes."""
        found = []
        for body, frame in zip(self.tree.bodies, frames, strict=True):
            centre = add(frame.position, rotate(frame.rotation, body.centre))
            rotated = matmul(matmul(frame.rotation, body.inertia), transposed(frame.rotation))
            square = dot(centre, centre)
            for i in range(3):
                rotated[i] = [
                    rotated[i][j] + body.mass * ((square if i == j else 0.0) - centre[i] * centre[j])
                    for j in range(3)
                ]
            found.append(Inertia(body.mass, scale(body.mass, centre), rotated))
        return found

    def bias(
        self, frames: list[Frame], dofs: list[Dof], inertias: list[Inertia], row: Sequence[Scalar]
    ) -> list[Scalar]:
        """Bias forces (V,) of gravity, centrifugal and Coriolis effects, by recursive Newton-Euler."""
        speeds = self.speeds(row)
        upward: Vector = [-g for g in self.tree.gravity]
        accelerations: list[tuple[Vector, Vector]] = []
        forces: list[tuple[Vector, Vector]] = []
        for index, (body, frame) in enumerate(zip(self.tree.bodies, frames, strict=True)):
            turning, moving = accelerations[body.parent] if body.parent >= 0 else (ZERO, upward)
            for dof, speed in zip(dofs, speeds, strict=True):
                if dof.body == index:
                    turning = add(turning, scale(speed, dof.angular_rate))
                    moving = add(moving, scale(speed, dof.linear_rate))
            accelerations.append((turning, moving))
            torque, force = inertias[index].times(turning, moving)
            spin, push = inertias[index].times(frame.angular, frame.linear)
            torque = add(torque, add(cross(frame.angular, spin), cross(frame.linear, push)))
            forces.append((torque, add(force, cross(frame.angular, push))))
        for index in reversed(range(len(forces))):
            parent = self.tree.bodies[index].parent
            if parent >= 0:
                forces[parent] = (
                    add(forces[parent][0], forces[index][0]),
                    add(forces[parent][1], forces[index][1]),
                )
        return [dot(d.angular, forces[d.body][0]) + dot(d.linear, forces[d.body][1]) for d in dofs]

    def mass_matrix(self, dofs: list[Dof], inertias: list[Inertia]) -> list[list[Scalar]]:
        """The lower triangle of the joint-space inertia (V, V), by composite rigid bodies; without armature."""
        composite = list(inertias)
        for index in reversed(range(len(composite))):
            parent = self.tree.bodies[index].parent
            if parent >= 0:
                composite[parent] = composite[parent] + composite[index]
        matrix: list[list[Scalar]] = [[0.0] * len(dofs) for _ in dofs]
        for k, dof in enumerate(dofs):
            torque, force = composite[dof.body].times(dof.angular, dof.linear)
            j = k
            while j >= 0:
                matrix[k][j] = dot(dofs[j].angular, torque) + dot(dofs[j].linear, force)
                j = dofs[j].parent
        return matrix


def solve(matrix: list[list[Scalar]], forces: Sequence[Scalar]) -> list[Scalar]:
    """Solve A x = forces for x (V,), given the lower triangle of a symmetric positive definite A (V, V).

    A = L' D L, factorized from the leaves, which keeps the zeros between branches of the tree (Featherstone, 2005,
    "Efficient Factorization of the Joint-Space Inertia Matrix for Branched Kinematic Trees").
    """
    size, a = len(matrix), [list(line) for line in matrix]
    inverse: list[Scalar] = [0.0] * size
    for k in reversed(range(size)):
        inverse[k] = 1.0 / a[k][k]
        for i in range(k):
            factor = a[k][i] * inverse[k]
            for j in range(i + 1):
                a[i][j] = a[i][j] - factor * a[k][j]
        a[k][:k] = [entry * inverse[k] for entry in a[k][:k]]
    x = list(forces)
    for k in reversed(range(size)):
        for i in range(k):
            x[i] = x[i] - a[k][i] * x[k]
    x = [value * i for value, i in zip(x, inverse, strict=True)]
    for k in range(size):
        x[k] = x[k] - total(a[k][i] * x[i] for i in range(k))
    return x
