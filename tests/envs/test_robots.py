"""The robots, the Robot noun and the scenes built from it; honesty is checked on the compiled models."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robolearn.envs.robot import Robot

mujoco = pytest.importorskip("mujoco")
mjcf = pytest.importorskip("robolearn.envs.mjcf")

ROBOTS = Path(sys.modules[Robot.__module__].__file__).parent / "robots"
GRAVITY = 9.81


@pytest.fixture(scope="module")
def humanoid():
    return Robot.load(ROBOTS / "humanoid")


@pytest.fixture(scope="module")
def model(humanoid):
    return mjcf.build_model(humanoid)


@pytest.fixture(scope="module")
def cartpole():
    return Robot.load(ROBOTS / "cartpole")


def at_home(robot, model):
    """Data in the home pose at rest, targets at home."""
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.home_qpos(robot, model)
    data.ctrl[:] = np.array(robot.home)[list(robot.actuated)]
    mujoco.mj_forward(model, data)
    return data


def total_force(robot, data):
    return sum(data.sensor(f"{foot}_force").data for foot in robot.feet)


# A small robot in a folder of its own, to break in every way.

HOPPER_XML = """
<mujoco>
  <default><geom contype="0" conaffinity="0" condim="1" mass="0.5"/><general gear="7" dyntype="integrator"/></default>
  <worldbody>
    <body name="trunk">
      <freejoint/>
      <geom type="box" size=".1 .1 .1"/>
      <body name="l_leg">
        <joint name="l_leg" type="slide" axis="0 0 1" range="-.2 .2"/>
        <geom type="sphere" size=".05" pos="0 .1 -.4" contype="1" conaffinity="1" condim="3"/>
        <site name="l_leg" pos="0 .1 -.45"/>
      </body>
      <body name="r_leg">
        <joint name="r_leg" type="slide" axis="0 0 1" range="-.2 .2"/>
        <geom type="sphere" size=".05" pos="0 -.1 -.4" contype="1" conaffinity="1" condim="3"/>
        <site name="r_leg" pos="0 -.1 -.45"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
HOPPER_YAML = """
schema: 1
description: two legs
mjcf: hopper.xml
base: trunk
home_height: 0.45
feet: [l_leg, r_leg]
bodies: [trunk]
joints:
  l_leg: {home: 0, actuator: leg}
  r_leg: {home: 0, actuator: leg}
actuators:
  leg: {kind: position, kp: 500, kd: 20, effort: 50}
mirror: {left: l_, right: r_, flip: []}
solver:
  mujoco: {timestep: 0.005, integrator: implicitfast, iterations: 10, disable: [eulerdamp]}
"""


def hopper(folder, yaml_change=("", ""), xml_change=("", "")):
    """Write the small robot with one text replaced in each file; its folder."""
    for text, change, name in (
        (HOPPER_YAML, yaml_change, "robot.yaml"),
        (HOPPER_XML, xml_change, "hopper.xml"),
    ):
        assert change[0] in text
        (folder / name).write_text(text.replace(change[0], change[1], 1) if change[0] else text)
    return folder


# Reading robot.yaml


