"""The runtime that travels with a bundle: alone, without torch and without us; and everything it must refuse."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from robolearn import runtime
from robolearn.contract import contract_of
from robolearn.export.bundle import PARTS, contract_entry, single_file
from robolearn.runtime import main as commands
from robolearn.runtime.bundle import Bundle, difference
from robolearn.runtime.errors import Refused
from robolearn.runtime.measure import is_target, over_budget, paced, statistics
from robolearn.runtime.observe import GaitClock, checked_contract
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession
from robolearn.tasks.commands import Pushes, VelocityCommands
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.observations import projected_gravity

ALONE = """
import runpy, sys
for absent in ("torch", "robolearn", "onnx", "mujoco"):
    sys.modules[absent] = None  # importing it fails
sys.argv = ["runtime.py", *sys.argv[1:]]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def alone(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The bundle's own runtime.py, on a computer with numpy and onnxruntime."""
    command = [sys.executable, "-c", ALONE, str(bundle / "runtime.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=bundle)


def refused(bundle: Path, *words: str) -> tuple[int, str]:
    """Exit code and the one line of a command that says no."""
    done = alone(bundle, *(words or ("check",)))
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


# ---------------------------------------------------------------------------------------- one file


def test_the_single_file_is_all_of_the_parts_and_nothing_twice():
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


def test_a_bundle_checks_itself_without_torch_and_without_us(exported):
    done = alone(exported, "check")
    assert done.returncode == 0, done.stderr
    assert "240 recorded control steps repeated from raw sensors" in done.stdout


def test_it_measures_and_writes_down_whose_times_they_are(bundle):
    done = alone(bundle, "measure", "--seconds", "0.5")
    assert done.returncode in (0, 4), done.stderr  # how long it takes is no matter of tests
    assert "verdict: none for Jetson Thor" in done.stdout
    latency = json.loads((bundle / "latency.json").read_text())
    assert latency["status"] == "measured-other-device"
    assert latency["fits"] is None
    assert latency["measured"][0]["paced"]["count"] == 25
    assert sum(latency["measured"][0]["histogram"]["counts"]) == 25


def test_on_a_board_that_calls_itself_the_target_it_is_measured_on_target(bundle, monkeypatch, capsys):
    monkeypatch.setattr(commands, "device_tree_model", lambda: "NVIDIA Jetson AGX Thor Developer Kit")
    assert commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.2"]) in (0, 4)
    assert "verdict: measured on Jetson Thor" in capsys.readouterr().out
    assert json.loads((bundle / "latency.json").read_text())["status"] == "measured-on-target"


def test_without_tensorrt_building_is_code_5(exported):
    code, said = refused(exported, "build")
    assert code == 5
    assert "TensorRT" in said


# ---------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("name", ["policy.onnx", "golden.npz"])
def test_a_truncated_file_is_code_2(name, bundle):
    whole = (bundle / name).read_bytes()
    (bundle / name).write_bytes(whole[:-100])
    code, said = refused(bundle)
    assert (code, f"{name} is damaged" in said) == (2, True), said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["contract"].update(control_dt=0.01), "contract.control_dt: 0.01 and 0.02"),
        (lambda m: m["contract"].update(control_dt=0), "control_dt=0 s is no control period"),
        (lambda m: m["contract"]["actions"][3].update(kp=12.0), "contract.actions[3].kp: 12.0 and 120.0"),
        (lambda m: m["contract"]["actions"][3].update(kp=float("nan")), "a number is not finite"),
        (lambda m: m["contract"]["joints"].pop(), "which is no joint"),
        (lambda m: m["contract"]["joints"][0].update(name="l_knee"), "two joints have the same name"),
        (lambda m: m["contract"]["observations"][0].update(name="lidar"), "unknown observation 'lidar'"),
        (lambda m: m["contract"]["observations"][0].update(history=3), "has a history of 3"),
        (lambda m: m["contract"]["extra"].update(parachute=1), "'parachute'"),
        (lambda m: m["contract"]["extra"].pop("gait_clock"), "go together"),
        (lambda m: m.update(schema=7), "schema 7"),
        (lambda m: m.pop("target"), "incomplete or malformed"),
        (lambda m: m["graph"].update(file="../policy.onnx"), "outside the bundle"),
    ],
)
def test_a_changed_manifest_is_code_2_and_says_where(change, said, bundle, edit):
    edit(bundle, change)
    code, line = refused(bundle)
    assert (code, said in line) == (2, True), line


def test_two_joints_swapped_in_the_manifest_are_code_2(bundle, edit):
    def swap(manifest):
        joints = {joint["name"]: joint for joint in manifest["contract"]["joints"]}
        joints["l_knee"]["name"], joints["r_knee"]["name"] = "r_knee", "l_knee"

    edit(bundle, swap)
    code, said = refused(bundle)
    assert (code, "contract.joints[3].name" in said) == (2, True), said


