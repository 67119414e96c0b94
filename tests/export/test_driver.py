"""BundleDriver: the controller of a bundle on each robot of an Env."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robolearn.errors import ConfigError
from robolearn.export.closed_loop import in_order
from robolearn.export.driver import BundleDriver, config_of, is_bundle
from robolearn.export.record import readings, starts
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import Refused
from robolearn.runtime.main import open_session
from robolearn.runtime.robot import Runtime
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run

QUIET = [
    f"task.noise.{name}=0" for name in ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel")
]


@pytest.fixture
def env(exported):
    made = make_env(config_of(exported, QUIET), num_envs=3)
    yield made
    made.close()


def test_the_actions_are_those_of_the_trained_policy_on_every_robot(exported, env):
    policy = load_policy(open_run("pretrained:humanoid_walk"))
    driver = BundleDriver(exported, env)
    for _ in range(30):
        wanted = policy(env.observations)
        actions, targets = driver()
        assert torch.allclose(actions, wanted, atol=2e-4)
        driver.reset(env.step(actions, targets).done)
    # The robots are driven by the bundle's joint targets, not by the task's.
    assert torch.equal(env.state.transit["joint_targets"], targets)


def test_a_reset_starts_only_the_masked_controllers_anew(exported, env):
    driver = BundleDriver(exported, env)
    for _ in range(3):
        env.step(*driver())
    mask = torch.tensor([False, True, False])
    carried = [runtime.feeds["last_action_in"].copy() for runtime in driver._runtimes]
    driver.reset(mask)
    now = [runtime.feeds["last_action_in"] for runtime in driver._runtimes]
    assert np.abs(carried[1]).max() > 0
    assert np.abs(now[1]).max() == 0
    assert np.array_equal(now[0], carried[0])
    assert np.array_equal(now[2], carried[2])


def test_each_robot_gets_its_own_readings_and_command(exported, env):
    driver = BundleDriver(exported, env)
    env.state.episode.command = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0, 0.3, 0.5]])
    _, targets = driver()
    bundle = Bundle.load(exported)
    alone = Runtime(bundle, open_session(bundle, "onnxruntime"))
    sensors = in_order(readings(env, alone.sensors), [env.robot.joints.index(name) for name in alone.joints])
    held = [name.removesuffix("_in") for name in alone.feeds if name.endswith("_in")]
    alone.reset({name: rows[2] for name, rows in starts(env, held).items()})
    row = alone.step({name: rows[2] for name, rows in sensors.items()}, env.ctx.command[2].numpy())
    order = [alone.actuators.index(actuator.joint) for actuator in env.robot.actuators]
    assert np.array_equal(targets[2].numpy(), row[order])


def test_a_bundle_of_another_robot_is_refused_by_the_first_difference(exported):
    other = make_env(config_of(exported, ["task.control_dt=0.04"]), num_envs=1)
    try:
        with pytest.raises(ConfigError, match="control_dt"):
            BundleDriver(exported, other)
    finally:
        other.close()


def test_a_reading_that_is_not_finite_names_the_robot(exported, env):
    driver = BundleDriver(exported, env)
    env.backend.state.robot.joint_pos[1, 0] = torch.nan
    with pytest.raises(ConfigError, match="robot 1"):
        driver()


def test_a_changed_configuration_is_refused(bundle):
    path = bundle / "config.yaml"
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(Refused, match=r"config\.yaml"):
        config_of(bundle)


def test_a_stated_delay_of_actions_delays_what_the_bundle_sends(exported):
    env = make_env(config_of(exported, [*QUIET, "task.action_delay=[2,2]"]), num_envs=3)
    try:
        driver = BundleDriver(exported, env)
        home = env.task.joint_targets(torch.zeros(3, env.num_actions), env.ctx)
        sent = [home, home]
        for _ in range(5):
            actions, targets = driver()
            sent.append(targets)
            env.step(actions, targets)
            assert torch.allclose(env.state.transit["joint_targets"], sent[-3], atol=1e-6)
    finally:
        env.close()


def test_a_delay_of_all_observations_is_refused_naming_that_of_sensors(exported):
    with pytest.raises(ConfigError, match=r"task\.sensing\.policy\.delay"):
        config_of(exported, ["task.observation_delay=[0,2]"])


def test_a_folder_is_a_bundle_by_its_manifest(exported, tmp_path):
    assert is_bundle(exported)
    assert not is_bundle(tmp_path)
    assert not is_bundle("pretrained:humanoid_walk")
    assert not is_bundle(None)
