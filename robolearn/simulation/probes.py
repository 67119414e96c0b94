"""Probes: what a robot does in a simulator without a policy, to tell why two simulators differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from robolearn.config.run_config import Config
from robolearn.envs.backend import Backend
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, Tensor
from robolearn.training.build import acting_robot, make_backend

STEP = 0.15
"""Size of the step of a joint target in a probe [rad or m]."""
PROBE_SECONDS = 0.3
"""Length of the probe of the joints, in free fall where the base is free [s]."""
DROP_SECONDS = 1.0
"""Length of the probes of contact [s]."""
SLIDE_SPEED = 1.0
"""Horizontal velocity at the start of the probe of friction [m/s]."""
LIFT = 1.0
"""Height of the soles above the ground in the probe of the joints [m]."""


def probe(config: Config) -> dict[str, np.ndarray]:
    """What the robot does without a policy, in one simulator.

    Returns:
        `joint_pos`, `joint_vel` (T, A + 1, J): the target of actuator i steps by STEP in environment i, and none in the
        last one; the base falls freely. Where the base is free and the robot has feet also, over T control steps:
        `drop_height`, `drop_force` (T,): it is dropped from 2 cm and holds its home pose; height of the base [m], force
        on its feet [N]. `slide_speed` (T,): its soles slide over the ground; velocity of the base along x [m/s].
    """
    actuators = len(acting_robot(config).actuators)
    backend, dt, substeps = _backend(config, actuators + 1)
    out: dict[str, np.ndarray] = {}
    try:
        out |= _joints(backend, config, dt, substeps)
    finally:
        backend.close()
    robot = acting_robot(config)
    if robot.base is not None and robot.feet:
        backend, dt, substeps = _backend(config, 1)
        try:
            drop = _hold(backend, config, round(DROP_SECONDS / dt), substeps, height=0.02)
            slide = _hold(backend, config, round(PROBE_SECONDS / dt), substeps, speed=SLIDE_SPEED)
        finally:
            backend.close()
        out |= {"drop_height": drop[0], "drop_force": drop[1], "slide_speed": slide[2]}
    return out


def _backend(config: Config, num_envs: int) -> tuple[Backend, float, int]:
    backend = make_backend(config, num_envs)
    dt = config.task.control_dt
    return backend, dt, max(1, round(dt / backend.capabilities.timestep))


def _start(backend: Backend, config: Config, height: float, speed: float = 0.0) -> Tensor:
    """Reset to the home pose with the soles `height` above the ground; the joint targets (N, A) that hold it."""
    robot, n, device = acting_robot(config), backend.num_envs, backend.device
    position = torch.zeros(n, 3, device=device)
    if robot.base is not None:
        position[:, 2] = robot.home_height + height
    joints = torch.tensor(robot.home, device=device).repeat(n, 1)
    start = InitialState.at_rest(position, joint_pos=joints)
    if speed:
        start = replace(start, base_lin_vel=torch.tensor([[speed, 0.0, 0.0]], device=device).repeat(n, 1))
    everywhere = torch.ones(n, dtype=torch.bool, device=device)
    backend.reset(everywhere, start)
    held = [robot.joints.index(actuator.joint) for actuator in robot.actuators]
    forces = torch.tensor([actuator.kind == "force" for actuator in robot.actuators], device=device)
    return torch.where(forces, 0.0, joints[:, held])


def _joints(backend: Backend, config: Config, dt: float, substeps: int) -> dict[str, np.ndarray]:
    robot = acting_robot(config)
    targets = _start(backend, config, LIFT)
    for i, actuator in enumerate(robot.actuators):
        # Towards the middle of the range, so that no limit is met. A force steps by a tenth of its limit.
        low, high = _range(robot, actuator.joint)
        home = float(targets[i, i])
        sign = 1.0 if home <= (low + high) / 2 else -1.0
        targets[i, i] += 0.1 * actuator.effort if actuator.kind == "force" else sign * STEP
    positions, velocities = [], []
    for _ in range(round(PROBE_SECONDS / dt)):
        backend.step(targets, substeps)
        positions.append(backend.state.robot.joint_pos.double().cpu().numpy().copy())
        velocities.append(backend.state.robot.joint_vel.double().cpu().numpy().copy())
    return {"joint_pos": np.stack(positions), "joint_vel": np.stack(velocities)}


def _range(robot: Robot, joint: str) -> tuple[float, float]:
    i = robot.joints.index(joint)
    low, high = joint_limits(robot)
    return low[i], high[i]


def _hold(
    backend: Backend, config: Config, steps: int, substeps: int, height: float = 0.0, speed: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Base height [m], force on the feet [N], velocity along x [m/s], (T,) each."""
    targets = _start(backend, config, height, speed)
    rows = []
    for _ in range(steps):
        backend.step(targets, substeps)
        robot = backend.state.robot
        rows.append((robot.base_pos[0, 2], robot.foot_force[0, :, 2].sum(), robot.base_lin_vel[0, 0]))
    table = np.array([[float(value) for value in row] for row in rows])
    return table[:, 0], table[:, 1], table[:, 2]
