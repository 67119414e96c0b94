"""Films: which control step a frame shows, what is said in it, and what is drawn."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.errors import ConfigError, MissingError
from robolearn.simulation import film as films
from robolearn.simulation import renderer as renderers
from robolearn.simulation.coarse import coarsen
from robolearn.simulation.film import film, in_words, step_of_frame
from robolearn.simulation.script import Director, Push, Script
from robolearn.simulation.video import headline, parse_size
from robolearn.training.build import make_env
from robolearn.training.runs import zero_policy

SMALL = (128, 96)


@pytest.fixture(scope="module", autouse=True)
def _renderer() -> None:
    try:
        context, _ = renderers.open_context(16, 16)
    except MissingError as error:
        pytest.skip(str(error))
    context.free()


def walker(*settings: str, num_envs: int = 1) -> Env:
    words = ["task=humanoid_walk", "backend=mujoco", "backend.threads=1", "device=cpu", *settings]
    return make_env(config.resolve(words), num_envs=num_envs)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The headlines of each frame, in order; the frame's caption's first line is the first."""
    frames: list[tuple[str, ...]] = []

    def caption(pixels: np.ndarray, lines: list[str]) -> np.ndarray:
        frames.append((lines[0],))
        return pixels.copy()

    def headline(pixels: np.ndarray, line: str, *rest: object, **more: object) -> np.ndarray:
        frames[-1] += (line,)
        return pixels

    monkeypatch.setattr(films, "caption", caption)
    monkeypatch.setattr(films, "headline", headline)
    return frames


@pytest.mark.parametrize(
    ("fps", "dt", "steps"),
    [
        (25, 0.02, [0, 2, 4, 6]),  # every second control step
        (50, 0.02, [0, 1, 2, 3]),
        (100, 0.02, [0, 1, 1, 2]),  # 0, 0.5, 1, 1.5: the nearest
        (30, 0.02, [0, 2, 3, 5]),  # 0, 1.67, 3.33, 5
        (25, 0.01, [0, 4, 8, 12]),
    ],
)
def test_a_frame_shows_the_control_step_nearest_to_its_time(fps: float, dt: float, steps: list[int]) -> None:
    assert [step_of_frame(frame, fps, dt) for frame in range(4)] == steps


def test_frames_at_any_rate_show_the_time_that_they_stand_for(said: list[tuple[str, ...]]) -> None:
    env = walker()
    frames = list(film(env, zero_policy(env), 5, fps=100, size=SMALL))
    assert len(frames) == 5
    assert [line.split(" s")[0] for (line, *_) in said] == ["0.00", "0.02", "0.04"]  # two are shown twice
    assert np.array_equal(frames[1], frames[2])
    assert float(env.state.episode.time[0]) == pytest.approx(0.04)


def test_a_push_is_said_for_a_second_with_the_side_it_comes_from(said: list[tuple[str, ...]]) -> None:
    env = walker("task.pushes.speed=[0,0]", "task.pushes.box=[0,0,0]", "task.moving_starts=0")
    # To the right and ahead: from the back left.
    director = Director(env, Script((), (Push(0.1, 0.5, -45.0),)))
    list(film(env, zero_policy(env), 30, fps=50, size=SMALL, director=director))
    # The push acts in the control step after 0.1 s, which frame 6 is the first to show.
    told = [frame[1:] for frame in said]
    assert told[:6] == [()] * 6
    assert told[6:] == [("pushed 0.50 m/s from the back left",)] * 24
    assert said[6][0].startswith("0.12 s")


def test_a_drawn_push_is_said_too(said: list[tuple[str, ...]]) -> None:
    env = walker("task.pushes.speed=[0.7,0.7]", "task.pushes.box=[0,0,0]", "task.pushes.seconds=[0.05,0.05]")
    list(film(env, zero_policy(env), 6, fps=50, size=SMALL))
    assert [len(frame) for frame in said][:3] == [1, 1, 1]
    assert said[-1][1].startswith("pushed 0.70 m/s from the ")


def test_forces_of_a_script_and_of_a_task_are_said_in_newtons(said: list[tuple[str, ...]]) -> None:
    calm = ["task.pushes.speed=[0,0]", "task.pushes.box=[0,0,0]", "task.pushes.turn=[0,0,0]"]
    env = walker(*calm, "task.moving_starts=0")
    script = Script((), (Push(0.04, 0.0, 90.0, force=60.0), Push(0.08, 0.5, 90.0, force=60.0)))
    list(film(env, zero_policy(env), 6, fps=50, size=SMALL, director=Director(env, script)))
    assert [frame[1:] for frame in said[2:]] == [
        (),
        ("pushed 60 N from the right",),
        ("pushed 60 N from the right",),
        ("pushed 0.50 m/s and 120 N from the right",),  # the first still acts
    ]
    said.clear()
    env = walker(*calm, "task.pushes.force=[70,70]", "task.pushes.seconds=[0.05,0.05]")
    list(film(env, zero_policy(env), 4, fps=50, size=SMALL))
    assert said[-1][1].startswith("pushed 70 N from the ")


def test_a_fall_and_a_time_out_are_told_apart(said: list[tuple[str, ...]]) -> None:
    calm = ["task.pushes.speed=[0,0]", "task.pushes.box=[0,0,0]"]
    # A base that leans at all, or is lower than at home, has fallen: in the first control step.
    env = walker(*calm, "task.terminations.fallen.height=1", "task.terminations.fallen.upright=1")
    list(film(env, zero_policy(env), 3, fps=50, size=SMALL))
    assert [frame[1:] for frame in said] == [
        (),
        ("fell after 0.0 s: episode 2",),
        ("fell after 0.0 s: episode 3",),
    ]
    said.clear()
    env = walker(*calm, "task.episode_length_s=0.04")
    list(film(env, zero_policy(env), 3, fps=50, size=SMALL, title="a title"))
    assert [frame[1:] for frame in said] == [("a title",), ("a title",), ("a title", "time is up: episode 2")]


