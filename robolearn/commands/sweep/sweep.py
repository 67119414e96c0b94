"""`robolearn sweep`: what is asked for, checked as a whole before anything starts; then the runs; then the table."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from robolearn import config
from robolearn.commands.exits import INTERRUPTED, OK
from robolearn.commands.sweep import columns, grammar, inputs, jobs, state, table
from robolearn.commands.sweep.grammar import Plan
from robolearn.commands.sweep.progress import Tail, View, listed
from robolearn.commands.sweep.scheduler import Source, run_all
from robolearn.commands.sweep.state import (
    FAILED,
    FINISHED,
    PRUNED,
    RUNNING,
    STOPPED,
    WAITING,
    RunState,
    SearchSettings,
    Sweep,
)
from robolearn.config import registry
from robolearn.config.overrides import Scalar, parse
from robolearn.config.run_config import Config
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, MissingError, RunFailed, quote
from robolearn.files import locked
from robolearn.learners import saved
from robolearn.training.build import device_of
from robolearn.training.runs import require_writable

SWEEPS = saved.ROOT / "sweeps"
METRIC = "episode/return"


@dataclass(frozen=True)
class Options:
    """Options of the command line; None where one is not given."""

    jobs: int | None = None
    ray: bool = False
    retry_failed: bool = False
    show: bool = False
    last: int | None = None
    columns: str | None = None
    search: bool = False
    trials: int | None = None
    metric: str | None = None
    direction: str | None = None
    pruner: str | None = None


def sweep(words: Sequence[str], options: Options) -> int:
    """Run a sweep or go on with one; print its table and write its files.

    Args:
        words: settings in Hydra's sweep grammar, or `resume=DIR`; `output=DIR` is the sweep's folder.
        options: those of the command line.

    Returns:
        Exit code: 0, or 130 after Ctrl-C or SIGTERM.

    Raises:
        ConfigError: an argument or one of the combinations is invalid; nothing was started.
        MissingError: a package that is needed is not installed.
        RunFailed: runs failed; the others have ended.
    """
    folders, settings = _folders(words)
    with ExitStack() as held:
        if "resume" in folders:
            found = _resumed(Path(folders["resume"]), settings, options, held)
        elif "output" in folders and state.exists(Path(folders["output"])):
            found = _repeated(Path(folders["output"]), settings, options, held)
        else:
            made = _new(settings, folders.get("output"), options, held)
            if made is None:
                return OK
            found = made
        return _run(found, options)


def _folders(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`resume` and `output` of the sweep, and the other words."""
    folders: dict[str, str] = {}
    rest = []
    for word in words:
        key, equals, _ = word.partition("=")
        if equals and key in ("resume", "output"):
            folders[key] = _path(word)
        else:
            rest.append(word)
    if len(folders) == 2:
        raise ConfigError("resume=DIR goes on in the sweep's own folder; leave output= out")
    return folders, rest


def _path(word: str) -> str:
    """The value of `key=PATH` as text."""
    value = parse([word])[0].value
    text = value.text if isinstance(value, Scalar) else value
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{quote(word)}: {word.partition('=')[0]} takes the path of a sweep's folder")
    return text


# ---------------------------------------------------------------------- new, or to be continued


def _new(words: list[str], output: str | None, options: Options, held: ExitStack) -> Sweep | None:
    """A new sweep, checked, with its folder; None with --show, which prints the runs."""
    plan = grammar.parse(words, options.search)
    _require_axes(plan, options)
    for name in _columns(options):
        columns.require_possible("--columns", name)
    runs, resolved = ([], _resolve_search(plan)) if options.search else resolve_all(plan)
    searched = None
    if options.search:
        from robolearn.commands.sweep import search

        searched = search.settings(options, resolved[0])
    if options.show:
        for run in runs:
            print(shlex.join(["robolearn", "train", *plan.words(run.settings)]))
        axes = listed([axis.key for axis in plan.axes])
        print(_count(len(runs), "run") if runs else f"a search over {axes} for {_objective(searched)}")
        return None
    folder = Path(output) if output is not None else None
    if folder is not None and (folder / config.FILE_NAME).exists():
        raise ConfigError(f"{quote(str(folder), 120)} holds a run; choose another folder for the sweep")
    require_writable(folder or SWEEPS)
    found = Sweep(folder or Path(), list(words), last=options.last or 0, columns=_columns(options), runs=runs)
    found.search = searched
    share(found, resolved, options)
    found.folder = folder or _new_folder(resolved)
    found.folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(locked(found.folder))
    if state.exists(found.folder):
        raise ConfigError(f"another sweep has begun in {quote(str(found.folder), 120)}; start again")
    found.save()
    return found


