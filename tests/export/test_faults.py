"""Faults planted in an export, with exit codes: 3 not the trained policy, 4 over the budget, 5 missing here."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import yaml
from torch import nn

from robolearn.cli import main
from robolearn.export import bundle as bundles
from robolearn.export import consistent, stages
from robolearn.export.onnx import graph
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import Refused
from robolearn.tasks.humanoid_walk import HumanoidWalk
from tests.export.conftest import QUICK, export, nothing_left, without_normalizer

# ---------------------------------------------------------------------------------------- not the policy: 3


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
    """Change the contract wherever the export writes it, so that all its copies agree."""
    entry = bundles.contract_entry

    def wrong(contract, items=()):
        plain = entry(contract, items)
        change(plain)
        return plain

    monkeypatch.setattr(bundles, "contract_entry", wrong)


def swap(entries, first, second, key):
    one, other = (next(e for e in entries if e[key] == name) for name in (first, second))
    one[key], other[key] = second, first


def swap_everywhere(contract, first, second):
    swap(contract["joints"], first, second, "name")
    swap(contract["actions"], first, second, "joint")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: swap(c["joints"], "l_knee", "r_knee", "name"), "joints"),
        (lambda c: swap_everywhere(c, "l_shoulder_yaw", "r_shoulder_yaw"), "joints"),
        (
            lambda c: c["actions"][0].update(kp=110.0),
            "kp of actuator l_hip_pitch: the manifest says 110.0, the robot 100.0",
        ),
        (lambda c: c["actions"][0].update(kd=0.0), "kd of actuator l_hip_pitch"),
        (lambda c: c["actions"][0].update(effort=8.8), "effort of actuator l_hip_pitch"),
        (lambda c: c["actions"][0].update(kind="force"), "kind of actuator l_hip_pitch"),
        (lambda c: c["joints"][0].update(upper=0.001), "upper of joint l_hip_pitch"),
        (lambda c: c["joints"][0].update(home=0.1), "home of joint l_hip_pitch"),
        (lambda c: c.update(command=["forward", "yaw", "sideways"]), "command"),
        (lambda c: c.update(action_delay=[3, 9]), "action_delay as trained"),
        (lambda c: c["actions"][0].update(scale=0.49), "joint target of l_hip_pitch at action 1"),
        (lambda c: c.update(control_dt=0.01), "control_dt: the manifest says 0.01, the robot 0.02"),
    ],
)
def test_a_contract_that_differs_from_the_simulated_robot_is_code_3(
    change, where, capfd, monkeypatch, tmp_path
):
    plant(monkeypatch, change)
    code, said = export(capfd, "pretrained:humanoid_walk", "--output", tmp_path / "b")
    assert (code, f"the manifest differs from the simulated robot: {where}" in said) == (3, True), said
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda c: swap(c["joints"], "l_knee", "r_knee", "name"), "joint_pos_rel"),
        (
            lambda c: swap_everywhere(c, "l_shoulder_yaw", "r_shoulder_yaw"),
            "differ from the trained policy's",
        ),
    ],
    ids=["swapped sensors", "swapped joint"],
)
def test_faults_that_no_comparison_finds_fail_in_the_closed_loop(change, where, capfd, monkeypatch, tmp_path):
    plant(monkeypatch, change)
    monkeypatch.setattr(stages, "require_consistent", lambda *_: None)
    monkeypatch.setattr(stages, "replay", lambda *_: {"observations": 0.0, "actions": 0.0, "targets": 0.0})
    quick = ["--starts", "16", "--seconds", "4", "--measure-seconds", "0"]
    words = ["task.commands.standing=0.5", "task.commands.seconds=[1,2]"]
    code, said = export(capfd, "pretrained:humanoid_walk", *words, "--output", tmp_path / "b", quick=quick)
    assert (code, "closed loop" in said, where in said) == (3, True, True), said


def test_gains_are_compared_with_the_torques_of_the_simulated_motors(exported, make_env):
    task = HumanoidWalk(randomize={})
    env, contract = make_env(task, num_envs=3), Bundle.load(exported).contract
    consistent._require_torques(contract, env)
    for key, factor in (("kp", 1.01), ("kd", 1.1), ("effort", 1.01)):
        wrong = copy.deepcopy(contract)
        wrong["actions"][3][key] *= factor
        with pytest.raises(Refused, match=f"with its {key} the torque of l_knee"):
            consistent._require_torques(wrong, env)


@pytest.mark.parametrize(
    ("precision", "weight", "bias", "last_weight", "last_bias"),
    [("fp16", 40000.0, 60000.0, 2**-14, 0.0), ("bf16", 2.0, 61440.0, 1.0, -61440.0)],
)
def test_an_unsafe_precision_is_code_3_and_names_the_worst_output(
    precision, weight, bias, last_weight, last_bias, run, capfd
):
    """One hidden unit with weights that are exact in half precision, so that only its arithmetic can fail.

    fp16 ends at 65504, which 60000 + 40000 x exceeds; bf16 has 8 bits, so 61440 + 2 x has steps of 256.
    """
    content = torch.load(run / "latest.pt", weights_only=True)
    state = content["policy"]["state"]
    for name in ("actor.mlp.0.weight", "actor.mlp.0.bias", "actor.mlp.2.weight", "actor.mlp.2.bias"):
        state[name] = torch.zeros_like(state[name])
    state["actor.mlp.0.weight"][0], state["actor.mlp.0.bias"][0] = weight, bias
    state["actor.mlp.2.weight"][0, 0], state["actor.mlp.2.bias"][0] = last_weight, last_bias
    torch.save(content, run / "latest.pt")
    code, said = export(capfd, run, "--precision", precision)
    assert (code, f"{precision} is not safe" in said, "output slider" in said) == (3, True, True), said
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
    # Without its policy entry, the policy is made from the configuration and actor_state_dict.
    dropped = ("env", "optimizer_state_dict", "policy")
    torch.save({k: v for k, v in content.items() if k not in dropped}, run / "latest.pt")
    code = main(["export", str(run), "--target", "jetson-orin-nano", *QUICK, "--output", str(tmp_path / "b")])
    said = capfd.readouterr().out
    assert code == 4
    assert "modelled, not measured" in said.splitlines()[-1]
    latency = json.loads((tmp_path / "b" / "latency.json").read_text())
    assert (latency["status"], latency["fits"]) == ("modelled", False)
    assert "predicts a model" in (tmp_path / "b" / "REPORT.md").read_text()


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_require_measured_without_enough_seconds_is_code_5(seconds, run, capfd):
    words = ["--target", "host", "--require-measured", "--measure-seconds", seconds]
    code, said = export(capfd, run, *words, quick=["--starts", "4", "--seconds", "0.1"])
    assert (code, "--measure-seconds" in said) == (5, True), said


def test_a_measurement_on_the_target_over_its_budget_is_code_4(run, capfd, monkeypatch, tmp_path):
    def slow(*_):
        step = {"p50_ms": 0.5, "p99_ms": 2.5, "max_ms": 3.0, "jitter_ms": 2.0, "mean_ms": 1.0, "count": 500}
        step["rate_hz"] = 50.0
        times = [0.5] * 495 + [2.5] * 5
        return {
            "runtime": "onnxruntime",
            **dict.fromkeys(("paced", "network", "hot", "late"), step),
            "paced_ms": times,
        }

    monkeypatch.setattr(stages, "measure", slow)
    quick = ["--starts", "4", "--seconds", "0.1", "--measure-seconds", "10"]
    assert main(["export", str(run), "--output", str(tmp_path / "b"), *quick]) == 4
    last = capfd.readouterr().out.splitlines()[-1]
    assert "(measured)" in last
    assert "p99 2.500 ms is over 2.000 ms" in last
    assert json.loads((tmp_path / "b" / "latency.json").read_text())["status"] == "measured-on-target"


@pytest.mark.parametrize("option", ["--require-engine", "--require-measured"])
def test_a_requirement_that_this_machine_lacks_is_code_5_before_any_stage(option, run, capfd):
    code, said = export(capfd, run, "--target", "jetson-thor", option)
    assert (code, option in said) == (5, True), said
    assert nothing_left(run)
