"""`robolearn export` end to end: what a bundle holds, and every planted fault with its exit code."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from torch import nn

from robolearn import config
from robolearn.cli import main
from robolearn.export import bundle as bundles
from robolearn.export import graph, stages
from robolearn.train import train
from tests.export.conftest import QUICK

RECURRENT = ["learner.rnn_hidden=16", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]


@pytest.fixture(scope="module", params=["gru", "lstm"])
def recurrent(request, tmp_path_factory) -> Path:
    """A tiny run whose policy has memory."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    words = [f"learner.rnn={request.param}", "num_envs=8", "max_iterations=2", *RECURRENT, f"output={folder}"]
    return train(config.resolve(["task=cartpole_balance", *words]))


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a tiny run, to be broken."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def export(capfd, run, *words, quick=QUICK) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code = main(["export", str(run), *quick, *map(str, words)])
    said = capfd.readouterr().err
    assert said.count("\n") == (1 if code not in (0, 4) else 0), said
    return code, said


def nothing_left(run: Path) -> bool:
    return not (run / "export").exists() and not list(run.rglob("*.part*"))


# ---------------------------------------------------------------------------------------- what is written


def test_a_bundle_holds_everything_and_names_no_folder_of_this_machine(exported):
    assert {path.name for path in exported.iterdir()} == {
        "policy.onnx",
        "manifest.json",
        "golden.npz",
        "latency.json",
        "REPORT.md",
        "runtime.py",
        "config.yaml",
    }
    here = str(Path(__file__).resolve().parents[2]).encode()
    for path in exported.iterdir():
        assert here not in path.read_bytes(), path.name
    model = onnx.load(exported / "policy.onnx")
    assert [port.name for port in model.graph.input] == ["obs"]
    assert model.graph.output[0].name == "actions"
    assert model.opset_import[0].version >= 18
    assert (
        sum(int(np.prod(t.dims)) for t in model.graph.initializer) < 56_000
    )  # the actor; the critic is as large


def test_the_manifest_says_what_the_robot_must_know_in_full_precision(exported):
    manifest = json.loads((exported / "manifest.json").read_text())
    contract = manifest["contract"]
    knee = next(action for action in contract["actions"] if action["joint"] == "r_knee")
    assert (knee["kp"], knee["kd"], knee["scale"]) == (120.0, 4.0, 0.5)
    assert knee["offset"] == float(np.float32(0.6))
    assert contract["control_dt"] == 0.02
    assert all(item["history"] == 1 and item["unit"] for item in contract["observations"])
    assert manifest["command_ranges"]["forward"] == [-0.5, 1.0]
    assert manifest["graph"]["precision"] == "fp32"
    assert manifest["target"]["name"] == "jetson-thor"


def test_without_the_target_nothing_is_called_measured_or_passed(exported):
    latency = json.loads((exported / "latency.json").read_text())
    assert latency["status"] == "modelled"
    assert latency["measured"] == []
    assert latency["engine"]["status"] == "not-run"
    report = (exported / "REPORT.md").read_text()
    assert "a model, not a measurement" in report
    assert "Nothing was measured on" in report


