"""NVIDIA OSMO: one workflow file; a group for the training, and a task for each step after it."""

from __future__ import annotations

import shlex
from typing import Any

from robolearn.commands.workflow import osmo_rules, scripts
from robolearn.commands.workflow.steps import RUN, SUITE, Request, Step, require_image, steps_of
from robolearn.commands.workflow.yaml_text import dumped
from robolearn.errors import ConfigError, quote

AGAIN = 75
"""Exit code (EX_TEMPFAIL) after which OSMO schedules the training again."""
WORK = "/tmp/robolearn"
STORAGE = "64Gi"


def files(request: Request) -> dict[str, str]:
    """The files by name, checked.

    Raises:
        ConfigError: image or store are missing, or OSMO would refuse the file.
    """
    if not request.image:
        raise ConfigError("--engine osmo needs --image, a container with robolearn in it")
    if not request.store:
        raise ConfigError(
            "--engine osmo needs --store, where checkpoints and results go, such as s3://bucket/path"
        )
    require_image(request.image)
    if not osmo_rules.is_url(request.store):
        raise ConfigError(
            f"--store {quote(request.store, 120)}: write {osmo_rules.SCHEMES}, such as s3://bucket/path"
        )
    content: dict[str, Any] = {"version": 2, "workflow": _workflow(request)}
    for group in content["workflow"]["groups"]:
        for task in group["tasks"]:
            scripts.require_bash(task["files"][0]["contents"], f"the script of {task['name']}")
    head = (
        "# robolearn workflow: submit with  osmo workflow submit workflow.yaml\n"
        "# The training is scheduled again where it is preempted or fails after a checkpoint, and resumes from it.\n"
    )
    text = head + dumped(content)
    osmo_rules.require_workflow(text, "workflow.yaml")
    return {"workflow.yaml": text}


def _workflow(request: Request) -> dict[str, Any]:
    steps = steps_of(request)
    memory = f"{request.memory_mib}Mi"
    node = {"cpu": request.cpus, "memory": memory, "storage": STORAGE}
    hours = request.hours + 3 * request.other_hours
    groups = [_train(request, steps[0])]
    groups += [{"name": f"{step.name}-group", "tasks": [_task(request, step)]} for step in steps[1:]]
    return {
        "name": request.name,
        "timeout": {"exec_timeout": f"{round(hours * 60)}m"},
        "resources": {
            "default": {**node, "gpu": request.gpus},
            "after": {**node, "gpu": min(1, request.gpus)},
        },
        "groups": groups,
    }


def _train(request: Request, step: Step) -> dict[str, Any]:
    kept = f"{request.store.rstrip('/')}/{request.name}/{{{{workflow_id}}}}"
    tasks = []
    for i in range(request.nodes):
        lead = i == 0
        task: dict[str, Any] = {"name": f"train-{i}", "lead": lead, "image": request.image}
        task |= {"command": ["bash"], "args": ["/tmp/train.sh"]}
        task["inputs"] = [{"url": f"{kept}/{RUN}"}]
        if lead:
            task["outputs"] = [{"url": f"{kept}/trained"}]
            task["checkpoint"] = [{"path": f"{WORK}/{RUN}", "url": kept, "frequency": "5m"}]
        task["exitActions"] = {"COMPLETE": "0", "RESCHEDULE": str(AGAIN)}
        task["files"] = [
            {"path": "/tmp/train.sh", "contents": _script(request, step, lead)},
            *_packed(request, step),
        ]
        tasks.append(task)
    return {"name": "train", "ignoreNonleadStatus": False, "tasks": tasks}


def _script(request: Request, step: Step, lead: bool) -> str:
    lines = [
        "set -uo pipefail",
        *_enter(request, step),
        "# What an attempt before this one has saved.",
        "found=$(find {{input:0}} -name latest.pt -print -quit)",
        f'if [ -n "$found" ] && [ ! -e {RUN}/latest.pt ]; then cp -r "$(dirname "$found")" {RUN}; fi',
        *scripts.prepare(request),
    ]
    # All nodes must begin from the same checkpoint, which lies on each of them: OSMO restarts, torchrun does not.
    if request.ranks > 1 and not request.asynchronous:
        lines.append(scripts.ENVIRONMENT)
    endpoint = "{{host:train-0}}:" + str(scripts.PORT)
    command = scripts.training(
        request,
        step,
        nodes=str(request.nodes),
        job="{{workflow_id}}",
        endpoint=endpoint,
        restarts=0 if request.nodes > 1 else 3,
    )
    lines += ["rc=0", 'if [ ! -e "$final" ]; then', f"{command} || rc=$?", "fi"]
    if not lead:
        lines += ['[ "$rc" -eq 0 ] && exit 0', scripts.give_up(), f"exit {AGAIN}"]
        return scripts.text_of(lines)
    lines += [
        f'if [ -e "$final" ]; then mkdir -p {{{{output}}}} && cp -r {RUN} {{{{output}}}}/ && exit 0; fi',
        scripts.give_up(),
        f"attempts=$(cat {RUN}/attempts 2>/dev/null || echo 0)",
        f'if [ -e {RUN}/latest.pt ] && [ "$attempts" -lt {request.retries} ]; then',
        f"  echo $((attempts + 1)) > {RUN}/attempts",
        f"  exit {AGAIN}",
        "fi",
        'exit "$((rc == 0 ? 1 : rc))"',
    ]
    return scripts.text_of(lines)


def _enter(request: Request, step: Step) -> list[str]:
    names = [file["path"].removeprefix("/tmp/") for file in _packed(request, step)]
    copies = [f"cp {shlex.quote(f'/tmp/{name}')} {WORK}/" for name in names]
    return [f"mkdir -p {WORK} && cd {WORK} || exit", *copies, *scripts.head(request)]


def _packed(request: Request, step: Step) -> list[dict[str, str]]:
    """The workflow's own files, as far as a step needs them."""
    files = [*([(SUITE, request.suite)] if step.name == "simulate" else []), *request.files]
    return [{"path": f"/tmp/{name}", "contents": content} for name, content in files]


def _task(request: Request, step: Step) -> dict[str, Any]:
    before = "train-0" if step.needs == "train" else str(step.needs)
    passed = ["run", "evaluation", "bundle", "simulation", "done"]
    lines = [
        "set -euo pipefail",
        *_enter(request, step),
        "cp -r {{input:0}}/. .",
        *scripts.simple(step),
        "mkdir -p {{output}}",
        f"for folder in {' '.join(passed)}; do",
        '  if [ -e "$folder" ]; then cp -r "$folder" {{output}}/; fi',
        "done",
    ]
    kept = f"{request.store.rstrip('/')}/{request.name}/{{{{workflow_id}}}}/{step.name}"
    return {
        "name": step.name,
        "image": request.image,
        "resource": "after",
        "command": ["bash"],
        "args": [f"/tmp/{step.name}.sh"],
        "inputs": [{"task": before}],
        "outputs": [{"url": kept}],
        "files": [
            {"path": f"/tmp/{step.name}.sh", "contents": scripts.text_of(lines)},
            *_packed(request, step),
        ],
    }
