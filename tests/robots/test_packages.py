"""Robots of other packages: what is derived from their files, checked by hand against the files; `make robots`."""

import subprocess
import sys

import mujoco
import numpy as np
import pytest
from PIL import Image

from robolearn.config import catalog
from robolearn.envs import lint, mjcf
from robolearn.envs.contacts import array_sizes
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.terrain import Terrain

QUADRUPED = {"FL": "FR", "RL": "RR"}
HIPS = ("FL_hip_joint", "FR_hip_joint", "RL_hip_joint", "RR_hip_joint")
"""The joints of a quadruped that turn about x, which is the only way left and right differ in sense."""

EXPECTED = {
    # name: (base, feet, number of actuated joints, one pair, joints that change sign)
    "unitree_g1": (
        "pelvis",
        ("left_ankle_roll_link", "right_ankle_roll_link"),
        29,
        ("left_knee_joint", "right_knee_joint"),
        {
            f"{s}_{j}_joint"
            for s in ("left", "right")
            for j in (
                "hip_roll",
                "hip_yaw",
                "ankle_roll",
                "shoulder_roll",
                "shoulder_yaw",
                "wrist_roll",
                "wrist_yaw",
            )
        }
        | {"waist_yaw_joint", "waist_roll_joint"},
    ),
    "unitree_go1": (
        "trunk",
        ("FR_calf", "FL_calf", "RR_calf", "RL_calf"),
        12,
        ("FL_calf", "FR_calf"),
        set(HIPS),
    ),
    "unitree_go2": (
        "base",
        ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
        12,
        ("RL_foot", "RR_foot"),
        set(HIPS),
    ),
    "unitree_b2": (
        "base",
        ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
        12,
        ("RL_foot", "RR_foot"),
        set(HIPS),
    ),
    "unitree_aliengo": (
        "base",
        ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
        12,
        ("FL_calf_joint", "FR_calf_joint"),
        set(HIPS),
    ),
    "spot": (
        "body",
        ("FL_foot", "FR_foot", "RL_foot", "RR_foot"),
        12,
        ("FL_thigh_joint", "FR_thigh_joint"),
        set(HIPS),
    ),
    "unitree_a1": (
        "base",
        ("FR_foot", "FL_foot", "RR_foot", "RL_foot"),
        12,
        ("FL_foot", "FR_foot"),
        set(HIPS),
    ),
    "anymal_b": (
        "base",
        ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"),
        12,
        ("LH_KFE", "RH_KFE"),
        {"LF_HAA", "RF_HAA", "LH_HAA", "RH_HAA"},
    ),
    "solo12": (
        "base_link",
        ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"),
        12,
        ("HL_KFE", "HR_KFE"),
        {"FL_HAA", "FR_HAA", "HL_HAA", "HR_HAA"},
    ),
    "talos": (
        "base_link",
        ("leg_left_6_link", "leg_right_6_link"),
        32,
        ("leg_left_4_joint", "leg_right_4_joint"),
        None,
    ),
    "ur5": (None, (), 6, None, None),
    "yam": (None, (), 7, None, None),
}


@pytest.fixture(params=EXPECTED, scope="module")
def named(request):
    found = catalog.find(request.param)
    if found is None:
        pytest.skip(f"{request.param} {catalog.hint(request.param)}")
    return request.param, Robot.load(found, name=request.param)


def test_base_feet_motors_and_mirror_are_those_of_the_robot(named):
    name, robot = named
    base, feet, motors, pair, flip = EXPECTED[name]
    assert (robot.base, robot.feet, len(robot.actuators)) == (base, feet, motors)
    if pair:
        assert robot.mirror.twin(pair[0]) == pair[1]
        assert robot.mirror.twin(pair[1]) == pair[0]
    if flip is not None:
        assert set(robot.mirror.flip) == flip


def test_the_home_pose_is_its_mirror_image_and_within_the_limits(named):
    _, robot = named
    model = mjcf.build_model(robot)
    for joint, home in zip(robot.joints, robot.home, strict=True):
        low, high = model.joint(joint).range
        assert not model.jnt_limited[model.joint(joint).id] or low <= home <= high, joint
    if robot.mirror is not None:
        permutation, sign = robot.mirror_joints()
        mirrored = np.array(sign) * np.array(robot.home)[permutation]
        np.testing.assert_allclose(mirrored, robot.home, atol=0.02)


BALANCED = {"unitree_g1": "falls", "unitree_go1": "sinks"}
"""Robots with mjlab's soft gains, which a policy balances, and what they do without one."""


