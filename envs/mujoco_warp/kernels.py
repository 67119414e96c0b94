"""The Warp kernels around a MuJoCo Warp simulation: rows in, State out, all on its device.

Each processes the environments whose indices are in `rows` (R,) and skips negative entries. So one kernel serves all
N environments after a step and, after a reset, the few that were reset.
"""

# No `from __future__ import annotations`: Warp reads the annotations of a kernel as types. mypy does not understand
# Warp's language, in which a variable that a loop changes must be declared with its type.
# mypy: ignore-errors
# ruff: noqa: UP018

import warp as wp

ABSURD_SPEED = wp.constant(1000.0)
"""A velocity component beyond this [m/s or rad/s] counts as divergence."""


@wp.kernel(enable_backward=False)
def write_initial_state(
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
    """Write the initial state of the masked environments, without warm start; position actuators hold it.

    `base` (N, 13): position, orientation wxyz, linear and angular velocity in base axes; `held` (A,): the joint index
    of a position actuator, -1 for a force actuator.
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
        # With joint targets of 0 the first torques would be those of a robot pulled to its zero position.
        ctrl[env, a] = 0.0
        if held[a] >= 0:
            ctrl[env, a] = joint_pos[env, held[a]]


@wp.kernel(enable_backward=False)
def masked_indices(mask: wp.array[wp.bool], rank: wp.array[int], masked: wp.array[int]):
    """Write the indices of the masked environments in order; `rank` (N,) counts the masked ones before each."""
    env = wp.tid()
    if mask[env]:
        masked[rank[env]] = env


@wp.kernel(enable_backward=False)
def mask_to_int(mask: wp.array[wp.bool], ones: wp.array[int]):
    """Convert a mask to 0 and 1, for a prefix sum."""
    env = wp.tid()
    ones[env] = int(mask[env])


@wp.kernel(enable_backward=False)
def start_batches(
    rank: wp.array[int],
    ones: wp.array[int],
    begin: wp.array[int],
    count: wp.array[int],
    remaining: wp.array[int],
):
    """Start the loop over batches of masked environments."""
    last = rank.shape[0] - 1
    begin[0] = 0
    count[0] = rank[last] + ones[last]
    remaining[0] = int(count[0] > 0)


@wp.kernel(enable_backward=False)
def take_batch(masked: wp.array[int], begin: wp.array[int], count: wp.array[int], rows: wp.array[int]):
    """Write the next R masked indices to `rows`, -1 beyond the last."""
    r = wp.tid()
    rows[r] = -1
    if begin[0] + r < count[0]:
        rows[r] = masked[begin[0] + r]


@wp.kernel(enable_backward=False)
def next_batch(size: int, begin: wp.array[int], count: wp.array[int], remaining: wp.array[int]):
    """Advance to the next batch, and set whether any remain."""
    begin[0] = begin[0] + size
    remaining[0] = int(begin[0] < count[0])


@wp.kernel(enable_backward=False)
def gather(rows: wp.array[int], source: wp.array2d[float], gathered: wp.array2d[float]):
    """Copy row `rows[r]` of `source` to row r of `gathered`."""
    r, column = wp.tid()
    if rows[r] >= 0:
        gathered[r, column] = source[rows[r], column]


@wp.kernel(enable_backward=False)
def check_divergence(
    rows: wp.array[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    ctrl: wp.array2d[float],
    candidates: wp.array[int],
    contacts: wp.array[int],
    max_contacts: int,
    constraints: wp.array[int],
    max_constraints: int,
    lost_contacts: int,
    lost_constraints: int,
    dropped: int,
    # Read and cleared:
    overflow: wp.array[int],
    # Out:
    finite: wp.array[wp.bool],
    diverged: wp.array[wp.bool],
    overflows: wp.array[int],
):
    """Find which environments have diverged, which are finite, and which of the simulator's arrays overflowed.

    A step flags dropped contacts and constraints in `overflow`; a forward pass alone does not, so the counts are
    compared as well.
    """
    r = wp.tid()
    env = rows[r]
    if env < 0:
        return
    is_finite = bool(True)
    is_moderate = bool(True)
    for i in range(qpos.shape[1]):
        is_finite = is_finite and wp.isfinite(qpos[r, i])
    for i in range(ctrl.shape[1]):
        is_finite = is_finite and wp.isfinite(ctrl[r, i])  # a motor's limits would hide a joint target of NaN
    for i in range(qvel.shape[1]):
        is_finite = is_finite and wp.isfinite(qvel[r, i])
        is_moderate = is_moderate and wp.abs(qvel[r, i]) < ABSURD_SPEED
    finite[env] = is_finite
    diverged[env] = not (is_finite and is_moderate)
    lost = overflow[r] & dropped
    overflow[r] = 0
    if contacts[0] > max_contacts or candidates[0] > max_contacts:
        lost = lost | lost_contacts
    if constraints[r] > max_constraints:
        lost = lost | lost_constraints
    if lost != 0:
        wp.atomic_or(overflows, 0, lost)


@wp.kernel(enable_backward=False)
def publish(
    rows: wp.array[int],
    finite: wp.array[wp.bool],
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
    """Convert MuJoCo's rows to State's convention; one thread per joint, body, foot and base of each environment.

    The State rows of an environment that is not finite keep their last values until the reset, so the State stays
    finite. `foot_sensors` (F, 4): first index in `sensordata` of a foot's position, orientation, velocity and force.
    """
    r, item = wp.tid()
    env = rows[r]
    if env < 0:
        return
    if not finite[env]:
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
