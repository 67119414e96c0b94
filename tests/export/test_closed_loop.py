"""The closed loop: paired starts, joint targets of the bundle at the actuators, falls, late joint targets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.errors import RunFailed
from robolearn.export import closed_loop as loop
from robolearn.export.record import on_robot
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import Refused
from robolearn.runtime.robot import Runtime
from robolearn.runtime.sessions import OnnxSession
from robolearn.training import runs
from tests.as_on_gpu import unread
from tests.export.conftest import export

STARTS = 6


@pytest.fixture(scope="module")
def walking():
    """Configuration of the shipped run as on the robot, with frequent pushes."""
    words = [
        "task.pushes.speed=[0.5,0.5]",
        "task.pushes.box=[0,0,0]",
        "task.pushes.turn=[0,0,0]",
        "task.pushes.seconds=[0.1,0.2]",
        "task.commands.seconds=[0.2,0.4]",
    ]
    return on_robot(runs.open_run("pretrained:humanoid_walk", words).config)


def driving(first: float):
    """All actions are 0, except those of the first robot, which are `first`."""

    def driver_of(env):
        action = torch.zeros(env.num_envs, env.num_actions)
        action[0] = first
        return lambda running: (action, None)

    return driver_of


def test_a_fall_of_one_robot_does_not_change_the_others(walking):
    alike, survived = loop._episodes(walking, STARTS, 60, driving(0.0))
    other, bundle_survived = loop._episodes(walking, STARTS, 60, driving(6.0))
    assert not bundle_survived[0]  # it falls and is reset in the middle
    assert other[0] != alike[0]
    assert np.array_equal(other[1:], alike[1:])
    assert np.array_equal(bundle_survived[1:], survived[1:])


def test_the_return_is_that_of_the_first_episode_only(walking):
    few, survived = loop._episodes(walking, STARTS, 60, driving(6.0))
    many, stood_later = loop._episodes(walking, STARTS, 90, driving(6.0))
    assert not survived[0]
    assert few[0] == many[0]  # rewards after the fall do not count
    assert not stood_later[0]


def test_the_actuators_get_the_runtimes_joint_targets(exported, walking, monkeypatch):
    bundle = Bundle.load(exported)
    sent, step = [], Env.step

    def spy(self, action, targets=None):
        sent.append(targets)
        return step(self, action, targets)

    monkeypatch.setattr(Env, "step", spy)
    policy = runs.load_policy(runs.open_run("pretrained:humanoid_walk"))
    loop.closed_loop(walking, policy, bundle, OnnxSession(bundle.graph), STARTS, 0.4, 20.0)
    assert [targets is None for targets in sent] == [True] * 20 + [False] * 20
    assert float(sent[-1].abs().max()) > 0.1


def test_a_joint_target_that_is_off_by_more_than_1e_5_of_its_range_is_refused(exported, walking):
    bundle = Bundle.load(exported)
    policy = runs.load_policy(runs.open_run("pretrained:humanoid_walk"))
    knee = [action["joint"] for action in bundle.contract["actions"]].index("l_knee")

    class Off(OnnxSession):
        bind = None
        by = 0.0

        def run(self, feeds):
            out = super().run(feeds)
            out["targets"][0, knee] += self.by
            return out

    session = Off(bundle.graph)
    gap = loop.closed_loop(walking, policy, bundle, session, STARTS, 0.4, 20.0)
    assert 0.0 < gap.target_difference < 1e-5
    session.by = 1e-4  # of a range of 2.25 rad
    with pytest.raises(Refused, match="first, the joint target of l_knee is"):
        loop.closed_loop(walking, policy, bundle, session, STARTS, 0.4, 20.0)


def test_joint_targets_are_moved_to_the_simulations_device(exported, walking, monkeypatch):
    """Detected by `Tensor.to`, since there is one device here; comparisons use `Tensor.cpu`."""
    bundle, sent = Bundle.load(exported), []
    to, step = torch.Tensor.to, Env.step

    def moved(self, *arguments, **named):
        out = to(self, *arguments, **named)
        out.moved = any(isinstance(x, torch.device) for x in arguments)
        return out

    def spy(self, action, targets=None):
        sent.append([getattr(x, "moved", False) for x in (action, targets)])
        return step(self, action, targets)

    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(Env, "step", spy)
    loop.one_step_late(walking, bundle, OnnxSession(bundle.graph), STARTS, 0.06)
    assert sent[1:] == [[True, True], [True, True]]


@pytest.mark.cuda
def test_a_bundle_controls_robots_on_a_gpu(exported):
    bundle = Bundle.load(exported)
    run = runs.open_run("pretrained:humanoid_walk", ["backend=mujoco_warp", "device=cuda"])
    policy = runs.load_policy(run)
    found = loop.closed_loop(
        on_robot(run.config), policy, bundle, OnnxSession(bundle.graph), STARTS, 0.4, 20.0
    )
    assert found.inside
    late = loop.one_step_late(on_robot(run.config), bundle, OnnxSession(bundle.graph), STARTS, 0.4)
    assert late.survival == 1.0


def test_dropped_contacts_raise_run_failed(walking, monkeypatch):
    pytest.importorskip("mujoco_warp")
    make = loop.make_env
    run = config.resolve(
        ["task=humanoid_walk", "backend=mujoco_warp", "device=cpu", "backend.nconmax=3", "backend.njmax=400"]
    )
    monkeypatch.setattr(loop, "make_env", lambda *a, **b: unread(make(*a, **b)))
    with pytest.raises(RunFailed, match=r"raise backend\.nconmax, now 3"):
        loop._episodes(replace(run, task=walking.task), STARTS, 60, driving(0.0))


def test_a_gap_that_is_too_large_is_code_3(trained, capfd, monkeypatch, tmp_path):
    between = loop.gap_between
    monkeypatch.setattr(loop, "gap_between", lambda a, b, *rest: between(a, b - 0.05 * abs(b), *rest))
    code, said = export(capfd, trained, "--output", tmp_path / "b")
    assert (code, "the whole 95 % interval must lie within ±1 %" in said) == (3, True), said
    assert not (tmp_path / "b").exists()


def test_a_gap_that_too_few_starts_leave_open_says_how_many_would_tell():
    common = {"seconds": 5.0, "trained_return": 1.0, "bundle_return": 1.0, "trained_survival": 1.0}
    open_, far, inside = (
        loop.Gap(mean, mean - half, mean + half, 500, bundle_survival=1.0, **common)
        for mean, half in ((0.008, 0.01), (0.03, 0.01), (0.001, 0.005))
    )
    assert "--starts 2000" in open_.too_few  # an interval half as wide takes four times as many
    assert (far.too_few, inside.too_few) == ("", "")


def test_an_action_that_is_not_finite_is_refused(exported, walking, monkeypatch):
    bundle = Bundle.load(exported)

    class NotFinite(OnnxSession):
        bind = None

        def run(self, feeds):
            return {name: np.full(shape, math.nan, np.float32) for name, shape in self.outputs.items()}

    policy = runs.load_policy(runs.open_run("pretrained:humanoid_walk"))
    with pytest.raises(Refused, match=r"cannot control the robot: .*not finite"):
        loop.closed_loop(walking, policy, bundle, NotFinite(bundle.graph), STARTS, 0.1, 20.0)


def test_returns_of_0_in_every_start_are_refused(exported, walking):
    bundle = Bundle.load(exported)
    worthless = {name: replace(reward, weight=0.0) for name, reward in walking.task.rewards.items()}
    task = replace(walking.task, rewards=worthless)
    policy = runs.load_policy(runs.open_run("pretrained:humanoid_walk"))
    with pytest.raises(Refused, match="return is 0 in every start"):
        loop.closed_loop(
            replace(walking, task=task), policy, bundle, OnnxSession(bundle.graph), STARTS, 0.1, 20.0
        )


def test_late_joint_targets_are_those_of_the_step_before_and_first_those_of_action_0(
    exported, walking, monkeypatch
):
    bundle = Bundle.load(exported)
    sent: list[torch.Tensor] = []
    computed: list[torch.Tensor] = []
    step, compute = Env.step, loop._BundleDriver.__call__

    def spy(self, action, targets=None):
        sent.append(targets.clone())
        return step(self, action, targets)

    def record(self, running):
        action, targets = compute(self, running)
        computed.append(targets.clone())
        return action, targets

    monkeypatch.setattr(Env, "step", spy)
    monkeypatch.setattr(loop._BundleDriver, "__call__", record)
    found = loop.one_step_late(walking, bundle, OnnxSession(bundle.graph), STARTS, 0.4)
    assert len(sent) == len(computed) == 20
    assert all(torch.equal(late, before) for late, before in zip(sent[1:], computed, strict=False))
    knee = Runtime(bundle, OnnxSession(bundle.graph)).actuators.index("l_knee")
    assert sent[0][:, knee].tolist() == pytest.approx([0.6] * STARTS)  # home
    assert 0 < found.mean_return < 20
    assert found.survival == 1.0
