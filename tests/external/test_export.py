"""`export` and `deploy` of policies trained in external environments."""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.export import bundle as bundles
from robolearn.export import stages
from robolearn.export.external import export as external
from robolearn.export.external.loop import ExternalGap, unpaired
from robolearn.export.onnx import graph
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.contract import checked_contract
from robolearn.runtime.errors import Refused
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession
from robolearn.training.build import build_external
from robolearn.training.runs import load_policy, open_run
from tests.export.conftest import QUICK, nothing_left, stripped
from tests.export.test_runtime import ALONE

ACTORS = Path(__file__).with_name("actors.py")
SMALL = ["num_envs=2", "learner.num_steps=16", "learner.minibatch_size=16", "learner.num_epochs=1"]
SMALL += ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "max_iterations=2"]
LITTLE = ["--starts", "8", "--seconds", "1", "--measure-seconds", "0"]


def trained(folder: Path, task: str, *words: str) -> Path:
    assert main(["train", f"task={task}", *SMALL, *words, f"output={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "pendulum", "gymnasium:Pendulum-v1")


@pytest.fixture(scope="module")
def exported(pendulum, tmp_path_factory) -> Path:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("bundles") / "pendulum"
    assert main(["export", str(pendulum), "--target", "jetson-thor", *QUICK, "--output", str(folder)]) == 0
    return folder


def export(capfd, run, *words) -> tuple[int, str, str]:
    """Exit code, and what is said on stdout and on stderr."""
    capfd.readouterr()
    code = main(["export", str(run), *LITTLE, *map(str, words)])
    said = capfd.readouterr()
    assert said.err.count("\n") == (1 if code else 0), said.err
    return code, said.out, said.err


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(stages, "RECORDED", (3, 80))


# ---------------------------------------------------------------------------------------- the bundle


def test_the_bundle_has_the_usual_parts_and_checks_itself(exported):
    parts = {
        "policy.onnx",
        "controller.onnx",
        "manifest.json",
        "golden.npz",
        "runtime.py",
        "latency.json",
        "REPORT.md",
        "config.yaml",
    }
    assert {path.name for path in exported.iterdir()} == parts  # latency.png needs a measurement
    command = [sys.executable, "-c", ALONE, str(exported / "runtime.py")]
    for words in (["check"], ["measure", "--seconds", "0.5"]):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, cwd=exported)
        assert done.returncode == 0, done.stderr
        assert "raw sensors" not in done.stdout
    manifest = json.loads((exported / "manifest.json").read_text())
    assert (manifest["schema"], manifest["contract"]["joints"]) == (2, [])
    assert "Nm" not in json.dumps(manifest)


def test_the_runtime_gives_the_environments_actions(exported, pendulum):
    bundle = Bundle.load(exported)
    robot = Runtime(bundle, OnnxSession(bundle.graph))
    found = open_run(str(pendulum))
    act, env = load_policy(found), build_external(found.config, 4)
    for _ in range(5):
        seen = env.observations["policy"]
        with torch.no_grad():
            wanted = env.actions.given(act(env.observations)).numpy()
        for row, target in zip(seen.numpy(), wanted, strict=True):
            np.testing.assert_allclose(robot.step({"given": row}), target, atol=1e-6)
        env.step(act(env.observations).detach())
    env.close()


def test_actions_are_clipped_to_the_action_space(exported, tmp_path):
    bundle = Bundle.load(exported)

    model = onnx.load(bundle.graph)
    bias = next(t for t in model.graph.initializer if t.name.endswith("actor.mlp.2.bias"))
    for value in (7.0, -7.0):
        bias.CopyFrom(onnx.numpy_helper.from_array(np.array([value], np.float32), bias.name))
        onnx.save(model, tmp_path / "far.onnx")
        robot = Runtime(bundle, OnnxSession(tmp_path / "far.onnx"))
        assert (robot.lower.tolist(), robot.upper.tolist()) == ([-2.0], [2.0])
        assert robot.step({"given": [1, 0, 0]}).tolist() == [math.copysign(2.0, value)]


def test_a_nan_observation_is_refused_by_column_and_a_large_one_is_not(exported):
    bundle = Bundle.load(exported)
    robot = Runtime(bundle, OnnxSession(bundle.graph))
    with pytest.raises(ValueError, match=r"column observation\[2\] is nan"):
        robot.step({"given": [0, 1, np.nan]})
    with pytest.raises(ValueError, match="given must be 3 numbers, not 2"):
        robot.step({"given": [0, 1]})
    with pytest.raises(ValueError, match="given is missing; a step needs given"):
        robot.step({"quat": [1, 0, 0, 0]})
    assert np.isfinite(robot.step({"given": [5e6, 0, 0]})).all()


def test_the_golden_check_finds_a_wrong_order_of_columns(exported):
    bundle = Bundle.load(exported)
    bundle.golden["given"] = bundle.golden["given"][:, [1, 0, 2]]
    with pytest.raises(Refused, match=r"observations observation\[0\] is"):
        replay(bundle, OnnxSession(bundle.graph))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (
            lambda c: c.update(joints=[{"name": "a", "home": 0, "lower": None, "upper": None}]),
            "must be the only one",
        ),
        (lambda c: c.update(command=["forward"]), "must be the only one"),
        (lambda c: c["observations"].append(c["observations"][0]), "must be the only one"),
        (lambda c: c["observations"][0]["columns"].pop(), "takes 3 columns and names 2"),
        (lambda c: c["observations"][0].update(columns=["a", "a", "b"]), "the same name"),
        (lambda c: c["actions"][0].update(kind="position"), "there are no joints"),
        (lambda c: c["actions"][0].update(lower=3.0), "lower must be below upper"),
        (lambda c: c["actions"][0].pop("upper"), "malformed"),
        (lambda c: c["actions"].append(c["actions"][0]), "drive the same joint"),
    ],
)
def test_an_inconsistent_contract_is_refused(change, where, exported):
    contract = copy.deepcopy(Bundle.load(exported).contract)
    checked_contract(contract, "here")
    change(contract)
    with pytest.raises(Refused, match=re.escape(where)):
        checked_contract(contract, "here")