def _require_axes(plan: Plan, options: Options) -> None:
    if options.search:
        if any(axis.key == "seed" for axis in plan.axes):
            raise ConfigError(
                "seed is not searched for: a search would pick the luckiest one; give one seed, and compare the best "
                "settings with several seeds afterwards"
            )
        if not plan.axes:
            raise ConfigError("--search needs settings to search, such as learner.gamma='choice(0.97,0.99)'")
        return
    for option in ("trials", "metric", "direction", "pruner"):
        if getattr(options, option) is not None:
            raise ConfigError(f"--{option} goes with --search")
    if not plan.axes:
        config.resolve(plan.words({}))  # names a value that was meant to be several
        raise ConfigError("nothing varies; give several values, such as seed=1,2,3, or use robolearn train")


def resolve_all(plan: Plan) -> tuple[list[RunState], list[Config]]:
    """Every combination as a run, with its configuration.

    Raises:
        ConfigError, MissingError: one is invalid; the message names it.
    """
    combinations = list(plan.product())
    resolved = [_resolved(plan, settings) for settings in combinations]
    names = grammar.run_names(combinations)
    runs = [
        RunState(name, settings, run.max_iterations)
        for name, settings, run in zip(names, combinations, resolved, strict=True)
    ]
    return runs, resolved


def _resolved(plan: Plan, settings: dict[str, str]) -> Config:
    """The configuration of a combination, of which all that it starts from exists.

    Raises:
        ConfigError, MissingError: it is invalid; the message names the combination.
    """
    try:
        run = config.resolve(plan.words(settings))
        inputs.require(run)
        return run
    except (ConfigError, MissingError) as error:
        kind = MissingError if isinstance(error, MissingError) else ConfigError
        raise kind(_of_combination(settings, str(error))) from error


def _of_combination(settings: dict[str, str], said: str) -> str:
    """A message with the settings it is of, once: without those where it names the only one, or a key that none has."""
    for key, value in settings.items():
        word = f"{key}={value}"
        said = said.removeprefix(f"{quote(word)}: ")
        if said.startswith(f"there is no {quote(key)}") or (len(settings) == 1 and word in said):
            return said
    varying = " ".join(f"{key}={value}" for key, value in settings.items())
    return f"{varying}: {said}" if varying else said


def _resolve_search(plan: Plan) -> list[Config]:
    """Configurations at the ends of the search space; they are checked one axis at a time."""
    ends = [
        axis.choices or tuple(grammar.text(end, axis.integer) for end in (axis.numbers or ())[:2])
        for axis in plan.axes
    ]
    usual = {axis.key: values[0] for axis, values in zip(plan.axes, ends, strict=True)}
    resolved = [_resolved(plan, usual)]
    for axis, values in zip(plan.axes, ends, strict=True):
        resolved += [_resolved(plan, {**usual, axis.key: value}) for value in values[1:]]
    return resolved


def _columns(options: Options) -> list[str]:
    names = [name.strip() for name in (options.columns or "").split(",")]
    return [name for name in names if name]


def _new_folder(resolved: Sequence[Config]) -> Path:
    tasks = dict.fromkeys(run.task_name.rpartition(":")[2].replace("/", "_") for run in resolved)
    parent = SWEEPS / "+".join(tasks)[:60]
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f"_{i}" for i in range(1, 1000))):
        if not (parent / f"{stamp}{suffix}").exists():
            return parent / f"{stamp}{suffix}"
    raise ConfigError(f"{parent} holds a thousand sweeps of this second; choose a folder with output=DIR")


def _repeated(folder: Path, words: list[str], options: Options, held: ExitStack) -> Sweep:
    """The sweep in a folder that the same command has started before."""
    before = state.load(folder)
    if before.words != words or (before.search is not None) != options.search:
        raise ConfigError(
            f"{quote(str(folder), 120)} holds another sweep ({' '.join(before.words)}); go on with it with "
            f"robolearn sweep {grammar.setting('resume', str(folder))}, or choose another folder"
        )
    return _resumed(folder, words, options, held, repeated=True)


