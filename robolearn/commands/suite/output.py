"""What a suite's run writes: a table, JUnit, JSON, and a job summary in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robolearn.commands.checks import Group, junit_xml
from robolearn.commands.suite.baseline import recorded
from robolearn.commands.suite.case import Case, Outcome
from robolearn.commands.suite.gates import Verdict
from robolearn.errors import one_line
from robolearn.files import replacing
from robolearn.simulation.measures import described

SHOWN = ("survival", "linear_velocity_error", "position_error", "return", "torque", "foot_slide")
"""Measures in the table, those that a suite has."""


@dataclass
class Result:
    """A case with what it measured and how it was judged."""

    case: Case
    outcome: Outcome
    verdicts: list[Verdict]
    files: list[str]
    """Replay and video of its worst episode, where a gate failed."""
    note: str = ""
    """Why a file is missing."""

    @property
    def failed(self) -> list[Verdict]:
        """The gates that failed."""
        return [verdict for verdict in self.verdicts if verdict.passed is False]

    @property
    def text(self) -> str:
        """PASS, FAIL or SKIP."""
        if self.failed:
            return "FAIL"
        return "SKIP" if all(verdict.passed is None for verdict in self.verdicts) else "PASS"


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table, its head first."""
    names = [name for name in SHOWN if any(name in result.outcome.episodes for result in results)]
    heads = [name.replace("linear_velocity_error", "velocity error").replace("_", " ") for name in names]
    units = [f" [{described(name).unit}]" if described(name).unit else "" for name in names]
    out = [
        [
            "",
            "scenario",
            "backend",
            "episodes",
            *(h + u for h, u in zip(heads, units, strict=True)),
            "gates",
            "time",
        ]
    ]
    for result in results:
        mean = result.outcome.mean
        passed = sum(verdict.passed is True for verdict in result.verdicts)
        checked = sum(verdict.passed is not None for verdict in result.verdicts)
        out.append(
            [
                result.text,
                result.case.scenario.name,
                result.case.backend,
                str(len(result.outcome.envs)),
                *(f"{mean[name]:.3g}" if name in mean else "-" for name in names),
                f"{passed}/{checked}",
                f"{result.outcome.seconds:.1f} s",
            ]
        )
    return out


def table(results: Sequence[Result]) -> str:
    """The table as text, and a line for each gate that failed."""
    lines = rows(results)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for result in results:
        text += [f"FAIL {verdict.message}" for verdict in result.failed]
        text += [f"  wrote {file}" for file in result.files]
        text += [
            f"  look at it: robolearn replay '{file}' --view"
            for file in result.files
            if file.endswith(".replay")
        ]
        if result.note:
            text.append(f"  {one_line(result.note)}")
    return "\n".join(text)


def markdown(name: str, results: Sequence[Result], seconds: float) -> str:
    """A job summary as GitHub shows it."""
    failed = [result for result in results if result.failed]
    head = f"{len(failed)} of {len(results)} failed" if failed else f"all {len(results)} passed"
    lines = rows(results)
    out = [f"### RoboLearn suite {_cell(name)}: {head}", "", _line(lines[0]), _line(["---"] * len(lines[0]))]
    out += [_line(line) for line in lines[1:]]
    if failed:
        out += [
            "",
            "| scenario | backend | gate | value | limit | why |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for verdict in (verdict for result in failed for verdict in result.failed):
            cells = [
                verdict.scenario,
                verdict.backend,
                verdict.name,
                verdict.value,
                verdict.limit,
                verdict.why,
            ]
            out.append(_line(cells))
    return "\n".join([*out, "", f"{seconds:.0f} s", ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    escaped = one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return escaped.replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")


def content(name: str, results: Sequence[Result], seconds: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "schema": 1,
        "suite": name,
        "passed": not any(result.failed for result in results),
        "seconds": round(seconds, 3),
        **facts,
        "cases": [
            {
                "scenario": result.case.scenario.name,
                "backend": result.case.backend,
                "policy": result.case.scenario.policy,
                "seeds": list(result.case.scenario.seeds),
                "verdict": result.text,
                "episodes": len(result.outcome.envs),
                "device": result.outcome.device,
                "checksums": list(result.outcome.checksums),
                "seconds": round(result.outcome.seconds, 3),
                "measures": {
                    k: vars(each)
                    for k, v in result.outcome.episodes.items()
                    if (each := recorded(v)) is not None
                },
                "gates": [
                    {
                        "gate": verdict.name,
                        "verdict": verdict.verdict,
                        "value": verdict.value,
                        "limit": verdict.limit,
                        "why": verdict.why,
                    }
                    for verdict in result.verdicts
                ],
                "files": result.files,
            }
            for result in results
        ],
    }


def junit(name: str, results: Sequence[Result], facts: Mapping[str, Any]) -> bytes:
    """A JUnit report: a suite for each scenario on a backend, a test case for each gate."""
    groups = [
        Group(
            result.case.name,
            result.verdicts,
            {
                **facts,
                "policy": result.case.scenario.policy,
                "backend": result.case.backend,
                "episodes": len(result.outcome.envs),
                "checksum": " ".join(result.outcome.checksums),
            },
            result.outcome.seconds,
            classname=f"{name}.{result.case.scenario.name}",
            suffix=f" [{result.case.backend}]",
            files=result.files,
        )
        for result in results
    ]
    return junit_xml(name, groups)


def save(path: Path, data: bytes | str) -> None:
    """Write a report atomically.

    Raises:
        ConfigError: it cannot be written.
    """
    with replacing(path) as part:
        part.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))


def as_json(report: Mapping[str, Any]) -> str:
    """JSON text."""
    return json.dumps(report, indent=1, allow_nan=False) + "\n"
