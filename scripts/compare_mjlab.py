"""Compares training speed with mjlab: its G1 velocity task and robolearn's, on the same robot, in turns.

    python scripts/compare_mjlab.py --mjlab PATH/TO/ENV/bin/python --num-envs 256 --iterations 5

mjlab needs a separate Python environment (`python -m venv ENV; ENV/bin/pip install mjlab==1.6.0`), from which the
robot is exported at run time. Both sides get that robot, its control period, MuJoCo's options, and the same sizes of
batch, networks and updates; differences between the compiled models are listed. Each side has a separate process
that waits while the other works. They run one iteration each, in turns, so that a drift of the machine's speed
affects both. Times are medians over the rounds; ratios are medians of the ratios of each round.

Words at the end are settings of robolearn's side: `learner.precision=bf16`, `backend=mujoco`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare_mjlab.channel import Side, SideFailed, environment
from compare_mjlab.table import report, summary
from shared import cores, in_folder, machine, stop

TASK = "Mjlab-Velocity-Flat-Unitree-G1"
VERSION = "1.6"
"""The version of mjlab that this script supports."""
INSTALL = f"pip install mjlab=={VERSION}.0"
HERE = Path(__file__).parent / "compare_mjlab"


def require_mjlab(python: str | None) -> None:
    """Check that the interpreter has mjlab in the supported version; else stop with exit code 2 or 3."""
    if python is None:
        stop(2, f"--mjlab is missing: give the python of an environment with mjlab (in a new one: {INSTALL})")
    # Read the metadata only: importing mjlab takes many seconds.
    command = [python, "-c", "from importlib.metadata import version; print(version('mjlab'))"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        stop(2, f"--mjlab {python} does not run as a Python interpreter: {error}")
    if done.returncode and "PackageNotFoundError" in done.stderr:
        stop(3, f"--mjlab {python} has no mjlab: {INSTALL}, in a separate environment")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        stop(2, f"--mjlab {python} does not run as a Python interpreter: {last}")
    found = done.stdout.strip()
    if not found.startswith(f"{VERSION}."):
        stop(3, f"--mjlab {python} has mjlab {found}, but this script supports {VERSION}.x: {INSTALL}")


def require_backend(words: list[str]) -> None:
    """Check that robolearn's backend can be loaded, before mjlab's side is built; else stop with code 2 or 3."""
    from robolearn.config import registry
    from robolearn.errors import ConfigError, MissingError

    named = [word.partition("=")[2] for word in words if word.startswith("backend=")]
    try:
        registry.load("backends", named[-1])
    except MissingError as error:
        stop(3, str(error))
    except ConfigError as error:
        stop(2, str(error))


def pick_device(name: str) -> str:
    """The device; for auto, cuda:0 where torch has CUDA, else cpu."""
    if name != "auto":
        return name
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def measure(sides: list[Side], warmup: int, iterations: int) -> dict[str, list[dict[str, Any]]]:
    """Results of the rounds, by side. The side that begins alternates."""
    rounds: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for _ in range(warmup):
        for side in sides:
            side.call("iterate")
    for i in range(iterations):
        for side in sides if i % 2 == 0 else sides[::-1]:
            found = side.call("iterate")
            found["other"] = found["total"] - sum(found[name] for name in ("simulate", "infer", "learn"))
            rounds[side.name].append(found)
            print(
                f"  {side.name}: {found['steps'] / found['total']:,.0f} steps/s", file=sys.stderr, flush=True
            )
    return rounds


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start both sides, measure, and return everything to report."""
    device, threads = pick_device(args.device), args.threads or cores()
    size = {"num_envs": args.num_envs, "device": device, "threads": threads}
    sides: list[Side] = []
    try:
        print("starting mjlab (the first start compiles kernels for minutes)", file=sys.stderr, flush=True)
        log, python = folder / "mjlab.log", args.mjlab
        sides.append(Side("mjlab", python, HERE / "theirs.py", log, task=TASK, seed=args.seed, **size))
        robot = folder / "g1"
        sides[0].call("export", folder=str(robot))
        print("starting robolearn", file=sys.stderr, flush=True)
        words = [f"seed={args.seed}", *args.words]
        log = folder / "robolearn.log"
        sides.append(
            Side("robolearn", sys.executable, HERE / "ours.py", log, folder=str(robot), words=words, **size)
        )
        about = sides[1].call("about")
        rounds = measure(sides[::-1], args.warmup, args.iterations)
    finally:
        for side in sides:
            side.close()
    export = json.loads((robot / "mjlab.json").read_text(encoding="utf-8"))
    return {
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine(about["gpu"]),
        **size,
        "iterations": args.iterations,
        **summary(rounds),
        "robolearn": about,
        "mjlab": {name: value for name, value in export.items() if name != "model"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.splitlines()[-1])
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of robolearn's side")
    parser.add_argument("--mjlab", metavar="PYTHON", help="interpreter of an environment with mjlab")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=5, help="measured, on each side")
    parser.add_argument("--warmup", type=int, default=1, help="iterations before them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda:0, ...")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch on each side; 0: all cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the exported robot and the logs here")
    parser.add_argument("--json", type=in_folder, help="also write the results here")
    args = parser.parse_args()
    if min(args.num_envs, args.iterations) < 1 or args.warmup < 0:
        stop(2, "--num-envs and --iterations must be 1 or more, --warmup 0 or more")
    args.words = ["backend=mujoco_warp", *args.words]
    require_mjlab(args.mjlab)
    require_backend(args.words)
    with tempfile.TemporaryDirectory(prefix="compare-mjlab-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            result = compare(args, folder)
        except SideFailed as error:
            stop(2 if "ConfigError" in str(error) else 4, f"{error} (--folder FOLDER keeps the log)")
        except KeyboardInterrupt:
            stop(130, "interrupted")
    report(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