def _resumed(
    folder: Path, words: list[str], options: Options, held: ExitStack, repeated: bool = False
) -> Sweep:
    """A sweep to go on with; its words are the saved ones."""
    if options.show:
        raise ConfigError("--show prints the runs of a new sweep; leave resume=DIR out")
    state.load(folder)  # its absence is said before a lock file is made
    held.enter_context(locked(folder))
    found = state.load(folder)  # of the process that has just ended, perhaps
    plan = grammar.parse(found.words, found.search is not None)
    named = [*words, *(f"{a.key}={value}" for a in grammar.parse(words, True).axes for value in a.choices)]
    jobs.refuse_files(_all_words(plan, found), named, str(folder))
    extra = [word for word in words if word not in found.words]
    if extra:
        raise ConfigError(
            f"{quote(extra[0])}: a sweep goes on with its own settings; leave it out, or start another sweep"
        )
    if not repeated:
        for option in ("search", "metric", "direction", "pruner"):
            if getattr(options, option):
                raise ConfigError(f"--{option}: a sweep goes on with its own; leave it out")
    for option in ("metric", "direction", "pruner") if found.search is not None else ():
        given, own = getattr(options, option), getattr(found.search, option)
        if given and given != own:
            raise ConfigError(
                f"--{option} {given}: the search in {quote(str(folder), 120)} has {own}; leave it out, or start "
                "another one"
            )
    if options.trials is not None:
        if found.search is None:
            raise ConfigError("--trials is for a search")
        found.search.trials = options.trials
    if options.last is not None:
        found.last = options.last
    if options.columns is not None:
        found.columns = _columns(options)
        for name in found.columns:
            columns.require_possible("--columns", name)
    for run in found.runs:
        if run.status in (RUNNING, STOPPED) or (run.status == FAILED and options.retry_failed):
            run.status = WAITING if found.search is None else STOPPED
    return found


def _all_words(plan: Plan, found: Sweep) -> list[str]:
    return list(dict.fromkeys(word for run in found.runs for word in plan.words(run.settings))) or [
        item for item in plan.items if isinstance(item, str)
    ]


# ---------------------------------------------------------------------- threads


