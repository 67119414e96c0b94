"""`robolearn plan`: what a run will take, in memory, time and money, before it starts."""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.commands.bench.bench import require_writable
from robolearn.commands.plan import example as examples
from robolearn.commands.plan import machine as machines
from robolearn.commands.plan import measure as measuring
from robolearn.commands.plan import network as networks
from robolearn.commands.plan.machine import Machine, Network, Workload
from robolearn.commands.plan.predict import Prediction, as_dict, predict, require_one_agent
from robolearn.commands.plan.tables import bytes_text, seconds_text, table
from robolearn.config.run_config import Config
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, listing, quote
from robolearn.files import replacing
from robolearn.runtime.measure import processor
from robolearn.training.build import device_of
from robolearn.training.host_memory import USABLE, free_bytes

SCHEMA = 1
"""Version of what `--json` writes."""
LATER = ("ranks", "mode", "placement")
"""Settings of `train` that say how a run is distributed, which the plan varies itself."""
SHOWN = (1, 2, 4, 8, 16)
"""Numbers of ranks in the table: those between are as slow as the next lower one, and often slower."""


def plan(
    overrides: Sequence[str],
    machine: str | None = None,
    save: Path | None = None,
    price: float | None = None,
    output: Path | None = None,
    sizes: str | None = None,
    iterations: int = 10,
    latency: float | None = None,
    bandwidth: float | None = None,
    marginal: float = 0.5,
) -> None:
    """Measure this machine, or take a machine's constants from a file, and print what a run will take.

    Args:
        overrides: settings of a training run.
        machine: file or name of a machine's constants; None: this machine, measured now.
        save: file to write the measured constants to.
        price: USD for an hour of one machine.
        output: file for the results, as JSON.
        sizes: numbers of environments to measure, as "256,1024".
        iterations: measured iterations of each size.
        latency: of the network between ranks [us].
        bandwidth: of the network between ranks [Gb/s].
        marginal: share of one process's speed that each further rank must add to pay.

    Raises:
        ConfigError: a setting, an option or the machine's file is invalid, or nothing fits into memory.
        MissingError, RunFailed: a measured training ended so.
    """
    if machine is not None and save is not None:
        raise ConfigError("--save writes what is measured, and --machine measures nothing; leave one out")
    if machine is not None and sizes is not None:
        raise ConfigError("--sizes is for a measurement, and --machine measures nothing; leave one out")
    words = [w for w in overrides if measuring.key_of(w) not in LATER]
    known = None if machine is None else machines.find(machine)
    run = config.resolve(_as_measured(words, known))
    asked = config.resolve(_as_measured(list(overrides), known))  # refuses what `train` refuses
    require_one_agent(asked)
    for path in (output, save):
        require_writable(path)
    if known is None:
        if save is not None and save.exists():
            # Before minutes of measuring.
            device = device_of(run)
            gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
            machines.require_same(machines.load(save), save, _processor(), usable_cores(), gpu)
        numbers = (
            measuring.sizes_for(run.num_envs, getattr(run.learner, "group_size", 1))
            if sizes is None
            else _sizes(sizes)
        )
        known = _measured(run, words, numbers, iterations)
    else:
        known = known.model_copy()
    on = None if run.device == "auto" else run.device.partition(":")[0]
    workload = known.workload(run.task_name, run.backend_name, run.learner_name, on)
    network, price = _network(known, latency, bandwidth), known.price if price is None else price
    known = known.model_copy(update={"price": price, "network": network})
    if save is not None:
        machines.save(known, save)
    found = predict(run, known, workload, marginal, network.link)
    notes = _notes(run, words, workload, machine)
    print("\n".join(lines(run, known, workload, found, marginal, notes, asked.ranks)))
    if save is not None:
        print(f"\nsaved the constants of this machine: {save}")
    if output is not None:
        _write(output, {"command": list(overrides), "plan": as_dict(found, known, workload)})


def plan_example(name: str, output: Path | None = None) -> None:
    """Print an example, the same formulas for a language model.

    Raises:
        ConfigError: there is no such example, or its file is invalid.
    """
    require_writable(output)
    example = examples.find(name)
    found = examples.results(example)
    print("\n".join(examples.lines(example, found)))
    if output is not None:
        _write(output, {"command": ["--example", name], "plan": found})


