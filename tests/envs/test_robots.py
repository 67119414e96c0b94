"""The robots in envs/robots, checked on the compiled models: sizes, motors and symmetry."""

import dataclasses

import mujoco
import numpy as np
import pytest

from robolearn.envs import mjcf
from robolearn.envs.contacts import colliding_pairs
from tests.envs.scenes import GRAVITY, at_home, total_force
from tests.factories import load_robot

# The humanoid


def test_every_geom_of_the_humanoids_training_model_collides(humanoid, model):
    names = {model.body(int(body)).name for body in model.geom_bodyid}
    assert names == {model.body(b).name for b in range(model.nbody)}
    assert (model.geom_contype | model.geom_conaffinity).all()
    assert model.ngeom == 24  # the floor, one for each of 15 bodies, and four spheres a foot
    assert model.nmesh == 0
    assert model.vis.global_.bvactive == 0


def test_every_moving_body_has_mass_and_a_physically_possible_inertia(model):
    mass, inertia = model.body_mass[1:], model.body_inertia[1:]
    assert (mass > 0.25).all()
    # Principal moments of a real body obey the triangle inequality.
    assert (2 * inertia.max(axis=1) <= inertia.sum(axis=1) * (1 + 1e-9)).all()
    # Radius of gyration between 1.5 and 20 cm.
    gyration = np.sqrt(inertia / mass[:, None])
    assert gyration.min() > 0.015
    assert gyration.max() < 0.2


def test_mass_and_height_are_those_of_a_small_humanoid(humanoid):
    model = mjcf.build_model(humanoid, visual=True)
    data = mujoco.MjData(model)  # legs straight
    mujoco.mj_forward(model, data)
    geoms = np.flatnonzero(model.geom_bodyid > 0)
    boxes = model.geom_aabb[geoms]
    reach = np.abs(data.geom_xmat[geoms].reshape(-1, 3, 3)[:, 2] * boxes[:, 3:]).sum(axis=1)
    top = (data.geom_xpos[geoms, 2] + reach).max()
    sole = min(data.site(foot).xpos[2] for foot in humanoid.feet)
    assert 1.25 <= top - sole <= 1.40
    assert 34 <= model.body_mass.sum() <= 37


def test_motors_joints_and_timestep_are_realistic(humanoid, model):
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


def test_the_contact_spheres_lie_within_a_foot_sized_patch(humanoid, model):
    for foot in humanoid.feet:
        body = model.body(foot).id
        sphere = model.geom_type == mujoco.mjtGeom.mjGEOM_SPHERE
        spheres = np.flatnonzero((model.geom_bodyid == body) & sphere)
        assert len(spheres) == 4
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
    # The equations of motion commute with the mirror.
    permutation, sign = (np.array(x) for x in humanoid.mirror_joints())
    random = np.random.default_rng(1)
    ours, theirs = at_home(humanoid, model), at_home(humanoid, model)
    for data in (ours, theirs):
        data.qpos[2] = 3.0
    for _ in range(20):
        # Near home: joints at their limits would be solved in another order, equal only to 1e-5.
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
    # PD on constant joint targets: weight times height exceeds the ankles' stiffness, so it falls later.
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


