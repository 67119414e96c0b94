"""Equations of motion of a robot on flat ground: forces, one physics step, and the fields of Entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robolearn.envs.differentiable.bodies import WORLD, Bodies, Dof, Frame, solve
from robolearn.envs.differentiable.symbols import Scalar, maximum, minimum, sqrt, total, where_positive
from robolearn.envs.differentiable.tree import Joint, Motor, Tree
from robolearn.envs.differentiable.vectors import (
    ZERO,
    Vector,
    add,
    cross,
    dot,
    quat_multiply,
    rotate,
    scale,
    transposed,
)


@dataclass
class Contact:
    """A contact point: its force in world axes and the derivatives of the force."""

    at: Vector
    """Position relative to the root's origin, in world axes."""
    body: int
    force: Vector
    damping: Vector
    """-d force / d velocity, for each world axis."""
    stiffness: Scalar
    """-d force / d height."""


class Mechanics(Bodies):
    """Dynamics of one tree. `row`, `target` and `params` hold scalars; `Layout` defines a row."""

    def __init__(self, tree: Tree, timestep: float) -> None:
        super().__init__(tree)
        self.timestep = timestep

    # ------------------------------------------------------------------ forces

    def motor(
        self, motor: Motor, row: Sequence[Scalar], target: Scalar, gain: Scalar
    ) -> tuple[Scalar, Scalar]:
        """Torque of a motor, clipped to its effort, and its damping, which is 0 where the torque is clipped."""
        if motor.kind == "force":
            return maximum(minimum(target, motor.effort), -motor.effort), 0.0
        unclipped = gain * (motor.kp * (target - row[motor.position]) - motor.kd * row[motor.velocity])
        torque = maximum(minimum(unclipped, motor.effort), -motor.effort)
        margin = (motor.effort - unclipped) * (motor.effort + unclipped)
        return torque, where_positive(margin, gain * motor.kd, 0.0)

    def contacts(self, frames: list[Frame], friction: Scalar) -> list[Contact]:
        """The ground's force on every contact point of the robot.

        Normal force of Hunt and Crossley (1975): stiffness x depth x (1 - dissipation x upward speed), which starts
        from 0 at any impact speed. Friction opposes sliding with up to `friction` times the normal force, and is
        proportional to the sliding speed below about `slip_speed`.
        """
        ground, h = self.tree.ground, self.timestep
        found = []
        for point in self.tree.points:
            frame = frames[point.body]
            centre = add(frame.position, rotate(frame.rotation, point.position))
            at = [centre[0], centre[1], centre[2] - point.radius]
            depth = maximum(-(frame.root[2] + at[2]), 0.0)
            vx, vy, vz = self.velocity(frame, at)
            factor = maximum(1.0 - ground.dissipation * vz, 0.0)
            normal = ground.stiffness * depth * factor
            slip = friction * normal / sqrt(vx * vx + vy * vy + ground.slip_speed**2)
            damping = where_positive(factor, ground.stiffness * ground.dissipation * depth, 0.0)
            # The implicit stiffness: full for a deep point, less where the point may touch or leave within the step.
            # So the ground never pulls and a step is continuous at a touchdown, where gradients would otherwise be
            # meaningless.
            ramp = _penetration_ratio(depth, h * vz)
            found.append(
                Contact(
                    at, point.body, [-(slip * vx), -(slip * vy), normal], [slip, slip, damping],
                    ground.stiffness * factor * ramp,
                )
            )  # fmt: skip
        return found

    def stop(self, joint: Joint, row: Sequence[Scalar]) -> tuple[Scalar, Scalar, Scalar]:
        """Force of a joint's stop, its damping and its stiffness; 0 within the range."""
        if joint.lower is None or joint.upper is None:
            return 0.0, 0.0, 0.0
        position, speed = row[joint.position], row[joint.velocity]
        beyond = maximum(position - joint.upper, 0.0) - maximum(joint.lower - position, 0.0)
        outside = maximum(position - joint.upper, joint.lower - position)
        # The damping ramps up over 0.001 rad or m, so that the force is continuous.
        ramp = minimum(maximum(1000.0 * outside, 0.0), 1.0)
        damping = ramp * joint.stop_damping
        force = -(joint.stop_stiffness * beyond) - damping * speed
        stiffness = joint.stop_stiffness * _penetration_ratio(maximum(outside, 0.0), self.timestep * speed)
        return force, damping, stiffness

    # ------------------------------------------------------------------ a step

    def substep(
        self, row: Sequence[Scalar], target: Sequence[Scalar], params: dict[str, Scalar]
    ) -> list[Scalar]:
        """The row one timestep later.

        Semi-implicit: velocities first, then positions with the new velocities. Damping of joints and motors, stops
        and the ground are linearized and implicit (MuJoCo's `implicitfast`), which keeps stiff contact stable:
        (M + h D + h^2 K) a = forces - h K v.
        """
        h = self.timestep
        frames, dofs = self.frames(row)
        inertias = self.inertias(frames)
        mass = params.get("mass_scale", 1.0)
        matrix = [[mass * entry for entry in line] for line in self.mass_matrix(dofs, inertias)]
        forces = [-(mass * f) for f in self.bias(frames, dofs, inertias, row)]
        speeds = self.speeds(row)

        for joint in self.joints():
            for k in range(joint.dof, joint.dof + joint.size):
                forces[k] = forces[k] - joint.damping * speeds[k]
                matrix[k][k] = matrix[k][k] + (joint.armature + h * joint.damping)
            if joint.kind != "free":
                force, damping, stiffness = self.stop(joint, row)
                force = force + joint.spring * (joint.spring_rest - row[joint.position])
                forces[joint.dof] = forces[joint.dof] + force - h * stiffness * speeds[joint.dof]
                matrix[joint.dof][joint.dof] = matrix[joint.dof][joint.dof] + (
                    h * damping + h * h * stiffness
                )
        for motor, wanted in zip(self.tree.motors, target, strict=True):
            torque, damping = self.motor(motor, row, wanted, params.get("gain_scale", 1.0))
            forces[motor.dof] = forces[motor.dof] + torque
            matrix[motor.dof][motor.dof] = matrix[motor.dof][motor.dof] + h * damping
        for contact in self.contacts(frames, params.get("friction", self.tree.ground.friction)):
            self._add_contact(contact, frames, dofs, forces, matrix)

        accelerations = solve(matrix, forces)
        return self._integrate(row, [v + h * a for v, a in zip(speeds, accelerations, strict=True)])

    def _add_contact(
        self,
        contact: Contact,
        frames: list[Frame],
        dofs: list[Dof],
        forces: list[Scalar],
        matrix: list[list[Scalar]],
    ) -> None:
        """Add one contact point to the forces (V,) and to the matrix (V, V) of a step, in place."""
        h = self.timestep
        up = self.velocity(frames[contact.body], contact.at)[2]
        force = [*contact.force[:2], contact.force[2] - h * contact.stiffness * up]
        implicit = [
            h * contact.damping[0],
            h * contact.damping[1],
            h * contact.damping[2] + h * h * contact.stiffness,
        ]
        jacobian: dict[int, Vector] = {}
        k = frames[contact.body].last_dof
        while k >= 0:
            jacobian[k] = add(dofs[k].linear, cross(dofs[k].angular, contact.at))
            k = dofs[k].parent
        for k, column in jacobian.items():
            forces[k] = forces[k] + dot(column, force)
            weighted = [r * c for r, c in zip(implicit, column, strict=True)]
            for j, other in jacobian.items():
                if j <= k:
                    matrix[k][j] = matrix[k][j] + dot(weighted, other)

    def _integrate(self, row: Sequence[Scalar], speeds: list[Scalar]) -> list[Scalar]:
        """The row after a timestep with velocities `speeds` (V,)."""
        h, new = self.timestep, list(row)
        for joint in self.joints():
            if joint.kind == "free":
                linear, angular = speeds[joint.dof : joint.dof + 3], speeds[joint.dof + 3 : joint.dof + 6]
                new[:3] = add(list(row[:3]), scale(h, linear))
                quat = quat_multiply(list(row[3:7]), _small_rotation(scale(0.5 * h, angular)))
                norm = 1.0 / sqrt(total(q * q for q in quat))
                new[3:7] = [norm * q for q in quat]
                new[7:13] = [*linear, *angular]
            else:
                new[joint.velocity] = speeds[joint.dof]
                new[joint.position] = row[joint.position] + h * speeds[joint.dof]
        return new

    # ------------------------------------------------------------------ outputs

    def outputs(
        self, row: Sequence[Scalar], target: Sequence[Scalar], params: dict[str, Scalar]
    ) -> list[Scalar]:
        """Every field of Entity at `row`, in `Layout`'s order."""
        tree = self.tree
        frames, _ = self.frames(row)
        base: list[Scalar] = [*ZERO, 1.0, *ZERO, *ZERO, *ZERO]
        if tree.base >= 0:
            into = transposed(frames[tree.base].rotation)
            base = [*row[:7], *rotate(into, list(row[7:10])), *row[10:13]]
        positions = [row[c] for c in tree.position_columns]
        speeds = [row[c] for c in tree.velocity_columns]
        torques: list[Scalar] = [0.0] * len(positions)
        for motor, wanted in zip(tree.motors, target, strict=True):
            torques[motor.joint] = self.motor(motor, row, wanted, params.get("gain_scale", 1.0))[0]
        bodies = [x for b in tree.seen_bodies for x in add(frames[b].root, frames[b].position)]
        contacts = self.contacts(frames, params.get("friction", tree.ground.friction))
        foot_pos: list[Scalar] = []
        foot_quat: list[Scalar] = []
        foot_lin_vel: list[Scalar] = []
        foot_force: list[Scalar] = []
        for foot in tree.feet:
            frame = frames[foot.body]
            sole = add(frame.position, rotate(frame.rotation, foot.position))
            foot_pos += add(frame.root, sole)
            foot_quat += quat_multiply(frame.quat, foot.quat)
            foot_lin_vel += self.velocity(frame, sole)
            foot_force += _net_force(contacts, foot.body)
        feet = [*foot_pos, *foot_quat, *foot_lin_vel, *foot_force]
        asked: list[Scalar] = []
        for site in tree.frames:
            frame = frames[site.body] if site.body >= 0 else WORLD
            at = add(frame.position, rotate(frame.rotation, site.position))
            turned = quat_multiply(frame.quat, site.quat)
            asked += [*add(frame.root, at), *turned, *self.velocity(frame, at), *frame.angular]
        for body in tree.touched:
            asked += _net_force(contacts, body)
        return [*base, *positions, *speeds, *torques, *bodies, *feet, *asked]


def _net_force(contacts: list[Contact], body: int) -> Vector:
    """The ground's force on a body, world axes."""
    forces = [contact.force for contact in contacts if contact.body == body]
    return [total(force[axis] for force in forces) for axis in range(3)]


def _small_rotation(half: Vector) -> list[Scalar]:
    """The quaternion of a rotation by twice the vector `half` [rad], by its series, for angles below 0.5 rad."""
    square = dot(half, half)
    real = 1.0 - square * (1 / 2) + square * square * (1 / 24) - square * square * square * (1 / 720)
    ratio = 1.0 - square * (1 / 6) + square * square * (1 / 120) - square * square * square * (1 / 5040)
    return [real, *scale(ratio, half)]


def _penetration_ratio(depth: Scalar, travel: Scalar) -> Scalar:
    """`depth` (>= 0) over the distance |travel| of a step, at most 1."""
    return depth / maximum(maximum(depth, maximum(travel, -travel)), 1e-9)
