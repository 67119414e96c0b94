"""Equations of motion of a robot on flat ground: its forces, one physics step, and what is seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robolearn.envs.differentiable.bodies import Bodies, Dof, Frame, solve
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
class Touch:
    """One point on the ground: forces in world axes, and what they become when the velocity changes."""

    at: Vector
    """From the root's origin."""
    body: int
    force: Vector
    damping: Vector
    """-d force / d velocity, along each world axis."""
    stiffness: Scalar
    """-d force / d height."""


class Mechanics(Bodies):
    """The motion of one tree; `row`, `target` and `params` are lists of scalars, a row as `Layout` has it."""

    def __init__(self, tree: Tree, timestep: float) -> None:
        super().__init__(tree)
        self.timestep = timestep

    # ------------------------------------------------------------------ forces

    def motor(
        self, motor: Motor, row: Sequence[Scalar], target: Scalar, gain: Scalar
    ) -> tuple[Scalar, Scalar]:
        """Torque of a motor within its limits, and its damping: 0 where a limit holds it."""
        if motor.kind == "force":
            return maximum(minimum(target, motor.effort), -motor.effort), 0.0
        asked = gain * (motor.kp * (target - row[motor.position]) - motor.kd * row[motor.velocity])
        torque = maximum(minimum(asked, motor.effort), -motor.effort)
        room = (motor.effort - asked) * (motor.effort + asked)
        return torque, where_positive(room, gain * motor.kd, 0.0)

    def touches(self, frames: list[Frame], friction: Scalar) -> list[Touch]:
        """The ground's forces on every point that may touch it.

        Normal force of Hunt and Crossley (1975): stiffness x depth x (1 - dissipation x upward speed), so that it
        starts from 0 however fast the point arrives. Friction opposes sliding, up to `friction` times that, and
        grows in proportion below `slip_speed`.
        """
        ground, h = self.tree.ground, self.timestep
        found = []
        for point in self.tree.points:
            frame = frames[point.body]
            centre = add(frame.position, rotate(frame.rotation, point.position))
            at = [centre[0], centre[1], centre[2] - point.radius]
            depth = maximum(-(frame.root[2] + at[2]), 0.0)
            vx, vy, vz = self.velocity(frame, at)
            room = maximum(1.0 - ground.dissipation * vz, 0.0)
            normal = ground.stiffness * depth * room
            slip = friction * normal / sqrt(vx * vx + vy * vy + ground.slip_speed**2)
            damping = where_positive(room, ground.stiffness * ground.dissipation * depth, 0.0)
            # How much of the spring counts at the end of the step: all of it once a point is deep, and less where it
            # may touch or leave within the step. So the ground never pulls, and a step changes without a jump as a
            # point begins to touch: a gradient through a touchdown means something.
            share = _share(depth, h * vz)
            found.append(
                Touch(
                    at, point.body, [-(slip * vx), -(slip * vy), normal], [slip, slip, damping],
                    ground.stiffness * room * share,
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
        # The damper sets in over a thousandth of a radian or metre, not at once.
        grip = minimum(maximum(1000.0 * outside, 0.0), 1.0)
        damping = grip * joint.stop_damping
        force = -(joint.stop_stiffness * beyond) - damping * speed
        return force, damping, joint.stop_stiffness * _share(maximum(outside, 0.0), self.timestep * speed)

    # ------------------------------------------------------------------ a step

    def substep(
        self, row: Sequence[Scalar], target: Sequence[Scalar], params: dict[str, Scalar]
    ) -> list[Scalar]:
        """The row one timestep later.

        Velocities first, then positions with the new ones. Damping of joints and motors, stops and the ground count at
        the end of the step, linearized (MuJoCo's `implicitfast`), which keeps stiff contact stable:
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
        for touch in self.touches(frames, params.get("friction", self.tree.ground.friction)):
            self._press(touch, frames, dofs, forces, matrix)

        accelerations = solve(matrix, forces)
        return self._moved(row, [v + h * a for v, a in zip(speeds, accelerations, strict=True)])

    def _press(
        self,
        touch: Touch,
        frames: list[Frame],
        dofs: list[Dof],
        forces: list[Scalar],
        matrix: list[list[Scalar]],
    ) -> None:
        """Add one point on the ground to the forces and to the matrix of a step."""
        h = self.timestep
        up = self.velocity(frames[touch.body], touch.at)[2]
        force = [*touch.force[:2], touch.force[2] - h * touch.stiffness * up]
        resist = [h * touch.damping[0], h * touch.damping[1], h * touch.damping[2] + h * h * touch.stiffness]
        columns: dict[int, Vector] = {}
        k = frames[touch.body].last_dof
        while k >= 0:
            columns[k] = add(dofs[k].linear, cross(dofs[k].angular, touch.at))
            k = dofs[k].parent
        for k, column in columns.items():
            forces[k] = forces[k] + dot(column, force)
            weighted = [r * c for r, c in zip(resist, column, strict=True)]
            for j, other in columns.items():
                if j <= k:
                    matrix[k][j] = matrix[k][j] + dot(weighted, other)

    def _moved(self, row: Sequence[Scalar], speeds: list[Scalar]) -> list[Scalar]:
        """The row after a timestep at `speeds` (V,)."""
        h, new = self.timestep, list(row)
        for joint in self.joints():
            if joint.kind == "free":
                linear, angular = speeds[joint.dof : joint.dof + 3], speeds[joint.dof + 3 : joint.dof + 6]
                new[:3] = add(list(row[:3]), scale(h, linear))
                quat = quat_multiply(list(row[3:7]), _turn(scale(0.5 * h, angular)))
                norm = 1.0 / sqrt(total(q * q for q in quat))
                new[3:7] = [norm * q for q in quat]
                new[7:13] = [*linear, *angular]
            else:
                new[joint.velocity] = speeds[joint.dof]
                new[joint.position] = row[joint.position] + h * speeds[joint.dof]
        return new

    # ------------------------------------------------------------------ what is seen

    def look(
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
        touches = self.touches(frames, params.get("friction", tree.ground.friction))
        where: list[Scalar] = []
        turned: list[Scalar] = []
        moving: list[Scalar] = []
        pressed: list[Scalar] = []
        for foot in tree.feet:
            frame = frames[foot.body]
            sole = add(frame.position, rotate(frame.rotation, foot.position))
            where += add(frame.root, sole)
            turned += quat_multiply(frame.quat, foot.quat)
            moving += self.velocity(frame, sole)
            forces = [t.force for t in touches if t.body == foot.body]
            pressed += [total(f[axis] for f in forces) for axis in range(3)]
        return [*base, *positions, *speeds, *torques, *bodies, *where, *turned, *moving, *pressed]


def _turn(half: Vector) -> list[Scalar]:
    """The quaternion of a rotation by twice the vector `half` [rad]; by series, for less than half a radian each."""
    square = dot(half, half)
    real = 1.0 - square * (1 / 2) + square * square * (1 / 24) - square * square * square * (1 / 720)
    ratio = 1.0 - square * (1 / 6) + square * square * (1 / 120) - square * square * square * (1 / 5040)
    return [real, *scale(ratio, half)]


def _share(depth: Scalar, way: Scalar) -> Scalar:
    """`depth` (>= 0) as a share of the `way` that a step goes, 1 where it is more."""
    return depth / maximum(maximum(depth, maximum(way, -way)), 1e-9)
