"""Compares training speed on Unitree's G1, end to end, with UniLab and mjlab: each runs its own command, in turns.

    python scripts/compare_g1.py --unilab PYTHON --mjlab PYTHON --num-envs 2048 --rounds 3

Each peer needs a Python environment of its own (`pip install "unilab[mujoco]==1.5.2"`, `pip install mjlab==1.6.0`);
one that is left out is not compared. All of them step the physics at 5 ms and the policy at 20 ms, with the robot of
mjlab's package; RoboLearn is also timed on the robot file of UniLab, where other shapes collide. Each side is a
process that trains. One of them runs at a time, until it ends an iteration, and is stopped while the others have their
turn. What counts is the environment steps that a side reports, over the time of its turns. Learners, batches and
rewards are each side's defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared import cores, in_folder, machine, stop

FOREVER = 1_000_000
"""Iterations; nothing is trained to its end."""
START = 900.0
"""Time within which a side has to end its first iteration, compiling included [s]."""
POLL = 0.05
"""Time between two looks at what a side has reported [s]."""
TAIL = 65536
STEPS = re.compile(r"Total steps:\s+(\d+)")
"""How rsl_rl, which both peers learn with, reports its steps."""
TASKS = {"unilab": "G1WalkFlat", "mjlab": "Mjlab-Velocity-Flat-Unitree-G1"}


@dataclass
class Side:
    """A training in a process of its own."""

    name: str
    command: list[str]
    folder: Path
    report: Path | None = None
    """A file of JSON lines with `steps`; None where the output has them as rsl_rl prints them."""
    rates: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.folder / f"{slug(self.name)}.log"

    def steps(self) -> int:
        """Environment steps reported so far."""
        source = self.report or self.log
        return reported(end_of(source), lines=self.report is not None)

    def start(self) -> None:
        """Start the process."""
        hidden = ("PYTHONPATH", "PYTHONHOME") if self.report is None else ()
        env = {key: value for key, value in os.environ.items() if key not in hidden}
        env |= {"PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=self.folder, env=env, start_new_session=True
            )

    def turn(self, seconds: float, limit: float) -> float:
        """Run until an iteration ends at least `seconds` after the turn began; return steps per second.

        A stopped iteration goes on where it was, so a turn begins where the last one ended: at the end of an iteration.
        """
        assert self.process is not None
        before, began = self.steps(), time.monotonic()
        seen = before
        self.signal(signal.SIGCONT)
        while True:
            time.sleep(POLL)
            now, passed = self.steps(), time.monotonic() - began
            if now > seen and passed >= seconds:
                self.signal(signal.SIGSTOP)
                return (now - before) / passed
            seen = now
            if self.process.poll() is not None or passed > limit:
                why = "took too long" if self.process.poll() is None else "ended"
                lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
                stop(4, f"{self.name} {why}: {(lines or ['no output'])[-1].strip()} (--folder keeps the log)")

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        assert self.process is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End the process and its children."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()


def slug(name: str) -> str:
    """A name for files."""
    return re.sub(r"\W+", "_", name)


def end_of(file: Path) -> str:
    """The last `TAIL` bytes of a file; nothing where there is none."""
    if not file.exists():
        return ""
    with file.open("rb") as read:
        read.seek(max(0, file.stat().st_size - TAIL))
        return read.read().decode("utf-8", errors="replace")


def reported(text: str, lines: bool) -> int:
    """The last number of steps in the output of rsl_rl, or in a file of JSON lines of which the last may be incomplete;
    0 where there is none."""
    if not lines:
        found = STEPS.findall(text)
        return int(found[-1]) if found else 0
    complete = text[: text.rfind("\n") + 1].splitlines()
    return int(json.loads(complete[-1])["steps"]) if complete else 0


def package(python: str, name: str) -> Path:
    """The folder of a package of another interpreter; stops with exit code 2 or 3 where there is none."""
    command = [
        python,
        "-c",
        f"import importlib.util as u; s = u.find_spec({name!r}); print(s.origin if s else '')",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        stop(2, f"--{name} {python} does not run as a Python interpreter: {error}")
    if done.returncode:
        stop(2, f"--{name} {python} does not run as a Python interpreter")
    if not done.stdout.strip():
        stop(3, f"--{name} {python} has no {name}: install it there (see --help)")
    return Path(done.stdout.strip()).parent


def ours(name: str, folder: Path, num_envs: int, words: list[str]) -> Side:
    """A side of RoboLearn."""
    run = folder / slug(name)
    train = [sys.executable, "-c", "from robolearn.cli import main; raise SystemExit(main())", "train"]
    size = [f"num_envs={num_envs}", f"max_iterations={FOREVER}", f"checkpoint_interval={FOREVER}"]
    command = [*train, "task=velocity", *size, "backend.timestep=0.005", f"output={run}", *words]
    return Side(name, command, folder, report=run / "metrics.jsonl")


def sides(args: argparse.Namespace, folder: Path) -> Iterator[Side]:
    """All that are compared, RoboLearn's first."""
    robot, words = "robot=unitree_g1", args.words
    yield ours("robolearn, light", folder, args.num_envs, [robot, *words])
    if args.mjlab:
        package(args.mjlab, "mjlab")
        yield ours("robolearn, all", folder, args.num_envs, [robot, "task.collisions=all", *words])
        train = [str(Path(args.mjlab).with_name("train")), TASKS["mjlab"], "--gpu-ids", "None"]
        size = ["--env.scene.num-envs", str(args.num_envs), "--agent.max-iterations", str(FOREVER)]
        yield Side("mjlab", [*train, *size, "--agent.logger", "tensorboard"], folder)
    if args.unilab:
        home = package(args.unilab, "unilab")
        model = home / "assets" / "robots" / "g1" / "g1.xml"
        if not list((model.parent / "assets").glob("*.STL")):
            stop(3, f"--unilab: no meshes in {model.parent / 'assets'}: run unilab-pull-assets there")
        yield ours(
            "robolearn, UniLab's robot",
            folder,
            args.num_envs,
            [f"robot={model}", "task.collisions=all", *words],
        )
        # Its configuration names files from the root of its source checkout.
        (folder / "src").mkdir(exist_ok=True)
        (folder / "src" / "unilab").symlink_to(home)
        train = [str(Path(args.unilab).with_name("train")), "--algo", "ppo", "--task", "g1_walk_flat"]
        size = [f"algo.num_envs={args.num_envs}", f"algo.max_iterations={FOREVER}", "env.sim_dt=0.005"]
        yield Side(
            "UniLab",
            [*train, "--sim", "mujoco", "--render-mode", "none", *size, "training.device=cpu"],
            folder,
        )


