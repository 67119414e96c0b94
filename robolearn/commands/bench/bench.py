"""`robolearn bench`: how fast this machine simulates, acts and learns."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.commands.bench.rates import RATES, SHARES, measure, memory
from robolearn.config.schema import Config
from robolearn.core.env import Env
from robolearn.core.threads import usable_cores
from robolearn.errors import ConfigError, MissingError, RunFailed, quote
from robolearn.files import replacing
from robolearn.learners.learner import Learner
from robolearn.runtime.measure import processor
from robolearn.training import checkpoint
from robolearn.training.build import make_env
from robolearn.training.host_memory import TOO_LARGE, enough_memory, process_bytes
from robolearn.training.train import make_learner, set_threads

SCHEMA = 1
"""Version of what `--json` writes."""

_LIBRARIES = {
    "torch": "torch",
    "mujoco": "mujoco",
    "mujoco_warp": "mujoco-warp",
    "warp": "warp-lang",
    "rsl_rl": "rsl-rl-lib",
}
"""Modules whose version is reported where they are imported, with their packages."""


def bench(
    overrides: list[str],
    rounds: int = 7,
    warmup: int = 3,
    sizes: str | None = None,
    output: Path | None = None,
) -> None:
    """Measure the rates, memory use and phases of a training run, and print them.

    Args:
        overrides: settings of a training run; with `resume` its policy is measured.
        rounds: number of measurement rounds.
        warmup: training iterations before the first round.
        sizes: numbers of environments as "1024,4096"; each is measured in its own process, so that one that does not
            fit into memory does not end the others, and memory use is separate.
        output: file for the results, as JSON.

    Raises:
        ConfigError: a setting or a size is invalid, or no size fits into memory.
        RunFailed: a measured run failed.
    """
    numbers = _sizes(sizes)
    runs = [config.resolve([*overrides, *([] if n is None else [f"num_envs={n}"])]) for n in numbers]
    require_writable(output)
    if sizes is None:
        machine, row = _measure(runs[0], overrides, rounds, warmup)
        print("\n".join((title(machine), *_whole(row))))
        rows = [row]
    else:
        options = ["--rounds", str(rounds), "--warmup", str(warmup)]
        machine, rows = {}, []
        for run in runs:
            found, row = _in_subprocess([*overrides, f"num_envs={run.num_envs}", *options], run.num_envs)
            rows.append(row)
            if found and not machine:
                print(title(found))
            print("\n".join(_lines(row, header=bool(found) and not machine)), flush=True)
            machine = machine or found
        if not machine:
            raise ConfigError(f"no size fits: num_envs={rows[0]['num_envs']} {rows[0]['error']}")
    if output is not None:
        write(output, overrides, machine, rows)


def require_writable(output: Path | None) -> None:
    """Check, before measuring, that the output file is not a folder.

    Raises:
        ConfigError: it is.
    """
    if output is not None and output.is_dir():
        raise ConfigError(f"cannot write {quote(str(output), 120)}: it is a folder")


def write(output: Path, overrides: list[str], machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the results as JSON."""
    content = {"schema": SCHEMA, "command": overrides, "machine": machine, "results": rows}
    with replacing(output) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _sizes(words: str | None) -> list[int | None]:
    if words is None:
        return [None]
    numbers = [word.strip() for word in words.split(",")]
    if not all(word.isdecimal() and len(word) < 10 and int(word) > 0 for word in numbers):
        raise ConfigError(
            f"--sizes {quote(words)}: it takes numbers of environments, such as --sizes 1024,4096"
        )
    return [int(word) for word in numbers]


# ---------------------------------------------------------------------------------------- measuring


