"""Files of the profiles, run by small copies of the stacks' readers, written from their source.

The readers below take raw sensors and a profile's files and use no RoboLearn code; their joint targets must equal those
of the contract and the observation vocabulary.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
import torch
import yaml

from robolearn import config
from robolearn.core.contract import Contract
from robolearn.errors import ConfigError
from robolearn.export import profiles
from robolearn.export.bundle import contract_entry
from robolearn.export.onnx.graph import build_graph
from robolearn.export.profiles import PROFILES, mjlab, unitree
from robolearn.learners.policy import Policy
from robolearn.learners.saved import PRETRAINED, pretrained
from robolearn.runtime.contract import checked_contract
from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.tasks.mdp.observations import projected_gravity

JOINTS = ("knee", "ankle", "hip", "waist")
HOME = (0.6, -0.31, -0.1, 0.0)
WIDTHS = {"last_action": 4, "joint_pos_rel": 4, "velocity_commands": 3}  # not in RoboLearn's order
WIDTHS |= {"projected_gravity": 3, "joint_vel_rel": 4, "base_ang_vel": 3}
Files = dict[str, bytes]
Change = Callable[[dict[str, Any]], object]


def manifest_of(*names: str) -> dict[str, Any]:
    """Four position motors, not in alphabetical order, with numbers of more than three decimals."""
    actions = [
        {"joint": joint, "kind": "position", "kp": 40 + i + 1 / 3, "kd": 1 + i / 7, "effort": 30.0}
        | {"offset": float(np.float32(HOME[i])), "scale": float(np.float32(0.1)) * 1.1**i}
        for i, joint in enumerate(JOINTS)
    ]
    contract = {
        "control_dt": 0.02,
        "observations": [{"name": name, "width": WIDTHS[name], "history": 1} for name in names or WIDTHS],
        "joints": [{"name": joint, "home": home} for joint, home in zip(JOINTS, HOME, strict=True)],
        "actions": actions,
        "command": ["forward", "sideways", "yaw"],
        "action_delay": [0, 1],
        "extra": {},
    }
    ranges = {"forward": [-0.5, 1.0], "sideways": [-0.3, 0.3], "yaw": [-0.51234567, 0.5]}
    return {"run": {"name": "walk", "iteration": 7}, "command_ranges": ranges, "contract": contract}


def graph_of(width: int = 21, actions: int = 4, recurrent: bool = False) -> onnx.ModelProto:
    """actions = 2 tanh(obs W + b), W and b random; recurrent: with a state that goes straight through."""
    h_in, h_out = (f", float[1,1,8] {h}" if recurrent else "" for h in ("h_in", "h_out"))
    step = "h_out = Identity(h_in)" if recurrent else ""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]>
        policy (float[1,{width}] obs{h_in}) => (float[1,{actions}] actions{h_out}) <float two = {{2}}> {{
            x = MatMul(obs, w) y = Add(x, b) z = Tanh(y) actions = Mul(z, two) {step}
        }}""")
    rng = np.random.default_rng(0)
    for name, shape in {"w": (width, actions), "b": (1, actions)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(rng.normal(size=shape)), name))
    onnx.helper.set_model_props(model, {"contract": "{}"})
    return model


def readings(seed: int, joints: int = len(JOINTS)) -> dict[str, np.ndarray]:
    """Random raw sensors, joints in the robot's order; commands within range and within the sticks' reach."""
    rng = np.random.default_rng(seed)
    sizes = {"quat": 4, "gyro": 3, "joint_pos": joints, "joint_vel": joints}
    sensors = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    sensors["quat"] /= np.linalg.norm(sensors["quat"])
    return {**sensors, "command": rng.uniform((-0.5, -0.3, -0.5), (1.0, 0.3, 0.5)).astype(np.float32)}


