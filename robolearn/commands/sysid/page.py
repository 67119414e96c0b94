"""The report of `robolearn sysid`: the parameters, and fit against log of every joint."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from robolearn.commands.report.blocks import (
    BAD,
    GOOD,
    NOTED,
    Cell,
    Facts,
    Figure,
    Lines,
    Page,
    Plots,
    Section,
    Table,
    Text,
)
from robolearn.errors import listing
from robolearn.simulation.sysid.solve import Result
from robolearn.simulation.sysid.unknowns import FIELDS

POINTS = 1200
"""Largest number of points of a curve."""
ROOM = 0.5
"""Time shown before and after the motion of a joint [s]."""


def page(result: Result) -> Page:
    """The page of an identification."""
    robot = result.robot
    logs = listing([s.log.name for s in result.problem.sequences], 6)
    notes = [Cell(f"{one.unknown.name} is not told: {one.reason}", NOTED) for one in result.untold[:8]]
    if len(result.untold) > 8:
        notes.append(Cell(f"{len(result.untold) - 8} more parameters are not told, see the table", NOTED))
    if not result.passed:
        notes.insert(0, Cell(f"Not met: {result.problem_text}", BAD))
    sections = [_parameters(result), _errors(result)]
    sections += [
        Section("log", "About the logs", [Lines([Cell(line, NOTED) for line in result.findings])])
    ] * bool(result.findings)
    sections += [_joints(result)]
    now = datetime.now().strftime("%Y-%m-%d %H:%M")
    return Page(
        f"System identification of {robot.name}", f"{robot.description}; {logs}", sections,
        axes=[("time", "time [s]")], x={}, notes=notes, made=f"Made by robolearn sysid on {now}.",
    )  # fmt: skip


def _parameters(result: Result) -> Section:
    rows: list[list[str | Cell]] = []
    for one in result.estimates:
        name, unit = one.unknown.name, one.unit
        nominal = f"{one.unknown.nominal[0]:.4g}"
        if one.reason:
            rows.append(
                [
                    name,
                    Cell("not told", NOTED),
                    f"held by its prior: {one.value:.4g}",
                    nominal,
                    unit,
                    one.reason,
                ]
            )
            continue
        rows.append([name, f"{one.value:.4g}", f"{one.low:.4g} to {one.high:.4g}", nominal, unit, one.remark])
    facts = [("identified", str(len(result.told))), ("not told", str(len(result.untold)))]
    if result.held_text:
        facts.append(("held-out check", "passed" if result.passed else "failed"))
    blocks: list[Any] = [
        Facts(facts, big=True),
        Table(["parameter", "value", "95 % interval", "nominal", "unit", "remark"], rows,
              "Intervals hold if the robot is like the model. They include what is not known of the parameters that "
              "the logs cannot tell, which stay near their nominal values."),
    ]  # fmt: skip
    if result.clocks:
        text = ", ".join(f"{name} {share:.2f}" for name, share in result.clocks.items())
        blocks.append(
            Text(f"Time stamps: 0, they are true; 1, they are noise about a regular clock: {text}.")
        )
    meant = [
        (field, FIELDS[field]) for field in FIELDS if any(e.unknown.field == field for e in result.estimates)
    ]
    blocks.append(
        Table(["field", "meaning"], [list(row) for row in meant], folded="What the parameters mean")
    )
    return Section("parameters", "Parameters", blocks)


def _errors(result: Result) -> Section:
    rows: list[list[str | Cell]] = []
    for fit in result.fits:
        if np.isnan(fit.fitted):
            continue
        values = [
            f"{x:.3g}" if np.isfinite(x) else "-" for x in (fit.noise, fit.fitted, fit.held, fit.before)
        ]
        rows.append([fit.joint, *values[:2], Cell(values[2], BAD if fit.failure else GOOD), values[3]])
    held = result.held_text or "nothing"
    caption = f"Root mean squares of measured less simulated positions [rad or m]. Held out: {held}."
    head = [
        "joint",
        "noise of the encoder",
        "error in the fit",
        "in the held-out part",
        "there with nominal parameters",
    ]
    return Section("errors", "Fit and held-out check", [Table(head, rows, caption, 1)])


def _joints(result: Result) -> Section:
    problem, blocks = result.problem, []
    for sequence in problem.sequences:
        fitted = problem.signals(sequence, result.values)["position"]
        before = problem.signals(sequence, result.nominal)["position"]
        for k, name in enumerate(problem.joints):
            measured = sequence.measured["position"][:, k]
            rows = _shown(measured)
            if not len(rows):
                continue
            time = np.round(sequence.stamps[rows], 4).tolist()

            def curve(label: str, colour: int, values: np.ndarray, time: list = time) -> dict[str, Any]:
                found = [None if not np.isfinite(x) else float(f"{x:.5g}") for x in values]
                return {"name": label, "colour": colour, "points": {"time": {"x": time, "y": found}}}

            title = name if len(problem.sequences) == 1 else f"{name}, {sequence.log.name}"
            held = np.where(sequence.held["position"][rows, k], measured[rows] - fitted[rows, k], np.nan)
            rest = np.where(sequence.held["position"][rows, k], np.nan, measured[rows] - fitted[rows, k])
            blocks.append(
                Plots([
                    Figure(title, [curve("log", 0, measured[rows]), curve("identified", 1, fitted[rows, k]),
                                   curve("nominal", 2, before[rows, k])], legend=True),
                    Figure(f"{title}: log less identified", [curve("fitted", 3, rest), curve("held out", 4, held)],
                           legend=True, gaps=True),
                ])
            )  # fmt: skip
    return Section("joints", "Fit against log", blocks)


def _shown(measured: np.ndarray) -> np.ndarray:
    """Rows of a joint's curve: those where it moves, thinned to POINTS."""
    there = np.flatnonzero(np.isfinite(measured))
    if len(there) < 2:
        return np.array([], dtype=int)
    away = np.abs(measured[there] - np.median(measured[there]))
    moving = there[away > max(5e-3, 0.02 * away.max())]
    if len(moving):
        there = there[(there >= moving[0] - 50) & (there <= moving[-1] + 50)]
    return there[:: max(1, -(-len(there) // POINTS))]
