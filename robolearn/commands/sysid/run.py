"""The order of `robolearn sysid`: robot, logs, parameters, identifiability, solution, held-out check, files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from robolearn.commands.report.page import plotly_js, write
from robolearn.commands.sysid.outputs import as_json, randomize, robot_files
from robolearn.commands.sysid.page import page
from robolearn.config import registry
from robolearn.config.overrides import parse
from robolearn.config.run_config import robot_changes
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, listing, quote
from robolearn.files import replacing
from robolearn.simulation.sysid import solve
from robolearn.simulation.sysid.log import FORMATS, Log, read
from robolearn.simulation.sysid.mcap_log import topics_of
from robolearn.simulation.sysid.problem import toolbox
from robolearn.simulation.sysid.unknowns import DEFAULT


def run(
    logs: list[Path],
    name: str | None,
    settings: list[str],
    fit: str | None,
    holdout: str,
    output: Path | None,
    timestep: float | None,
    strict: bool,
    topics: str | None = None,
) -> bool:
    """Identify parameters, print them and write the folder; arguments as the options of the command.

    Returns:
        Whether the logs tell everything that is asked for and the held-out part is met.

    Raises:
        ConfigError, MissingError, RunFailed: see `solve.identify`.
    """
    if not logs:
        raise ConfigError("--log is missing: a recording (CSV, NPZ or MCAP) of the robot, see docs/sysid.md")
    if name is None:
        raise ConfigError(
            "--robot is missing: a robot's name, folder, MJCF or URDF file; robolearn list robots"
        )
    made = _robot(name, settings)
    folder = output or Path(f"sysid_{made.name}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {quote(str(folder), 120)} is a file; name a folder")
    named = topics_of(topics)
    if named and {p.suffix.lower() for p in (*logs, Path(holdout))}.isdisjoint({".mcap"}):
        raise ConfigError("--topics is for logs in MCAP files, and there is none")
    toolbox()
    script = plotly_js()
    recorded = [_read(path, named, made.joints) for path in logs]
    share = _holdout(holdout, named, made.joints)
    items = [item.strip() for item in fit.split(",") if item.strip()] if fit is not None else list(DEFAULT)
    print(f"robot  {made.name}: {made.description}")
    for log in recorded:
        print(f"log  {log.name}: {_about(log)}")
    if fit is None:
        print(f"fit  {', '.join(items)}; --fit chooses others")
    result = solve.identify(made, recorded, items, share, timestep, print)
    print("\n".join(table(result)))
    for one in result.untold:
        near = f"here {one.value:.3g}, nominal {one.unknown.nominal[0]:.3g} {one.unit}".rstrip()
        print(f"not told  {one.unknown.name} ({near}): {one.reason}")
    if strict and result.untold:
        raise ConfigError(
            f"the logs cannot tell {listing([one.unknown.name for one in result.untold], 8)}; with --strict nothing "
            "is written"
        )
    if result.held_text:
        verdict = "met" if result.passed else f"NOT met: {result.problem_text}"
        print(f"held out  {result.held_text}: {verdict}")
    elif not result.passed:
        print(f"NOT met  {result.problem_text}")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "result.json") as part:
        part.write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")
    with replacing(folder / "randomize.yaml") as part:
        part.write_text(randomize(result), encoding="utf-8")
    robot_files(result, folder / "robot")
    write(page(result), folder / "report.html", script)
    print(
        f"wrote {folder}: report.html, result.json, randomize.yaml, robot/; try it: robolearn robot {folder}/robot"
    )
    return result.passed and not result.untold


def table(result: solve.Result) -> list[str]:
    """Lines with the value and interval of each parameter that the logs tell."""
    rows = [("parameter", "value", "95 % interval", "nominal", "unit", "")]
    rows += [
        (one.unknown.name, f"{one.value:.4g}", f"{one.low:.4g} to {one.high:.4g}", f"{one.unknown.nominal[0]:.4g}",
         one.unit, one.remark)
        for one in result.told
    ]  # fmt: skip
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    return [
        "  ".join([*(f"{c:<{w}}" for c, w in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    ]


def _robot(name: str, settings: list[str]) -> Robot:
    changes = robot_changes(parse(settings))
    registry.require("robots", name)
    found = registry.load("robots", name)
    if isinstance(found, Robot):
        if changes:
            raise ConfigError(
                f"robot.{next(iter(changes))}: robot {name} is made by Python code; change it there"
            )
        return found
    return Robot.load(found, changes, name if registry.entries("robots").get(name) else "")


def _read(path: Path, topics: tuple[str, ...], joints: Sequence[str]) -> Log:
    """A log; of an MCAP file, which one cannot edit, without the joints that the robot does not have."""
    log = read(path, topics)
    return log.known(joints) if log.source else log


def _holdout(text: str, topics: tuple[str, ...], joints: Sequence[str]) -> float | list[Log]:
    if Path(text).suffix.lower() in FORMATS:
        return [_read(Path(text), topics, joints)]
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 0.5:
        raise ConfigError(
            f"--holdout is {quote(text)}; give a share of 0 to 0.5, or another log ({listing(FORMATS)})"
        )
    return share


def _about(log: Log) -> str:
    stamps = log.clock()
    kind = "about a regular clock" if stamps.regular is not None else "of the intervals"
    return (
        f"{log.time[-1]:.1f} s, {len(log.time)} rows, {1 / stamps.period:.1f} Hz; time stamps scatter by "
        f"{1e3 * stamps.jitter:.2g} ms {kind}{f'; {log.source}' if log.source else ''}"
    )
