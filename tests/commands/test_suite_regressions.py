"""`robolearn sim --suite` on the shipped humanoid: what an unchanged policy gives, and the regressions it must find."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn.cli import main
from robolearn.commands.suite import spec
from robolearn.commands.suite.case import Case, run_case
from robolearn.commands.suite.suite import run_suite
from robolearn.commands.suite.workers import each_in_a_worker
from robolearn.learners import saved
from tests.commands.test_suite import CARTPOLE, suite

STAND = """
  - name: stand
    commands: {forward: 0}
    gates: {survival: ">= 0.9"}
""".removeprefix("\n")
WALK = f"""
schema: 1
name: walk
defaults: {{policy: pretrained:humanoid_walk, episodes: 24, seconds: 4, pushes: []}}
scenarios:
{STAND}  - name: walk
    commands: {{forward: 0.8}}
    gates: {{survival: ">= 0.9", tracking_error: "<= 0.25"}}
"""
WALK_ALONE = WALK.replace(STAND, "")


# ---------------------------------------------------------------------------------------- bits


def test_bits_do_not_depend_on_the_number_of_threads(tmp_path) -> None:
    case = spec.read(suite(tmp_path, WALK.replace("seconds: 4", "seconds: 0.5"))).scenarios[1]
    torch.set_num_threads(1)
    found = {run_case(Case(case, "mujoco", threads=threads)).checksums for threads in (1, 2, 3)}
    assert len(found) == 1


def swapped_joint(folder: Path) -> Path:
    """The shipped humanoid, whose policy takes the left knee for the right one."""
    source = saved.PRETRAINED / "humanoid_walk"
    run = folder / "swapped"
    run.mkdir()
    (run / "config.yaml").write_text((source / "config.yaml").read_text())
    content: dict[str, Any] = torch.load(source / "policy.pt", weights_only=True)
    tensors = content["policy"]["state"]
    names = [name for name in tensors if name.endswith("weight") and tensors[name].shape[0] == 21]
    for name in [*names, *(name.replace("weight", "bias") for name in names)]:
        swap = list(range(21))
        swap[3], swap[9] = 9, 3
        tensors[name] = tensors[name][swap]
    assert names
    torch.save(content, run / "latest.pt")
    return run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """The folder of a suite with its baseline."""
    folder = tmp_path_factory.mktemp("suite")
    assert run_suite(suite(folder, WALK_ALONE), update_baseline=True, failures=folder / "f")
    return folder


def run(folder: Path, *overrides: str, text: str | None = None) -> dict[str, Any]:
    path = folder / "suite.yaml"
    before = path.read_text()
    try:
        path.write_text(text or before)
        run_suite(path, overrides=overrides, json=folder / "out.json", failures=folder / "failures")
    finally:
        path.write_text(before)
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


@pytest.mark.slow
def test_an_unchanged_policy_passes_its_baseline_with_the_same_bits(recorded) -> None:
    first, second = run(recorded), run(recorded)
    assert first["passed"]
    assert second["passed"]
    assert [case["checksums"] for case in first["cases"]] == [case["checksums"] for case in second["cases"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "gate"),
    [
        (["task.rewards.track_velocity=-2"], "baseline return"),
        (["task.randomize.gain_scale=[0.3,0.3]"], "survival"),
        (["task.randomize.friction=[0.05,0.05]"], "baseline return"),
        (["task.observation_delay=[2,2]"], "baseline return"),
    ],
    ids=["reward-sign", "gains", "friction", "delay"],
)
def test_a_planted_regression_fails_with_scenario_gate_value_and_baseline(recorded, overrides, gate) -> None:
    found = run(recorded, *overrides)
    assert not found["passed"]
    failed = {
        each["gate"]: each for case in found["cases"] for each in case["gates"] if each["verdict"] == "FAIL"
    }
    assert gate in failed
    assert failed[gate]["value"]
    assert failed[gate]["limit"]
    files = [file for case in found["cases"] for file in case["files"]]
    assert any(file.endswith(".replay") for file in files)


@pytest.mark.slow
def test_a_swapped_joint_fails(recorded, tmp_path) -> None:
    text = WALK_ALONE.replace("pretrained:humanoid_walk", str(swapped_joint(tmp_path)))
    found = run(recorded, text=text)
    assert not found["passed"]
    assert any(
        each["gate"] == "survival" and each["verdict"] == "FAIL"
        for case in found["cases"]
        for each in case["gates"]
    )


@pytest.mark.slow
def test_a_changed_scenario_asks_for_another_baseline(recorded) -> None:
    found = run(recorded, text=WALK_ALONE.replace("forward: 0.8", "forward: 0.7"))
    failed = [each for case in found["cases"] for each in case["gates"] if each["verdict"] == "FAIL"]
    assert [each["gate"] for each in failed] == ["baseline"]


INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "running", "pause", "numbers"),
    [
        (2, 2, 0, (TERM,)),
        (2, 4, 0, (TERM,)),
        (1, 3, 3, (INT, TERM)),
        (2, 4, 4, (TERM, INT)),
    ],
    ids=str,
)
@pytest.mark.parametrize("ignored", [None, TERM], ids=["", "sigterm_ignored"])
def test_an_interrupt_ends_the_workers_and_writes_nothing(
    tmp_path, jobs, running, pause, numbers, ignored
) -> None:
    if ignored in numbers and len(numbers) == 1:
        pytest.skip("nothing comes")
    path = suite(tmp_path, WALK.replace("episodes: 24", "episodes: 400").replace("seconds: 4", "seconds: 60"))
    words = [sys.executable, "-m", "robolearn.cli", "sim", "--suite", path]
    words += ["--jobs", jobs, "--junit", tmp_path / "o.xml"]

    def inherited() -> None:  # a test runner in the background has ignored SIGINT
        for number in (INT, TERM):
            signal.signal(number, signal.SIG_IGN if number is ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=inherited,  # noqa: PLW1509
    )
    try:
        until = time.monotonic() + 300
        # The command, multiprocessing's tracker, and then the workers.
        while len(pool(process.pid)) < running and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        assert len(pool(process.pid)) >= running
        time.sleep(pause)
        for number in numbers:
            process.send_signal(number)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 130
        assert "Traceback" not in said
        while group(process.pid) and time.monotonic() < until:
            time.sleep(0.2)
        assert group(process.pid) == []
    finally:
        for number in group(process.pid):
            os.kill(number, signal.SIGKILL)
        process.wait()
    assert os.listdir(tmp_path) == ["suite.yaml"]


def without_glfw() -> bool:
    importlib.import_module("mujoco")
    return "glfw" not in sys.modules


@pytest.mark.slow
def test_a_worker_imports_mujoco_without_the_process_that_asks_glfw_for_its_version(monkeypatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert list(each_in_a_worker(without_glfw, [()], 1)) == [(0, "", True)]


def pool(leader: int) -> list[int]:
    """The leader of a process group and what multiprocessing has started in it. `import mujoco` of the leader starts a
    process, too, which asks GLFW for its version."""
    found = []
    for pid in group(leader):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if pid == leader or b"multiprocessing" in command:
            found.append(pid)
    return found


def group(leader: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (
                    os.getpgid(int(folder.name)) == leader
                    and "Z" not in (folder / "stat").read_text().split()[2]
                ):
                    found.append(int(folder.name))
            except (OSError, IndexError):
                continue
    return found


@pytest.mark.slow
def test_a_bundle_is_a_policy_with_a_latency_gate(trained, tmp_path) -> None:
    bundle = tmp_path / "bundle"
    words = ["--starts", "4", "--seconds", "0.2", "--measure-seconds", "0", "--output", str(bundle)]
    assert main(["export", str(trained), *words]) == 0
    text = CARTPOLE.replace("policy: zero, task: cartpole_balance", f"policy: {bundle}").replace(
        "seconds: 1", "seconds: 0.4"
    )
    path = suite(tmp_path, text.replace('survival: ">= 0"', 'survival: ">= 0", latency_ms: "<= 1000"'))
    assert run_suite(path, json=tmp_path / "out.json", jobs=1, failures=tmp_path / "f")
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [gate["gate"] for gate in case["gates"]] == ["finite", "divergence", "survival", "latency_ms"]
    assert case["episodes"] == 16
