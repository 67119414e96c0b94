"""Building the scene of a robot: what is added to its MJCF, and what stays the same."""

import mujoco
import numpy as np
import pytest

from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from tests.envs.scenes import GRAVITY, at_home, hopper, total_force
from tests.factories import ROBOTS, load_robot


@pytest.mark.parametrize(
    ("yaml_change", "xml_change", "words"),
    [
        (("bodies: [trunk]", "bodies: [trunc]"), ("", ""), ["bodies", "'trunc'", "did you mean trunk?"]),
        (("base: trunk", "base: body"), ("", ""), ["base", "'body'", "valid: trunk"]),
        (("base: trunk", "base: l_leg"), ("", ""), ["base is l_leg", "trunk", "must agree"]),
        (("", ""), ('<site name="r_leg"', '<site name="r_sole"'), ["feet", "site", "'r_leg'"]),
        (("", ""), ('joint name="r_leg"', 'joint name="r_lag"'), ["joints", "'r_leg'", "did you mean"]),
        (("", ""), ('joint name="r_leg"', "joint"), ["'r_leg'", "r_leg_joint"]),
        (
            ("", ""),
            ('<site name="l_leg"', '<body><joint name="toe"/><geom size=".01"/></body><site name="l_leg"'),
            ["joints lacks toe"],
        ),
        (("", ""), ('joint name="r_leg" type="slide"', 'joint name="r_leg" type="ball"'), ["r_leg"]),
        (("", ""), ("</mujoco>", ""), ["hopper.xml", "XML"]),
        (("", ""), ('size=".1 .1 .1"', 'size="-1 1 1"'), ["hopper.xml", "size"]),
        (("l_leg: {home: 0,", "l_leg: {home: 0.3,"), ("", ""), ["l_leg.home is 0.3", "-0.2 to 0.2"]),
        (("integrator: implicitfast", "integrator: implicit_fast"), ("", ""), ["did you mean implicitfast"]),
        (
            ("iterations: 10", "iteration: 10"),
            ("", ""),
            ["unknown option 'iteration'", "did you mean iterations"],
        ),
        (("iterations: 10", "iterations: 10.5"), ("", ""), ["'10.5'", "whole number"]),
        (("[eulerdamp]", "[eulerdump]"), ("", ""), ["solver.mujoco.disable", "did you mean eulerdamp?"]),
    ],
)
def test_a_robot_that_disagrees_with_its_mjcf_is_refused_in_one_line(
    tmp_path, yaml_change, xml_change, words
):
    robot = Robot.load(hopper(tmp_path, yaml_change, xml_change))
    with pytest.raises(ValueError, match=str(tmp_path)) as error:
        mjcf.build_model(robot)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_what_a_file_says_of_motors_sensors_poses_and_its_floor_is_taken_out(tmp_path):
    extra = (
        '<actuator><motor joint="l_leg"/></actuator><sensor><gyro site="l_leg"/></sensor>'
        '<keyframe><key name="home"/></keyframe></mujoco>'
    )
    folder = hopper(tmp_path, xml_change=("</mujoco>", extra))
    xml = (folder / "hopper.xml").read_text()
    floor = '<worldbody><geom name="ground" type="plane" size="1 1 1"/><light name="sun" pos="0 0 3"/>'
    (folder / "hopper.xml").write_text(xml.replace("<worldbody>", floor, 1))
    model = mjcf.build_model(Robot.load(folder))
    assert (model.nu, model.nkey, model.nlight) == (2, 0, 0)  # the two motors of robot.yaml
    assert [model.geom(g).name for g in range(model.ngeom) if model.geom_bodyid[g] == 0] == ["floor"]
    assert "gyro" not in {model.sensor(s).name for s in range(model.nsensor)}


def test_a_free_base_without_a_free_joint_in_the_file_gets_one(tmp_path):
    model = mjcf.build_model(Robot.load(hopper(tmp_path, xml_change=("<freejoint/>", ""))))
    assert model.jnt_type[model.body("trunk").jntadr[0]] == int(mujoco.mjtJoint.mjJNT_FREE)


def test_a_backend_without_options_in_robot_yaml_takes_those_of_the_file(tmp_path):
    folder = hopper(
        tmp_path, ("  mujoco: {", "  newton: {"), ("<worldbody>", '<option timestep="0.004"/><worldbody>')
    )
    option = mjcf.build_model(Robot.load(folder)).opt
    assert option.timestep == 0.004
    assert option.integrator == int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)  # instead of Euler, the default


