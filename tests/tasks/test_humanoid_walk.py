"""The walking task's clock, stepping pattern, rewards and mirror image."""

from __future__ import annotations

import math

import pytest
import torch

from robolearn.envs.state import Entity
from robolearn.tasks import humanoid_walk
from robolearn.tasks.humanoid_walk import HumanoidWalk, leg_swing
from robolearn.tasks.mdp import gait_metrics as quality
from tests.tasks.mdp.test_terms import CPU, humanoid


def clock(phase: float, walking: float = 1.0, since_stop: float = 0.0, since_rest: float = 9.0):
    return humanoid(
        phase=torch.tensor([phase]),
        walking=torch.tensor([walking]),
        since_stop=torch.tensor([since_stop]),
        since_rest=torch.tensor([since_rest]),
        sway=torch.zeros(1, 2),
        **quality.start(1, 2, CPU),
    )


def run_clock(task: HumanoidWalk, state, ctx, steps: int) -> list[tuple[float, float]]:
    out = []
    for _ in range(steps):
        ctx.task_state = task.advance(state, ctx)
        out.append((ctx.task_state["phase"].item(), ctx.task_state["walking"].item()))
    return out


def test_the_clock_runs_at_the_step_frequency_while_a_velocity_is_commanded():
    state, ctx = clock(0.0)
    phases = run_clock(HumanoidWalk(step_frequency=1.25), state, ctx, 10)  # 1.25 x 0.02 s = 1/40 cycle a step
    assert [p for p, _ in phases] == pytest.approx([i / 40 for i in range(1, 11)])
    assert all(walking == 1.0 for _, walking in phases)


def test_the_phase_wraps_at_one():
    state, ctx = clock(0.98)
    assert run_clock(HumanoidWalk(step_frequency=1.25), state, ctx, 2)[-1][0] == pytest.approx(0.03, abs=1e-5)


def test_after_a_stop_command_the_clock_rests_at_the_end_of_a_half_cycle():
    state, ctx = clock(0.1)
    ctx.command[:] = 0.0
    # 1/40 cycle a step: 0.4 s are 20 steps, to phase 0.6; the half cycle ends at 1.0, 36 steps from 0.1.
    phases = run_clock(HumanoidWalk(step_frequency=1.25, stop_time=0.4), state, ctx, 60)
    assert [walking for _, walking in phases].index(0.0) + 1 in (36, 37)
    assert phases[-1] == (0.0, 0.0)
    assert leg_swing(ctx).tolist() == [[0.0, 0.0]]


def test_the_clock_starts_again_from_the_phase_where_it_rested():
    state, ctx = clock(0.5, walking=0.0, since_stop=9.0)
    phases = run_clock(HumanoidWalk(step_frequency=1.25), state, ctx, 3)
    assert phases[0] == (pytest.approx(0.5), 1.0)
    assert phases[-1][0] == pytest.approx(0.55)


@pytest.mark.parametrize(("axis", "sign"), [(0, 1), (0, -1), (1, 1), (1, -1)])
def test_a_standing_robot_that_is_pushed_steps_until_it_is_upright_again(axis, sign):
    state, ctx = clock(0.5, walking=0.0, since_stop=9.0)
    ctx.command[:] = 0.0
    task = HumanoidWalk(step_frequency=1.25, stop_time=0.4, balance_start=0.13, balance_lean=0.15)
    # It leans by 0.1 and keeps turning at w: 0.1 + 0.25 w (1 - 0.8^n) passes 0.13 at w = 0.2 in the fifth step.
    half = math.asin(0.1) / 2
    lean = [math.cos(half), 0.0, 0.0, 0.0]
    lean[1 + axis] = sign * math.sin(half)
    state.robot.base_quat[:] = torch.tensor([lean])
    state.robot.base_ang_vel[0, axis] = sign * 0.2
    assert [walking for _, walking in run_clock(task, state, ctx, 6)] == [0.0] * 4 + [1.0] * 2
    # A gait sways anyway, so while walking only the lean keeps the clock running: sine 0.16, then upright.
    half = math.asin(0.16) / 2
    state.robot.base_quat[:] = torch.tensor([[math.cos(half), math.sin(half), 0.0, 0.0]])
    assert all(walking == 1.0 for _, walking in run_clock(task, state, ctx, 100))
    state.robot.base_quat[:] = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    state.robot.base_ang_vel[:] = 0.0
    after = run_clock(task, state, ctx, 45)  # 0.4 s are 20 steps, and a half cycle 20 more at most
    assert 0.0 not in [walking for _, walking in after[:19]]
    assert after[-1][1] == 0.0