BY_HAND: dict[str, Callable[[dict], np.ndarray]] = {
    "base_ang_vel": lambda s: s["gyro"],
    "projected_gravity": lambda s: projected_gravity(torch.from_numpy(s["quat"])[None])[0].numpy(),
    "joint_pos_rel": lambda s: (s["joint_pos"] - s["home"]).astype(np.float32),
    "joint_vel_rel": lambda s: s["joint_vel"],
    "last_action": lambda s: s["last_action"],
    "velocity_commands": lambda s: s["command"],
}
"""Observations as docs/tasks.md defines them."""


def targets_by_contract(manifest: dict[str, Any], graph: onnx.ModelProto, steps: int) -> np.ndarray:
    """(steps, A) joint targets: BY_HAND's observations, the given ONNX graph, offset + scale x action."""
    contract, session = manifest["contract"], onnxruntime.InferenceSession(graph.SerializeToString())
    home = np.array([joint["home"] for joint in contract["joints"]])
    offset, scale = (np.array([a[key] for a in contract["actions"]]) for key in ("offset", "scale"))
    action, targets = np.zeros(len(offset), np.float32), []
    past: list[list[np.ndarray]] = [[] for _ in contract["observations"]]
    for step in range(steps):
        sensors = {**readings(step, len(home)), "home": home, "last_action": action}
        parts = []
        for item, samples in zip(contract["observations"], past, strict=True):
            samples.append(BY_HAND[item["name"]](sensors))
            last = [samples[max(0, step - age)] for age in range(item["history"])]
            parts.append(np.concatenate(last[::-1]))
        action = session.run(["actions"], {"obs": np.concatenate(parts)[None]})[0][0]
        targets.append(offset + scale * action)
    return np.array(targets)


def agrees(got: np.ndarray, manifest: dict[str, Any], graph: onnx.ModelProto) -> bool:
    return bool(np.abs(got - targets_by_contract(manifest, graph, len(got))).max() < 1e-6)


def down(quat: np.ndarray) -> np.ndarray:
    """(0, 0, -1) turned by the inverse of a unit quaternion wxyz: v + 2 u x (u x v - w v), u the vector part."""
    w, u, v = float(quat[0]), np.asarray(quat[1:], float), np.array([0.0, 0.0, -1.0])
    return v + 2 * np.cross(u, np.cross(u, v) - w * v)


class UnitreeReader:
    """unitree_rl_lab e72a072 and 5dc06a4 (`joint_actions.h`), unitree_rl_mjlab 5b7e396; deploy/include/isaaclab:

    envs/manager_based_rl_env.h (the keys), manager/observation_manager.h and manager_term_cfg.h (terms in file
    order; clip, then scale), envs/mdp/observations*.h, envs/mdp/actions/joint_actions.h, algorithms/algorithms.h;
    and deploy/include/FSM/State_RLBase.h (gains by motor number), robots/g1/src/State_RLBase.cpp (targets by map).
    A key that yaml-cpp would convert without a default raises KeyError here.
    """

    def __init__(self, files: Files) -> None:
        cfg = self.cfg = yaml.safe_load(files["params/deploy.yaml"])
        self.dt = np.float32(cfg["step_dt"])
        self.motors = [int(number) for number in cfg["joint_ids_map"]]
        self.default = np.array(cfg["default_joint_pos"], np.float32)
        self.kp, self.kd = np.array(cfg["stiffness"], np.float32), np.array(cfg["damping"], np.float32)
        action = cfg["actions"]["JointPositionAction"]
        # IsNull() is false for a missing key, and what follows throws. A list of joint_ids would only shorten the
        # action: run() sends one to every motor.
        assert (action["clip"], action["joint_ids"]) == (None, None)
        self.scale, self.offset = (np.array(action[key], np.float32) for key in ("scale", "offset"))
        self.terms, self.past = {}, {}
        for name, term in cfg["observations"].items():
            # Without `params` unitree_rl_mjlab takes the terms for groups of terms.
            assert term["params"] is not None
            assert term["clip"] is None
            self.terms[name] = np.array(term["scale"], np.float32)
            self.past[name] = collections.deque(maxlen=term.get("history_length", 1))
        self.session = onnxruntime.InferenceSession(files["exported/policy.onnx"])
        (self.port,) = self.session.get_inputs()  # Run() is given one tensor
        self.action = np.zeros(len(self.motors), np.float32)

    def term(self, name: str, s: dict[str, Any]) -> np.ndarray:
        known = {
            "base_ang_vel": lambda: s["gyro"],
            "projected_gravity": lambda: down(s["quat"]),
            "joint_pos_rel": lambda: s["q"][self.motors] - self.default,
            "joint_vel_rel": lambda: s["dq"][self.motors],
            "last_action": lambda: self.action,
            "velocity_commands": lambda: self.clamped([s["ly"], -s["lx"], -s["rx"]]),
        }
        return known[name]()

    def clamped(self, sticks: list[float]) -> np.ndarray:
        ranges = self.cfg["commands"]["base_velocity"]["ranges"]
        limits = np.array([ranges[key] for key in ("lin_vel_x", "lin_vel_y", "ang_vel_z")], np.float32)
        return np.clip(np.float32(sticks), limits[:, 0], limits[:, 1])

    def step(self, s: dict[str, Any]) -> dict[int, float]:
        """Motor readings `q`, `dq` by motor number, IMU and sticks to targets by motor number."""
        parts: list[np.ndarray] = []
        for name, scale in self.terms.items():
            past, sample = self.past[name], self.term(name, s) * scale
            # reset() adds the first sample as often as the buffer is long; get() starts with the oldest.
            past.extend([sample] * (past.maxlen if not past else 1))
            parts += past
        obs = np.concatenate(parts)
        self.action = self.session.run(["actions"], {"obs": np.float32(obs).reshape(self.port.shape)})[0][0]
        return dict(zip(self.motors, self.action * self.scale + self.offset, strict=True))


