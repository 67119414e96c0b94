"""The rules that check a workflow's files: a fault planted in a file is named, and documented forms are taken."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from robolearn.cli import main
from robolearn.commands.workflow import kuberay_rules, osmo_rules, slurm_rules, steps
from robolearn.errors import ConfigError
from tests.commands.workflows import needs_bash, written

# ---------------------------------------------------------------------------------------- planted faults: OSMO


def osmo_file(tmp_path: Path) -> dict[str, Any]:
    text = (written("osmo", tmp_path, "--nodes", "2") / "workflow.yaml").read_text()
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def train(content: dict[str, Any], task: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = content["workflow"]["groups"][0]["tasks"][task]
    return found


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        node: Any = content
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def remove(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        node: Any = content
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


FIRST = ("workflow", "groups", 0, "tasks", 0)
OSMO_FAULTS = {
    "an unknown field of a task": (put(*FIRST, "imgae", value="x"), "imgae"),
    "an unknown field of the workflow": (put("workflow", "retries", value=3), "retries"),
    "a field at the top": (put("jobs", value=[]), "jobs"),
    "the dropped dataset": (put(*FIRST, "outputs", value=[{"dataset": {"name": "x"}}]), "dataset"),
    "a wrong type": (put("workflow", "resources", "default", "gpu", value="four"), "resources.default.gpu"),
    "a command that is text": (put(*FIRST, "command", value="bash"), "command"),
    "no image": (remove(*FIRST, "image"), "image"),
    "no command": (put(*FIRST, "command", value=[]), "command"),
    "a duplicate task": (put("workflow", "groups", 0, "tasks", 1, "name", value="train-0"), "train-0"),
    "a name that differs by - and _": (
        put("workflow", "groups", 0, "tasks", 1, "name", value="TRAIN_0"),
        "TRAIN_0",
    ),
    "a name with a dot": (put(*FIRST, "name", value="train.0"), "name"),
    "a reserved name": (put(*FIRST, "name", value="OSMO_ctrl"), "osmo-ctrl"),
    "no lead": (put(*FIRST, "lead", value=False), "lead"),
    "two leads": (put("workflow", "groups", 0, "tasks", 1, "lead", value=True), "lead"),
    "a bad time": (put("workflow", "timeout", "exec_timeout", value="8 hours"), "8 hours"),
    "a time without a unit that exists": (put(*FIRST, "checkpoint", 0, "frequency", value="5min"), "5min"),
    "a frequency that is a truth value": (put(*FIRST, "checkpoint", 0, "frequency", value=True), "frequency"),
    "a bad size": (put("workflow", "resources", "default", "memory", value="64 gigs"), "64 gigs"),
    "a storage that does not exist": (
        put(*FIRST, "checkpoint", 0, "url", value="https://x/y"),
        "https://x/y",
    ),
    "bad exit codes": (put(*FIRST, "exitActions", "RESCHEDULE", value="75-"), "75-"),
    "an exit code of OSMO's own": (put(*FIRST, "exitActions", "RESCHEDULE", value="3006"), "3006"),
    "an exit code twice": (put(*FIRST, "exitActions", "FAIL", value="70-80"), "75"),
    "an unknown action": (put(*FIRST, "exitActions", "RETRY", value="1"), "RETRY"),
    "an input of no task": (
        put("workflow", "groups", 1, "tasks", 0, "inputs", 0, "task", value="tain-0"),
        "tain-0",
    ),
    "an input that comes later": (put(*FIRST, "inputs", value=[{"task": "export"}]), "export"),
    "an unknown resource": (put(*FIRST, "resource", value="big"), "big"),
    "a file twice": (
        put(*FIRST, "files", value=[{"path": "/a", "contents": ""}, {"path": "/a", "contents": ""}]),
        "/a",
    ),
    "a file in OSMO's folder": (put(*FIRST, "files", 0, "path", value="/osmo/x"), "/osmo/x"),
    "tasks and groups": (
        put("workflow", "tasks", value=[{"name": "a", "image": "i", "command": ["b"]}]),
        "groups",
    ),
    "another version": (put("version", value=3), "version"),
    "a token with spaces": (put(*FIRST, "args", value=["{{ output }}"]), "{{ output }}"),
    "a token that is none": (put(*FIRST, "args", value=["{{inputs:0}}"]), "inputs:0"),
    "a host that is none": (put(*FIRST, "args", value=["{{host:train-9}}"]), "train-9"),
}


@pytest.mark.parametrize("fault", OSMO_FAULTS)
def test_a_fault_planted_in_an_osmo_workflow_is_named(tmp_path, fault):
    content = osmo_file(tmp_path)
    osmo_rules.require_workflow(yaml.safe_dump(content), "good.yaml")
    change, offender = OSMO_FAULTS[fault]
    change(content)
    with pytest.raises(ConfigError) as caught:
        osmo_rules.require_workflow(yaml.safe_dump(content), "bad.yaml")
    assert offender in str(caught.value)
    assert "bad.yaml" in str(caught.value)


# ---------------------------------------------------------------------------------------- planted faults: KubeRay

HEAD = ("spec", "rayClusterSpec", "headGroupSpec")
WORKERS = ("spec", "rayClusterSpec", "workerGroupSpecs")
POD = (*HEAD, "template", "spec")
KUBERAY_FAULTS = {
    "an unknown field": (put("spec", "entryPoint", value="x"), "entryPoint"),
    "an unknown field of a container": (put(*POD, "containers", 0, "img", value="x"), "img"),
    "an unknown field of a volume": (put(*POD, "volumes", 0, "nfs", value={}), "nfs"),
    "a wrong type": (put("spec", "backoffLimit", value="9"), "spec.backoffLimit"),
    "a number of CPUs that is no text": (put(*HEAD, "rayStartParams", "num-cpus", value=0), "num-cpus"),
    "another kind": (put("kind", value="RayJobs"), "kind"),
    "another version": (put("apiVersion", value="ray.io/v1alpha1"), "apiVersion"),
    "no head": (remove(*HEAD), "headGroupSpec"),
    "no least number of workers": (remove(*WORKERS, 0, "minReplicas"), "minReplicas"),
    "too few workers": (put(*WORKERS, 0, "replicas", value=0), "learner"),
    "a group twice": (
        lambda content: content["spec"]["rayClusterSpec"]["workerGroupSpecs"].append(
            copy.deepcopy(content["spec"]["rayClusterSpec"]["workerGroupSpecs"][0])
        ),
        "learner",
    ),
    "a bad quantity": (put(*POD, "containers", 0, "resources", "limits", "memory", value="4 GB"), "4 GB"),
    "a mount of no volume": (put(*POD, "containers", 0, "volumeMounts", 0, "name", value="stroe"), "stroe"),
    "a name in capitals": (put("metadata", "name", value="Train"), "metadata.name"),
    "a name that is too long": (put("metadata", "name", value="a" * 48), "aaaa"),
    "a token mode that is none": (
        put("spec", "rayClusterSpec", "authOptions", "mode", value="password"),
        "password",
    ),
    "a submission that is none": (put("spec", "submissionMode", value="Job"), "submissionMode"),
    "a lifetime without an end": (
        put("spec", "shutdownAfterJobFinishes", value=False),
        "ttlSecondsAfterFinished",
    ),
    "no containers": (put(*POD, "containers", value=[]), "containers"),
    "an image that is none": (put(*POD, "containers", 0, "image", value='a:1"; x'), "image"),
    "a claim that is none": (
        put(*POD, "volumes", 0, "persistentVolumeClaim", "claimName", value="A b"),
        "A b",
    ),
    "a name with two dots": (put("metadata", "name", value="a..b"), "a..b"),
}


@pytest.mark.parametrize("fault", KUBERAY_FAULTS)
def test_a_fault_planted_in_a_rayjob_is_named(tmp_path, fault):
    content = yaml.safe_load((written("kuberay", tmp_path) / "train.yaml").read_text())
    kuberay_rules.require_manifest(yaml.safe_dump(content), "good.yaml")
    change, offender = KUBERAY_FAULTS[fault]
    change(content)
    with pytest.raises(ConfigError) as caught:
        kuberay_rules.require_manifest(yaml.safe_dump(content), "bad.yaml")
    assert offender in str(caught.value)


@pytest.mark.skipif("KUBERAY_CRD" not in os.environ, reason="KUBERAY_CRD names no ray.io_rayjobs.yaml")
def test_rayjobs_fit_the_whole_published_schema(tmp_path):
    from scripts.check_workflow import check_manifest, schema_of

    schema = schema_of(Path(os.environ["KUBERAY_CRD"]))
    folder = written("kuberay", tmp_path, "--gpus-per-node", "1")
    for step in steps.STEPS:
        assert check_manifest(folder / f"{step}.yaml", schema) is None
    bad = tmp_path / "bad.yaml"
    bad.write_text((folder / "train.yaml").read_text().replace("backoffLimit", "backofLimit"))
    assert "backofLimit" in (check_manifest(bad, schema) or "")


# ---------------------------------------------------------------------------------------- planted faults: Slurm

SLURM_FAULTS = {
    "an unknown option": ("--gpus-per-node=1", "--gpu-per-node=1", "--gpu-per-node"),
    "an unknown short option": ("--gpus-per-node=1", "-Z 3", "-Z"),
    "a bad time": ("--time=24:00:00", "--time=24h", "24h"),
    "a bad time with days": ("--time=24:00:00", "--time=1-0-0", "1-0-0"),
    "bad memory": ("--mem=32768M", "--mem=32GB", "32GB"),
    "a bad number of nodes": ("--nodes=1", "--nodes=one", "one"),
    "no value": ("--nodes=1", "--nodes", "--nodes"),
    "a value too many": ("--requeue", "--requeue=yes", "--requeue"),
    "a bad signal": ("--signal=TERM@120", "--signal=TERM,120", "TERM,120"),
    "a bad mode": ("--open-mode=append", "--open-mode=add", "add"),
    "an option twice": ("--requeue", "--nodes=3", "--nodes"),
    "no option": ("--requeue", "requeue", "requeue"),
    "a bad dependency": ("--requeue", "--dependency=afterokay:12", "afterokay"),
    "no interpreter": ("#!/bin/bash", "# bash", "#!/bin/bash"),
    "an option after a command": ("set -uo pipefail", "set -u\n#SBATCH --exclusive", "#SBATCH"),
}


@pytest.mark.parametrize("fault", SLURM_FAULTS)
def test_a_fault_planted_in_an_sbatch_file_is_named(tmp_path, fault):
    text = (written("slurm", tmp_path, "--gpus-per-node", "1") / "train.sbatch").read_text()
    old, new, offender = SLURM_FAULTS[fault]
    assert old in text
    with pytest.raises(ConfigError) as caught:
        slurm_rules.require_sbatch(text.replace(old, new), "bad.sbatch")
    assert offender in str(caught.value)
    assert "line" in str(caught.value)


@needs_bash
def test_a_script_that_bash_refuses_is_found(tmp_path):
    text = (written("slurm", tmp_path) / "train.sbatch").read_text()
    with pytest.raises(ConfigError, match=r"bad.sbatch"):
        slurm_rules.require_sbatch(text.replace("\nfi\n", "\n"), "bad.sbatch")


@pytest.mark.parametrize("time", ["30", "30:00", "8:00:00", "1-12", "1-12:30", "1-12:30:00", "UNLIMITED"])
def test_every_documented_form_of_a_time_is_taken(time):
    slurm_rules.require_sbatch(f"#!/bin/bash\n#SBATCH --time={time}\n", "x")


def test_short_options_and_values_after_a_space_are_taken():
    text = "#!/bin/bash\n#SBATCH -N 2 -t 8:00:00 -pgpu\n#SBATCH --mem 64G  # of each node\n"
    found = [(name, value) for name, value, _ in slurm_rules.options(text, "x")]
    assert found == [("nodes", "2"), ("time", "8:00:00"), ("partition", "gpu"), ("mem", "64G")]
    slurm_rules.require_sbatch(text, "x")


def test_a_file_that_was_changed_by_hand_is_checked(tmp_path, capsys):
    file = written("slurm", tmp_path) / "train.sbatch"
    assert main(["workflow", "--engine", "slurm", "--check", str(file)]) == 0
    file.write_text(file.read_text().replace("--time=24:00:00", "--time=tomorrow"))
    capsys.readouterr()
    assert main(["workflow", "--engine", "slurm", "--check", str(file)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "tomorrow" in line
    assert "line 7" in line
    assert main(["workflow", "--engine", "osmo", "--check", str(tmp_path / "none")]) == 2
