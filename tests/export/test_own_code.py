"""What runs on the robot is the task's own code: a user's task exports, and every mutation of it is found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.contract import mapping
from robolearn.core.measurable import reads
from robolearn.errors import ConfigError
from robolearn.export import profiles
from robolearn.export.controller import Controller
from robolearn.export.onnx.check import check_graph
from robolearn.export.onnx.graph import ExportModule, exported
from robolearn.export.profiles import PROFILES
from robolearn.export.record import on_robot
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run
from tests.export import clocked
from tests.export.conftest import QUICK

FILE = Path(clocked.__file__)
TASK = f"task={FILE}:Clocked"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    small = ["learner.actor_hidden=[16]", "learner.critic_hidden=[16]", "learner.estimated_groups=[]"]
    words = [TASK, "num_envs=64", "max_iterations=1", *small, f"output={folder}"]
    assert main(["train", *words]) == 0
    return folder


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory) -> Bundle:
    folder = tmp_path_factory.mktemp("own") / "bundle"
    assert main(["export", str(run), TASK, "--output", str(folder), *QUICK]) == 0
    return Bundle.load(folder)


def test_a_task_file_with_its_own_observations_clock_and_sensor_exports_with_nothing_else_touched(bundle):
    names = [item["name"] for item in bundle.contract["observations"]]
    assert names[6:] == ["knees", "recent_gyro", "clock", "reflex", "switches"]
    assert [item["width"] for item in bundle.contract["observations"]][6:] == [1, 6, 2, 1, 2]
    assert [entry["name"] for entry in bundle.manifest["sensors"]] == [
        "quat", "gyro", "joint_pos", "joint_vel", "foot_switches",
    ]  # fmt: skip
    state = {entry["name"]: entry["shape"] for entry in bundle.manifest["state"]}
    assert state == {
        "last_action": [1, 21], "last_command": [1, 3], "task_ticks": [1], "past_recent_gyro": [1, 2, 3],
        "started": [1, 1],
    }  # fmt: skip


def test_the_golden_steps_hold_every_event_and_every_way_of_every_branch(bundle):
    golden = bundle.manifest["golden"]
    assert golden["episodes"] >= 4
    assert set(golden["events"]) == {
        "command changes", "stop", "start", "push standing", "push moving", "lean", "reset", "other start",
    }  # fmt: skip
    assert all(golden["events"].values()), golden["events"]
    assert golden["branches"]["ways"] >= 8
    assert golden["branches"]["taken"] == golden["branches"]["ways"], golden["branches"]["not_taken"]


def test_the_history_after_a_reset_is_the_first_sample_and_then_the_last_two(bundle):
    golden = bundle.golden
    start = next(i["column"] for i in bundle.contract["observations"] if i["name"] == "recent_gyro")
    seen = golden["observations"][:, start : start + 6]
    assert np.array_equal(seen[0], np.tile(golden["gyro"][0], 2))
    assert np.array_equal(seen[5], np.concatenate((golden["gyro"][4], golden["gyro"][5])))


def test_a_setting_of_export_simulates_something_else_and_does_not_change_the_controller(
    run, tmp_path, capfd
):
    words = [str(run), TASK, "task.sway=-0.1", "--output", str(tmp_path / "b"), *QUICK]
    # The trained sway is exported, so the simulation with the other one is found to differ.
    assert main(["export", *words]) == NOT_THE_SAME, capfd.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_sensor_of_one_number_is_given_as_one_number(tmp_path):
    task, run = f"task={FILE}:OneNumber", tmp_path / "run"
    assert main(["train", task, "num_envs=16", "max_iterations=1", f"output={run}"]) == 0
    assert main(["export", str(run), task, "--output", str(tmp_path / "b"), *QUICK]) == 0
    bundle = Bundle.load(tmp_path / "b")
    robot = Runtime(bundle, OnnxSession(bundle.graph))
    assert robot.sensors["pole_angle"] == ()
    readings = {name: np.zeros(shape, np.float32) for name, shape in robot.sensors.items()}
    robot.step({**readings, "pole_angle": 0.25})
    assert 0.25 in robot.observation.tolist()
    with pytest.raises(ValueError, match="pole_angle"):
        robot.step({**readings, "pole_angle": [0.25, 0.5]})


class Wrong:
    """A session in which something is wired wrongly."""

    def __init__(self, session, before=None, after=None):
        self.name, self.inputs, self.outputs = "wrong", session.inputs, session.outputs
        self.session, self.before, self.after, self.last = session, before, after, None

    def run(self, feeds):
        given = self.before({k: v.copy() for k, v in feeds.items()}) if self.before else feeds
        out = self.session.run(given)
        if self.after:
            out, self.last = self.after(out, self.last), out
        return out


def flipped(name, *columns):
    def change(feeds):
        feeds[name][0, list(columns)] *= -1
        return feeds

    return change


WIRING = {
    "command of this step, not of the last": lambda f, home: f | {"last_command_in": f["command"]},
    "quaternion x, y, z, w": lambda f, home: f | {"quat": np.roll(f["quat"], -1, axis=1)},
    "inverse rotation": lambda f, home: flipped("quat", 1, 2, 3)(f),
    "home subtracted before": lambda f, home: f | {"joint_pos": f["joint_pos"] - home},
    "one joint's sign": lambda f, home: flipped("joint_pos", 3)(f),
    "one joint's speed": lambda f, home: flipped("joint_vel", 20)(f),
    "gyro in other axes": lambda f, home: flipped("gyro", 1)(f),
    "left and right swapped": lambda f, home: f | {"foot_switches": f["foot_switches"][:, ::-1].copy()},
    "never started": lambda f, home: f | {"started_in": 0 * f["started_in"]},
    "state not handed on": lambda f, home: f | {"past_recent_gyro_in": 0 * f["past_recent_gyro_in"]},
}


@pytest.mark.parametrize("name", WIRING)
def test_a_wrong_wiring_fails_the_golden_check(name, bundle):
    session = OnnxSession(bundle.graph)
    assert replay(bundle, session)["targets"] < 1e-5
    home = np.array([[joint["home"] for joint in bundle.contract["joints"]]], np.float32)
    wrong = Wrong(session, before=lambda feeds: WIRING[name](feeds, home))
    with pytest.raises(Refused) as refusal:
        replay(bundle, wrong)
    assert refusal.value.code == NOT_THE_SAME


def test_joint_targets_one_step_late_fail_the_golden_check(bundle):
    late = Wrong(
        OnnxSession(bundle.graph), after=lambda out, last: {**out, "targets": (last or out)["targets"]}
    )
    with pytest.raises(Refused) as refusal:
        replay(bundle, late)
    assert refusal.value.code == NOT_THE_SAME


@pytest.mark.parametrize("name", ["NoReflex", "OtherSway", "StopsAtOnce"])
def test_another_task_code_fails_the_golden_check(name, run, bundle, tmp_path):
    found = open_run(str(run), [TASK])
    fields = {f: getattr(found.config.task, f) for f in vars(found.config.task)} | (
        {"sway": -0.1} if name == "OtherSway" else {}
    )
    task = getattr(clocked, name)(**fields)
    policy = load_policy(found).policy
    for mutated in (False, True):
        given = on_robot(replace(found.config, task=task) if mutated else found.config)
        env = make_env(given, num_envs=1)
        ours = Controller(env, ExportModule(policy), {})
        model = exported(ours, ours.example, ours.outputs, "controller", {"contract": bundle.contract})
        (tmp_path / "it.onnx").write_bytes(model.SerializeToString())
        session = OnnxSession(tmp_path / "it.onnx")
        if not mutated:
            replay(bundle, session)
            continue
        with pytest.raises(Refused) as refusal:
            replay(bundle, session)
        assert refusal.value.code == NOT_THE_SAME


@pytest.mark.parametrize(
    ("name", "field", "reader"),
    [
        ("SeesSpeed", "base_lin_vel", "'speed'"),
        ("SeesAir", "foot_force", "'air' through task state 'air_time'"),
    ],
)
def test_a_policy_that_reads_what_no_robot_measures_is_refused_by_name_before_training(name, field, reader):
    run = config.resolve([f"task={FILE}:{name}", "num_envs=4"])
    with pytest.raises(ConfigError, match=f"reward-only field {field} is read by observation {reader}"):
        make_env(run)


def test_the_shipped_tasks_read_the_usual_sensors_and_keep_the_last_action(make_env_of):
    for task, sensors in (
        ("humanoid_walk", ("quat", "gyro", "joint_pos", "joint_vel")),
        ("arm_lift", ("joint_pos", "joint_vel", "object_pos")),
        ("cartpole_swingup", ("joint_pos", "joint_vel")),
    ):
        env = make_env_of(task)
        found = reads(env.task, env.backend.state, env.ctx, env.num_actions)
        assert (found.sensors, found.task_state) == (sensors, ())


@pytest.fixture
def make_env_of():
    made = []

    def make(task):
        made.append(make_env(config.resolve([f"task={task}", "num_envs=2"])))
        return made[-1]

    yield make
    for env in made:
        env.close()


def test_what_is_asked_of_the_controller_is_what_the_policy_depends_on(run):
    found = open_run(str(run), [TASK])
    env = make_env(on_robot(found.config), num_envs=1)
    seen = reads(env.task, env.backend.state, env.ctx, env.num_actions)
    assert seen.remembered == ("action", "command")
    assert seen.task_state == ("ticks",)
    assert json.dumps(seen.sensors) == '["quat", "gyro", "joint_pos", "joint_vel", "foot_switches"]'
    assert torch.equal(env.ctx.episode_time, torch.zeros(1))


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (
            lambda s, c: torch.from_numpy(s.robot.base_lin_vel.numpy().copy()),
            "'more' changes with what no sensor",
        ),
        (
            lambda s, c: torch.tensor(s.robot.base_pos.tolist()),
            "'more' reads numbers|'more' changes with what no",
        ),
        (
            lambda s, c: s.robot.joint_pos[:, :1] * float(s.robot.base_pos[0, 2] > 0.1),
            "'more' reads numbers of base_pos into Python",
        ),
        (
            lambda s, c: s.robot.joint_pos[:, :1] * float(s.robot.joint_vel[0, 0] > 0.1),
            "'more' reads numbers of joint_vel into Python",
        ),
    ],
    ids=["numpy", "list", "float", "float of a sensor"],
)
def test_numbers_that_leave_torch_are_refused_before_training(compute, said):
    env = make_env(config.resolve(["task=velocity"]), num_envs=2)
    with pytest.raises(ConfigError, match=said):
        reads(clocked.observing(compute)(), env.backend.state, env.ctx, env.num_actions)


def test_a_tensor_of_the_shape_of_an_unmeasured_one_is_no_reading_of_it():
    env = make_env(config.resolve(["task=velocity"]), num_envs=2)
    task = clocked.observing(lambda s, c: torch.zeros_like(s.robot.base_lin_vel))()
    assert "quat" in reads(task, env.backend.state, env.ctx, env.num_actions).sensors


@pytest.mark.parametrize(
    "sensor",
    [
        Sensor("reset", "1", field="joint_pos"),
        Sensor("gyro", "rad/s", compute=lambda s: s.robot.base_ang_vel),
        Sensor("two words", "1", field="joint_pos"),
        Sensor("speed_in", "1", field="joint_pos"),
        Sensor("empty", "1"),
        Sensor("both", "1", field="joint_pos", compute=lambda s: s.robot.joint_pos),
    ],
    ids=lambda sensor: sensor.name,
)
def test_a_sensor_that_cannot_be_is_refused_by_name(sensor):
    task = type("Own", (clocked.Velocity,), {"sensors": (sensor,)})()
    with pytest.raises(ValueError, match=sensor.name):
        task.validate()


@pytest.mark.parametrize("history", [0, 2.0, True])
def test_a_history_that_is_no_whole_number_is_refused_by_name(history):
    item = clocked.Observation("past", lambda s, c: c.action, "actuators", history=history)
    task = type(
        "Own", (clocked.Velocity,), {"observations": {"policy": (item,), "critic": ("base_height",)}}
    )()
    with pytest.raises(ValueError, match=r"past\.history"):
        task.validate()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_refuses_joint_targets_that_depend_on_more_than_the_action(profile, bundle):
    manifest = {
        **bundle.manifest,
        "targets": {"depend_on": ["action", "previous_action"], "affine": True},
        "state": [],
    }
    manifest["contract"] = {**bundle.contract, "observations": bundle.contract["observations"][:6]}
    with pytest.raises(Refused, match="its joint targets depend on previous_action too"):
        profiles.load(profile).files(manifest, onnx.load(bundle.folder / "policy.onnx"))


def test_a_bound_that_is_infinite_leaves_no_weight_that_is_not_finite(tmp_path):
    class Limited(torch.nn.Module):
        def forward(self, x):
            return torch.clamp(x, torch.tensor([-math.inf, -1.0]), torch.tensor([2.0, math.inf]))

    model = exported(Limited(), {"x": torch.zeros(1, 2)}, ["y"], "it", {})
    check_graph(model, {"x": (1, 2)}, {"y": (1, 2)})
    (tmp_path / "it.onnx").write_bytes(model.SerializeToString())
    session = OnnxSession(tmp_path / "it.onnx")
    for given, wanted in (((-1e30, -5.0), (-1e30, -1.0)), ((9.0, 1e30), (2.0, 1e30))):
        assert session.run({"x": np.array([given], np.float32)})["y"][0] == pytest.approx(wanted)


def test_joint_targets_with_a_clamp_are_the_controllers(tmp_path):
    env = make_env(on_robot(config.resolve([f"task={FILE}:Clamped"])), num_envs=1)
    width = sum(width for _, width in env.columns["policy"])
    network = torch.nn.Linear(width, env.num_actions)
    torch.nn.init.constant_(network.bias, 100.0)  # far beyond every limit
    ours = Controller(env, network, {})
    assert not ours.affine
    model = exported(ours, ours.example, ours.outputs, "controller", {})
    (tmp_path / "it.onnx").write_bytes(model.SerializeToString())
    out = OnnxSession(tmp_path / "it.onnx").run({name: value.numpy() for name, value in ours.example.items()})
    assert out["targets"][0] == pytest.approx(env.ctx.robot.upper.numpy(), abs=1e-6)


@pytest.mark.parametrize(("bound", "straight"), [(5.0, False), (100.0, True)])
def test_joint_targets_are_linear_unless_they_are_clamped_where_a_policy_may_ask_for_them(bound, straight):
    class Clipped(CartpoleBalance):
        def joint_targets(self, action, ctx):
            return 0.5 + 2.0 * action.clamp(-bound, bound)

    ctx = make_env(config.resolve(["task=cartpole_balance", "num_envs=1"])).ctx
    offset, scale, affine = mapping(Clipped(), ctx, 1)
    assert (offset.item(), scale.item(), affine) == (0.5, 2.0, straight)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_refuses_joint_targets_that_are_not_linear_in_the_action(profile, bundle):
    manifest = {**bundle.manifest, "targets": {"depend_on": ["action"], "affine": False}, "state": []}
    manifest["contract"] = {**bundle.contract, "observations": bundle.contract["observations"][:6]}
    with pytest.raises(Refused, match="joint targets are not offset"):
        profiles.load(profile).files(manifest, onnx.load(bundle.folder / "policy.onnx"))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_refuses_bf16_which_its_reader_cannot_compute(profile, bundle):
    manifest = {
        **bundle.manifest,
        "controller": {**bundle.manifest["controller"], "precision": "bf16"},
        "state": [],
    }
    manifest["targets"] = {"depend_on": ["action"], "affine": True}
    manifest["contract"] = {**bundle.contract, "observations": bundle.contract["observations"][:6]}
    with pytest.raises(Refused, match="bf16"):
        profiles.load(profile).files(manifest, onnx.load(bundle.folder / "policy.onnx"))


def test_what_joint_targets_depend_on_is_found():
    env = make_env(config.resolve([f"task={FILE}:Filtered"]), num_envs=1)
    found = reads(env.task, env.backend.state, env.ctx, env.num_actions)
    assert found.targets == ("action", "previous_action", "ticks")