def compare(all_sides: list[Side], rounds: int, seconds: float) -> None:
    """Start all, run each to the end of an iteration, then time them in turns."""
    try:
        for side in all_sides:
            side.start()
            side.turn(0.0, START)
            rate = side.turn(seconds, START)  # the first episodes end at once, and code warms up
            print(f"  {side.name}: warm, {rate:,.0f} steps/s", file=sys.stderr, flush=True)
        for i in range(rounds):
            for side in all_sides if i % 2 == 0 else all_sides[::-1]:
                side.rates.append(side.turn(seconds, START))
                print(f"  {side.name}: {side.rates[-1]:,.0f} steps/s", file=sys.stderr, flush=True)
    finally:
        for side in all_sides:
            side.close()


def table(all_sides: list[Side]) -> None:
    """Print the medians and how many times as fast the first side is, in each round."""
    first = all_sides[0]
    print(f"| | steps/s | {first.name} is as fast |")
    print("|---|---|---|")
    for side in all_sides:
        ratios = [a / b for a, b in zip(first.rates, side.rates, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {side.name} | {statistics.median(side.rates):,.0f} | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of robolearn's sides")
    parser.add_argument("--unilab", metavar="PYTHON", help="interpreter of an environment with UniLab")
    parser.add_argument("--mjlab", metavar="PYTHON", help="interpreter of an environment with mjlab")
    parser.add_argument("--num-envs", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="shortest turn [s]")
    parser.add_argument("--folder", type=Path, help="keep runs and logs here; it must not exist")
    parser.add_argument("--json", type=in_folder, help="also write the rates here")
    args = parser.parse_args()
    if min(args.num_envs, args.rounds) < 1 or args.seconds < 0:
        stop(2, "--num-envs and --rounds must be 1 or more, --seconds 0 or more")
    if not args.unilab and not args.mjlab:
        stop(2, "nothing to compare with: give --unilab PYTHON, --mjlab PYTHON or both")
    if args.folder and args.folder.exists():
        stop(2, f"--folder {args.folder} exists")
    # Absolute, because sides run elsewhere; not resolved, because an environment's interpreter is a link.
    args.unilab, args.mjlab = (path and os.path.abspath(path) for path in (args.unilab, args.mjlab))
    with tempfile.TemporaryDirectory(prefix="compare-g1-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        all_sides = list(sides(args, folder))
        compare(all_sides, args.rounds, args.seconds)
    print(f"{machine(None)}, {cores()} used; {args.num_envs} environments, medians of {args.rounds} rounds\n")
    table(all_sides)
    if args.json:
        args.json.write_text(json.dumps({side.name: side.rates for side in all_sides}, indent=1) + "\n")


if __name__ == "__main__":
    main()
