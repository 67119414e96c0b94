"""Two ants in a ring: they touch, who leaves the ring or is turned over has lost, and both seats are alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.envs import mjcf
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.scene import ROBOT
from robolearn.envs.state import InitialState, quat_rotate
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.task import Ratio
from robolearn.tasks.sumo import OPPONENT, PLACE, SEEN, Sumo, approach, drive, touched
from robolearn.training.build import build_env, make_robot, make_scene

AHEAD, BACK, TURNED = (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), (0.0, 1.0, 0.0, 0.0)
"""Orientations wxyz: facing along x, facing against it, and lying on the back."""


@pytest.fixture
def env() -> Iterator[Env]:
    made = build_env(config.resolve(["task=sumo", "torch_threads=1"]), 4)
    yield made
    made.close()


@dataclass
class Peeping(Sumo):
    observations: ClassVar[dict] = {
        "policy": (Observation("joints", lambda s, c: s.entities[OPPONENT].joint_pos, "joints"),),
        "critic": Sumo.observations["critic"],
    }


def start(
    env: Env,
    first: tuple[float, ...],
    second: tuple[float, ...],
    speed: float = 0.0,
    **quats: tuple[float, ...],
) -> None:
    """Place the ants of all worlds in their home pose at these (x, y), facing each other along x; the first one moves
    ahead at a speed [m/s]."""
    n, home = env.num_envs, env.ctx.robot

    def ant(place: tuple[float, ...], quat: tuple[float, ...], ahead: float) -> InitialState:
        pos = torch.tensor([*place, home.spec.home_height]).repeat(n, 1)
        made = InitialState.at_rest(pos, torch.tensor(quat).repeat(n, 1), home.home.repeat(n, 1))
        made.base_lin_vel[:, 0] = ahead
        return made

    initial = {
        ROBOT: ant(first, quats.get("mine", AHEAD), speed),
        OPPONENT: ant(second, quats.get("theirs", BACK), 0.0),
    }
    env.backend.reset(torch.ones(n, dtype=torch.bool), initial)


def still(env: Env) -> torch.Tensor:
    return torch.zeros(env.num_envs, 8)


def test_an_ant_that_runs_into_the_other_one_moves_it_and_feels_the_opposite_force(env):
    places = []
    for speed in (0.0, 3.0):
        start(env, (-0.4, 0.0), (0.4, 0.0), speed)
        felt = torch.zeros(8)
        for _ in range(25):
            env.step(still(env))
            force = touched(env.backend.state)
            felt = torch.maximum(felt, force.norm(dim=1))
            assert torch.allclose(force[::2], -force[1::2], atol=1e-3)
        places.append(env.backend.state.entities[OPPONENT].base_pos[0, 0].item())
        assert (felt > 1.0).all() == (speed > 0)
    assert places[0] == pytest.approx(0.4, abs=0.02)
    assert places[1] > 0.45


@pytest.mark.parametrize(
    ("first", "second", "quats", "won"),
    [
        ((1.6, 0.0), (0.0, 0.0), {}, (0.0, 1.0)),  # the ring's radius is 1.5 m
        ((0.0, 0.0), (0.0, -1.6), {}, (1.0, 0.0)),
        ((1.6, 0.0), (-1.6, 0.0), {}, (0.5, 0.5)),  # both at once
        ((0.0, 0.0), (0.6, 0.0), {"theirs": TURNED}, (1.0, 0.0)),
    ],
)
def test_who_is_outside_or_turned_over_has_lost_and_the_bout_ends_for_both(env, first, second, quats, won):
    start(env, first, second, **quats)
    state, ctx = env.backend.state, env.ctx
    found = env.task.metrics(state, ctx)["won"]
    assert isinstance(found, Ratio)
    assert found.weight.tolist() == [1.0] * 8
    assert found.total.tolist() == [*won] * 4
    assert env.task.outcome(state, ctx)[:2].tolist() == [(2 * x - 1) * 50 for x in won]  # over 0.02 s
    result = env.step(still(env))
    assert result.terminated.all()
    assert not result.truncated.any()
    assert result.metrics["won"].total.tolist() == [*won] * 4


def test_out_of_time_it_is_a_draw_and_before_it_does_not_count():
    env = build_env(config.resolve(["task=sumo", "task.episode_length_s=0.1", "torch_threads=1"]), 2)
    env.reset()
    for k in range(5):  # 0.1 s are 5 steps
        result = env.step(still(env))
        won = result.metrics["won"]
        assert won.weight.tolist() == [float(k == 4)] * 4
        assert won.total.tolist() == [0.5 * (k == 4)] * 4
    assert result.truncated.all()
    env.close()


def test_the_rewards_for_the_outcome_and_the_drive_are_of_zero_sum(env):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        env.step(torch.randn(8, 8, generator=generator))
    state, ctx = env.backend.state, env.ctx
    driven = drive(state, ctx).view(4, 2)
    assert (driven[:, 0] != 0).all()
    assert torch.allclose(driven.sum(dim=1), torch.zeros(4), atol=1e-5)
    assert torch.equal(env.task.outcome(state, ctx).view(4, 2).sum(dim=1), torch.zeros(4))


def test_speeds_and_sensors_of_ants_placed_by_hand(env):
    start(env, (-0.5, 0.0), (0.7, 0.0), speed=2.0)
    state, ctx = env.backend.state, env.ctx
    # The first one moves to the centre, at 2 m/s: inward by 2, and toward the opponent by 2.
    assert drive(state, ctx)[:2].tolist() == pytest.approx([2.0, -2.0], abs=1e-5)
    assert approach(state, ctx)[:2].tolist() == pytest.approx([2.0, 0.0], abs=1e-5)
    # Each has the opponent 1.2 m ahead and face to face; the first one comes at the second at 2 m/s.
    assert SEEN(state)[0].tolist() == pytest.approx([1.2, 0, 0, 0, 0, 0, -1, 0, 0], abs=1e-5)
    assert SEEN(state)[1].tolist() == pytest.approx([1.2, 0, 0, -2, 0, 0, -1, 0, 0], abs=1e-5)
    # The centre is on the floor, 0.28 m below a torso.
    assert PLACE(state)[0].tolist() == pytest.approx([0.5, 0, -0.28, 2, 0, 0], abs=1e-5)
    assert PLACE(state)[1].tolist() == pytest.approx([0.7, 0, -0.28, 0, 0, 0], abs=1e-5)


def test_both_seats_see_the_same_where_the_ants_have_changed_places(env):
    start(env, (-0.5, 0.1), (0.7, -0.2), speed=1.0)
    state, ctx = env.backend.state, env.ctx
    first = torch.cat([item.compute(state, ctx) for item in env.task.items("critic")], dim=1).clone()
    n = env.num_envs
    entities = {
        name: InitialState(
            **{field: getattr(state.entities[name], field)[::2].repeat_interleave(2, 0) for field in
               ("base_pos", "base_quat", "base_lin_vel", "base_ang_vel", "joint_pos", "joint_vel")}
        )
        for name in (ROBOT, OPPONENT)
    }  # fmt: skip
    env.backend.reset(torch.ones(n, dtype=torch.bool), {ROBOT: entities[OPPONENT], OPPONENT: entities[ROBOT]})
    swapped = torch.cat([item.compute(state, ctx) for item in env.task.items("critic")], dim=1)
    assert torch.allclose(first[0::2], swapped[1::2], atol=1e-5)
    assert torch.allclose(first[1::2], swapped[0::2], atol=1e-5)
    assert not torch.allclose(first[0], first[1], atol=0.1)


def test_a_bout_starts_in_any_direction_with_the_ants_apart_and_face_to_face():
    env = build_env(config.resolve(["task=sumo", "torch_threads=1"]), 256)
    robot, other = (env.backend.state.entities[name] for name in (ROBOT, OPPONENT))
    way = other.base_pos - robot.base_pos
    distance = way[:, :2].norm(dim=1)
    assert distance.min() >= 0.9 - 1e-4
    assert distance.max() <= 1.3 + 1e-4
    ahead = torch.tensor((1.0, 0.0, 0.0)).expand_as(way)
    faces = (quat_rotate(robot.base_quat, ahead) * way).sum(dim=1) / way.norm(dim=1)
    assert faces.min() > 0.9
    quadrant = (way[::2, 0] > 0).long() + 2 * (way[::2, 1] > 0).long()
    assert torch.bincount(quadrant, minlength=4).min() > 256 / 8
    env.close()


def test_an_observation_of_what_the_opponent_alone_measures_is_refused_by_name():
    run = config.resolve(["task=sumo"])
    robot, task = make_robot(run), Peeping()
    backend = MujocoBackend(task.scene(robot), 1)
    with pytest.raises(ConfigError, match="opponent/joint_pos"):
        Env(task, robot, backend)
    backend.close()


def test_the_ring_is_drawn_at_its_radius_and_changes_no_physics():
    run = config.resolve(["task=sumo", "task.ring=2.0"])
    scene = make_scene(run, make_robot(run))
    plain, shown = (mjcf.build_model(scene, visual=visual) for visual in (False, True))
    parts = [i for i in range(shown.ngeom) if shown.geom_bodyid[i] == 0 and shown.geom(i).name != "floor"]
    assert len(parts) >= 36
    assert np.linalg.norm(shown.geom_pos[parts, :2], axis=1) == pytest.approx(np.full(len(parts), 2.0))
    assert not (shown.geom_contype[parts] | shown.geom_conaffinity[parts]).any()
    colors = [shown.material(f"{prefix}accent").rgba for prefix in ("", "opponent/")]
    assert not np.allclose(*colors)
    both = []
    for model in (plain, shown):
        data = mujoco.MjData(model)
        data.qpos[:] = mjcf.home_qpos(scene, model)
        root = mjcf.root_joint(scene, OPPONENT, model).qposadr[0]
        data.qpos[root] = 0.5
        mujoco.mj_step(model, data, 100)
        both.append(data.qpos.copy())
    np.testing.assert_array_equal(*both)
    camera = shown.camera("track")
    assert int(camera.bodyid[0]) == 0  # it stays where it is


@pytest.mark.parametrize("distance", [(1.3, 0.9), (0.9, 3.0)])
def test_starts_that_are_no_range_within_the_ring_are_refused_by_name(distance):
    with pytest.raises(ValueError, match="start_distance"):
        Sumo(start_distance=distance).validate()
