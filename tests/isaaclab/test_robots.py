"""External robots in Isaac Lab 3: they behave as in MuJoCo, or are refused in one line with the reason."""

from __future__ import annotations

import importlib.util

import mujoco
import pytest
import torch

from robolearn.envs.contacts import colliding_pairs
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.factories import home_pose, home_targets

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("isaaclab_newton") is None, reason="Isaac Lab 3 is not installed"
)

ARM = """
<mujoco model="arm/v1.0">
  <compiler angle="radian"/>
  <worldbody>
    <body name="post" pos="0 0 1">
      <geom type="box" size="0.1 0.1 0.05"/>
      <body name="b-1.x" pos="0 0 -0.2">
        <joint name="j-1" axis="0 1 0" range="-2 2" damping="0.1"/>
        <geom name="joint0000" type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass=".5" contype="0" conaffinity="0"/>
        <body name="body0001" pos="0 0 -0.3">
          <joint name="j.2" axis="1 0 0" damping="0.1"/>
          <geom type="capsule" fromto="0 0 0 0.2 0 -0.1" size="0.03" mass="0.4"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""Two links under a fixed box, which the lower one can touch. Its names are invalid in USD or used by `usd_name`."""

YAML = """
schema: 1
description: two links
mjcf: arm.xml
bodies: [b-1.x]
joints:
  j-1: {home: 0.1, actuator: a}
  j.2: {home: 0.0, actuator: a}
actuators:
  a: {kind: position, kp: 20, kd: 1, effort: 30}
solver:
  isaaclab: {timestep: 0.005, integrator: implicitfast, solver: Newton, iterations: 20, ls_iterations: 20}
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """MJCF -> backend with an empty cache; closed after the test."""
    from robolearn.envs.isaaclab.backend import IsaacLabBackend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = []

    def build(xml: str):
        (tmp_path / "arm.xml").write_text(xml)
        (tmp_path / "robot.yaml").write_text(YAML)
        made.append(IsaacLabBackend(Robot.load(tmp_path), 2))
        return made[-1]

    yield build
    for backend in made:
        backend.close()


def compare(backend, height: float = 0.0) -> float:
    """The largest difference of a joint position from MuJoCo's in 20 control steps."""
    robot, model = backend.robot, backend.model
    backend.reset(torch.ones(2, dtype=torch.bool), home_pose(robot, 2, height=height))
    data = mujoco.MjData(model)
    addresses = [int(model.joint(name).qposadr[0]) for name in robot.joints]
    data.qpos[addresses] = robot.home
    worst = 0.0
    for step in range(20):
        targets = home_targets(robot, 2) + 0.3 * torch.sin(torch.arange(2) + 0.2 * step)
        backend.step(targets, 2)
        data.ctrl[:] = targets[0]
        mujoco.mj_step(model, data, 2)
        found = backend.state.robot.joint_pos[0]
        worst = max(worst, float((found - torch.tensor(data.qpos[addresses]).float()).abs().max()))
    return worst


def test_a_robot_with_names_invalid_in_usd_and_a_colliding_base_matches_mujoco(make):
    assert compare(make(ARM)) < 1e-4


def test_a_link_that_penetrates_its_base_matches_mujoco(make):
    # The lower link penetrates the box by 5 mm, and contact forces push it out.
    backend = make(ARM.replace('fromto="0 0 0 0.2 0 -0.1"', 'fromto="0 0 0 0 0 0.425"'))
    data = mujoco.MjData(backend.model)
    mujoco.mj_forward(backend.model, data)
    assert data.ncon
    assert compare(backend) < 5e-3


def test_bodies_that_are_excluded_from_contact_do_not_touch_as_in_mujoco(make):
    # A tip that could touch the post, as the lower link can: the exclusion leaves one of the two pairs. The backend
    # compares the pairs of both simulators.
    tip = '<body name="tip" pos="0.2 0 -0.1"><geom type="sphere" size="0.02" mass="0.1"/></body>'
    xml = ARM.replace('size="0.03" mass="0.4"/>', f'size="0.03" mass="0.4"/>{tip}')
    exclusion = '<contact><exclude body1="tip" body2="post"/></contact>'
    pairs = [
        len(colliding_pairs(make(text).model))
        for text in (xml, xml.replace("</mujoco>", f"{exclusion}</mujoco>"))
    ]
    assert pairs == [2, 1]


def test_a_joint_that_cannot_be_at_zero_matches_mujoco(make):
    assert compare(make(ARM.replace('range="-2 2"', 'range="0.05 2"'))) < 1e-4


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("<worldbody>", '<option><flag gravity="disable"/></option><worldbody>', "flag gravity"),
        (
            "<worldbody>",
            '<option density="1000" viscosity="0.1"/><worldbody>',
            "option density is 0, not 1000",
        ),
        ("<worldbody>", '<option wind="9 0 0"/><worldbody>', r"option wind\[0\] is 0, not 9"),
        ('name="b-1.x"', 'name="b-1.x" gravcomp="1"', "body_gravcomp"),
        ('range="-2 2"', 'range="-2 2" ref="0.5"', "joint j-1 has a ref"),
        ('range="-2 2"', 'range="-2 2" actuatorfrcrange="-1 1"', "joint j-1 has an actuatorfrcrange"),
        # In MuJoCo the child of a fixed body can touch it, in Isaac Lab it cannot.
        (
            ' contype="0" conaffinity="0"',
            "",
            "geoms of body b-1.x that can touch another: none in Isaac Lab, capsule",
        ),
        (
            'type="capsule" fromto="0 0 0 0.2 0 -0.1" size="0.03"',
            'type="ellipsoid" size="0.05 0.06 0.2"',
            "body body0001 lost a colliding geom: ellipsoid",
        ),
    ],
)
def test_elements_that_isaac_lab_does_not_support_are_refused_by_name(make, was, now, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        make(ARM.replace(was, now))
    assert "\n" not in str(refusal.value)


def test_a_mesh_that_cannot_be_converted_is_refused_by_name(make, tmp_path):
    import struct

    triangles = [(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]
    corners = [(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.0, 0.1, 0.0), (0.0, 0.0, -0.3)]
    faces = b"".join(
        struct.pack("<12fH", 0, 0, 0, *corners[a], *corners[b], *corners[c], 0) for a, b, c in triangles
    )
    (tmp_path / "m.stl").write_bytes(bytes(80) + struct.pack("<I", 4) + faces)
    with_mesh = ARM.replace("<worldbody>", '<asset><mesh name="m" file="m.stl"/></asset><worldbody>').replace(
        'type="capsule" fromto="0 0 0 0.2 0 -0.1" size="0.03"', 'type="mesh" mesh="m"'
    )
    backend = make(with_mesh)
    assert compare(backend) < 1e-4
    backend.close()
    numbers = [4, 0, 0, 4]  # MuJoCo's format, which the converter does not support
    legacy = (
        struct.pack("<4i", *numbers)
        + struct.pack("<12f", *sum(corners, ()))
        + struct.pack("<12i", *sum(triangles, ()))
    )
    (tmp_path / "m.msh").write_bytes(legacy)
    with pytest.raises(ConfigError, match=r"arm\.xml: .*Mesh m .*extension \.msh") as refusal:
        make(with_mesh.replace("m.stl", "m.msh"))
    assert "\n" not in str(refusal.value)
