"""The bar that one arm hands to another: what each measures, when it is handed over, and that it can be."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.env import Env
from robolearn.envs.kinematics import inverse
from robolearn.errors import ConfigError
from robolearn.export.record import on_robot
from robolearn.tasks.arm_reach import FINGERS, GRIP
from robolearn.tasks.handover import (
    APART,
    BAR,
    BAR_PLACE,
    BOTH,
    EDGE,
    END,
    FINGER_FORCE,
    GIVEN,
    MEETING,
    OTHER_GRIP,
    PARTNER,
    TAKEN,
    Handover,
    bar_speed,
    end_distance,
    forces,
    gives,
    goal_distance,
    grasped,
    level,
    place,
    start_poses,
    taken,
)
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.task import Ratio
from robolearn.training.build import build_env
from robolearn.training.train import train
from tests.factories import load_robot

WHOLE = ["task.meeting_starts=0.0", "task.both_starts=0.0", "task.taken_starts=0.0"]
DOWN = (0.0, 0.0, 1.0, 0.0)


@pytest.fixture
def env() -> Iterator[Env]:
    made = build_env(config.resolve(["task=handover", *WHOLE]), 8)
    yield made
    made.close()


def starting(how: int) -> Env:
    """Worlds that all start alike."""
    names = {MEETING: "meeting", BOTH: "both", TAKEN: "taken"}
    shares = [f"task.{name}_starts={float(key == how)}" for key, name in names.items()]
    return build_env(config.resolve(["task=handover", *shares]), 8)


def move(env: Env, poses: list[torch.Tensor], fingers: list[float], off: torch.Tensor) -> None:
    """One step of both arms to joint positions (W, J); `off`, the targets beyond them, takes gravity's sag away."""
    robot = env.ctx.robot
    finger = robot.per_joint(FINGERS)
    wanted = torch.stack(poses, dim=1).flatten(0, 1)
    off += 0.15 * (wanted - env.backend.state.robot.joint_pos) * (1 - finger)
    opening = torch.tensor(fingers).repeat(len(poses[0]))[:, None]
    target = torch.where(finger > 0, opening, wanted + off)
    start = torch.where(finger > 0, 0.0, robot.home)
    env.step((target - start) / (0.5 * (1 - finger) + 0.05 * finger))


def test_arms_that_meet_grasp_let_go_and_carry_hand_every_bar_over(env):
    robot = env.ctx.robot
    poses = start_poses(robot.spec, robot.home.device)
    bars = env.backend.state.entities[BAR].base_pos[::2]
    which = (bars[:, None] - poses["bar"]).norm(dim=-1).argmin(dim=1)
    at = {name: pose[which] for name, pose in poses.items() if name != "waiting"}
    at["waiting"] = poses["waiting"].expand(8, -1)
    goal = env.ctx.command[::2, :3].numpy().copy()
    goal[:, 0] -= END
    at["goal"] = torch.tensor(inverse(robot.spec, GRIP, goal, np.tile(DOWN, (8, 1))), dtype=torch.float32)
    off = torch.zeros(16, len(robot.home))

    def on(first: str, then: str, since: float, needed: float) -> torch.Tensor:
        return torch.lerp(at[first], at[then], min(1.0, max(0.0, (time - since) / needed)))

    for step in range(249):
        time = step * 0.02
        giver = on("giver", "giver_above", 2.4, 0.4)
        if time < 0.9:
            receiver = on("waiting", "receiver_above", 0.0, 0.8)
        elif time < 3.0:
            receiver = on("receiver_above", "receiver", 0.9, 0.5)
        else:
            receiver = on("receiver", "goal", 3.0, 0.8)
        move(env, [giver, receiver], [0.005 if time < 2.1 else 0.04, 0.04 if time < 1.6 else 0.005], off)
    done = env.task.metrics(env.backend.state, env.ctx)["handed_over"]
    assert isinstance(done, Ratio)
    assert done.each().tolist() == [1.0] * 16


@pytest.mark.parametrize(
    ("how", "fingers_of_giver", "fingers_of_receiver"),
    [(MEETING, True, False), (BOTH, True, True), (TAKEN, False, True)],
)
def test_the_arms_hold_the_bar_as_the_start_says(how, fingers_of_giver, fingers_of_receiver):
    env = starting(how)
    assert (env.ctx.task_state["start"] == how).all()
    joints = env.backend.state.robot.joint_pos.clone()
    opening = [0.04 if how == TAKEN else 0.01, 0.04 if how == MEETING else 0.01]
    for _ in range(4):
        move(env, [joints[::2], joints[1::2]], opening, torch.zeros(16, 9))
    felt = forces(env.backend.state, env.ctx)[::2] > 0.5
    assert felt[:, :2].all().item() == fingers_of_giver == felt[:, :2].any().item()
    assert felt[:, 2:].all().item() == fingers_of_receiver == felt[:, 2:].any().item()
    assert taken(env.backend.state, env.ctx).tolist() == [float(how == TAKEN)] * 16
    env.close()


