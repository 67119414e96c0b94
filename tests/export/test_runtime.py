"""The runtime.py of a bundle: runs without torch and without robolearn, and refuses damaged or edited bundles."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from robolearn import runtime
from robolearn.export.bundle import PARTS, single_file
from robolearn.runtime import main as commands
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import Refused
from robolearn.runtime.files import sha256_of

ALONE = """
import runpy, sys
for absent in ("torch", "robolearn", "onnx", "mujoco", "tensorrt"):
    sys.modules[absent] = None  # importing it fails
sys.argv = ["runtime.py", *sys.argv[1:]]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def alone(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the bundle's runtime.py without torch and robolearn."""
    command = [sys.executable, "-c", ALONE, str(bundle / "runtime.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=bundle)


def refused(bundle: Path, *words: str) -> tuple[int, str]:
    """Exit code and the one line on stderr of a command that fails."""
    done = alone(bundle, *(words or ("check",)))
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


# ---------------------------------------------------------------------------------------- one file


def test_the_single_file_holds_every_definition_once():
    tree = ast.parse(single_file())
    named = Counter(n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
    named.update(
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )
    assert [name for name, count in named.items() if count > 1] == []
    assert "robolearn" not in {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    modules = {path.stem for path in Path(runtime.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(PARTS) == modules


def test_a_bundle_checks_itself_without_torch_and_robolearn(exported):
    done = alone(exported, "check")
    assert done.returncode == 0, done.stderr
    assert "320 recorded control steps replayed from raw sensors" in done.stdout


def test_measure_writes_the_board_of_its_times_to_latency_json(bundle):
    done = alone(bundle, "measure", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr  # however long it took: this is not the export target
    assert "verdict: none for Jetson Thor" in done.stdout
    latency = json.loads((bundle / "latency.json").read_text())
    assert latency["status"] == "modelled"  # as it was
    (measured,) = latency["measured"]
    assert measured["status"] == "measured-other-device"
    assert measured["paced"]["count"] == 25
    assert sum(measured["histogram"]["counts"]) == 25


def test_a_board_whose_name_matches_is_measured_on_target(bundle, monkeypatch, capsys):
    monkeypatch.setattr(commands, "device_tree_model", lambda: "NVIDIA Jetson AGX Thor Developer Kit")
    monkeypatch.setattr(commands, "LEAST_STEPS", 10)
    assert commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.2"]) in (0, 4)
    assert "verdict: measured on Jetson Thor" in capsys.readouterr().out
    assert json.loads((bundle / "latency.json").read_text())["status"] == "measured-on-target"


def test_fewer_than_500_steps_give_no_verdict_on_the_target_either(bundle, monkeypatch, capsys):
    monkeypatch.setattr(commands, "device_tree_model", lambda: "NVIDIA Jetson AGX Thor Developer Kit")
    assert commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.2"]) == 0
    assert "verdict: none: 10 control steps measured, at least 500 needed" in capsys.readouterr().out
    assert json.loads((bundle / "latency.json").read_text())["status"] == "modelled"


def test_a_measurement_elsewhere_never_replaces_one_on_the_target(bundle, monkeypatch):
    monkeypatch.setattr(commands, "LEAST_STEPS", 5)

    def measure_on(board):
        monkeypatch.setattr(commands, "device_tree_model", lambda: board)
        commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.1"])
        return json.loads((bundle / "latency.json").read_text())

    first = measure_on("NVIDIA Jetson AGX Thor Developer Kit")
    assert first["status"] == "measured-on-target"
    then = measure_on("a laptop")
    assert [r["board"] for r in then["measured"]] == ["NVIDIA Jetson AGX Thor Developer Kit", "a laptop"]
    assert [then[k] for k in ("status", "fits", "lines")] == [first[k] for k in ("status", "fits", "lines")]
    assert then["modelled"] == first["modelled"]
    assert len(measure_on("a laptop")["measured"]) == 2  # the newest of each


def test_a_short_measurement_never_replaces_a_long_one(bundle, monkeypatch, capsys):
    monkeypatch.setattr(commands, "device_tree_model", lambda: "NVIDIA Jetson AGX Thor Developer Kit")
    monkeypatch.setattr(commands, "LEAST_STEPS", 10)
    for seconds in ("0.4", "0.1"):
        commands.main(["--bundle", str(bundle), "measure", "--seconds", seconds])
    latency = json.loads((bundle / "latency.json").read_text())
    assert [result["paced"]["count"] for result in latency["measured"]] == [20]
    assert latency["status"] == "measured-on-target"
    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("verdict:")]
    assert "verdict: measured on Jetson Thor" in verdicts[-1]  # of the long measurement


@pytest.mark.parametrize(("board", "code"), [("NVIDIA Jetson AGX Thor Developer Kit", 4), ("a laptop", 0)])
def test_over_the_budget_is_code_4_only_on_the_target(board, code, bundle, monkeypatch, capsys):
    monkeypatch.setattr(commands, "device_tree_model", lambda: board)
    monkeypatch.setattr(commands, "LEAST_STEPS", 5)
    monkeypatch.setattr(
        commands, "over_budget", lambda *_: ["p99 9.000 ms is over 2.000 ms, 10 % of the period"]
    )
    assert commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.1"]) == code
    assert "over: p99" in capsys.readouterr().out


def test_the_single_file_is_valid_python_3_10():
    """JetPack 6 has Python 3.10: neither the syntax nor the standard library of 3.11 may be used."""
    tree = ast.parse(single_file(), feature_version=(3, 10))
    newer = {"UTC", "Self", "StrEnum", "tomllib", "assert_never", "override", "batched", "ExceptionGroup"}
    names = {
        alias.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for alias in n.names
    }
    assert not names & newer


def test_build_without_tensorrt_is_code_5(exported):
    code, said = refused(exported, "build")
    assert code == 5
    assert "TensorRT" in said


# ---------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("name", ["controller.onnx", "golden.npz"])
def test_a_truncated_file_is_code_2(name, bundle):
    whole = (bundle / name).read_bytes()
    (bundle / name).write_bytes(whole[:-100])
    code, said = refused(bundle)
    assert (code, f"{name} is damaged" in said) == (2, True), said


CHANGES = [
    (lambda m: m["contract"].update(control_dt=0.01), "manifest.contract.control_dt: 0.01 and 0.02"),
    (lambda m: m["contract"]["actions"][3].update(kp=12.0), "contract.actions[3].kp: 12.0 and 120.0"),
    (lambda m: m["target"].update(any_machine=True), "manifest.target.any_machine: True and False"),
    (lambda m: m["target"]["budget"].update(p50=0.9), "manifest.target.budget.p50"),
    (lambda m: m["controller"].update(precision="bf16"), "manifest.controller.precision"),
    (lambda m: m.pop("command_ranges"), "manifest.command_ranges is in only one of the two"),
    (lambda m: m["contract"].update(extra=10**400), "manifest.contract.extra"),
    (lambda m: m.pop("target"), "manifest.target is in only one of the two"),
    (lambda m: m.update(schema=7), "schema 7"),
    (lambda m: m.pop("golden"), "incomplete or malformed"),
    (lambda m: m.update(golden=3), "incomplete or malformed"),
    (lambda m: m["golden"].update(file="../golden.npz"), "which is no file of a bundle"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_an_edited_manifest_is_code_2_and_names_the_entry(change, said, bundle, edit):
    edit(bundle, change)
    code, line = refused(bundle)
    assert (code, said in line) == (2, True), line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["contract"].update(control_dt=0), "control_dt=0 s"),
        (
            lambda m: m["contract"]["actions"][3].update(kp=float("nan")),
            "contract.actions[3].kp: nan and nan",
        ),
        (lambda m: m["contract"]["joints"].pop(), "which is not a joint"),
        (lambda m: m["contract"]["joints"][0].update(name="l_knee"), "two joints have the same name"),
        (
            lambda m: m["contract"]["observations"][0].update(width=4),
            "projected_gravity takes 3 columns from 3, not from 4",
        ),
        (lambda m: m["contract"]["observations"][0].update(history=2), "base_ang_vel takes 3 columns"),
        (lambda m: m["contract"]["actions"][3].update(kp=0), "kp of action l_knee is 0"),
        (lambda m: m["contract"]["actions"][3].update(kd=-1.0), "kd of action l_knee is -1"),
        (lambda m: m["contract"]["joints"][3].update(lower=2.0, upper=1.0), "joint l_knee goes from 2 to 1"),
        (lambda m: m["command_ranges"].update(forward=[1.0, -1.0]), "range of command 'forward'"),
        (lambda m: m["command_ranges"].update(forward=[1.0]), "incomplete or malformed"),
        (lambda m: m["sensors"].pop(), "the controller's inputs are"),
        (lambda m: m["state"][0].update(reset=[0.0]), "reset of state last_action"),
        (lambda m: m["state"][0].update(shape=[1, 1 << 40]), "shape of last_action"),
        (lambda m: m["contract"]["extra"].update(parachute=1), "its policy needs parachute"),
        (lambda m: m["contract"].update(extra=3), "incomplete or malformed"),
        (lambda m: m["contract"].pop("joints"), "incomplete or malformed"),
        (lambda m: m["target"].pop("budget"), "incomplete or malformed"),
        (lambda m: m["target"].update(any_machine=True), "any_machine is true"),
        (lambda m: m["controller"].update(precision="int8"), "unknown precision"),
    ],
)
def test_an_impossible_manifest_is_code_2_even_with_matching_hashes_and_recording(
    change, said, bundle, edit, forge
):
    edit(bundle, change)
    forge(bundle)
    code, line = refused(bundle)
    assert (code, said in line) == (2, True), line


def golden_of(bundle, change):
    """Change the recording's arrays."""
    with np.load(bundle / "golden.npz") as file:
        arrays = dict(file)
    change(arrays)
    np.savez(bundle / "golden.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda a: a.update({k: v[:1] for k, v in a.items() if v.ndim}),
            "at least 200",
        ),
        (lambda a: a.pop("gyro"), "incomplete or malformed"),
        (lambda a: a.update(gyro=a["gyro"][:, :2]), "golden.npz: gyro must be finite and of shape (320, 3)"),
        (lambda a: a.update(actions=a["actions"] * np.nan), "golden.npz: actions must be"),
        (lambda a: a.update(quat=np.array("text")), "golden.npz: quat"),
    ],
)
def test_an_impossible_recording_is_code_2(change, said, bundle, forge):
    golden_of(bundle, change)
    forge(bundle)
    code, line = refused(bundle)
    assert (code, said in line) == (2, True), line


def test_a_recording_that_is_not_an_archive_or_holds_objects_is_code_2(bundle, edit):
    for content in (b"", b"PK\x03\x04 and so on", pickle.dumps({"quat": 1})):
        (bundle / "golden.npz").write_bytes(content)
        edit(bundle, lambda m: m["golden"].update(sha256=sha256_of(bundle / "golden.npz")))
        code, line = refused(bundle)
        assert (code, "cannot be read" in line) == (2, True), line


def test_two_joints_swapped_in_the_manifest_are_code_2(bundle, edit):
    def swap(manifest):
        joints = {joint["name"]: joint for joint in manifest["contract"]["joints"]}
        joints["l_knee"]["name"], joints["r_knee"]["name"] = "r_knee", "l_knee"

    edit(bundle, swap)
    code, said = refused(bundle)
    assert (code, "contract.joints[3].name" in said) == (2, True), said


def test_a_graph_of_another_width_is_code_2(bundle, forge):
    model = onnx.load(bundle / "controller.onnx")
    gyro = next(port for port in model.graph.input if port.name == "gyro")
    gyro.type.tensor_type.shape.dim[1].dim_value = 4
    onnx.save(model, bundle / "controller.onnx")
    forge(bundle)
    code, said = refused(bundle)
    assert (code, "the controller's inputs are" in said or "cannot load" in said) == (2, True), said


def test_a_dynamic_batch_is_code_2(bundle, forge):
    model = onnx.load(bundle / "controller.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, bundle / "controller.onnx")
    forge(bundle)
    code, said = refused(bundle)
    assert (code, "dynamic shape" in said) == (2, True), said


def test_a_network_exported_with_another_contract_is_code_2(bundle, edit, forge):
    """Manifest and recording are forged; the ONNX file still holds the contract of its export."""
    edit(bundle, lambda m: m["contract"]["actions"][3].update(kp=12.0))
    forge(bundle)
    code, said = refused(bundle)
    assert (code, "exported with another contract: contract.actions[3].kp" in said) == (2, True), said


@pytest.mark.parametrize("note", [None, "{"])
def test_a_network_without_its_contract_in_the_metadata_is_code_2(note, bundle, forge):
    model = onnx.load(bundle / "controller.onnx")
    del model.metadata_props[:]
    if note:
        model.metadata_props.add(key="robolearn.contract", value=note)
    onnx.save(model, bundle / "controller.onnx")
    forge(bundle)
    code, said = refused(bundle)
    assert (code, "robolearn.contract" in said) == (2, True), said


def test_another_networks_weights_fail_the_golden_check_with_code_3(bundle, forge):
    model = onnx.load(bundle / "controller.onnx")
    weight = next(t for t in model.graph.initializer if t.name.endswith("actor.mlp.0.weight"))
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0] += 0.01
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, bundle / "controller.onnx")
    forge(bundle)
    code, said = refused(bundle)
    assert (code, "golden check failed in step" in said) == (3, True), said
    with pytest.raises(Refused, match="golden check failed"):
        commands.open_session(Bundle.load(bundle), "onnxruntime")


def test_targets_that_are_not_the_trained_policys_fail_the_golden_check(bundle, forge):
    golden_of(bundle, lambda arrays: arrays.update(targets=arrays["targets"] + 0.01))
    forge(bundle)
    code, said = refused(bundle)
    assert (code, ": targets " in said) == (3, True), said


def test_a_folder_that_is_not_a_bundle_is_code_2(tmp_path, exported):
    (tmp_path / "runtime.py").write_bytes((exported / "runtime.py").read_bytes())
    code, said = refused(tmp_path)
    assert (code, "is not a bundle" in said) == (2, True), said
