"""`robolearn export` end to end: content of a bundle, and bad input."""

from __future__ import annotations

import functools
import json
import operator
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from robolearn.cli import main
from robolearn.export import bundle as bundles
from robolearn.export import profiles, stages
from robolearn.export.latency.latency import Verdict
from robolearn.export.onnx import graph
from robolearn.export.profiles import PROFILES
from tests.export.conftest import QUICK, export, nothing_left, without_normalizer

# ---------------------------------------------------------------------------------------- what is written


def test_a_bundle_is_complete_and_names_no_folder_of_this_machine(exported):
    assert {path.name for path in exported.iterdir()} == {
        "policy.onnx",
        "controller.onnx",
        "robot.xml",
        "robot.png",
        "manifest.json",
        "golden.npz",
        "latency.json",
        "REPORT.md",
        "runtime.py",
        "config.yaml",
        *PROFILES,
    }
    here = str(Path(__file__).resolve().parents[2]).encode()
    for path in filter(Path.is_file, exported.rglob("*")):
        assert here not in path.read_bytes(), path.name
    model = onnx.load(exported / "policy.onnx")
    assert [port.name for port in model.graph.input] == ["obs"]
    assert model.graph.output[0].name == "actions"
    assert model.opset_import[0].version >= 18
    # The actor and its estimator only; the critic is as large. Normalizer 2 x 72, estimator 72 - 128 - 64 - 3, actor
    # 75 - 256 - 128 - 21.
    estimator, actor = (
        72 * 128 + 128 + 128 * 64 + 64 + 64 * 3 + 3,
        75 * 256 + 256 + 256 * 128 + 128 + 128 * 21 + 21,
    )
    assert sum(int(np.prod(t.dims)) for t in model.graph.initializer) == 2 * 72 + estimator + actor


def test_the_manifest_has_full_precision(exported):
    manifest = json.loads((exported / "manifest.json").read_text())
    contract = manifest["contract"]
    knee, hip = (
        next(action for action in contract["actions"] if action["joint"] == name)
        for name in ("r_knee", "r_hip_pitch")
    )
    assert hip["scale"] == float(np.float32(0.22))
    assert (knee["kp"], knee["kd"], knee["scale"]) == (120.0, 4.0, 0.25)
    assert knee["offset"] == float(np.float32(0.6))
    assert contract["control_dt"] == 0.02
    assert all(item["history"] == 1 and item["unit"] for item in contract["observations"])
    assert manifest["command_ranges"]["forward"] == [-0.5, 1.0]
    assert manifest["controller"]["precision"] == "fp32"
    assert manifest["target"]["name"] == "jetson-thor"


@pytest.mark.parametrize("name", PROFILES)
def test_the_shipped_policy_is_exported_with_a_profile_of_its_manifest_and_network(name, exported):
    manifest = json.loads((exported / "manifest.json").read_text())
    files = profiles.load(name).files(manifest, onnx.load(exported / "policy.onnx"))
    folder = exported / name
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert {path: file.read_bytes() for path, file in written.items()} == files


def test_on_another_machine_nothing_counts_as_measured_on_the_target(exported):
    latency = json.loads((exported / "latency.json").read_text())
    assert latency["status"] == "modelled"
    assert latency["measured"] == []
    assert latency["engine"]["status"] == "not-run"
    report = (exported / "REPORT.md").read_text()
    assert "a model, not a measurement" in report
    assert "Nothing was measured on" in report


