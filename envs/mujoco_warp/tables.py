"""Tables of indices that the kernels of the MuJoCo Warp backend read: where initial states go, what the State shows."""

from __future__ import annotations

from collections.abc import Mapping

from robolearn.envs.mujoco.index import EntityIndex
from robolearn.envs.mujoco_warp.kernels import BODY, QPOS, QVEL, SENSOR, TORQUE
from robolearn.envs.state import State, tensor_name

_SOURCES = {"qpos": QPOS, "qvel": QVEL, "qfrc_actuator": TORQUE, "xpos": BODY, "sensordata": SENSOR}


def initial_tables(
    indices: Mapping[str, EntityIndex], num_actuators: int
) -> tuple[list[list[int]], list[list[int]], list[int], int]:
    """The tables `roots`, `joints` and `held` of `kernels.write_initial_state`, and the width of its `values`: of each
    entity in turn the pose and velocity of a free root (13), joint positions and joint velocities."""
    roots, joints, held, column = [], [], [-1] * num_actuators, 0
    for index in indices.values():
        if index.root is not None:
            roots.append([column, *index.root])
            column += 13
        count = len(index.joint_qpos)
        places = zip(index.joint_qpos.tolist(), index.joint_dof.tolist(), strict=True)
        joints += [[column + j, column + count + j, *place] for j, place in enumerate(places)]
        for actuator, joint in zip(index.servos.tolist(), index.servo_joints.tolist(), strict=True):
            held[actuator] = column + joint
        column += 2 * count
    return roots, joints, held, column


def published_tables(
    indices: Mapping[str, EntityIndex], state: State, places: Mapping[str, int], terrain: bool
) -> tuple[list[list[int]], list[list[int]]]:
    """The tables `columns` and `roots` of `kernels.publish`, for a State that is packed: `places` says by the name of
    each tensor, see `State.tensors`, where it begins in one environment's numbers. On a `terrain` positions are
    relative to the environments' origins."""
    columns, roots, tensors = [], [], state.tensors()
    for entity, index in indices.items():
        for each in index.published:
            name = tensor_name(entity, each.path)
            width = tensors[name][0].numel()
            for number, column in enumerate(each.columns, each.first):
                axis = number % 3 if terrain and each.is_position else -1
                columns.append([_SOURCES[each.source], column, places[name], width, number, axis])
        if index.root is not None:
            roots.append([*index.root, places[tensor_name(entity, "base_lin_vel")]])
    return columns, roots
