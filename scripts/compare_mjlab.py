"""End to end against mjlab: its G1 velocity task beside robolearn's on the same robot, in turns.

    python scripts/compare_mjlab.py --mjlab PATH/TO/ENV/bin/python --num-envs 256 --iterations 5

mjlab lives in an environment of its own (`python -m venv ENV; ENV/bin/pip install mjlab==1.6.0`); its robot comes
from there, at run time. Both sides get that robot, its control period, MuJoCo's options, and the same sizes of
batch, networks and updates; whatever of the compiled models is not the same is listed. Each side has a process of
its own that waits while the other works: one iteration each, in turns, so that a machine whose speed drifts,
drifts for both. Medians over the rounds; the ratios are medians of the rounds' own ratios.

Words at the end are settings of robolearn's side: `learner.precision=auto`, `backend=mujoco`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from compare_mjlab.channel import Side, SideFailed, environment
from compare_mjlab.table import report, summary

TASK = "Mjlab-Velocity-Flat-Unitree-G1"
VERSION = "1.6"
"""Of mjlab, that this was written for: others may be built otherwise."""
INSTALL = f"pip install mjlab=={VERSION}.0"
HERE = Path(__file__).parent / "compare_mjlab"


def stop(code: int, message: str) -> NoReturn:
    """One line, and the exit code."""
    print(f"compare_mjlab.py: {' '.join(message.split())[:400]}", file=sys.stderr)
    raise SystemExit(code)


def require_mjlab(python: str | None) -> None:
    """A look whether that interpreter has mjlab, in a version that this knows."""
    if python is None:
        stop(2, f"--mjlab is missing: give the python of an environment with mjlab (in a new one: {INSTALL})")
    # Its metadata alone: importing it takes many seconds.
    ask = [python, "-c", "from importlib.metadata import version; print(version('mjlab'))"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False, env=environment())
    except (OSError, subprocess.TimeoutExpired) as error:
        stop(2, f"--mjlab {python} does not run as a Python interpreter: {error}")
    if done.returncode and "PackageNotFoundError" in done.stderr:
        stop(3, f"--mjlab {python} has no mjlab: {INSTALL}, in an environment of its own")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        stop(2, f"--mjlab {python} does not run as a Python interpreter: {last}")
    found = done.stdout.strip()
    if not found.startswith(f"{VERSION}."):
        stop(3, f"--mjlab {python} has mjlab {found}, and this knows {VERSION}.x: {INSTALL}")


def require_backend(words: list[str]) -> None:
    """robolearn's simulator is there: better told now than once the other side has been built."""
    from robolearn.config import registry
    from robolearn.errors import ConfigError, MissingError

    named = [word.partition("=")[2] for word in words if word.startswith("backend=")]
    try:
        registry.load("backends", named[-1])
    except MissingError as error:
        stop(3, str(error))
    except ConfigError as error:
        stop(2, str(error))


def pick_device(asked: str) -> str:
    """auto: CUDA where torch finds one here."""
    if asked != "auto":
        return asked
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def measure(sides: list[Side], warmup: int, iterations: int) -> dict[str, list[dict[str, Any]]]:
    """Rounds by side, one after the other; who begins changes."""
    rounds: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for _ in range(warmup):
        for side in sides:
            side.ask("iterate")
    for i in range(iterations):
        for side in sides if i % 2 == 0 else sides[::-1]:
            found = side.ask("iterate")
            found["other"] = found["total"] - sum(found[name] for name in ("simulate", "infer", "learn"))
            rounds[side.name].append(found)
            print(
                f"  {side.name}: {found['steps'] / found['total']:,.0f} steps/s", file=sys.stderr, flush=True
            )
    return rounds


def machine(gpu: str | None) -> str:
    """Processor, cores this may use, and the GPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    return f"{cpu}, {cores()} cores" + (f", {gpu}" if gpu else "")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compare(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start both sides, measure, and give everything that is to be reported."""
    device, threads = pick_device(asked.device), asked.threads or cores()
    size = {"num_envs": asked.num_envs, "device": device, "threads": threads}
    sides: list[Side] = []
    try:
        print(
            "starting mjlab (the first time its kernels are compiled: minutes)", file=sys.stderr, flush=True
        )
        log, python = folder / "mjlab.log", asked.mjlab
        sides.append(Side("mjlab", python, HERE / "theirs.py", log, task=TASK, seed=asked.seed, **size))
        robot = folder / "g1"
        sides[0].ask("export", folder=str(robot))
        print("starting robolearn", file=sys.stderr, flush=True)
        words = [f"seed={asked.seed}", *asked.words]
        log = folder / "robolearn.log"
        sides.append(
            Side("robolearn", sys.executable, HERE / "ours.py", log, folder=str(robot), words=words, **size)
        )
        about = sides[1].ask("about")
        rounds = measure(sides[::-1], asked.warmup, asked.iterations)
    finally:
        for side in sides:
            side.close()
    export = json.loads((robot / "mjlab.json").read_text(encoding="utf-8"))
    return {
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine(about["gpu"]),
        **size,
        "iterations": asked.iterations,
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
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch on each side; 0: every core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the exported robot and the logs here")
    parser.add_argument("--json", type=Path, help="write everything here too")
    asked = parser.parse_args()
    if min(asked.num_envs, asked.iterations) < 1 or asked.warmup < 0:
        stop(2, "--num-envs and --iterations must be 1 or more, --warmup 0 or more")
    asked.words = ["backend=mujoco_warp", *asked.words]
    require_mjlab(asked.mjlab)
    require_backend(asked.words)
    with tempfile.TemporaryDirectory(prefix="compare-mjlab-") as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            result = compare(asked, folder)
        except SideFailed as error:
            stop(2 if "ConfigError" in str(error) else 4, f"{error} (--folder FOLDER keeps the log)")
        except KeyboardInterrupt:
            stop(130, "interrupted")
    report(result)
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