def test_added_elements_do_not_inherit_the_robots_defaults(tmp_path):
    # HOPPER_XML's defaults make geoms non-colliding and general actuators integrators with gear 7.
    robot = Robot.load(hopper(tmp_path))
    model = mjcf.build_model(robot)
    floor = model.geom("floor")
    assert (floor.contype[0], floor.conaffinity[0], floor.condim[0]) == (1, 1, 3)
    assert model.na == 0
    assert model.actuator_gear[:, 0].tolist() == [1.0, 1.0]
    data = at_home(robot, model)
    for _ in range(400):
        mujoco.mj_step(model, data)
    assert total_force(robot, data)[2] == pytest.approx(1.5 * GRAVITY, rel=1e-3)


def test_a_position_actuator_is_a_pd_law_clipped_to_its_effort(humanoid, model):
    data = at_home(humanoid, model)
    knee = humanoid.joints.index("l_knee")  # kp 120, kd 4, effort 120
    assert model.actuator(knee).name == "l_knee"
    data.qvel[model.joint("l_knee").dofadr[0]] = 0.5
    for target, torque in ((0.1, 120 * 0.1 - 4 * 0.5), (10.0, 120.0), (-10.0, -120.0)):
        data.ctrl[knee] = humanoid.home[knee] + target
        mujoco.mj_forward(model, data)
        assert data.actuator_force[knee] == pytest.approx(torque)


def test_actuators_and_sensors_are_in_the_robots_order(humanoid, model):
    assert [model.actuator(i).name for i in range(model.nu)] == [a.joint for a in humanoid.actuators]
    for i, actuator in enumerate(humanoid.actuators):
        assert model.actuator_trnid[i, 0] == model.joint(actuator.joint).id
        assert not model.actuator_ctrllimited[i]
        assert model.actuator_forcerange[i].tolist() == [-actuator.effort, actuator.effort]
    kinds = (("pos", 3), ("vel", 3), ("quat", 4), ("force", 3))
    for foot in humanoid.feet:
        assert [model.sensor(f"{foot}_{kind}").dim[0] for kind, _ in kinds] == [n for _, n in kinds]


def test_solver_options_are_those_of_the_named_backend(humanoid, model):
    assert model.opt.timestep == 0.01
    assert model.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    assert model.opt.iterations == 6
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert model.opt.disableflags == mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    assert mjcf.build_model(humanoid, "mujoco_warp").opt.solver == mujoco.mjtSolver.mjSOL_NEWTON


@pytest.mark.parametrize("name", ["humanoid", "cartpole", "hopper", "ant"])
def test_visuals_do_not_change_the_physics(name):
    robot = Robot.load(ROBOTS / name)
    models = [mjcf.build_model(robot, visual=visual) for visual in (False, True)]
    random = np.random.default_rng(0)
    rollouts = [at_home(robot, model) for model in models]
    for _ in range(60):
        targets = rollouts[0].ctrl + 0.3 * random.standard_normal(models[0].nu)
        for model, data in zip(models, rollouts, strict=True):
            data.ctrl[:] = targets
            mujoco.mj_step(model, data)
    np.testing.assert_array_equal(rollouts[0].qpos, rollouts[1].qpos)
    np.testing.assert_array_equal(rollouts[0].sensordata, rollouts[1].sensordata)


@pytest.mark.parametrize("name", ["humanoid", "cartpole", "hopper", "ant"])
def test_the_tracking_camera_shows_the_whole_robot(name):
    robot = Robot.load(ROBOTS / name)
    model = mjcf.build_model(robot, visual=True)
    data = at_home(robot, model)
    camera = model.camera("track").id
    seen = np.flatnonzero(model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)
    # In the camera's frame x is to the right, y up, and it looks along -z.
    points = (data.geom_xpos[seen] - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
    half = np.tan(np.radians(model.cam_fovy[camera]) / 2)
    assert (points[:, 2] < 0).all()
    assert np.abs(points[:, 1] / points[:, 2]).max() < 0.95 * half
    assert np.abs(points[:, 0] / points[:, 2]).max() < 0.95 * half * 16 / 9
    assert model.vis.global_.offwidth >= 1280


def test_camera_and_lights_follow_a_robot_with_feet_and_no_free_base():
    model = mjcf.build_model(load_robot("hopper"), visual=True)
    data = mujoco.MjData(model)
    places = []
    for x in (0.0, 30.0):
        data.joint("root_x").qpos[0] = x
        mujoco.mj_forward(model, data)
        places.append(np.concatenate((data.cam_xpos, data.light_xpos)))
    np.testing.assert_allclose(places[1] - places[0], [[30.0, 0.0, 0.0]] * len(places[0]), atol=1e-9)


def test_a_robot_with_a_free_base_or_feet_gets_a_floor():
    for name, planes in (("cartpole", 0), ("hopper", 1), ("ant", 1)):
        model = mjcf.build_model(load_robot(name))
        assert (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).sum() == planes