def run_unitree(reader: UnitreeReader, motors: list[int], steps: int) -> np.ndarray:
    """(steps, J) targets by joint, of a robot whose joint i has motor `motors[i]`."""
    targets = []
    for step in range(steps):
        s, (q, dq) = readings(step, len(motors)), np.zeros((2, max(motors) + 1), np.float32)
        q[motors], dq[motors] = s["joint_pos"], s["joint_vel"]
        forward, left, turn = s["command"]
        sent = reader.step({**s, "q": q, "dq": dq, "ly": forward, "lx": -left, "rx": -turn})
        targets.append([sent[motor] for motor in motors])
    return np.array(targets)


class MjlabReader:
    """Two readers of mjlab 1.6's properties in one, as strict as both.

    legged_control2, whose sources are closed: headers in qiayuanl/legged_control2_doc 4df7bc0 (gh-pages), namely
    legged_rl_controllers/OnnxPolicy.h (parseCsv, getMetadataStr), ObservationManager.h and CommandManager.h; names
    as in the policies that qiayuanl/unitree_bringup 16fa5b2 ships for it. And the `rsl_rl_onnx` policy of
    strands-labs/robots: the checks, scale and clip, and target = default_joint_pos + action_scale x action.
    """

    def __init__(
        self, files: Files, model: tuple[str, ...] = JOINTS, sensed: tuple[str, ...] = JOINTS
    ) -> None:
        self.session = onnxruntime.InferenceSession(files["policy.onnx"])
        self.meta = self.session.get_modelmeta().custom_metadata_map
        self.model, self.sensed = model, sensed  # orders of the robot model's joints and of the readings
        self.joints, self.terms = self.names("joint_names"), self.names("observation_names")
        self.commands = self.names("command_names")
        self.kp, self.kd = self.numbers("joint_stiffness"), self.numbers("joint_damping")
        self.default, self.scale = self.numbers("default_joint_pos"), self.numbers("action_scale")
        self.gain = self.numbers("observation_terms_scale")
        self.limits = [tuple(map(float, t.split(";"))) for t in self.names("observation_terms_clip")]
        assert len(self.joints) == len(self.scale) == self.session.get_outputs()[0].shape[-1]
        assert all(past <= 0 for past in self.numbers("observation_terms_history_length"))
        assert all(name == "twist" for name in self.commands)
        self.last = np.zeros(len(self.joints))

    def names(self, key: str) -> list[str]:
        return self.meta[key].split(",") if self.meta[key] else []  # as std::getline does

    def numbers(self, key: str) -> np.ndarray:
        return np.array([float(text) for text in self.names(key)])

    def by_policy(self, values: np.ndarray) -> np.ndarray:
        """Values in the robot model's order, reordered to the policy's; Eigen requires equal lengths."""
        vector = [float(values[self.sensed.index(name)]) for name in self.model]
        assert len(vector) == len(self.joints)
        return np.array([vector[self.model.index(name)] for name in self.joints])

    def term(self, name: str, s: dict[str, Any]) -> np.ndarray:
        known = {
            "base_ang_vel": lambda: s["gyro"],
            "projected_gravity": lambda: down(s["quat"]),
            "joint_pos": lambda: self.by_policy(s["joint_pos"]) - self.default,
            "joint_vel": lambda: self.by_policy(s["joint_vel"]),
            "actions": lambda: self.last,
            "command": lambda: np.concatenate([s["command"] for _ in self.commands]),
        }
        return known[name]()

    def step(self, s: dict[str, Any]) -> dict[str, float]:
        """Joint targets by joint name from raw sensors."""
        terms = zip(self.terms, self.gain, self.limits, strict=True)
        obs = np.concatenate([np.clip(self.term(name, s) * gain, *limits) for name, gain, limits in terms])
        self.last = self.session.run(["actions"], {"obs": np.float32(obs)[None]})[0][0].astype(float)
        return dict(zip(self.joints, self.default + self.scale * self.last, strict=True))