def test_reading_a_robot_imports_neither_simulator_nor_torch():
    code = (
        "import sys; from robolearn.envs.robot import Robot; "
        f"Robot.load({str(ROBOTS / 'humanoid')!r}); "
        "assert not {'mujoco', 'torch', 'mjbatch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_robot_survives_pickling_and_has_a_hash(humanoid):
    assert pickle.loads(pickle.dumps(humanoid)) == humanoid
    assert hash(humanoid) == hash(Robot.load(ROBOTS / "humanoid"))


def test_actuators_follow_the_joint_order_and_leave_out_passive_joints(cartpole, tmp_path):
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
        ("schema: 1", "schema: 2", ["schema is '2'", "reads schema 1"]),
        ("schema: 1\n", "", ["schema is 'None'"]),
        ("base: trunk", "basis: trunk", ["unknown key 'basis'", "did you mean base?", "home_height"]),
        ("home_height: 0.45", "", ["home_height is missing", "trunk"]),
        ("base: trunk", "", ["home_height is only for a robot with a free base"]),
        ("home_height: 0.45", "home_height: tall", ["home_height is 'tall'", "number"]),
        ("home_height: 0.45", "home_height: .inf", ["home_height is 'inf'", "finite"]),
        ("home_height: 0.45", "home_height: 1e-1", ["'1e-1'", "1.0e-3"]),
        ("mjcf: hopper.xml", "mjcf: hoper.xml", ["mjcf names 'hoper.xml'"]),
        ("feet: [l_leg, r_leg]", "feet: l_leg", ["feet is 'l_leg'", "list of names"]),
        ("feet: [l_leg, r_leg]", "feet: [l_leg, l_leg]", ["feet", "twice"]),
        ("l_leg: {home: 0, ", "l_leg: {", ["joints.l_leg has no home"]),
        ("l_leg: {home: 0, ", "l_leg: {home: yes, ", ["joints.l_leg.home is 'True'", "number"]),
        ("actuator: leg", "actuator: lag", ["joints.l_leg", "'lag'", "did you mean leg?"]),
        ("actuator: leg", "motor: leg", ["joints.l_leg", "unknown key 'motor'", "valid: home, actuator"]),
        ("  r_leg:", "  l_leg:", ["l_leg is given twice"]),
        ("kind: position", "kind: positon", ["actuators.leg.kind is 'positon'", "did you mean position?"]),
        ("kind: position", "kind: force", ["actuators.leg has the unknown key 'kp'", "kind, effort"]),
        ("kd: 20, ", "", ["actuators.leg has no kd"]),
        ("effort: 50", "effort: 0", ["actuators.leg", "effort is > 0"]),
        ("effort: 50}", "effort: 50}\n  arm: {kind: force, effort: 1}", ["actuators.arm drives no joint"]),
        ("flip: []", "flip: [lag]", ["mirror.flip", "'lag'", "did you mean leg?"]),
        ("right: r_", "right: x_", ["l_leg lacks its twin 'x_leg'"]),
        ("timestep: 0.005, ", "", ["solver.mujoco.timestep"]),
        ("timestep: 0.005", "timestep: 0", ["solver.mujoco.timestep"]),
        ("joints:", "joints: [", ["not valid YAML near line"]),
        ("schema: 1", "- schema", ["not valid YAML"]),
    ],
)
def test_a_wrong_robot_yaml_is_refused_in_one_line_that_names_the_offender(tmp_path, old, new, words):
    with pytest.raises(ValueError, match=r"robot\.yaml: ") as error:
        Robot.load(hopper(tmp_path, (old, new)))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_a_folder_without_a_robot_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file; a robot is a folder with"):
        Robot.load(tmp_path)


# Building the scene


