"""Results that other commands left in the run folder: evaluation, other simulators, suites, bundles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from robolearn.commands.evaluate import FILE_NAME as EVALUATION
from robolearn.commands.evaluate import TRACKING
from robolearn.commands.report.blocks import BAD, GOOD, UNKNOWN, Cell, Lines, Pictures, Section, Table, Text
from robolearn.commands.report.curves import UNITS, number
from robolearn.commands.report.pictures import picture_uri
from robolearn.commands.report.reading import Bundle, RunData
from robolearn.errors import one_line
from robolearn.simulation.measures import described
from robolearn.simulation.sim2sim import FILE_NAME as SIM2SIM
from robolearn.training.guard.evidence import DECISIONS

LONGEST_ROW = 100
"""Longest list that is shown in one row [characters]."""

LONGEST_TEXT = 2000
"""Longest text that is shown whole [characters]."""

MOST_ROWS = 200
"""Largest number of rows of a table of a file whose layout is not known."""


def evaluation(run: RunData) -> Section:
    """Every metrics.json, one column each."""
    section = Section("evaluation", "Evaluation")
    found = {p: c for p, c in run.results.items() if _name(p) == EVALUATION and isinstance(c, dict)}
    if not found:
        section.blocks = [Text(f"There is no {EVALUATION}; write one with: robolearn eval {run.name}")]
        return section
    names = {}
    for path, content in found.items():
        try:
            names[path] = _evaluated(content)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            why = one_line(str(error), 100)
            run.notes.append(f"{path} cannot be read and is left out of the evaluation: {why}.")
    if not names:
        return section
    labels = dict.fromkeys(label for values in names.values() for label in values)
    rows = [(label, *(values.get(label, "-") for values in names.values())) for label in labels]
    caption = "Whole episodes of the deterministic policy (robolearn eval)."
    section.blocks = [Table(("", *names), rows, caption, numeric=1)]
    for path in names:
        content = found[path]
        gap = content.get("gap")
        if isinstance(gap, dict) and isinstance(gap.get("relative"), (int, float)):
            text = (
                f"{path}: the return on {content.get('backend')} differs from that on {gap.get('backend')} by "
                f"{100 * gap['relative']:+.1f} %."
            )
            section.blocks.append(Text(text))
    return section


def _evaluated(content: Mapping[str, Any]) -> dict[str, str]:
    """The rows of one metrics.json by their label."""
    get = content.get
    out = {"simulator": str(get("backend", "-")), "iteration": str(get("iteration", "-"))}
    out["episodes"] = (
        f"{get('episodes', '-')}, {'with' if get('observation_noise') else 'without'} observation noise"
    )
    out["settings changed"] = ", ".join(map(str, get("overrides") or ())) or "none"
    if isinstance(get("survival_rate"), (int, float)):
        out["survival"] = f"{100 * get('survival_rate'):.1f} %"  # type: ignore[operator]
    if isinstance(get("return_mean"), (int, float)):
        out["return"] = f"{number(get('return_mean'))} ± {number(get('return_std'))}"
    limit = get("episode_limit_s")
    if isinstance(get("episode_length_s"), (int, float)):
        out["episode length"] = (
            f"{number(get('episode_length_s'))}{f' of {number(limit)}' if limit else ''} s"
        )
    if isinstance(get("forward_distance"), (int, float)):
        out["forward distance"] = f"{number(get('forward_distance'))} m"
    units = {**TRACKING, **{name.rpartition("/")[2]: unit for name, unit in UNITS.items()}}
    values = {name: get(name) for name in TRACKING} | (get("metrics") or {})
    for name, value in values.items():
        if isinstance(value, (int, float)):
            out[name.replace("_", " ")] = f"{number(value)} {units.get(name, '')}".rstrip()
    out["diverged"] = str(get("diverged", "-"))
    return out


def _name(path: str) -> str:
    return path.rpartition("/")[2]


# ---------------------------------------------------------------------- other simulators


def simulators(run: RunData) -> Section:
    """Every sim2sim.json."""
    section = Section("sim2sim", "Other simulators", short="Sim-to-sim")
    for path, content in run.results.items():
        if _name(path) == SIM2SIM and isinstance(content, dict):
            section.blocks += compared(content)
    return section


def compared(content: Mapping[str, Any]) -> list[Any]:
    """A comparison between simulators: a table of the measures, when observations part, and the causes that probes
    exclude; the plain entries of a file that was damaged."""
    try:
        return _compared(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return list(table_of(content, "An unreadable comparison"))


def _compared(content: Mapping[str, Any]) -> list[Any]:
    reference, others = str(content["reference"]), content["comparisons"]
    measures = content["backends"][reference]["measures"]
    rows: list[Sequence[str | Cell]] = []
    for name, mean in measures.items():
        unit = f" [{described(name).unit}]" if described(name).unit else ""
        cells = [_gap(each["gaps"].get(name)) for each in others.values()]
        rows.append((f"{name.replace('_', ' ')}{unit}", number(float(mean)), *cells))
    head = ("measure", reference, *(f"{other}: difference (95 %)" for other in others))
    caption = f"{int(content['episodes'])} pairs of episodes from the same starts (robolearn eval --backend)."
    blocks: list[Any] = [Table(head, rows, caption, numeric=1)]
    for other, each in others.items():
        lines = [
            Cell(f"{other} survives {number(float(each['survival_share']))} times as often as {reference}")
        ]
        parted = each["divergence"]
        if parted["median"] is not None:
            first = ", ".join(f"{name} ({100 * float(share):.0f} %)" for name, share in parted["columns"])
            lines.append(
                Cell(f"Observations part after {float(parted['median']):.2f} s (median), first in {first}")
            )
        for cause in each["causes"]:
            said = {True: "excluded", False: "not excluded"}.get(cause["excluded"], "not probed")
            mark = {True: GOOD, False: BAD}.get(cause["excluded"], UNKNOWN)
            lines.append(Cell(f"{cause['name']}: {said}: {cause['evidence']}", mark))
        blocks.append(Lines(lines))
    return blocks


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _gap(gap: Mapping[str, Any] | None) -> Cell:
    if gap is None:
        return Cell("-")
    mean, low, high = (float(gap[key]) for key in ("mean", "low", "high"))
    apart = ", measured one physics step apart" if gap["differs"] and gap.get("lag") else ""
    text = f"{mean:+.3g} ({low:+.3g} to {high:+.3g}){apart}"
    return Cell(text, UNKNOWN if apart else BAD if gap["differs"] else "")


# ---------------------------------------------------------------------- suites and other files


def suites(run: RunData) -> Section:
    """JUnit reports."""
    section = Section("suites", "Simulation suites", short="Suites")
    marks = {"passed": GOOD, "failed": BAD, "skipped": UNKNOWN}
    for path, cases in run.suites.items():
        failed = sum(outcome == "failed" for _, outcome, _ in cases)
        rows = [(Cell(outcome, marks[outcome]), name, message) for name, outcome, message in cases]
        caption = f"{path}: {failed} of {len(cases)} failed."
        section.blocks.append(Table(("outcome", "check", "message"), rows, caption))
    return section


def others(run: RunData) -> Section:
    """JSON files of other kinds, as tables of names and values."""
    section = Section("files", "Other result files", short="Files")
    for path, content in run.results.items():
        of_suite = isinstance(content, dict) and {"suite", "cases"} <= set(content)  # beside its JUnit report
        if _name(path) not in (EVALUATION, SIM2SIM, DECISIONS) and not of_suite:
            section.blocks += table_of(content, path)
    return section


def table_of(content: Any, title: str) -> list[Table]:
    """Any content as a folded table of names and values."""
    rows = list(flat(content))
    if not rows:
        return []
    cut = f"The first {MOST_ROWS} of {len(rows)} values." if len(rows) > MOST_ROWS else ""
    return [Table(("name", "value"), rows[:MOST_ROWS], cut, folded=title)]


def flat(node: Any, path: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """The values in nested mappings and lists with their dotted names; short lists in one row."""
    if isinstance(node, dict) and depth < 8:
        items: Any = node.items()
    elif isinstance(node, list) and depth < 8 and (_nested(node) or len(str(node)) > LONGEST_ROW):
        items = enumerate(node)
    else:
        text = number(float(node), 6) if isinstance(node, float) else str(node)
        return [(path, text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "...")]
    return [
        row for key, value in items for row in flat(value, f"{path}.{key}" if path else str(key), depth + 1)
    ]


def _nested(items: list[Any]) -> bool:
    return any(isinstance(item, (dict, list)) for item in items)


# ---------------------------------------------------------------------- bundles

TIMES = {"p50_ms": "p50", "p99_ms": "p99", "jitter_ms": "jitter", "max_ms": "max"}


def exports(run: RunData) -> Section:
    """Every bundle: answers of its report, and latency against the budget."""
    section = Section("export", "On the robot's computer", short="Export")
    for bundle in run.bundles:
        section.blocks += _bundle(bundle)
    if not run.bundles:
        text = f"There is no bundle; write one with: robolearn export --target host {run.name}"
        section.blocks = [Text(text)]
    return section


def _bundle(bundle: Bundle) -> list[Any]:
    made = bundle.manifest.get("run")
    made = made if isinstance(made, dict) else {}
    fits = bundle.latency.get("fits")
    mark = {True: GOOD, False: BAD}.get(fits, UNKNOWN)  # type: ignore[arg-type]
    stated = bundle.latency.get("lines")
    lines = [Cell(str(line), mark) for line in stated] if isinstance(stated, list) else []
    about = ", ".join(
        filter(
            None,
            (
                f"iteration {made.get('iteration', '?')}",
                str(made.get("exported_at", ""))[:10],
                made.get("machine"),
            ),
        )
    )
    heading = f"export target {bundle.path.name}"
    if "policy" in made:  # the bundles of a team are in a folder for the target
        heading = f"export target {bundle.path.parent.name}, policy {made['policy']}"
    blocks: list[Any] = [Text(f"{about}. Details: {bundle.path}/REPORT.md", heading=heading)]
    if bundle.answers:
        head, *rows = [[_plain(cell) for cell in row] for row in bundle.answers]
        blocks.append(Table(head, rows))
    budget = bundle.latency.get("budget_ms")
    budget = budget if isinstance(budget, dict) else {}
    rows_: list[Sequence[str | Cell]] = []
    measured = bundle.latency.get("measured")
    for result in measured if isinstance(measured, list) else ():
        for part, title in (
            ("paced", "whole step, paced"),
            ("network", "network alone"),
            ("hot", "without pauses"),
        ):
            values = result.get(part) if isinstance(result, dict) else None
            if isinstance(values, dict):
                cells = [_against(values.get(key), budget.get(name), part) for key, name in TIMES.items()]
                rows_.append(
                    (f"{result.get('runtime', '')}, {title}", *cells, number(values.get("count"), 8))
                )
    if rows_:
        rows_.append(("budget", *(number(budget.get(name)) for name in TIMES.values()), ""))
        caption = "Milliseconds a control step, on the machine of the export."
        blocks.append(
            Table(("measured", "p50", "p99", "p99 - p50", "max", "steps"), rows_, caption, numeric=1)
        )
    if lines:
        blocks.append(Lines(lines))
    if uri := picture_uri(bundle.path / "latency.png"):
        blocks.append(Pictures([(uri, "Histogram of the paced steps")]))
    return blocks


def _against(value: Any, limit: Any, part: str) -> Cell:
    """A time; that of the whole step is compared with its budget."""
    text = f"{value:.3f}" if _numeric(value) else "-"
    if part != "paced" or not _numeric(value) or not _numeric(limit):
        return Cell(text)
    return Cell(text, GOOD if value <= limit else BAD)


def _plain(text: str) -> str:
    """A cell of Markdown without its marks."""
    return re.sub(r"\*\*|`", "", text)
