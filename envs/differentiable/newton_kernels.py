"""Differentiable Warp kernels around Newton's solver: read rows, apply forces, write rows and the fields of Entity.

Newton's arrays are flat, one environment after the other; the kernels use views (N, ...). Newton's joint coordinates
have MuJoCo's indices, but quaternions are xyzw, joint positions are relative to the joint's `ref`, and the velocity of
a free base is that of its centre of mass, not of its origin.
"""

# No `from __future__ import annotations` here: Warp reads the annotations of a kernel as types. mypy cannot check
# Warp's language.
# mypy: ignore-errors

import warp as wp


@wp.struct
class Joints:
    """Properties of each joint (J,), in the robot's order."""

    qpos: wp.array[int]
    """Index of its position."""
    dof: wp.array[int]
    """Index of its velocity."""
    ref: wp.array[float]
    """Its position where Newton's coordinate is 0."""
    target: wp.array[int]
    """Its actuator, -1 without one."""
    kp: wp.array[float]
    """Stiffness of a position actuator, 0 for a force actuator."""
    kd: wp.array[float]
    direct: wp.array[float]
    """1 for a force actuator, whose target is the force."""
    effort: wp.array[float]
    damping: wp.array[float]
    stiffness: wp.array[float]
    """Of its passive spring."""
    rest: wp.array[float]
    """Rest position of the passive spring."""
    lower: wp.array[float]
    upper: wp.array[float]
    limit: wp.array[float]
    """Stiffness of its stops, 0 for an unlimited joint."""
    limit_damping: wp.array[float]
    """Damping factor of its stops [s/m or s/rad]: see `_pressed`."""


@wp.struct
class Points:
    """Contact points (P,): spheres, with radius 0 for corners."""

    link: wp.array[int]
    body: wp.array[int]
    """MuJoCo's id of the body they are on."""
    foot: wp.array[int]
    """The foot they belong to, -1 for none."""
    center: wp.array[wp.vec3]
    """In the link's frame."""
    radius: wp.array[float]
    grip: wp.array[float]
    """Largest viscous damping of friction at a point [N s/m], so that an explicit step does not overshoot."""
    stiffness: float
    damping: float
    speed: float
    """Sliding speed at which friction under a small normal force is 71 % of Coulomb's [m/s]."""


@wp.struct
class Places:
    """The base, bodies and soles that State reports."""

    base: int
    """1 with a free base, else 0."""
    com: wp.vec3
    """The base's centre of mass in its frame."""
    body: wp.array[int]
    """(B,) the link that each body belongs to."""
    body_at: wp.array[wp.vec3]
    foot: wp.array[int]
    foot_at: wp.array[wp.vec3]
    foot_turn: wp.array[wp.quat]


@wp.struct
class Asked:
    """What a scene asks for besides: F frames, and the contact forces on C bodies."""

    first: int
    """Column of `seen` where they begin."""
    link: wp.array[int]
    """(F,) the link of each frame, -1 for the world."""
    at: wp.array[wp.vec3]
    turn: wp.array[wp.quat]
    touched: wp.array[int]
    """(C,) MuJoCo's id of each body."""


@wp.func
def _pressed(depth: float, speed: float, stiffness: float, damping: float):
    """Force of a spring at penetration `depth`, which grows at `speed`. The damping is proportional to the depth, so
    that the force is continuous where contact begins and ends (Hunt and Crossley, 1975), and it never pulls."""
    return stiffness * wp.max(depth, 0.0) * wp.max(1.0 + damping * speed, 0.0)


@wp.func
def _torque(joints: Joints, j: int, q: float, qd: float, targets: wp.array2d[float], env: int, gain: float):
    """Torque of joint j's actuator, clipped to its effort; 0 without an actuator."""
    a = joints.target[j]
    if a < 0:
        return 0.0
    target = targets[env, a]
    unclipped = joints.direct[j] * target + gain * (joints.kp[j] * (target - q) - joints.kd[j] * qd)
    return wp.clamp(unclipped, -joints.effort[j], joints.effort[j])


@wp.func
def _ground(
    points: Points,
    p: int,
    pose: wp.transform,
    twist: wp.spatial_vector,
    com: wp.vec3,
    friction: float,
):
    """Force of the ground on point p in the world, and its moment about the link's centre of mass."""
    center = wp.transform_point(pose, points.center[p])
    radius = points.radius[p]
    arm = center - wp.vec3(0.0, 0.0, radius) - wp.transform_point(pose, com)
    velocity = wp.spatial_top(twist) + wp.cross(wp.spatial_bottom(twist), arm)
    normal = _pressed(radius - center[2], -velocity[2], points.stiffness, points.damping)
    # Coulomb friction, regularized: viscous at low speed, with a damping that an explicit step can integrate.
    most = friction * normal
    rest = points.speed + most / points.grip[p]
    drag = most / wp.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1] + rest * rest)
    force = wp.vec3(-drag * velocity[0], -drag * velocity[1], normal)
    return wp.spatial_vector(force, wp.cross(arm, force))


