"""The steps of a workflow, run here, and the scripts of its engines, run by bash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from robolearn.cli import main
from tests.commands.workflows import IMAGE, needs_bash

# ---------------------------------------------------------------------------------------- run here


def command(folder: Path, *words: str) -> list[str]:
    # Not the target host: its latency is measured, which depends on the load of this machine.
    options = ["--local", "--output", str(folder), "--min-survival", "0", "--target", "jetson-thor"]
    return [sys.executable, "-m", "robolearn.cli", "workflow", *options, *words]


@pytest.mark.slow
def test_a_workflow_resumes_after_a_kill_skips_what_is_done_and_has_the_exit_code_of_a_failed_step(tmp_path):
    words = ["task=cartpole_balance", "num_envs=8", "max_iterations=40", "checkpoint_interval=1"]
    folder = tmp_path / "work"
    first = subprocess.Popen(command(folder, *words), stdout=subprocess.PIPE, text=True)
    until((folder / "run" / "latest.pt").exists)
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert first.returncode == 130
    assert not (folder / "run" / "checkpoints" / "iteration_000040.pt").exists()
    again = subprocess.run(command(folder, *words), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "resume=run" in again.stdout
    assert "exactly" in again.stdout
    for path in ("evaluation/metrics.json", "bundle/manifest.json", "simulation/out.xml"):
        assert (folder / path).exists()
    assert len(list((folder / "done").glob("simulate-*"))) == 1
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, 41))
    (folder / "simulation" / "out.xml").unlink()  # a result that is gone is made again, and only that
    third = subprocess.run(command(folder, *words), capture_output=True, text=True, check=False)
    assert third.returncode == 0
    assert third.stdout.count("done before") == 3
    assert (folder / "simulation" / "out.xml").exists()
    # The exit code is that of the step that fails, here a gate of another suite; what came before it stays.
    gate = 'survival: ">= 0"'
    text = (folder / "suite.yaml").read_text()
    assert gate in text
    (tmp_path / "hard.yaml").write_text(text.replace(gate, 'return: ">= 1e9"'))
    hard = ["--suite", str(tmp_path / "hard.yaml")]
    failed = subprocess.run(command(folder, *words, *hard), capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stdout.count("done before") == 3
    assert len(list((folder / "done").glob("simulate-*"))) == 1


def until(condition: Callable[[], bool], seconds: float = 200.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


# ---------------------------------------------------------------------------------------- the scripts, run by bash


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment with `robolearn`, and with srun and scontrol that do what one node does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "robolearn": f'exec {sys.executable} -m robolearn.cli "$@"',
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": 'echo "$@" >> "$CALLS"',
        "sleep": "exit 0",
    }
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "1",
    }


@needs_bash
@pytest.mark.slow
def test_a_slurm_job_that_is_told_to_stop_saves_requeues_and_resumes(tmp_path, tools):
    folder = tmp_path / "work"
    words = ["--engine", "slurm", "--output", str(folder), "task=cartpole_balance", "num_envs=8"]
    assert main(["workflow", *words, "max_iterations=40", "checkpoint_interval=1"]) == 0
    environment = {**tools, "SLURM_SUBMIT_DIR": str(folder)}
    job = subprocess.Popen(["bash", "train.sbatch"], cwd=folder, env=environment)
    until((folder / "run" / "latest.pt").exists)
    # Slurm signals the steps of a job: here the process that bash waits for.
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    if not children.exists():
        job.kill()
        pytest.skip("the system does not list a process's children")
    for child in children.read_text().split():
        os.kill(int(child), signal.SIGTERM)
    assert job.wait(timeout=200) == 130
    assert Path(tools["CALLS"]).read_text() == "requeue 7\n"
    assert subprocess.run(["bash", "train.sbatch"], cwd=folder, env=environment, check=False).returncode == 0
    assert (folder / "run" / "checkpoints" / "iteration_000040.pt").exists()
    assert Path(tools["CALLS"]).read_text() == "requeue 7\n"
    assert (
        subprocess.run(["bash", "evaluate.sbatch"], cwd=folder, env=environment, check=False).returncode == 0
    )
    assert (folder / "done" / "evaluate").exists()


@needs_bash
@pytest.mark.slow
def test_a_slurm_job_with_a_bad_setting_is_not_requeued(tmp_path, tools):
    folder = tmp_path / "work"
    words = ["--engine", "slurm", "--output", str(folder), "task=cartpole_balance", "num_envs=8"]
    assert main(["workflow", *words, "max_iterations=2"]) == 0
    file = folder / "train.sbatch"
    file.write_text(file.read_text().replace("num_envs=8", "num_evns=8"))
    environment = {**tools, "SLURM_SUBMIT_DIR": str(folder)}
    assert subprocess.run(["bash", "train.sbatch"], cwd=folder, env=environment, check=False).returncode == 2
    assert not Path(tools["CALLS"]).exists()


@needs_bash
@pytest.mark.slow
def test_an_osmo_training_is_scheduled_again_after_a_checkpoint_and_hands_its_run_on(tmp_path, tools):
    folder = tmp_path / "osmo"
    options = ["--engine", "osmo", "--output", str(folder), *IMAGE, "--store", "s3://b", "--retries", "1"]
    words = ["task=cartpole_balance", "num_envs=8", "max_iterations=40", "checkpoint_interval=1"]
    assert main(["workflow", *options, *words]) == 0
    groups = yaml.safe_load((folder / "workflow.yaml").read_text())["workflow"]["groups"]
    work, kept, output = (tmp_path / name for name in ("work", "kept", "output"))
    kept.mkdir()

    def script(group: int) -> str:
        """A task's script with folders of this test in place of tokens and of OSMO's own."""
        (file,) = (f for f in groups[group]["tasks"][0]["files"] if f["path"].endswith(".sh"))
        text = file["contents"].replace("{{input:0}}", str(kept)).replace("{{output}}", str(output))
        return (
            str(text)
            .replace("/tmp/robolearn", str(work))
            .replace("/tmp/suite.yaml", str(tmp_path / "suite.yaml"))
        )

    job = subprocess.Popen(["bash", "-c", script(0)], env=tools, start_new_session=True)
    until((work / "run" / "latest.pt").exists)
    os.killpg(job.pid, signal.SIGTERM)
    job.wait(timeout=200)
    assert not output.exists()
    # A pod is gone with its disk: the next attempt has what was uploaded.
    shutil.move(work / "run", kept / "run")
    shutil.rmtree(work)
    assert subprocess.run(["bash", "-c", script(0)], env=tools, check=False).returncode == 0
    assert (output / "run" / "checkpoints" / "iteration_000040.pt").exists()
    shutil.rmtree(work)
    shutil.rmtree(kept)
    shutil.move(output, kept)
    assert subprocess.run(["bash", "-c", script(1)], env=tools, check=False).returncode == 0
    assert (output / "evaluation" / "metrics.json").exists()
    assert (output / "run" / "latest.pt").exists()


@needs_bash
@pytest.mark.slow
def test_an_osmo_training_that_fails_at_once_is_not_scheduled_again(tmp_path, tools):
    folder = tmp_path / "osmo"
    options = ["--engine", "osmo", "--output", str(folder), *IMAGE, "--store", "s3://b"]
    assert main(["workflow", *options, "task=cartpole_balance", "num_envs=8"]) == 0
    content = yaml.safe_load((folder / "workflow.yaml").read_text())
    text = content["workflow"]["groups"][0]["tasks"][0]["files"][0]["contents"].replace(
        "num_envs", "num_evns"
    )
    text = text.replace("{{input:0}}", str(tmp_path / "none")).replace(
        "/tmp/robolearn", str(tmp_path / "work")
    )
    assert subprocess.run(["bash", "-c", text], env=tools, check=False, cwd=tmp_path).returncode == 2
