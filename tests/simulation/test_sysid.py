"""System identification: logs, what they can tell, planted parameters found again."""

import dataclasses
import importlib.util
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robolearn.envs.actuators.model import MotorModel
from robolearn.envs.elements import compiled
from robolearn.envs.robot import Actuator, Robot
from robolearn.errors import ConfigError, MissingError
from robolearn.simulation.excite import excite
from robolearn.simulation.sysid import information, log, made, solve
from robolearn.simulation.sysid.log import Log, clock, findings, read
from robolearn.simulation.sysid.problem import Problem, hanging, orientation, require_servos, toolbox
from robolearn.simulation.sysid.solve import Fit
from robolearn.simulation.sysid.unknowns import clock_unknown, unknowns
from tests.envs.test_derive import biped
from tests.simulation.sysid_robots import LINKS, TRUTH, motion, recorded, two_links, without

solves = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tabulate", "colorama")),
    reason="mujoco[sysid] is not installed",
)


@pytest.fixture(scope="module")
def robot(tmp_path_factory) -> Robot:
    return two_links(tmp_path_factory.mktemp("robot"))


@pytest.fixture(scope="module")
def both(robot) -> Log:
    """A log in which both joints move."""
    return recorded(robot)


def some_log(**changes) -> Log:
    """3 s of two joints at 50 Hz."""
    time = np.arange(150) * 0.02
    target = np.stack((np.sin(time), np.full(150, 0.4)), axis=1)
    nothing = np.full((150, 2), np.nan)
    whole = Log("some.csv", ("shoulder", "elbow"), time, target, target + 0.01, nothing, nothing)
    return dataclasses.replace(whole, **changes)


# ---------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_a_log_is_read_as_it_was_written(tmp_path, ending):
    position = some_log().position.copy()
    position[3, 1] = np.nan  # not measured
    base = np.tile([1.0, 0.0, 0.0, 0.0], (150, 1))
    whole = some_log(position=position, torque=position * 2, base=base)
    whole.write(tmp_path / f"some{ending}")
    found = read(tmp_path / f"some{ending}")
    assert found.joints == whole.joints
    for name in ("time", "target", "position", "velocity", "torque", "base"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-8)


def test_the_commanded_part_of_a_log_is_what_excite_writes(tmp_path, robot):
    found = excite(robot, seconds=2.0)
    found.write(tmp_path / "motion.csv")
    with pytest.raises(ConfigError, match="position"):
        read(tmp_path / "motion.csv")  # nothing is measured
    rows = (tmp_path / "motion.csv").read_text().splitlines()
    more = ["position.elbow", *(row.rsplit(",", 1)[1] for row in rows[1:])]
    (tmp_path / "log.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(rows, more, strict=True)))
    whole = read(tmp_path / "log.csv")
    np.testing.assert_allclose(whole.commands(), found.targets, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "offender"),
    [
        ("t,target.a,position.a\n0,0,0\n", "time"),
        ("time,target.a,position.a,speed.a\n0,0,0,0\n", "speed.a"),
        ("time,position.a\n0,0\n", "target"),
        ("time,target.a,position.a\n0,0,0\n3,0\n", "line 3"),
        ("time,target.a,position.a\n0,0,x\n3,0,0\n", "line 2"),
        ("time,target.a,position.a\n0,0,0\n2,0,0\n1,0,0\n", "row 3"),
        ("time,target.a,position.a\n0,0,0\n0.5,0,0\n", "0.50 s"),
        ("time,target.a,target.a,position.a\n0,0,0,0\n", "twice"),
        ("time,target.a,position.a\n0,0,inf\n3,0,0\n", "position.a"),
        ("time,target.a,position.a,base.qw\n0,0,0,1\n3,0,0,1\n", "base.qw"),
    ],
)
def test_a_file_that_is_no_log_is_refused_with_the_place(tmp_path, text, offender):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.csv") as error:
        read(tmp_path / "x.csv")
    assert offender in str(error.value)


def test_a_pickle_in_an_npz_is_not_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", time=np.arange(3.0), joints=np.array([print], dtype=object))
    with pytest.raises(ConfigError, match=r"x\.npz"):
        read(tmp_path / "x.npz")