@wp.kernel
def unpack(
    rows: wp.array2d[float],
    joints: Joints,
    places: Places,
    # Out:
    joint_q: wp.array2d[float],
    joint_qd: wp.array2d[float],
):
    """Rows (N, R) as Newton's joint coordinates. One thread per environment and joint, and one for the base."""
    env, item = wp.tid()
    first = 13 * places.base
    if item > 0:
        j = item - 1
        joint_q[env, joints.qpos[j]] = rows[env, first + j] - joints.ref[j]
        joint_qd[env, joints.dof[j]] = rows[env, first + joints.qpos.shape[0] + j]
        return
    if places.base == 0:
        return
    turn = wp.normalize(wp.quat(rows[env, 4], rows[env, 5], rows[env, 6], rows[env, 3]))
    spin = wp.quat_rotate(turn, wp.vec3(rows[env, 10], rows[env, 11], rows[env, 12]))
    velocity = wp.vec3(rows[env, 7], rows[env, 8], rows[env, 9])
    velocity = velocity + wp.cross(spin, wp.quat_rotate(turn, places.com))
    for i in range(3):
        joint_q[env, i] = rows[env, i]
        joint_qd[env, i] = velocity[i]
        joint_qd[env, 3 + i] = spin[i]
    for i in range(4):
        joint_q[env, 3 + i] = turn[i]


@wp.kernel
def drive(
    joint_q: wp.array2d[float],
    joint_qd: wp.array2d[float],
    targets: wp.array2d[float],
    gains: wp.array[float],
    joints: Joints,
    # Out:
    joint_f: wp.array2d[float],
):
    """Forces along a joint: actuator, damping, spring and stops. One thread per joint."""
    env, j = wp.tid()
    q = joint_q[env, joints.qpos[j]] + joints.ref[j]
    qd = joint_qd[env, joints.dof[j]]
    force = _torque(joints, j, q, qd, targets, env, gains[env])
    force = force - joints.damping[j] * qd - joints.stiffness[j] * (q - joints.rest[j])
    force = force + _pressed(joints.lower[j] - q, -qd, joints.limit[j], joints.limit_damping[j])
    force = force - _pressed(q - joints.upper[j], qd, joints.limit[j], joints.limit_damping[j])
    joint_f[env, joints.dof[j]] = force


@wp.kernel
def touch(
    body_q: wp.array2d[wp.transform],
    body_qd: wp.array2d[wp.spatial_vector],
    body_com: wp.array2d[wp.vec3],
    frictions: wp.array[float],
    points: Points,
    # Added to:
    body_f: wp.array2d[wp.spatial_vector],
):
    """The ground's forces on the links, at their centres of mass. One thread per contact point."""
    env, p = wp.tid()
    link = points.link[p]
    wrench = _ground(points, p, body_q[env, link], body_qd[env, link], body_com[env, link], frictions[env])
    wp.atomic_add(body_f, env, link, wrench)


@wp.kernel
def publish(
    joint_q: wp.array2d[float],
    joint_qd: wp.array2d[float],
    body_q: wp.array2d[wp.transform],
    body_qd: wp.array2d[wp.spatial_vector],
    body_com: wp.array2d[wp.vec3],
    targets: wp.array2d[float],
    gains: wp.array[float],
    frictions: wp.array[float],
    joints: Joints,
    points: Points,
    places: Places,
    # Out:
    rows: wp.array2d[float],
    seen: wp.array2d[float],
):
    """Newton's coordinates as rows (N, R), and the fields of Entity `seen` (N, L), which must be zero before.

    One thread per environment and base, joint, body, foot or contact point.
    """
    env, item = wp.tid()
    count = joints.qpos.shape[0]
    bodies = places.body.shape[0]
    feet = places.foot.shape[0]
    first = 13 * places.base
    if item == 0:
        if places.base == 0:
            seen[env, 3] = 1.0
            return
        turn = wp.quat(joint_q[env, 3], joint_q[env, 4], joint_q[env, 5], joint_q[env, 6])
        spin = wp.vec3(joint_qd[env, 3], joint_qd[env, 4], joint_qd[env, 5])
        velocity = wp.vec3(joint_qd[env, 0], joint_qd[env, 1], joint_qd[env, 2])
        velocity = velocity - wp.cross(spin, wp.quat_rotate(turn, places.com))
        local = wp.quat_rotate_inv(turn, velocity)
        spin = wp.quat_rotate_inv(turn, spin)
        rows[env, 3] = turn[3]
        seen[env, 3] = turn[3]
        for i in range(3):
            rows[env, i] = joint_q[env, i]
            rows[env, 4 + i] = turn[i]
            rows[env, 7 + i] = velocity[i]
            rows[env, 10 + i] = spin[i]
            seen[env, i] = joint_q[env, i]
            seen[env, 4 + i] = turn[i]
            seen[env, 7 + i] = local[i]
            seen[env, 10 + i] = spin[i]
        return
    j = item - 1
    if j < count:
        q = joint_q[env, joints.qpos[j]] + joints.ref[j]
        qd = joint_qd[env, joints.dof[j]]
        rows[env, first + j] = q
        rows[env, first + count + j] = qd
        seen[env, 13 + j] = q
        seen[env, 13 + count + j] = qd
        seen[env, 13 + 2 * count + j] = _torque(joints, j, q, qd, targets, env, gains[env])
        return
    start = 13 + 3 * count
    b = j - count
    if b < bodies:
        at = places.body_at[b]
        if places.body[b] >= 0:
            at = wp.transform_point(body_q[env, places.body[b]], at)
        for i in range(3):
            seen[env, start + 3 * b + i] = at[i]
        return
    start = start + 3 * bodies
    f = b - bodies
    if f < feet:
        link = places.foot[f]
        pose = body_q[env, link]
        sole = wp.transform_point(pose, places.foot_at[f])
        turn = wp.transform_get_rotation(pose) * places.foot_turn[f]
        twist = body_qd[env, link]
        arm = sole - wp.transform_point(pose, body_com[env, link])
        velocity = wp.spatial_top(twist) + wp.cross(wp.spatial_bottom(twist), arm)
        seen[env, start + 3 * feet + 4 * f] = turn[3]
        for i in range(3):
            seen[env, start + 3 * f + i] = sole[i]
            seen[env, start + 3 * feet + 4 * f + 1 + i] = turn[i]
            seen[env, start + 7 * feet + 3 * f + i] = velocity[i]
        return
    p = f - feet
    if points.foot[p] < 0:
        return
    link = points.link[p]
    wrench = _ground(points, p, body_q[env, link], body_qd[env, link], body_com[env, link], frictions[env])
    for i in range(3):
        wp.atomic_add(seen, env, start + 10 * feet + 3 * points.foot[p] + i, wrench[i])