def test_a_lean_starts_the_clock_only_within_the_balance_window_after_a_push_unless_the_window_is_zero():
    state, ctx = clock(0.5, walking=0.0, since_stop=9.0)
    ctx.command[:] = 0.0
    state.robot.base_quat[:] = torch.tensor([[math.cos(0.1), math.sin(0.1), 0.0, 0.0]])  # sine 0.2
    ctx.push_time[:] = 2.1
    assert run_clock(HumanoidWalk(balance_window=2.0), state, ctx, 1)[-1][1] == 0.0
    ctx.push_time[:] = torch.inf
    assert run_clock(HumanoidWalk(balance_window=2.0), state, ctx, 1)[-1][1] == 0.0
    assert run_clock(HumanoidWalk(balance_window=0.0), state, ctx, 1)[-1][1] == 1.0


def test_a_robot_that_leans_but_turns_back_upright_does_not_step():
    state, ctx = clock(0.5, walking=0.0, since_stop=9.0)
    ctx.command[:] = 0.0
    half = math.asin(0.14) / 2
    state.robot.base_quat[:] = torch.tensor([[math.cos(half), math.sin(half), 0.0, 0.0]])
    state.robot.base_ang_vel[0, 0] = -0.2
    ctx.task_state["sway"][0, 0] = -0.2  # 0.14 - 0.25 x 0.2 = 0.09
    assert run_clock(HumanoidWalk(), state, ctx, 1)[-1][1] == 0.0
    ctx.task_state["sway"][0, 0] = state.robot.base_ang_vel[0, 0] = 0.0
    assert run_clock(HumanoidWalk(), state, ctx, 1)[-1][1] == 1.0


def test_the_sway_of_its_last_step_does_not_make_a_robot_step_again():
    state, ctx = clock(0.1, since_rest=0.0)
    ctx.command[:] = 0.0
    task = HumanoidWalk(step_frequency=1.25, stop_time=0.4, settle_time=0.4)
    state.robot.base_ang_vel[0, 1] = 0.6  # 0.25 x 0.6 = 0.15
    # It rests from step 36 on (see above); 0.4 s are 20 steps.
    assert [walking for _, walking in run_clock(task, state, ctx, 54)][36:] == [0.0] * 18
    assert run_clock(task, state, ctx, 4)[-1][1] == 1.0


def test_a_walk_command_right_after_a_stop_keeps_the_clock_running():
    state, ctx = clock(0.1)
    task = HumanoidWalk()
    ctx.command[:] = 0.0
    run_clock(task, state, ctx, 10)
    ctx.command[:] = 0.5
    assert all(walking == 1.0 for _, walking in run_clock(task, state, ctx, 60))


def test_the_step_pattern_bends_only_the_swing_leg():
    task = HumanoidWalk()
    _, ctx = clock(0.25)  # mid-swing of the left leg, where no foot is ahead of the other
    assert leg_swing(ctx)[0].tolist() == pytest.approx([1.0, -1.0])
    robot = ctx.robot
    pattern = task.joint_targets(torch.zeros(1, 21), ctx)[0] - robot.home[robot.actuated]
    found = {
        a.joint: round(x, 4)
        for a, x in zip(robot.spec.actuators, pattern.tolist(), strict=True)
        if abs(x) > 1e-4
    }
    assert found == {"l_hip_pitch": -0.35, "l_knee": 0.7, "l_ankle_pitch": -0.35}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        # At lift-off of the left foot it is behind and the right one ahead: a hip that bends forward is negative.
        ((1.0, 0.0, 0.0), {"hip_pitch": 0.28, "ankle_pitch": -0.28}),
        ((0.0, 0.5, 0.0), {"hip_roll": -0.14, "ankle_roll": 0.14}),
        ((0.0, 0.0, 0.5), {"hip_yaw": -0.0835}),
    ],
)
def test_the_stride_pattern_is_proportional_to_the_command(command, expected):
    task = HumanoidWalk()
    _, ctx = clock(0.0)  # lift-off of the left foot: no lift yet
    ctx.command = torch.tensor([command])
    robot = ctx.robot
    pattern = task.joint_targets(torch.zeros(1, 21), ctx)[0] - robot.home[robot.actuated]
    found = {
        a.joint: round(x, 5)
        for a, x in zip(robot.spec.actuators, pattern.tolist(), strict=True)
        if abs(x) > 1e-4
    }
    assert found == {
        **{f"l_{joint}": pytest.approx(x, abs=1e-4) for joint, x in expected.items()},
        **{f"r_{joint}": pytest.approx(-x, abs=1e-4) for joint, x in expected.items()},
    }
    ctx.task_state["phase"][:] = 0.5  # and the other way round half a cycle later
    later = task.joint_targets(torch.zeros(1, 21), ctx)[0] - robot.home[robot.actuated]
    assert torch.allclose(later, -pattern, atol=1e-6)


