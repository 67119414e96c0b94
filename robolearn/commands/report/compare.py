"""`robolearn report --compare`: overlays runs. Runs that differ only by their seed are one curve with a band."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from robolearn import __version__
from robolearn.commands.evaluate import FILE_NAME as EVALUATION
from robolearn.commands.report import statistics
from robolearn.commands.report.blocks import (
    NOTED,
    UNKNOWN,
    Cell,
    Figure,
    Lines,
    Page,
    Plots,
    Section,
    Table,
    Text,
)
from robolearn.commands.report.curves import AXES, UNITS, binned, number, plain, width_of, word
from robolearn.commands.report.page import plotly_js, write
from robolearn.commands.report.reading import RunData, read
from robolearn.errors import ConfigError, quote
from robolearn.training.panel import clock
from robolearn.training.runs import require_writable

OUTPUT = Path("compare.html")

GRID = 250
"""Points of a group's curve: its runs are interpolated to the same steps or seconds."""

SAME = {"seed", "output", "resume", "checkpoint_interval"}
"""Settings that runs of one group may differ in: none of them but the seed changes what is computed."""

REWARDED = ("episode/return", "reward/total")
"""Columns that can be compared only where the rewards are the same."""

TESTED = ("episode/", "metric/")
"""Columns, and their values at the end of training, that groups are compared by."""

ABSENT = "not set"


@dataclass
class Group:
    """Runs whose settings differ only by the seed."""

    letter: str
    runs: list[RunData]
    settings: dict[str, str]
    """Settings by dotted name, without those of SAME."""
    label: str = ""
    repeated: list[RunData] = field(default_factory=list)
    """Runs with a seed that another run of the group has; they are not counted."""


def compare(names: Sequence[str], output: Path | None = None) -> Path:
    """Write the page of several runs.

    Args:
        names: run folders, checkpoints or pretrained:NAME.
        output: the file; None: compare.html.

    Returns:
        The file.

    Raises:
        ConfigError: fewer than two runs, one is named twice or does not exist, or none has curves.
        MissingError: plotly is not installed.
    """
    if settings := [name for name in names if "=" in name and not Path(name).exists()]:
        raise ConfigError(f"{quote(settings[0])}: --compare takes runs only, and shows each as it is")
    if len(names) < 2:
        raise ConfigError("--compare needs at least two runs: robolearn report --compare RUN RUN ...")
    plotly = plotly_js()
    path = output or OUTPUT
    require_writable(path.parent)
    runs = [read(name) for name in names]
    places = [run.folder.resolve() for run in runs]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ConfigError(f"{quote(names[i], 120)} is named twice")
    lacking = [run for run in runs if not run.iterations]
    runs = [run for run in runs if run.iterations]
    if not runs:
        raise ConfigError(f"no run has curves: {quote(names[0], 120)} has no complete line in metrics.jsonl")
    write(page_of(runs, lacking), path, plotly)
    print(f"wrote {path}")
    return path


def page_of(runs: Sequence[RunData], lacking: Iterable[RunData] = ()) -> Page:
    """The page of runs with curves; those of `lacking` are only named."""
    groups = grouped(runs)
    notes = [f"{run.name} is left out: it has no curves." for run in lacking]
    for run in runs:
        if run.trains:
            notes.append(f"{run.name} is still training.")
        notes += [f"{run.name}: {note}" for note in run.notes]
    for group in groups:
        for run in group.repeated:
            notes.append(f"{run.name} repeats a seed of group {group.letter}; it is not counted.")
    return Page(
        title=f"{len(runs)} runs of {', '.join(dict.fromkeys(_task(run) for run in runs))}",
        subtitle=f"{len(groups)} group{'s' * (len(groups) > 1)} of settings",
        sections=[
            section
            for section in (members(groups), curves_of(groups), final(groups), differences(groups))
            if section.blocks
        ],
        axes=[(name, title) for name, title in AXES if name != "iteration"],
        notes=[Cell(note, UNKNOWN) for note in notes],
        made=f"Made by robolearn {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}.",
    )


def _task(run: RunData) -> str:
    return str(run.setting("task", "name") or "an unknown task").rpartition("/")[2]


# ---------------------------------------------------------------------- groups