def npz(folder: Path) -> Path:
    """A log of 3 s in an NPZ."""
    some_log(torque=some_log().position * 2).write(folder / "x.npz")
    return folder / "x.npz"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.999])
def test_an_npz_that_is_cut_is_refused_by_name(tmp_path, share):
    path = npz(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match=r"x\.npz"):
        read(path)


def test_an_npz_with_a_flipped_byte_anywhere_is_read_or_refused_by_name(tmp_path):
    path = npz(tmp_path)
    whole = path.read_bytes()
    refused, places = [], range(0, len(whole), 23)  # all parts of the archive: headers, numbers, directory
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read(path)
        except ConfigError as error:
            refused.append(str(error))
    # A byte of numbers or headers fails the checksum; those of dates and padding say nothing.
    assert len(refused) > 0.8 * len(places)
    assert all("x.npz" in line and "\n" not in line for line in refused)


def test_an_array_that_is_called_npz_is_refused_by_name(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.arange(3.0))
    with pytest.raises(ConfigError, match=r"x\.npz.*single array"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("time", [np.float64(0.02), np.zeros((3, 1))])
def test_a_time_of_an_npz_that_is_no_list_of_stamps_is_refused_with_its_shape(tmp_path, time):
    np.savez(tmp_path / "x.npz", time=time, joints=np.array(["a"]), target=np.zeros((3, 1)))
    with pytest.raises(ConfigError, match=r"x\.npz.*time has shape \(") as error:
        read(tmp_path / "x.npz")
    assert str(np.shape(time)) in str(error.value)


def test_a_time_in_milliseconds_is_refused_with_the_interval_it_states(tmp_path):
    count = 200
    columns = {"target": np.zeros((count, 1)), "position": np.zeros((count, 1))}
    np.savez(tmp_path / "ms.npz", time=20.0 * np.arange(count), joints=np.array(["a"]), **columns)
    with pytest.raises(ConfigError, match=r"ms\.npz.*20 s from row to row"):
        read(tmp_path / "ms.npz")
    np.savez(tmp_path / "s.npz", time=0.02 * np.arange(count), joints=np.array(["a"]), **columns)
    assert read(tmp_path / "s.npz").period == pytest.approx(0.02)


def test_a_file_within_an_npz_that_is_no_array_is_refused_by_name(tmp_path):
    path = npz(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "arm 2, Tuesday")
    with pytest.raises(ConfigError, match=r"x\.npz.*notes\.txt"):
        read(path)


def test_a_target_holds_until_the_next():
    target = np.full((150, 2), np.nan)
    target[2], target[100, 0] = (1.0, 2.0), 5.0
    held = some_log(target=target).commands()
    assert held[[0, 2, 99, 100, 149]].tolist() == [[1, 2], [1, 2], [1, 2], [5, 2], [5, 2]]


def test_stamps_that_scatter_about_a_regular_clock_are_told_from_intervals_that_differ():
    random = np.random.default_rng(0)
    true = 0.02003 * np.arange(3000)
    stamps = np.delete(true + random.normal(0, 2e-3, 3000).clip(-6e-3, 6e-3), [700, 701])  # two rows are lost
    found = clock(stamps)
    assert found.jitter == pytest.approx(2e-3, rel=0.05)
    np.testing.assert_allclose(found.regular, np.delete(true, [700, 701]), atol=2e-4)
    wandering = np.cumsum(0.02 + random.uniform(-5e-3, 5e-3, 3000))
    assert clock(wandering).regular is None
    assert clock(true).regular is None  # nothing to tell


def test_what_is_suspicious_about_a_log_is_said():
    time = np.arange(150) * 0.02
    time[80:] += 1.0
    torque = np.full((150, 2), 9.9)
    lines = "\n".join(
        findings(
            some_log(time=time, torque=torque),
            {"shoulder": (-2.0, 2.0), "elbow": (-0.3, 0.3)},
            {"shoulder": 20.0, "elbow": 10.0},
        )
    )
    assert "1.02 s, at 1.6 s" in lines
    assert "elbow: targets reach beyond" in lines
    assert "elbow: its motor is at its torque limit" in lines
    assert findings(some_log(), {"elbow": (-2, 2)}, {}) == []


def test_a_log_in_degrees_is_refused():
    position = some_log().position.copy()
    position[:, 0] *= 57.3
    with pytest.raises(ConfigError, match="positions of shoulder reach"):
        findings(some_log(position=position), {"shoulder": (-2.0, 2.0)}, {})
    findings(some_log(position=position), {}, {})  # a joint without limits may turn that far


def test_noise_is_told_from_motion():
    random = np.random.default_rng(0)
    time = np.arange(3000) * 0.02
    assert log.noise(np.sin(6 * time) + random.normal(0, 1e-3, 3000)) == pytest.approx(1e-3, rel=0.3)


def test_a_base_that_turns_is_refused_and_one_that_hangs_askew_is_kept():
    tilt = np.array([np.cos(0.1), 0, np.sin(0.1), 0])
    still = some_log(
        base=np.tile(tilt, (150, 1)) * np.where(np.arange(150) % 2, 1, -1)[:, None]
    )  # q and -q are equal
    np.testing.assert_allclose(np.abs(orientation([still])), tilt, atol=1e-9)
    angle = np.linspace(0, 0.3, 150)
    turning = np.stack((np.cos(angle), 0 * angle, np.sin(angle), 0 * angle), axis=1)
    with pytest.raises(ConfigError, match="degrees"):
        orientation([some_log(base=turning)])


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.2, np.inf])
def test_rows_whose_base_quaternion_is_far_from_norm_1_count_as_missing_and_that_is_said(factor):
    tilt = np.array([np.cos(0.1), 0, np.sin(0.1), 0])
    base = np.tile(tilt, (150, 1))
    base[40:50] = [factor, 0, 0, 0]
    base[60] *= 1.05  # only rounded: it counts
    base[70] = np.nan  # not measured
    one = some_log(base=base)
    np.testing.assert_allclose(np.abs(orientation([one])), tilt, atol=1e-9)
    (line,) = findings(one, {}, {})
    assert "base.qw" in line
    assert "10 rows" in line
    assert "row 41" in line


