"""robolearn sysid: its files, its exit codes, and what it refuses."""

import importlib.util
import json
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import yaml

from robolearn.cli import main
from robolearn.commands.exits import BAD_INPUT, CHECK_FAILED, MISSING, OK
from robolearn.commands.sysid.outputs import as_json, randomize, write_bodies
from robolearn.commands.sysid.run import table
from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.simulation.sysid.solve import Estimate, Result
from robolearn.simulation.sysid.unknowns import Unknown
from tests.envs.test_model_file import two_toes
from tests.simulation.sysid_robots import TRUTH, recorded, two_links, without

solves = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tabulate", "colorama")),
    reason="mujoco[sysid] is not installed",
)
FIT = "kp,armature,friction,damping,encoder_bias,delay"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A robot's file and logs of it: both joints move, one does, none does."""
    path = tmp_path_factory.mktemp("logs")
    robot = two_links(path)
    recorded(robot).write(path / "both.csv")
    recorded(robot, ("elbow",), planted={**TRUTH, "kp/shoulder": 2e3}).write(path / "one.npz")
    recorded(robot, ()).write(path / "rest.csv")
    return path


def sysid(folder, *words):
    return main(["sysid", "--robot", str(folder / "links.xml"), *map(str, words)])


@solves
def test_a_log_becomes_a_robot_a_page_and_ranges(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert sysid(folder, "--log", folder / "both.csv", "--fit", FIT + ",mass/lower", "--output", out) == OK
    said = capsys.readouterr().out
    assert "kp/elbow" in said
    assert "met" in said
    result = json.loads((out / "result.json").read_text())
    entry = result["parameters"]["damping/elbow"]
    assert entry["identified"]
    assert entry["low"][0] < 0.12 < entry["high"][0]
    assert result["held_out"]["passed"]
    robot = Robot.load(out / "robot")
    assert robot.actuators[1].kp == pytest.approx(14.0, rel=0.05)
    model = mjcf.build_model(robot)
    assert model.dof_damping[1] == pytest.approx(0.12, rel=0.05)
    assert model.dof_frictionloss[1] == pytest.approx(0.1, rel=0.05)
    assert model.dof_armature[1] == pytest.approx(0.014, rel=0.05)
    assert model.body("lower").mass[0] == pytest.approx(0.4, rel=0.05)
    page = (out / "report.html").read_text()
    for text in ("System identification of links", "encoder_bias/elbow", "Fit and held-out check", "nominal"):
        assert text in page
    assert page.count('"gaps": true') == 2  # errors of two joints: no line crosses what is held out
    assert "http-equiv" in page  # nothing is loaded from elsewhere
    ranges = yaml.safe_load((out / "randomize.yaml").read_text())["task"]["randomize"]
    low, high = ranges["robot/kp_scale/elbow"]
    assert 0.9 < low < 1 < high < 1.1
    assert "robot/mass_scale/lower" in ranges


@solves
def test_what_a_log_cannot_tell_is_named_and_is_a_failed_check(folder, tmp_path, capsys):
    words = [
        "--log",
        folder / "one.npz",
        "--fit",
        "armature,friction,delay,damping/elbow,kp/elbow,encoder_bias/elbow",
    ]
    words += ["robot.actuators.shoulder.kp=2000", "--output", tmp_path / "out"]
    assert sysid(folder, *words) == CHECK_FAILED
    said = capsys.readouterr().out
    assert "nominal" in next(
        line for line in said.splitlines() if line.startswith("not told  armature/shoulder")
    )
    assert "shoulder does not move" in said
    result = json.loads((tmp_path / "out" / "result.json").read_text())["parameters"]
    assert not result["friction/shoulder"]["identified"]
    assert result["friction/elbow"]["identified"]
    assert sysid(folder, *words[:-1], tmp_path / "strict", "--strict") == BAD_INPUT
    assert "armature/shoulder" in capsys.readouterr().err
    assert not (tmp_path / "strict").exists()


@solves
def test_a_robot_at_rest_is_bad_input(folder, tmp_path, capsys):
    words = ["--log", folder / "rest.csv", "--fit", "armature,delay", "--output", tmp_path / "out"]
    assert sysid(folder, *words) == BAD_INPUT
    said = capsys.readouterr().err
    assert "armature/shoulder" in said
    assert "no joint moves" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (["--robot", "arm"], "--log"),
        (["--log", "nowhere.csv"], "--robot"),
        (["--log", "nowhere.csv", "--robot", "arn"], "arm"),
        (["--log", "nowhere.txt", "--robot", "arm"], "nowhere.txt"),
        (["--log", "nowhere.csv", "--robot", "arm"], "nowhere.csv"),
    ],
)
@solves
def test_bad_input_is_refused_with_the_offender(words, offender, capsys):
    assert main(["sysid", *words]) == BAD_INPUT
    assert offender in capsys.readouterr().err


@solves
@pytest.mark.parametrize("holdout", ["0.7", "half", "nowhere.csv"])
def test_a_share_that_is_none_is_refused(folder, holdout, capsys):
    assert sysid(folder, "--log", folder / "both.csv", "--holdout", holdout) == BAD_INPUT
    assert holdout in capsys.readouterr().err


