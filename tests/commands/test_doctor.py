"""`robolearn doctor`: what it says of made-up machines, and of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from robolearn.cli import main
from robolearn.commands import doctor, exits
from robolearn.commands.doctor import MISSING, NOTE, OK, WARNING, Row
from robolearn.config import registry


def examine(folder: Path, program: str = "", **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and rows by name of the command in a process with these environment variables, after `program`."""
    out = folder / "doctor.json"
    code = f"{program}\nimport sys; from robolearn.cli import main; sys.exit(main(['doctor', '--json', {str(out)!r}]))"
    environment = {k: v for k, v in os.environ.items() if k not in (*doctor.SLOWER, "MUJOCO_GL")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    content = json.loads(out.read_text())
    assert content["schema"] == 1
    assert content["trains"] == (done.returncode == exits.OK)
    return done.returncode, {row["name"]: row for row in content["rows"]}


def test_a_machine_that_can_train_gets_code_0_and_every_part_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json", "doctor.json"]) == exits.OK
    rows = json.loads(Path("doctor.json").read_text())["rows"]
    names = {row["name"] for row in rows}
    assert names >= {
        "Python",
        "RoboLearn",
        "processor",
        "cores",
        "memory",
        "disk",
        "torch",
        "MuJoCo's version",
    }
    assert names >= {
        "OpenGL",
        "video encoder",
        "viewer",
        "report",
        "export",
        "TensorRT",
        *registry.names("backends"),
    }
    assert all(row["fix"] for row in rows if row["state"] == MISSING)
    shown = capsys.readouterr().out
    assert all(row["value"] in shown and row["fix"] in shown for row in rows)
    assert metadata.version("torch") in next(row["value"] for row in rows if row["name"] == "torch")


def test_without_torch_the_code_is_3_and_the_fix_installs_it(tmp_path):
    code, rows = examine(tmp_path, "import sys; sys.modules['torch'] = None")
    assert code == exits.MISSING
    assert rows["torch"]["state"] == MISSING
    assert "pip install 'torch" in rows["torch"]["fix"]


def test_without_a_simulator_the_code_is_3_and_each_has_its_fix(tmp_path):
    code, rows = examine(tmp_path, "import sys; sys.modules.update(mujoco=None, warp=None, mujoco_warp=None)")
    assert code == exits.MISSING
    assert rows["mujoco"]["state"] == MISSING
    assert "robolearn[mujoco]" in rows["mujoco"]["fix"]


def test_a_variable_that_keeps_mujoco_from_being_imported_is_found(tmp_path):
    code, rows = examine(tmp_path, MUJOCO_GL="broken")
    assert code == exits.MISSING
    assert rows["MUJOCO_GL"]["state"] == WARNING
    assert rows["mujoco"]["fix"] == rows["MUJOCO_GL"]["fix"] == rows["OpenGL"]["fix"] == "unset MUJOCO_GL"


@pytest.mark.parametrize(
    ("rows", "works"),
    [
        ([Row("learning", "torch", OK, ""), Row("simulators", "mujoco", OK, "")], True),
        ([Row("learning", "torch", WARNING, ""), Row("simulators", "mujoco", OK, "")], True),
        ([Row("learning", "torch", MISSING, ""), Row("simulators", "mujoco", OK, "")], False),
        ([Row("learning", "torch", OK, ""), Row("simulators", "mujoco", MISSING, "")], False),
        ([Row("learning", "torch", OK, ""), Row("simulators", "MuJoCo's version", WARNING, "")], False),
        ([Row("learning", "torch", OK, ""), Row("tools", "OpenGL", OK, "")], False),
        ([], False),
    ],
)
def test_training_needs_torch_and_a_simulator(rows, works):
    assert doctor.trains(rows) == works


# ---------------------------------------------------------------------- made-up machines


def test_the_processor_is_read_with_the_instructions_that_matter(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 sse avx512f\n\nmodel name\t: second\n"
    )
    row = doctor.processor(path)
    assert row.state == OK
    assert row.value.startswith("A CPU, ")
    assert row.value.endswith(", avx2, avx512f")
    path.write_text("Features\t: fp asimd bf16\n")
    assert doctor.processor(path).value.endswith(", asimd, bf16")
    assert doctor.processor(tmp_path / "absent").state == OK


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": ""}, None),
        ({}, None),
    ],
)
def test_the_cores_of_a_container_are_those_of_its_quota(tmp_path, files, limit):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert doctor.quota(tmp_path) == limit


def test_a_quota_below_the_cores_is_a_warning():
    assert doctor.cores(8, None).state == OK
    assert doctor.cores(8, 8.0).state == OK
    row = doctor.cores(8, 2.5)
    assert row.state == WARNING
    assert "torch_threads=2 backend.threads=2" in row.fix
    assert "torch_threads=1 " in doctor.cores(8, 0.5).fix


def test_little_free_memory_is_a_warning(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    assert doctor.memory(path).value == "16.4 GB, 8.2 GB free"
    assert doctor.memory(path).state == OK
    path.write_text("MemTotal: 16000000 kB\nMemAvailable: 1000000 kB\n")
    assert doctor.memory(path).state == WARNING
    assert doctor.memory(tmp_path / "absent").state == NOTE


def test_a_folder_that_cannot_hold_runs_is_a_warning(tmp_path):
    assert doctor.disk(tmp_path / "a" / "b").state != MISSING
    (tmp_path / "file").write_text("")
    row = doctor.disk(tmp_path / "file" / "runs")
    assert row.state == WARNING
    assert "output=DIR" in row.fix


def test_the_pinned_version_is_that_of_the_extras():
    rows = [
        "torch<2.14,>=2.9",
        "mujoco-warp==3.17.0; extra == 'mujoco-warp'",
        "mujoco==3.17.0; extra == 'mujoco'",
    ]
    assert doctor.pinned("mujoco", lambda _: rows) == "3.17.0"
    assert doctor.pinned("torch", lambda _: rows) == ""
    assert doctor.pinned("mujoco", lambda _: None) == ""


def test_another_mujoco_than_the_pinned_one_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "pinned", lambda package: "0.0.1")
    (row,) = doctor.mujoco_version()
    assert row.state == WARNING
    assert row.fix == "pip install mujoco==0.0.1"


@pytest.mark.parametrize(
    ("variables", "name", "state"),
    [
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "ATEN_CPU_CAPABILITY", WARNING),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "ONEDNN_MAX_CPU_ISA", WARNING),
        ({"OMP_NUM_THREADS": "100000"}, "OMP_NUM_THREADS", WARNING),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY", WARNING),
        ({"MUJOCO_GL": "EGL"}, "MUJOCO_GL", NOTE),
        ({"MUJOCO_GL": "glfw"}, "MUJOCO_GL", NOTE),
        ({"MUJOCO_GL": "glx"}, "MUJOCO_GL", NOTE),
        ({"MUJOCO_GL": "vulkan"}, "MUJOCO_GL", WARNING),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES", NOTE),
        ({"OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/"}, "all", OK),
    ],
)
def test_variables_that_do_harm_are_found(variables, name, state):
    (row,) = doctor.environment(variables)
    assert (row.name, row.state) == (name, state)
    assert bool(row.fix) == (state == WARNING)


def test_a_gpu_that_torch_cannot_use_is_a_warning(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'A GPU, 550.1, 24000 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert doctor.nvidia_smi() == [["A GPU", "550.1", "24000 MiB"]]
    (row,) = doctor.gpus(None)
    assert row.state == WARNING
    assert "A GPU, driver 550.1" in row.value
    assert "pip install" in row.fix
    program.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.nvidia_smi() == []