def test_a_graph_of_another_width_is_code_2(bundle, rehash):
    model = onnx.load(bundle / "policy.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 75
    del model.graph.value_info[:]
    shape = onnx.helper.make_tensor_value_info("obs", onnx.TensorProto.FLOAT, [1, 75])
    cut = onnx.helper.make_node("Slice", ["obs75", "s0", "s74", "s1"], ["obs"])
    shape.name = "obs75"
    model.graph.input[0].CopyFrom(shape)
    model.graph.node.insert(0, cut)
    for name, value in (("s0", [0]), ("s74", [74]), ("s1", [1])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    onnx.save(model, bundle / "policy.onnx")
    rehash(bundle)
    code, said = refused(bundle)
    assert (code, "the network's inputs are obs75 1x75" in said) == (2, True), said


def test_a_dynamic_batch_is_code_2(bundle, rehash):
    model = onnx.load(bundle / "policy.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, bundle / "policy.onnx")
    rehash(bundle)
    code, said = refused(bundle)
    assert (code, "dynamic shape" in said) == (2, True), said


def test_a_network_exported_with_another_contract_is_code_2(bundle, edit, rehash):
    """Manifest and recording forged alike; the network still knows what it was exported with."""
    edit(bundle, lambda m: m["contract"]["actions"][3].update(kp=12.0))
    manifest = json.loads((bundle / "manifest.json").read_text())
    with np.load(bundle / "golden.npz") as file:
        arrays = dict(file)
    arrays["contract"] = np.array(json.dumps(manifest["contract"]))
    np.savez(bundle / "golden.npz", **arrays)
    rehash(bundle)
    code, said = refused(bundle)
    assert (code, "exported with another contract: contract.actions[3].kp" in said) == (2, True), said


def test_another_networks_weights_fail_the_golden_check_with_code_3(bundle, rehash):
    model = onnx.load(bundle / "policy.onnx")
    weight = next(t for t in model.graph.initializer if list(t.dims) == [256, 74])
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0] += 0.01
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, bundle / "policy.onnx")
    rehash(bundle)
    code, said = refused(bundle)
    assert (code, "golden check failed in step" in said) == (3, True), said


def test_no_bundle_at_all_is_code_2(tmp_path, exported):
    (tmp_path / "runtime.py").write_bytes((exported / "runtime.py").read_bytes())
    code, said = refused(tmp_path)
    assert (code, "is no bundle" in said) == (2, True), said


# ---------------------------------------------------------------------------------------- on the robot


@pytest.fixture
def robot(exported) -> Runtime:
    found = Bundle.load(exported)
    return Runtime(found, OnnxSession(found.graph))


def readings(robot: Runtime, **other: object) -> dict:
    home = robot._home.copy()
    still = {"quat": [1, 0, 0, 0], "gyro": [0, 0, 0], "joint_pos": home, "joint_vel": 0 * home}
    return still | other


def test_the_observation_of_a_robot_at_home_is_what_one_writes_down_by_hand(robot):
    robot.step(readings(robot, gyro=[0.1, 0.2, 0.3]), [0.5, 0.0, -0.1])
    seen = robot.observation
    assert seen[:6] == pytest.approx([0.1, 0.2, 0.3, 0, 0, -1])
    assert not seen[6:69].any()  # joints at home and at rest, no action yet
    assert seen[69:74] == pytest.approx(
        [0.5, 0.0, -0.1, 0.0, 1.0]
    )  # the clock rests at the start of its cycle


def test_targets_are_offset_plus_scale_times_action_while_the_clock_rests(robot):
    targets = robot.step(readings(robot), [0, 0, 0])
    knee = robot.actuators.index("r_knee")
    assert targets[knee] == pytest.approx(0.6 + 0.5 * robot.action[knee], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gyro", [0, float("nan"), 0]),
        ("gyro", [0, 0]),
        ("quat", [1, 0, 0]),
        ("joint_pos", [0.0] * 20),
        ("joint_vel", [float("inf")] * 21),
    ],
)
def test_a_reading_that_cannot_be_changes_nothing(robot, name, value):
    robot.step(readings(robot), [1, 0, 0])
    robot.step(readings(robot), [1, 0, 0])
    before = (robot.action.copy(), robot.clock.phase, robot.clock.walking, robot.observation.copy())
    with pytest.raises(ValueError, match=f"{name} must be"):
        robot.step(readings(robot, **{name: value}), [1, 0, 0])
    with pytest.raises(ValueError, match="command must be 3"):
        robot.step(readings(robot), [1, 0])
    after = (robot.action, robot.clock.phase, robot.clock.walking, robot.observation)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_reset_forgets_everything(robot):
    first = robot.step(readings(robot), [1, 0, 0]).copy()
    for _ in range(5):
        robot.step(readings(robot, gyro=[1, 0, 0]), [1, 0, 0])
    assert robot.clock.walking
    robot.reset()
    assert np.array_equal(robot.step(readings(robot), [1, 0, 0]), first)


