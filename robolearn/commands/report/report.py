"""`robolearn report`: writes a page about a run, or about several runs compared."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from robolearn import __version__, config
from robolearn.commands.report import curves, guarding, pictures, results
from robolearn.commands.report.blocks import UNKNOWN, Cell, Code, Facts, Page, Section, Table, Text
from robolearn.commands.report.page import plotly_js, write
from robolearn.commands.report.reading import RunData, read, started
from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError, quote
from robolearn.training.active import Sections, active
from robolearn.training.panel import clock
from robolearn.training.runs import load_config, require_writable

FILE_NAME = "report.html"


def report(
    run: str | None, words: Iterable[str] = (), output: Path | None = None, stills: bool = True
) -> Path:
    """Write the page of a run.

    Args:
        run: see `robolearn.learners.saved.find_run`; it need not have a checkpoint.
        words: settings that name the file of a task, a robot or a backend again, which allows running it.
        output: the file; None: report.html in the run folder.
        stills: whether pictures of the policy are made where there is no video.

    Returns:
        The file.

    Raises:
        ConfigError: there is no such run, a setting is none that names a file, or the file cannot be written.
        MissingError: plotly is not installed.
    """
    naming = tuple(words)
    for word in naming:
        if not registry.is_file(word.partition("=")[2].strip("'\"")):
            raise ConfigError(
                f"{quote(word)}: a report shows a run as it is; only a setting that names its file again is taken, "
                "such as task=path.py:Name"
            )
    plotly = plotly_js()
    found = read(run)
    path = output or found.output / FILE_NAME
    require_writable(path.parent)
    write(page_of(found, naming, stills), path, plotly)
    print(f"wrote {path}")
    return path


def page_of(run: RunData, words: tuple[str, ...] = (), stills: bool = True) -> Page:
    """The page of a run."""
    sections = [
        overview(run),
        pictures.section(run, stills, words),
        guarding.section(run),
        *curves.sections(run),
        results.evaluation(run),
        results.simulators(run),
        results.suites(run),
        results.exports(run),
        results.others(run),
        terms(run, words),
        configuration(run),
        origin(run),
    ]
    x = curves.x_of(run)
    task = str(run.setting("task", "name") or "A run")
    return Page(
        title=task.rpartition("/")[2],
        subtitle=run.name,
        sections=[section for section in sections if section.blocks],
        axes=[axis for axis in curves.AXES if axis[0] in x],
        x=x,
        notes=notes(run),
        made=f"Made by robolearn {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}.",
    )


def notes(run: RunData) -> list[Cell]:
    """What the reader has to know first."""
    lines = []
    if run.trains:
        target = run.setting("max_iterations")
        of = f" of {target}" if target else ""
        lines.append(
            f"The run is still training: iteration {run.iterations and int(run.last('iteration') or 0)}{of}."
        )
    elif _short(run):
        target = run.setting("max_iterations")
        lines.append(
            f"The run has {int(run.last('iteration') or 0)} of {target} iterations: it was stopped, or failed."
        )
    return [Cell(line, UNKNOWN) for line in (*lines, *run.notes)]


def _short(run: RunData) -> bool:
    target, last = run.setting("max_iterations"), run.last("iteration")
    if run.starts and last is not None and run.starts[-1].get("finished") == last:
        return False  # more would not have improved it
    return isinstance(target, int) and last is not None and last < target


def overview(run: RunData) -> Section:
    """What was trained on what, and the outcome in a few numbers."""
    section = Section("overview", "Overview")
    big = []
    if (value := run.final("episode/return")) is not None:
        big.append(("return of an episode", curves.number(value)))
    if (value := run.final("episode/length")) is not None:
        limit = run.setting("task", "episode_length_s")
        big.append(("episode length", f"{value:.1f} s" + (f" of {limit:g}" if _is_number(limit) else "")))
    if (value := run.final("episode/fall_rate")) is not None:
        big.append(("episodes terminated", f"{100 * value:.0f} %"))
    if (value := run.final("metric/linear_velocity_error")) is not None:
        big.append(("velocity error", f"{value:.3f} m/s"))
    if (value := run.last("steps")) is not None:
        big.append(("environment steps", f"{value / 1e6:.2f} M"))
    if (value := run.last("seconds")) is not None:
        big.append(("wall time", clock(value)))
    if big:
        section.blocks.append(Facts(big, big=True))
    section.blocks.append(Facts(facts(run)))
    if big and run.iterations > 1:
        text = (
            "Return, length, ends and error: means of the last tenth of the training, with exploration noise."
        )
        section.blocks.append(Text(text))
    return section


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def facts(run: RunData) -> list[tuple[str, str]]:
    """Task, robot, simulator, learner, sizes, machine, time."""
    machine = run.starts[-1].get("machine") if run.starts else None
    rows = [
        ("task", run.setting("task", "name")),
        ("robot", run.setting("task", "robot")),
        ("simulator", run.setting("backend", "name")),
        ("learner", run.setting("learner", "name")),
        ("environments", run.setting("num_envs")),
        ("seed", run.setting("seed")),
        ("iterations", _iterations(run)),
        ("steps per second", f"{value:,.0f}" if (value := run.final("steps_per_second")) else None),
        ("started", started(run).replace("T", " ")),
        ("machine", machine_text(machine) if isinstance(machine, dict) else None),
    ]
    if made := run.made:
        rows += [
            (
                "environment steps",
                f"{made['environment_steps'] / 1e6:.2f} M"
                if _is_number(made.get("environment_steps"))
                else None,
            ),
            ("wall time", f"{made['minutes']:.0f} min" if _is_number(made.get("minutes")) else None),
        ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _iterations(run: RunData) -> str | None:
    last = run.last("iteration")
    if last is None:
        return str(run.made["iterations"]) if "iterations" in run.made else None
    target = run.setting("max_iterations")
    return f"{last:.0f} of {target}" if _is_number(target) and target != last else f"{last:.0f}"


def machine_text(machine: dict[str, Any]) -> str:
    """A machine in one line."""
    parts = [machine.get("processor"), f"{machine.get('cores')} cores" if machine.get("cores") else None]
    parts += [f"{machine['memory_gb']} GB" if machine.get("memory_gb") else None, machine.get("gpu")]
    return ", ".join(str(part) for part in parts if part)


def terms(run: RunData, words: tuple[str, ...]) -> Section:
    """The table of what is active in the task."""
    section = Section("terms", "What is active", short="Terms")
    try:
        sections = active_of(run, words)
    except (ConfigError, MissingError) as error:
        section.blocks = [Text(f"Not shown: {error}")]
        return section
    rows = [
        (title if i == 0 else "", name, values)
        for title, items in sections.items()
        for i, (name, values) in enumerate(items)
    ]
    if rows:
        section.blocks = [Table(("", "name", "settings"), rows)]
    return section


def active_of(run: RunData, words: tuple[str, ...]) -> Sections:
    """What is active; without the scene where the robot's file is not here.

    Raises:
        ConfigError, MissingError: the configuration cannot be loaded.
    """
    from robolearn.training.build import scene_of

    loaded = load_config(run.folder, words)
    try:
        scene = scene_of(loaded)
    except (ConfigError, MissingError):
        scene = None
    return active(loaded.task, scene=scene)


def configuration(run: RunData) -> Section:
    """The resolved configuration, folded."""
    try:
        text = (run.folder / config.FILE_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Section("configuration", "Configuration")
    return Section(
        "configuration", "Configuration", [Code(text, f"{config.FILE_NAME}: every setting of the run")]
    )


def origin(run: RunData) -> Section:
    """Versions, commit and machine of each start; the commands of a shipped policy."""
    section = Section("origin", "Versions")
    if run.starts:
        shown = [entry for entry in run.starts if isinstance(entry.get("versions"), dict)]
        rows: list[tuple[str, ...]] = [("iteration", *(str(entry.get("iteration", "")) for entry in shown))]
        rows.append(("commit", *(str(entry.get("commit") or "not a checkout") for entry in shown)))
        packages = dict.fromkeys(name for entry in shown for name in entry["versions"])
        rows += [(name, *(str(entry["versions"].get(name, "-")) for entry in shown)) for name in packages]
        machines = [entry.get("machine") for entry in shown]
        rows.append(("machine", *(machine_text(m) if isinstance(m, dict) else "-" for m in machines)))
        heads = [str(entry.get("at", "")).replace("T", " ")[:19] for entry in shown]
        section.blocks.append(Table(("started or resumed", *heads), rows))
    elif run.made:
        section.blocks += results.table_of(run.made, "How the policy was made")
    else:
        text = "The run has no starts.json: it was started by a version that did not record versions and machine."
        section.blocks.append(Text(text))
    return section
