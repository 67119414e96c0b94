"""Whether `robolearn sysid` finds planted parameters: a minute of log of a simulated robot, with encoder noise, unknown
delay and noise on the time stamps.

    python scripts/sysid_recovery.py arm
    python scripts/sysid_recovery.py humanoid
    python scripts/sysid_recovery.py unitree_go1      # with the robots of `make robots` on PYTHONPATH

Every fitted parameter is planted at 70 to 140 % of what the robot's file says, or at what such a joint may have. Prints
truth, value, interval and error of each parameter.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from robolearn.config import registry
from robolearn.envs.elements import compiled
from robolearn.envs.robot import Robot
from robolearn.simulation.excite import Motion, excite
from robolearn.simulation.sysid import made, solve
from robolearn.simulation.sysid.problem import hanging
from robolearn.simulation.sysid.unknowns import unknowns

FITS = {
    "arm": [
        *(
            f"{field}/{joint}"
            for field in ("armature", "damping", "friction")
            for joint in ("*_yaw", "*_pitch", "*_roll")
        ),
        "kp/shoulder_pitch",
        "kp/elbow_pitch",
        "delay",
    ],
    "unitree_go1": ["armature", "damping", "friction", "kp/*_calf_joint", "delay"],
    "humanoid": ["armature", "damping", "friction", "delay"],
}
"""What is fitted. The stiffness of a joint is told by the weight that it carries: an upright axis has none."""
SECONDS, DELAY = 60.0, 0.010


def planted(robot: Robot, items: list[str], seed: int) -> dict[str, float]:
    """True parameters by name."""
    random = np.random.default_rng(seed)
    truth = {"delay": DELAY}
    for one in unknowns(items, robot, compiled(robot, hanging(robot)), 0.02):
        if one.field != "delay":
            typical = max(
                one.nominal[0],
                0.5 * one.scale[0] if one.field in ("armature", "friction", "damping") else 0.0,
            )
            truth[one.name] = float(typical * random.uniform(0.7, 1.4))
    return truth


def minute(robot: Robot) -> Motion:
    """The excitation of `robolearn robot --excite`, a minute long."""
    count = sum(part.amplitude > 0 for part in excite(robot, seconds=2.0).parts)
    return excite(robot, seconds=SECONDS / count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("robot", choices=FITS)
    parser.add_argument("--noise", type=float, default=2e-4, help="of the encoders [rad]")
    parser.add_argument("--jitter", type=float, default=2e-3, help="of the time stamps [s]")
    parser.add_argument("--true-stamps", action="store_true", help="the robot acts when the stamps say")
    parser.add_argument(
        "--timestep", type=float, default=None, help="of the fit, and of the robot; its own where omitted [s]"
    )
    parser.add_argument(
        "--robot-timestep",
        type=float,
        default=None,
        help="of the robot, which then holds its targets as a simulator does, unlike the fit [s]",
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = registry.load("robots", given.robot)
    robot = found if isinstance(found, Robot) else Robot.load(found, {}, given.robot)
    items = FITS[given.robot]
    truth, motion = planted(robot, items, given.seed), minute(robot)
    log = made.play(
        robot, motion, truth, given.noise, given.jitter, regular=not given.true_stamps,
        timestep=given.robot_timestep or given.timestep, held=given.robot_timestep is not None, seed=given.seed,
    )  # fmt: skip
    begin = time.process_time()
    result = solve.identify(robot, [log], items, timestep=given.timestep, say=print)
    print(f"{'parameter':32}{'truth':>10}{'value':>10}{'+-':>10}{'error':>8}")
    errors, covered = [], 0
    for one in result.estimates:
        true = truth[one.unknown.name]
        error = one.value / true - 1
        print(
            f"{one.unknown.name:32}{true:10.4g}{one.value:10.4g}{one.half:10.2g}{100 * error:7.2f}%  {one.reason}"
        )
        if not one.reason:
            errors.append(abs(error))
            covered += abs(one.value - true) <= one.half
    print(
        f"{log.time[-1]:.0f} s of log, {len(errors)} of {len(result.estimates)} parameters told: errors of "
        f"{100 * np.median(errors):.2g} % in the median, {100 * max(errors):.2g} % at most, "
        f"{sum(e < 0.05 for e in errors)} below 5 %; {covered} intervals cover the truth; "
        f"{time.process_time() - begin:.0f} s of one core"
    )


if __name__ == "__main__":
    main()