# ---------------------------------------------------------------------------------------- held against the environment


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (
            lambda c: c["actions"][0].update(offset=0.1),
            "offset of action[0]: the manifest says 0.1, the environment 0.0",
        ),
        (
            lambda c: c["actions"][0].update(scale=1.9),
            "scale of action[0]: the manifest says 1.9, the environment 2.0",
        ),
        (
            lambda c: c["actions"][0].update(lower=None),
            "lower of action[0]: the manifest says None, the environment -2.0",
        ),
        (
            lambda c: c["actions"][0].update(upper=9.0),
            "upper of action[0]: the manifest says 9.0, the environment 2.0",
        ),
        (
            lambda c: c["actions"][0].update(joint="torque"),
            "actions: the manifest says ['torque'], the environment ['action[0]']",
        ),
        (
            lambda c: c["observations"][0]["columns"].reverse(),
            "column 0 of the observation: the manifest says observation[2]",
        ),
        (
            lambda c: c["observations"][0].update(width=2),
            "width of the observation: the manifest says 2, the environment 3",
        ),
        (lambda c: c.update(control_dt=0.02), "control_dt: the manifest says 0.02, the environment 0.05"),
    ],
)
def test_a_manifest_that_differs_from_the_environment_is_refused_by_name(change, where, exported):
    contract = copy.deepcopy(Bundle.load(exported).contract)
    env = build_external(config.resolve(["task=gymnasium:Pendulum-v1"]), 9)
    external.require_consistent(SimpleNamespace(contract=contract), env)
    change(contract)
    with pytest.raises(Refused, match=re.escape(where)):
        external.require_consistent(SimpleNamespace(contract=contract), env)
    env.close()


def wrong_scale(monkeypatch):
    entry = bundles.contract_entry

    def wrong(contract, items=()):
        plain = entry(contract, items)
        plain["actions"][0]["scale"] = 1.9
        return plain

    monkeypatch.setattr(bundles, "contract_entry", wrong)


def test_a_wrong_scale_is_code_3_and_leaves_no_bundle(pendulum, capfd, monkeypatch, quick):
    wrong_scale(monkeypatch)
    code, _, said = export(capfd, pendulum)
    assert (
        code,
        "the manifest differs from the environment: scale of action[0]: the manifest says 1.9, the environment 2.0"
        in said,
    ) == (
        3,
        True,
    ), said
    assert nothing_left(pendulum)


def test_the_closed_loop_finds_another_network_whatever_its_return(pendulum, capfd, monkeypatch, quick):
    def module(policy, *rest):
        return graph.ExportModule(stripped(policy), *rest)

    monkeypatch.setattr(stages, "ExportModule", module)
    monkeypatch.setattr(stages, "replay", lambda *_: {"observations": 0.0, "actions": 0.0, "targets": 0.0})
    code, _, said = export(capfd, pendulum)
    assert (code, "differ from the trained policy's" in said, "action[0] is" in said) == (
        3,
        True,
        True,
    ), said


