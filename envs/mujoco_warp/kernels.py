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
    values: wp.array2d[float],
    roots: wp.array2d[int],
    joints: wp.array2d[int],
    held: wp.array[int],
    # Written where the mask is set:
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    warmstart: wp.array2d[float],
    ctrl: wp.array2d[float],
):
    """Write the initial state of the masked environments, without warm start; position actuators hold it.

    `values` (N, W) holds the initial states of all entities side by side. `roots` (R, 3), for each free root: its
    first column in `values`, of position, orientation wxyz, linear and angular velocity in base axes (13), and its
    first index in qpos and in qvel. `joints` (J, 4): the columns of a joint's position and velocity, and its index in
    qpos and in qvel. `held` (A,): the column of the position that a position actuator holds, -1 for a force actuator.
    """
    env = wp.tid()
    if not mask[env]:
        return
    for dof in range(qvel.shape[1]):
        qvel[env, dof] = 0.0
        warmstart[env, dof] = 0.0
    for r in range(roots.shape[0]):
        first = roots[r, 0]
        at = roots[r, 1]
        dof = roots[r, 2]
        for i in range(7):
            qpos[env, at + i] = values[env, first + i]
        # MuJoCo's free joint: linear velocity in the world, angular in the body.
        turn = wp.quat(
            values[env, first + 4], values[env, first + 5], values[env, first + 6], values[env, first + 3]
        )
        velocity = wp.quat_rotate(
            turn, wp.vec3(values[env, first + 7], values[env, first + 8], values[env, first + 9])
        )
        for i in range(3):
            qvel[env, dof + i] = velocity[i]
            qvel[env, dof + 3 + i] = values[env, first + 10 + i]
    for j in range(joints.shape[0]):
        qpos[env, joints[j, 2]] = values[env, joints[j, 0]]
        qvel[env, joints[j, 3]] = values[env, joints[j, 1]]
    for a in range(held.shape[0]):
        # With joint targets of 0 the first torques would be those of a robot pulled to its zero position.
        ctrl[env, a] = 0.0
        if held[a] >= 0:
            ctrl[env, a] = values[env, held[a]]


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
def scatter(rows: wp.array[int], gathered: wp.array2d[float], target: wp.array2d[float]):
    """Copy row r of `gathered` to row `rows[r]` of `target`."""
    r, column = wp.tid()
    if rows[r] >= 0:
        target[rows[r], column] = gathered[r, column]


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


QPOS, QVEL, TORQUE, BODY, SENSOR = range(5)
"""The arrays that `publish` copies from."""


@wp.kernel(enable_backward=False)
def publish(
    rows: wp.array[int],
    finite: wp.array[wp.bool],
    num_envs: int,
    columns: wp.array2d[int],
    roots: wp.array2d[int],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    torque: wp.array2d[float],
    xpos: wp.array2d[wp.vec3],
    sensordata: wp.array2d[float],
    origins: wp.array2d[float],
    # Out:
    state: wp.array[float],
):
    """Convert MuJoCo's rows to State's convention; one thread per column of the State, and per free root, of each
    environment.

    `state` holds the State's tensors one after the other, (N, k) each. `columns` (C, 6): the array to copy from (QPOS,
    ...), the index in it (of BODY 3 x body + axis), where the tensor begins in `state` for one environment, its k, the
    column in it, and the axis of the `origins` (N, 3) that is subtracted, or -1. `roots` (R, 3): the first index in
    qpos and in qvel of a free root, and where its linear velocity, in its own axes, begins. The State rows of an
    environment that is not finite keep their last values until the reset, so the State stays finite.
    """
    r, item = wp.tid()
    env = rows[r]
    if env < 0:
        return
    if not finite[env]:
        return
    if item < columns.shape[0]:
        source = columns[item, 0]
        index = columns[item, 1]
        value = float(0.0)
        if source == wp.static(QPOS):
            value = qpos[r, index]
        elif source == wp.static(QVEL):
            value = qvel[r, index]
        elif source == wp.static(TORQUE):
            value = torque[r, index]
        elif source == wp.static(BODY):
            value = xpos[r, index // 3][index % 3]
        else:
            value = sensordata[r, index]
        axis = columns[item, 5]
        if axis >= 0:
            value = value - origins[env, axis]
        state[columns[item, 2] * num_envs + env * columns[item, 3] + columns[item, 4]] = value
        return
    root = item - columns.shape[0]
    at = roots[root, 0]
    dof = roots[root, 1]
    turn = wp.quat(qpos[r, at + 4], qpos[r, at + 5], qpos[r, at + 6], qpos[r, at + 3])
    velocity = wp.quat_rotate_inv(turn, wp.vec3(qvel[r, dof], qvel[r, dof + 1], qvel[r, dof + 2]))
    for i in range(3):
        state[roots[root, 2] * num_envs + env * 3 + i] = velocity[i]
