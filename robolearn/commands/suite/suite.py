"""Runs a suite: cases side by side in worker processes, then verdicts, reports, and a second look at failures."""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robolearn import __version__
from robolearn.commands.suite import baseline, output, spec
from robolearn.commands.suite.case import (
    Case,
    Outcome,
    check_case,
    run_case,
)
from robolearn.commands.suite.failures import record_case
from robolearn.commands.suite.gates import OF_THE_RUN, Gate, Verdict, require_known
from robolearn.commands.suite.output import Result
from robolearn.commands.suite.spec import Scenario, Suite
from robolearn.commands.suite.workers import each_in_a_worker
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, MissingError, RunFailed, did_you_mean, listing, quote
from robolearn.export.deploy import own_runtime, told
from robolearn.export.driver import is_bundle
from robolearn.runtime.measure import measure
from robolearn.simulation.measures import described
from robolearn.training import replay
from robolearn.training.runs import require_writable

STATED = {"backend": "backends", "seed": "seeds", "num_envs": "num_envs", "task": "task", "device": "device"}
"""Settings that the command line must not change behind a report's back, and the scenario's key of each."""

LATENCY_SECONDS = 4.0
"""How long a bundle's latency is measured [s]."""

FAILURES = Path("sim_failures")
"""Default folder of replays and videos of failed scenarios."""