def share(found: Sweep, resolved: Sequence[Config], options: Options) -> None:
    """Choose runs at once and the threads of each, where the user does not say. Both stay the same when the sweep is
    resumed, the threads because the bits of a training depend on them."""
    torch_threads = max(run.torch_threads for run in resolved)
    # None: a backend without the setting simulates in one thread, or on a GPU.
    backend_threads = [getattr(run.backend, "threads", None) for run in resolved]
    chosen = max(torch_threads, *(number or 0 for number in backend_threads))
    if options.ray:
        from robolearn.commands.sweep.cluster import share_of_cluster

        share = chosen or share_of_cluster(_total(found), options.jobs)
        found.jobs = options.jobs or 0
    else:
        most = usable_cores() // chosen if chosen else usable_cores()
        found.jobs = options.jobs or _default_jobs(max(1, most), _total(found), resolved)
        share = chosen or max(1, usable_cores() // found.jobs)
    found.threads = share
    if all(run.torch_threads == 0 for run in resolved):
        found.own_threads.append(f"torch_threads={share}")
    if all(number == 0 for number in backend_threads):
        found.own_threads.append(f"backend.threads={share}")


def _total(found: Sweep) -> int:
    return found.search.trials if found.search else len(found.runs)


def _default_jobs(most: int, total: int, resolved: Sequence[Config]) -> int:
    """Runs at once where the user does not say: as many as the cores have room for, and on GPUs one a GPU."""
    import torch

    if any(device_of(run).type == "cuda" for run in resolved):
        most = max(1, torch.cuda.device_count())
    return min(most, total)


# ---------------------------------------------------------------------- running


class Grid:
    """The runs of a sweep in their order; see `robolearn.commands.sweep.scheduler.Source`."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def next(self) -> RunState | None:
        """The first waiting run."""
        return next((run for run in self.sweep.runs if run.status == WAITING), None)

    def watch(self, run: RunState, tail: Tail) -> bool:
        """Runs of a grid are trained to their ends.

        Raises:
            ConfigError: no run has a column that the user wants to see.
        """
        if not any(
            key in run.settings for key in ("task", "learner", "backend")
        ):  # whose runs have other columns
            for name in self.sweep.columns:
                columns.require_logged("--columns", name, tail.rows)
        return False

    def ended(self, run: RunState, tail: Tail) -> None:
        """See `watch`, which a short run may not have seen."""
        self.watch(run, tail)


def _run(found: Sweep, options: Options) -> int:
    plan = grammar.parse(found.words, found.search is not None)
    place: jobs.Place = jobs.LocalPlace()
    gpus: list[str] = []
    if options.ray:
        from robolearn.commands.sweep.cluster import RayPlace

        place = on_ray = RayPlace(found.threads, gpu="device=cpu" not in found.words)
        number = options.jobs or on_ray.slots()
    else:
        number = options.jobs or found.jobs or max(1, usable_cores() // found.threads)
        gpus = _gpus(found, plan)
    left = _total(found) - found.count(FINISHED, PRUNED, FAILED)
    number = max(1, min(number, left))
    source: Source = Grid(found)
    if found.search is not None:
        from robolearn.commands.sweep import search

        source = search.Search(found, plan, number)

    def training(run: RunState, slot: int) -> jobs.Training:
        words = (*plan.words(run.settings), *found.own_threads)
        chosen = {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
        return jobs.Training(str(found.path(run).absolute()), words, run.iterations, environment=chosen)

    print(f"sweep {found.folder}: {_described(found)}", flush=True)
    if left:
        print(f"{_at_once(number, options.ray)}{_threads(found)}", flush=True)
    view = View(found, _total(found), found.search.metric if found.search else METRIC)
    try:
        with view:
            complete = run_all(found, source, place, number, training, view)
    finally:
        place.close()
    return _finish(found, plan, complete)


def _gpus(found: Sweep, plan: Plan) -> list[str]:
    """The GPUs to deal to the jobs; empty where there is one at most, or a setting names a device."""
    if any(word.startswith("device=") for word in _all_words(plan, found)):
        return []
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]


def _described(found: Sweep) -> str:
    if found.search is not None:
        s = found.search
        done = found.count(FINISHED, FAILED, PRUNED)
        return f"search for {_objective(s)}, {_count(s.trials, 'trial')}" + (f", {done} done" if done else "")
    parts = [_count(len(found.runs), "run")]
    parts += [f"{n} {status}" for status in (FINISHED, FAILED) if (n := found.count(status))]
    return ", ".join(parts)


def _objective(searched: SearchSettings | None) -> str:
    return f"{searched.metric} ({searched.direction})" if searched else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _at_once(number: int, ray: bool) -> str:
    where = "on Ray" if ray else f"on {usable_cores()} core{'s' * (usable_cores() != 1)}"
    return f"{number} at once {where} (--jobs)" if number > 1 else f"one after the other {where} (--jobs)"


def _threads(found: Sweep) -> str:
    if not found.own_threads:
        return ", with the threads that you set"
    return f", each with {' '.join(found.own_threads)}"


def _finish(found: Sweep, plan: Plan, complete: bool) -> int:
    """Tables, page, and how it ended."""
    rows = table.rows_of(found)
    table.show(found, rows)
    print(f"\nwrote {found.folder / table.RUNS}")
    try:
        page = table.write_page(found, rows)
        if page is not None:
            print(f"wrote {page}")
    except MissingError as error:
        print(f"no page: {error}")
    if found.search is not None:
        from robolearn.commands.sweep import search

        search.tell_best(found, plan)
    again = _again(found, plan)
    failed = [run for run in found.runs if run.status == FAILED]
    if not complete:
        print(f"stopped; go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    stopped = [run.name for run in found.runs if run.status == STOPPED]
    if failed:
        for run in failed:
            print(f"{run.name} failed (exit code {run.exit_code}): {run.error}", file=sys.stderr)
        raise RunFailed(
            f"{len(failed)} of {_count(len(found.runs), 'run')} failed: {listed([run.name for run in failed])}; each "
            f"has its output in {jobs.LOG}; try them again with {again} --retry-failed"
        )
    if stopped:
        raise RunFailed(f"stopped from outside: {listed(stopped)}; go on with: {again}")
    return OK


def _again(found: Sweep, plan: Plan) -> str:
    """The command that goes on with a sweep; it names files again, whose code is not run otherwise."""

    def names_file(word: str) -> bool:
        values = word.partition("=")[2].split(",")
        return any(registry.is_file(value.strip("'\" ")) for value in values)

    files = [word for word in found.words if names_file(word)]
    return shlex.join(["robolearn", "sweep", grammar.setting("resume", str(found.folder)), *files])