def test_a_measurement_elsewhere_is_kept_apart_from_the_target(run, capfd, tmp_path):
    quick = ["--starts", "2", "--seconds", "0.1", "--measure-seconds", "0.2"]
    assert export(capfd, run, "--target", "jetson-thor", "--output", tmp_path / "b", quick=quick)[0] == 0
    latency = json.loads((tmp_path / "b" / "latency.json").read_text())
    assert latency["status"] == "modelled"
    (measured,) = latency["measured"]
    assert measured["status"] == "measured-other-device"
    report = (tmp_path / "b" / "REPORT.md").read_text()
    assert "They say nothing about the target" in report
    assert (tmp_path / "b" / "latency.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_policy_with_memory_is_exported_in_every_precision(recurrent, precision, capfd, tmp_path):
    code, said = export(capfd, recurrent, "--precision", precision, "--output", tmp_path / "b")
    assert code == 0, said
    model = onnx.load(tmp_path / "b" / "policy.onnx")
    states = ["h"] if "gru" in str(recurrent) else ["h", "c"]
    assert [port.name for port in model.graph.input] == ["obs", *(f"{name}_in" for name in states)]
    assert [port.name for port in model.graph.output] == ["actions", *(f"{name}_out" for name in states)]
    golden = np.load(tmp_path / "b" / "golden.npz")
    assert len(golden["reset"]) >= 200
    assert golden["reset"].sum() >= 3


def test_an_export_replaces_a_bundle_and_nothing_else(run, capfd, tmp_path):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    before = (tmp_path / "b" / "manifest.json").stat().st_ino
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    assert (tmp_path / "b" / "manifest.json").stat().st_ino != before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.md").write_text("years of work")
    code, said = export(capfd, run, "--output", tmp_path / "thesis")
    assert (code, "something else than a bundle" in said) == (2, True)
    assert (tmp_path / "thesis" / "chapter1.md").read_text() == "years of work"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_failed_export_leaves_the_bundle_that_was_there(run, capfd, tmp_path, monkeypatch):
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 0
    before = (tmp_path / "b" / "manifest.json").read_bytes()
    monkeypatch.setattr(stages, "build_graph", without_normalizer)
    assert export(capfd, run, "--output", tmp_path / "b")[0] == 3
    assert (tmp_path / "b" / "manifest.json").read_bytes() == before


# ---------------------------------------------------------------------------------------- bad input: 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "0"], "positive"),
        (["--rate", "nan"], "positive"),
        (["--rate", "100"], "trained at 50 Hz"),
        (["--precision", "int8"], "Valid: fp32, fp16, bf16"),
        (["--target", "jetson-thro"], "valid are jetson-thor"),
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


def test_an_unwritable_place_is_code_2(run, capfd, tmp_path):
    (tmp_path / "file").write_text("")
    assert export(capfd, run, "--output", tmp_path / "file" / "b")[0] == 2
    assert export(capfd, run, "--output", tmp_path / "file")[0] == 2


def test_a_weight_that_is_not_a_number_is_code_2_and_named(run, capfd):
    content = torch.load(run / "latest.pt", weights_only=True)
    content["actor_state_dict"]["mlp.0.weight"][3, 1] = float("nan")
    torch.save(content, run / "latest.pt")
    code, said = export(capfd, run)
    assert (code, "mlp.0.weight is not finite in 1 of" in said) == (2, True), said
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


# ---------------------------------------------------------------------------------------- not the policy: 3


def without_normalizer(policy, *rest):
    broken = copy.deepcopy(policy)
    broken.actor.obs_normalizer = nn.Identity()
    return graph.build_graph(broken, *rest)


def test_a_dropped_normalizer_is_code_3(run, capfd, monkeypatch):
    monkeypatch.setattr(stages, "build_graph", without_normalizer)
    code, said = export(capfd, run)
    assert (code, "recorded observations" in said) == (3, True), said
    assert nothing_left(run)


def test_stale_recurrent_state_is_code_3(recurrent, capfd, monkeypatch, tmp_path):
    class Stale(nn.Module):
        def __init__(self, policy):
            super().__init__()
            self.policy, self.state_names = policy, policy.state_names
            self.initial_state, self.actor = policy.initial_state, policy.actor

        def forward(self, obs, *state):
            return (self.policy(obs, *state)[0], *(part + 0 for part in state))

    monkeypatch.setattr(stages, "build_graph", lambda p, *rest: graph.build_graph(Stale(p), *rest))
    code, said = export(capfd, recurrent, "--output", tmp_path / "b")
    assert (code, "recorded observations" in said) == (3, True), said
    assert not (tmp_path / "b").exists()


def plant(monkeypatch, change):
    """Change the contract on its way into the manifest, behind every earlier check."""
    made = bundles.manifest_entry

    def wrong(entry, *rest):
        entry = copy.deepcopy(entry)
        change(entry)
        return made(entry, *rest)

    monkeypatch.setattr(bundles, "manifest_entry", wrong)


def swap(entries, key="name"):
    entries[0][key], entries[1][key] = entries[1][key], entries[0][key]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: swap(c["joints"]), "contract.joints[0].name"),
        (lambda c: c.update(control_dt=0.01), "contract.control_dt: 0.02 and 0.01"),
        (lambda c: c["actions"][0].update(kp=5.0), "contract.actions[0].kp: 0.0 and 5.0"),
        (lambda c: c["actions"][0].update(scale=19.0), "contract.actions[0].scale: 20.0 and 19.0"),
    ],
    ids=["swapped joint", "wrong dt", "wrong gain", "wrong scale"],
)
def test_a_manifest_that_is_not_the_robots_is_code_3(change, where, run, capfd, monkeypatch):
    plant(monkeypatch, change)
    code, said = export(capfd, run)
    assert (code, where in said) == (3, True), said
    assert nothing_left(run)