@solves
def test_a_damaged_npz_is_one_line_and_bad_input(folder, tmp_path, capsys):
    (tmp_path / "cut.npz").write_bytes((folder / "one.npz").read_bytes()[:-100])
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.arange(3.0))
    for name in ("cut.npz", "array.npz"):
        assert sysid(folder, "--log", tmp_path / name) == BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line


@solves
@pytest.mark.parametrize(
    ("stated", "remedies"),
    [
        ("'*': {model: explicit, delay: 0.5}", ["robot.actuators={*:{model:implicit}}"]),
        ("elb*: {model: dc, saturation: 60, no_load_speed: 20}", ["robot.actuators={elb*:{model:implicit}}"]),
        ("elbow: {model: dc, saturation: 60, no_load_speed: 20}", ["robot.actuators.elbow.model=implicit"]),
        (
            "elbow: {model: dcmotor, resistance: 2, motor_constant: 1}",
            ["robot.actuators.elbow.model=implicit"],
        ),
    ],
)
def test_a_motor_with_a_model_is_refused_and_the_remedy_of_the_message_gives_its_pd_law(
    folder, tmp_path, capsys, stated, remedies
):
    (tmp_path / "robot.yaml").write_text(
        f"schema: 2\nmjcf: {folder / 'links.xml'}\nactuators: {{{stated}}}\n"
    )
    words = ["sysid", "--robot", str(tmp_path), "--log", str(folder / "rest.csv")]
    assert main(words) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "the motor of" in line
    assert remedies[0].removeprefix("robot.actuators.elbow").replace("elb*", "*") in line
    assert main([*words, *remedies]) == BAD_INPUT
    assert "no joint moves" in capsys.readouterr().err  # the log's own fault: the motors are taken


def test_a_common_factor_has_an_interval_for_each_joint_in_proportion_to_its_file(folder):
    # The file says 0.1 and 1.0; the factor is 1.1 +- 0.1, so the joints have 0.11 +- 0.01 and 1.1 +- 0.1.
    one = Unknown("damping/*", "damping", ("shoulder", "elbow"), (0.1, 1.0), (0.1, 1.0), 1.0, 0.0, 30.0)
    problem = SimpleNamespace(model=SimpleNamespace(opt=SimpleNamespace(timestep=0.002)), sequences=[])
    robot = Robot.load(folder / "links.xml")
    result = Result(robot, problem, [Estimate(one, 0.11, 0.01)], {}, {}, {}, [], "", True, "")
    ranges = yaml.safe_load(randomize(result))["task"]["randomize"]
    assert ranges["robot/damping/shoulder"] == pytest.approx([-0.01, 0.01])
    assert ranges["robot/damping/elbow"] == pytest.approx([-0.1, 0.1])
    entry = as_json(result)["parameters"]["damping/*"]
    assert entry["value"] == pytest.approx([0.11, 1.1])
    assert entry["low"] == pytest.approx([0.10, 1.0])
    assert entry["high"] == pytest.approx([0.12, 1.2])
    assert entry["half_width_95"] == pytest.approx([0.01, 0.1])
    (said,) = table(result)[1:]
    assert {"0.11", "shoulder;", "1.1"} <= set(said.split())  # whose numbers these are, and the factor


@pytest.mark.parametrize(("name", "motors"), [("delay", "*"), ("delay/elbow", "elbow")])
def test_a_delay_is_stated_for_the_motors_that_it_was_found_of(name, motors, folder):
    targets = ("shoulder", "elbow") if name == "delay" else ("elbow",)
    one = Unknown(name, "delay", targets, (0.0,) * len(targets), (0.01,) * len(targets), 1.0, 0.0, 10.0)
    problem = SimpleNamespace(model=SimpleNamespace(opt=SimpleNamespace(timestep=0.002)), sequences=[])
    # 9 to 11 ms, and half a physics step of 2 ms, of a control period of 20 ms.
    result = Result(
        Robot.load(folder / "links.xml"), problem, [Estimate(one, 0.010, 0.001)], {}, {}, {}, [], "", True, ""
    )
    assert f"'robot.actuators={{{motors}:{{model:explicit,delay:[0.5,0.6]}}}}'" in randomize(result)


def test_without_the_package_it_says_what_to_install(folder, capsys):
    with without("tabulate"):
        assert sysid(folder, "--log", folder / "both.csv") == MISSING
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "robolearn[sysid]" in said[0]


def test_a_robot_whose_base_is_free_hangs(tmp_path):
    from robolearn.simulation.sysid.problem import hanging
    from tests.envs.test_derive import biped

    robot = Robot.load(biped(tmp_path))
    model = hanging(robot, 0.002, [0.98, 0.2, 0, 0]).compile()
    assert model.nq == len(robot.joints)
    assert model.opt.timestep == 0.002
    assert robot.base == "trunk"
    assert model.body("trunk").quat[1] == pytest.approx(0.2, abs=1e-3)


def test_a_robot_with_two_meshes_of_one_name_is_written_with_both(tmp_path):
    robot = Robot.load(two_toes(tmp_path))
    (tmp_path / "out").mkdir()
    write_bodies(mjcf.robot_bodies(robot), robot.mjcf.parent, tmp_path / "out")
    written = mujoco.MjModel.from_xml_path(str(tmp_path / "out" / "robot.xml"))
    sizes = [float(np.ptp(written.mesh_vert[k : k + 4], axis=0).max()) for k in written.mesh_vertadr]
    assert max(sizes) == pytest.approx(4 * min(sizes))  # they are turned to their principal axes