@wp.kernel
def publish_frames(
    body_q: wp.array2d[wp.transform],
    body_qd: wp.array2d[wp.spatial_vector],
    body_com: wp.array2d[wp.vec3],
    asked: Asked,
    # Out:
    seen: wp.array2d[float],
):
    """Position, orientation, linear and angular velocity of the frames, in world axes; the velocities of
    fixed ones stay 0. One thread per environment and frame."""
    env, f = wp.tid()
    link = asked.link[f]
    start = asked.first + 13 * f
    if link < 0:
        at = asked.at[f]
        turn = asked.turn[f]
        seen[env, start + 3] = turn[3]
        for i in range(3):
            seen[env, start + i] = at[i]
            seen[env, start + 4 + i] = turn[i]
        return
    pose = body_q[env, link]
    origin = wp.transform_point(pose, asked.at[f])
    turned = wp.transform_get_rotation(pose) * asked.turn[f]
    twist = body_qd[env, link]
    spin = wp.spatial_bottom(twist)
    arm = origin - wp.transform_point(pose, body_com[env, link])
    velocity = wp.spatial_top(twist) + wp.cross(spin, arm)
    seen[env, start + 3] = turned[3]
    for i in range(3):
        seen[env, start + i] = origin[i]
        seen[env, start + 4 + i] = turned[i]
        seen[env, start + 7 + i] = velocity[i]
        seen[env, start + 10 + i] = spin[i]


@wp.kernel
def publish_contacts(
    body_q: wp.array2d[wp.transform],
    body_qd: wp.array2d[wp.spatial_vector],
    body_com: wp.array2d[wp.vec3],
    frictions: wp.array[float],
    points: Points,
    asked: Asked,
    # Added to:
    seen: wp.array2d[float],
):
    """The ground's force on the asked bodies. One thread per environment, body and contact point."""
    env, c, p = wp.tid()
    if points.body[p] != asked.touched[c]:
        return
    link = points.link[p]
    wrench = _ground(points, p, body_q[env, link], body_qd[env, link], body_com[env, link], frictions[env])
    for i in range(3):
        wp.atomic_add(seen, env, asked.first + 13 * asked.link.shape[0] + 3 * c + i, wrench[i])


@wp.kernel(enable_backward=False)
def scale_masses(
    scales: wp.array[float],
    nominal: wp.array[wp.spatial_matrix],
    # Out:
    inertia: wp.array2d[wp.spatial_matrix],
):
    """The spatial inertia of every link, scaled by the factor of each environment."""
    env, link = wp.tid()
    inertia[env, link] = scales[env] * nominal[link]


@wp.kernel(enable_backward=False)
def read_params(
    params: wp.array2d[float],
    columns: wp.vec3i,
    # Out:
    frictions: wp.array[float],
    gains: wp.array[float],
    masses: wp.array[float],
):
    """Read the columns of `params`; a parameter without a column (-1) keeps its value."""
    env = wp.tid()
    if columns[0] >= 0:
        frictions[env] = params[env, columns[0]]
    if columns[1] >= 0:
        gains[env] = params[env, columns[1]]
    if columns[2] >= 0:
        masses[env] = params[env, columns[2]]