def run_suite(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    junit: Path | None = None,
    json: Path | None = None,
    summary: Path | None = None,
    failures: Path = FAILURES,
    jobs: int = 0,
    only: Sequence[str] = (),
    update_baseline: bool = False,
    skip_missing: bool = False,
) -> bool:
    """Run a suite, print its table, and write its reports.

    Args:
        path: the suite's YAML file.
        overrides: settings for every scenario, in Hydra's grammar.
        junit: file of the JUnit report; None: none.
        json: file of the JSON report; None: beside `junit`, where there is one.
        summary: file to which a Markdown summary is appended; None: that of GITHUB_STEP_SUMMARY, where it is set.
        failures: folder for a replay and a video of each failed scenario.
        jobs: cases at once; 0: one a core.
        only: names of the scenarios to run; empty: all.
        update_baseline: record the measures as the baseline, unless a gate fails.
        skip_missing: skip backends that are not installed.

    Returns:
        Whether every gate passed.

    Raises:
        ConfigError: the suite, its baseline or an argument is invalid, before anything is simulated.
        MissingError: a backend is not installed.
        Refused: a bundle is damaged.
    """
    suite = spec.read(path)
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key in STATED:
            raise ConfigError(
                f"{quote(word)}: the scenarios state their {STATED[key]}; change {quote(str(path), 120)}"
            )
    if update_baseline and overrides:
        raise ConfigError(
            f"--update-baseline records the suite as it is: leave out {quote(' '.join(overrides))}"
        )
    json = json or (junit.with_suffix(".json") if junit is not None else None)
    summary = summary or (Path(named) if (named := os.environ.get("GITHUB_STEP_SUMMARY")) else None)
    if json is not None and json == junit:
        raise ConfigError(f"--junit and --json are both {quote(str(junit), 120)}; name two files")
    for file in (junit, json, summary, suite.baseline if update_baseline else None, failures / "x"):
        if file is not None:
            require_writable(file.parent)
    known = {} if update_baseline and not only else baseline.read(suite.baseline)
    jobs = jobs or usable_cores()
    for scenario in suite.scenarios if update_baseline else ():
        if scenario.steps is None and scenario.episodes * len(scenario.seeds) < baseline.LEAST:
            raise ConfigError(
                f"{quote(str(path), 120)}: scenario {quote(scenario.name)}: a baseline needs at least {baseline.LEAST} "
                "episodes"
            )
    cases, skipped = _cases(suite, tuple(overrides), only, max(1, usable_cores() // jobs), skip_missing)
    if skipped and not cases:
        raise MissingError(
            f"{quote(str(path), 120)}: nothing can be simulated here: {skipped[0].verdicts[0].why}"
        )
    if update_baseline and not only and skipped:  # what was skipped keeps its entries
        known = baseline.read(suite.baseline)
    began = time.perf_counter()
    outcomes, broken = _simulate(cases, jobs)
    _measure_latency(cases, outcomes)
    results = _judged(cases, outcomes, broken, {} if update_baseline else known)
    _record(results, failures, jobs)
    results += skipped
    seconds = time.perf_counter() - began

    passed = not any(result.failed for result in results)
    facts = {"robolearn": __version__, "machine": platform.machine(), "overrides": " ".join(overrides)}
    print(
        f"suite {suite.name}: {len(results)} case{'s' * (len(results) != 1)}, {jobs} at once, {seconds:.0f} s"
    )
    print(output.table(results))
    if junit is not None:
        output.save(junit, output.junit(f"robolearn.{suite.name}", results, facts))
        print(f"wrote {junit}")
    if json is not None:
        output.save(json, output.as_json(output.content(suite.name, results, seconds, facts)))
        print(f"wrote {json}")
    if summary is not None:
        _append(summary, output.markdown(suite.name, results, seconds))
    if update_baseline:
        _update(suite, cases, outcomes, known, passed)
    elif not known:
        print(f"no baseline: record one with robolearn sim --suite {path} --update-baseline")
    return passed


def _cases(
    suite: Suite, extra: tuple[str, ...], only: Sequence[str], threads: int, skip_missing: bool
) -> tuple[list[Case], list[Result]]:
    """The cases to run, checked without simulating, and results for those to skip."""
    names = [scenario.name for scenario in suite.scenarios]
    for name in only:
        if name not in names:
            raise ConfigError(
                f"--only: {quote(str(suite.path), 120)} has no scenario {quote(name)}"
                f"{did_you_mean(name, names) or '.'} Valid: {listing(names)}"
            )
    cases, skipped = [], []
    checked: dict[Any, tuple[list[str], tuple[str, ...]]] = {}
    for scenario in suite.scenarios:
        if only and scenario.name not in only:
            continue
        for backend in scenario.backends:
            case = Case(scenario, backend, extra, threads)
            place = f"{quote(str(suite.path), 120)}: scenario {quote(scenario.name)}"
            same = (scenario.policy, scenario.task, scenario.settings, backend)
            key = (*same, scenario.steps, repr(scenario.script))
            try:
                if key not in checked:
                    checked[key] = check_case(case)
                metrics, columns = checked[key]
                scenario.script.require_columns(columns, f"scenario {quote(scenario.name)}: ")
            except MissingError as error:
                if not skip_missing:
                    raise MissingError(f"{place} on {backend}: {error} (or --skip-missing)") from error
                verdict = Verdict("available", None, "-", "-", str(error), scenario.name, backend)
                skipped.append(Result(case, Outcome(), [verdict], []))
                continue
            except (ConfigError, RunFailed) as error:
                said = str(error)
                if said.startswith("scenario "):
                    raise ConfigError(f"{quote(str(suite.path), 120)}: {said}") from error
                raise ConfigError(f"{place} on {backend}: {said}") from error
            require_known(scenario.gates, metrics, place)
            if any(gate.measure == "latency_ms" for gate in scenario.gates) and not is_bundle(
                scenario.policy
            ):
                raise ConfigError(
                    f"{place}: gates: latency_ms needs the folder of a bundle as policy, not {quote(scenario.policy)}"
                )
            cases.append(case)
    return cases, skipped


def _measure_latency(cases: Sequence[Case], outcomes: dict[str, Outcome]) -> None:
    """Measure each bundle that a gate asks for, once, and after everything else: nothing else then runs."""
    found: dict[str, float] = {}
    for case in cases:
        policy = case.scenario.policy
        if case.name in outcomes and any(gate.measure == "latency_ms" for gate in case.scenario.gates):
            if policy not in found:
                found[policy] = latency(Path(policy))
            outcomes[case.name].latency_ms = found[policy]


def latency(folder: Path) -> float:
    """99th percentile [ms] of a control step of a bundle on this machine, paced at its control rate.

    Raises:
        Refused: the bundle is damaged.
    """
    ours = own_runtime(folder)
    bundle = told(ours, lambda: ours.Bundle.load(folder))
    session = told(ours, lambda: ours.open_session(bundle, ours.available(bundle)[0]))
    try:
        result = measure(ours.Runtime(bundle, session), bundle.golden, LATENCY_SECONDS, hot=1)
    finally:
        session.close()
    return float(result["paced"]["p99_ms"])


def _simulate(cases: Sequence[Case], jobs: int) -> tuple[dict[str, Outcome], dict[str, str]]:
    """(outcomes, errors) by name of the case."""
    outcomes: dict[str, Outcome] = {}
    broken: dict[str, str] = {}
    for done, (i, kind, value) in enumerate(each_in_a_worker(run_case, [(case,) for case in cases], jobs), 1):
        case = cases[i]
        if kind:
            broken[case.name] = value
        else:
            outcomes[case.name] = value
        said = value if kind else f"{value.seconds:.1f} s"
        print(f"{done}/{len(cases)} {case.name}: {said}", file=sys.stderr, flush=True)
    return outcomes, broken


def _judged(
    cases: Sequence[Case], outcomes: dict[str, Outcome], broken: dict[str, str], known: dict[str, Any]
) -> list[Result]:
    """Each case with its verdicts."""
    fitting = {
        case.name: known[case.name]
        for case in cases
        if case.name in outcomes and known.get(case.name, {}).get("scenario") == case.scenario.fingerprint
    }
    m = sum(len(baseline.comparable(entry, outcomes[name].episodes)) for name, entry in fitting.items())
    results = []
    for case in cases:
        scenario, name = case.scenario, case.name
        if name in broken:
            verdict = Verdict("finished", False, "no", "yes", broken[name], scenario.name, case.backend)
            results.append(Result(case, Outcome(), [verdict], []))
            continue
        outcome = outcomes[name]
        verdicts = judge(scenario, case.backend, outcome)
        if name in fitting and not outcome.problem:
            verdicts += baseline.compare(scenario.name, case.backend, fitting[name], outcome.episodes, m)
        elif known and not outcome.problem:
            value = "changed" if name in known else "none"
            why = "the scenario has changed since the baseline was recorded; run --update-baseline"
            if name not in known:
                why = "the baseline has no entry of this scenario on this backend; run --update-baseline"
            verdicts.append(Verdict("baseline", False, value, "the same", why, scenario.name, case.backend))
        results.append(Result(case, outcome, verdicts, []))
    return results


def judge(scenario: Scenario, backend: str, outcome: Outcome) -> list[Verdict]:
    """The verdicts of a scenario's gates on one backend."""
    verdict = functools.partial(Verdict, scenario=scenario.name, backend=backend)
    problem = outcome.problem
    diverged = outcome.diverged
    allowed = next(
        (gate for gate in scenario.gates if gate.measure == "divergence"), Gate("divergence", high=0.0)
    )
    gave_up = "" if allowed.passes(diverged) else "lower the timestep or the gains"
    verdicts = [
        verdict("finite", not problem, "no" if problem else "yes", "yes", problem),
        verdict("divergence", allowed.passes(diverged), str(diverged), allowed.limit, gave_up),
    ]
    for gate in scenario.gates:
        if gate.measure == "divergence":
            continue
        if problem:
            verdicts.append(verdict(gate.measure, None, "-", gate.limit, "the simulation ended early"))
            continue
        value, unit = _value(gate, outcome)
        if value is None:
            why = "no episode has a value"
            verdicts.append(verdict(gate.measure, False, "none", gate.limit, why))
            continue
        verdicts.append(verdict(gate.measure, gate.passes(value), f"{value:.4g}{unit}", gate.limit))
    return verdicts


def _value(gate: Gate, outcome: Outcome) -> tuple[float | None, str]:
    if gate.measure == "real_time_factor":
        return outcome.simulated / max(outcome.seconds, 1e-9), ""
    if gate.measure == "latency_ms":
        return outcome.latency_ms, " ms"
    unit = described(gate.key).unit
    return outcome.mean.get(gate.key), f" {unit}" if unit else ""


def _record(results: Sequence[Result], folder: Path, jobs: int) -> None:
    """Simulate the failed cases again and keep their worst episodes."""
    for result in results:  # a case that passes again leaves nothing of before
        for suffix in (replay.SUFFIX, ".mp4"):
            (folder / f"{result.case.stem}{suffix}").unlink(missing_ok=True)
    failed = [(result, found) for result in results if (found := worst(result))]
    if not failed:
        return
    print(f"recording the worst episode of {len(failed)} failed cases", file=sys.stderr, flush=True)
    arguments = [(result.case, seed, row, end, folder, why) for result, (seed, row, end, why) in failed]
    for i, kind, value in each_in_a_worker(record_case, arguments, jobs):
        result = failed[i][0]
        if kind:
            result.note = value
        else:
            result.files, result.note = value


def worst(result: Result) -> tuple[int, int, int, str] | None:
    """(seed, environment, last control step, why) of the episode that failed a gate the most; None where no episode
    did, as for a latency."""
    outcome = result.outcome
    for verdict in result.failed:
        why = f"{verdict.name} {verdict.value}, limit {verdict.limit}"
        if verdict.name == "finite" and outcome.problem_at is not None:
            seed, row, step = outcome.problem_at
            return seed, row, step + 1, outcome.problem
        if verdict.name == "divergence" and outcome.diverged_at is not None:
            return *outcome.diverged_at, why
        name = verdict.name.removeprefix("baseline ")
        if (name in OF_THE_RUN and name != "divergence") or not len(outcome.envs):
            continue
        gate = next((gate for gate in result.case.scenario.gates if gate.measure == name), Gate(name))
        values = outcome.episodes.get("survival" if name == "divergence" else gate.key)
        if values is None or np.isnan(values).all():
            continue
        if gate.key == "survival" or name == "divergence":
            # The earliest fall.
            order = np.where(values < 1, outcome.ends, np.iinfo(np.int64).max)
            index = int(np.argmin(order))
        else:
            mean = outcome.mean[gate.key]
            low = mean < gate.low or (mean <= gate.high and described(gate.key).better > 0)
            index = int(np.nanargmin(values) if low else np.nanargmax(values))
        return int(outcome.seeds[index]), int(outcome.envs[index]), int(outcome.ends[index]), why
    return None


def _update(
    suite: Suite, cases: Sequence[Case], outcomes: dict[str, Outcome], known: dict[str, Any], passed: bool
) -> None:
    if not passed:
        print(f"the baseline stays as it is, because a gate failed: {suite.baseline}")
        return
    valid = {f"{scenario.name} on {backend}" for scenario in suite.scenarios for backend in scenario.backends}
    entries = {name: entry for name, entry in known.items() if name in valid}
    for case in cases:
        entries[case.name] = baseline.entry(case.scenario.fingerprint, outcomes[case.name].episodes)
    baseline.write(suite.baseline, entries, __version__)
    print(f"wrote {suite.baseline}")


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {quote(str(path), 120)}: {error.strerror}") from error
