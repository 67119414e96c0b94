"""A robot on legs follows velocity commands: what derives from the robot, and rewards worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

from robolearn import config
from robolearn.envs.kinematics import feet_apart, joint_roles, widened
from robolearn.envs.robot import Robot
from robolearn.envs.state import State
from robolearn.errors import ConfigError
from robolearn.tasks.mdp import gait_metrics
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.stated import Reward, reward
from robolearn.tasks.velocity import Velocity, sturdy_width, track_velocity, upright
from tests.factories import load_robot
from tests.tasks.scenes import ends, rewards, standing


def placed(name: str, command: tuple[float, float, float]):
    """A robot at rest in its home pose, both feet down, with a command."""
    state, ctx = standing(name)
    ctx.command = torch.tensor([command])
    feet = state.robot.foot_pos.shape[1]
    ctx.task_state = {
        **gait_metrics.start(1, feet, torch.device("cpu")),
        "stance_time": torch.zeros(1, feet),
    }
    return state, ctx


def test_joints_of_legs_are_told_apart_by_the_axis_that_they_turn_about():
    robot = load_robot("humanoid")
    roles = dict(zip(robot.joints, joint_roles(robot), strict=True))
    stride = {f"{side}_{joint}" for side in "lr" for joint in ("hip_pitch", "knee", "ankle_pitch")}
    leg = {f"{side}_{joint}" for side in "lr" for joint in ("hip_roll", "hip_yaw", "ankle_roll")}
    assert {name for name, role in roles.items() if role == "stride"} == stride
    assert {name for name, role in roles.items() if role == "leg"} == leg
    assert roles["waist_yaw"] == roles["l_shoulder_pitch"] == "body"


def test_a_unit_action_asks_for_a_share_of_each_motors_torque_up_to_an_angle():
    _, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    scale = dict(zip(ctx.robot.spec.joints, Velocity().scale(ctx).tolist(), strict=True))
    assert scale["l_knee"] == pytest.approx(0.25 * 120 / 120)
    assert scale["l_ankle_pitch"] == pytest.approx(0.25 * 45 / 40)
    limited = Velocity(most_scale=0.1).scale(ctx)
    assert limited.tolist() == pytest.approx([0.1] * 21)
    targets = Velocity().joint_targets(torch.full((1, 21), 2.0), ctx)
    assert targets[0, 3].item() == pytest.approx(0.6 + 2 * 0.25)


def test_an_action_of_a_motor_without_a_servo_is_a_share_of_its_torque():
    robot = SimpleNamespace(
        kp=torch.tensor([25.0, 0.0]), effort=torch.tensor([20.0, 20.0]), home=torch.tensor([0.1, 0.3]),
        actuated=torch.tensor([0, 1]),
    )  # fmt: skip
    # 25 % of 20 Nm are 5 Nm: 0.2 rad from home of the servo, and 5 Nm of the motor, wherever its joint is.
    for action, targets in ((0.0, [0.1, 0.0]), (1.0, [0.3, 5.0]), (4.0, [0.9, 20.0])):
        found = Velocity().joint_targets(torch.full((1, 2), action), SimpleNamespace(robot=robot))
        assert found[0].tolist() == pytest.approx(targets)


def test_a_task_with_rewards_of_its_own_needs_no_reward_for_tracking(make_env):
    @dataclass
    class Mine(Velocity):
        rewards: dict[str, Reward | float] = field(
            default_factory=lambda: {"upright": reward(upright, 1.0, std=0.3)}
        )

    @dataclass
    class Rated(Velocity):
        rewards: dict[str, Reward | float] = field(default_factory=lambda: {"track_velocity": 2.0})

        def reward_terms(self):
            return {"track_velocity": lambda state, ctx: track_velocity(state, ctx, std=0.4)}

    for task in (Mine(), Rated()):
        env = make_env(task, num_envs=2)
        env.step(torch.zeros(2, env.num_actions))
        # Whose level rises with how well the velocity is tracked.
        assert task.level_terms()["pushes"](env.backend.state, env.ctx).shape == (2,)


def test_a_curriculum_of_commands_that_would_stay_easy_is_refused():
    with pytest.raises(ConfigError, match=r"curricula\.commands\.rise"):
        config.resolve(["task=humanoid_walk", "task.curricula.commands=0.1"])
    run = config.resolve(["task=humanoid_walk", "task.curricula.commands={start: 0.1, rise: 0.2}"])
    assert run.task.curricula["commands"].start == 0.1


def test_posture_is_as_wide_as_the_command_is_fast():
    found = {}
    for speed in (0.0, 0.1, 1.5):
        state, ctx = placed("humanoid", (speed, 0.0, 0.0))
        state.robot.joint_pos[0, 3] += 0.45  # a knee
        found[speed] = rewards(Velocity(stance_width=0.0, step_width=0.0), state, ctx)["posture"]
    assert found[0.0] == pytest.approx(math.exp(-((0.45 / 0.15) ** 2) / 21))
    assert found[0.1] == pytest.approx(math.exp(-1 / 21))
    assert found[1.5] == pytest.approx(math.exp(-((0.45 / 0.7) ** 2) / 21))


def test_rewards_of_a_step_that_ends_with_a_hard_landing_after_a_low_swing():
    state, ctx = placed("humanoid", (1.0, 0.0, 0.0))
    past = ctx.task_state
    past["last_contact"] = torch.tensor([[False, True]])
    past["air_time"] = torch.tensor([[0.3, 0.0]])
    past["swing_peak"] = torch.tensor([[0.06 * 0.6473, 0.0]])  # half of 0.12 of the base's height
    past["last_foot_speed"] = torch.tensor([[0.5, 9.0]])
    state.robot.foot_lin_vel[0, 1] = torch.tensor([0.3, 0.4, 0.0])
    state.robot.base_lin_vel[:] = torch.tensor([[0.6, 0.0, 0.0]])
    expected = {
        "track_velocity": math.exp(-((0.4 / 0.4) ** 2)),
        "track_yaw_rate": 1.0,
        "upright": 1.0,
        "air_time": 0.3 - 0.1,
        "swing_height": 0.25,
        "foot_clearance": 0.5 * 0.12 * 0.6473,
        "foot_slip": 0.25,
        "slip_speed": 0.5,
        "velocity_error": 0.4,
        "landing": 0.5,
        "stepping": 0.0,
        "crouching": 0.0,
    }
    found = rewards(Velocity(), state, ctx)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def striding(up: tuple[bool, ...], air: tuple[float, ...], stance: tuple[float, ...], name: str = "humanoid"):
    """The rewards of a robot that moves as commanded with some feet up, for such times [s]."""
    state, ctx = placed(name, (0.5, 0.0, 0.0))
    state.robot.base_lin_vel[:] = torch.tensor([[0.5, 0.0, 0.0]])
    ctx.task_state["contact"] = ~torch.tensor([up])
    ctx.task_state["air_time"], ctx.task_state["stance_time"] = torch.tensor([air]), torch.tensor([stance])
    task = Velocity(robot=name)
    full, most = (task.rewards["striding"].parameters[key] for key in ("full", "most"))
    return rewards(task, state, ctx), full, most


def test_an_air_time_of_which_the_least_is_not_below_the_most_is_refused_by_name(make_env):
    run = config.resolve(["task=velocity", "task.rewards.air_time.least=0.5"])  # most is 0.35
    with pytest.raises(ConfigError, match=r"air_time.*least=0\.5.*most=0\.35"):
        make_env(run.task, num_envs=1)


def test_a_stride_is_worth_the_time_since_the_last_foot_changed():
    found, full, _ = striding((True, False), (0.1, 0.0), (0.0, 0.3))
    assert found["striding"] == pytest.approx(0.1 / full)
    found, full, _ = striding((True, False), (0.3, 0.0), (0.0, 0.04))
    assert found["striding"] == pytest.approx(0.04 / full)
    assert found["halting"] == 0.0


def test_a_foot_that_stays_up_and_both_feet_up_or_down_are_no_stride():
    *_, most = striding((True, False), (0.1, 0.0), (0.0, 0.3))
    for up, air in (((True, False), most + 0.02), ((True, True), 0.1), ((False, False), 0.0)):
        found, *_ = striding(up, (air, air * up[1]), (0.0, 0.3))
        assert found["striding"] == 0.0


def test_a_quadruped_strides_on_two_of_four_feet():
    found, full, _ = striding((True, False, False, True), (0.1, 0, 0, 0.1), (0.0, 0.1, 0.1, 0.0), "ant")
    assert found["striding"] == pytest.approx(0.1 / full)
    found, *_ = striding((True, False, False, False), (0.1, 0, 0, 0), (0.0, 0.1, 0.1, 0.1), "ant")
    assert found["striding"] == 0.0


def test_standing_still_costs_where_the_command_is_to_move():
    found, *_ = striding((False, False), (0.0, 0.0), (1.0, 1.0))
    assert found["halting"] == 1.0
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    ctx.task_state["stance_time"] = torch.ones(1, 2)
    assert rewards(Velocity(), state, ctx)["halting"] == 0.0


def test_feet_may_leave_the_ground_only_where_the_command_is_to_move():
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    ctx.task_state["contact"] = torch.tensor([[True, False]])
    found = rewards(Velocity(), state, ctx)
    assert (found["stepping"], found["air_time"], found["foot_clearance"]) == (0.0, 0.0, 0.0)
    for up, cost in (([True, True], 0.5), ([False, False], -0.5)):  # beyond half of the feet
        ctx.task_state["contact"] = ~torch.tensor([up])
        assert rewards(Velocity(), state, ctx)["stepping"] == cost
    state, ctx = placed("humanoid", (0.0, 0.0, 0.5))
    ctx.task_state["contact"] = torch.tensor([[True, False]])
    assert rewards(Velocity(), state, ctx)["stepping"] == 0.0


def test_a_robot_that_was_pushed_within_the_last_second_may_step_to_catch_itself():
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    ctx.task_state["contact"] = torch.tensor([[False, False]])
    state.robot.base_lin_vel[0] = torch.tensor([0.06, 0.08, 9.0])  # 0.1 m/s along the ground
    for time, stepping, still in ((1.0, 0.0, 0.0), (1.02, 0.5, math.exp(-1))):
        ctx.push_time = torch.tensor([time])
        found = rewards(Velocity(), state, ctx)
        assert (found["stepping"], found["still"]) == pytest.approx((stepping, still))


def test_a_base_below_a_share_of_its_height_in_the_pose_to_walk_or_stand_in_costs_the_share_that_is_missing():
    for command, share in (((0.5, 0.0, 0.0), 0.6), ((0.0, 0.0, 0.0), 0.8)):
        state, ctx = placed("humanoid", command)
        asked = widened(ctx.robot.spec, share * sturdy_width(ctx.robot.spec.home_height)).home_height
        for height, cost in ((1.0, 0.0), (0.8, 0.0), (0.64, 0.2)):
            state.robot.base_pos[:, 2] = height * asked
            assert rewards(Velocity(stance_width=0.8, step_width=0.6), state, ctx)[
                "crouching"
            ] == pytest.approx(cost, abs=1e-5)


def test_landing_costs_the_squared_speed_of_a_foot_before_touch_down():
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    task, costs = Velocity(), []
    state.robot.foot_lin_vel[0, 0] = torch.tensor([0.0, 0.3, -0.4])  # in the air, moving
    for force in (0.0, 200.0, 200.0):
        state.robot.foot_force[0, 0, 2] = force
        ctx.task_state = task.advance(state, ctx)
        costs.append(rewards(task, state, ctx)["landing"])
        state.robot.foot_lin_vel[:] = 0.0
    assert costs == pytest.approx([0.0, 0.25, 0.0])  # in the air, touched down, stands


def test_the_time_on_the_ground_grows_until_a_foot_lifts_off():
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    state.robot.foot_force[0, :, 2] = torch.tensor([200.0, 200.0])
    for left in (200.0, 200.0, 0.0):
        state.robot.foot_force[0, 0, 2] = left
        ctx.task_state = Velocity().advance(state, ctx)
    assert ctx.task_state["stance_time"][0].tolist() == pytest.approx([0.0, 0.06])


def test_steps_of_a_robot_that_is_asked_to_stand_count_as_drift_and_those_of_one_that_is_to_move_do_not():
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    ctx.task_state["rest_time"][:] = 3.0
    state.robot.base_pos[0, 0] = 0.3
    assert not state.robot.foot_force.any()  # both feet in the air: it steps, or worse
    ctx.task_state = Velocity().advance(state, ctx)
    assert ctx.task_state["drift"].item() == pytest.approx(0.3)
    ctx.command = torch.tensor([[0.5, 0.0, 0.0]])
    assert Velocity().advance(state, ctx)["drift"].item() == 0.0


def test_standing_still_is_asked_for_by_the_share_of_the_pushes_that_a_robot_withstands():
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    ctx.task_state["contact"] = torch.tensor([[False, False]])
    assert Velocity().curricula["pushes"].complete == 2.0
    for level, share in ((0.0, 0.0), (0.6, 0.3), (3.4, 1.0)):
        ctx.per_env_state = {"level_pushes": torch.tensor([level])}
        found = rewards(Velocity(), state, ctx)
        assert (found["stepping"], found["still"]) == pytest.approx((0.5 * share, share))


def test_slip_speed_costs_by_the_share_of_the_pushes_that_a_robot_withstands():
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    ctx.task_state["contact"] = torch.tensor([[False, True]])
    state.robot.foot_lin_vel[0] = torch.tensor([[9.0, 9.0, 9.0], [0.3, 0.4, 9.0]])
    for level, share in ((0.0, 0.0), (0.6, 0.3), (3.4, 1.0)):
        ctx.per_env_state = {"level_pushes": torch.tensor([level])}
        assert rewards(Velocity(), state, ctx)["slip_speed"] == pytest.approx(0.5 * share)


def test_the_level_of_pushes_rises_only_while_the_robot_moves_as_commanded():
    # It moves at 0.5 m/s; exp(-1) is below a half, and standing as commanded is no walking.
    for speed, share in ((0.5, 1.0), (0.7, 2 * math.exp(-0.25) - 1), (0.9, 0.0), (0.0, 0.0)):
        state, ctx = placed("humanoid", (speed, 0.0, 0.0))
        state.robot.base_lin_vel[0, 0] = 0.5 * (speed > 0)
        change = Velocity().staying_up(state, ctx, rise=0.1, drop=1.0)
        assert change.item() == pytest.approx(0.1 * 0.02 * share)
    state.robot.base_pos[:, 2] = 0.1
    assert Velocity().staying_up(state, ctx, rise=0.0, drop=0.7).item() == pytest.approx(-0.7)


@pytest.mark.parametrize("name", ["humanoid", "ant"])
def test_an_episode_ends_below_a_share_of_the_height_of_any_robot(name: str):
    state, ctx = placed(name, (0.0, 0.0, 0.0))
    state.robot.body_pos[:] = 1.0
    home = state.robot.base_pos[0, 2].item()
    state.robot.base_pos[0, 2] = 0.52 * home
    assert not ends(Velocity(robot=name), state, ctx)
    state.robot.base_pos[0, 2] = 0.48 * home
    assert ends(Velocity(robot=name), state, ctx) == ["fallen"]


@pytest.mark.parametrize(("name", "lacks"), [("arm", "free base"), ("cartpole", "free base")])
def test_a_robot_that_does_not_walk_is_refused_by_what_it_lacks(name: str, lacks: str):
    with pytest.raises(ConfigError, match=rf"{name}.*{lacks}"):
        Velocity().scene(load_robot(name))


@pytest.mark.parametrize("name", ["humanoid", "ant"])
def test_a_biped_and_a_quadruped_take_the_same_steps_without_any_line_of_their_own(name: str, make_env):
    env = make_env(Velocity(robot=name), num_envs=8)
    assert [item.name for item, _ in env.columns["policy"]] == [
        "base_ang_vel",
        "projected_gravity",
        "joint_pos_rel",
        "joint_vel_rel",
        "last_action",
        "velocity_commands",
    ]
    for _ in range(3):
        result = env.step(torch.zeros(8, env.num_actions))
    assert torch.isfinite(result.reward).all()
    assert env.symmetry() is not None


def test_a_biped_that_is_to_stand_starts_with_its_feet_apart_and_its_posture_is_best_there():
    robot = load_robot("humanoid")
    task = Velocity(robot="humanoid", stance_width=0.6, step_width=0.4)
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    stance, height = task.astride(ctx.robot, 0.6)
    moved = [name for name, a, b in zip(robot.joints, stance, robot.home, strict=True) if abs(a - b) > 1e-3]
    assert moved == ["l_hip_roll", "l_ankle_roll", "r_hip_roll", "r_ankle_roll"]
    start = task.initial_state(1, ctx, Random(1, torch.device("cpu")))
    assert start.base_pos[0, 2] == height < robot.home_height
    assert (start.joint_pos[0] - stance).abs().max() <= 0.05
    assert task.posture(state, ctx)[0] < 0.9  # it is in the home pose
    state.robot.joint_pos[:] = stance
    assert task.posture(state, ctx).tolist() == [1.0]


def test_feet_that_are_closer_together_than_a_biped_should_stand_cost_the_share_that_is_missing():
    task = Velocity(robot="humanoid", stance_width=0.6, step_width=0.4)
    state, ctx = placed("humanoid", (0.0, 0.0, 0.0))
    width = 0.6 * sturdy_width(ctx.robot.spec.home_height)
    assert feet_apart(widened(ctx.robot.spec, width)) == pytest.approx(width, abs=1e-4)
    # It faces along y: its feet are apart along x, and one is 3 m ahead of the other.
    state.robot.base_quat[0] = torch.tensor([0.5**0.5, 0.0, 0.0, 0.5**0.5])
    state.robot.foot_pos[0] = torch.tensor([[-0.1, 3.0, 0.0], [0.1, 0.0, 0.0]])
    assert rewards(task, state, ctx)["narrow"] == pytest.approx(1 - 0.2 / width, abs=1e-5)
    ctx.push_time = torch.tensor([1.0])  # it may step
    assert rewards(task, state, ctx)["narrow"] == 0.0
    ctx.push_time, state.robot.foot_pos[0, 0, 0] = torch.tensor([9.0]), -1.0
    assert rewards(task, state, ctx)["narrow"] == 0.0


def test_feet_that_are_closer_together_than_a_bipeds_steps_should_be_cost_the_share_that_is_missing():
    task = Velocity(robot="humanoid", stance_width=0.8, step_width=0.6)
    state, ctx = placed("humanoid", (0.1, 0.0, 0.0))
    width = 0.6 * sturdy_width(ctx.robot.spec.home_height)
    state.robot.base_quat[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    state.robot.foot_pos[0] = torch.tensor([[3.0, 0.1, 0.0], [0.0, -0.1, 0.0]])
    assert rewards(task, state, ctx)["narrow"] == pytest.approx(1 - 0.2 / width, abs=1e-5)
    ctx.push_time = torch.tensor([1.0])  # it may have to catch itself
    assert rewards(task, state, ctx)["narrow"] == 0.0


def test_a_robot_without_a_step_width_may_walk_with_its_feet_close_together():
    for name in ("humanoid", "ant"):
        state, ctx = placed(name, (0.1, 0.0, 0.0))
        state.robot.foot_pos[:] = 0.0
        assert rewards(Velocity(robot=name, step_width=0.0), state, ctx)["narrow"] == 0.0


def test_feet_of_a_quadruped_are_as_far_apart_as_the_means_of_its_left_and_right_feet():
    state, ctx = placed("ant", (0.0, 0.0, 0.0))
    width = sturdy_width(ctx.robot.spec.home_height)
    state.robot.base_quat[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    # Left, right, right, left: the means are 0.15 and -0.05 from the middle.
    across = torch.tensor([0.1, -0.1, 0.0, 0.2])
    state.robot.foot_pos[0] = torch.stack((torch.tensor([3.0, 3.0, 0.0, 0.0]), across, torch.zeros(4)), dim=1)
    assert rewards(Velocity(robot="ant"), state, ctx)["narrow"] == pytest.approx(1 - 0.2 / width, abs=1e-5)


def test_feet_withstand_a_push_of_one_metre_a_second_that_are_twice_the_way_to_the_capture_point_apart():
    # 9.81 m high: the capture point is sqrt(9.81 / 9.81) = 1 s x 1 m/s away, on either side.
    assert sturdy_width(9.81) == pytest.approx(2.0)
    assert sturdy_width(9.81 / 16) == pytest.approx(0.5)


def test_a_biped_that_is_to_walk_starts_with_its_feet_a_step_apart_and_its_posture_is_best_there():
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    task = Velocity(robot="humanoid", stance_width=0.8, step_width=0.6)
    stride, height = task.astride(ctx.robot, 0.6)
    start = task.initial_state(1, ctx, Random(1, torch.device("cpu")))
    assert start.base_pos[0, 2] == pytest.approx(height)
    assert (start.joint_pos[0] - stride).abs().max() <= 0.05
    assert task.posture(state, ctx)[0] < 0.99  # it is in the home pose
    state.robot.joint_pos[:] = stride
    assert task.posture(state, ctx).tolist() == [1.0]


def test_a_biped_without_a_step_width_starts_to_walk_in_the_home_pose_and_its_posture_is_best_there():
    state, ctx = placed("humanoid", (0.5, 0.0, 0.0))
    task = Velocity(robot="humanoid", stance_width=0.6, step_width=0.0)
    start = task.initial_state(1, ctx, Random(1, torch.device("cpu")))
    assert start.base_pos[0, 2] == pytest.approx(ctx.robot.spec.home_height)
    assert (start.joint_pos[0] - ctx.robot.home).abs().max() <= 0.05
    assert task.posture(state, ctx).tolist() == [1.0]


OF_FEET = (
    "contact",
    "last_contact",
    "foot_speed",
    "last_foot_speed",
    "air_time",
    "stance_time",
    "swing_peak",
)
"""What the task keeps of each foot."""


def mirrored(state: State, robot: Robot) -> State:
    """The mirror image of a robot's state, component by component."""
    image = state.clone()
    entity, y, turned = image.robot, torch.tensor([1.0, -1.0, 1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    (order, signs), feet = robot.mirror_joints(), robot.mirror_feet()
    for name in ("base_pos", "base_lin_vel"):
        getattr(entity, name).mul_(y)
    entity.base_ang_vel.mul_(-y)
    entity.base_quat.mul_(turned)
    for name in ("joint_pos", "joint_vel", "joint_torque"):
        getattr(entity, name).copy_(getattr(entity, name)[:, order] * torch.tensor(signs))
    for name in ("foot_pos", "foot_lin_vel", "foot_force"):
        getattr(entity, name).copy_(getattr(entity, name)[:, feet] * y)
    entity.foot_quat.copy_(entity.foot_quat[:, feet] * turned)
    return image


@pytest.mark.parametrize("name", ["humanoid", "ant"])
def test_a_mirrored_state_gives_equal_rewards_and_mirrored_observations_and_joint_targets(
    name: str, make_env
):
    env = make_env(Velocity(robot=name, history={}), num_envs=16)
    for i in range(15):
        env.step(0.5 * torch.randn(16, env.num_actions, generator=torch.Generator().manual_seed(i)))
    robot, task, symmetry = env.robot, env.task, env.symmetry()
    feet, command = robot.mirror_feet(), env.ctx.command.clone()
    command[::4] = 0.0  # some are asked to stand
    state, ctx = env.backend.state, replace(env.ctx, command=command)
    past = {key: value[:, feet] if key in OF_FEET else value for key, value in ctx.task_state.items()}
    image, seen = (
        mirrored(state, robot),
        replace(
            ctx,
            action=symmetry.action(ctx.action),
            previous_action=symmetry.action(ctx.previous_action),
            command=command * torch.tensor([1.0, -1.0, -1.0]),
            task_state={**past, "anchor": past["anchor"] * torch.tensor([1.0, -1.0])},
        ),
    )
    values = {name: term(state, ctx) for name, term in task.reward_terms().items()}
    for name, term in task.reward_terms().items():
        assert torch.allclose(term(image, seen), values[name], atol=1e-4), name
    changing = {name for name, value in values.items() if value.std() > 0}
    assert {"track_velocity", "posture", "foot_slip", "foot_clearance", "action_rate"} <= changing
    for group in task.observations:
        one, other = (
            torch.cat([item.compute(*world) for item in task.items(group)], dim=1)
            for world in ((state, ctx), (image, seen))
        )
        assert torch.allclose(other, symmetry.groups[group](one), atol=1e-5), group
    targets = task.joint_targets(ctx.action, ctx)
    assert torch.allclose(task.joint_targets(seen.action, seen), symmetry.action(targets), atol=1e-5)
    later, image_later = task.advance(state, ctx), task.advance(image, seen)
    for key in OF_FEET:
        assert torch.allclose(image_later[key].float(), later[key][:, feet].float(), atol=1e-5), key
    assert torch.allclose(image_later["drift"], later["drift"], atol=1e-5)