def test_a_log_none_of_whose_base_quaternions_has_norm_1_is_refused_with_the_column_and_the_row():
    base = np.zeros((150, 4))
    base[:20] = np.nan  # not measured
    good = some_log(name="good.csv", base=np.tile([1.0, 0, 0, 0], (150, 1)))
    with pytest.raises(ConfigError, match=r"bad\.csv: base\.qw.* row 21 are 0, 0, 0, 0"):
        orientation([good, some_log(name="bad.csv", base=base)])


def test_a_fit_that_explains_nothing_of_how_a_joint_moved_fails():
    # It moved by 0.2 rad, with noise of 0.001: errors of 0.05 explain most of that, of 0.15 less than half.
    assert not Fit("elbow", 0.001, math.nan, 0.05, math.nan, 0.2).failure
    assert "units" in Fit("elbow", 0.001, math.nan, 0.15, math.nan, 0.2).failure
    assert not Fit("elbow", 0.01, math.nan, 0.15, math.nan, 0.2).failure  # it hardly moved


# ---------------------------------------------------------------------------------------- parameters


def test_a_selector_names_joints_and_each_has_a_parameter_of_its_own(robot):
    model = compiled(robot, hanging(robot))
    found = unknowns(["kp/el*", "armature", "delay", "damping/*=one", "mass/lower"], robot, model, 0.02)
    assert [one.name for one in found] == [
        "kp/elbow", "armature/shoulder", "armature/elbow", "delay", "damping/*", "mass/lower",
    ]  # fmt: skip
    by_name = {one.name: one for one in found}
    assert by_name["kp/elbow"].nominal == (12.0,)
    assert by_name["mass/lower"].nominal == pytest.approx((0.4,))
    assert by_name["damping/*"].targets == by_name["delay"].targets == ("shoulder", "elbow")
    assert by_name["delay"].scale == (0.02, 0.02)


