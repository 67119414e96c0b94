"""The controller of a policy for uneven ground: blind it needs what every robot has, else a height scan as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robolearn import config
from robolearn.export.controller import Controller
from robolearn.export.record import on_robot
from robolearn.training.build import build_env


@pytest.mark.parametrize("scan", [False, True])
def test_a_controller_computes_the_observations_of_the_env_from_its_readings(scan):
    run = config.resolve(
        [
            *("task=humanoid_rough", "backend=mujoco", "device=cpu", f"task.scan={str(scan).lower()}"),
            *("task.terrain.rows=1", "task.terrain.columns=2", "task.terrain.kinds={boxes: 1}"),
            *(["task.randomize={map_shift: [0, 0], map_lift: [0, 0]}"] if scan else []),
        ]
    )
    env = build_env(on_robot(replace(run, num_envs=3)), 3)
    width = env.observations["policy"].shape[1]
    controller = Controller(env, torch.nn.Linear(width, env.num_actions), {})
    assert ("height_scan" in controller.sensors) is scan
    assert set(controller.sensors) - {"height_scan"} == {"quat", "gyro", "joint_pos", "joint_vel"}
    with torch.no_grad():
        targets, _, observations, *_ = controller(*controller.example.values())
    assert torch.allclose(observations, env.observations["policy"][:1], atol=1e-6)
    assert targets.shape == (1, env.num_actions)
    env.close()
