"""The Warp kernels around a MuJoCo Warp simulation: rows in, State out, all on its device.

Each works on the environments that `rows` (R,) names, and skips an entry below 0. That lets one kernel serve all
N environments after a step and, after a reset, the few that were reset.
"""

# No `from __future__ import annotations` here: Warp reads the annotations of a kernel as types. Its language is not
# Python's: mypy knows nothing of it, and a variable that a loop changes must be declared by its type's name.
# mypy: ignore-errors
# ruff: noqa: UP018

import warp as wp

ABSURD_SPEED = wp.constant(1000.0)
"""A velocity component beyond this [m/s or rad/s] is a diverged simulation, not a robot."""


@wp.kernel(enable_backward=False)
def write_pose(
    mask: wp.array[wp.bool],
    base: wp.array2d[float],
    joint_pos: wp.array2d[float],
    joint_vel: wp.array2d[float],
    has_base: bool,
    joint_qpos: wp.array[int],
    joint_dof: wp.array[int],
    held: wp.array[int],
    # Written where the mask is set:
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    warmstart: wp.array2d[float],
    ctrl: wp.array2d[float],
):
    """Put environments into a pose, at rest otherwise: no warm start, position actuators holding it.

    `base` (N, 13): position, orientation wxyz, linear and angular velocity in base axes; `held` (A,): the joint a
    position actuator holds, -1 for a force.
    """
    env = wp.tid()
    if not mask[env]:
        return
    for dof in range(qvel.shape[1]):
        qvel[env, dof] = 0.0
        warmstart[env, dof] = 0.0
    if has_base:
        for i in range(7):
            qpos[env, i] = base[env, i]
        # MuJoCo's free joint: linear velocity in the world, angular in the body.
        turn = wp.quat(base[env, 4], base[env, 5], base[env, 6], base[env, 3])
        velocity = wp.quat_rotate(turn, wp.vec3(base[env, 7], base[env, 8], base[env, 9]))
        for i in range(3):
            qvel[env, i] = velocity[i]
            qvel[env, 3 + i] = base[env, 10 + i]
    for j in range(joint_qpos.shape[0]):
        qpos[env, joint_qpos[j]] = joint_pos[env, j]
        qvel[env, joint_dof[j]] = joint_vel[env, j]
    for a in range(held.shape[0]):
        # With targets left at 0 the first torques would be those of a robot pulled to its zero position.
        ctrl[env, a] = 0.0
        if held[a] >= 0:
            ctrl[env, a] = joint_pos[env, held[a]]


@wp.kernel(enable_backward=False)
def list_masked(mask: wp.array[wp.bool], before: wp.array[int], listed: wp.array[int]):
    """The environments of a mask in order; `before` (N,) counts those ahead of each."""
    env = wp.tid()
    if mask[env]:
        listed[before[env]] = env


@wp.kernel(enable_backward=False)
def count_masked(mask: wp.array[wp.bool], ones: wp.array[int]):
    """A mask as numbers to be summed."""
    env = wp.tid()
    ones[env] = int(mask[env])


@wp.kernel(enable_backward=False)
def first_group(
    before: wp.array[int],
    ones: wp.array[int],
    begin: wp.array[int],
    count: wp.array[int],
    more: wp.array[int],
):
    """Start going through the masked environments."""
    last = before.shape[0] - 1
    begin[0] = 0
    count[0] = before[last] + ones[last]
    more[0] = int(count[0] > 0)


@wp.kernel(enable_backward=False)
def take_group(listed: wp.array[int], begin: wp.array[int], count: wp.array[int], rows: wp.array[int]):
    """The next R of them, -1 beyond the last."""
    r = wp.tid()
    rows[r] = -1
    if begin[0] + r < count[0]:
        rows[r] = listed[begin[0] + r]


@wp.kernel(enable_backward=False)
def next_group(size: int, begin: wp.array[int], count: wp.array[int], more: wp.array[int]):
    """Go on to the next R, and say whether there are any."""
    begin[0] = begin[0] + size
    more[0] = int(begin[0] < count[0])


@wp.kernel(enable_backward=False)
def gather(rows: wp.array[int], source: wp.array2d[float], target: wp.array2d[float]):
    """Row r of the target is row `rows[r]` of the source."""
    r, column = wp.tid()
    if rows[r] >= 0:
        target[r, column] = source[rows[r], column]