@pytest.mark.parametrize(
    ("items", "offender"),
    [
        (["armatur"], "armature"),
        (["kp/knee"], "knee"),
        (["kp", "kp/elbow"], "elbow"),
        (["kp/*=two"], "two"),
        (["mass/upperr"], "upper"),
        ([], "--fit"),
    ],
)
def test_a_parameter_that_does_not_exist_is_refused(robot, items, offender):
    with pytest.raises(ConfigError, match=offender):
        unknowns(items, robot, compiled(robot, hanging(robot)), 0.02)


def test_what_has_no_effect_and_what_cannot_be_told_apart_is_found():
    effects = np.zeros((100, 4))
    effects[:50, 0] = effects[:50, 1] = 10.0  # alike
    effects[50:, 2] = 10.0
    effects[50, 3] = 1e-3
    found = information.untold(effects, [0, 1, 2, 3], [0.2] * 4)
    assert [one.index for one in found] == [3, 1]
    assert found[0].partners == ()
    assert found[1].partners == (0,)
    assert found[0].width == pytest.approx(1.96 * 10, rel=1e-3)  # of the weak prior
    assert information.untold(effects[:, [0, 2]], [0, 1], [1.0] * 2) == []


def test_intervals_widen_where_residuals_are_correlated_in_time():
    random = np.random.default_rng(0)
    white = random.normal(size=20000)
    slow = np.repeat(random.normal(size=5000), 4)  # as good as a quarter of the values: twice as wide
    column = np.ones((20000, 1))
    factors = [information.widened(column, r, np.arange(20000), 100)[0] for r in (white, slow)]
    assert factors[0] < 1.15
    assert factors[1] == pytest.approx(2.0, rel=0.15)


# ---------------------------------------------------------------------------------------- simulation


def simple(robot: Robot, one: Log, items: list[str]) -> Problem:
    spec = hanging(robot)
    return Problem(robot, spec, [one], unknowns(items, robot, compiled(robot, spec), 0.02))


@solves
def test_a_delayed_target_counts_for_its_share_of_a_step(robot):
    target = np.zeros((150, 2))
    target[50:, 0] = 1.0  # at 1 s
    problem = simple(robot, some_log(target=target), ["delay"])
    (sequence,) = problem.sequences
    controls = problem.controls(sequence, {"delay": 0.0125 / 0.02})[:, 0]
    # Steps of 2 ms; the target comes at 1.0125 s, a quarter of a step after 1.012 s: (1 - 1/4)^2 / 2 of the hat.
    at = int(np.argmin(np.abs(sequence.grid - 1.012)))
    np.testing.assert_allclose(controls[at - 1 : at + 3], [0, 9 / 32, 31 / 32, 1], atol=1e-5)


@solves
def test_with_the_true_parameters_the_residuals_are_the_noise(robot, both):
    names = ("kp", "armature", "friction", "damping", "encoder_bias", "delay")
    spec = hanging(robot)
    found = unknowns(names, robot, compiled(robot, spec), 0.02)
    problem = Problem(robot, spec, [both], [*found, clock_unknown(both.name)])
    values = {one.name: TRUTH[one.name] / one.scale[0] for one in found} | {f"clock/{both.name}": 1.0}
    predicted = problem.signals(problem.sequences[0], values)["position"]
    errors = (both.position - predicted)[25:]
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(2e-4, rel=0.2)


@solves
def test_limbs_that_do_not_touch_are_perturbed_at_once_with_the_same_result(tmp_path):
    two = Robot.load(biped(tmp_path))
    one = made.play(two, motion(two, ("l_knee", "r_knee"), 2.0), noise=1e-4)
    problem = simple(two, one, ["armature/*_knee", "damping/*_knee", "delay"])
    values = {u.name: u.start for u in problem.unknowns}
    params = problem.parameters(values, list(values))
    fn, x = problem.residual_fn({}), params.as_vector()
    residuals = np.concatenate(fn(x, params)[0])
    together = problem.jacobian(fn, params, x, residuals)
    assert len(set(problem._trees)) == 2
    problem._trees = np.zeros_like(problem._trees)
    np.testing.assert_allclose(together, problem.jacobian(fn, params, x, residuals), atol=1e-9)


