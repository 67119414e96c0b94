"""Slurm: an sbatch file for each step, and submit.sh, which submits them with their dependencies."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from robolearn.commands.workflow import scripts, slurm_rules
from robolearn.commands.workflow.steps import SUITE, Request, Step, steps_of

GRACE = 120
"""Seconds before its time limit at which a training is told to save a checkpoint."""


def files(request: Request) -> dict[str, str]:
    """The files by name, checked.

    Raises:
        ConfigError: Slurm would refuse one, for example because of an option that the user gave.
    """
    steps = steps_of(request)
    out = {f"{step.name}.sbatch": _sbatch(request, step) for step in steps}
    for name, text in out.items():
        slurm_rules.require_sbatch(text, name)
    out["submit.sh"] = _submit(request, steps)
    scripts.require_bash(out["submit.sh"], "submit.sh")
    return out


def test_only(folder: Path) -> str | None:
    """What `sbatch --test-only` says of the training, where Slurm is installed; None where it is not."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return None
    command = [sbatch, "--test-only", "train.sbatch"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["sbatch --test-only accepts train.sbatch"])[-1]


def _options(request: Request, step: Step) -> list[str]:
    train = step.name == "train"
    hours = request.hours if train else request.other_hours
    minutes = round(hours * 60)
    gpus = request.gpus if train else min(1, request.gpus)
    signal = "USR1" if _torchrun(request) else "TERM"
    given = [
        f"job-name={request.name}-{step.name}",
        f"nodes={request.nodes if train else 1}",
        "ntasks-per-node=1",
        f"cpus-per-task={request.cpus}",
        f"mem={request.memory_mib}M",
        *([f"gpus-per-node={gpus}"] if gpus else []),
        f"time={minutes // 60:02d}:{minutes % 60:02d}:00",
        "output=logs/%x-%j.out",
        "open-mode=append",
        "requeue",
        *([f"signal={signal}@{GRACE}"] if train else []),
    ]
    own = {option.partition("=")[0] for option in request.sbatch}
    kept = [option for option in given if option.partition("=")[0] not in own]
    return [f"#SBATCH --{option}" for option in (*kept, *request.sbatch)]


def _torchrun(request: Request) -> bool:
    return request.ranks > 1 and not request.asynchronous


def _sbatch(request: Request, step: Step) -> str:
    place = f"cd {shlex.quote(request.store)}" if request.store else 'cd "$SLURM_SUBMIT_DIR"'
    lines = ["#!/bin/bash", *_options(request, step), ""]
    # Since Slurm 22.05 srun does not take the number over from sbatch; without it a step has one core.
    srun = 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" '
    if request.image:  # pyxis
        image = shlex.quote(request.image)
        srun += f'--container-image={image} --container-mounts="$PWD:$PWD" --container-workdir="$PWD" '
    if step.name != "train":
        return scripts.text_of(
            [*lines, "set -euo pipefail", place, *scripts.head(request), *scripts.simple(step, srun)]
        )
    lines += ["set -uo pipefail", f"{place} || exit", *scripts.claim(request), *scripts.head(request)]
    lines += scripts.prepare(request)
    lines += ['[ -e "$final" ] && exit 0']
    more: dict[str, Any] = {}
    if _torchrun(request):
        lines.append(scripts.ENVIRONMENT)
        more = {"signals": "SIGTERM,SIGINT,SIGUSR1"}
    if request.nodes > 1:
        lines.append('head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
        more |= {
            "nodes": '"$SLURM_NNODES"',
            "job": '"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
            "endpoint": f'"$head:{scripts.PORT}"',
        }
    lines += [
        "",
        "# In the background: bash runs a trap only between commands, and `wait` ends at a signal.",
        f"{srun}{scripts.training(request, step, **more)} &",
        "pid=$!",
        "trap : TERM USR1",
        "rc=1",
        'until wait "$pid"; do',
        "  rc=$?",
        '  kill -0 "$pid" 2>/dev/null || break',
        "done",
        "",
        *(
            [
                "# torchrun exits with 1 whatever its ranks return: the last checkpoint tells whether all is done."
            ]
            if _torchrun(request)
            else []
        ),
        '[ -e "$final" ] && exit 0',
        scripts.give_up(),
        "# A job that exits in its grace time is not requeued by Slurm. Without a checkpoint it would fail again.",
        f'if [ -e run/latest.pt ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {request.retries} ]; then',
        f'  scontrol requeue "$SLURM_JOB_ID" && sleep {GRACE}',
        "fi",
        'exit "$rc"',
    ]
    return scripts.text_of(lines)


def _submit(request: Request, steps: list[Step]) -> str:
    lines = [
        "#!/bin/bash",
        f"# Submits {', '.join(s.name for s in steps)}. Each begins once the one before it has succeeded, and is",
        "# cancelled where that failed. After a failure run it again: what is done is skipped, and a training resumes.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        "mkdir -p logs",
    ]
    if request.store:
        names = shlex.join([SUITE, *(name for name, _ in request.files)])
        store = shlex.quote(request.store)
        lines += [f"mkdir -p {store}", f"cp {names} {store}"]
    for step in steps:
        after = ""
        if step.needs is not None:
            after = f' --kill-on-invalid-dep=yes --dependency=afterok:"$job_{step.needs}"'
        lines.append(f"job_{step.name}=$(sbatch --parsable{after} {step.name}.sbatch)")
        lines += [f"job_{step.name}=${{job_{step.name}%%;*}}", f'echo "{step.name}: job $job_{step.name}"']
    return scripts.text_of(lines)
