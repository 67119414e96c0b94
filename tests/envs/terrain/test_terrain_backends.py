"""Both MuJoCo backends on a terrain: the surface that rays and robots meet is `Ground`, positions are relative."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch

from robolearn.config import registry
from robolearn.envs import mjcf
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import home
from robolearn.envs.terrain import Ground, Terrain
from tests.factories import load_robot

TERRAIN = Terrain(
    rows=2, columns=4, size=4.0, border=1.0, platform=1.0,
    kinds={"rough": 1, "stairs_up": 1, "slope_down": 1, "boxes": 1},
)  # fmt: skip
CPU = torch.device("cpu")
GROUND = Ground(TERRAIN.heights, CPU)
ORIGINS = torch.tensor(TERRAIN.heights.origins).view(-1, 3)
EVERY = torch.ones(8, dtype=torch.bool)
BACKENDS = ["mujoco", "mujoco_warp"]


def made(name: str, scene: Scene, num_envs: int = 8):
    pytest.importorskip(name)
    return registry.load("backends", name)(scene, num_envs, "cpu")


def ball_scene() -> Scene:
    """A ball, and a robot, which every scene has."""
    return Scene(
        {"robot": load_robot("ant"), "ball": Object("sphere", (0.2,), mass=1.0, position=(0.0, 0.0, 1.0))},
        terrain=TERRAIN,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_rays_meet_the_surface_that_ground_returns(backend):
    model = mjcf.build_model(ball_scene(), backend)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    xy = torch.rand(8, 60, 2, generator=torch.Generator().manual_seed(0)) * 3.9 - 1.95
    found = GROUND.height(xy, ORIGINS)
    floor, hit = model.geom("floor").id, np.zeros(1, np.int32)
    only = model.geom("floor").group[0]
    groups = np.array([group == only for group in range(6)], np.uint8)
    checked = 0
    for i in range(8):
        for k in range(60):
            place = (xy[i, k] + ORIGINS[i, :2]).double().numpy()
            start = np.array([*(xy[i, k].double() + ORIGINS[i, :2].double()).numpy(), 3.0])
            distance = mujoco.mj_ray(model, data, start, np.array([0, 0, -1.0]), groups, 1, -1, hit)
            if hit[0] == floor:
                checked += 1
                height = 3.0 - distance - float(ORIGINS[i, 2])
                assert found[i, k].item() == pytest.approx(height, abs=1e-6), place
    assert checked > 400


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_ball_comes_to_rest_on_the_ground_of_its_tile(backend):
    simulator = made(backend, ball_scene())
    simulator.place(EVERY, ORIGINS)
    start = home(simulator.scene, "ball", 8, CPU)
    # On the platform of each tile, where the ground is level.
    start.base_pos[:] = torch.tensor([0.3, 0.2, 0.11])
    robot = home(simulator.scene, "robot", 8, CPU)
    robot.base_pos[:, 2] += 3.0
    simulator.reset(EVERY, {"ball": start, "robot": robot})
    simulator.step(torch.zeros(8, len(simulator.robot.actuators)), 40)
    ball = simulator.state.entities["ball"].base_pos
    assert ball[:, 2].tolist() == pytest.approx([0.1] * 8, abs=2e-3)
    assert ball[:, :2].flatten().tolist() == pytest.approx([0.3, 0.2] * 8, abs=0.02)
    assert torch.equal(simulator.state.origin, ORIGINS)
    simulator.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_are_relative_to_the_origin_and_velocities_are_not_changed(backend):
    flat, rough = (made(backend, replace(ball_scene(), terrain=t)) for t in (None, TERRAIN))
    start = home(rough.scene, "robot", 8, CPU)
    start.base_pos[:, 0] = torch.linspace(-0.2, 0.2, 8)
    start.base_pos[:, 2] = 5.0  # in free fall
    start.base_lin_vel[:] = torch.tensor([0.3, 0.1, 0.0])
    ball = home(rough.scene, "ball", 8, CPU)
    ball.base_pos[:, 2] = 8.0
    rough.place(EVERY, ORIGINS)
    for simulator in (flat, rough):
        simulator.reset(EVERY, {"robot": start, "ball": ball})
        simulator.step(torch.full((8, len(simulator.robot.actuators)), 0.1), 4)
    for name, tensor in flat.state.robot.tensors().items():
        assert torch.allclose(tensor, rough.state.robot.tensors()[name], atol=3e-4), name
    assert not torch.allclose(rough.state.origin[0], rough.state.origin[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_restore_brings_back_the_origins_and_every_bit(backend):
    simulator = made(backend, ball_scene())
    simulator.place(EVERY, ORIGINS)
    simulator.reset(EVERY, {})
    targets = torch.zeros(8, len(simulator.robot.actuators))
    simulator.step(targets, 2)
    saved = simulator.snapshot()
    simulator.step(targets, 3)
    then = simulator.state.clone()
    simulator.place(EVERY, ORIGINS.flip(0))
    simulator.reset(EVERY, {})
    simulator.restore(saved)
    simulator.step(targets, 3)
    assert torch.equal(simulator.state.origin, ORIGINS)
    for name, tensor in then.tensors().items():
        assert torch.equal(tensor, simulator.state.tensors()[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_moves_only_its_own_environments(backend):
    simulator = made(backend, ball_scene())
    simulator.place(EVERY, ORIGINS)
    simulator.reset(EVERY, {})
    before = simulator.state.clone()
    one = torch.arange(8) == 3
    simulator.place(one, ORIGINS.flip(0))
    simulator.reset(one, {})
    assert torch.equal(simulator.state.origin[3], ORIGINS[4])
    rest = ~one
    for name, tensor in before.tensors().items():
        assert torch.equal(tensor[rest], simulator.state.tensors()[name][rest]), name
    assert torch.allclose(simulator.state.robot.base_pos[3], before.robot.base_pos[3], atol=1e-6)


def test_soles_of_small_spheres_are_larger_on_a_terrain_with_the_same_lowest_points():
    robot = load_robot("humanoid")
    lowest = []
    for terrain in (None, TERRAIN):
        model = mjcf.build_model(Scene({"robot": robot}, terrain=terrain, collisions="light"))
        data = mujoco.MjData(model)
        data.qpos[:] = mjcf.home_qpos(robot, model)
        mujoco.mj_kinematics(model, data)
        soles = [g for g in range(model.ngeom) if model.geom_conaffinity[g] & 1 and model.geom_bodyid[g]]
        assert len(soles) == 8
        radii = model.geom_size[soles, 0]
        lowest.append(np.sort(data.geom_xpos[soles, 2] - radii))
        assert radii.tolist() == pytest.approx([0.02 if terrain is None else 0.06 * robot.home_height] * 8)
    assert np.allclose(*lowest, atol=1e-9)
