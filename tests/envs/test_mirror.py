"""Left and right in names."""

import pytest

from robolearn.envs.mirror import Mirror, by_names, is_left, other_side, without_side


@pytest.mark.parametrize(
    ("name", "other", "base"),
    [
        ("left_knee", "right_knee", "knee"),
        ("knee_r", "knee_l", "knee"),
        ("FL_hip_joint", "FR_hip_joint", "F_hip_joint"),
        ("RR_calf", "RL_calf", "R_calf"),
        ("LH_KFE", "RH_KFE", "H_KFE"),
        ("fl.hx", "fr.hx", "f.hx"),
        ("LeftKnee", "RightKnee", "Knee"),
        ("RHipYaw", "LHipYaw", "HipYaw"),
        ("leg_left_3_joint", "leg_right_3_joint", "leg_3_joint"),
    ],
)
def test_the_other_side_of_a_name(name, other, base):
    assert other_side(name) == (other, base)
    assert other_side(other)[0] == name
    assert is_left(name) != is_left(other)


@pytest.mark.parametrize("name", ["waist_yaw", "roll", "torso", "lbr_iiwa_joint_1", "reflector", "leftover"])
def test_a_name_without_a_side_has_no_other(name):
    assert other_side(name) is None


def test_a_name_without_its_limb_is_that_of_all_four():
    assert {without_side(f"{leg}_calf") for leg in ("FL", "FR", "RL", "RR")} == {"calf"}


def test_names_pair_only_where_every_twin_exists():
    assert by_names(["l_knee", "r_knee", "waist"])[0] == {"l_knee": "r_knee", "r_knee": "l_knee"}
    assert by_names(["l_knee", "r_hip"]) is None
    assert by_names(["waist"]) is None


def test_prefixes_make_a_mirror():
    mirror = Mirror.by_prefix(["l_"], ["r_"], ["hip"], ["l_hip", "r_hip", "waist"])
    assert (mirror.twin("l_hip"), mirror.base("r_hip"), mirror.twin("waist")) == ("r_hip", "hip", "waist")
    assert mirror.flip == ("l_hip", "r_hip")


def test_several_prefixes_pair_in_their_order():
    names = ["FL_hip", "FR_hip", "RL_hip", "RR_hip", "FL_calf", "FR_calf", "RL_calf", "RR_calf", "tail"]
    mirror = Mirror.by_prefix(["FL_", "RL_"], ["FR_", "RR_"], ["hip"], names)
    assert [mirror.twin(name) for name in names[:4]] == ["FR_hip", "FL_hip", "RR_hip", "RL_hip"]
    assert mirror.twin("tail") == "tail"
    assert mirror.base("RR_calf") == "calf"
    assert mirror.flip == ("FL_hip", "FR_hip", "RL_hip", "RR_hip")