# ---------------------------------------------------------------------------------------- solution


def with_motor(robot: Robot, model: MotorModel | None) -> Robot:
    """The arm with this motor in its elbow."""
    shoulder, elbow = robot.actuators
    return dataclasses.replace(robot, actuators=(shoulder, dataclasses.replace(elbow, motor=model)))


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (MotorModel("explicit", delay=(0.0, 0.5)), "explicit.*delay"),
        (MotorModel("explicit", lag=0.01), "explicit.*lag 0.01"),
        (MotorModel("explicit", backlash=0.005), "explicit.*backlash 0.005"),
        (MotorModel("dc", saturation=60.0, no_load_speed=20.0), "dc .*no_load_speed 20"),
        (MotorModel("network", network=Path("elbow.onnx")), "network"),
        (MotorModel("dcmotor", resistance=2.0, motor_constant=1.5), "dcmotor.*resistance 2"),
    ],
)
def test_a_motor_that_is_more_than_its_pd_law_is_refused_with_its_joint_and_the_remedy(
    robot, both, model, what
):
    stated = with_motor(robot, model)
    with pytest.raises(ConfigError, match=rf"motor of elbow.*{what}") as error:
        solve.identify(stated, [both], ["armature/elbow"])
    assert "robot.actuators={*:{model:implicit}}" in str(error.value)
    with pytest.raises(ConfigError, match="motor of elbow"):
        made.play(stated, motion(stated, (), 2.0))


def test_an_explicit_motor_without_delay_lag_and_backlash_is_the_pd_law_that_is_fitted(robot):
    require_servos(with_motor(robot, MotorModel("explicit")))
    require_servos(robot)


def test_a_motor_that_takes_torques_is_refused_with_its_joint(robot, both):
    torques = dataclasses.replace(
        robot, actuators=(robot.actuators[0], Actuator("elbow", "force", 0.0, 0.0, 10.0))
    )
    with pytest.raises(ConfigError, match="motor of elbow takes torques"):
        solve.identify(torques, [both], ["armature"])


@pytest.mark.slow
@solves
def test_planted_parameters_are_found_within_five_percent_and_their_intervals_cover_them(robot, both):
    items = ["kp", "armature", "friction", "damping", "encoder_bias", "delay"]
    found = solve.identify(robot, [both], items)
    assert not found.untold
    assert found.passed
    assert found.clocks[both.name] == pytest.approx(1.0, abs=0.1)  # its stamps are noise
    for one in found.estimates:
        truth = TRUTH[one.unknown.name]
        apart = 2e-3 if one.unknown.field == "encoder_bias" else 0.0  # [rad]
        assert one.value == pytest.approx(truth, rel=0.05, abs=apart), one.unknown.name
        assert abs(one.value - truth) < 2 * one.half, one.unknown.name
    covered = [one.low <= TRUTH[one.unknown.name] <= one.high for one in found.estimates]
    assert sum(covered) >= 9  # of 11


@pytest.mark.slow
@solves
def test_stamps_of_a_loop_that_is_late_are_taken_as_true(robot):
    late = recorded(robot, regular=False, seed=3)
    found = solve.identify(robot, [late], ["armature", "friction", "damping", "kp", "encoder_bias", "delay"])
    assert found.clocks[late.name] == pytest.approx(0.0, abs=0.1)
    by_name = {one.unknown.name: one for one in found.estimates}
    assert by_name["delay"].value == pytest.approx(0.010, rel=0.05)


@pytest.mark.slow
@solves
def test_two_parameters_that_act_alike_are_named(robot, both):
    found = solve.identify(
        robot, [both], ["kd/elbow", "damping", "kp", "armature", "friction", "delay", "encoder_bias"]
    )
    (one,) = found.untold
    assert one.unknown.name == "damping/elbow"
    assert "kd/elbow" in one.reason
    kd = next(one for one in found.told if one.unknown.name == "kd/elbow")
    assert kd.low < 0.4 < kd.high  # it includes that the damping is not known