def test_a_robot_that_leaves_its_tile_before_its_time_is_up_has_left_its_tile(said, monkeypatch) -> None:
    words = [
        "task=humanoid_rough",
        "task.terrain.rows=1",
        "task.terrain.columns=1",
        "task.terrain.kinds={rough: 1}",
    ]
    env = make_env(config.resolve([*words, "backend=mujoco", "backend.threads=1", "device=cpu"]), num_envs=1)
    monkeypatch.setattr(type(env._tiles), "left", lambda self, state, timed_out: torch.ones_like(timed_out))
    list(film(env, zero_policy(env), 2, fps=50, size=SMALL))
    assert said[1][1:] == ("left its tile: episode 2",)


def test_another_environment_than_the_first_can_be_filmed() -> None:
    def last(index: int) -> np.ndarray:
        env = walker(num_envs=2)
        return list(film(env, zero_policy(env), 3, size=SMALL, index=index))[-1]

    assert np.array_equal(last(1), last(1))
    assert not np.array_equal(last(0), last(1))


def test_each_episode_is_seen_from_the_front_left_of_the_robot() -> None:
    env = walker("task.moving_starts=0")
    with renderers.Renderer(env.scene, *SMALL) as drawing:
        camera = drawing.model.camera("track").id
        for quarter in range(4):
            heading = quarter * np.pi / 2
            state = env.backend.state
            state.robot.base_quat[0] = torch.tensor([np.cos(heading / 2), 0, 0, np.sin(heading / 2)])
            drawing.face(heading)
            drawing.draw(state)
            to_eye = drawing.data.cam_xpos[camera] - drawing.data.body(env.robot.base).xpos
            ahead = np.array([np.cos(heading), np.sin(heading), 0])
            left = np.array([-np.sin(heading), np.cos(heading), 0])
            # 0.75 ahead for 0.62 to the left, see visuals.py; the camera follows the centre of mass.
            assert to_eye @ left / (to_eye @ ahead) == pytest.approx(0.62 / 0.75, abs=0.05)


def test_an_arrow_of_a_push_ends_at_the_base_and_points_as_it_pushes() -> None:
    env = walker()
    with renderers.Renderer(env.scene, *SMALL) as drawing:
        drawing.draw(env.backend.state)
        before = drawing.scene.ngeom
        drawing.draw(env.backend.state, push=np.array([0.0, -2.0, 0.0]))
        assert drawing.scene.ngeom == before + 1
        arrow = drawing.scene.geoms[before]
        assert arrow.type == mujoco.mjtGeom.mjGEOM_ARROW.value
        base = env.backend.state.robot.base_pos[0].numpy()
        assert arrow.mat[:, 2] == pytest.approx([0, -1, 0], abs=1e-6)
        assert arrow.pos[1] > base[1]  # it begins on the side that the push comes from
        assert arrow.pos[[0, 2]] == pytest.approx(base[[0, 2]], abs=1e-5)


def test_coarse_meshes_keep_their_shape_within_a_cell_and_lose_triangles() -> None:
    # A unit square of 10 x 10 cells of 0.1 m, as 200 triangles, folded so that it has a volume.
    xs = np.linspace(0, 1, 11)
    points = [(x, y, x * y) for y in xs for x in xs]
    faces = []
    for j in range(10):
        for i in range(10):
            a = 11 * j + i
            faces += [(a, a + 1, a + 12), (a, a + 12, a + 11)]
    spec = mujoco.MjSpec()
    mesh = spec.add_mesh(name="sheet", uservert=np.ravel(points), userface=np.ravel(faces))
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="sheet")
    model = spec.compile()
    vertices = model.mesh_vert.copy()
    coarsen(model, 0.25)
    count = int(model.mesh_facenum[0])
    assert 8 <= count < 100
    left = model.mesh_face[:count]
    assert len({tuple(sorted(face)) for face in left.tolist()}) == count
    assert all(len(set(face)) == 3 for face in left.tolist())
    assert np.array_equal(model.mesh_vert, vertices)  # no vertex moves
    # Every vertex has one within the diagonal of a cell that is still used.
    used = vertices[np.unique(left)]
    assert np.linalg.norm(vertices[:, None] - used, axis=2).min(axis=1).max() <= 0.25 * 3**0.5
    fine = spec.compile()
    coarsen(fine, 1e-4)
    assert int(fine.mesh_facenum[0]) == 200
    assert np.array_equal(fine.mesh_face, spec.compile().mesh_face)


def test_commands_in_words() -> None:
    assert in_words(np.array([0.0, 0.0, 0.0])) == "stand"
    assert in_words(np.array([0.5, 0.0, -0.3])) == "forward, turn right"
    assert in_words(np.array([-0.5, 0.2, 0.0])) == "back, sideways to the left"


def test_a_headline_changes_only_the_upper_left_corner() -> None:
    plain = np.full((192, 320, 3), 200, np.uint8)
    written = headline(plain, "fell", (255, 0, 0))
    assert (written[40:] == 200).all()
    assert (written[:, 160:] == 200).all()
    assert (written[5:20, 5:40] < 200).any()
    assert (plain == 200).all()


@pytest.mark.parametrize("text", ["640", "640x", "x480", "640x480x3", "-2x480", "641x480", "8x8", "6e2x480"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        parse_size(text)
    assert parse_size("1280X720") == (1280, 720)
