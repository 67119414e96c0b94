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

SIM2SIM = "sim2sim.json"

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
    names = {key: _evaluated(content) for key, content in found.items()}
    labels = dict.fromkeys(label for values in names.values() for label in values)
    rows = [(label, *(values.get(label, "-") for values in names.values())) for label in labels]
    caption = "Whole episodes of the deterministic policy (robolearn eval)."
    section.blocks = [Table(("", *found), rows, caption, numeric=1)]
    for path, content in found.items():
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
    """Every sim2sim.json: metrics by backend, gaps with intervals, verdicts."""
    section = Section("sim2sim", "Other simulators", short="Sim-to-sim")
    for path, content in run.results.items():
        if _name(path) == SIM2SIM and isinstance(content, dict):
            section.blocks += compared(content)
    return section


def compared(content: Mapping[str, Any]) -> list[Any]:
    """A comparison between simulators, whatever its exact layout: a table of the metrics of each backend, with a gap
    and its interval where the file states one, then lines with verdicts; other entries as they are."""
    blocks: list[Any] = []
    backends = _backends(content.get("backends"))
    gaps = _gaps(content.get("gaps", content.get("gap")))
    names = list(dict.fromkeys([n for values in backends.values() for n in values] + [n for _, n in gaps]))
    others = list(dict.fromkeys(backend for backend, _ in gaps))
    if backends or gaps:
        rows: list[Sequence[str | Cell]] = []
        for name in names:
            means = [_shown(values.get(name)) for values in backends.values()]
            off = [_gap(gaps.get((backend, name))) for backend in others]
            rows.append((name.replace("_", " "), *means, *off))
        heads = [f"gap{f' of {backend}' if backend else ''}" for backend in others]
        blocks.append(Table(("metric", *backends, *heads), rows, numeric=1))
    lines = []
    for key in ("verdicts", "verdict", "lines"):
        lines += list(_verdicts(content.get(key)))
    if lines:
        blocks.append(Lines(lines))
    known = {"schema", "backends", "gaps", "gap", "verdicts", "verdict", "lines"}
    rest = {key: value for key, value in content.items() if key not in known}
    return [*blocks, *table_of(rest, "Other entries of this file" if blocks else "")]


def _backends(node: Any) -> dict[str, dict[str, Any]]:
    """Metrics by backend: a mapping, or a list whose items have a name."""
    if isinstance(node, list):
        node = {str(i.get("name", i.get("backend", n))): i for n, i in enumerate(node) if isinstance(i, dict)}
    out: dict[str, dict[str, Any]] = {}
    for name, values in node.items() if isinstance(node, dict) else ():
        if isinstance(values, dict):
            inner = values.get("metrics")
            named = dict(inner) if isinstance(inner, dict) else {}
            named |= {
                k: v for k, v in values.items() if k != "metrics" and (_numeric(v) or _mean(v) is not None)
            }
            out[str(name)] = named
    return out


def _gaps(node: Any) -> dict[tuple[str, str], Any]:
    """Gaps by (backend, metric): nested mappings, or a list whose items name their metric and perhaps backend."""
    out: dict[tuple[str, str], Any] = {}
    if isinstance(node, list):
        for item in node:
            if isinstance(item, dict) and (metric := item.get("metric", item.get("name"))) is not None:
                out[str(item.get("backend", "")), str(metric)] = item
    elif isinstance(node, dict):
        for name, value in node.items():
            if _numeric(value) or _mean(value) is not None:
                out["", str(name)] = value
            elif isinstance(value, dict):
                inner = value.get("metrics", value)
                for metric, gap in inner.items() if isinstance(inner, dict) else ():
                    if _numeric(gap) or _mean(gap) is not None:
                        out[str(name), str(metric)] = gap
    return out


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mean(value: Any) -> float | None:
    """The central value of a mapping that states one."""
    if isinstance(value, dict):
        for key in ("mean", "gap", "value", "difference", "estimate", "relative"):
            if _numeric(value.get(key)):
                return float(value[key])
    return None


def _interval(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, dict):
        return None
    pair = value.get("interval", value.get("ci", (value.get("low"), value.get("high"))))
    if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(_numeric, pair)):
        return float(pair[0]), float(pair[1])
    return None


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if _numeric(value):
        return number(float(value))
    if (mean := _mean(value)) is None:
        return str(value)
    ends = _interval(value)
    return number(mean) + (f" ({number(ends[0])} to {number(ends[1])})" if ends else "")


def _gap(value: Any) -> Cell:
    """A gap with its interval; marked as the file says, else not at all."""
    verdict = value.get("verdict", value.get("ok")) if isinstance(value, dict) else None
    said = f": {verdict}" if isinstance(verdict, str) else ""
    return Cell(_shown(value) + said, _mark(verdict))


def _mark(verdict: Any) -> str:
    """The mark of a verdict."""
    if isinstance(verdict, bool):
        return GOOD if verdict else BAD
    first = re.split(r"\W+", str(verdict).strip().lower(), maxsplit=1)[0] if verdict is not None else ""
    if first in ("ok", "pass", "passed", "yes", "good", "true", "same", "agree", "agrees", "holds"):
        return GOOD
    if first in ("fail", "failed", "no", "bad", "false", "differs", "differ", "worse"):
        return BAD
    return UNKNOWN if verdict is not None else ""


def _verdicts(node: Any) -> list[Cell]:
    if isinstance(node, str):
        return [Cell(node, _mark(node))]
    if isinstance(node, bool):
        return [Cell("passed" if node else "failed", _mark(node))]
    if isinstance(node, list):
        return [cell for item in node for cell in _verdicts(item)]
    if isinstance(node, dict):
        text = node.get("text", node.get("line", node.get("message")))
        if isinstance(text, str):
            return [Cell(text, _mark(node.get("ok", node.get("passed", node.get("verdict", text)))))]
        return [
            Cell(f"{k}: {_word(v)}", _mark(v)) for k, v in node.items() if not isinstance(v, (dict, list))
        ]
    return []


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


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
        if _name(path) not in (EVALUATION, SIM2SIM):
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
    blocks: list[Any] = [
        Text(f"{about}. Details: {bundle.path}/REPORT.md", heading=f"export target {bundle.path.name}")
    ]
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