def test_an_environment_changed_since_training_is_refused_and_a_moved_file_is_not(tmp_path, capfd):
    places = [tmp_path / name / "actors.py" for name in ("first", "changed", "moved")]
    for place in places:
        place.parent.mkdir()
        shutil.copy(ACTORS, place)
    first, changed, moved = places
    changed.write_text(ACTORS.read_text().replace("place", "distance"))
    run = trained(tmp_path / "run", f"gymnasium:{first}:Push")
    code, _, said = export(capfd, run, f"task=gymnasium:{changed}:Push")
    assert (code, "contract.observations[0].columns[0]: 'place[0]' and 'distance[0]'" in said) == (2, True), (
        said
    )
    code, _, said = export(capfd, run, f"task=gymnasium:{moved}:Push")
    assert code == 0, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["task.control_dt=0.1"],
            "the settings change the policy's contract: contract.control_dt: 0.05 and 0.1",
        ),
        (["task.actions=clipped"], "the settings change the policy's contract: contract.actions[0].scale"),
        (["--profile", "unitree"], "--profile unitree needs joints"),
        (["--rate", "50"], "--rate 50 Hz: the policy was trained at 20 Hz"),
    ],
)
def test_settings_that_change_the_policy_are_refused_first(words, said, pendulum, capfd):
    code, _, line = export(capfd, pendulum, *words)
    assert (code, said in line) == (2, True), line
    assert nothing_left(pendulum)


def test_an_unknown_control_period_must_be_set(tmp_path, capfd, quick):
    named = f"task=gymnasium:{ACTORS}:Timeless"
    run = trained(tmp_path / "run", named.removeprefix("task="))
    for words in ([], ["--rate", "50"]):
        code, _, said = export(capfd, run, named, *words)
        assert (code, "task.control_dt=0.02" in said) == (2, True), said
    assert export(capfd, run, named, "task.control_dt=0.04", "--output", tmp_path / "b")[0] == 0
    assert Bundle.load(tmp_path / "b").rate == 25


# ---------------------------------------------------------------------------------------- closed loop and report


def test_an_environment_that_is_not_reproducible_is_reported_not_refused(tmp_path, capfd, quick):
    named = f"task=gymnasium:{ACTORS}:Dice"
    run = trained(tmp_path / "run", named.removeprefix("task="))
    code, said, _ = export(capfd, run, named, "--output", tmp_path / "b")
    assert (code, "not paired (not repeatable under a seed)" in " ".join(said.split())) == (0, True), said
    assert "not repeatable under a seed" in (tmp_path / "b" / "REPORT.md").read_text()


def test_a_recurrent_policy_is_exported(tmp_path, capfd, quick):
    named = f"gymnasium:{ACTORS}:Push"
    run = trained(tmp_path / "run", named, "learner.rnn=gru", "learner.rnn_hidden=8")
    code, said, _ = export(capfd, run, f"task={named}", "--output", tmp_path / "b")
    assert (code, "8 paired starts of 1 s" in " ".join(said.split())) == (0, True), said
    assert "to clear the recurrent state" in (tmp_path / "b" / "REPORT.md").read_text()


def test_the_recording_omits_steps_that_only_reset(tmp_path, capfd, quick):
    named = f"gymnasium:{Path(__file__).with_name('counters.py')}:NextStep"
    run = trained(tmp_path / "run", named, "task.actions=clipped")
    assert export(capfd, run, f"task={named}", "--output", tmp_path / "b")[0] == 0
    golden = Bundle.load(tmp_path / "b").golden
    # Episodes of three steps come first; those of one step that only reset come last.
    assert golden["reset"][:6].tolist() == [1, 0, 0, 1, 0, 0]
    assert golden["given"][:6, 1].tolist() == [0, 1, 2, 0, 1, 2]
    assert golden["given"][-1].tolist()[1] == 3


def test_a_return_of_0_everywhere_is_a_warning(tmp_path, capfd, quick):
    (tmp_path / "actors.py").write_text(ACTORS.read_text().replace("-1.0 - abs(self.x)", "0.0"))
    named = f"task=gymnasium:{tmp_path}/actors.py:Push"
    run = trained(tmp_path / "run", named.removeprefix("task="))
    code, said, _ = export(capfd, run, named, "--output", tmp_path / "b")
    assert code == 0
    assert re.search(
        r"warn +closed loop .*actions within \S+; return 0 in every start, so returns cannot be compared; 0 terminated",
        " ".join(said.split()),
    ), said
    text = (tmp_path / "b" / "REPORT.md").read_text()
    assert (
        "| Does it reach the same return? | **not known**: return 0 in every start, so returns cannot be compared |"
        in text
    )


