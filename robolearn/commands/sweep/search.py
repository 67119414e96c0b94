"""`--search`: settings that Optuna proposes, trial by trial, and ends early where a trial falls behind the others.

Each trial is a run of the sweep. Optuna's part is in study.journal, so that a search goes on after a kill: a trial that
was running is told FAIL, and its settings and its half-trained run go to a new trial with the same values.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from robolearn import config
from robolearn.commands.report.curves import number
from robolearn.commands.sweep import columns
from robolearn.commands.sweep.grammar import Axis, Plan, run_name, text
from robolearn.commands.sweep.progress import Tail
from robolearn.commands.sweep.state import (
    DIRECTIONS,
    FINISHED,
    PRUNED,
    PRUNERS,
    STOPPED,
    RunState,
    SearchSettings,
    Sweep,
)
from robolearn.config.run_config import Config
from robolearn.errors import ConfigError, MissingError, did_you_mean, listing, quote

JOURNAL = "study.journal"

TRIALS = 20
"""Number of trials where none is given."""

_RUN = "run"
"""Attribute of a trial: name of its run."""

METRIC = "episode/return"
"""What is searched for where nothing is given."""

RIVALS = 3
"""Other trials that must have come as far as a trial before it is pruned."""
LATEST = 0.8
"""Share of a trial's iterations after which it is not pruned any more: it would save little."""


