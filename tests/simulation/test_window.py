"""The part of a terrain that is drawn around a robot."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robolearn.config.run_config import resolve
from robolearn.envs import mjcf
from robolearn.envs.terrain import Ground, Terrain
from robolearn.simulation.window import Window
from robolearn.training.build import make_robot, make_scene

KINDS = "task.terrain={rows: 5, columns: 4, kinds: {stairs_up: 1, rough: 1, slope_down: 2}}"


@pytest.fixture(scope="module")
def drawn() -> tuple[mujoco.MjModel, Terrain]:
    run = resolve(["task=humanoid_rough", KINDS])
    scene = make_scene(run, make_robot(run))
    assert scene.terrain is not None
    return mjcf.build_model(scene, "mujoco", visual=True), scene.terrain


def surface(model: mujoco.MjModel, x: float, y: float) -> float:
    """Height of the floor below a place, -inf where there is none."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    floor = model.geom("floor").id
    above = np.array([x, y, 50.0])
    far = mujoco.mj_rayHfield(model, data, floor, above, np.array([0.0, 0.0, -1.0]), None)
    return 50.0 - far if far >= 0 else -np.inf


# The grid is 48 x 40 m with its borders: the middle, an edge, a corner, and a place far outside.
@pytest.mark.parametrize("place", [(0.0, 0.0), (3.7, -9.2), (23.0, 19.0), (-90.0, 70.0)])
def test_the_ground_around_the_place_is_that_of_the_whole_terrain(drawn, place) -> None:
    model, terrain = drawn
    heights = terrain.heights
    window = Window(model, heights)
    window.follow(np.array(place))
    reach = np.array(heights.reach)
    near = np.clip(np.array(place), -reach, reach)
    seen = 0
    for dx, dy in np.random.default_rng(0).uniform(-8, 8, (20, 2)):
        x, y = near[0] + dx, near[1] + dy
        if abs(x) > reach[0] - 0.1 or abs(y) > reach[1] - 0.1:
            continue
        seen += 1
        true = Ground.of(heights, torch.device("cpu")).height(torch.tensor([[x, y]]), torch.zeros(1, 3))
        assert surface(model, x, y) == pytest.approx(float(true), abs=1e-5)
    assert seen >= 4


def test_what_is_drawn_is_a_square_of_24_metres_that_moves_by_4_at_once(drawn) -> None:
    model, terrain = drawn
    window = Window(model, terrain.heights)
    assert (model.hfield_nrow[0], model.hfield_ncol[0]) == (241, 241)
    assert model.hfield_size[0, :2].tolist() == [12, 12]
    assert surface(model, 15.0, 0.0) == -np.inf
    assert not window.follow(np.array([0.5, -0.5]))
    assert window.follow(np.array([4.5, 0.0]))
    assert surface(model, 15.0, 0.0) > -np.inf
    assert surface(model, -10.0, 0.0) == -np.inf


def test_a_robot_that_has_diverged_leaves_the_square_where_it_is(drawn) -> None:
    model, terrain = drawn
    window = Window(model, terrain.heights)
    assert not window.follow(np.array([np.nan, 0.0]))
    assert not window.follow(np.array([0.0, np.inf]))
    assert surface(model, 0.0, 0.0) > -np.inf
