"""Logs made in simulation, of a robot with known parameters: to plan an experiment, and to test an identification."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np
from scipy.interpolate import CubicSpline

from robolearn.envs.elements import compiled
from robolearn.envs.robot import Robot
from robolearn.simulation.excite import Motion
from robolearn.simulation.sysid.log import Log
from robolearn.simulation.sysid.problem import hanging, of_steps, require_servos, set_field


def play(
    robot: Robot,
    motion: Motion,
    planted: Mapping[str, float] | None = None,
    noise: float = 0.0,
    jitter: float = 0.0,
    regular: bool = True,
    torque_noise: float | None = None,
    timestep: float | None = None,
    held: bool = False,
    seed: int = 0,
    name: str = "made.csv",
) -> Log:
    """Play a motion on a simulated robot whose base is held, and record it.

    The robot's parameters differ from the file's by `planted`: armature/JOINT, friction/JOINT, damping/JOINT, kp/JOINT,
    kd/JOINT, mass/BODY and encoder_bias/JOINT in their units, and `delay` [s] of all targets.

    Args:
        robot: its servos read the biased encoders.
        motion: joint targets.
        planted: the true parameters.
        noise: standard deviation of the encoders [rad or m].
        jitter: of the time stamps [s].
        regular: whether the robot keeps a regular clock and only its stamps are wrong; else it acts and measures when
            the stamps say.
        torque_noise: of measured torques [Nm]; None: there are none.
        timestep: physics step [s]; None: the robot's own.
        held: whether targets change with physics steps, from the beginning of the first one after their time, as in
            a training; else changes within steps count for their shares, as in the fit.
        seed: of the noise.
        name: of the log.

    Raises:
        ConfigError: a motor is not a servo with the PD law of its gains.
    """
    require_servos(robot)
    random = np.random.default_rng(seed)
    spec = hanging(robot, timestep)
    model = compiled(robot, spec)
    delay, bias = 0.0, np.zeros(len(robot.actuators))
    names = [actuator.joint for actuator in robot.actuators]
    for key, value in (planted or {}).items():
        field, _, target = key.partition("/")
        if field == "delay":
            delay = value
        elif field == "encoder_bias":
            bias[names.index(target)] = value
        else:
            set_field(model, field, target, value)
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    mujoco.mj_resetData(model, data)
    stamped = motion.time + np.clip(
        random.normal(0, jitter, len(motion.time)) if jitter else 0.0, -3 * jitter, 3 * jitter
    )
    true = motion.time if regular else stamped
    places = [int(model.joint(joint).qposadr[0]) for joint in names]
    dofs = [int(model.joint(joint).dofadr[0]) for joint in names]
    gains = model.actuator_gainprm[:, 0]
    home = dict(zip(robot.joints, robot.home, strict=True))
    for k in range(model.njnt):
        data.qpos[model.jnt_qposadr[k]] = home.get(model.joint(k).name, 0.0)
    step = model.opt.timestep
    data.ctrl[:] = motion.targets[0] - bias
    for _ in range(round(1.0 / step)):
        mujoco.mj_step(model, data)
    begin = true[0] - step * (1 + (0.0 if held else random.random()))
    grid = begin + np.arange(int(np.ceil((true[-1] - begin) / step)) + 3) * step
    places_at, torques_at = (np.empty((len(grid), len(names))) for _ in range(2))
    if held:
        latest = np.searchsorted(true + delay, grid + 1e-9, side="right") - 1
        controls = motion.targets[np.clip(latest, 0, None)] - bias
    else:
        controls = of_steps(true + delay, motion.targets, grid, step) - bias
    for n in range(len(grid)):
        data.ctrl[:] = controls[n]
        places_at[n], before = data.qpos[places], data.qvel[dofs].copy()
        mujoco.mj_step(model, data)
        pulled = gains * data.ctrl + model.actuator_biasprm[:, 1] * places_at[n]
        pulled += model.actuator_biasprm[:, 2] * (before + data.qvel[dofs]) / 2
        torques_at[n] = np.clip(pulled, *model.actuator_forcerange.T)
    positions, torques = (np.empty_like(motion.targets) for _ in range(2))
    for k in range(len(names)):
        positions[:, k] = CubicSpline(grid, places_at[:, k])(true) + bias[k]
        torques[:, k] = np.interp(true, grid, torques_at[:, k])
    positions += random.normal(0, 1, positions.shape) * noise
    nothing = np.full_like(positions, np.nan)
    torque = nothing if torque_noise is None else torques + random.normal(0, 1, torques.shape) * torque_noise
    return Log(
        name, motion.joints, stamped - stamped[0], motion.targets.copy(), positions, nothing.copy(), torque
    )