def test_steps_taken_to_stay_upright_count_as_drift():
    state, ctx = clock(0.5, walking=0.0, since_stop=9.0)
    ctx.command[:] = 0.0
    ctx.task_state["rest_time"][:] = 3.0
    task = HumanoidWalk()
    half = math.asin(0.2) / 2
    state.robot.base_quat[:] = torch.tensor([[math.cos(half), 0.0, math.sin(half), 0.0]])
    state.robot.base_pos[0, 0] = 0.3
    ctx.task_state = task.advance(state, ctx)
    assert ctx.task_state["walking"].item() == 1.0
    assert ctx.task_state["drift"].item() == pytest.approx(0.3)
    state.robot.base_quat[:] = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    ctx.command[:] = 0.5  # commanded to move: drift no longer counts
    assert task.advance(state, ctx)["drift"].item() == 0.0


def test_each_joint_has_an_action_scale_equal_on_both_sides():
    task = HumanoidWalk()
    _, ctx = clock(0.0, walking=0.0)
    moved = task.joint_targets(torch.ones(1, 21), ctx) - task.joint_targets(torch.zeros(1, 21), ctx)
    scale = dict(zip((a.joint for a in ctx.robot.spec.actuators), moved[0].tolist(), strict=True))
    assert scale["l_knee"] == scale["r_knee"] == pytest.approx(0.5)
    assert scale["l_elbow"] == scale["r_elbow"] == pytest.approx(0.2)
    assert all(x > 0 for x in scale.values())


def test_the_gait_reward_is_one_for_a_lifted_swing_foot_and_a_planted_stance_foot():
    state, ctx = clock(0.25)
    state.robot.foot_pos[0, :, 2] = torch.tensor([0.08, 0.0])
    state.robot.foot_force[0, :, 2] = torch.tensor([0.0, 350.0])
    assert humanoid_walk.gait(state, ctx).item() == pytest.approx(1.0, abs=1e-4)
    state.robot.foot_lin_vel[0, 1, 0] = 0.3  # the standing foot slips: exp(-0.09 / 0.05) of its half
    assert humanoid_walk.gait(state, ctx).item() == pytest.approx(0.5 + 0.5 * math.exp(-1.8), abs=1e-4)
    state.robot.foot_lin_vel[0, 1, 0] = 0.0
    state.robot.foot_pos[0, 0, 2] = 0.045  # half the height is missing: exp(-(0.035 / 0.035)^2)
    assert humanoid_walk.gait(state, ctx).item() == pytest.approx(0.5 + 0.5 * math.exp(-1.0), abs=1e-3)


def test_the_gait_reward_of_standing_needs_both_feet_on_the_ground():
    state, ctx = clock(0.0, walking=0.0)
    state.robot.foot_force[0, :, 2] = torch.tensor([170.0, 170.0])
    assert humanoid_walk.gait(state, ctx).item() == pytest.approx(1.0)
    state.robot.foot_force[0, 0, 2] = 0.0
    assert humanoid_walk.gait(state, ctx).item() == pytest.approx(0.5)


def test_the_reward_still_counts_only_while_the_clock_rests():
    state, ctx = clock(0.0)
    state.robot.base_lin_vel[:, :2] = torch.tensor([0.1, 0.1])  # 0.02 m^2/s^2
    assert humanoid_walk.still(state, ctx).item() == 0.0
    ctx.task_state["walking"][:] = 0.0
    assert humanoid_walk.still(state, ctx).item() == pytest.approx(math.exp(-1))
    state.robot.base_ang_vel[:, 0] = math.sqrt(0.2)
    assert humanoid_walk.still(state, ctx).item() == pytest.approx(math.exp(-2))