def test_unitrees_reader_sends_the_contracts_targets() -> None:
    manifest, graph = manifest_of(), graph_of()
    # Not the home position: there `offset` and `default_joint_pos` are separate lists.
    manifest["contract"]["actions"][1]["offset"] = 0.25
    reader = UnitreeReader(unitree.files(manifest, graph))
    assert agrees(run_unitree(reader, [0, 1, 2, 3], steps=20), manifest, graph)
    assert reader.clamped([0.7, 0.6, -1.0]).tolist() == np.float32([0.7, 0.3, -0.51234567]).tolist()
    assert reader.dt == np.float32(0.02)


def test_unitrees_reader_requires_every_key() -> None:
    files = unitree.files(manifest_of(), graph_of())
    whole = yaml.safe_load(files["params/deploy.yaml"])
    blocks = (["actions", "JointPositionAction"], ["observations", "base_ang_vel"], ["commands"])
    for way in ([], *blocks, ["commands", "base_velocity", "ranges"]):
        keys = functools.reduce(operator.getitem, way, whole).keys()
        for key in keys - {"joint_names", "history_length"}:  # unread, and 1 without it
            less = copy.deepcopy(whole)
            del functools.reduce(operator.getitem, way, less)[key]
            files["params/deploy.yaml"] = json.dumps(less).encode()
            with pytest.raises(KeyError, match=key):
                run_unitree(UnitreeReader(files), [0, 1, 2, 3], steps=1)


def test_motor_numbers_change_the_three_lists_that_the_readme_names() -> None:
    manifest, graph, motors = manifest_of(), graph_of(), [5, 0, 3, 1]
    files = unitree.files(manifest, graph)
    assert b"joint_ids_map[i]" in files["README.md"]
    deploy = yaml.safe_load(files["params/deploy.yaml"])
    assert deploy["joint_ids_map"] == [0, 1, 2, 3]
    assert deploy["actions"]["JointPositionAction"]["joint_names"] == list(JOINTS)
    for key in ("stiffness", "damping"):
        moved = dict(zip(motors, deploy[key], strict=True))
        deploy[key] = [moved.get(motor, 0.0) for motor in range(6)]
    deploy["joint_ids_map"] = motors
    reader = UnitreeReader({**files, "params/deploy.yaml": json.dumps(deploy).encode()})
    assert agrees(run_unitree(reader, motors, steps=5), manifest, graph)
    # Joint 0, the knee, has motor 5 and kp 40 1/3; joint 1, the ankle, motor 0 and kd 1 1/7.
    assert (reader.kp[5], reader.kd[0]) == (np.float32(40 + 1 / 3), np.float32(1 + 1 / 7))