def optuna() -> Any:
    """The package.

    Raises:
        MissingError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingError(f"--search needs Optuna ({error}): pip install 'robolearn[cluster]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def settings(options: Any, resolved: Config) -> SearchSettings:
    """The search that the options of the command line describe (`robolearn.commands.sweep.sweep.Options`).

    Raises:
        ConfigError: an option has no such value.
        MissingError: Optuna is not installed.
    """
    direction, pruner = options.direction or DIRECTIONS[0], options.pruner or PRUNERS[0]
    for option, value, valid in (("direction", direction, DIRECTIONS), ("pruner", pruner, PRUNERS)):
        if value not in valid:
            hint = did_you_mean(value, valid)
            raise ConfigError(f"there is no --{option} {quote(value)}{hint or '.'} Valid: {listing(valid)}")
    metric = options.metric or METRIC
    columns.require_possible("--metric", metric)
    optuna()
    return SearchSettings(options.trials or TRIALS, metric, direction, pruner, resolved.seed)


class Search:
    """Asks Optuna for trials and tells it how they end; see `robolearn.commands.sweep.scheduler.Source`."""

    def __init__(self, sweep: Sweep, plan: Plan, jobs: int) -> None:
        assert sweep.search is not None
        self.sweep, self.plan, self.of = sweep, plan, sweep.search
        self.optuna = optuna()
        self.space = {axis.key: _distribution(axis) for axis in plan.axes}
        self.iterations = self._length()
        self.study = self._open(jobs)
        self._trials: dict[str, Any] = {}
        self._reported: dict[str, int] = {}
        self._take_over()

    def _open(self, jobs: int) -> Any:
        optuna, of = self.optuna, self.of
        from optuna.storages.journal import JournalFileBackend

        journal = (self.sweep.folder / JOURNAL).absolute()
        mend(journal)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
        study = optuna.create_study(
            study_name="sweep", storage=storage, direction=of.direction, load_if_exists=True
        )
        # Another seed after each resume: with the same one, the random trials of the start would come again.
        seed = int(np.random.SeedSequence((of.seed, len(study.trials))).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=max(3, min(10, of.trials // 3)), constant_liar=jobs > 1, seed=seed
        )
        study.pruner = self._pruner()
        return study

    def _pruner(self) -> Any:
        pruners, iterations = self.optuna.pruners, self.iterations
        if self.of.pruner == "none":
            return pruners.NopPruner()
        if self.of.pruner == "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=max(1, iterations // 27), reduction_factor=3)
        return pruners.MedianPruner(
            n_startup_trials=max(RIVALS, min(5, self.of.trials // 4)),
            n_min_trials=RIVALS,
            n_warmup_steps=iterations // 5,
            interval_steps=max(1, iterations // 50),
        )

    def _length(self) -> int:
        """`max_iterations` of a trial."""
        usual = {
            axis.key: axis.choices[0] if axis.choices else text((axis.numbers or (1,))[0], axis.integer)
            for axis in self.plan.axes
        }
        return config.resolve(self.plan.words(usual)).max_iterations

    def _take_over(self) -> None:
        """Settle the trials of a process that was stopped or killed: give their settings to new trials."""
        states = self.optuna.trial.TrialState
        waiting = {trial.user_attrs.get(_RUN) for trial in self.study.get_trials(states=(states.WAITING,))}
        for trial in self.study.get_trials(states=(states.RUNNING,)):
            self.study.tell(trial.number, state=states.FAIL)
        for run in self.sweep.runs:
            if run.status == STOPPED and run.name not in waiting:
                params = {key: self._param(key, value) for key, value in run.settings.items()}
                self.study.enqueue_trial(params, user_attrs={_RUN: run.name})

    def _param(self, key: str, value: str) -> Any:
        distribution = self.space[key]
        if isinstance(distribution, self.optuna.distributions.CategoricalDistribution):
            return value
        # The text is rounded: at an end of the interval it may be outside, and Optuna would take another value.
        return type(distribution.low)(min(max(float(value), distribution.low), distribution.high))

    # ------------------------------------------------------------------ Source

    def next(self) -> RunState | None:
        """A run with the settings of the next trial: one that was stopped, or a new one; None where all are made."""
        states = self.optuna.trial.TrialState
        stopped = bool(self.study.get_trials(deepcopy=False, states=(states.WAITING,)))
        if not stopped and len(self.sweep.runs) >= self.of.trials:
            return None
        trial = self.study.ask(self.space)
        name = trial.user_attrs.get(_RUN)
        run = next((run for run in self.sweep.runs if run.name == name), None)
        if run is None:
            values = {axis.key: self._text(axis, trial.params[axis.key]) for axis in self.plan.axes}
            number = len(self.sweep.runs)
            run = RunState(f"{number:03d}_{run_name(values)}", values, self.iterations)
            trial.set_user_attr(_RUN, run.name)
            self.sweep.runs.append(run)
        run.trial = int(trial.number)
        self._trials[run.name] = trial
        self._reported[run.name] = 0
        return run

    def _text(self, axis: Axis, value: Any) -> str:
        return value if isinstance(value, str) else text(float(value), axis.integer)

    def watch(self, run: RunState, tail: Tail) -> bool:
        """Report the metric of the new iterations; whether the pruner ends the trial.

        What is reported is a mean over as many iterations as the value at the end is.
        """
        columns.require_logged("--metric", self.of.metric, tail.rows)
        trial, seen = self._trials[run.name], self._reported[run.name]
        for end in range(len(tail.rows)):
            iteration = int(tail.rows[end]["iteration"])
            if iteration <= seen:
                continue
            value = tail.mean(self.of.metric, self._window(run), end + 1)
            self._reported[run.name] = iteration
            if value is not None:
                trial.report(value, iteration)
                # Asked for each iteration: the pruner skips those that are not the first of its interval.
                if trial.should_prune() and self._may_prune(run, iteration):
                    return True
        return False

    def _may_prune(self, run: RunState, iteration: int) -> bool:
        if iteration > LATEST * run.iterations:
            return False
        others = (trial for trial in self.study.get_trials(deepcopy=False) if trial.number != run.trial)
        return sum((trial.last_step or 0) >= iteration for trial in others) >= RIVALS

    def ended(self, run: RunState, tail: Tail) -> None:
        """Tell Optuna how a trial ended; one that was stopped stays open, for the search to go on with.

        Raises:
            ConfigError: the trial is complete and has no value of the metric, which the others would not have either.
        """
        states = self.optuna.trial.TrialState
        trial = self._trials.pop(run.name)
        if run.status == STOPPED:
            return
        value = run.value = tail.mean(self.of.metric, self._window(run))
        if run.status == FINISHED and value is not None:
            self.study.tell(trial, value)
        else:
            self.study.tell(trial, state=states.PRUNED if run.status == PRUNED else states.FAIL)
        if run.status == FINISHED and value is None:
            columns.require_logged("--metric", self.of.metric, tail.rows)
            raise columns.missing("--metric", self.of.metric, tail.rows)

    def _window(self, run: RunState) -> int:
        return self.sweep.last or max(1, run.iterations // 10)


def mend(journal: Path) -> None:
    """Remove what a kill can leave: the lock, which Optuna would wait for, and a last line that is cut off, which would
    make the lines after it unreadable. The lock of the sweep's folder is held, so that no other process writes."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        with journal.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _distribution(axis: Axis) -> Any:
    distributions = optuna().distributions
    if axis.numbers is None:
        return distributions.CategoricalDistribution(axis.choices)
    low, high, step = axis.numbers
    if axis.integer:
        return distributions.IntDistribution(
            int(min(low, high)), int(max(low, high)), log=axis.log, step=max(1, round(abs(step)))
        )
    low, high = min(low, high), max(low, high)
    return distributions.FloatDistribution(low, high, log=axis.log, step=abs(step) or None)


def tell_best(sweep: Sweep, plan: Plan) -> None:
    """Print the best trial as the command that trains it."""
    assert sweep.search is not None
    sign = 1 if sweep.search.direction == "maximize" else -1
    done = [run for run in sweep.runs if run.status == FINISHED and run.value is not None]
    if not done:
        print("no trial was trained to its end")
        return
    best = max(done, key=lambda run: sign * (run.value or 0.0))
    words = plan.words(best.settings)
    print(f"best: {sweep.search.metric} {number(best.value)}, {sweep.path(best)}")
    print(f"  {shlex.join(['robolearn', 'train', *words, *sweep.own_threads])}")
    if sweep.count(PRUNED):
        print("pruned trials do not count: their values are of the iteration in which they were ended")
    more = [word for word in words if not word.startswith("seed=")]
    print("one seed may be luck; several:")
    seeds = ",".join(str(sweep.search.seed + i) for i in range(1, 4))
    print(f"  {shlex.join(['robolearn', 'sweep', *more, f'seed={seeds}'])}")
