"""The mirror image of the physics that the critic sees: parameters of a side are those of the other one, by hand."""

from __future__ import annotations

import pytest
import torch

from robolearn import config
from robolearn.errors import ConfigError
from robolearn.learners.equivariance import choose_symmetry
from robolearn.tasks.mdp.observations import VOCABULARY, Observation
from robolearn.tasks.mdp.symmetry import sagittal
from robolearn.training.build import make_env
from tests.factories import load_robot

CPU = torch.device("cpu")
PHYSICS = VOCABULARY["physics"]


def mirrored(names: list[str]) -> dict[str, tuple[str, float]]:
    """By name of a parameter: which one its mirror image has in its place, and with which sign."""
    found = sagittal(load_robot("humanoid"), {"critic": [(PHYSICS, len(names))]}, CPU, names).groups["critic"]
    pairs = zip(found.permutation.tolist(), found.sign.tolist(), strict=True)
    return {name: (names[i], sign) for name, (i, sign) in zip(names, pairs, strict=True)}


def test_what_has_no_side_stays():
    names = [
        "friction",
        "gravity_pitch",
        "imu_bias/y",
        "map_lift/z",
        "map_shift/x",
        "mass_scale",
        "robot/com_x",
    ]
    assert mirrored(names) == {name: (name, 1.0) for name in names}


def test_what_points_to_the_left_or_turns_about_x_or_z_changes_its_sign():
    names = ["com_y", "gravity_roll", "imu_bias/x", "imu_bias/z", "imu_tilt/x", "imu_tilt/z", "map_shift/y"]
    assert mirrored(names) == {name: (name, -1.0) for name in names}


def test_joints_and_bodies_have_the_parameters_of_their_twins():
    # A knee bends in the same sense on both sides; hips that abduct do not.
    names = [
        "encoder_bias/l_hip_roll",
        "encoder_bias/l_knee",
        "encoder_bias/r_hip_roll",
        "encoder_bias/r_knee",
        "robot/com_y/l_shank",
        "robot/com_y/r_shank",
        "robot/damping/l_knee",
        "robot/damping/r_knee",
    ]
    assert mirrored(names) == {
        "encoder_bias/l_hip_roll": ("encoder_bias/r_hip_roll", -1.0),
        "encoder_bias/l_knee": ("encoder_bias/r_knee", 1.0),
        "encoder_bias/r_hip_roll": ("encoder_bias/l_hip_roll", -1.0),
        "encoder_bias/r_knee": ("encoder_bias/l_knee", 1.0),
        "robot/com_y/l_shank": ("robot/com_y/r_shank", -1.0),
        "robot/com_y/r_shank": ("robot/com_y/l_shank", -1.0),
        "robot/damping/l_knee": ("robot/damping/r_knee", 1.0),
        "robot/damping/r_knee": ("robot/damping/l_knee", 1.0),
    }


def test_a_parameter_of_one_side_alone_is_refused_naming_its_twin():
    with pytest.raises(ConfigError, match="robot/damping/r_knee"):
        mirrored(["robot/damping/l_knee"])


def test_a_parameter_of_one_side_leaves_the_networks_of_symmetry_auto_without_one():
    run = config.resolve(
        ["task=humanoid_walk", "backend=mujoco", "task.randomize={robot/kp_scale/l_knee: [0.8, 1]}"]
    )
    env = make_env(run, num_envs=2)
    assert choose_symmetry(env, "auto", (256, 128)) is None
    for wanted in ("equivariant", "augment"):
        with pytest.raises(ConfigError, match="robot/kp_scale/r_knee"):
            choose_symmetry(env, wanted, (256, 128))
    env.close()


def test_a_mirror_of_another_width_than_the_observation_is_refused_by_name():
    robot = load_robot("humanoid")
    two = Observation("two_vectors", lambda state, ctx: state.robot.base_lin_vel, "vector")
    with pytest.raises(ConfigError, match="two_vectors"):
        sagittal(robot, {"policy": [(two, 6)]}, CPU)


def test_an_env_mirrors_the_columns_of_its_critic_by_their_names():
    ranges = ["com_y=[-0.03,0.03]", "encoder_bias=[-0.02,0.02]"]
    run = config.resolve(["task=humanoid_walk", "backend=mujoco", *(f"task.randomize.{r}" for r in ranges)])
    env = make_env(run, num_envs=2)
    at = {
        item.name: sum(width for _, width in env.columns["critic"][:i])
        for i, (item, _) in enumerate(env.columns["critic"])
    }["physics"]
    joints = env.robot.joints
    names = sorted([*env.backend.state.params, *(f"encoder_bias/{joint}" for joint in joints)])
    found = env.symmetry().groups["critic"]
    left, right = (at + names.index(f"encoder_bias/{side}_knee") for side in "lr")
    assert found.permutation[left] == right
    assert found.sign[at + names.index("com_y")] == -1
    assert found.sign[at + names.index("friction")] == 1
    env.close()