def test_it_holds_its_home_pose_for_two_seconds_unless_a_policy_must_balance_it(named):
    name, robot = named
    held = lint.hold(robot)
    assert held.held == (name not in BALANCED), held.text
    assert held.text.startswith(BALANCED.get(name, ""))


@pytest.mark.parametrize(
    ("name", "joint", "motor"),
    [
        ("unitree_g1", "left_knee_joint", (99.098, 6.309, 139.0, 0.0251019)),
        ("unitree_g1", "right_ankle_roll_joint", (28.501, 1.814, 50.0, 0.00721945)),
        ("unitree_g1", "left_wrist_roll_joint", (14.251, 0.9072, 25.0, 0.00360972)),
        ("unitree_go1", "RL_calf_joint", (35.765, 2.277, 35.55, 0.0090592)),
        ("unitree_go1", "FR_hip_joint", (15.896, 1.012, 23.7, 0.0040263)),
    ],
)
def test_robots_of_mjlab_have_the_motors_that_mjlab_gives_them(name, joint, motor):
    """kp = I w^2, kd = 4 I w, w = 2 pi 10/s, of the rotor inertia times the gear ratio squared."""
    found = catalog.find(name)
    if found is None:
        pytest.skip(f"{name} {catalog.hint(name)}")
    robot = Robot.load(found, name=name)
    actuator = next(a for a in robot.actuators if a.joint == joint)
    assert (actuator.kp, actuator.kd, actuator.effort, actuator.armature) == pytest.approx(motor, rel=1e-3)
    assert robot.solver["mujoco"]["timestep"] == 0.005


def test_the_light_collision_set_of_the_g1_stands_on_four_points_a_foot():
    found = catalog.find("unitree_g1")
    if found is None:
        pytest.skip(f"unitree_g1 {catalog.hint('unitree_g1')}")
    robot = Robot.load(found, name="unitree_g1")
    model = mjcf.build_model(Scene({ROBOT: robot}, collisions="light"))
    ground = [g for g in range(model.ngeom) if model.geom_bodyid[g] and model.geom_conaffinity[g] & 1]
    assert len(ground) == 8
    places = {tuple(np.round(model.geom_pos[g], 3)) for g in ground}
    assert places == {(x, y, -0.025) for x, w in ((0.1, 0.026), (-0.044, 0.018)) for y in (-w, w)}


@pytest.mark.parametrize(
    "terrain", [None, Terrain(rows=1, columns=1, kinds={"stairs_up": 1})], ids=["flat", "stairs"]
)
@pytest.mark.parametrize("collisions", ["light", "all"])
@pytest.mark.parametrize("name", sorted(BALANCED))
def test_arrays_of_a_simulator_hold_the_constraints_of_robots_that_fall_in_a_heap(name, collisions, terrain):
    found = catalog.find(name)
    if found is None:
        pytest.skip(f"{name} {catalog.hint(name)}")
    robot = Robot.load(found, name=name)
    model = mjcf.build_model(Scene({ROBOT: robot}, collisions=collisions, terrain=terrain))
    stated = mjcf.options(robot, "mujoco_warp").get("self_contacts", 0)
    room = array_sizes(model, 1, self_contacts=stated)
    random = np.random.default_rng(0)
    home = np.array([dict(zip(robot.joints, robot.home, strict=True))[a.joint] for a in robot.actuators])
    rows = contacts = 0
    for _ in range(50):
        data = mujoco.MjData(model)
        data.qvel[:6] = random.normal(size=6) * (1.0, 1.0, 0.5, 2.0, 2.0, 2.0)
        for _ in range(60):
            data.ctrl[:] = home + 0.8 * random.normal(size=model.nu)
            for _ in range(4):
                mujoco.mj_step(model, data)
                rows, contacts = max(rows, data.nefc), max(contacts, data.ncon)
    assert 1.5 * rows < room.rows
    assert 1.5 * contacts < room.contacts


def test_robolearn_robot_pictures_it_and_finds_no_error_and_two_iterations_train(named, tmp_path):
    name, _ = named
    shown = subprocess.run(
        [sys.executable, "-m", "robolearn.cli", "robot", name, "--picture", "home.png", "--write", "mine"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert np.asarray(Image.open(tmp_path / "home.png")).std() > 10  # not a blank picture
    train = [
        "train",
        "task=stand",
        f"robot={tmp_path / 'mine'}",
        "num_envs=16",
        "max_iterations=2",
        "output=run",
    ]
    trained = subprocess.run(
        [sys.executable, "-m", "robolearn.cli", *train],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