@pytest.mark.parametrize("model", [JOINTS, ("ankle", "hip", "knee", "waist")], ids=["same", "other order"])
def test_mjlabs_readers_send_the_contracts_targets(model: tuple[str, ...]) -> None:
    manifest, graph = manifest_of(), graph_of()
    robot = MjlabReader(mjlab.files(manifest, graph), model)
    sent = [robot.step(readings(step)) for step in range(20)]
    assert agrees(np.array([[targets[joint] for joint in JOINTS] for targets in sent]), manifest, graph)
    assert dict(zip(robot.joints, robot.kp, strict=True))["hip"] == 42 + 1 / 3


@pytest.mark.parametrize("name", WIDTHS)
def test_each_kind_of_observation_reaches_the_network_through_unitrees_reader(name: str) -> None:
    manifest, graph = manifest_of(name), graph_of(WIDTHS[name])
    reader = UnitreeReader(unitree.files(manifest, graph))
    assert agrees(run_unitree(reader, [0, 1, 2, 3], steps=20), manifest, graph)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_controller_that_keeps_task_state_is_refused(profile: str) -> None:
    manifest = manifest_of() | {"state": [{"name": "last_action"}, {"name": "task_phase"}]}
    with pytest.raises(Refused, match="it keeps task_phase from step to step"):
        profiles.load(profile).files(manifest, graph_of())


def with_histories(manifest: dict[str, Any]) -> int:
    """Three samples of the last action and four of gravity; returns the width of the observation."""
    for item, history in zip(manifest["contract"]["observations"], (3, 1, 1, 4, 1, 1), strict=True):
        item["history"], item["width"] = history, history * item["width"]
    return 21 + 2 * 4 + 3 * 3


def test_a_history_is_kept_by_unitrees_reader_as_in_training() -> None:
    manifest = manifest_of()
    graph = graph_of(with_histories(manifest))
    reader = UnitreeReader(unitree.files(manifest, graph))
    assert agrees(run_unitree(reader, [0, 1, 2, 3], steps=20), manifest, graph)
    assert reader.past["projected_gravity"].maxlen == 4
    reader.cfg["observations"]["projected_gravity"]["history_length"] = 3
    forgetful = {**unitree.files(manifest, graph), "params/deploy.yaml": json.dumps(reader.cfg).encode()}
    with pytest.raises(ValueError, match="reshape"):  # 3 columns are missing
        run_unitree(UnitreeReader(forgetful), [0, 1, 2, 3], steps=1)


def test_mjlabs_properties_hold_the_length_of_each_history_and_the_readme_names_them() -> None:
    manifest = manifest_of()
    files = mjlab.files(manifest, graph_of(with_histories(manifest)))
    meta = onnxruntime.InferenceSession(files["policy.onnx"]).get_modelmeta().custom_metadata_map
    assert meta["observation_terms_history_length"] == "3,0,0,4,0,0"  # in the order of observation_names
    assert meta["observation_terms_flatten_history_dim"] == "1,1,1,1,1,1"
    assert b"3 of actions, 4 of projected_gravity" in files["README.md"]


def test_rounding_to_three_decimals_changes_the_joint_targets() -> None:
    manifest, graph = manifest_of(), graph_of()
    reader = UnitreeReader(unitree.files(manifest, graph))
    reader.scale = reader.scale.round(3)  # the last is 0.1331
    assert not agrees(run_unitree(reader, [0, 1, 2, 3], steps=3), manifest, graph)


