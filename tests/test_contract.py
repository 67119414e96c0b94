"""The Contract says in numbers what the task does in code."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from robolearn.contract import Contract, contract_of
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.commands import Pushes, VelocityCommands
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.observations import projected_gravity


@pytest.mark.parametrize("feed_forward", [1.0, 0.5])
def test_targets_follow_from_the_contract_alone(feed_forward, make_env):
    env = make_env(HumanoidWalk(feed_forward=feed_forward), num_envs=8)
    for _ in range(12):
        env.step(torch.zeros(8, 21))
    contract = contract_of(env)
    action = torch.randn(8, 21, generator=torch.Generator().manual_seed(0))
    clock = contract.extra["gait_clock"]
    phase, walking = env.ctx.memory["phase"], env.ctx.memory["walking"]
    for i, entry in enumerate(contract.actions):
        side, base = entry["joint"][:2], entry["joint"][2:]
        lead = {clock["legs"][0]: 1, clock["legs"][1]: -1}.get(side, 0)
        swing = (lead * torch.sin(2 * torch.pi * phase) * walking).clamp(min=0)
        expected = (
            entry["offset"]
            + entry["scale"] * action[:, i]
            + contract.extra["step_pattern"].get(base, 0.0) * swing
        )
        for column, name in enumerate(contract.command):
            stride = contract.extra["stride_pattern"][name].get(base, 0.0) * env.ctx.command[:, column]
            expected += lead * torch.cos(2 * torch.pi * phase) * walking * stride
        assert torch.allclose(env.task.targets(action, env.ctx)[:, i], expected, atol=1e-5), entry["joint"]


class RobotClock:
    """docs/humanoid_walk.md, the clock step by step: one robot's, from contract.json and its sensors."""

    def __init__(self, contract: Contract, phase: float) -> None:
        self.c, self.dt = contract.extra["gait_clock"], np.float32(contract.control_dt)
        self.phase, self.walking = np.float32(phase), False
        self.since_stop, self.since_rest = np.float32(self.c["stop_time"]), np.float32(self.c["settle_time"])
        self.sway = np.zeros(2, np.float32)

    def step(self, gyro: np.ndarray, gravity: np.ndarray, command: np.ndarray) -> None:
        c = {k: np.float32(v) for k, v in self.c.items() if isinstance(v, float)}
        asked = np.abs(command).max() > c["command_threshold"]
        self.sway += min(np.float32(1), self.dt / c["fall_filter"]) * (gyro[:2] - self.sway)
        ahead = gravity[:2] + c["fall_time"] * np.array([self.sway[1], -self.sway[0]])
        tips = self.since_rest >= c["settle_time"] and np.linalg.norm(ahead) > c["balance_start"]
        moving = asked or tips or np.linalg.norm(gravity[:2]) > c["balance_lean"]
        self.since_stop = np.float32(0) if moving else self.since_stop + self.dt
        phase = self.phase + c["frequency"] * self.dt * np.float32(self.walking)
        halves = np.floor(2 * phase)
        may_stop = halves > np.floor(2 * self.phase) or not self.walking
        self.walking = not (not moving and self.since_stop >= c["stop_time"] and may_stop)
        self.since_rest = np.float32(0) if self.walking else self.since_rest + self.dt
        self.phase = (phase if self.walking else halves / 2) % 1


def test_the_gait_clock_follows_from_the_contract_alone(make_env):
    task = HumanoidWalk(balance_window=0.0)  # as on the robot
    task.commands = VelocityCommands(seconds=(0.3, 1.2), standing=0.5)
    task.pushes = Pushes(speed=(0.5, 0.5), seconds=(0.3, 0.9))
    env = make_env(task, num_envs=16)
    contract = contract_of(env)
    clocks = [RobotClock(contract, phase.item()) for phase in env.ctx.memory["phase"]]
    rested = started = 0
    for _ in range(100):
        command = env.ctx.command.clone()
        before = env.ctx.memory["walking"].clone()
        done = (result := env.step(torch.zeros(16, 21))).terminated | result.truncated
        robot, memory = env.backend.state.robot, env.ctx.memory
        gravity = projected_gravity(robot.base_quat)
        for i, clock in enumerate(clocks):
            if done[i]:
                clocks[i] = RobotClock(contract, memory["phase"][i].item())
                continue
            clock.step(robot.base_ang_vel[i].numpy(), gravity[i].numpy(), command[i].numpy())
            assert clock.walking == bool(memory["walking"][i])
            assert clock.phase == pytest.approx(memory["phase"][i].item(), abs=1e-5)
            assert clock.sway == pytest.approx(memory["sway"][i].numpy(), abs=1e-5)
            rested += not clock.walking
            started += clock.walking and not before[i] and not command[i].any()
    assert rested > 50
    assert started > 0  # by the reflex


def test_observation_columns_are_those_of_the_policy_group(make_env):
    env = make_env(HumanoidWalk(), num_envs=4)
    contract = contract_of(env)
    assert [o["name"] for o in contract.observations] == list(env.task.observations["policy"])
    last = contract.observations[-1]
    assert last["column"] + last["width"] == env.observations["policy"].shape[1]


def test_joints_and_gains_are_the_robots(make_env):
    env = make_env(HumanoidWalk(), num_envs=2)
    contract = contract_of(env)
    knee = next(a for a in contract.actions if a["joint"] == "r_knee")
    assert (knee["kind"], knee["kp"], knee["kd"], knee["effort"]) == ("position", 120.0, 4.0, 120.0)
    assert knee["offset"] == pytest.approx(0.6)
    joint = next(j for j in contract.joints if j["name"] == "r_knee")
    assert joint["lower"] < joint["home"] < joint["upper"]


def test_making_a_contract_does_not_disturb_the_runs_random_numbers(make_env):
    env = make_env(HumanoidWalk(), num_envs=2)
    before = env.random.generator.get_state()
    contract_of(env)
    assert torch.equal(before, env.random.generator.get_state())


def test_a_contract_survives_its_file_and_another_schema_is_refused(make_env, tmp_path):
    contract = contract_of(make_env(CartpoleBalance(), num_envs=2))
    path = tmp_path / "contract.json"
    contract.save(path)
    assert (
        json.loads(path.read_text())["joints"][1]["upper"] is None
    )  # the pole turns freely; JSON has no inf
    again = Contract.load(path)
    assert again == contract
    replace(contract, schema=2).save(path)
    with pytest.raises(ValueError, match="schema 2 and this RoboLearn reads schema 1"):
        Contract.load(path)


def test_targets_that_no_runtime_could_follow_are_refused(make_env, monkeypatch):
    monkeypatch.setattr(CartpoleBalance, "targets", lambda self, action, ctx: 20 * action.tanh())
    with pytest.raises(ValueError, match="not offset"):
        contract_of(make_env(CartpoleBalance(), num_envs=2))
