"""Terrains: heights of each kind by hand, seeds, shares of columns, and what is refused."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.envs.backend import asked_features
from robolearn.envs.scene import Object, Ring, Scene
from robolearn.envs.terrain import Ground, Terrain
from robolearn.envs.terrain.kinds import KINDS
from robolearn.envs.terrain.settings import RANGES
from robolearn.errors import ConfigError
from tests.factories import load_robot

CPU = torch.device("cpu")


def one(kind: str, **settings) -> np.ndarray:
    """Heights of one tile of a kind, 8 m wide with samples 0.1 m apart: (81, 81), without the border of 1 m."""
    terrain = Terrain(rows=1, columns=1, kinds={kind: 1.0}, border=1.0, **settings)
    assert terrain.heights.z.shape == (101, 101)
    return terrain.heights.z[10:-10, 10:-10]


def profile(kind: str, **settings) -> list[float]:
    """Heights [m] along x from the middle of such a tile to its end: samples 0 to 40."""
    return np.round(one(kind, **settings)[40, 40:].astype(float), 5).tolist()


def test_stairs_down_fall_by_a_step_every_three_samples_from_the_edge_of_the_platform():
    heights = profile("stairs_down", step_height=(0.1, 0.1), step_width=0.3, platform=2.0, edge=0.2)
    # The platform ends at sample 10, the flat edge begins at 38: 28 samples hold 9 steps of 3.
    assert heights[:11] == [0.9] * 11
    assert heights[11:14] == [0.8] * 3
    assert heights[14:17] == [0.7] * 3
    assert heights[35:38] == [0.0] * 3
    assert heights[38:] == [0.0] * 3


def test_stairs_up_are_stairs_down_turned_over_and_the_same_on_every_side():
    up, down = one("stairs_up", step_height=(0.1, 0.1)), one("stairs_down", step_height=(0.1, 0.1))
    assert np.allclose(up, -down, atol=1e-6)
    assert np.array_equal(up, up.T)
    assert np.array_equal(up, up[::-1])
    # A corner of the square around the middle has the height of its sides.
    assert up[40 + 12, 40 + 12] == up[40, 40 + 12] == pytest.approx(-0.8)


def test_a_slope_rises_by_its_tangent():
    heights = profile("slope_up", slope=(45.0, 45.0), platform=2.0, edge=0.2)
    assert heights[10] == pytest.approx(-2.8)
    assert heights[20] == pytest.approx(-1.8)
    assert heights[38] == heights[40] == 0.0


def test_gaps_lie_between_ledges_of_level_ground():
    heights = profile("gaps", gap=(0.3, 0.3), ledge=0.5, pit_depth=1.0, platform=2.0)
    assert heights[:16] == [0.0] * 16  # the platform to 10, and a ledge of 5 samples
    assert heights[16:19] == [-1.0] * 3
    assert heights[19:24] == [0.0] * 5
    assert heights[24:27] == [-1.0] * 3


def test_stepping_stones_are_level_squares_in_a_pit():
    tile = one(
        "stepping_stones", gap=(0.2, 0.2), stone_width=(0.4, 0.4), stone_offset=(0.0, 0.0), pit_depth=0.5
    )
    # A stone is 4 samples wide and lies around the middle: -2 to 1; the next ones 6 samples on: 10 to 13, 16 to 19.
    row = tile[40, 40:]
    assert row[10:14].tolist() == [0.0] * 4
    assert row[14:16].tolist() == [-0.5] * 2
    assert row[16:20].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("rough", 0.0, 0.08), ("boxes", -0.08, 0.08), ("flat", 0.0, 0.0)]
)
def test_random_kinds_stay_within_their_heights_and_are_flat_in_the_middle_and_at_the_edge(kind, low, high):
    tile = one(kind, roughness=(0.08, 0.08), box_height=(0.08, 0.08))
    assert low - 1e-6 <= tile.min()
    assert tile.max() <= high + 1e-6
    assert np.abs(tile[30:51, 30:51]).max() < 1e-6
    for side in (tile[0], tile[-1], tile[:, 0], tile[:, -1]):
        assert np.abs(side).max() < 1e-6
    if high:
        assert np.ptp(tile) > 0.6 * (high - low)


def test_a_block_is_level():
    tile = one("boxes", box_width=0.5, box_height=(0.1, 0.1))
    assert np.ptp(tile[5:10, 5:10]) == 0.0


def test_difficulty_rises_from_the_first_row_to_the_last():
    terrain = Terrain(rows=3, columns=1, kinds={"stairs_up": 1}, step_height=(0.05, 0.15), border=1.0)
    # 9 steps up from the middle of each tile.
    assert terrain.heights.origins[:, 0, 2].tolist() == pytest.approx([-0.45, -0.9, -1.35])
    assert terrain.heights.origins[:, 0, 0].tolist() == [-8.0, 0.0, 8.0]
    assert [terrain.difficulty_of(row) for row in range(3)] == [0.0, 0.5, 1.0]
    assert replace(terrain, difficulty=(0.5, 1.0)).difficulty_of(0) == 0.5


def test_the_same_seed_gives_the_same_terrain_and_another_seed_another():
    small = Terrain(rows=2, columns=2, kinds={"rough": 1, "boxes": 1}, border=1.0)
    again = Terrain(rows=2, columns=2, kinds={"rough": 1, "boxes": 1}, border=1.0)
    other = replace(small, seed=1)
    assert np.array_equal(small.heights.z, again.heights.z)
    assert not np.array_equal(small.heights.z, other.heights.z)


def test_columns_follow_the_shares():
    terrain = Terrain(columns=4, kinds={"flat": 1, "stairs_up": 2, "rough": 1, "gaps": 0})
    assert terrain.kind_of == ("flat", "stairs_up", "stairs_up", "rough")


@pytest.mark.parametrize(
    ("settings", "offender"),
    [
        ({"kinds": {"stairs": 1}}, "stairs"),
        ({"kinds": {"rough": 0}}, "kinds"),
        ({"kinds": {"rough": -1}}, "kinds.rough"),
        ({"size": 8.05}, "terrain.size"),
        ({"platform": 7.9}, "platform"),
        ({"start_level": 10}, "start_level"),
        ({"resolution": 0.01}, "samples"),
    ],
)
def test_settings_that_make_no_terrain_are_refused_by_name(settings, offender):
    with pytest.raises(ConfigError, match=offender):
        Terrain(**settings)


@pytest.mark.parametrize(
    ("name", "value", "kind", "nearest"),
    [
        ("step_width", 0.25, "stairs_up", "0.2"),
        ("box_width", 0.37, "boxes", "0.4"),
        ("bump_width", 0.04, "rough", "0.1"),
        ("ledge", 0.66, "gaps", "0.7"),
        ("gap", (0.28, 0.28), "gaps", "[0.3,0.3]"),
        ("stone_width", (0.42, 0.42), "stepping_stones", "[0.4,0.4]"),
        ("edge", 0.17, "flat", "0.2"),
        ("platform", 1.95, "flat", "2"),  # half of it is on either side of the middle
    ],
)
def test_a_width_that_is_no_whole_number_of_samples_is_refused_by_name(name, value, kind, nearest):
    with pytest.raises(ConfigError, match=rf"^terrain\.{name}=") as refused:
        Terrain(kinds={kind: 1}, **{name: value})
    assert str(refused.value).endswith(f" task.terrain.{name}={nearest}")


def test_all_widths_that_do_not_fit_a_resolution_are_named_at_once():
    with pytest.raises(ConfigError) as refused:
        Terrain(kinds={"boxes": 1, "stairs_up": 1}, resolution=0.2, step_width=0.65)
    # 0.5 m is 2.5 samples of 0.2 m, near 2, and 0.65 m is 3.25, near 3.
    assert str(refused.value).endswith(" task.terrain.box_width=0.4 task.terrain.step_width=0.6")


def test_a_gap_that_no_row_has_needs_no_room():
    # Of 23 samples from the middle to the end the platform has 10 and the flat edge 2: a ledge of 7 and a gap of 1 fit,
    # and one of 4 does not.
    assert Terrain(kinds={"gaps": 1}, size=4.6, difficulty=(0.0, 0.0)).kind_of[0] == "gaps"
    with pytest.raises(ConfigError, match="gap"):
        Terrain(kinds={"gaps": 1}, size=4.6)


def test_a_width_that_no_kind_of_the_terrain_has_may_be_any():
    assert Terrain(kinds={"slope_up": 1}, step_width=0.25, box_width=0.37).kind_of[0] == "slope_up"


@pytest.mark.parametrize("kind", ["stairs_up", "stairs_down"])
def test_stairs_without_room_for_one_step_are_refused_and_with_it_have_one(kind):
    # Of 14 samples from the middle to the end the platform has 10 and the flat edge 2: 2 are left, and a step takes 3.
    with pytest.raises(ConfigError, match=rf"^terrain\.size=2\.8 has no room for a step of {kind}, "):
        Terrain(kinds={kind: 1}, size=2.8)
    one_step = Terrain(kinds={kind: 1}, rows=1, columns=1, size=3.0, step_height=(0.15, 0.15))
    assert np.ptp(one_step.heights.z) == pytest.approx(0.15)


def test_gaps_without_room_for_a_ledge_and_a_gap_are_refused():
    # From the platform's end at sample 10 a ledge takes 7 and the gap of the last row 4: the flat edge begins at 22.
    with pytest.raises(ConfigError, match=r"^terrain\.size=4\.6 has no room for a gap, terrain\.ledge=0\.7 "):
        Terrain(kinds={"gaps": 1}, size=4.6)
    last = Terrain(kinds={"gaps": 1}, rows=1, columns=1, size=4.8, border=1.0).heights.z[34, 34:]
    # The border of 10 samples, and 24 to the middle.
    assert np.flatnonzero(last < -0.5).tolist() == [18, 19, 20, 21]


def test_stones_without_room_for_a_gap_between_them_are_refused():
    # A stone of 10 m on a tile of 8 m leaves no pit; one of 0.9 m does in each row.
    with pytest.raises(ConfigError, match=r"^terrain\.size=8 has no room for a gap between stones "):
        Terrain(kinds={"stepping_stones": 1}, stone_width=(0.9, 10.0))
    assert Terrain(kinds={"stepping_stones": 1}, stone_width=(0.9, 0.9)).kind_of[0] == "stepping_stones"


def test_a_gap_of_nothing_is_no_gap():
    assert profile("gaps", gap=(0.0, 0.0)) == [0.0] * 41
    stones = one("stepping_stones", gap=(0.0, 0.0), stone_width=(0.4, 0.4), stone_offset=(0.0, 0.0))
    assert not stones.any()


def test_gaps_and_stones_that_change_from_row_to_row_are_stated_as_wide_as_they_were_made():
    # A difficulty of 0.25 makes gaps of 0.175 and stones of 0.775 m: 2 and 8 samples.
    terrain = Terrain(rows=2, columns=1, kinds={"stepping_stones": 1}, difficulty=(0.25, 1.0))
    assert terrain.stated()["stepping_stones"]["gap"] == [0.2, 0.4]
    assert terrain.stated()["stepping_stones"]["stone_width"] == [0.8, 0.4]
    first = Terrain(rows=1, columns=1, kinds={"gaps": 1}, difficulty=(0.25, 0.25), border=1.0).heights.z[
        50, 50:
    ]
    assert np.flatnonzero(first < -0.5).tolist()[:4] == [18, 19, 27, 28]  # 7 samples of ledge between two


def test_a_stated_kind_without_a_column_is_refused_and_of_the_mixture_few_columns_leave_some_out():
    # The middle of the one of two columns is at 0.25 of all shares, that of the other at 0.75.
    line = (
        r"^terrain\.kinds\.flat=0\.2 is the share of none of 2 columns; use task\.terrain\.columns=3, or 0$"
    )
    with pytest.raises(ConfigError, match=line):
        Terrain(columns=2, kinds={"flat": 0.2, "rough": 0.8})
    assert Terrain(columns=3, kinds={"flat": 0.2, "rough": 0.8}).kind_of == ("flat", "rough", "rough")
    with pytest.raises(ConfigError, match=r"terrain\.kinds\.flat=0\.001 .*; give it a larger share, or 0$"):
        Terrain(columns=2, kinds={"flat": 0.001, "rough": 1})
    assert Terrain(columns=2, kinds={"flat": 0, "rough": 0.8}).kind_of == ("rough", "rough")
    assert Terrain(columns=2).kind_of == ("slope_up", "stairs_up")


def test_terrain_is_set_from_the_command_line():
    run = config.resolve(
        ["task=humanoid_rough", "task.terrain.rows=3", "task.terrain.kinds={stairs_up: 0.5, rough: 0.5}"]
    )
    assert run.task.terrain.rows == 3
    assert set(run.task.terrain.kind_of) == {"stairs_up", "rough"}
    with pytest.raises(ConfigError, match="stairs_upp"):
        config.resolve(["task=humanoid_rough", "task.terrain.kinds={stairs_upp: 1}"])


def test_a_scene_with_level_ground_alone_keeps_the_plane():
    robot = load_robot("humanoid")
    assert Scene({"robot": robot}, terrain=Terrain(kinds={"flat": 1})).terrain is None
    assert asked_features(Scene({"robot": robot}, terrain=Terrain())) == {"terrain": "terrain"}


@pytest.mark.parametrize("also", [{"ring": Ring(1.0)}, {"floor": False}])
def test_terrain_is_refused_with_what_does_not_move(also):
    with pytest.raises(ConfigError, match="terrain"):
        Scene({"robot": load_robot("humanoid")}, terrain=Terrain(), **also)


def test_terrain_is_refused_with_a_fixed_object():
    post = Object("box", (0.1, 0.1, 1.0), fixed=True)
    with pytest.raises(ConfigError, match="post"):
        Scene({"robot": load_robot("humanoid"), "post": post}, terrain=Terrain())


@pytest.mark.parametrize("backend", ["differentiable", "isaaclab"])
def test_backends_without_terrain_say_so(backend):
    from robolearn.envs.backend import require_features
    from robolearn.envs.differentiable.backend import DifferentiableBackend
    from robolearn.envs.isaaclab.backend import IsaacLabBackend

    kinds = {"differentiable": DifferentiableBackend, "isaaclab": IsaacLabBackend}
    scene = Scene({"robot": load_robot("humanoid")}, terrain=Terrain())
    with pytest.raises(ConfigError, match="terrain"):
        require_features(scene, backend, kinds[backend].features)


def test_ground_interpolates_in_the_triangle_below_or_above_the_diagonal():
    terrain = Terrain(rows=1, columns=1, kinds={"rough": 1}, border=1.0)
    heights = terrain.heights
    ground, origin, z = Ground(heights, CPU), torch.zeros(1, 3), heights.z
    # In the cell of samples (70, 80) and (71, 81), at a quarter and three quarters; x counts columns, y rows.
    x, y = 0.1 * (70.25 - 50), 0.1 * (80.75 - 50)
    low, high, side = z[80, 70], z[81, 71], z[81, 70]
    expected = low + 0.75 * (side - low) + 0.25 * (high - side)
    assert ground.height(torch.tensor([[x, y]]), origin).item() == pytest.approx(float(expected), abs=1e-6)


def test_a_surface_is_made_once_and_kept_as_long_as_its_heights_are():
    def terrain(seed: int) -> Terrain:
        return Terrain(rows=1, columns=1, kinds={"rough": 1}, border=1.0, seed=seed)

    first, others = terrain(0), [terrain(seed) for seed in range(1, 8)]
    surface = Ground.of(first.heights, CPU)
    made = [weakref.ref(Ground.of(each.heights, CPU)) for each in others]
    assert Ground.of(first.heights, CPU) is surface
    assert all(each() is not None for each in made)
    del others
    gc.collect()
    assert [each() for each in made] == [None] * 7


def test_ground_is_relative_to_the_origins_and_level_beyond_the_ends():
    terrain = Terrain(rows=2, columns=1, kinds={"stairs_up": 1}, step_height=(0.1, 0.2), border=1.0)
    ground, origins = Ground(terrain.heights, CPU), torch.tensor(terrain.heights.origins[:, 0])
    here = torch.zeros(2, 3, 2)
    here[:, 1, 0], here[:, 2, 1] = 1.15, 50.0
    found = ground.height(here, origins)
    # The middle of each tile, the first step along x, and the border around the pits of 9 steps.
    assert found[0].tolist() == pytest.approx([0.0, 0.1, 0.9], abs=1e-5)
    assert found[1].tolist() == pytest.approx([0.0, 0.2, 1.8], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stated_of_a_kind_is_all_that_shapes_it(kind):
    """A setting that is stated of a kind changes its heights, and no other does."""
    names = {name for of_kind in RANGES.values() for name in of_kind}
    settings = Terrain(rows=2, columns=1, kinds={kind: 1.0}, border=1.0)
    for name in names:
        value = getattr(settings, name)
        more = tuple(2 * x + 0.1 for x in value) if isinstance(value, tuple) else 2 * value
        changed = replace(settings, **{name: more})
        span, same = changed.heights.span, settings.heights.span
        differs = span != same or not np.array_equal(changed.heights.unit, settings.heights.unit)
        assert differs == (name in settings.stated()[kind]), name
