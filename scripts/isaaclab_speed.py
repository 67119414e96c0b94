"""Speed and host memory of `backend=isaaclab` over the number of environments.

    OMP_NUM_THREADS=1 python scripts/isaaclab_speed.py --robots cartpole,humanoid --sizes 16,64,256,1024

Each measurement runs in a separate process: control steps of two physics steps under small random joint targets. With
`--resets` one environment in a thousand is reset at each step (a reset costs a forward pass of all environments, for
the contact forces). Speed is the median over rounds. Memory is that of the process at the end, in total and since the
imports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch

from robolearn.config import registry
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState

SUBSTEPS, ROUNDS = 2, 5
STATUS = Path("/proc/self/status")


def resident() -> float:
    """Resident memory of this process [MB]."""
    return int(STATUS.read_text().split("VmRSS:")[1].split()[0]) / 1000


def measure(backend: str, name: str, size: int, resets: bool, seconds: float) -> dict[str, object]:
    """Environment steps per second and memory of one size, in this process."""
    robot = Robot.load(registry.load("robots", name))
    cls = registry.load("backends", backend)
    cls(robot, 2, "cpu", cls.config_class()).close()  # imports and compiles kernels
    imported, start = resident(), time.perf_counter()
    sim = cls(robot, size, "cpu", cls.config_class())
    built = time.perf_counter() - start
    every, zeros = torch.ones(size, dtype=torch.bool), torch.zeros(size, 3)
    high = zeros.clone()
    high[:, 2] = robot.home_height
    home = torch.tensor(robot.home).repeat(size, 1)
    initial = InitialState(
        high, torch.tensor([1.0, 0, 0, 0]).repeat(size, 1), zeros, zeros, home, torch.zeros_like(home)
    )
    held = home[:, list(robot.actuated)]
    rates = []
    for _ in range(ROUNDS):
        sim.reset(every, initial)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / ROUNDS:
            sim.step(held + 0.05 * torch.randn_like(held), SUBSTEPS)
            if resets and torch.rand(()) < size / 1000:
                sim.reset(torch.arange(size) == steps % size, initial)
            steps += 1
        rates.append(steps * size / (time.perf_counter() - start))
    sim.check()
    return {
        "backend": backend, "robot": name, "envs": size, "resets": resets,
        "steps_per_second": round(statistics.median(rates)), "resident_mb": round(resident()),
        "mb_an_environment": round((resident() - imported) / size, 3), "build_seconds": round(built, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default="isaaclab")
    parser.add_argument("--robots", default="cartpole,humanoid")
    parser.add_argument("--sizes", default="16,64,256,1024")
    parser.add_argument(
        "--resets", action="store_true", help="reset one environment in a thousand at each step"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement [s]")
    parser.add_argument(
        "--one", nargs=3, metavar=("BACKEND", "ROBOT", "SIZE"), help="measure in this process, print one line"
    )
    args = parser.parse_args()
    if args.one:
        backend, robot, size = args.one
        print(json.dumps(measure(backend, robot, int(size), args.resets, args.seconds)))
        return
    for backend in args.backends.split(","):
        for robot in args.robots.split(","):
            for size in args.sizes.split(","):
                line = [
                    sys.executable,
                    __file__,
                    "--one",
                    backend,
                    robot,
                    size,
                    "--seconds",
                    str(args.seconds),
                ]
                subprocess.run([*line, "--resets"] if args.resets else line, check=True)


if __name__ == "__main__":
    main()
