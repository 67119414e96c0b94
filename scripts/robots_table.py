"""The table of docs/robots.md: every robot of `robolearn list robots` whose file is installed, tried.

    PYTHONPATH=.robots python scripts/robots_table.py [NAME ...] > table.md

Each is loaded, pictured, held at its home pose for 2 s, and trained for two iterations of `task=stand`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from robolearn.config import catalog
from robolearn.envs import lint, model_file
from robolearn.envs.robot import Robot


def row(name: str, folder: Path) -> str:
    """One line of the table."""
    found = catalog.find(name)
    if found is None:
        return f"| {name} | {catalog.hint(name)} | | | | | | |"
    robot = Robot.load(found, name=name)
    model = model_file.read(robot.mjcf).model
    package = next(s.package for s in catalog.ROBOTS[name][1] if s.package and str(found).endswith(s.path))
    kind = "URDF" if robot.mjcf.suffix == ".urdf" else "MJCF"
    pairs = len(robot.mirror.pairs) if robot.mirror else 0
    held = lint.hold(robot)
    errors = [finding.text for finding in lint.check(robot) if finding.level == "error"]
    picture = _ran(["robot", name, "--picture", str(folder / f"{name}.png")], folder) or errors
    train = [
        "train",
        "task=stand",
        f"robot={name}",
        "num_envs=64",
        "max_iterations=2",
        f"output={folder / name}",
    ]
    cells = [
        name,
        f"{package}, {kind}",
        f"{float(model.body_mass.sum()):.1f} kg, {len(robot.actuators)} of {len(robot.joints)}",
        f"{robot.base}, {len(robot.feet)} feet" if robot.base else "fixed",
        f"{pairs} pairs" if pairs else "-",
        "yes" if picture else "no",
        ("yes: " if held.held else "no: ") + held.text,
        "yes" if _ran(train, folder) else "no",
    ]
    return f"| {' | '.join(cells)} |"


def _ran(arguments: list[str], folder: Path) -> bool:
    command = [sys.executable, "-m", "robolearn.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Print the table."""
    print(
        "| robot | from | actuated joints | base | mirror | pictured | holds its home pose for 2 s | trains |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or catalog.ROBOTS:
            print(row(name, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