def test_robots_on_one_session_do_not_disturb_each_other(exported):
    found = Bundle.load(exported)
    session = OnnxSession(found.graph)
    alone, one, other = (Runtime(found, session) for _ in range(3))
    for i in range(10):
        expected = alone.step(readings(alone, gyro=[0.1 * i, 0, 0]), [1, 0, 0])
        other.step(readings(other, gyro=[0, 3.0, 0]), [-0.5, 0, 0])
        assert np.array_equal(one.step(readings(one, gyro=[0.1 * i, 0, 0]), [1, 0, 0]), expected)


def test_memory_is_carried_and_a_stale_one_fails_the_golden_check(tmp_path, exported, trained):
    found = Bundle.load(exported)
    session = OnnxSession(found.graph)
    assert replay(found, session)["targets"] < 1e-5

    class Frozen:
        name, inputs, outputs, metadata = "frozen", session.inputs, session.outputs, {}

        def run(self, feeds):
            return {"actions": np.zeros((1, 21), np.float32)}

    with pytest.raises(Refused, match=r"actions .* is 0"):
        replay(found, Frozen())


def test_the_gait_clock_is_the_one_it_was_trained_with(make_env):
    task = HumanoidWalk(balance_window=0.0)  # as on the robot
    task.commands = VelocityCommands(seconds=(0.3, 1.2), standing=0.5)
    task.pushes = Pushes(speed=(0.5, 0.5), seconds=(0.3, 0.9))
    env = make_env(task, num_envs=8)
    contract = contract_of(env)
    clocks = [GaitClock(contract.extra["gait_clock"], contract.control_dt) for _ in range(8)]
    for clock, phase in zip(clocks, env.ctx.memory["phase"], strict=True):
        clock.reset(phase.item())
    rested = 0
    for _ in range(150):
        command = env.ctx.command.clone().numpy()
        done = (result := env.step(torch.zeros(8, 21))).terminated | result.truncated
        robot, memory = env.backend.state.robot, env.ctx.memory
        gravity = projected_gravity(robot.base_quat).numpy()
        for i, clock in enumerate(clocks):
            if done[i]:
                clock.reset(memory["phase"][i].item())
                continue
            clock.advance(robot.base_ang_vel[i].numpy(), gravity[i], command[i])
            assert clock.walking == bool(memory["walking"][i])
            assert clock.phase == pytest.approx(memory["phase"][i].item(), abs=1e-6)
            rested += not clock.walking
    assert rested > 50


def test_every_contract_of_ours_is_one_that_the_runtime_takes(make_env):
    plain = json.loads(json.dumps(asdict(contract_of(make_env(HumanoidWalk(), num_envs=2)))))
    assert checked_contract(plain, "it") == plain
    assert checked_contract(contract_entry(contract_of(make_env(HumanoidWalk(), num_envs=2))), "it")


# ---------------------------------------------------------------------------------------- arithmetic


def test_the_first_difference_is_named():
    one = {"a": [1, {"b": 2.0}], "c": 3}
    assert difference(one, {"a": [1, {"b": 2.0}], "c": 3}) == ""
    assert difference(one, {"a": [1, {"b": 2.5}], "c": 4}) == "contract.a[1].b: 2.0 and 2.5"
    assert difference(one, {"a": [1], "c": 3}) == "contract.a has 2 and 1 entries"
    assert difference(one, {"a": [1, {"b": 2.0}]}) == "contract.c is in one of the two only"


def test_statistics_of_a_hundred_milliseconds():
    found = statistics(np.arange(1, 102) * 1e-3)  # 1 .. 101 ms: the median is 51, p99 is 100
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == pytest.approx((51, 100, 101))
    assert (found["mean_ms"], found["count"]) == (pytest.approx(51), 101)


def test_each_share_of_the_budget_is_held_by_itself():
    budget = {"p50": 0.05, "p99": 0.1, "max": 0.25, "jitter": 0.05}  # of 20 ms: 1, 2, 5 and 1 ms

    def over(p50, p99, longest):
        step = {"p50_ms": p50, "p99_ms": p99, "max_ms": longest, "rate_hz": 50.0}
        return [line.split()[0] for line in over_budget({"paced": step}, budget)]

    assert over(0.9, 1.8, 4.9) == []
    assert over(1.1, 1.8, 4.9) == ["p50"]
    assert over(1.0, 2.1, 4.9) == ["p99", "jitter"]
    assert over(0.9, 1.8, 5.1) == ["max"]


def test_pacing_keeps_the_schedule_and_counts_each_step():
    calls = []
    took, late = paced(lambda: calls.append(1), rate=200.0, seconds=0.1)
    assert (len(calls), len(took), len(late)) == (20, 20, 20)
    assert (late >= 0).all()  # no step begins before it is due


@pytest.mark.parametrize(
    ("board", "mine"),
    [("NVIDIA Jetson AGX Thor Developer Kit", True), ("NVIDIA Jetson Orin Nano", False), (None, False)],
)
def test_a_board_is_the_target_by_what_it_calls_itself(board, mine):
    target = {"any_machine": False, "detect": ["AGX Thor"]}
    assert is_target(target, board) is mine
    assert is_target(target | {"any_machine": True}, board)