def _write(output: Path, content: dict[str, Any]) -> None:
    with replacing(output) as part:
        text = json.dumps({"schema": SCHEMA, **content}, indent=1, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")


def _sizes(words: str) -> list[int]:
    numbers = [word.strip() for word in words.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 1_048_576 for word in numbers) or len(set(numbers)) < 2:
        raise ConfigError(
            f"--sizes {quote(words)}: it takes two or more numbers of environments: --sizes 256,1024"
        )
    return sorted({int(word) for word in numbers})


def _as_measured(words: list[str], known: Machine | None) -> list[str]:
    """The words, with the simulator and the device that were measured where the user names none.

    A task's number of environments may depend on the device, and `device=auto` would be of this machine.
    """
    given = {measuring.key_of(w): w.partition("=")[2] for w in words}
    if known is None or "resume" in given:
        return words
    held = [w for w in known.workloads if w.task == given.get("task")]
    added = []
    for key in ("backend", "device"):
        if key in given:
            held = [w for w in held if getattr(w, key) == given[key]]
        elif len(values := {getattr(w, key) for w in held}) == 1:
            added.append(f"{key}={values.pop()}")
    return [*words, *added]


def _processor() -> str:
    return processor() or platform.processor() or platform.machine()


def _measured(run: Config, words: Sequence[str], sizes: Sequence[int], iterations: int) -> Machine:
    """This machine's constants."""

    def say(text: str) -> None:
        print(f"{text} ...", file=sys.stderr, flush=True)

    device = device_of(run)
    cuda = device.type == "cuda"
    memory = free_bytes(torch.device("cpu")) or 0
    gpu_memory = float(free_bytes(device) or 0) if cuda else None
    say("measuring the connection of two processes")
    network = networks.measure()
    workload = measuring.measure(run, words, sizes, iterations, say)
    return Machine(
        name=socket.gethostname(),
        processor=_processor(),
        cores=usable_cores(),
        memory=float(max(memory, 1)),
        gpu=torch.cuda.get_device_name(device) if cuda else None,
        gpu_memory=gpu_memory,
        network=network,
        workloads=[workload],
    )


def _network(known: Machine, latency: float | None, bandwidth: float | None) -> Network:
    """The machine's network, with what the user gives instead."""
    if latency is None and bandwidth is None:
        return known.network
    return Network(
        latency=known.network.latency if latency is None else latency * 1e-6,
        bandwidth=known.network.bandwidth if bandwidth is None else bandwidth * 1e9 / 8,
        source="given",
    )


def _notes(run: Config, words: Sequence[str], workload: Workload, machine: str | None) -> list[str]:
    """What makes the plan less certain."""
    notes = []
    measured = workload.measured
    if run.num_envs > 1.5 * max(measured.num_envs) or run.num_envs < min(measured.num_envs) / 1.5:
        shown = listing(map(str, measured.num_envs))
        notes.append(f"num_envs={run.num_envs} is beyond what was measured ({shown}): extrapolated")
    if measured.residual > 0.1:
        notes.append(
            f"the measured times leave the model by up to {100 * measured.residual:.0f} %: measure again when nothing "
            "else runs"
        )
    if measured.load is not None and machine is None and measured.load > 0.5:
        notes.append(
            f"load {measured.load:.1f}: other processes ran beside the measurement, whose times contain theirs"
        )
    if machine is not None:
        chosen = [f"task={run.task_name}", f"backend={run.backend_name}", f"learner={run.learner_name}"]
        try:
            base = config.resolve([*chosen, *workload.settings])
            differ = [
                key for key in config.changed(base, run) if key.partition(".")[0] not in measuring.IGNORED
            ]
        except ConfigError as error:
            raise ConfigError(f"the settings of machine {quote(machine, 120)}: {error}") from error
        if differ:
            notes.append(f"measured with other values of {listing(differ, 6)}: the times are of those")
    return notes


# ---------------------------------------------------------------------------------------- printing


def lines(
    run: Config,
    machine: Machine,
    workload: Workload,
    p: Prediction,
    marginal: float,
    notes: Sequence[str],
    asked: int = 0,
) -> list[str]:
    """The plan as text; `asked` is the number of ranks that the user has stated, 0 for none."""
    m = workload.measured
    on = machine.gpu if workload.device != "cpu" and machine.gpu else machine.processor
    steps = (
        f"{p.iterations} iteration{'s' * (p.iterations != 1)} ({p.iterations * p.samples / 1e6:.3g} M steps)"
    )
    what = f"{workload.task} on {workload.backend}, {workload.learner}"
    sizes = f"measured with {listing(map(str, m.num_envs))} environments, {m.iterations} iterations each"
    title = f"{what}, {p.num_envs} environments x {p.num_steps} steps an iteration, {steps}"
    out = [title, f"{machine.name}: {on}, {machine.cores} core{'s' if machine.cores > 1 else ''}; {sizes}"]
    out += [f"note: {note}" for note in notes]
    out += ["", *_memory(machine, p), "", *_time(machine, p), "", *_ranks(machine, p, marginal, asked)]
    return [*out, "", *_asynchronous(machine, workload, p)]


def _memory(machine: Machine, p: Prediction) -> list[str]:
    rows = [["memory", "", ""]]
    shortage = p.num_envs > p.most_envs
    rows.append(["  host", bytes_text(p.host_bytes), f"of {bytes_text(machine.memory)} free"])
    if p.gpu_bytes is not None and machine.gpu_memory is not None:
        rows.append(["  GPU", bytes_text(p.gpu_bytes), f"of {bytes_text(machine.gpu_memory)} free"])
    rows.append(["  one more environment", bytes_text(p.per_env), ""])
    rows.append(["  environments that fit", f"{p.most_envs:,}", f"in {100 * USABLE:.0f} % of what is free"])
    if shortage:
        what = "GPUs" if p.gpu_bytes is not None else "machines"
        rows.append(["  does not fit: needs", f"{p.device_count} {what}", "of this size, by memory"])
    return table(rows, "lrl", indent="")


def _time(machine: Machine, p: Prediction) -> list[str]:
    i = p.iteration
    rows = [["an iteration", "", ""]]
    for name in measuring.NAMES:
        seconds = getattr(i, name)
        rows.append([f"  {name}", seconds_text(seconds), f"{100 * seconds / i.total:>3.0f} %"])
    rows.append(["  total", seconds_text(i.total), f"{p.steps_per_second:,.0f} steps/s"])
    rows.append(["", "", ""])
    rows.append(["the run", "", ""])
    rows.append(["  time", seconds_text(p.seconds), f"of which {seconds_text(p.start)} to start and to end"])
    if machine.price is not None:
        rows.append(["  cost", _usd(machine.price * p.seconds / 3600), f"at {machine.price:g} USD an hour"])
    longer = "(simulate + infer)" if i.collect >= i.learn else "learn"
    rows.append(
        [
            "  ceiling of overlap",
            f"{p.ceiling:.2f} x",
            f"total / {longer}: what collecting while learning gains at most",
        ]
    )
    return table(rows, "lrl", indent="")


def _usd(amount: float) -> str:
    return f"{amount:.2f} USD" if amount >= 0.1 else f"{amount:.4f} USD"


def _ranks(machine: Machine, p: Prediction, marginal: float, asked: int) -> list[str]:
    net = machine.network
    link = f"{seconds_text(net.latency)}, {net.bandwidth * 8e-9:.3g} Gb/s, {net.source}"
    out = [f"ranks, each on a machine like this one (network: {link})"]
    head = ["ranks", "steps/s", "speed-up", "efficiency", "sums", "time"]
    rows = [[*head, *(["cost"] if machine.price is not None else [])]]
    for row in p.ranks:
        if row.ranks not in SHOWN and row != p.best and row.ranks != asked:
            continue
        mark = " <" if row == p.best else ""
        cells = [
            f"{row.ranks}{mark or '  '}",
            f"{p.samples / row.seconds:,.0f}",
            f"{row.speedup:.2f}",
            f"{100 * row.efficiency:.0f} %",
            f"{100 * row.reduce / row.seconds:.0f} %",
            seconds_text(p.on(row)),
        ]
        if machine.price is not None:
            cells.append(_usd(row.ranks * machine.price * p.on(row) / 3600))
        rows.append(cells)
    out += table(rows, "r" * len(rows[0]))
    cost = 1 / p.ranks[0].speedup - 1
    if p.best.speedup < 1:
        out.append(
            f"no number of ranks pays: none adds {100 * marginal:.0f} % of one process's speed with each"
        )
    else:
        pay = f"{p.best.ranks} ranks pay" if p.best.ranks > 1 else "one rank pays"
        out.append(f"{pay}: the most of which each adds {100 * marginal:.0f} % of one process's speed")
    if chosen := [row for row in p.ranks if row.ranks == asked]:
        out.append(f"ranks={asked}: {seconds_text(p.on(chosen[0]))}, {chosen[0].speedup:.2f} x one process")
    if cost > 0.005:
        out.append(
            f"ranks=1 takes {100 * cost:.0f} % longer than without ranks: a batch is computed in shards, for equal bits"
        )
    if p.gpu_bytes is None:
        out.append(f"on {machine.name} alone ranks gain nothing: one process uses all of its cores already")
    return out


def _asynchronous(machine: Machine, workload: Workload, p: Prediction) -> list[str]:
    pipe = p.pipeline
    actors = f"{pipe.actors} actor{'s' if pipe.actors > 1 else ''}"
    gain = p.asynchronous / p.steps_per_second
    out = [f"asynchronous, {actors} and a learner, each on a machine like this one"]
    rows = [
        ["  steps/s", f"{p.asynchronous:,.0f}", f"{gain:.2f} x one process, on {pipe.actors + 1} machines"],
        ["  collect", seconds_text(pipe.collect.mean), f"+- {100 * workload.spread.collect:.0f} %"],
        ["  learn", seconds_text(pipe.learn.mean), f"+- {100 * workload.spread.learn:.0f} %"],
        ["  weights and batch", seconds_text(pipe.transfer), "over that network"],
        ["  staleness", f"K = {p.bound}", "ceil(round trip / period) - 1: the least at which nothing waits"],
    ]
    out += table(rows, "lrl", indent="")
    if p.bound > 1:
        out.append("  this counts speed alone; older batches teach less, and K = 1 was best in docs/async.md")
    rows = [["K", *(str(k) for k in p.busy)]]
    rows.append(["learner busy", *(f"{100 * share:.0f} %" for share in p.busy.values())])
    return out + table(rows, "l" + "r" * len(p.busy))