def test_foot_forces_accelerate_the_robot_in_world_axes(humanoid, model):
    # Landing while it slides, turned by 90 degrees: a force in the robot's axes would point elsewhere.
    data, after = at_home(humanoid, model), mujoco.MjData(model)
    data.qpos[3:7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    data.qvel[:3] = [1.0, 0.5, -0.2]
    mass = model.body_mass.sum()
    for step in range(4):
        mujoco.mj_forward(model, data)
        mujoco.mj_subtreeVel(model, data)
        before = data.subtree_linvel[0].copy()
        mujoco.mj_step(model, data)  # its sensors report the force at the beginning of the step
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


def test_cartpole_accelerates_as_in_barto_sutton_anderson(cartpole):
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


def test_cartpole_has_a_fixed_base_no_geoms_and_an_unlimited_hinge(cartpole):
    model = mjcf.build_model(cartpole)
    assert (model.nq, model.nv, model.nu, model.ngeom) == (2, 2, 1, 0)
    assert not model.jnt_limited[model.joint("hinge").id]
    assert model.joint("slider").range.tolist() == [-2.4, 2.4]
    assert model.opt.timestep <= 0.01
    assert mjcf.home_qpos(cartpole, model).tolist() == [0.0, 0.0]


# The hopper and the ant: made for the differentiable backend


@pytest.mark.parametrize(("name", "mass"), [("hopper", 6.4), ("ant", 5.4)])
def test_only_the_feet_collide_and_only_with_the_floor_and_joints_have_no_stiffness(name, mass):
    robot = load_robot(name)
    model = mjcf.build_model(robot)
    assert model.body_mass.sum() == pytest.approx(mass)
    assert {model.body(int(body)).name for body in model.geom_bodyid} == {"world", *robot.feet}
    assert all(model.geom("floor").id in pair for pair in colliding_pairs(model))
    plane, sphere, capsule = (
        int(getattr(mujoco.mjtGeom, f"mjGEOM_{g}")) for g in ("PLANE", "SPHERE", "CAPSULE")
    )
    assert set(model.geom_type.tolist()) <= {plane, sphere, capsule}
    free, hinge, slide = (int(getattr(mujoco.mjtJoint, f"mjJNT_{j}")) for j in ("FREE", "HINGE", "SLIDE"))
    assert set(model.jnt_type.tolist()) <= {free, hinge, slide}
    assert not model.dof_frictionloss.any()
    assert not model.jnt_stiffness.any()
    assert not model.qpos0[[model.joint(joint).qposadr[0] for joint in robot.joints]].any()  # no ref
    assert (model.neq, model.ntendon) == (0, 0)
    motors = [model.joint(actuator.joint).dofadr[0] for actuator in robot.actuators]
    assert (model.dof_armature[motors] > 0).all()
    assert (model.dof_damping[motors] > 0).all()
    passive = np.setdiff1d(np.arange(model.nv), motors)
    assert not model.dof_armature[passive].any()
    assert not model.dof_damping[passive].any()
    for backend in ("mujoco", "mujoco_warp", "differentiable"):  # the same physics in all of them
        options = robot.solver[backend]
        assert (options["timestep"], options["integrator"]) == (0.005, "implicitfast")


@pytest.mark.parametrize("name", ["hopper", "ant"])
def test_soles_lie_flat_on_the_ground_at_home_and_carry_the_weight(name):
    robot = load_robot(name)
    model = mjcf.build_model(robot)
    data = at_home(robot, model)
    for foot in robot.feet:
        assert data.site(foot).xpos[2] == pytest.approx(0, abs=1e-4)
        assert data.site(foot).xmat[8] == pytest.approx(1)
    for _ in range(160):
        mujoco.mj_step(model, data)
    assert total_force(robot, data)[2] == pytest.approx(model.body_mass.sum() * GRAVITY, rel=0.03)


def test_the_hopper_moves_in_a_plane_without_a_limit():
    robot = load_robot("hopper")
    model = mjcf.build_model(robot)
    assert [name for name in robot.joints if not model.jnt_limited[model.joint(name).id]] == ["root_x"]
    data = at_home(robot, model)
    data.joint("root_z").qpos[0], data.joint("root_x").qvel[0] = 2.0, 3.0
    for _ in range(100):
        mujoco.mj_step(model, data)
    # Free flight: 0.5 s at 3 m/s, and 9.81 / 2 x 0.5^2 m down, up to half a step's distance.
    assert data.subtree_com[0, 1] == pytest.approx(0, abs=1e-12)
    assert data.joint("root_x").qpos[0] == pytest.approx(1.5, abs=0.01)
    assert data.joint("root_z").qpos[0] == pytest.approx(2.0 - GRAVITY / 8, abs=0.02)


def test_the_ants_left_and_right_are_reflections_of_each_other():
    robot = load_robot("ant")
    model = mjcf.build_model(robot)
    permutation, sign = (np.array(x) for x in robot.mirror_joints())
    random = np.random.default_rng(1)
    ours, theirs = at_home(robot, model), at_home(robot, model)
    for data in (ours, theirs):
        data.qpos[2] = 3.0
    for _ in range(20):
        targets = 0.3 * random.standard_normal(model.nu)
        ours.ctrl[:] = targets
        theirs.ctrl[:] = sign * targets[permutation]
        for data in (ours, theirs):
            mujoco.mj_step(model, data)
    assert np.abs(ours.qpos[7:]).max() > 0.05
    np.testing.assert_allclose(theirs.qpos[7:], sign * ours.qpos[7:][permutation], atol=1e-7)
    np.testing.assert_allclose(theirs.qpos[:3], ours.qpos[:3] * [1, -1, 1], atol=1e-7)
    np.testing.assert_allclose(theirs.qpos[3:7], ours.qpos[3:7] * [1, -1, 1, -1], atol=1e-7)
