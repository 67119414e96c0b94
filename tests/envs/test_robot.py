"""Reading robot.yaml, and refusing invalid files."""

import pickle
import subprocess
import sys

import pytest

from robolearn.envs import lint
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.scenes import hopper
from tests.factories import ROBOTS


def test_reading_a_robot_imports_no_simulator_and_no_torch():
    code = (
        "import sys; from robolearn.envs.robot import Robot; "
        f"Robot.load({str(ROBOTS / 'humanoid')!r}); "
        "assert not {'mujoco', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_robot_survives_pickling_and_has_a_hash(humanoid):
    assert pickle.loads(pickle.dumps(humanoid)) == humanoid  # noqa: S301
    assert hash(humanoid) == hash(Robot.load(ROBOTS / "humanoid"))


def test_actuators_are_in_joint_order_without_passive_joints(cartpole, tmp_path):
    assert cartpole.joints == ("slider", "hinge")
    assert [a.joint for a in cartpole.actuators] == ["slider"]
    assert cartpole.actuated == (0,)
    passive_first = hopper(tmp_path, ("l_leg: {home: 0, actuator: leg}", "l_leg: {home: 0.1}"))
    (passive_first / "robot.yaml").write_text(
        (passive_first / "robot.yaml").read_text().replace("mirror: {left: l_, right: r_, flip: []}", "")
    )
    robot = Robot.load(passive_first)
    assert robot.actuated == (1,)
    assert robot.home == (0.1, 0.0)
    assert robot.mirror_joints() is None
    assert robot.mirror_feet() is None


def test_mirror_swaps_sides_and_negates_the_flipped_joints(tmp_path):
    robot = Robot.load(hopper(tmp_path, ("flip: []", "flip: [leg]")))
    assert robot.mirror_joints() == ([1, 0], [-1.0, -1.0])
    assert robot.mirror_actuators() == ([1, 0], [-1.0, -1.0])
    assert robot.mirror_feet() == [1, 0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema: 1", "schema: 3", ["schema is '3'", "schema 1 and 2"]),
        ("schema: 1\n", "", ["schema is 'None'"]),
        ("base: trunk", "basis: trunk", ["unknown key 'basis'", "did you mean base?", "home_height"]),
        ("home_height: 0.45", "", ["home_height is missing", "trunk"]),
        ("base: trunk", "base: world", ["base: world", "null"]),
        ("base: trunk", "", ["home_height is only for a robot with a free base"]),
        ("home_height: 0.45", "home_height: tall", ["home_height is 'tall'", "number"]),
        ("home_height: 0.45", "home_height: .inf", ["home_height is 'inf'", "finite"]),
        ("home_height: 0.45", "home_height: 1e-1", ["'1e-1'", "1.0e-3"]),
        ("mjcf: hopper.xml", "mjcf: hoper.xml", ["mjcf names 'hoper.xml'"]),
        ("feet: [l_leg, r_leg]", "feet: l_leg", ["feet is 'l_leg'", "list of names"]),
        ("feet: [l_leg, r_leg]", "feet: [l_leg, l_leg]", ["feet is", "l_leg"]),
        ("l_leg: {home: 0, ", "l_leg: {", ["joints.l_leg", "home"]),
        ("l_leg: {home: 0, ", "l_leg: {home: yes, ", ["joints.l_leg.home is 'True'", "number"]),
        ("actuator: leg", "actuator: lag", ["joints.l_leg", "'lag'", "did you mean leg?"]),
        ("actuator: leg", "motor: leg", ["joints.l_leg", "unknown key 'motor'", "valid: home, actuator"]),
        ("  r_leg:", "  l_leg:", ["l_leg is given twice"]),
        ("kind: position", "kind: positon", ["actuators.leg.kind is 'positon'", "did you mean position?"]),
        ("kind: position", "kind: force", ["actuators.leg has the unknown key 'kp'", "kind, effort"]),
        ("kd: 20, ", "", ["actuators.leg", "kd"]),
        ("effort: 50", "effort: 0", ["actuators.leg", "effort is > 0"]),
        ("effort: 50}", "effort: 50}\n  arm: {kind: force, effort: 1}", ["actuators.arm", "joint"]),
        ("flip: []", "flip: [lag]", ["mirror.flip", "'lag'", "did you mean leg?"]),
        ("right: r_", "right: x_", ["mirror", "l_leg", "'x_leg'"]),
        ("right: r_", "right: [r_, x_]", ["mirror.left has 1", "mirror.right 2"]),
        ("right: r_", "right: [l_]", ["mirror.left", "'l_'"]),
        ("right: r_", "right: [r_, 3]", ["mirror.right is", "list of names"]),
        ("timestep: 0.005, ", "", ["solver.mujoco.timestep"]),
        ("timestep: 0.005", "timestep: 0", ["solver.mujoco.timestep"]),
        ("joints:", "joints: [", ["not valid YAML near line"]),
        ("schema: 1", "- schema", ["not valid YAML"]),
        ("schema: 1", "schema: &one 1", ["near line", "alias 'one'"]),
        ("schema: 1", "schema: !!bool maybe", ["near line", "bool"]),
    ],
)
def test_an_invalid_robot_yaml_is_refused_in_one_line_that_names_the_offender(tmp_path, old, new, words):
    with pytest.raises(ConfigError, match=r"robot\.yaml: ") as error:
        Robot.load(hopper(tmp_path, (old, new)))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_a_folder_without_a_robot_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"robot\.yaml: no such file"):
        Robot.load(tmp_path)


