"""Reads what a run folder holds. Files that are damaged or missing are notes, not errors."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from robolearn import config
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, one_line
from robolearn.files import holder
from robolearn.learners import saved
from robolearn.training import origin
from robolearn.training.metrics import row_of

LARGEST = 20_000_000
"""Size of the largest result file that is read [bytes]."""

METRICS = "metrics.jsonl"

NO_RESULT = {"contract.json", "made.json", origin.FILE_NAME}
"""JSON files of a run folder that are no results."""


@dataclass
class RunData:
    """What is known of a run."""

    name: str
    """As the user named it."""
    folder: Path
    output: Path
    """Folder for results."""
    checkpoint: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """The content of config.yaml."""
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """metrics.jsonl by name: (iterations,) each, nan where a line does not have it."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Each start and resume of the training: see `robolearn.training.origin`."""
    made: dict[str, Any] = field(default_factory=dict)
    """Of a shipped policy: how it was made."""
    results: dict[str, Any] = field(default_factory=dict)
    """Contents of JSON files with results, by path in the run folder."""
    suites: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    """JUnit reports by path: (test, outcome, message) each."""
    bundles: list[Bundle] = field(default_factory=list)
    video: Path | None = None
    trains: str | None = None
    """The process that trains in the folder now."""
    notes: list[str] = field(default_factory=list)

    @property
    def iterations(self) -> int:
        """Number of logged iterations."""
        return len(self.columns.get("iteration", ()))

    def last(self, name: str) -> float | None:
        """The last value of a column."""
        column = self.columns.get(name)
        if column is None:
            return None
        known = column[np.isfinite(column)]
        return float(known[-1]) if len(known) else None

    def final(self, name: str) -> float | None:
        """Mean over the last tenth of the iterations; None where it has no value."""
        column = self.columns.get(name)
        if column is None:
            return None
        part = column[-max(1, len(column) // 10) :]
        part = part[np.isfinite(part)]
        return float(part.mean()) if len(part) else None

    def setting(self, *path: str) -> Any:
        """A value of config.yaml, None where there is none."""
        value: Any = self.settings
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class Bundle:
    """A bundle that `export` wrote."""

    path: Path
    manifest: dict[str, Any]
    latency: dict[str, Any]
    answers: list[list[str]]
    """The table "In short" of its REPORT.md, with the head."""


def read(run: str | None) -> RunData:
    """Read a run folder, `pretrained:NAME`, a checkpoint, or with None the newest run.

    Raises:
        ConfigError: there is no such run.
    """
    folder, checkpoint = saved.find_folder(run)
    shipped = run is not None and run.startswith(saved.PREFIX)
    name = run if run is not None and shipped else str(folder)
    out = RunData(name, folder, saved.ROOT / "pretrained" / folder.name if shipped else folder, checkpoint)
    try:
        out.settings = yaml_file.read(folder / config.FILE_NAME)
    except ConfigError as error:
        out.notes.append(str(error))
    out.trains = None if shipped else holder(folder)
    out.columns, notes = read_columns(folder / METRICS, running=out.trains is not None)
    out.notes += [] if shipped else notes
    if checkpoint is None:
        out.notes.append(
            "The run has no checkpoint: it ended before its first one, or has not reached it yet."
        )
    out.starts = [
        entry for entry in _dict(_json(folder / origin.FILE_NAME, out)).get("starts", []) if _dict(entry)
    ]
    out.made = _dict(_json(folder / "made.json", out))
    for path in _files(out.output, ".json"):
        if path.name not in NO_RESULT and (content := _json(path, out)) is not None:
            out.results[str(path.relative_to(out.output))] = content
    for path in _files(out.output, ".xml"):
        if (cases := junit(path)) is not None:
            out.suites[str(path.relative_to(out.output))] = cases
    exported = out.output / "export"
    for manifest in sorted([*exported.glob("*/manifest.json"), *exported.glob("*/*/manifest.json")]):
        out.bundles.append(_bundle(manifest.parent, out))
    videos = [
        path for path in (out.output / "play.mp4", *sorted(out.output.glob("[!.]*.mp4"))) if path.is_file()
    ]
    out.video = videos[0] if videos else None
    return out


def started(run: RunData) -> str:
    """When the training started, as far as it is known; else an empty text."""
    if run.starts:
        return str(run.starts[0].get("at", ""))
    # Older runs have no record; the name of TensorBoard's file holds the time of the start.
    stamps = [path.name.split(".")[3] for path in run.folder.glob("events.out.tfevents.*")]
    times = sorted(int(stamp) for stamp in stamps if stamp.isdigit())
    return datetime.fromtimestamp(times[0]).astimezone().isoformat(timespec="seconds") if times else ""


def read_columns(path: Path, running: bool = False) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns of a metrics.jsonl, and notes on lines that cannot be read.

    Args:
        path: the file.
        running: a process writes to it, so that an incomplete last line is no damage.
    """
    columns: dict[str, array[float]] = {}
    rows, bad, number, last_bad = 0, [], 0, False
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                row = _row(line)
                last_bad = row is None
                if row is None:
                    bad.append(number)
                    continue
                for name, value in row.items():
                    if name not in columns:
                        columns[name] = array("d", [math.nan]) * rows
                    columns[name].append(value)
                rows += 1
                for column in columns.values():
                    if len(column) < rows:
                        column.append(math.nan)
    except OSError as error:
        return {}, [f"There are no curves: {path.name} cannot be read ({error.strerror})."]
    notes = []
    if last_bad and bad:
        bad.pop()
        if not running:
            notes.append(f"The last line of {path.name} is incomplete: the run was killed. It is left out.")
    if bad:
        notes.append(
            f"{len(bad)} lines of {path.name} cannot be read and are left out, the first is line {bad[0]}."
        )
    if not rows:
        notes.append(f"There are no curves: {path.name} has no complete line.")
    return {name: np.array(column) for name, column in columns.items()}, notes


def _row(line: bytes) -> dict[str, float] | None:
    """The numbers of a line; None where it is none."""
    row = row_of(line)
    if row is None:
        return None
    return {
        name: float(v) for name, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)
    }


def junit(path: Path) -> list[tuple[str, str, str]] | None:
    """The tests of a JUnit report: name, outcome (passed, failed, skipped), message; None where the file is none."""
    try:
        text = path.read_bytes()
        if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities can expand to gigabytes
            return None
        root = ElementTree.fromstring(text)
    except (OSError, ElementTree.ParseError, ValueError):
        return None
    if root.tag not in ("testsuite", "testsuites"):
        return None
    cases = []
    for case in root.iter("testcase"):
        outcome, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                message = child.get("message") or (child.text or "").strip()
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        cases.append((name, outcome, one_line(message, 300)))
    return cases


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    """Files with results: in the folder and one level below, without bundles and checkpoints."""
    # Names that begin with a dot are of files that are being written.
    for path in (*sorted(folder.glob(f"[!.]*{suffix}")), *sorted(folder.glob(f"[!.]*/[!.]*{suffix}"))):
        aside = path.parent != folder and path.parent.name in ("export", "checkpoints")
        bundle = path.with_name("manifest.json").exists()
        if path.is_file() and not aside and not bundle and path.stat().st_size <= LARGEST:
            yield path


def _json(path: Path, out: RunData) -> Any:
    """The content of a JSON file; None where there is none, with a note where it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        out.notes.append(f"{path.name} cannot be read and is left out: {one_line(str(error), 100)}.")
        return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bundle(folder: Path, out: RunData) -> Bundle:
    manifest, latency = (_dict(_json(folder / name, out)) for name in ("manifest.json", "latency.json"))
    try:
        text = (folder / "REPORT.md").read_text(encoding="utf-8").partition("\n## In short\n")[2]
    except (OSError, UnicodeDecodeError):
        text = ""
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    answers = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if not line.startswith("| ---")
    ]
    return Bundle(folder, manifest, latency, answers)