def test_both_agents_of_a_world_start_alike_and_a_quarter_on_the_way():
    env = build_env(config.resolve(["task=handover"]), 256)
    start = env.ctx.task_state["start"].view(-1, 2)
    assert torch.equal(start[:, 0], start[:, 1])
    shares = [(start[:, 0] == how).float().mean().item() for how in (GIVEN, MEETING, BOTH, TAKEN)]
    assert shares == pytest.approx([0.4, 0.25, 0.2, 0.15], abs=0.09)  # three standard deviations of 256 draws
    env.close()


def test_on_the_robot_every_receiver_waits_at_the_start():
    env = build_env(on_robot(config.resolve(["task=handover"])), 64)
    assert (env.ctx.task_state["start"] == GIVEN).all()
    assert gives(env.backend.state, env.ctx)[:, 0].tolist() == [True, False] * 64
    env.close()


def test_success_and_rewards_of_bars_placed_by_hand(env):
    state, ctx = env.backend.state, env.ctx
    bar, felt = state.entities[BAR], state.robot.contacts[BAR].force
    bar.base_pos[:] = torch.tensor([0.5, 0.0, 0.2])
    env.state.episode.command[:] = torch.tensor(
        [APART - 0.59, 0.0, 0.2]
    )  # at 0.59 in the world: 9 cm further
    for row, frame in ((0, state.entities[PARTNER].frames[GRIP]), (1, state.robot.frames[GRIP])):
        frame.pos[row] = torch.tensor([0.5 + END, 0.0, 0.22])  # 2 cm above the end
    felt.zero_()
    state.entities[PARTNER].contacts[BAR].force.zero_()
    state.entities[PARTNER].contacts[BAR].force[0] = felt[1] = 3.0  # the receiver's fingers, as both see them
    success = env.task.success(state, ctx)
    assert isinstance(success, Ratio)
    assert success.each()[:2].tolist() == pytest.approx(
        [0.3 * (1 - 0.02 / 0.5) + 0.7 * (1 - 0.09 / 0.3)] * 2, abs=1e-5
    )
    assert env.task.metrics(state, ctx)["taken"][:2].tolist() == [1.0, 1.0]
    assert place(state, ctx, width=0.09)[:2].tolist() == pytest.approx([1 - math.tanh(1.0)] * 2, abs=1e-5)
    bar.base_lin_vel[:] = torch.tensor([0.3, 0.0, 0.4])
    assert bar_speed(state, ctx)[:2].tolist() == pytest.approx([0.25, 0.25])
    # Turned by asin(0.2) about y: the receiver's end is 0.2 of the length lower.
    bar.base_quat[:] = torch.tensor([math.cos(0.1006789), 0.0, math.sin(0.1006789), 0.0])
    assert level(state, ctx, width=0.2)[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    bar.base_pos[0, 2] = 0.05
    assert Handover.lost(env.task, state, ctx)[:2].tolist() == pytest.approx([50.0, 0.0])  # once, in 0.02 s


def test_each_arm_sees_the_bar_and_the_other_gripper_from_its_own_base(env):
    state = env.backend.state
    state.entities[BAR].base_pos[:] = torch.tensor([0.4, 0.1, 0.3])
    place = BAR_PLACE(state)
    # The receiver stands 1.06 m ahead and looks back: 1.06 - 0.4 ahead of it, on its other side, the bar's other way.
    assert torch.allclose(place[0], torch.tensor([0.4, 0.1, 0.3, 1.0, 0.0, 0.0]), atol=1e-6)
    assert torch.allclose(place[1], torch.tensor([0.66, -0.1, 0.3, -1.0, 0.0, 0.0]), atol=1e-6)
    seen = OTHER_GRIP(state)
    waiting = torch.tensor([APART - 0.42, 0.0, 0.42])  # from the giver's base
    assert torch.allclose(seen[0, :3], waiting, atol=0.05)
    assert seen[0, 3].item() == pytest.approx(0.08, abs=1e-3)  # two fingers, open
    assert seen[1, 3].item() == pytest.approx(EDGE, abs=1e-3)  # two fingers, with the bar between them


def test_both_arms_agree_on_where_the_bar_is_to_be_grasped_and_to_go(env):
    state, ctx = env.backend.state, env.ctx
    state.entities[BAR].base_pos[:] = torch.tensor([0.5, 0.0, 0.2])
    env.state.episode.command[:] = torch.tensor([0.5, 0.1, 0.2])
    for row, frame in ((0, state.entities[PARTNER].frames[GRIP]), (1, state.robot.frames[GRIP])):
        frame.pos[row] = torch.tensor([0.5 + END, 0.0, 0.24])
    assert end_distance(state, ctx)[:2].tolist() == pytest.approx([0.04, 0.04], abs=1e-6)
    # In the world the goal is at (1.06 - 0.5, -0.1, 0.2).
    place = env.task.goal(state, ctx)
    assert torch.allclose(place[:2], torch.tensor([0.56, -0.1, 0.2]), atol=1e-6)
    assert goal_distance(state, ctx)[:2].tolist() == pytest.approx([math.hypot(0.06, 0.1)] * 2, abs=1e-6)


def test_a_bar_that_drops_counts_as_one_that_is_not_handed_over(env):
    env.backend.state.entities[BAR].base_pos[0:2, 2] = 0.05
    done = env.task.metrics(env.backend.state, env.ctx)["handed_over"]
    assert isinstance(done, Ratio)
    assert done.total.tolist() == [0.0] * 16
    assert done.weight.tolist() == [50.0, 50.0] + [0.0] * 14  # the steps of its last second


def test_a_bar_that_both_hold_is_grasped_and_not_taken():
    env = starting(BOTH)
    joints = env.backend.state.robot.joint_pos.clone()
    for _ in range(4):
        move(env, [joints[::2], joints[1::2]], [0.01, 0.01], torch.zeros(16, 9))
    state = env.backend.state
    assert (FINGER_FORCE(state) > 0.5).all()
    assert grasped(state, env.ctx).tolist() == [1.0] * 16
    assert taken(state, env.ctx).tolist() == [0.0] * 16
    env.close()


def test_the_policy_of_an_arm_that_reads_the_others_joints_is_refused_by_name(make_env):
    @dataclass
    class Seeing(Handover):
        observations: ClassVar = {
            **Handover.observations,
            "policy": (
                *Handover.observations["policy"],
                Observation("other_arm", lambda s, c: s.entities[PARTNER].joint_vel, "same"),
            ),
        }

    with pytest.raises(ConfigError, match="'other_arm'"):
        make_env(Seeing(), num_envs=2)


def test_shares_of_starts_that_are_more_than_all_are_refused_by_name():
    with pytest.raises(ValueError, match=r"meeting_starts=0.6.*taken_starts=0.3"):
        Handover(meeting_starts=0.6, both_starts=0.2, taken_starts=0.3).validate()
    Handover(meeting_starts=0.55, both_starts=0.34, taken_starts=0.11).validate()  # 1, but for rounding


def test_an_arm_whose_last_joints_are_not_its_fingers_is_refused_by_name():
    robot = load_robot("arm")
    turned = dataclasses.replace(robot, joints=(*robot.joints[-2:], *robot.joints[:-2]))
    with pytest.raises(ConfigError, match="wrist_pitch, wrist_roll"):
        Handover().scene(turned)


@pytest.mark.slow
def test_the_bundles_of_giver_and_receiver_have_their_own_sensors_alone(tmp_path):
    words = ["num_envs=32", "max_iterations=2", "torch_threads=1", f"output={tmp_path / 'run'}"]
    folder = train(config.resolve(["task=handover", *words]))
    export = ["export", str(folder), "--output", str(tmp_path / "team"), "--starts", "8", "--seconds", "2"]
    assert main([*export, "--measure-seconds", "0"]) == 0
    for name in ("giver", "receiver"):
        manifest = json.loads((tmp_path / "team" / name / "manifest.json").read_text())
        sensors = [sensor["name"] for sensor in manifest["sensors"]]
        assert sensors == ["joint_pos", "joint_vel", "fingers", "bar_place", "other_grip"]
        used = '{"joint_pos": p, "joint_vel": v, "fingers": fingers, "bar_place": bar_place, "other_grip": other_grip}'
        assert used in (tmp_path / "team" / name / "REPORT.md").read_text()
        inputs = onnx.load(tmp_path / "team" / name / "policy.onnx").graph.input
        # 9 joints three times, 2 fingers, 6 numbers of the bar, 4 of the other gripper, 3 of the goal.
        assert [i.type.tensor_type.shape.dim[1].dim_value for i in inputs] == [42]