def test_a_measurement_on_another_device_is_marked(run, capfd, tmp_path):
    quick = ["--starts", "4", "--seconds", "0.1", "--measure-seconds", "0.2"]
    assert export(capfd, run, "--target", "jetson-thor", "--output", tmp_path / "b", quick=quick)[0] == 0
    latency = json.loads((tmp_path / "b" / "latency.json").read_text())
    assert latency["status"] == "modelled"
    (measured,) = latency["measured"]
    assert measured["status"] == "measured-other-device"
    report = (tmp_path / "b" / "REPORT.md").read_text()
    assert "They say nothing about the export target" in report
    assert (tmp_path / "b" / "latency.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_recurrent_policy_is_exported_in_every_precision(recurrent, precision, capfd, tmp_path):
    code, said = export(capfd, recurrent, "--precision", precision, "--output", tmp_path / "b")
    assert code == 0, said
    model = onnx.load(tmp_path / "b" / "policy.onnx")
    states = ["h"] if "gru" in str(recurrent) else ["h", "c"]
    report = (tmp_path / "b" / "REPORT.md").read_text()
    assert ("the torch module that was exported ran" in report) == (precision == "bf16")
    assert [port.name for port in model.graph.input] == ["obs", *(f"{name}_in" for name in states)]
    assert [port.name for port in model.graph.output] == ["actions", *(f"{name}_out" for name in states)]
    golden = np.load(tmp_path / "b" / "golden.npz")
    assert len(golden["reset"]) >= 200
    assert golden["reset"].sum() >= 3


@pytest.mark.slow
def test_an_export_replaces_a_bundle_but_no_other_folder(run, capfd, tmp_path):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    before = (tmp_path / "b" / "manifest.json").stat().st_ino
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    assert (tmp_path / "b" / "manifest.json").stat().st_ino != before
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "my web app"}')
    assert export(capfd, run, "--output", tmp_path / "web")[0] == 2
    (tmp_path / "b" / "notes.txt").write_text("what the robot did")
    code, said = export(capfd, run, "--output", tmp_path / "b")
    assert (code, "notes.txt" in said) == (2, True), said
    (tmp_path / "b" / "notes.txt").unlink()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.md").write_text("years of work")
    code, said = export(capfd, run, "--output", tmp_path / "thesis")
    assert (code, "chapter1.md" in said) == (2, True)
    assert (tmp_path / "thesis" / "chapter1.md").read_text() == "years of work"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_failed_export_keeps_the_existing_bundle(run, capfd, tmp_path, monkeypatch):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    before = (tmp_path / "b" / "manifest.json").read_bytes()
    monkeypatch.setattr(stages, "build_graph", without_normalizer)
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 3
    assert (tmp_path / "b" / "manifest.json").read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_between_the_two_renames_keeps_the_existing_bundle(run, capfd, tmp_path, monkeypatch):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    before = (tmp_path / "b" / "manifest.json").read_bytes()
    moves, replace = [], os.replace

    def interrupted(source, place):
        moves.append(place)
        if len(moves) == 2:
            raise KeyboardInterrupt
        replace(source, place)

    monkeypatch.setattr(bundles.os, "replace", interrupted)
    assert main(["export", str(run), *QUICK, "--output", str(tmp_path / "b")]) == 130
    assert (tmp_path / "b" / "manifest.json").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_bundle_that_a_killed_export_moved_away_is_put_back(run, capfd, tmp_path, monkeypatch):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    (tmp_path / "b").rename(tmp_path / ".b.99999999.old")
    monkeypatch.setattr(stages, "build_graph", without_normalizer)
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 3
    assert [path.name for path in tmp_path.glob("*b*")] == ["b"]


def test_the_current_directory_is_not_replaced(run, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = export(capfd, run, "--output", ".")
    assert (code, "the current directory" in said) == (2, True), said


def test_the_temporary_folder_of_a_killed_export_is_removed(run, capfd, tmp_path):
    (tmp_path / ".b.99999999.part").mkdir()
    (tmp_path / f".b.{os.getppid()}.part").mkdir()  # of a process that still runs
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    assert [path.name for path in tmp_path.glob(".b*")] == [f".b.{os.getppid()}.part"]


# ---------------------------------------------------------------------------------------- bad input: 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "0"], "positive"),
        (["--rate", "nan"], "positive"),
        (["--rate", "100"], "trained at 50 Hz"),
        (["--precision", "int8"], "Valid: fp32, fp16, bf16"),
        (["--target", "jetson-thro"], "valid: jetson-thor"),
        (["--profile", "unitre"], "did you mean unitree"),
        (["--starts", "1000000"], "--starts"),
        (["--seconds", "nan"], "--seconds"),
        (["--measure-seconds", "-1"], "--measure-seconds"),
    ],
)
def test_bad_options_are_one_line_and_code_2(words, said, run, capfd):
    code, error = export(capfd, run, *words)
    assert (code, said in error) == (2, True), error
    assert nothing_left(run)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("task.control_dt=0.04", "contract.control_dt: 0.02 and 0.04"),
        ("task.force=10", "contract.actions[0].scale: 20.0 and 10.0"),
        ("task.action_delay=[1,2]", "contract.action_delay"),
        ("learner.activation=tanh", "change the network"),
    ],
)
def test_settings_that_would_change_the_policy_are_code_2(word, said, run, capfd):
    code, error = export(capfd, run, word)
    assert (code, said in error) == (2, True), error
    assert nothing_left(run)


@pytest.mark.parametrize("word", ["task.rewards.alive=1000000", "task.rewards={alive:0}"])
def test_settings_that_would_change_the_return_are_code_2(word, run, capfd):
    code, error = export(capfd, run, word)
    assert (code, "would change the return" in error) == (2, True), error