@solves
def test_a_robot_at_rest_is_refused_with_the_parameters(robot):
    with pytest.raises(ConfigError, match="no joint moves") as error:
        solve.identify(robot, [recorded(robot, ())], ["armature", "delay"])
    for name in ("armature/shoulder", "armature/elbow", "delay"):
        assert name in str(error.value)


@solves
def test_parameters_of_a_joint_that_did_not_move_are_named_and_the_others_found(robot):
    one = recorded(robot, ("elbow",), planted={**TRUTH, "kp/shoulder": 2e3})
    stiff = dataclasses.replace(
        robot, actuators=(dataclasses.replace(robot.actuators[0], kp=2e3), robot.actuators[1])
    )
    found = solve.identify(
        stiff, [one], ["armature", "friction", "damping/elbow", "kp/elbow", "encoder_bias/elbow", "delay"]
    )
    assert {each.unknown.name for each in found.untold} == {"armature/shoulder", "friction/shoulder"}
    assert all("shoulder does not move" in each.reason for each in found.untold)


@solves
def test_a_joint_that_only_others_shake_is_met_too(robot):
    # Its target never changes, and the elbow's motion swings it by 0.09 rad through its soft servo.
    one = recorded(robot, ("elbow",), jitter=0.0)
    assert np.ptp(one.position[:, 0]) > 0.05
    found = solve.identify(robot, [one], ["armature", "friction", "damping", "kp", "encoder_bias", "delay"])
    assert found.passed, found.problem_text
    shoulder = next(fit for fit in found.fits if fit.joint == "shoulder")
    assert shoulder.fitted < 1.5 * shoulder.noise


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.002, 0.005])
@solves
def test_a_simulator_that_holds_its_targets_answers_half_a_physics_step_early(robot, step):
    log = recorded(robot, timestep=step, held=True, jitter=0.0)
    items = ["armature", "friction", "damping", "kp", "encoder_bias", "delay"]
    found = solve.identify(robot, [log], items, timestep=0.001)
    delay = next(one for one in found.estimates if one.unknown.name == "delay")
    # The delay, 10 ms, is a number of its steps, as a control period is.
    assert delay.value == pytest.approx(TRUTH["delay"] - step / 2, abs=4e-4)


@pytest.mark.slow
@solves
def test_another_log_that_the_result_does_not_meet_fails_the_check(robot, both):
    items = ["kp", "armature", "friction", "damping", "encoder_bias", "delay"]
    same = recorded(robot, seed=7, name="same.csv")
    heavy = recorded(robot, seed=8, name="heavy.csv", planted={**TRUTH, "mass/lower": 1.0})
    assert solve.identify(robot, [both], items, [same]).passed
    found = solve.identify(robot, [both], items, [heavy])
    assert not found.passed
    assert "held-out" in found.problem_text


@solves
def test_the_jacobian_shows_no_information_where_parameters_act_alike(robot):
    # All gains, dampings, armatures and masses by a common factor: the same motion.
    one = recorded(robot, planted={})
    problem = simple(robot, one, ["kp", "kd", "damping/shoulder", "armature", "mass"])
    values = {u.name: u.held for u in problem.unknowns}
    params = problem.parameters(values, list(values))
    fn, x = problem.residual_fn({}), params.as_vector()
    residuals = np.concatenate(fn(x, params)[0])
    jacobian = problem.jacobian(fn, params, x, residuals)
    assert np.linalg.norm(jacobian @ x) < 1e-5 * np.linalg.norm(jacobian)


@solves
def test_without_torques_gains_and_masses_are_known_as_little_as_the_masses(robot):
    one = recorded(robot, planted={"kp/elbow": 14.0, "mass/lower": 0.5})
    found = solve.identify(robot, [one], ["kp", "kd", "mass", "armature"])
    assert any(each.unknown.field == "mass" for each in found.untold)
    gain = next(each for each in found.estimates if each.unknown.name == "kp/elbow")
    assert gain.reason or gain.half > 0.2 * 14.0
    assert gain.low < 14.0 < gain.high