@pytest.mark.parametrize(
    ("yaml_change", "xml_change", "words"),
    [
        (("bodies: [trunk]", "bodies: [trunc]"), ("", ""), ["bodies", "'trunc'", "did you mean trunk?"]),
        (("base: trunk", "base: body"), ("", ""), ["base", "'body'", "valid: trunk"]),
        (("base: trunk", "base: l_leg"), ("", ""), ["base is l_leg", "trunk", "must agree"]),
        (("", ""), ("<freejoint/>", ""), ["base is trunk", "none"]),
        (("", ""), ('<site name="r_leg"', '<site name="r_sole"'), ["feet", "site", "'r_leg'"]),
        (("", ""), ('joint name="r_leg"', 'joint name="r_lag"'), ["joints", "'r_leg'", "did you mean"]),
        (("", ""), ('joint name="r_leg"', "joint"), ["without a name"]),
        (
            ("", ""),
            ('<site name="l_leg"', '<body><joint name="toe"/></body><site name="l_leg"'),
            ["joints lacks toe"],
        ),
        (("", ""), ('joint name="r_leg" type="slide"', 'joint name="r_leg" type="ball"'), ["r_leg"]),
        (("", ""), ("</mujoco>", '<sensor><gyro site="l_leg"/></sensor></mujoco>'), ["sensors; remove them"]),
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
        (("  mujoco: {", "  newton: {"), ("", ""), ["no options for the backend 'mujoco'", "valid: newton"]),
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


def test_what_is_added_does_not_inherit_the_defaults_of_the_robot(tmp_path):
    # HOPPER_XML's defaults make geoms ghosts and general actuators integrators with gear 7.
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


def test_a_position_actuator_is_the_pd_law_clipped_to_its_effort(humanoid, model):
    data = at_home(humanoid, model)
    knee = humanoid.joints.index("l_knee")  # kp 120, kd 4, effort 120
    assert model.actuator(knee).name == "l_knee"
    data.qvel[model.joint("l_knee").dofadr[0]] = 0.5
    for target, torque in ((0.1, 120 * 0.1 - 4 * 0.5), (10.0, 120.0), (-10.0, -120.0)):
        data.ctrl[knee] = humanoid.home[knee] + target
        mujoco.mj_forward(model, data)
        assert data.actuator_force[knee] == pytest.approx(torque)


def test_actuators_and_sensors_come_in_the_robot_s_order(humanoid, model):
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


@pytest.mark.parametrize("name", ["humanoid", "cartpole"])
def test_looks_do_not_change_the_physics(name):
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


@pytest.mark.parametrize("name", ["humanoid", "cartpole"])
def test_the_tracking_camera_has_the_whole_robot_in_its_picture(name):
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


# The humanoid, honestly


def test_the_training_humanoid_is_feet_and_floor_only(humanoid, model):
    names = {model.body(int(body)).name for body in model.geom_bodyid}
    assert names == {"world", *humanoid.feet}
    assert model.ngeom == 9  # the floor and four spheres a foot
    assert model.nmesh == 0
    assert model.vis.global_.bvactive == 0


def test_every_moving_body_has_mass_and_a_possible_inertia(model):
    mass, inertia = model.body_mass[1:], model.body_inertia[1:]
    assert (mass > 0.5).all()
    # Principal moments of a real body obey the triangle inequality.
    assert (2 * inertia.max(axis=1) <= inertia.sum(axis=1) * (1 + 1e-9)).all()
    # Radius of gyration between 1.5 and 20 cm: neither points nor balloons.
    gyration = np.sqrt(inertia / mass[:, None])
    assert gyration.min() > 0.015
    assert gyration.max() < 0.2


def test_mass_and_height_are_those_of_a_small_humanoid(humanoid):
    model = mjcf.build_model(humanoid, visual=True)
    data = mujoco.MjData(model)  # legs straight
    mujoco.mj_forward(model, data)
    own = np.flatnonzero(model.geom_bodyid > 0)
    boxes = model.geom_aabb[own]
    reach = np.abs(data.geom_xmat[own].reshape(-1, 3, 3)[:, 2] * boxes[:, 3:]).sum(axis=1)
    top = (data.geom_xpos[own, 2] + reach).max()
    sole = min(data.site(foot).xpos[2] for foot in humanoid.feet)
    assert 1.25 <= top - sole <= 1.40
    assert 34 <= model.body_mass.sum() <= 37


def test_motors_joints_and_step_are_within_what_hardware_has(humanoid, model):
    assert 21 <= len(humanoid.actuators) <= 23
    limits = {"hip": 140, "knee": 140, "ankle": 60, "waist": 140, "shoulder": 40, "elbow": 40}
    for actuator in humanoid.actuators:
        part = humanoid.mirror.base(actuator.joint).split("_")[0]
        assert actuator.effort <= limits[part], actuator
    hinges = model.jnt_dofadr[model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE]
    assert (model.dof_armature[hinges] > 0).all()
    assert (model.dof_armature[hinges] <= 0.05).all()
    assert (model.dof_damping[hinges] <= 2).all()
    assert model.opt.timestep <= 0.010
    low, high = np.array([model.joint(name).range for name in humanoid.joints]).T
    assert model.jnt_limited[[model.joint(name).id for name in humanoid.joints]].all()
    assert (high - low > 0.5).all()
    assert (high - low < 4.5).all()
    for side in "lr":
        assert model.joint(f"{side}_knee").range[0] >= -0.1  # no backward knee


def test_the_feet_touch_the_ground_within_a_foot_sized_patch(humanoid, model):
    for foot in humanoid.feet:
        body = model.body(foot).id
        spheres = np.flatnonzero(model.geom_bodyid == body)
        assert (model.geom_type[spheres] == mujoco.mjtGeom.mjGEOM_SPHERE).all()
        radius = model.geom_size[spheres, 0]
        low = (model.geom_pos[spheres] - radius[:, None]).min(axis=0)
        high = (model.geom_pos[spheres] + radius[:, None]).max(axis=0)
        assert (high - low)[0] <= 0.25
        assert (high - low)[1] <= 0.12
        # The site is the centre of the sole.
        np.testing.assert_allclose(model.site(foot).pos, [*(low + high)[:2] / 2, low[2]], atol=1e-9)


def test_home_pose_is_within_limits_and_puts_the_soles_on_the_ground(humanoid, model):
    data = at_home(humanoid, model)
    for name, home in zip(humanoid.joints, humanoid.home, strict=True):
        low, high = model.joint(name).range
        assert low < home < high
    for foot in humanoid.feet:
        assert abs(data.site(foot).xpos[2]) < 0.005
        # Flat: the sole's normal is vertical.
        assert data.site(foot).xmat[8] == pytest.approx(1.0, abs=1e-6)
    # The centre of mass is over the feet, measured from the ankle: heel 0.08 m behind, toe 0.15 m in front.
    com = data.subtree_com[0] - (data.body("l_foot").xpos + data.body("r_foot").xpos) / 2
    assert -0.06 < com[0] < 0.13
    assert com[1] == pytest.approx(0, abs=1e-9)


def test_left_and_right_are_reflections_of_each_other(humanoid, model):
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    reflect = np.array([1.0, -1.0, 1.0])
    # The mirror map follows from the geometry: a hinge's axis is a pseudovector, so it reflects to -reflect * axis.
    permutation, sign = [], []
    for name in humanoid.joints:
        joint = model.joint(name).id
        anchor, axis = reflect * data.xanchor[joint], -reflect * data.xaxis[joint]
        for j, other in enumerate(humanoid.joints):
            twin = model.joint(other).id
            along = float(data.xaxis[twin] @ axis)
            if np.allclose(data.xanchor[twin], anchor) and abs(along) > 0.999:
                permutation.append(j)
                sign.append(np.sign(along))
                low, high = sorted(np.sign(along) * model.jnt_range[twin])
                np.testing.assert_allclose(model.jnt_range[joint], [low, high])
                dofs = model.jnt_dofadr[[joint, twin]]
                assert np.ptp(model.dof_armature[dofs]) == np.ptp(model.dof_damping[dofs]) == 0
    assert humanoid.mirror_joints() == (permutation, sign)
    for body in range(1, model.nbody):
        twin = model.body(humanoid.mirror.twin(model.body(body).name)).id
        assert model.body_mass[body] == model.body_mass[twin]
        np.testing.assert_allclose(data.xipos[body], reflect * data.xipos[twin], atol=1e-9)
        np.testing.assert_allclose(model.body_inertia[body], model.body_inertia[twin])
    # Home pose and motors are symmetric as well.
    home = np.array(humanoid.home)
    np.testing.assert_array_equal(home, np.array(sign) * home[permutation])
    for a, b in enumerate(humanoid.mirror_actuators()[0]):
        left, right = humanoid.actuators[a], humanoid.actuators[b]
        assert dataclasses.replace(left, joint="") == dataclasses.replace(right, joint="")


def test_mirrored_targets_in_the_air_give_the_mirrored_motion(humanoid, model):
    # What no comparison of numbers in two files can show: the equations of motion commute with the mirror.
    permutation, sign = (np.array(x) for x in humanoid.mirror_joints())
    random = np.random.default_rng(1)
    ours, theirs = at_home(humanoid, model), at_home(humanoid, model)
    for data in (ours, theirs):
        data.qpos[2] = 3.0
    for _ in range(20):
        # Around home: a joint at its limit would be solved in another order, equal only to 1e-5.
        targets = np.array(humanoid.home) + 0.2 * random.standard_normal(model.nu)
        ours.ctrl[:] = targets
        theirs.ctrl[:] = sign * targets[permutation]
        for data in (ours, theirs):
            mujoco.mj_step(model, data)
    assert np.abs(ours.qpos[7:] - humanoid.home).max() > 0.1
    np.testing.assert_allclose(theirs.qpos[7:], sign * ours.qpos[7:][permutation], atol=1e-7)
    np.testing.assert_allclose(theirs.qpos[:3], ours.qpos[:3] * [1, -1, 1], atol=1e-7)
    np.testing.assert_allclose(theirs.qpos[3:7], ours.qpos[3:7] * [1, -1, 1, -1], atol=1e-7)


@pytest.mark.parametrize("fine", [False, True])
def test_the_humanoid_stands_for_two_seconds_and_its_feet_carry_its_weight(humanoid, fine):
    # Plain PD on unmoving targets: weight times height outweighs the ankles' stiffness, so it will fall later.
    spec = mjcf.build_spec(humanoid)
    if fine:
        spec.option.solver, spec.option.iterations = mujoco.mjtSolver.mjSOL_NEWTON, 50
        spec.option.timestep = 0.005
    model = spec.compile()
    data = at_home(humanoid, model)
    vertical = []
    while data.time < 2:
        mujoco.mj_step(model, data)
        if data.time > 1:
            vertical.append(total_force(humanoid, data)[2])
    up = data.body("torso").xmat[8]
    assert up > 0.9
    assert data.qpos[2] > 0.55
    assert np.mean(vertical) == pytest.approx(model.body_mass.sum() * GRAVITY, rel=0.02)


def test_foot_force_is_what_accelerates_the_robot_in_world_axes(humanoid, model):
    # Landing while it slides, turned by 90 degrees: a force in the robot's axes would point elsewhere.
    data, after = at_home(humanoid, model), mujoco.MjData(model)
    data.qpos[3:7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    data.qvel[:3] = [1.0, 0.5, -0.2]
    mass = model.body_mass.sum()
    for step in range(4):
        mujoco.mj_forward(model, data)
        mujoco.mj_subtreeVel(model, data)
        before = data.subtree_linvel[0].copy()
        mujoco.mj_step(model, data)  # its sensors tell the force at the beginning of the step
        after.qpos[:], after.qvel[:] = data.qpos, data.qvel
        mujoco.mj_forward(model, after)
        mujoco.mj_subtreeVel(model, after)
        change = mass * (after.subtree_linvel[0] - before) / model.opt.timestep
        force = total_force(humanoid, data)
        np.testing.assert_allclose(
            force, change + np.array([0, 0, mass * GRAVITY]), atol=0.03 * np.linalg.norm(force)
        )
        if step == 0:
            assert force[0] < -200  # friction against the slide
            assert force[1] < -30


# The cart and its pole


def test_cartpole_accelerates_as_the_textbook_says(cartpole):
    model = mjcf.build_model(cartpole)
    data = at_home(cartpole, model)
    data.ctrl[0] = 10.0
    mujoco.mj_forward(model, data)
    # Cart 1 kg, uniform pole 0.2 kg with half length 0.5 m, upright: x'' = F / (M + m - 3/4 m) and
    # theta'' = -(3/4) x'' / 0.5 (Barto, Sutton and Anderson 1983, without friction).
    assert data.qacc[0] == pytest.approx(10 / (1.2 - 0.15), rel=1e-3)
    assert data.qacc[1] == pytest.approx(-0.75 * 10 / (1.2 - 0.15) / 0.5, rel=1e-3)
    data.ctrl[0] = 1000.0
    mujoco.mj_forward(model, data)
    assert data.actuator_force[0] == 100.0


def test_cartpole_is_bolted_down_touches_nothing_and_turns_freely(cartpole):
    model = mjcf.build_model(cartpole)
    assert (model.nq, model.nv, model.nu, model.ngeom) == (2, 2, 1, 0)
    assert not model.jnt_limited[model.joint("hinge").id]
    assert model.joint("slider").range.tolist() == [-2.4, 2.4]
    assert model.opt.timestep <= 0.01
    assert mjcf.home_qpos(cartpole, model).tolist() == [0.0, 0.0]