def test_every_number_has_full_precision() -> None:
    manifest, graph = manifest_of(), graph_of()
    deploy = yaml.safe_load(unitree.files(manifest, graph)["params/deploy.yaml"])
    meta = MjlabReader(mjlab.files(manifest, graph))
    action = deploy["actions"]["JointPositionAction"]
    written = {"kp": deploy["stiffness"], "kd": deploy["damping"], **action}
    for key in ("kp", "kd", "scale"):
        exact = [given[key] for given in manifest["contract"]["actions"]]
        assert exact == written[key] == list(getattr(meta, key))
    assert action["scale"][0] == 0.10000000149011612  # 0.1 in float32
    ranges = deploy["commands"]["base_velocity"]["ranges"]
    assert ranges == {"lin_vel_x": [-0.5, 1.0], "lin_vel_y": [-0.3, 0.3], "ang_vel_z": [-0.51234567, 0.5]}


def test_the_properties_are_exactly_those_of_mjlab() -> None:
    meta = MjlabReader(mjlab.files(manifest_of(), graph_of())).meta
    # Those of get_base_metadata in mjlab 1.6, mjlab/rl/exporter_utils.py.
    terms = ("scale", "flatten_history_dim", "history_length", "clip")
    joints = ("joint_names", "joint_stiffness", "joint_damping", "default_joint_pos", "action_scale")
    names = {"run_path", "command_names", "observation_names", *(f"observation_terms_{key}" for key in terms)}
    assert set(meta) == {*names, *joints}
    assert meta["default_joint_pos"] == "0.6,-0.31,-0.1,0.0"
    assert meta["observation_names"] == "actions,joint_pos,command,projected_gravity,joint_vel,base_ang_vel"


def test_a_policy_without_a_command_has_no_command_name() -> None:
    manifest = manifest_of("base_ang_vel", "joint_pos_rel")
    manifest["contract"]["command"], manifest["command_ranges"] = [], {}
    assert MjlabReader(mjlab.files(manifest, graph_of(7))).commands == []
    assert UnitreeReader(unitree.files(manifest, graph_of(7))).cfg["commands"] == {}


def test_an_unobserved_joint_without_a_motor_is_omitted() -> None:
    manifest = manifest_of("base_ang_vel", "projected_gravity")
    del manifest["contract"]["actions"][1]
    reader = UnitreeReader(unitree.files(manifest, graph_of(6, 3)))
    assert reader.default.tolist() == np.float32([0.6, -0.1, 0.0]).tolist()


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_the_given_onnx_graph_is_unchanged_and_the_copy_has_ir_version_10(name: str) -> None:
    manifest, graph = manifest_of(), graph_of()
    graph.ir_version = 13
    before = copy.deepcopy(manifest), graph.SerializeToString(deterministic=True)
    files = profiles.load(name).files(manifest, graph)
    assert (manifest, graph.SerializeToString(deterministic=True)) == before
    (network,) = [content for path, content in files.items() if path.endswith(".onnx")]
    assert onnx.load_from_string(network).ir_version == 10


def put(*path: Any, to: Any) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        functools.reduce(operator.getitem, path[:-1], manifest)[path[-1]] = to

    return change


def renamed(manifest: dict[str, Any]) -> None:
    for part in ("joints", "actions"):
        manifest["contract"][part][0] |= {"name": "a,b", "joint": "a,b"}


def posed(manifest: dict[str, Any]) -> None:
    contract = manifest["contract"]
    (item,) = [item for item in contract["observations"] if item["name"] == "velocity_commands"]
    item["name"], contract["command"] = "pose_commands", ["x", "y", "z"]