def test_joints_swapped_everywhere_alike_are_caught_by_driving_the_robot(capfd, monkeypatch, tmp_path):
    """No list disagrees with another; only a robot whose knees are read for each other does."""
    entry = bundles.contract_entry

    def swapped(contract):
        plain = entry(contract)
        joints = {joint["name"]: joint for joint in plain["joints"]}
        joints["l_knee"]["name"], joints["r_knee"]["name"] = "r_knee", "l_knee"
        return plain

    monkeypatch.setattr(bundles, "contract_entry", swapped)
    quick = ["--starts", "8", "--seconds", "2", "--measure-seconds", "0"]
    code, said = export(capfd, "pretrained:humanoid_walk", "--output", tmp_path / "b", quick=quick)
    assert (code, "closed loop" in said) == (3, True), said
    assert not (tmp_path / "b").exists()


def test_a_wrong_dt_everywhere_alike_is_caught_by_the_recording(capfd, monkeypatch, tmp_path):
    entry = bundles.contract_entry
    monkeypatch.setattr(bundles, "contract_entry", lambda contract: entry(contract) | {"control_dt": 0.01})
    code, said = export(capfd, "pretrained:humanoid_walk", "--output", tmp_path / "b")
    assert (code, "observations gait_phase[0]" in said) == (3, True), said


def test_an_unsafe_precision_is_code_3_and_names_the_worst_output(run, capfd):
    """Half precision ends at 65504; a first layer times 1e6 and a second over 1e6 is the same policy in fp32."""
    content = torch.load(run / "latest.pt", weights_only=True)
    actor = content["actor_state_dict"]
    actor["mlp.0.weight"] *= 1e4
    actor["mlp.0.bias"] = actor["mlp.0.bias"].abs() * 1e4 + 7e4  # all units on, in the straight part of ELU
    actor["mlp.0.bias"][:] = 6e4
    torch.save(content, run / "latest.pt")
    code, said = export(capfd, run, "--precision", "fp16")
    assert (code, "fp16 is not safe" in said, "output slider" in said) == (3, True, True), said
    assert nothing_left(run)


# ---------------------------------------------------------------------------------------- budget and machine: 4, 5


@pytest.mark.slow
def test_thirty_million_parameters_are_over_the_budget_of_an_orin_nano(trained, capfd, tmp_path, monkeypatch):
    run = tmp_path / "large"
    run.mkdir()
    saved = yaml.safe_load((trained / "config.yaml").read_text())
    saved["learner"]["actor_hidden"] = [5450, 5450]
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    content = torch.load(trained / "latest.pt", weights_only=True)
    random, actor = torch.Generator().manual_seed(0), content["actor_state_dict"]
    for name, shape in (("mlp.0", (5450, 4)), ("mlp.2", (5450, 5450)), ("mlp.4", (1, 5450))):
        actor[f"{name}.weight"] = torch.randn(shape, generator=random) / shape[1] ** 0.5
        actor[f"{name}.bias"] = torch.zeros(shape[0])
    del content["optimizer_state_dict"]
    torch.save({k: v for k, v in content.items() if k != "env"}, run / "latest.pt")
    monkeypatch.setattr(stages, "RECORDED", (2, 80))
    code = main(["export", str(run), "--target", "jetson-orin-nano", *QUICK, "--output", str(tmp_path / "b")])
    said = capfd.readouterr().out
    assert code == 4
    assert "modelled, not measured" in said.splitlines()[-1]
    latency = json.loads((tmp_path / "b" / "latency.json").read_text())
    assert (latency["status"], latency["fits"]) == ("modelled", False)
    assert "says the model" in (tmp_path / "b" / "REPORT.md").read_text()


@pytest.mark.parametrize("option", ["--require-engine", "--require-measured"])
def test_what_cannot_be_had_here_is_code_5_before_any_work(option, run, capfd):
    code, said = export(capfd, run, "--target", "jetson-thor", option)
    assert (code, option in said) == (5, True), said
    assert nothing_left(run)
