"""The steps as bash. Every script can run again: it skips what is done and resumes a training from its checkpoint."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence

from robolearn.commands.exits import BAD_INPUT
from robolearn.commands.workflow.steps import BAD_RESULT, CLAIM, DONE, RUN, Request, Step
from robolearn.config import FILE_NAME
from robolearn.errors import ConfigError, quote

PORT = 29400
"""Port of the rendezvous on the first node."""

ENVIRONMENT = "export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""One thread a rank: more would be slower beside each other, and sum in another order. Without the second variable, a
group that torchrun restarts may read addresses of the processes before (torch 2.13)."""

RENDEZVOUS = "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
"""A lost node is noticed after 3 s instead of 15."""

CHOOSE = (
    f'if [ -e {RUN}/latest.pt ]; then exec robolearn train resume={RUN} "$@"; fi; '
    f'exec robolearn train output={RUN} "$@"'
)
"""Starts or resumes; each rank does it anew when torchrun restarts it."""


def head(request: Request) -> list[str]:
    """Lines that begin a script."""
    return [*request.setup]


def prepare(request: Request) -> list[str]:
    """Lines before a training: nothing to do where it is complete; a run without a checkpoint starts again."""
    return [
        "# What a complete training leaves; change it together with max_iterations.",
        f"final={request.final}",
        f"if [ ! -e {RUN}/latest.pt ] && [ -e {RUN}/{FILE_NAME} ]; then rm -rf {RUN}; fi",
    ]


def claim(request: Request) -> list[str]:
    """Lines that note what the folder is for; with the results of another workflow they end with exit code 2."""
    known = f'"$(cat {CLAIM} 2>/dev/null)"'
    return [
        f"if [ -e {RUN} ] && [ {known} != {request.digest} ]; then",
        '  echo "$PWD holds the results of another workflow: use another --output, --store or --name" >&2',
        f"  exit {BAD_INPUT}",
        "fi",
        f"echo {request.digest} > {CLAIM}",
    ]


def training(
    request: Request,
    step: Step,
    nodes: str = "1",
    job: str = "",
    endpoint: str = "",
    restarts: int = 3,
    signals: str = "",
) -> str:
    """The command of the training, without what runs it on the nodes.

    Args:
        request: the workflow.
        step: its training.
        nodes: number of nodes, as a word of bash.
        job: name of the rendezvous, which differs between attempts.
        endpoint: host and port of the rendezvous; empty on one node.
        restarts: times that torchrun starts all ranks again.
        signals: further signals that torchrun hands to the ranks.
    """
    settings = shlex.join(step.words[1:])
    choose = f"bash -c '{CHOOSE}' train"
    if request.ranks == 1 or request.asynchronous:
        return f"{choose} {settings}"
    rows = ["torchrun --standalone"]
    if request.nodes > 1:
        rows = [
            f"torchrun --nnodes={nodes} --rdzv-id={job} --rdzv-backend=c10d --rdzv-endpoint={endpoint}",
            RENDEZVOUS,
        ]
    each = f"--nproc-per-node={request.per_node} --max-restarts={restarts}"
    rows.append(each + (f" --signals-to-handle={signals}" if signals else ""))
    rows += ["--no-python", f"{choose} {settings}"]
    return " \\\n  ".join(rows)


def give_up() -> str:
    """A line that ends a script with `rc` where another attempt would end in the same way."""
    codes = "|".join(str(code) for code in BAD_RESULT)
    return f'case "$rc" in {codes}) exit "$rc" ;; esac'


def simple(step: Step, run: str = "") -> list[str]:
    """Lines of a step that is not the training, skipped where it is done; `run` precedes the command."""
    return [
        f"if [ -e {DONE}/{step.mark} ]; then echo '{step.name} is done'; exit 0; fi",
        f"mkdir -p {DONE} {step.folder}" if step.name == "simulate" else f"mkdir -p {DONE}",
        f"{run}{step.command}",
        f"touch {DONE}/{step.mark}",
    ]


def require_bash(text: str, what: str) -> None:
    """Check the syntax of a script with `bash -n`.

    Raises:
        ConfigError: bash refuses it; names script and line.
    """
    bash = shutil.which("bash")
    if bash is None:
        return
    done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[0].removeprefix(f"{bash}: ")
        raise ConfigError(f"{quote(what, 120)} is no script of bash: {said.removeprefix('bash: ')}")


def text_of(lines: Sequence[str]) -> str:
    """Lines as a file."""
    return "\n".join(lines) + "\n"
