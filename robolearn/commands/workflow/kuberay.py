"""KubeRay: a RayJob for each step, a ConfigMap with their scripts, and submit.sh, which runs them in order."""

from __future__ import annotations

import json
import shlex
from typing import Any

from robolearn.commands.workflow import kuberay_rules, scripts
from robolearn.commands.workflow.steps import SUITE, Request, Step, require_image, steps_of
from robolearn.commands.workflow.yaml_text import dumped
from robolearn.errors import ConfigError, quote

RAY = "2.60.0"
FILES, STORE = "/etc/robolearn", "/store"
"""Where scripts and the volume are mounted."""
KEPT = 600
"""Seconds that a finished job stays to be looked at."""


def files(request: Request) -> dict[str, str]:
    """The files by name, checked.

    Raises:
        ConfigError: image or store are missing, or Kubernetes would refuse a file.
    """
    if not request.image:
        raise ConfigError("--engine kuberay needs --image, a container with robolearn and Ray in it")
    if not request.store:
        raise ConfigError(
            "--engine kuberay needs --store, a persistent volume claim that all pods can write (ReadWriteMany)"
        )
    require_image(request.image)
    if not kuberay_rules.is_name(request.store):
        raise ConfigError(
            f"--store {quote(request.store, 120)} is no name of a volume claim: up to 253 lower-case letters, digits, "
            "- and ., with a letter or digit first and last"
        )
    if request.nodes > 1 and not request.asynchronous:
        raise ConfigError(
            f"--engine kuberay --nodes {request.nodes} places actors and a learner: add mode=async placement=FILE, or "
            "use --engine slurm or osmo for ranks on several nodes"
        )
    steps = steps_of(request)
    scripted = {f"{step.name}.sh": _script(request, step) for step in steps}
    for name, text in scripted.items():
        scripts.require_bash(text, name)
    data = {**scripted, SUITE: request.suite, **dict(request.files)}
    maps = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{request.name}-files"},
        "data": data,
    }
    out = {"files.yaml": dumped(maps)}
    out |= {f"{step.name}.yaml": dumped(_job(request, step)) for step in steps}
    for name, text in out.items():
        kuberay_rules.require_manifest(text, name)
    out["submit.sh"] = _submit(request, steps)
    scripts.require_bash(out["submit.sh"], "submit.sh")
    return out


def _job(request: Request, step: Step) -> dict[str, Any]:
    train = step.name == "train"
    gpus = request.gpus if train else min(1, request.gpus)
    hours = request.hours if train else request.other_hours
    cluster: dict[str, Any] = {"rayVersion": RAY, "authOptions": {"mode": "token"}}
    spec: dict[str, Any] = {"entrypoint": f"bash {FILES}/{step.name}.sh"}
    if train:
        # The head only schedules; the training runs on the worker that offers the resource learner.
        spec["entrypointResources"] = json.dumps({"learner": 1})
        cluster["headGroupSpec"] = {
            "rayStartParams": {"num-cpus": "0"},
            "template": _template(request, "head", 0, cpus=2, memory_mib=4096),
        }
        learner = {"CPU": str(request.cpus), "learner": "1", **({"GPU": str(gpus)} if gpus else {})}
        cluster["workerGroupSpecs"] = [_workers(request, "learner", 1, gpus, learner)]
        if request.nodes > 1:
            sims = {"CPU": str(request.cpus), **({"GPU": str(gpus)} if gpus else {})}
            cluster["workerGroupSpecs"].append(_workers(request, "sim", request.nodes - 1, gpus, sims))
    else:
        cluster["headGroupSpec"] = {
            "rayStartParams": {"num-cpus": str(request.cpus), **({"num-gpus": str(gpus)} if gpus else {})},
            "template": _template(request, "head", gpus),
        }
    if gpus:
        spec["entrypointNumGpus"] = float(gpus)
    spec |= {
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": KEPT,
        "activeDeadlineSeconds": round(hours * 3600),  # of each attempt: KubeRay counts anew when it retries
        "backoffLimit": request.retries if train else 1,
        "rayClusterSpec": cluster,
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": f"{request.name}-{step.name}", "labels": {"robolearn/workflow": request.name}},
        "spec": spec,
    }


def _workers(request: Request, role: str, count: int, gpus: int, offers: dict[str, str]) -> dict[str, Any]:
    return {
        "groupName": role,
        "replicas": count,
        "minReplicas": count,
        "maxReplicas": count,
        "rayStartParams": {},
        "labels": {"role": role},
        "resources": offers,
        "template": _template(request, "worker", gpus),
    }


def _template(
    request: Request, name: str, gpus: int, cpus: int | None = None, memory_mib: int | None = None
) -> dict[str, Any]:
    limits: dict[str, Any] = {
        "cpu": str(cpus or request.cpus),
        "memory": f"{memory_mib or request.memory_mib}Mi",
    }
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    container = {
        "name": name,
        "image": request.image,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [
            {"name": "store", "mountPath": STORE},
            {"name": "files", "mountPath": FILES},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "store", "persistentVolumeClaim": {"claimName": request.store}},
        {"name": "files", "configMap": {"name": f"{request.name}-files"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"terminationGracePeriodSeconds": 120, "containers": [container], "volumes": volumes}}


def _script(request: Request, step: Step) -> str:
    names = [SUITE, *(name for name, _ in request.files)]
    root = f"{STORE}/{request.name}"
    enter = [
        f"mkdir -p {root} && cd {root} || exit",
        *(f"cp {shlex.quote(f'{FILES}/{name}')} ." for name in names),
    ]
    enter += scripts.head(request)
    if step.name != "train":
        return scripts.text_of(["set -euo pipefail", *enter, *scripts.simple(step)])
    lines = ["set -uo pipefail", *enter, *scripts.claim(request), *scripts.prepare(request)]
    lines.append('[ -e "$final" ] && exit 0')
    if request.ranks > 1 and not request.asynchronous:
        lines.append(scripts.ENVIRONMENT)
    lines += [scripts.training(request, step), '[ -e "$final" ]']
    return scripts.text_of(lines)


def _submit(request: Request, steps: list[Step]) -> str:
    lines = [
        "#!/bin/bash",
        "# Runs the steps one after the other. After a failure run it again: what is done is skipped, and a training",
        "# resumes.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        "kubectl apply -f files.yaml",
        "run() {",
        "  # A job that has ended does not start again.",
        '  kubectl delete --ignore-not-found -f "$1.yaml"',
        '  kubectl apply -f "$1.yaml"',
        f'  job="rayjob/{request.name}-$1"',
        "  while true; do",
        '    status=$(kubectl get "$job" -o jsonpath="{.status.jobDeploymentStatus}")',
        '    case "$status" in',
        '      Complete) echo "$1: done"; return 0 ;;',
        '      Failed|ValidationFailed) echo "$1: failed; kubectl describe $job" >&2; return 1 ;;',
        "    esac",
        "    sleep 10",
        "  done",
        "}",
    ]
    return scripts.text_of([*lines, *(f"run {step.name}" for step in steps)])