@pytest.mark.parametrize("turned", [False, True])
def test_the_more_particular_entry_of_a_robot_with_its_own_file_wins_wherever_it_stands(turned):
    entries = {"*": 0.1, "*_elbow": 0.2, "elbow": 0.3, "l_elbow": 0.4}
    for upto, expected in ((2, (0.2, 0.2)), (3, (0.3, 0.3)), (4, (0.4, 0.3))):
        some = [(name, {"model": "explicit", "delay": value}) for name, value in list(entries.items())[:upto]]
        robot = Robot.load(ROBOTS / "humanoid", {"actuators": dict(some[::-1] if turned else some)})
        delay = {a.joint: a.motor.delay for a in robot.actuators if a.motor is not None}
        assert (delay["l_elbow"], delay["r_elbow"], delay["l_knee"]) == (
            *[(d, d) for d in expected],
            (0.1, 0.1),
        )
    robot = Robot.load(
        ROBOTS / "humanoid", {"actuators": {"shoulder_pitch": {"kp": 50}, "l_elbow": {"kp": 60}}}
    )
    kp = {a.joint: a.kp for a in robot.actuators}
    assert [kp[name] for name in ("l_shoulder_pitch", "r_shoulder_pitch", "l_shoulder_roll")] == [50, 50, 30]
    assert (kp["l_elbow"], kp["r_elbow"]) == (60, 20)


@pytest.mark.parametrize(
    ("change", "idle"),
    [
        ({"*": {"kp": 5}}, ["*.kp=5"]),
        (
            {"*": {"kp": 100, "model": "explicit"}},
            ["*.kp=100"],
        ),  # some motors have it, and not from this entry
        ({"*nee": {"kind": "force"}}, ["*nee.kind=force"]),
        ({"*": {"model": "explicit", "delay": 0.5}}, []),
        ({"knee": {"kp": 5}}, []),
    ],
)
def test_changes_by_a_pattern_that_more_particular_entries_overrule_are_found(change, idle: list[str]):
    assert lint.idle_changes(ROBOTS / "humanoid", {"actuators": change}) == idle


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({"knee": {"kp": -3}}, "robot.actuators.knee "),
        ({"knee": {"delay": 0.5}}, "robot.actuators.knee.delay "),
        ({"kneee": {"kp": 3}}, "robot.actuators.kneee "),
        ({"*": {"model": "explicit", "delay": -1}}, "robot.actuators.hip_pitch.delay "),
        ({"*": {"armature": -1}}, "robot.actuators.hip_pitch.armature "),
        ({"knee": {"kind": "force", "kp": 3}}, "robot.actuators.knee "),
    ],
)
def test_what_is_wrong_with_a_change_is_not_blamed_on_the_file(change, begins: str):
    with pytest.raises(ConfigError) as error:
        Robot.load(ROBOTS / "humanoid", {"actuators": change})
    assert str(error.value).startswith(begins)


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"home_height": "tall"}, "robot.home_height "),
        ({"feet": "toe"}, "robot.feet "),
        ({"mjcf": "nope.xml"}, "robot.mjcf "),
        ({"actuators": 5}, "robot.actuators "),
        ({"solver": {"mujoco": {"timestep": 0}}}, "robot.solver.mujoco.timestep "),
    ],
)
def test_a_wrong_value_of_a_change_names_its_setting(changes, begins: str):
    with pytest.raises(ConfigError) as error:
        Robot.load(ROBOTS / "humanoid", changes)
    assert str(error.value).startswith(begins)


def test_a_motor_that_becomes_a_torque_motor_loses_the_gains_of_the_file():
    robot = Robot.load(ROBOTS / "humanoid", {"actuators": {"knee": {"kind": "force"}}})
    knees = [motor for motor in robot.actuators if "knee" in motor.joint]
    assert [(motor.kind, motor.kp, motor.kd, motor.effort) for motor in knees] == [
        ("force", 0.0, 0.0, 120.0)
    ] * 2
    assert {motor.kind for motor in robot.actuators if motor not in knees} == {"position"}


def test_a_change_is_not_blamed_for_what_the_file_says_beside_it(tmp_path):
    wrong = hopper(tmp_path, ("kd: 20", "kd: 2e1"))  # text in YAML 1.1
    with pytest.raises(ConfigError, match=r"robot\.yaml: actuators\.leg\.kd"):
        Robot.load(wrong, {"actuators": {"leg": {"effort": 40}}})
