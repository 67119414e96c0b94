"""How often the 95 % intervals of `robolearn sysid` cover the truth: logs of a pendulum with a servo, made with known
parameters, encoder noise, an unknown delay and noise on the time stamps.

    python scripts/sysid_coverage.py            # 100 logs, some minutes on one core
    python scripts/sysid_coverage.py --logs 20 --noise 1e-3

Prints, for each parameter, in how many logs its interval covers the truth, and its mean error and half width. Exit code
1 where one covers it in less than 90 % of them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from robolearn.envs.robot import Robot
from robolearn.simulation.excite import Motion, excite
from robolearn.simulation.sysid import made, solve

PENDULUM = """
<mujoco><compiler angle="radian"/><option timestep="0.004"/><worldbody><body name="rod" pos="0 0 1">
  <joint name="swing" axis="0 1 0" range="-2 2" limited="true" armature="0.01" damping="0.05"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass=".8"/></body></worldbody>
  <actuator><position name="swing" joint="swing" kp="15" kv=".6" forcerange="-15 15"/></actuator></mujoco>
"""
TRUTH = {
    "kp/swing": 12.5,
    "armature/swing": 0.02,
    "friction/swing": 0.12,
    "damping/swing": 0.25,
    "encoder_bias/swing": 0.03,
    "delay": 0.010,
}
SECONDS = 12.0


def pendulum(folder: Path) -> Robot:
    """The robot as its file describes it."""
    (folder / "pendulum.xml").write_text(PENDULUM)
    return Robot.load(folder / "pendulum.xml", {"base": None, "joints": {"swing": {"home": 0.3}}})


def motion(robot: Robot) -> Motion:
    """Half a second of rest, then a chirp."""
    one = excite(robot, seconds=SECONDS)
    targets = np.concatenate((np.repeat(one.targets[:1], 25, axis=0), one.targets))
    return Motion(one.joints, np.arange(len(targets)) * 0.02, targets, one.parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--noise", type=float, default=5e-4, help="of the encoder [rad]")
    parser.add_argument("--jitter", type=float, default=2e-3, help="of the time stamps [s]")
    parser.add_argument("--true-stamps", action="store_true", help="the robot acts when the stamps say")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raise SystemExit(int(cover(pendulum(Path(folder)), given) < 0.9 * given.logs))


def cover(robot: Robot, given: argparse.Namespace) -> int:
    """Print the table; returns the least number of logs whose interval covers the truth."""
    played = motion(robot)
    covered = dict.fromkeys(TRUTH, 0)
    errors: dict[str, list[float]] = {name: [] for name in TRUTH}
    halves: dict[str, list[float]] = {name: [] for name in TRUTH}
    for seed in range(given.logs):
        log = made.play(
            robot, played, TRUTH, given.noise, given.jitter, regular=not given.true_stamps, seed=seed
        )
        found = solve.identify(robot, [log], [name.partition("/")[0] for name in TRUTH])
        for one in found.estimates:
            name = one.unknown.name
            covered[name] += bool(not one.reason and abs(one.value - TRUTH[name]) <= one.half)
            errors[name].append(one.value - TRUTH[name])
            halves[name].append(one.half)
    print(f"{'parameter':22}{'truth':>8}{'covered':>12}{'mean error':>14}{'half width':>12}")
    for name, truth in TRUTH.items():
        share = f"{covered[name]} of {given.logs}"
        print(f"{name:22}{truth:8.3g}{share:>12}{np.mean(errors[name]):14.2g}{np.mean(halves[name]):12.2g}")
    return min(covered.values())


if __name__ == "__main__":
    main()
