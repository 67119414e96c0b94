"""Tiles of a terrain in an Env: levels, origins, ends of episodes, snapshots, the height scan, an export's checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.core.measurable import reads
from robolearn.core.shards import Shards
from robolearn.core.tiles import COLUMN, ROW, Tiles
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.terrain import Terrain
from robolearn.errors import ConfigError
from robolearn.export.bundle import conditions
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.height_scan import HeightScan
from robolearn.tasks.mdp.sensing import noisy
from robolearn.tasks.stand import Stand
from robolearn.tasks.velocity_rough import ASKED
from robolearn.training.active import active
from robolearn.training.build import build_env
from tests.factories import load_robot
from tests.no_sync import no_host_sync

CPU = torch.device("cpu")
SMALL = ["task.terrain.rows=3", "task.terrain.columns=2", "task.terrain.kinds={stairs_up: 1, rough: 1}"]


def rough(*changes: str, num_envs: int = 6, training: bool = True):
    run = config.resolve(
        ["task=humanoid_rough", "backend=mujoco", "device=cpu", "backend.threads=1", *SMALL, *changes]
    )
    return build_env(run, num_envs, training=training)


class Placed:
    """Notes where environments are placed."""

    def place(self, mask, origins):
        self.mask, self.origins = mask, origins.clone()


def test_levels_rise_and_fall_within_the_rows_and_a_random_row_follows_the_last():
    terrain = Terrain(rows=3, columns=2, kinds={"stairs_up": 1}, border=1.0)
    tiles = Tiles(terrain, True, 6, CPU)
    per_env = tiles.added_to({})
    assert per_env[COLUMN].tolist() == [0, 1, 0, 1, 0, 1]
    assert per_env[ROW].tolist() == [0] * 6
    per_env[ROW] = torch.tensor([0, 1, 2, 2, 0, 1])

    class Task:
        def terrain_change(self, state, ctx):
            return torch.tensor([1.0, -1.0, 1.0, 0.0, -1.0, 1.0])

    ended = torch.tensor([True, True, True, True, True, False])
    per_env = tiles.changed(per_env, Task(), None, None, ended)
    assert per_env[ROW].tolist() == [1, 0, 3, 2, 0, 1]
    there, random = Placed(), Random(0, CPU)
    seen = set()
    for _ in range(40):
        after = tiles.begin(ended, per_env, random, there)
        assert after[ROW][[0, 1, 3, 4, 5]].tolist() == [1, 0, 2, 0, 1]
        row = int(after[ROW][2])
        assert there.origins[2].tolist() == pytest.approx(terrain.heights.origins[row, 0].tolist())
        seen.add(row)
    assert seen == {0, 1, 2}


def test_fewer_environments_than_columns_are_spread_over_all_kinds_also_on_two_ranks():
    terrain = Terrain(rows=2, columns=8, border=1.0)
    assert Tiles(terrain, True, 4, CPU).added_to({})[COLUMN].tolist() == [0, 2, 4, 6]
    parts = [Tiles(terrain, True, 2, CPU, Shards(2, range(rank, rank + 1))) for rank in range(2)]
    assert [tiles.added_to({})[COLUMN].tolist() for tiles in parts] == [[0, 2], [4, 6]]


def test_a_higher_start_level_deals_out_the_first_rows():
    tiles = Tiles(Terrain(rows=3, columns=2, start_level=2), True, 8, CPU)
    assert tiles.added_to({})[ROW].tolist() == [0, 0, 1, 1, 2, 2, 0, 0]


def test_outside_of_a_training_tiles_are_drawn_at_each_reset_and_nothing_is_kept():
    env = rough(training=False, num_envs=64)
    assert env.state.per_env == {}
    origins = torch.tensor(env.scene.terrain.heights.origins).view(-1, 3)
    drawn = env.backend.state.origin
    assert all((drawn == each).all(dim=1).any() for each in origins)
    first = drawn.clone()
    env.reset()
    assert not torch.equal(env.backend.state.origin, first)


def test_a_task_that_states_no_rule_for_levels_gets_tiles_of_all_rows_in_a_training_too():
    @dataclass
    class Anywhere(Stand):
        def scene(self, robot):
            terrain = Terrain(rows=3, columns=2, kinds={"stairs_up": 1, "rough": 1})
            return replace(super().scene(robot), terrain=terrain)

    task = Anywhere()
    assert not task.has_levels
    assert rough().task.has_levels
    robot = load_robot(task.robot)
    env = Env(task, robot, MujocoBackend(task.scene(robot), 64), seed=1, training=True)
    try:
        assert ROW not in env.state.per_env
        rows = torch.tensor(env.scene.terrain.heights.origins)
        there = {int((rows == each).all(dim=2).any(dim=1).nonzero()) for each in env.backend.state.origin}
        assert there == {0, 1, 2}
    finally:
        env.close()


def test_a_robot_rises_that_has_left_its_tile_and_falls_that_came_less_than_half_as_far_as_asked():
    env = rough()
    task, state, ctx = env.task, env.backend.state.clone(), env.ctx
    # Tiles are 8 m wide. Asked to go 3 m in each: walked 4.1, 1.6, 1.4 m, and 5 m aside, none, and 4 m exactly.
    state.robot.base_pos[:, :2] = torch.tensor([[4.1, 0], [1.6, 0], [0, 1.4], [0, -5.0], [0, 0], [4.0, 0]])
    asked = torch.tensor([[3.0, 0.0]]).repeat(6, 1)
    ctx = replace(ctx, task_state={**ctx.task_state, ASKED: asked})
    assert task.terrain_change(state, ctx).tolist() == [1, 0, -1, 1, -1, 0]


def test_the_mean_row_is_a_level_of_a_training_where_there_are_rows_to_rise_through():
    env = rough()
    rows = torch.tensor([0, 1, 2, 3, 1, 0])  # the last of three rows counts where a random one follows it
    ctx = replace(env.ctx, per_env_state={**env.ctx.per_env_state, ROW: rows})
    assert env.task.metrics(env.backend.state, ctx)[ROW].tolist() == [0, 1, 2, 2, 1, 0]
    # A level that stays at 0 would keep the learner's discount half-way.
    single = rough("task.terrain.rows=1")
    assert ROW not in single.task.metrics(single.backend.state, single.ctx)


def test_a_snapshot_of_a_version_with_other_metrics_goes_on_without_its_sums():
    env = rough("task.terrain.rows=1")
    saved = env.snapshot()
    own = saved["state"]["stats"]
    saved["state"]["stats"] = torch.cat((own, torch.ones(2, dtype=own.dtype)))
    env.restore(saved)
    env.step(torch.zeros(6, env.num_actions))
    assert ROW not in {name.removeprefix("metric/") for name in env.drain()}


def test_what_was_asked_follows_the_heading():
    env = rough()
    state, ctx = env.backend.state.clone(), env.ctx
    half = math.pi / 4
    state.robot.base_quat[:] = torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)])  # facing along y
    command = torch.tensor([[0.5, 0.2, 0.3]]).repeat(6, 1)
    ctx = replace(ctx, command=command, task_state={**ctx.task_state, ASKED: torch.zeros(6, 2)})
    asked = env.task.advance(state, ctx)[ASKED]
    assert asked[0].tolist() == pytest.approx([-0.2 * 0.02, 0.5 * 0.02], abs=1e-6)


def test_turning_otherwise_than_asked_costs_by_its_average_over_half_a_second():
    env = rough()
    state = env.backend.state.clone()
    state.robot.base_ang_vel[:] = torch.tensor([0.0, 0.0, 0.1])
    command = torch.tensor([[0.6, 0.0, -0.5]]).repeat(6, 1)
    level = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0, 4.0])  # of the pushes; a training counts as complete at 1
    ctx = replace(env.ctx, command=command, per_env_state={**env.ctx.per_env_state, "level_pushes": level})
    # Off by 0.6 rad/s: 0.02 s are 4 % of 0.5 s, so the average moves 4 % of the way in each step.
    for average in (0.024, 0.04704):
        ctx = replace(ctx, task_state=env.task.advance(state, ctx))
        found = env.task.reward_terms()["heading_drift"](state, ctx).tolist()
        assert found == pytest.approx(
            [average * share for share in (0, 0.25, 0.5, 1, 1, 1)], rel=1e-4, abs=1e-9
        )
    assert env.task.reward_weights()["heading_drift"] == -6.0


def test_an_episode_times_out_beyond_its_tile_and_the_env_moves_to_its_new_level():
    env = rough("task.pushes.speed=[0,0]")
    before = env.backend.state.origin.clone()
    start = env.task.initial_state(6, env.ctx, Random(0, CPU))
    start.base_pos[1, 0] = 4.05
    start.base_pos[1, 2] += 3.0  # above the steps
    only = torch.arange(6) == 1
    env.backend.reset(only, start)
    result = env.step(torch.zeros(6, env.num_actions))
    assert result.truncated.tolist() == only.tolist()
    assert not result.terminated.any()
    assert env.state.per_env[ROW].tolist() == [0, 1, 0, 0, 0, 0]
    moved = env.backend.state.origin
    # Column 1, row 1: 8 m further along x than row 0.
    assert (moved[1] - before[1])[:2].tolist() == [8.0, 0.0]
    assert torch.equal(moved[~only], before[~only])
    assert env.backend.state.robot.base_pos[1, :2].abs().max() < 0.1


def test_without_ends_an_episode_goes_on_over_other_tiles_to_the_border():
    env = rough("task.terrain.ends=false")
    state = env.backend.state.clone()
    never = torch.zeros(6, dtype=torch.bool)
    state.origin[:] = torch.tensor(
        [8.0, 4.0, 0.0]
    )  # the last row: 12 m to the end of the tiles, 14 to the limit
    state.robot.base_pos[:, 0] = torch.tensor([0.0, 4.5, 5.9, 6.1, -19.0, -22.5])
    assert env._tiles.left(state, never).tolist() == [False, False, False, True, False, True]


def test_terms_measure_heights_from_the_ground():
    env = rough()
    state, ctx, task = env.backend.state.clone(), env.ctx, env.task
    state.robot.base_pos[:, 2] = 0.6
    far = ctx.ground(torch.full((6, 2), 3.9))
    state.robot.base_pos[:, :2] = 3.9
    height = next(item for item in task.items("critic") if item.name == "base_height").compute(state, ctx)
    assert torch.allclose(height[:, 0], 0.6 - far)
    assert far[0] > 0.1  # the last step of the easiest stairs: 9 steps of 2 cm
    ends = task.termination_terms()["fallen"](state, ctx)
    assert ends.tolist() == (0.6 - far < 0.5 * env.robot.home_height).tolist()


def test_a_foot_is_measured_above_the_edges_of_steps_around_it_and_above_a_slope_itself():
    env = rough(
        "task.terrain.step_height=[0.1,0.1]", "task.terrain.kinds.rough=0", f"task.look_ahead={0.2 / 0.6473}"
    )
    state = env.backend.state.clone()
    # The platform ends 1 m from the middle; 0.1 m later the first step is up, 0.3 m later the second one.
    state.robot.foot_pos[:] = torch.tensor([0.9, 0.0, 0.05])
    state.robot.foot_lin_vel[:] = torch.tensor([0.0, 2.0, 3.0])
    state.robot.foot_lin_vel[:3] = torch.tensor([[1.0, 0.0, 3.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])[
        :, None
    ]
    state.robot.foot_pos[4] = torch.tensor([0.5, 0.0, 0.05])
    state.robot.foot_lin_vel[4] = torch.tensor([1.0, 0.0, 0.0])
    state.robot.foot_pos[5] = torch.tensor([1.2, 0.0, 0.2])
    state.robot.foot_lin_vel[5] = torch.tensor([0.5, 0.0, 0.0])
    above = env.task.feet_above(state, env.ctx)
    # Heights 0.2 m behind to 0.2 m ahead: 0, 0, 0, 0, 0.1 ahead of the first step, 0.2 * 0.1 / 0.1 steep. The line
    # through the top of the step is 0.1 - 0.2 * 0.2 = 0.06 m high below the foot. 1.2 m out: 0, 0.1, 0.1, 0.1, 0.2,
    # 0.4 steep; through the edge behind it is 0.1 + 0.1 * 0.4 high.
    wanted = torch.tensor([-0.01, -0.01, 0.05, 0.05, 0.05, 0.06])
    assert torch.allclose(above, wanted[:, None].expand(-1, 2), atol=1e-4)
    slope = rough("task.terrain.slope=[20,20]", "task.terrain.kinds={stairs_up: 0, rough: 0, slope_up: 1}")
    state = slope.backend.state.clone()
    state.robot.foot_pos[:] = torch.tensor([2.0, 0.3, 0.5])
    state.robot.foot_lin_vel[:] = torch.tensor([1.0, 0.5, 0.0])
    local = slope.ctx.above_ground(state.robot.foot_pos)
    assert torch.allclose(slope.task.feet_above(state, slope.ctx), local, atol=1e-3)
    assert float(local[0, 0]) == pytest.approx(0.5 - math.tan(math.radians(20)), abs=0.02)


def test_snapshot_and_restore_repeat_every_bit_with_the_origins():
    env = rough("task.scan=true")
    act = torch.zeros(6, env.num_actions)
    for _ in range(3):
        env.step(act)
    saved = env.snapshot()
    one = [env.step(act).reward.clone() for _ in range(60)]
    origins, levels = env.backend.state.origin.clone(), env.state.per_env[ROW].clone()
    env.restore(saved)
    two = [env.step(act).reward.clone() for _ in range(60)]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(env.backend.state.origin, origins)
    assert torch.equal(env.state.per_env[ROW], levels)


def test_flat_ground_has_no_tiles_and_draws_nothing():
    tiles = Tiles(None, True, 4, CPU)
    random = Random(0, CPU)
    before = random.state()
    own = {"x": torch.zeros(4)}
    assert tiles.begin(torch.ones(4, dtype=torch.bool), own, random, None) is own
    assert tiles.added_to(own) is own
    assert torch.equal(random.state(), before)
    assert tiles.ground is None


def test_the_scan_is_a_grid_in_the_heading_and_mirrors_left_and_right():
    scan = HeightScan(length=0.4, width=0.2, spacing=0.2)
    assert scan.shape == (3, 2)
    flat = [place for row in scan.places for place in row]
    assert flat == pytest.approx([-0.2, -0.1, -0.2, 0.1, 0.0, -0.1, 0.0, 0.1, 0.2, -0.1, 0.2, 0.1])
    for number, other in enumerate(scan.mirrored):
        (x, y), (ox, oy) = scan.places[number], scan.places[other]
        assert (x, y) == pytest.approx((ox, -oy))


def test_a_scan_of_more_than_ten_thousand_places_is_refused_by_its_spacing():
    # 9.9 m are 100 places 0.1 m apart, and 10 m are 101.
    assert HeightScan(length=9.9, width=9.9, spacing=0.1).shape == (100, 100)
    with pytest.raises(ConfigError, match=r"^height_scan\.spacing=0\.1 makes 101 x 100 places; .*\b10000$"):
        HeightScan(length=10.0, width=9.9, spacing=0.1)
    # 20 m are 2001 places 0.01 m apart.
    sides = [f"task.height_scan.{name}" for name in ("length=20", "width=20", "spacing=0.01")]
    with pytest.raises(ConfigError, match=r"height_scan\.spacing=0\.01 makes 2001 x 2001 places"):
        config.resolve(["task=humanoid_rough", *sides])


def test_the_critic_sees_the_steps_ahead_of_it():
    env = rough("task.height_scan.length=2.8", "task.height_scan.width=0", "task.height_scan.spacing=1.4")
    state = env.backend.state.clone()
    state.robot.base_pos[:] = torch.tensor([0.0, 0.0, 0.65])
    state.robot.base_quat[:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    item = env.task.items("critic")[-1]
    found = item.compute(state, env.ctx)
    # 1.4 m ahead and behind are 2 of the easiest steps up, of 2 cm: the second one begins at 1.3 m.
    assert found[0].tolist() == pytest.approx([0.61, 0.65, 0.61], abs=1e-5)


def test_a_policy_is_blind_unless_scan_is_on():
    blind, seeing = rough(), rough("task.scan=true")
    names = [item.name for item, _ in blind.columns["policy"]]
    assert "height_scan" not in names
    assert [item.name for item, _ in seeing.columns["policy"]] == [*names, "height_scan"]
    assert seeing.columns["policy"][-1][1] == 9 * 6
    symmetry = seeing.symmetry().groups["policy"]
    here = seeing.observations["policy"]
    assert torch.equal(symmetry(symmetry(here)), here)


def test_a_scan_is_a_sensor_and_a_blind_policy_needs_none():
    for changes, has in (([], False), (["task.scan=true"], True)):
        env = rough(*changes)
        needs = reads(env.task, env.backend.state, env.ctx, env.num_actions).sensors
        assert ("height_scan" in needs) is has
        assert not {"base_pos", "height"} & set(needs)


PERFECT_SCAN = (
    "task.scan=true",
    "task.noise.height_scan=0",
    "task.sensing.height_scan={delay: [0, 0], dropout: 0}",
    "task.randomize={map_shift: [0, 0], map_lift: [0, 0]}",
)


def scans(env) -> tuple[torch.Tensor, torch.Tensor]:
    """The policy's scan, as it arrives, and the critic's."""
    places = 9 * 6
    return env.observations["policy"][:, -places:], env.observations["critic"][:, -places:]


def test_a_scan_without_errors_is_that_of_the_critic():
    policy, critic = scans(rough(*PERFECT_SCAN))
    assert torch.equal(policy, critic)


def test_a_map_that_is_too_low_or_off_reads_another_ground():
    lifted = rough(*PERFECT_SCAN[:3], "task.randomize={map_shift: [0, 0], map_lift: [0.1, 0.1]}")
    policy, critic = scans(lifted)
    assert torch.allclose(policy - critic, torch.tensor(0.1), atol=1e-5)
    shifted = rough(
        *PERFECT_SCAN[:3],
        "task.randomize={map_shift: [1.3, 1.3], map_lift: [0, 0]}",
        "task.terrain.kinds={stairs_up: 1}",
    )
    item = shifted.task.items("policy")[-1]
    state = shifted.backend.state.clone()
    state.robot.base_pos[:, :2] += 1.3
    policy, _ = scans(shifted)
    assert torch.allclose(policy, item.compute(state, shifted.ctx), atol=1e-5)


def test_an_error_of_another_sensor_leaves_those_of_the_scan():
    settings = (
        "task.scan=true",
        "task.randomize={map_shift: [0, 0], map_lift: [0.1, 0.1], imu_tilt: [0.05, 0.05]}",
    )
    policy, critic = scans(rough(*settings, "task.sensing.height_scan={delay: [0, 0], dropout: 0}"))
    off = policy - critic - 0.1
    assert off.abs().max() <= 0.02 + 1e-5
    assert off.std() > 0.005  # its noise, uniform within 0.02 m: 0.0115


def test_a_delayed_scan_is_the_one_of_so_many_steps_before():
    env = rough(*PERFECT_SCAN[:2], "task.sensing.height_scan={delay: [2, 2], dropout: 0}", PERFECT_SCAN[3])
    true, seen = [], []
    for _ in range(5):
        policy, critic = scans(env)
        true.append(critic.clone())
        seen.append(policy.clone())
        env.step(torch.zeros(6, env.num_actions))
    assert torch.equal(seen[0], true[0])
    assert torch.equal(seen[3], true[1])
    assert torch.equal(seen[4], true[2])
    assert not torch.equal(true[4], true[2])


def test_the_errors_of_a_scan_are_those_stated_where_any_are():
    assert rough("task.scan=true").task.noise["height_scan"] == 0.02
    assert rough("task.scan=true", "task.noise.height_scan=0.05").task.noise["height_scan"] == 0.05
    assert "height_scan" not in rough().task.noise
    with pytest.raises(ConfigError, match="height_scan"):
        rough("task.sensing.height_scan={delay: [1, 1]}")


def reloaded(folder, saved: list[str], *changes: str):
    """The environment of a saved run of these settings, changed by overrides."""
    run = config.resolve(
        ["task=humanoid_rough", "backend=mujoco", "device=cpu", "backend.threads=1", *SMALL, *saved]
    )
    config.save(run, folder / "config.yaml")
    return build_env(config.load(folder, changes), 6, training=True)


def test_scan_noise_of_a_saved_run_can_be_changed_and_gives_way_to_noise_that_is_stated(tmp_path):
    def noise(saved: list[str], *changes: str):
        return reloaded(tmp_path, ["task.scan=true", *saved], *changes).task.noise.get("height_scan")

    assert noise([]) == 0.02
    assert noise([], "task.scan_noise=0") is None
    assert noise([], "task.scan_noise=0.1") == 0.1
    assert noise(["task.noise.height_scan=0.05"], "task.scan_noise=0") == 0.05
    perfect = (
        "task.sensing.height_scan={delay: [0, 0]}",
        "task.randomize={map_shift: [0, 0], map_lift: [0, 0]}",
    )
    policy, critic = scans(reloaded(tmp_path, ["task.scan=true"], "task.scan_noise=0", *perfect))
    assert torch.equal(policy, critic)


def test_a_saved_run_with_a_scan_can_be_made_blind_and_states_nothing_of_a_scan(tmp_path):
    seeing, blind = (
        reloaded(tmp_path, ["task.scan=true"]),
        reloaded(tmp_path, ["task.scan=true"], "task.scan=false"),
    )
    assert [item.name for item, _ in seeing.columns["policy"]][-1] == "height_scan"
    assert blind.columns["policy"] == rough().columns["policy"]
    assert (blind.task.noise, blind.task.sensing) == (rough().task.noise, {})
    assert not {"map_shift", "map_lift"} & set(blind.task.randomize)


def test_a_run_whose_file_states_the_errors_of_its_scan_has_the_same_ones(tmp_path):
    """Earlier versions wrote them out."""
    stated = [
        "task.noise.height_scan=0.02",
        "task.sensing.height_scan={delay: [0, 3], dropout: 0.02}",
        "task.history.height_scan=1",
        "task.randomize={map_shift: [-0.05, 0.05], map_lift: [-0.02, 0.02]}",
    ]
    old, new = reloaded(tmp_path, ["task.scan=true", *stated]), rough("task.scan=true")
    for group in ("policy", "critic"):
        sizes = [[(item.name, item.history, k) for item, k in env.columns[group]] for env in (old, new)]
        assert sizes[0] == sizes[1]
    assert (old.task.noise, old.task.sensing) == (new.task.noise, new.task.sensing)
    assert [dict(old.task.randomize)[name] for name in new.task.randomize] == [*new.task.randomize.values()]


def test_the_errors_of_a_scan_are_shown_and_stated_in_the_conditions_of_a_bundle():
    task = config.resolve(["task=humanoid_rough", "task.scan=true", "task.noise.height_scan=0.05"]).task
    assert "height_scan" not in task.sensing  # nobody stated it
    assert noisy(replace(task, noise={}))
    rows = active(task)
    assert ("height_scan", "0.05") in rows["noise"]
    assert rows["sensing"] == [("height_scan", "delay [0, 3], dropout 0.02")]
    assert {"map_shift", "map_lift"} <= {name for name, _ in rows["randomize"]}
    met = conditions(task, task.scene(load_robot("humanoid")))
    assert met["noise"]["height_scan"] == 0.05
    assert met["sensing"] == {"height_scan": {"delay": [0, 3], "dropout": 0.02}}
    assert {"map_shift", "map_lift"} <= set(met["randomize"])


def test_of_a_scan_the_policy_sees_the_newest_alone_unless_asked_and_of_the_rest_three_samples():
    def samples(*changes):
        return {item.name: item.history for item in rough("task.scan=true", *changes).task.items("policy")}

    assert samples() == {**dict.fromkeys(samples(), 3), "height_scan": 1}
    assert samples("task.history.height_scan=2")["height_scan"] == 2


def test_a_policy_that_reads_the_ground_without_a_sensor_is_refused():
    env = rough()
    task = env.task
    from robolearn.tasks.mdp.observations import Observation

    cheat = Observation("below", lambda s, c: c.ground(c.command[:, :2])[:, None], "same")
    before = task.items
    task.items = lambda group: [*before(group), cheat] if group == "policy" else before(group)
    with pytest.raises(ConfigError, match="below"):
        reads(task, env.backend.state, env.ctx, env.num_actions)


def test_terms_scans_and_levels_need_no_host_in_a_step():
    env = rough("task.scan=true")
    task, state, ctx, done = env.task, env.backend.state, env.ctx, torch.zeros(6, dtype=torch.bool)
    with no_host_sync():
        for group in ("policy", "critic"):
            for item in task.items(group):
                item.compute(state, ctx)
        for sensor in task.all_sensors():
            sensor(state)
        task.advance(state, ctx)
        task.terrain_change(state, ctx)
        env._tiles.left(state, done)
        env._tiles.changed(env.state.per_env, task, state, ctx, done)
        env._tiles.begin(done, env.state.per_env, env.random, Placed())
