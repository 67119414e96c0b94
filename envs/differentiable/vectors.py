"""Vectors, matrices and quaternions as lists of scalars, numbers or symbols."""

from __future__ import annotations

from collections.abc import Sequence

from robolearn.envs.differentiable.symbols import Scalar, total

Vector = list[Scalar]
Matrix = list[Vector]

ZERO: Vector = [0.0, 0.0, 0.0]
IDENTITY: Matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def add(a: Sequence[Scalar], b: Sequence[Scalar]) -> Vector:
    """a + b."""
    return [x + y for x, y in zip(a, b, strict=True)]


def sub(a: Sequence[Scalar], b: Sequence[Scalar]) -> Vector:
    """a - b."""
    return [x - y for x, y in zip(a, b, strict=True)]


def scale(factor: Scalar, a: Sequence[Scalar]) -> Vector:
    """Factor times a."""
    return [factor * x for x in a]


def dot(a: Sequence[Scalar], b: Sequence[Scalar]) -> Scalar:
    """a . b."""
    return total(x * y for x, y in zip(a, b, strict=True))


def cross(a: Sequence[Scalar], b: Sequence[Scalar]) -> Vector:
    """a x b."""
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def rotate(matrix: Sequence[Sequence[Scalar]], a: Sequence[Scalar]) -> Vector:
    """Matrix times vector."""
    return [dot(line, a) for line in matrix]


def transposed(matrix: Sequence[Sequence[Scalar]]) -> Matrix:
    """Rows as columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


def matmul(a: Sequence[Sequence[Scalar]], b: Sequence[Sequence[Scalar]]) -> Matrix:
    """Matrix times matrix."""
    columns = transposed(b)
    return [[dot(line, column) for column in columns] for line in a]


def rotation_about(axis: Sequence[Scalar], sine: Scalar, cosine: Scalar) -> Matrix:
    """Rotation by an angle, given as sine and cosine, about a unit axis (Rodrigues)."""
    x, y, z = axis
    skew: Matrix = [[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]]
    return [
        [
            axis[i] * axis[j] + cosine * ((1.0 if i == j else 0.0) - axis[i] * axis[j]) + sine * skew[i][j]
            for j in range(3)
        ]
        for i in range(3)
    ]


def rotation_of(quat: Sequence[Scalar]) -> Matrix:
    """Rotation matrix of a unit quaternion, wxyz."""
    w, x, y, z = quat
    return [
        [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
        [2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)],
        [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)],
    ]


def quat_multiply(a: Sequence[Scalar], b: Sequence[Scalar]) -> list[Scalar]:
    """The rotation b followed by a, wxyz."""
    w, x, y, z = a
    return [
        w * b[0] - x * b[1] - y * b[2] - z * b[3],
        w * b[1] + x * b[0] + y * b[3] - z * b[2],
        w * b[2] - x * b[3] + y * b[0] + z * b[1],
        w * b[3] + x * b[2] - y * b[1] + z * b[0],
    ]