def grouped(runs: Iterable[RunData]) -> list[Group]:
    """Groups of runs whose settings differ only by SAME, in the order of their first runs, with labels.

    Of runs with one seed in a group the longest is counted: on one machine they are the same training.
    """
    found: dict[tuple[Any, ...], Group] = {}
    for run in runs:
        settings = {k: v for k, v in values_of(run.settings) if k.partition(".")[0] not in SAME}
        # A run whose settings cannot be read is a group of its own.
        key = tuple(sorted(settings.items())) if settings else (str(run.folder),)
        found.setdefault(key, Group("", [], settings)).runs.append(run)
    groups = list(found.values())
    varying = varying_settings(groups)
    for i, group in enumerate(groups):
        group.letter = _letter(i)
        by_seed: dict[Any, RunData] = {}
        for run in sorted(group.runs, key=lambda run: -run.iterations):
            seed = run.setting("seed")
            by_seed.setdefault(run.name if seed is None else seed, run)
        group.repeated = [run for run in group.runs if run not in by_seed.values()]
        group.runs = [run for run in group.runs if run in by_seed.values()]
        group.label = _label(group, varying)
    return groups


def values_of(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The values of a configuration with their dotted names; a list is one value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from values_of(value, f"{path}.{key}" if path else str(key))
    elif node != {}:
        yield path, json.dumps(node, ensure_ascii=False, default=str)


def _letter(i: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + i % 26) + (str(i // 26) if i >= 26 else "")


def varying_settings(groups: Sequence[Group]) -> list[str]:
    """Settings that are not the same in all groups."""
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    return [key for key in keys if len({group.settings.get(key, ABSENT) for group in groups}) > 1]


def _label(group: Group, varying: Sequence[str]) -> str:
    """A group by the settings in which it differs from the others."""
    parts = [
        f"{key.rpartition('.')[0].rpartition('.')[2]}.{key.rpartition('.')[2]}".strip(".") for key in varying
    ]
    shown = [f"{part}={group.settings.get(key, ABSENT)}" for part, key in zip(parts, varying, strict=True)]
    if len(shown) > 3:
        shown = [*shown[:3], f"and {len(shown) - 3} more"]
    text = ", ".join(shown) or "the same settings"
    return text if len(text) <= 120 else text[:117] + "..."


def members(groups: Sequence[Group]) -> Section:
    """Which run is in which group."""
    rows: list[Sequence[str | Cell]] = []
    of = [(Cell(g.letter, colour=i), g.label, str(len(g.runs))) for i, g in enumerate(groups)]
    for i, group in enumerate(groups):
        for run in group.runs:
            steps, seconds = run.last("steps"), run.last("seconds")
            rows.append(
                (
                    Cell(group.letter, colour=i),
                    run.name,
                    str(run.setting("seed")),
                    f"{run.last('iteration') or 0:.0f}",
                    "-" if steps is None else f"{steps / 1e6:.2f} M",
                    "-" if seconds is None else clock(seconds),
                )
            )
    text = "Runs whose settings differ only by the seed are one group."
    table = Table(("group", "run", "seed", "iterations", "environment steps", "wall time"), rows, numeric=2)
    legend = Table(("group", "settings in which it differs", "seeds"), of, numeric=2)
    return Section("runs", "Runs", [Text(text), legend, table])


# ---------------------------------------------------------------------- curves


def curves_of(groups: Sequence[Group]) -> Section:
    """Curves of every group, with the band of its seeds."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.columns)
    large = [name for name in (*REWARDED, "episode/length", "episode/fall_rate") if name in names]
    metrics = [n for n in names if n.startswith("metric/")]
    others = [name for name in names if name.startswith("loss/") or name == "steps_per_second"]
    terms = [name for name in names if name.startswith("raw/")]
    width = max(width_of(run.iterations) for group in groups for run in group.runs)
    text = "Lines are means over the seeds of a group; the band spans its lowest to its highest seed. "
    if all(len(group.runs) == 1 for group in groups):
        text = "Every group has one seed, so that no curve has a band. "
    text += "A group's curve ends where its shortest run does."
    if width > 1:
        text += f" Each point is the mean of up to {width} iterations."
    section = Section("curves", "Learning curves", [Text(text)], short="Curves")
    if varying := _rewards_differ(groups):
        section.blocks.append(
            Text(
                f"The rewards differ ({_listed(varying)}), so returns and rewards cannot be compared between groups."
            )
        )
    section.blocks.append(Plots([overlay(groups, name) for name in large]))
    if metrics:
        section.blocks.append(Plots([overlay(groups, name) for name in metrics]))
    for title, found in (("Raw reward terms", terms), ("The learner's numbers and the speed", others)):
        if found:
            figures = [overlay(groups, name) for name in found]
            section.blocks.append(Plots(figures, small=True, folded=f"{title} ({len(found)})"))
    return section


def overlay(groups: Sequence[Group], name: str) -> Figure:
    """One column of every group that has it."""
    traces = []
    for i, group in enumerate(groups):
        points = {axis: band(group.runs, name, axis) for axis, _ in AXES if axis != "iteration"}
        if all(points.values()):
            traces.append({"name": group.letter, "colour": i, "points": points})
    return Figure(word(name), traces, UNITS.get(name, ""), legend=True)


def band(runs: Sequence[RunData], name: str, axis: str) -> dict[str, list[Any]]:
    """Mean, lowest and highest value of one column of several runs, at common points of an axis; empty where no run
    has it. The runs are interpolated linearly, up to the end of the shortest."""
    curves = []
    for run in runs:
        if name in run.columns and axis in run.columns:
            x, y = binned(run.columns[axis], GRID), binned(run.columns[name], GRID)
            known = np.isfinite(x) & np.isfinite(y)
            if known.any():
                curves.append((x[known], y[known]))
    if not curves:
        return {}
    scale = 60 if axis == "seconds" else 1
    if len(curves) == 1:
        x, y = curves[0]
        return {"x": plain(x / scale, 8), "y": plain(y)}
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(first, max(first, last), GRID)
    rows = np.stack([np.interp(grid, x, y) for x, y in curves])
    return {
        "x": plain(grid / scale, 8),
        "y": plain(rows.mean(axis=0)),
        "low": plain(rows.min(axis=0)),
        "high": plain(rows.max(axis=0)),
    }


# ---------------------------------------------------------------------- final values


def _rewards_differ(groups: Sequence[Group]) -> list[str]:
    """Settings of the rewards that vary, and others that change what a return is."""
    every = varying_settings(groups)
    return [key for key in every if key.startswith(("task.rewards", "task.name", "task.episode_length_s"))]


def final(groups: Sequence[Group]) -> Section:
    """Final values of every group, their differences and what can be said of these."""
    section = Section("final", "Final values")
    names = [
        name
        for name in dict.fromkeys(name for group in groups for run in group.runs for name in run.columns)
        if name.startswith(TESTED) or name == "reward/total"
    ]
    values = {name: [_known(run.final(name) for run in group.runs) for group in groups] for name in names}
    section.blocks.append(Text("Means of the last tenth of each run's iterations, with exploration noise."))
    section.blocks += compared(groups, values, set(REWARDED) if _rewards_differ(groups) else set())
    evaluated = evaluations(groups)
    if evaluated:
        section.blocks.append(Text(f"From each run's {EVALUATION} (robolearn eval).", heading="Evaluation"))
        apart = {"return_mean"} if _rewards_differ(groups) else set()
        if found := conditions(groups):
            text = f"The evaluations were made under different conditions ({', '.join(found)}), so nothing is tested."
            section.blocks.append(Lines([Cell(text, UNKNOWN)]))
            apart = set(evaluated)
        section.blocks += compared(groups, evaluated, apart)
    return section


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def evaluations(groups: Sequence[Group]) -> dict[str, list[list[float]]]:
    """Numbers of the metrics.json in the run folders, by name and group; empty where fewer than two runs have one."""
    skipped = {"schema", "seed", "num_envs", "episodes", "episodes_each", "iteration", "episode_limit_s"}
    skipped |= {"real_time_factor", "steps_per_second", "observation_noise", "return_std"}
    out: dict[str, list[list[float]]] = {}
    count = 0
    for i, group in enumerate(groups):
        for run in group.runs:
            content = run.results.get(EVALUATION)
            if not isinstance(content, dict):
                continue
            count += 1
            metrics = content.get("metrics")
            for name, value in (*content.items(), *(metrics.items() if isinstance(metrics, dict) else ())):
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in skipped:
                    out.setdefault(name, [[] for _ in groups])[i].append(float(value))
    return out if count > 1 else {}


def conditions(groups: Sequence[Group]) -> list[str]:
    """Conditions of the evaluations that are not the same in all metrics.json."""
    found = [run.results.get(EVALUATION) for group in groups for run in group.runs]
    contents = [content for content in found if isinstance(content, dict)]
    names = ("backend", "overrides", "observation_noise", "episode_limit_s")
    return [name for name in names if len({json.dumps(content.get(name)) for content in contents}) > 1]


def compared(groups: Sequence[Group], values: dict[str, list[list[float]]], apart: set[str]) -> list[Any]:
    """A table of means with intervals, and one of differences with corrected p values.

    Args:
        groups: the groups.
        values: by name, the values of each group's seeds.
        apart: names whose values mean something else in each group, and are not tested.
    """
    rows = []
    for name, columns in values.items():
        title = word(name) + (f" [{UNITS[name]}]" if name in UNITS else "")
        rows.append((title, *(_mean(column) for column in columns)))
    caption = "Mean of the seeds with Student's 95 % interval of the mean; no interval with one seed."
    heads = [f"{group.letter} ({len(group.runs)})" for group in groups]
    blocks: list[Any] = [Table(("", *heads), rows, caption, numeric=1)]
    counts = [max((len(columns[i]) for columns in values.values()), default=0) for i in range(len(groups))]
    small = [g.letter for g, count in zip(groups, counts, strict=True) if count < statistics.LEAST]
    if len(groups) < 2:
        return blocks
    if small:
        one = len(small) == 1
        text = (
            f"Nothing can be said on whether group{'' if one else 's'} {', '.join(small)} differ{'s' if one else ''} "
            f"from others: a test needs at least {statistics.LEAST} seeds in each group."
        )
        blocks.append(Lines([Cell(text, UNKNOWN)]))
    tests = [
        (name, a, b, statistics.welch(columns[a], columns[b]))
        for name, columns in values.items()
        if name not in apart
        for a, b in combinations(range(len(groups)), 2)
        if min(len(columns[a]), len(columns[b])) >= statistics.LEAST
    ]
    if not tests:
        return blocks
    corrected = statistics.holm([difference.p for *_, difference in tests])
    return [*blocks, *_tested(groups, tests, corrected)]


def _tested(
    groups: Sequence[Group],
    tests: Sequence[tuple[str, int, int, statistics.Difference]],
    corrected: Sequence[float],
) -> list[Any]:
    rows: list[Sequence[str | Cell]] = []
    for (name, a, b, found), p in zip(tests, corrected, strict=True):
        verdict = Cell("not shown", "")
        if math.isnan(p):
            verdict = Cell("no seed varies: cannot be tested", UNKNOWN)
        elif p <= statistics.ALPHA:
            verdict = Cell("differ", NOTED)
        ends = f"{number(found.low)} to {number(found.high)}"
        pair = f"{groups[b].letter} - {groups[a].letter}"
        rows.append((word(name), pair, number(found.difference), ends, _p(found.p), _p(p), verdict))
    count = sum(not math.isnan(p) for p in corrected)
    caption = (
        f"Welch's t-test of each pair of groups, {count} tests, corrected by Holm's method: where nothing differs, "
        f"the chance that any row says so is about {100 * statistics.ALPHA:g} %. The intervals are of one "
        "difference each, 95 %, not corrected. A difference that is not shown may still be there."
    )
    head = ("", "groups", "difference", "interval", "p", "corrected", "beyond chance")
    return [Table(head, rows, caption, numeric=2)]


def _p(value: float) -> str:
    return "-" if math.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = statistics.mean_of(values)
    ends = "" if math.isnan(found.low) else f" ({number(found.low)} to {number(found.high)})"
    return number(found.mean) + ends


def differences(groups: Sequence[Group]) -> Section:
    """Settings that differ between groups."""
    section = Section("settings", "Settings that differ", short="Settings")
    keys = varying_settings(groups)
    if len(groups) < 2:
        section.blocks = [Text("The runs differ only by their seeds.")]
        return section
    rows = [(key, *(group.settings.get(key, ABSENT) for group in groups)) for key in keys]
    section.blocks = [Table(("setting", *(group.letter for group in groups)), rows, numeric=1)]
    return section


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