@solves
@pytest.mark.slow
def test_a_solution_at_the_edge_of_a_valley_is_not_told(robot, tmp_path):
    # The elbow's motor does not reach its limit in the log, but does where all is 1.6 times as large: from there the
    # solver stops at the edge, where residuals rise on one side.
    one = recorded(robot, planted={})
    text = LINKS.replace('kp="25" kv="1"', 'kp="50" kv="2.05"').replace('kp="12" kv=".4"', 'kp="24" kv=".8"')
    text = text.replace('mass=".8"', 'mass="1.6"').replace('mass=".4"', 'mass=".8"')
    twice = two_links(tmp_path, text.replace('armature="0.01"', 'armature="0.02"'))
    found = solve.identify(twice, [one], ["kp", "kd", "mass", "armature"])
    assert any(each.unknown.field == "mass" for each in found.untold)
    for each in found.told:
        assert each.half > 0.1 * each.value, each.unknown.name


@solves
def test_outliers_are_those_of_all_rounds(robot, both):
    position = both.position.copy()
    position[[80, 140, 200], 0] += 0.3  # single readings far off, which the first round leaves out
    one = dataclasses.replace(both, position=position)
    found = solve.identify(
        robot, [one], ["kp", "armature", "friction", "damping", "encoder_bias", "delay"], 0.0
    )
    (before,) = simple(robot, one, ["delay"]).sequences
    (after,) = found.problem.sequences
    gone = before.used["position"] & ~after.used["position"]
    assert gone[[80, 140, 200], 0].all()
    assert found.outliers == gone.sum()


@solves
def test_errors_beyond_the_noise_are_said(robot, both):
    found = solve.identify(robot, [both], ["armature/shoulder", "delay"])
    assert any(line.startswith("shoulder: errors of the fit") for line in found.findings)


@pytest.mark.slow
@solves
def test_measured_torques_tell_gains_and_masses_together(robot):
    one = recorded(robot, planted={"kp/elbow": 14.0, "mass/lower": 0.5}, torque_noise=0.02)
    found = solve.identify(robot, [one], ["kp", "kd", "mass", "armature", "friction"])
    by_name = {each.unknown.name: each.value for each in found.told}
    assert by_name["kp/elbow"] == pytest.approx(14.0, rel=0.05)
    assert by_name["mass/lower"] == pytest.approx(0.5, rel=0.05)


@solves
def test_logs_of_another_robot_are_refused_by_name(robot, both):
    other = dataclasses.replace(both, joints=("shoulder", "elbo"))
    with pytest.raises(ConfigError, match="elbow"):
        solve.identify(robot, [other], ["armature"])


def test_a_package_that_is_missing_is_named():
    with without("tabulate"), pytest.raises(MissingError, match=r"tabulate.*robolearn\[sysid\]"):
        toolbox()


@solves
@pytest.mark.slow
def test_a_minute_of_an_arm_tells_all_its_joints_within_five_percent():
    script = Path(__file__).parents[2] / "scripts" / "sysid_recovery.py"
    words = [sys.executable, str(script), "arm", "--timestep", "0.004"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert "24 of 24 parameters told" in said
    assert "24 below 5 %" in said


def test_gravity_turns_where_a_base_that_cannot_move_hangs_askew(tmp_path):
    robot = two_links(tmp_path)
    assert robot.base is None
    # A quarter turn about x: its y axis points up.
    spec = hanging(robot, base=np.array([0.5**0.5, 0.5**0.5, 0.0, 0.0]))
    assert np.allclose(spec.option.gravity, (0.0, -9.81, 0.0), atol=1e-9)


def test_a_log_whose_only_motion_is_held_out_leaves_nothing_to_fit(tmp_path):
    robot = two_links(tmp_path)
    time = np.arange(0.0, 10.0, 0.02)
    rest = np.tile([robot.home[k] for k in robot.actuated], (len(time), 1))
    position = rest.copy()
    position[450:, 1] += 0.3 * np.sin(np.linspace(0.0, 12.0, 50))  # moved by hand, in the last tenth
    none = np.full_like(rest, np.nan)
    by_hand = Log("by_hand.csv", ("shoulder", "elbow"), time, rest, position, none, none)
    with pytest.raises(ConfigError, match="held out"):
        solve.identify(robot, [by_hand], ["armature/elbow"])
