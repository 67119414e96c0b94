"""The guard's decisions in a report."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robolearn.commands.report.blocks import BAD, NOTED, Cell, Section, Table, Text, Video
from robolearn.commands.report.curves import number
from robolearn.commands.report.reading import RunData
from robolearn.training.guard.evidence import DECISIONS, FOLDER

PATH = f"{FOLDER}/{DECISIONS}"
LARGEST_VIDEO = 2_000_000
"""Size of the largest film of a finding that is embedded [bytes]."""


def section(run: RunData) -> Section:
    """Every decision with its reason, and the films of the findings; empty for a run without the guard."""
    out = Section("guard", "What the guard found", short="Guard")
    content = run.results.get(PATH)
    found = content.get("decisions") if isinstance(content, Mapping) else None
    decisions = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    if not decisions:
        if run.setting("guard", "mode") == "on":
            out.blocks = [Text("The guard watched this training, and confirmed no finding.")]
        return out
    rows = [_row(each) for each in decisions]
    head = ("iteration", "finding", "success", "reward", "decision", "back to", "change", "reason")
    caption = (
        "Iterations after the one that the training went back to are not part of its curves; guard/ has them."
    )
    out.blocks.append(Table(head, rows, caption))
    for each in decisions:
        # Only a film in this folder: the file may come from elsewhere.
        path = run.folder / FOLDER / Path(str(each.get("video"))).name
        if path.suffix == ".mp4" and path.is_file() and path.stat().st_size <= LARGEST_VIDEO:
            uri = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
            out.blocks.append(Video(uri, f"iteration {each.get('iteration')}: {each.get('said')}"))
    return out


def _row(each: Mapping[str, Any]) -> list[str | Cell]:
    action = str(each.get("action", ""))
    return [
        str(each.get("iteration", "")),
        str(each.get("said", "")),
        _change(each.get("success")),
        _change(each.get("reward")),
        Cell(action, NOTED if action == "rolled back" else BAD),
        str(each.get("back_to", "")),
        " ".join(map(str, each.get("changes") or ())),
        str(each.get("why", "")),
    ]


def _change(pair: Any) -> str:
    """`before -> now`."""
    values = (pair.get("before"), pair.get("now")) if isinstance(pair, Mapping) else ()
    return " → ".join(number(value) if isinstance(value, (int, float)) else "-" for value in values)