def test_a_run_of_a_file_needs_the_file_named_again(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text(
        "from dataclasses import dataclass\n"
        "from robolearn.tasks.cartpole import CartpoleBalance\n"
        "@dataclass\nclass Mine(CartpoleBalance):\n    force: float = 15.0\n"
    )
    name = "task=my_task.py:Mine"
    assert main(["train", name, "num_envs=8", "max_iterations=1", "output=run"]) == 0
    capfd.readouterr()
    code, said = export(capfd, "run")
    assert (code, "name it again" in said) == (2, True), said
    assert export(capfd, "run", name, "--output", "b")[0] == 0
    assert "settings other than the run's" not in (tmp_path / "b" / "REPORT.md").read_text()
    assert (
        json.loads((tmp_path / "b" / "manifest.json").read_text())["contract"]["actions"][0]["scale"] == 15.0
    )
    code, said = export(capfd, "run", name, "task.force=5", "--output", "c")
    assert (code, "contract.actions[0].scale: 15.0 and 5.0" in said) == (2, True), said
    assert main(["deploy", "b", name, "--seconds", "0.1", "--max-missed", "1"]) in (0, 1)


def test_a_shorter_episode_does_not_make_the_closed_loop_thorough(run, capfd, tmp_path):
    words = ["task.episode_length_s=0.1", "--starts", "512", "--output", tmp_path / "b"]
    assert main(["export", str(run), *map(str, words), "--measure-seconds", "0"]) == 0
    assert "warn  closed loop" in capfd.readouterr().out
    assert "hardly tested" in (tmp_path / "b" / "REPORT.md").read_text()


def test_simulation_settings_are_allowed_and_the_contract_is_still_checked(run, capfd):
    assert export(capfd, run, "task.start_angle=0.1", "seed=3")[0] == 0
    contract = json.loads((run / "contract.json").read_text())
    contract["actions"][0]["kp"] = 90.0
    (run / "contract.json").write_text(json.dumps(contract))
    code, error = export(capfd, run, "task.start_angle=0.1", "seed=3")
    assert (code, "contract.actions[0].kp" in error) == (2, True), error


def test_a_profile_that_does_not_fit_is_refused_before_the_long_stages(run, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "record", None)  # a call of it would be exit code 70
    code, said = export(capfd, run, "--profile", "unitree", "--output", tmp_path / "b")
    assert (code, "unitree" in said, "slider has an actuator of kind force" in said) == (2, True, True), said
    assert not (tmp_path / "b").exists()


def test_an_unwritable_output_folder_is_code_2(run, capfd, tmp_path):
    (tmp_path / "file").write_text("")
    assert export(capfd, run, "--output", tmp_path / "file" / "b")[0] == 2
    assert export(capfd, run, "--output", tmp_path / "file")[0] == 2


@pytest.mark.parametrize(
    ("entry", "name"),
    [(("actor_state_dict",), "mlp.0.weight"), (("policy", "state"), "actor.mlp.0.weight")],
)
def test_a_nan_weight_is_code_2_and_named(entry, name, run, capfd):
    content = torch.load(run / "latest.pt", weights_only=True)
    weights = functools.reduce(operator.getitem, entry, content)
    weights[name] = weights[name].clone()  # the two entries share their tensors
    weights[name][3, 1] = float("nan")
    torch.save(content, run / "latest.pt")
    code, said = export(capfd, run)
    assert (code, f"{name} is not finite in 1 of" in said) == (2, True), said
    assert nothing_left(run)


@pytest.mark.parametrize(
    "change",
    [
        {"actor_state_dict": [1]},
        {"actor_state_dict": {"mlp.0.weight": "a"}},
        {"iter": "many"},
        {"schema": "three"},
        {"policy": 3},
        {"policy": {"spec": {}, "state": {}}},
    ],
)
def test_a_checkpoint_with_invalid_entries_is_code_2(change, run, capfd):
    content = torch.load(run / "latest.pt", weights_only=True)
    torch.save(content | change, run / "latest.pt")
    assert export(capfd, run)[0] == 2
    assert nothing_left(run)


def test_a_truncated_checkpoint_is_code_2(run, capfd):
    whole = (run / "latest.pt").read_bytes()
    (run / "latest.pt").write_bytes(whole[: len(whole) // 2])
    assert export(capfd, run)[0] == 2
    assert nothing_left(run)


def test_a_contract_with_swapped_joints_is_code_2_and_names_the_first(run, capfd):
    contract = json.loads((run / "contract.json").read_text())
    first, second = contract["joints"]
    first["name"], second["name"] = second["name"], first["name"]
    (run / "contract.json").write_text(json.dumps(contract))
    code, said = export(capfd, run)
    assert (code, "contract.joints[0].name" in said) == (2, True), said
    assert nothing_left(run)


def test_a_dynamic_shape_is_code_2(run, capfd, monkeypatch):
    def dynamic(*args):
        model = graph.build_graph(*args)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
        return model

    monkeypatch.setattr(stages, "build_graph", dynamic)
    code, said = export(capfd, run)
    assert (code, "dynamic shape ['batch', 4]" in said) == (2, True), said
    assert nothing_left(run)


@pytest.mark.parametrize(
    ("fits", "shown"), [(False, "max 5.24 ms is over 2 ms"), (True, "p50 0.36 ms is within 1 ms")]
)
def test_the_line_about_latency_shows_what_is_over_the_budget_or_the_median(fits, shown, capsys):
    compared = ["p50 0.36 ms is within 1 ms"] + ["max 5.24 ms is over 2 ms"] * (not fits)
    verdict = Verdict(fits, "measured-on-target", ("measured on a board", *compared))
    stages._show_latency(SimpleNamespace(measured=[], verdict=verdict))
    said = capsys.readouterr().out
    assert [line for line in compared if line in said] == [shown]