def _measure(
    run: Config, overrides: list[str], rounds: int, warmup: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Description of the machine, and the results at this size."""
    set_threads(run)
    before = process_bytes()
    # With the curricula of a training: that is what is measured, and what a checkpoint has levels of.
    with enough_memory(run.num_envs), closing(make_env(run, training=True)) as env:
        learner = warmed_up(run, overrides, env, warmup)
        found = measure(env, learner, rounds)
        row = {"num_envs": env.num_envs, **asdict(found), "memory": memory(env, before)}
        return about(run, env, learner, rounds, warmup), row


def warmed_up(run: Config, overrides: list[str], env: Env, iterations: int) -> Learner:
    """The run's learner, resumed if the run is, after some training iterations."""
    learner = make_learner(run, env)
    if run.resume is not None:
        content = checkpoint.load(checkpoint.find_run(run.resume)[1])
        checkpoint.restore(content, learner, env, config.resume_changes(overrides, run))
    for _ in range(iterations):
        learner.iterate(env)
    return learner


def _in_subprocess(words: list[str], num_envs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the command in another process: (machine, results), or ({}, error) where it does not fit into memory.

    Raises:
        ConfigError, MissingError, RunFailed, KeyboardInterrupt: the process ended with their exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "robolearn.cli", "bench", *words, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and path.exists():
            sys.stderr.write(done.stderr)  # warnings
            content = json.loads(path.read_text(encoding="utf-8"))
            return content["machine"], content["results"][0]
    message = (done.stderr.strip().splitlines() or [""])[-1].removeprefix("robolearn: ")
    if done.returncode == -signal.SIGKILL:  # by Linux, when memory runs out
        return {}, {"num_envs": num_envs, "error": TOO_LARGE}
    # The ConfigErrors about memory have this form.
    if done.returncode == 2 and message.startswith(f"num_envs={num_envs} ") and " needs " in message:
        return {}, {"num_envs": num_envs, "error": message.removeprefix(f"num_envs={num_envs} ")}
    errors = {2: ConfigError, 3: MissingError, 4: RunFailed, 130: KeyboardInterrupt}
    if done.returncode in errors:
        raise errors[done.returncode](message)
    raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")


def about(run: Config, env: Env, learner: Learner, rounds: int, warmup: int) -> dict[str, Any]:
    """Description of the machine and of the measured run."""
    cpu = processor() or platform.processor() or platform.machine()
    return {
        "task": run.task_name,
        "backend": run.backend_name,
        "learner": run.learner_name,
        "device": torch.cuda.get_device_name(env.device) if env.device.type == "cuda" else cpu,
        "cpu": cpu,
        "cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "precision": getattr(learner, "precision", "fp32"),
        "substeps": env.substeps,
        "timestep": env.backend.capabilities.timestep,
        "versions": {
            package: importlib.metadata.version(package)
            for module, package in _LIBRARIES.items()
            if module in sys.modules
        },
        "rounds": rounds,
        "warmup": warmup,
    }


# ---------------------------------------------------------------------------------------- printing


def title(machine: dict[str, Any]) -> str:
    """The content of `about` in one line."""
    m = machine
    on = m["device"] if m["device"] == m["cpu"] else f"{m['device']}, {m['cpu']}"
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    return (
        f"{m['task']} on {m['backend']}, {on}, {m['cores']} cores, {m['torch_threads']} torch threads, "
        f"{m['precision']}, {versions}, medians of {m['rounds']} rounds after {m['warmup']} iterations, "
        f"{m['substeps']} substeps of {m['timestep']:g} s"
    )


def _whole(row: dict[str, Any]) -> list[str]:
    """All results of one size."""
    lines = [f"{row['num_envs']} environments, {row['steps']} steps an iteration", ""]
    lines.append(f"{'':<16}{'steps/s':>12}{'lowest':>12}{'highest':>12}{'of raw':>9}")
    for name, spread in row["rates"].items():
        numbers = "".join(f"{spread[key]:>12,.0f}" for key in ("median", "low", "high"))
        lines.append(f"{RATES[name]:<16}{numbers}{row['of_raw'][name]:>9.3f}")
    lines += ["", f"{'phase':<16}{'of the time':>12}"]
    lines += [f"{name:<16}{100 * row['phases'][name]:>10.1f} %" for name in SHARES]
    lines += [f"{'overlap ceiling':<16}{row['overlap_ceiling']:>12.2f}", "", f"{'memory':<16}{'MiB':>12}"]
    lines += [
        f"{name:<16}{size / 2**20:>12,.1f}" for name, size in row["memory"].items() if name != "per_env"
    ]
    lines.append(f"{'an environment':<16}{row['memory']['per_env'] / 2**20:>12,.3f}")
    return lines


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """The main results of one size, by column."""
    cells = {"envs": str(row["num_envs"])}
    cells |= {RATES[name]: f"{spread['median']:,.0f}" for name, spread in row["rates"].items()}
    cells["learning/raw"] = f"{row['of_raw']['learning']:.3f}"
    cells |= {f"{name} %": f"{100 * row['phases'][name]:.1f}" for name in SHARES}
    memory = row["memory"]
    peaks = {"GPU MiB": memory["torch_reserved"] + memory.get("warp", 0.0)} if "device" in memory else {}
    peaks |= {"peak MiB": memory["process"]}
    cells |= {name: f"{size / 2**20:,.0f}" for name, size in peaks.items()}
    cells["KiB/env"] = f"{memory['per_env'] / 2**10:,.0f}"
    return cells


def _lines(row: dict[str, Any], header: bool) -> list[str]:
    """The main results of one size in a line, after a line of column names if `header`."""
    if "error" in row:
        return [f"{row['num_envs']:>9}  {row['error']}"]
    cells = _cells(row)
    widths = [max(9, len(name)) for name in cells]
    names = [list(cells)] if header else []
    return [
        "  ".join(f"{x:>{width}}" for x, width in zip(xs, widths, strict=True))
        for xs in [*names, [*cells.values()]]
    ]