def test_the_landing_cost_is_the_squared_speed_of_a_foot_before_touch_down():
    task = HumanoidWalk()
    state, ctx = clock(0.4)
    state.robot.foot_lin_vel[0, 0] = torch.tensor([0.0, 0.3, -0.4])
    ctx.task_state = task.advance(state, ctx)  # in the air, moving
    assert humanoid_walk.landing(state, ctx).item() == 0.0
    state.robot.foot_lin_vel[:] = 0.0
    state.robot.foot_force[0, 0, 2] = 200.0
    ctx.task_state = task.advance(state, ctx)  # touched down
    assert humanoid_walk.landing(state, ctx).item() == pytest.approx(0.25)
    ctx.task_state = task.advance(state, ctx)  # stands
    assert humanoid_walk.landing(state, ctx).item() == 0.0


def mirrored(entity: Entity, robot) -> None:
    """Mirror an entity in place, component by component."""
    y, order, signs = torch.tensor([1.0, -1.0, 1.0]), *robot.mirror_joints()
    for name in ("base_pos", "base_lin_vel"):
        getattr(entity, name).mul_(y)
    entity.base_ang_vel.mul_(-y)
    entity.base_quat.mul_(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    for name in ("joint_pos", "joint_vel", "joint_torque"):
        getattr(entity, name).copy_(getattr(entity, name)[:, order] * torch.tensor(signs))
    for name in ("foot_pos", "foot_lin_vel", "foot_force"):
        getattr(entity, name).copy_(getattr(entity, name).flip(1) * y)
    entity.foot_quat.copy_(entity.foot_quat.flip(1) * torch.tensor([1.0, -1.0, 1.0, -1.0]))


def test_a_mirrored_state_gives_equal_rewards_and_mirrored_observations(make_env):
    env = make_env(HumanoidWalk(), num_envs=16)
    for i in range(15):
        env.step(0.5 * torch.randn(16, 21, generator=torch.Generator().manual_seed(i)))
    state, ctx, robot = env.backend.state.clone(), env.ctx, env.robot
    before = {name: term(state, ctx).clone() for name, term in env.task.reward_terms().items()}
    groups = {name: env._observe()[name].clone() for name in ("policy", "critic")}
    symmetry = env.symmetry()

    mirrored(state.robot, robot)
    order, signs = robot.mirror_actuators()
    sign = torch.tensor(signs)
    ctx.action, ctx.previous_action = ctx.action[:, order] * sign, ctx.previous_action[:, order] * sign
    ctx.command = ctx.command * torch.tensor([1.0, -1.0, -1.0])
    ctx.task_state["phase"] = (ctx.task_state["phase"] + 0.5) % 1.0
    for name in ("contact", "last_contact", "foot_speed", "last_foot_speed"):
        ctx.task_state[name] = ctx.task_state[name].flip(1)
    for name, term in env.task.reward_terms().items():
        assert torch.allclose(term(state, ctx), before[name], atol=1e-4), name
    for name, obs in groups.items():
        items = env.task.items(name)
        observed = torch.cat([item.compute(state, ctx) for item in items], dim=1)
        assert torch.allclose(observed, symmetry.groups[name](obs), atol=1e-5), name


def test_a_mirrored_state_half_a_cycle_later_gives_mirrored_joint_targets_and_clock(make_env):
    env = make_env(HumanoidWalk(balance_window=0.0), num_envs=16)
    for i in range(15):
        env.step(0.5 * torch.randn(16, 21, generator=torch.Generator().manual_seed(i)))
    state, ctx, robot, task = env.backend.state.clone(), env.ctx, env.robot, env.task
    ctx.command[::2] = 0.0  # some are commanded to stand
    action = torch.randn(16, 21, generator=torch.Generator().manual_seed(0))
    targets, clock_after = task.joint_targets(action, ctx), task.advance(state, ctx)
    order, signs = robot.mirror_actuators()
    sign = torch.tensor(signs)

    mirrored(state.robot, robot)
    ctx.command = ctx.command * torch.tensor([1.0, -1.0, -1.0])
    ctx.task_state = dict(ctx.task_state)
    ctx.task_state["phase"] = (ctx.task_state["phase"] + 0.5) % 1.0
    ctx.task_state["sway"] = ctx.task_state["sway"] * torch.tensor([-1.0, 1.0])
    assert torch.allclose(
        task.joint_targets(action[:, order] * sign, ctx), targets[:, order] * sign, atol=1e-5
    )
    after = task.advance(state, ctx)
    for name in ("walking", "since_stop", "since_rest"):
        assert torch.allclose(after[name], clock_after[name]), name
    assert torch.allclose(after["sway"], clock_after["sway"] * torch.tensor([-1.0, 1.0]), atol=1e-6)
    apart = (after["phase"] - clock_after["phase"]) % 1.0
    assert torch.allclose(apart, torch.full((16,), 0.5), atol=1e-5)