SEEN, DRIVEN, EXTRA = ("contract", "observations"), ("contract", "actions"), ("contract", "extra")
MOTORS = manifest_of()["contract"]["actions"]
CASES: list[tuple[str, Change, onnx.ModelProto, str]] = [
    ("both", dict, graph_of(recurrent=True), "recurrent"),
    ("both", dict, graph_of(20), "obs (1, 21) and actions (1, 4)"),
    ("both", put(*DRIVEN, 2, "kind", to="force"), graph_of(), "hip has an actuator of kind force"),
    ("both", put(*SEEN, 1, "name", to="foot_height"), graph_of(), "observes foot_height"),
    ("both", posed, graph_of(), "observes pose_commands (x, y, z)"),
    ("both", put(*EXTRA, to={"gait_clock": {}, "mirror": 0}), graph_of(), "it needs gait_clock, mirror"),
    ("both", put("contract", "command", to=["forward"]), graph_of(), "the command is forward"),
    ("both", put(*DRIVEN, to=MOTORS[::-1]), graph_of(), "one order for both"),
    ("unitree", put(*DRIVEN, to=MOTORS[:3]), graph_of(21, 3), "joint_vel_rel contain waist"),
    ("unitree", put("command_ranges", to={}), graph_of(), "none for forward"),
    ("unitree", put("command_ranges", "yaw", to=[0.5, -0.5]), graph_of(), "none for yaw"),
    ("unitree", put(*SEEN, 4, "name", to="joint_pos_rel"), graph_of(), "joint_pos_rel twice"),
    ("mjlab", put(*DRIVEN, to=MOTORS[:3]), graph_of(21, 3), "waist has no motor"),
    ("mjlab", put(*DRIVEN, 1, "offset", to=0.25), graph_of(), "ankle's joint target at action 0 is 0.25"),
    ("mjlab", renamed, graph_of(), "a joint is named 'a,b'"),
]


@pytest.mark.parametrize(("which", "change", "graph", "why"), CASES, ids=[f"{c[0]}: {c[3]}" for c in CASES])
def test_a_policy_that_the_readers_cannot_run_is_refused_with_the_reason(
    which: str, change: Change, graph: onnx.ModelProto, why: str
) -> None:
    for name in profiles.PROFILES if which == "both" else (which,):
        manifest = manifest_of()
        change(manifest)
        with pytest.raises(Refused) as refusal:
            profiles.load(name).files(manifest, graph)
        assert refusal.value.code == BAD_INPUT
        assert str(refusal.value).startswith(f"the {name} profile cannot express this policy: ")
        assert why in str(refusal.value)


def shipped(name: str) -> tuple[dict[str, Any], onnx.ModelProto]:
    """Manifest and network of a shipped policy, as in its bundle."""
    items = config.load(PRETRAINED / name).task.items("policy")
    contract = contract_entry(Contract.load(PRETRAINED / name / "contract.json"), items)
    width = sum(item["width"] for item in contract["observations"])
    graph = build_graph(Policy.load(f"pretrained:{name}"), width, "fp32", {"contract": contract})
    manifest = {"contract": contract, "run": {"name": name, "iteration": 7}}
    return manifest | {"command_ranges": manifest_of()["command_ranges"]}, graph


@pytest.mark.parametrize("name", pretrained())
def test_the_profiles_of_a_shipped_policy_send_the_joint_targets_of_its_contract(name: str) -> None:
    manifest, graph = shipped(name)
    contract = checked_contract(manifest["contract"], name)
    joints, steps = tuple(joint["name"] for joint in contract["joints"]), 10
    assert joints == tuple(action["joint"] for action in contract["actions"])
    sensed = [readings(step, len(joints)) for step in range(steps)]
    wanted = targets_by_contract(manifest, graph, steps)
    assert np.ptp(wanted, axis=0).min() > 0.01  # every joint moves
    one = run_unitree(UnitreeReader(unitree.files(manifest, graph)), list(range(len(joints))), steps)
    reader = MjlabReader(mjlab.files(manifest, graph), model=tuple(sorted(joints)), sensed=joints)
    sent = [reader.step(s) for s in sensed]
    other = np.array([[targets[joint] for joint in joints] for targets in sent])
    for got in (one, other):
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_an_unknown_profile_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^there is no profile 'unitre': did you mean unitree"):
        profiles.load("unitre")