@wp.kernel(enable_backward=False)
def judge(
    rows: wp.array[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    ctrl: wp.array2d[float],
    candidates: wp.array[int],
    contacts: wp.array[int],
    room_for_contacts: int,
    constraints: wp.array[int],
    room_for_constraints: int,
    lost_contacts: int,
    lost_constraints: int,
    dropped: int,
    # Changed:
    overflow: wp.array[int],
    # Out:
    sound: wp.array[wp.bool],
    diverged: wp.array[wp.bool],
    overflows: wp.array[int],
):
    """Which environments have diverged, which are at least finite, and what did not fit the simulator's arrays.

    A step flags what it dropped in `overflow`, a forward pass alone does not: so the counts are looked at too.
    """
    r = wp.tid()
    env = rows[r]
    if env < 0:
        return
    finite = bool(True)
    moderate = bool(True)
    for i in range(qpos.shape[1]):
        finite = finite and wp.isfinite(qpos[r, i])
    for i in range(ctrl.shape[1]):
        finite = finite and wp.isfinite(ctrl[r, i])  # a motor clips a target of NaN, and nobody would notice
    for i in range(qvel.shape[1]):
        finite = finite and wp.isfinite(qvel[r, i])
        moderate = moderate and wp.abs(qvel[r, i]) < ABSURD_SPEED
    sound[env] = finite
    diverged[env] = not (finite and moderate)
    lost = overflow[r] & dropped
    overflow[r] = 0
    if contacts[0] > room_for_contacts or candidates[0] > room_for_contacts:
        lost = lost | lost_contacts
    if constraints[r] > room_for_constraints:
        lost = lost | lost_constraints
    if lost != 0:
        wp.atomic_or(overflows, 0, lost)


@wp.kernel(enable_backward=False)
def publish(
    rows: wp.array[int],
    sound: wp.array[wp.bool],
    has_base: bool,
    joint_qpos: wp.array[int],
    joint_dof: wp.array[int],
    bodies: wp.array[int],
    foot_sensors: wp.array2d[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    torque: wp.array2d[float],
    xpos: wp.array2d[wp.vec3],
    sensordata: wp.array2d[float],
    # Out:
    base_pos: wp.array2d[float],
    base_quat: wp.array2d[float],
    base_lin_vel: wp.array2d[float],
    base_ang_vel: wp.array2d[float],
    joint_pos: wp.array2d[float],
    joint_vel: wp.array2d[float],
    joint_torque: wp.array2d[float],
    body_pos: wp.array3d[float],
    foot_pos: wp.array3d[float],
    foot_quat: wp.array3d[float],
    foot_lin_vel: wp.array3d[float],
    foot_force: wp.array3d[float],
):
    """MuJoCo's rows in State's convention; one thread a joint, body, foot and base of each environment.

    The rows of an environment that is no longer finite keep what they had: whoever reads the State before the
    reset reads numbers. `foot_sensors` (F, 4): where position, orientation, velocity and force of a foot begin.
    """
    r, item = wp.tid()
    env = rows[r]
    if env < 0:
        return
    if not sound[env]:
        return
    if item == 0:
        if has_base:
            for i in range(3):
                base_pos[env, i] = qpos[r, i]
                base_ang_vel[env, i] = qvel[r, 3 + i]
            for i in range(4):
                base_quat[env, i] = qpos[r, 3 + i]
            turn = wp.quat(qpos[r, 4], qpos[r, 5], qpos[r, 6], qpos[r, 3])
            velocity = wp.quat_rotate_inv(turn, wp.vec3(qvel[r, 0], qvel[r, 1], qvel[r, 2]))
            for i in range(3):
                base_lin_vel[env, i] = velocity[i]
        return
    joint = item - 1
    if joint < joint_qpos.shape[0]:
        joint_pos[env, joint] = qpos[r, joint_qpos[joint]]
        joint_vel[env, joint] = qvel[r, joint_dof[joint]]
        joint_torque[env, joint] = torque[r, joint_dof[joint]]
        return
    body = joint - joint_qpos.shape[0]
    if body < bodies.shape[0]:
        for i in range(3):
            body_pos[env, body, i] = xpos[r, bodies[body]][i]
        return
    foot = body - bodies.shape[0]
    for i in range(3):
        foot_pos[env, foot, i] = sensordata[r, foot_sensors[foot, 0] + i]
        foot_lin_vel[env, foot, i] = sensordata[r, foot_sensors[foot, 2] + i]
        foot_force[env, foot, i] = sensordata[r, foot_sensors[foot, 3] + i]
    for i in range(4):
        foot_quat[env, foot, i] = sensordata[r, foot_sensors[foot, 1] + i]