def test_a_time_limit_is_reported_only_where_the_environment_has_one(exported, tmp_path, capfd, quick):
    assert "| an episode | at most 10 s |" in (exported / "REPORT.md").read_text()
    named = f"task=gymnasium:{ACTORS}:Push"
    run = trained(tmp_path / "run", named.removeprefix("task="))
    assert export(capfd, run, named, "--output", tmp_path / "b")[0] == 0
    assert "| an episode | no time limit stated |" in (tmp_path / "b" / "REPORT.md").read_text()
    assert main(["eval", str(run), named, "--episodes", "2"]) == 0
    assert re.search(r"episode length +2\.00 s\n", capfd.readouterr().out)
    assert json.loads((run / "metrics.json").read_text())["episode_limit_s"] is None
    assert main(["eval", str(run), named, "--episodes", "2", "task.episode_steps=10"]) == 0
    assert re.search(r"episode length +1\.00 s of 1 s\n", capfd.readouterr().out)


def test_the_report_lists_columns_and_actions_and_no_joints(exported):
    text = (exported / "REPORT.md").read_text()
    assert "| 2 | `observation[2]` |" in text
    assert "| action[0] | 0 | 2 | -2 | 2 |" in text
    assert 'robot.step({"given": observation})' in text
    assert "| How often is an episode terminated within 0.4 s? | 0 of 8 starts" in text
    assert "**hardly tested**" in text
    assert not re.search(r"\b(fell|falls?|raw sensors|sensor readings|home|kp|quat|gyro)\b", text)
    assert text.startswith("# gymnasium:Pendulum-v1, for Jetson Thor")


def test_unpaired_returns_are_compared_with_both_variances():
    """9, 10, 11 and 10, 11, 12: means 1 apart, standard errors sqrt(1/3) each; t of 2 degrees of freedom is 4.303."""
    stood = np.ones(3, bool)
    gap = unpaired(np.array([9.0, 10, 11]), np.array([10.0, 11, 12]), stood, stood, 1.0, 1.0)
    assert gap.mean == pytest.approx(0.1)
    assert gap.high - gap.mean == pytest.approx(4.303 * (2 / 3) ** 0.5 / 10, rel=0.01)


@pytest.mark.parametrize(
    ("mean", "half", "inside", "differs"),
    [
        (0.001, 0.002, True, False),
        (0.012, 0.013, False, False),
        (0.03, 0.01, False, True),
        (0.006, 0.001, True, False),
    ],
)
def test_only_a_significant_gap_is_a_difference(mean, half, inside, differs):
    gap = ExternalGap(mean, mean - half, mean + half, 512, 10.0, 1.0, 1.0, 1.0, 1.0)
    assert (gap.inside, gap.significant) == (inside, differs)
    assert ("not shown to be within 1 %" in str(gap)) is not inside


# ---------------------------------------------------------------------------------------- deploy


def test_the_bundle_drives_its_environment_in_real_time(exported, capsys):
    assert main(["deploy", str(exported), "--seconds", "0.5", "--max-missed", "1"]) == 0
    said = capsys.readouterr().out
    assert "gymnasium:Pendulum-v1 in real time: 10 control steps at 20 Hz with onnxruntime" in said
    assert re.search(r"terminated +0\n", said)


def test_settings_of_another_task_are_refused_by_deploy(exported, capsys):
    assert main(["deploy", str(exported), "task.actions=clipped"]) == 2
    assert "contract.actions[0].scale: 2.0 and 1.0" in capsys.readouterr().err


def test_deploy_counts_terminated_episodes_without_failing(tmp_path, capfd, quick):
    named = f"task=gymnasium:{ACTORS}:Short"
    run = trained(tmp_path / "run", named.removeprefix("task="))
    code, said, _ = export(capfd, run, named, "--output", tmp_path / "b")
    assert (code, "8 terminated, 8 with the trained policy" in " ".join(said.split())) == (0, True), said
    assert main(["deploy", str(tmp_path / "b"), named, "--seconds", "0.7", "--max-missed", "1"]) == 0
    assert re.search(
        r"terminated +2 episodes; the environment defines what that means\n", capfd.readouterr().out
    )
