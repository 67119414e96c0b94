"""Contact points and stops that the Newton engine reads from a robot, and the robots that it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError
from tests.envs.newton_robots import one_body, write_robot

pytest.importorskip("warp", reason="the extra 'newton' is not installed")
from robolearn.envs.differentiable.newton_model import SINK, Description
from robolearn.envs.differentiable.supported import compliance


def describe(robot: Robot):
    """The contact points of a robot; raises for everything that the engine does not support."""
    model = mjcf.build_model(robot, "newton")
    described = Description(robot, model)
    described.joints()
    described.places()
    return described.points(*compliance(robot, model, robot.solver["newton"], SINK, 1.0))


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            one_body('<geom name="can" type="cylinder" size="0.1 0.1" mass="1"/>'),
            ["can", "cylinder", "capsules"],
        ),
        (one_body('<geom name="hull" type="mesh" mesh="m" mass="1"/>'), ["hull", "mesh", "spheres"]),
        (
            one_body("", joint='<joint name="j" frictionloss="0.1"/>'),
            ["frictionloss", "joint j", "use damping"],
        ),
        (one_body("", more='<option density="1.2"/>'), ["density", "use damping"]),
        (
            one_body("", more='<equality><weld body1="base" body2="arm"/></equality>'),
            ["equality constraint", "remove"],
        ),
        (
            one_body("", more='<tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>'),
            ["tendon", "remove"],
        ),
        (one_body('<geom type="sphere" size="0.1" condim="4"/>'), ["condim", "arm", "set its condim to 3"]),
    ],
    ids=["cylinder", "mesh", "frictionloss", "fluid", "equality", "tendon", "condim"],
)
def test_an_unsupported_feature_is_refused_in_one_line_that_names_it(tmp_path, parts, names):
    robot = write_robot(tmp_path, parts)
    with pytest.raises(
        ValueError, match=f"^backend=differentiable cannot simulate robot {robot.name}: "
    ) as refused:
        describe(robot)
    message = str(refused.value)
    assert "\n" not in message
    assert all(name in message for name in names), message


def test_joints_of_one_body_that_newton_cannot_combine_are_refused(tmp_path):
    xml, base, bodies, _ = one_body("", joint='<joint name="j"/><joint name="k" axis="0 1 1"/>')
    robot = write_robot(tmp_path, (xml, base, bodies, "{j: {home: 0, actuator: motor}, k: {home: 0}}"))
    with pytest.raises(ConfigError, match=r"body arm\b"):
        describe(robot)


def test_boxes_touch_with_their_corners_and_capsules_with_both_ends(tmp_path):
    capsule = '<geom type="capsule" fromto="0.1 0 0 0.1 0 0.3" size="0.02" mass="1"/>'
    robot = write_robot(tmp_path, one_body(capsule))
    points = describe(robot)
    centers, radii = points.center.numpy(), points.radius.numpy()
    assert points.link.numpy().tolist() == [0] * 8 + [1] * 2
    assert np.abs(centers[:8]) == pytest.approx(np.full((8, 3), 0.1))
    assert len(np.unique(centers[:8], axis=0)) == 8
    assert sorted(centers[8:, 2]) == pytest.approx([0.0, 0.3], abs=1e-6)
    assert radii == pytest.approx([0] * 8 + [0.02] * 2)


@pytest.mark.parametrize("value", [-1, "hard", True, float("nan"), 1e8])
def test_an_invalid_or_too_high_contact_stiffness_is_refused(humanoid, value):
    options = humanoid.solver["newton"] | {"contact_stiffness": value}
    with pytest.raises(ConfigError, match="contact_stiffness"):
        describe(replace(humanoid, solver={"newton": options}))


def test_a_negative_solreflimit_sets_the_stiffness_and_damping_of_a_stop(tmp_path):
    joint = '<joint name="j" range="-1 1" limited="true" solreflimit="-1000 -50"/>'
    robot = write_robot(tmp_path, one_body("", joint=joint))
    model = mjcf.build_model(robot, "newton")
    stiffness, damping = Description(robot, model)._stop(model.joint("j").id)
    assert stiffness == pytest.approx(1000 / model.dof_invweight0[model.joint("j").dofadr[0]])
    assert damping == pytest.approx(50 / 1000 / 0.02)
