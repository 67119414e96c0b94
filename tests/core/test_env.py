"""The order of a step, resets, delays, noise, divergence and exactness of an Env."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from robolearn.core.delay import DelayLine
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.state import State
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context, Random, once
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import level
from robolearn.tasks.mdp.task import Term
from robolearn.tasks.stand import Stand
from tests.factories import load_robot

CPU = torch.device("cpu")


def act(env, seed: int = 0, scale: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(env.num_envs, env.num_actions, generator=generator)


def run(env, steps: int, scale: float = 0.5) -> list[torch.Tensor]:
    out = []
    for i in range(steps):
        result = env.step(act(env, i, scale))
        out += [result.observations["policy"].clone(), result.observations["critic"].clone(), result.reward]
        out += [result.terminated, result.truncated]
    return out


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_episode_times_out_as_truncated_and_not_as_terminated(make_env):
    env = make_env(CartpoleBalance(episode_length_s=0.1, start_angle=0.0))
    results = [env.step(torch.zeros(16, 1)) for _ in range(5)]
    assert not any(bool(r.done.any()) for r in results[:4])
    assert bool(results[4].truncated.all())
    assert not results[4].terminated.any()
    assert env.episode_step.tolist() == [0] * 16


def test_a_fallen_pole_terminates_its_episode(make_env):
    env = make_env(CartpoleBalance(episode_length_s=10.0))
    ended = torch.zeros(16, dtype=torch.bool)
    for _ in range(150):
        result = env.step(torch.ones(16, 1))
        assert not (result.terminated & result.truncated).any()
        ended |= result.terminated
    assert ended.all()


def test_terminal_observation_is_the_state_before_the_reset_and_the_next_one_is_after(make_env):
    env = make_env(CartpoleBalance(episode_length_s=0.4, start_angle=0.05))
    for _ in range(19):
        result = env.step(torch.zeros(16, 1))
        assert torch.equal(result.terminal_observations["policy"], result.observations["policy"])
    angle_before = env.observations["policy"][:, 1].clone()
    result = env.step(torch.zeros(16, 1))
    assert result.truncated.all()
    terminal, fresh = result.terminal_observations["policy"], result.observations["policy"]
    # The pole falls on from where it was; the new episode starts within 0.05 rad.
    assert (terminal[:, 1].abs() > angle_before.abs()).all()
    assert (fresh[:, 1].abs() <= 0.05 + 1e-6).all()
    assert torch.equal(env.backend.state.robot.joint_pos[:, 1], fresh[:, 1])


def test_reward_is_the_weighted_sum_of_terms_times_the_control_period(make_env):
    task = CartpoleBalance(rewards={"upright": 2.0, "centred": 0.0, "effort": -1.0, "alive": 3.0})
    env = make_env(task)
    result = env.step(torch.full((16, 1), 0.5))
    angle = result.terminal_observations["policy"][:, 1]
    assert torch.allclose(result.reward, 0.02 * (2.0 * angle.cos() - 0.25 + 3.0), atol=1e-6)
    totals = env.drain()
    assert totals["raw/effort"] == pytest.approx(0.25)
    assert totals["reward/effort"] == pytest.approx(-0.25 * 0.02)
    assert totals["reward/alive"] == pytest.approx(0.06)


def test_terms_change_nothing_and_draw_nothing_when_evaluated_twice(make_env):
    env = make_env(HumanoidWalk(), num_envs=8)
    run(env, 3)
    state, before = env.backend.state, env.snapshot()
    for term in [*env.task.reward_terms().values(), *env.task.termination_terms().values()]:
        first = term(state, env.ctx).clone()
        assert torch.equal(first, term(state, env.ctx))
    after = env.snapshot()
    assert any(name.startswith("episode.task.") for name in before["state"])
    for name, value in before["state"].items():
        assert torch.equal(value, after["state"][name]), name
    assert torch.equal(before["random"], after["random"])


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(make_env):
    first, second, other = (make_env(HumanoidWalk(), num_envs=8, seed=s) for s in (3, 3, 4))
    a, b, c = (run(env, 30) for env in (first, second, other))
    assert same(a, b)
    assert not same(a, c)


@pytest.mark.parametrize("delay", [(0, 0), (0, 3)])
def test_an_env_restored_from_its_snapshot_goes_on_bit_for_bit(make_env, delay):
    task = HumanoidWalk(action_delay=delay, observation_delay=delay, randomize={"friction": (0.5, 1.2)})
    task.pushes = Pushes(speed=(0.5, 0.5), seconds=(0.05, 0.2))
    env = make_env(task, num_envs=8)
    run(env, 20)
    saved = env.snapshot()
    first = run(env, 40)
    env.restore(saved)
    assert same(first, run(env, 40))
    another = make_env(task, num_envs=8, seed=99)
    another.restore(saved)
    assert same(first, run(another, 40))


def test_snapshot_rows_copied_across_environments_are_bit_equal(make_env):
    env = make_env(HumanoidWalk(noise={}), num_envs=4)
    run(env, 10)
    source = env.observations["critic"].clone()
    env.restore(env.snapshot(), source_rows=torch.tensor([1, 1, 3, 1]))
    assert torch.equal(env.observations["critic"], source[[1, 1, 3, 1]])
    assert torch.equal(env.ctx.command[0], env.ctx.command[3])
    result = env.step(act(env)[:1].repeat(4, 1))
    assert torch.equal(result.terminal_observations["critic"][0], result.terminal_observations["critic"][1])
    assert not torch.equal(
        result.terminal_observations["critic"][0], result.terminal_observations["critic"][2]
    )


def test_copies_of_one_environment_get_bit_equal_rewards_in_every_row(make_env):
    env = make_env(HumanoidWalk(noise={}), num_envs=6)  # not a multiple of any vector width
    run(env, 10)
    env.restore(env.snapshot(), source_rows=torch.full((6,), 3))
    for i in range(5):
        reward = env.step(act(env, i)[:1].repeat(6, 1)).reward
        assert (reward == reward[0]).all()


def test_an_action_buffer_may_be_reused_for_the_next_action(make_env):
    env = make_env(CartpoleBalance())
    buffer = torch.full((16, 1), 0.5)
    env.step(buffer)
    buffer[:] = -0.5
    env.step(buffer)
    assert env.ctx.previous_action.unique().tolist() == [0.5]
    assert env.ctx.action.unique().tolist() == [-0.5]
    env.step(torch.zeros(16, 1, dtype=torch.float64))
    assert env.ctx.action.dtype == torch.float32


def test_a_delay_line_returns_rows_with_the_lag_of_each_environment():
    delay, arrived = DelayLine((0, 2)), []
    line = delay.draw(delay.empty(3, 1, CPU), Random(0, CPU), torch.zeros(3, 1))
    line["lag"] = torch.tensor([0, 1, 2])
    for step in (1, 2, 3):
        now, line = delay.push(line, torch.full((3, 1), float(step)))
        arrived.append(now[:, 0].tolist())
    assert arrived == [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [3.0, 2.0, 1.0]]


def test_lags_are_from_the_lowest_part_of_their_range_that_the_level_allows():
    delay = DelayLine((1, 4))
    share = torch.tensor([0.0, 1 / 3, 1.0]).repeat_interleave(2000)
    line = delay.draw(delay.empty(6000, 1, CPU), Random(0, CPU), torch.zeros(6000, 1), share)
    drawn = line["lag"].view(3, 2000)
    assert [sorted(set(row.tolist())) for row in drawn] == [[1], [1, 2], [1, 2, 3, 4]]
    # A third of the way is 1 of 3 steps: half of the lags are 1 and half are 2.
    assert (drawn[1] == 1).float().mean().item() == pytest.approx(0.5, abs=0.05)


def never_rises(state: State, ctx: Context) -> torch.Tensor:
    return torch.zeros_like(ctx.episode_time)


def test_delays_of_actions_and_observations_grow_with_the_curriculum_randomize():
    task = CartpoleBalance(action_delay=(0, 3), observation_delay=(0, 3))
    task = replace(task, curricula={"randomize": level(never_rises, 0.0)})
    robot = load_robot(task.robot)
    env = Env(task, robot, MujocoBackend(task.scene(robot), 64), training=True)
    lags = (env.state.episode.action_delay["lag"], env.state.episode.observation_delay["lag"])
    assert [lag.max().item() for lag in lags] == [0, 0]
    env.state.per_env["level_randomize"].fill_(1.0)
    env.reset()
    lags = (env.state.episode.action_delay["lag"], env.state.episode.observation_delay["lag"])
    assert [lag.max().item() for lag in lags] == [3, 3]


def test_delayed_actions_reach_the_robot_late_and_the_terms_at_once(make_env):
    env = make_env(CartpoleBalance(action_delay=(2, 2), start_angle=0.0))
    env.step(torch.ones(16, 1))
    assert torch.equal(env.ctx.action, torch.ones(16, 1))
    assert env.backend.state.robot.joint_torque[:, 0].abs().max() == 0
    env.step(torch.ones(16, 1))
    env.step(torch.ones(16, 1))
    assert env.backend.state.robot.joint_torque[:, 0].tolist() == [20.0] * 16


def test_noise_is_drawn_once_a_step_and_reaches_the_policy_only(make_env):
    env = make_env(HumanoidWalk(noise={"joint_vel_rel": 0.5}, history={}), num_envs=64)
    result = env.step(torch.zeros(64, 21))
    velocity = env.backend.state.robot.joint_vel
    noise = result.observations["policy"][:, 27:48] - velocity
    assert 0.4 < noise.abs().max() <= 0.5
    assert noise.std() == pytest.approx(0.5 / 3**0.5, rel=0.1)  # uniform
    assert torch.equal(result.observations["policy"], result.terminal_observations["policy"])
    names = [item.name for item, _ in env.columns["critic"]]
    start = sum(width for _, width in env.columns["critic"][: names.index("joint_vel_rel")])
    assert torch.equal(result.observations["critic"][:, start : start + 21], velocity)


def test_pushes_have_the_configured_times_and_speeds_in_every_direction(make_env):
    pushes = Pushes(speed=(0.5, 0.5), seconds=(0.19, 0.19))
    env = make_env(HumanoidWalk(pushes=pushes), num_envs=32)
    came = []
    env.backend.push = lambda mask, jump, turn: came.append((mask.clone(), jump.clone()))
    run(env, 9)
    assert env.ctx.push_time.isinf().all()
    run(env, 12)  # 0.19 s are over after 10 steps
    assert env.ctx.push_time.tolist() == pytest.approx([0.04] * 32)  # pushed before the 20th of 21 steps
    assert [i for i, (mask, _) in enumerate(came) if mask.any()] == [9, 19]
    assert came[9][0].all()
    jump = came[9][1]
    assert jump.norm(dim=1).tolist() == pytest.approx([0.5] * 32)
    assert (jump[:, 2] == 0).all()
    assert jump[:, :2].amin() < -0.3
    assert jump[:, :2].amax() > 0.3


def test_steps_with_a_push_or_a_new_command_are_told(make_env):
    task = HumanoidWalk(
        pushes=Pushes(speed=(0.1, 0.1), seconds=(0.19, 0.19)), commands=VelocityCommands(seconds=(0.15, 0.15))
    )
    env = make_env(task, num_envs=2)
    still = torch.zeros(2, env.num_actions)
    told = [env.step(still).exogenous.tolist() for _ in range(20)]
    # 0.19 s are over before the 10th and the 20th step of 0.02 s, 0.15 s after the 8th and the 16th.
    assert [i + 1 for i, rows in enumerate(told) if rows == [True, True]] == [8, 10, 16, 20]
    assert sum(any(rows) for rows in told) == 4
    calm = make_env(CartpoleBalance(), num_envs=2)
    assert not calm.step(torch.zeros(2, 1)).exogenous.any()


def test_pushes_of_a_box_and_a_turn_fill_both_and_leave_their_bounds_to_none(make_env):
    pushes = Pushes(seconds=(0.01, 0.01), box=(0.5, 0.5, 0.4), turn=(0.52, 0.52, 0.78))
    env = make_env(HumanoidWalk(pushes=pushes), num_envs=256)
    came = []
    env.backend.push = lambda mask, jump, turn: came.append(torch.cat((jump, turn), dim=1))
    run(env, 2)
    bounds = torch.tensor([0.5, 0.5, 0.4, 0.52, 0.52, 0.78])
    largest = came[-1].abs().amax(dim=0) / bounds
    assert (largest <= 1.0).all()
    assert (largest > 0.9).all()
    assert (came[-1] / bounds).mean(dim=0).abs().max() < 0.2  # both ways alike


def test_without_pushes_nothing_is_drawn_and_no_robot_is_pushed(make_env):
    env = make_env(HumanoidWalk(pushes=Pushes(speed=(0.0, 0.0))))
    env.backend.push = None
    run(env, 3)


def test_a_function_marked_once_is_computed_once_for_all_terms_of_a_step(make_env):
    calls = []

    @once
    def angle(state, ctx, scale=1.0):
        calls.append(scale)
        return state.robot.joint_pos[:, 1] * scale

    @dataclass
    class Shared(CartpoleBalance):
        rewards: dict[str, float] = field(default_factory=lambda: {"one": 1.0, "two": 1.0, "half": 1.0})

        def reward_terms(self):
            return {"one": angle, "two": angle, "half": partial(angle, scale=0.5)}

    env = make_env(Shared(episode_length_s=10.0))
    calls.clear()
    env.step(torch.zeros(16, 1))
    assert sorted(calls) == [0.5, 1.0]
    assert torch.equal(
        angle(env.backend.state, env.ctx, scale=2.0), env.backend.state.robot.joint_pos[:, 1] * 2
    )


def test_a_metric_that_is_a_view_of_the_state_keeps_its_value_of_before_the_reset(make_env, monkeypatch):
    monkeypatch.setattr(
        CartpoleBalance,
        "metrics",
        lambda self, state, ctx: {
            "pole_angle": state.robot.joint_pos[:, 1],
            "cart_distance": state.robot.joint_pos[:, 0],
        },
    )
    env = make_env(CartpoleBalance(episode_length_s=0.02))  # every step ends every episode
    result = env.step(torch.ones(16, 1))
    assert result.done.all()
    assert not torch.equal(result.metrics["pole_angle"].total, env.backend.state.robot.joint_pos[:, 1])


@dataclass(frozen=True)
class Chosen:
    """An observation's function that is an object without a hash, because one of its fields has none."""

    joints: list[int]

    def __call__(self, state, ctx):
        return state.robot.joint_pos[:, self.joints]


def test_an_observation_by_an_object_without_a_hash_is_computed(make_env):
    task = CartpoleBalance()
    item = Observation("chosen", Chosen([1]), "same")
    task.observations = {"policy": ["joint_pos_rel", item], "critic": ["joint_pos_rel", item]}
    env = make_env(task, num_envs=2)
    seen = env.reset()
    assert torch.equal(seen["critic"][:, -1], env.backend.state.robot.joint_pos[:, 1])


def test_a_shared_function_is_computed_anew_for_another_state_and_another_context(make_env):
    env = make_env(CartpoleBalance())
    env.step(torch.full((16, 1), 0.5))
    ctx, state = env._context(), env.backend.state

    @once
    def lean(state, ctx):
        return state.robot.joint_pos[:, 1] * ctx.action[:, 0]

    value = lean(state, ctx).clone()
    mirrored = state.clone()
    mirrored.robot.joint_pos[:] *= -1
    assert torch.equal(lean(mirrored, ctx), -value)
    assert torch.equal(lean(state, replace(ctx, action=-ctx.action)), -value)
    assert lean(state, ctx) is lean(state, ctx)


@pytest.mark.parametrize(
    "column",
    [
        lambda state: torch.arange(16.0)[:, None] + 0 * state.robot.joint_pos[:, :1],
        lambda state: torch.arange(float(len(state.robot.joint_pos)))[:, None],
    ],
    ids=["holds a tensor of all", "counts rows"],
)
def test_an_observation_that_depends_on_the_row_is_right_after_resets(column, make_env):
    @dataclass
    class RowWise(CartpoleBalance):
        observations: ClassVar = {
            **CartpoleBalance.observations,
            "row": (Observation("row", lambda state, ctx: column(state), "same"),),
        }

    env = make_env(RowWise(episode_length_s=0.1))
    env.reset(stagger=True)
    for _ in range(6):  # every episode of 5 steps ends once, some at a time
        observations = env.step(torch.zeros(16, 1)).observations
    assert observations["row"][:, 0].tolist() == list(range(16))


def test_the_per_env_state_of_a_diverged_environment_stays(make_env):
    @dataclass
    class Level(CartpoleBalance):
        def per_env_state(self, num_envs, random):
            return {"level": torch.zeros(num_envs)}

        def advance_per_env(self, state, ctx, done):
            return {"level": state.robot.joint_pos[:, 1] * float("nan")}

    env = make_env(Level())
    env.backend.state.diverged[3] = True
    env.backend.step = lambda targets, substeps: None
    env.step(torch.zeros(16, 1))
    assert env.ctx.per_env_state["level"].tolist() == [0.0] * 16


def test_a_command_ages_until_the_next_one(make_env):
    task = HumanoidWalk()
    task.commands = VelocityCommands(seconds=(0.1, 0.1))
    env = make_env(task)
    ages = []
    for i in range(7):
        env.step(act(env, i))
        ages.append(round(env.ctx.command_time[0].item(), 2))
    assert ages == [0.02, 0.04, 0.06, 0.08, 0.0, 0.02, 0.04]


def nan_in_environment_two(state: State, ctx: Context) -> torch.Tensor:
    out = terms.alive(state, ctx)
    out[2] = float("nan")
    return out


@dataclass
class Broken(CartpoleBalance):
    """A task with a bug."""

    rewards: dict[str, float] = field(default_factory=lambda: {"upright": 1.0, "wobbly_term": 0.0})

    def reward_terms(self) -> dict[str, Term]:
        return {"upright": super().reward_terms()["upright"], "wobbly_term": nan_in_environment_two}


def test_a_nan_in_a_term_raises_naming_the_term_and_the_environment(make_env):
    env = make_env(Broken())
    with pytest.raises(NonFiniteTerm, match=r"reward 'wobbly_term' .* environment 2 "):
        env.step(torch.zeros(16, 1))


def test_a_nan_in_one_robots_state_terminates_resets_and_counts_that_robot_only(make_env):
    env = make_env(HumanoidWalk(), num_envs=8)
    env.step(torch.zeros(8, 21))
    env.drain()
    env.backend._qpos[5, 10] = float("nan")
    result = env.step(torch.zeros(8, 21))
    assert result.diverged.tolist() == [i == 5 for i in range(8)]
    assert result.terminated[5]
    assert not result.truncated[5]
    assert result.reward[5] == 0
    for group in result.observations.values():
        assert torch.isfinite(group).all()
    assert env.drain()["diverged"] == 1
    assert not env.step(torch.zeros(8, 21)).diverged.any()


def test_staggered_starts_spread_the_first_time_outs_over_an_episode(make_env):
    env = make_env(CartpoleBalance(episode_length_s=1.0, start_angle=0.0), num_envs=64)
    env.reset(stagger=True)
    ages = env.episode_step
    assert ages.min() < 10
    assert ages.max() >= 40
    assert len(ages.unique()) > 20


def test_a_control_period_that_is_no_multiple_of_the_physics_step_is_refused_with_one_that_is(make_env):
    with pytest.raises(ValueError, match=r"control_dt=0.025 is not a multiple of the 0.01 s"):
        make_env(CartpoleBalance(control_dt=0.025))


def test_a_parameter_the_backend_cannot_randomize_is_refused_with_those_it_can(make_env):
    with pytest.raises(ValueError, match="mass_scale"):
        make_env(CartpoleBalance(randomize={"mass_scale": (0.9, 1.1)}))  # a cartpole has no free base


def returning(value) -> Term:
    return lambda state, ctx: value(ctx.episode_time)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda t: t[:, None], r"reward 'upright' returns \(16, 1\), and must return a tensor \(16,\)"),
        (lambda t: t.sum(), r"reward 'upright' returns \(\), and must"),
        (lambda t: 1.0, r"reward 'upright' returns float, and must"),
    ],
)
def test_a_reward_of_the_wrong_shape_is_refused_by_name(make_env, monkeypatch, value, message):
    right = CartpoleBalance().reward_terms()
    monkeypatch.setattr(CartpoleBalance, "reward_terms", lambda self: {**right, "upright": returning(value)})
    with pytest.raises(ValueError, match=message):
        make_env(CartpoleBalance())


def test_a_termination_that_is_no_bool_and_targets_of_the_wrong_width_are_refused(make_env, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(CartpoleBalance, "termination_terms", lambda self: {"late": returning(lambda t: t)})
        with pytest.raises(ValueError, match=r"termination .late. returns torch\.float32"):
            make_env(CartpoleBalance())
    monkeypatch.setattr(CartpoleBalance, "joint_targets", lambda self, action, ctx: action.repeat(1, 2))
    with pytest.raises(
        ValueError, match=r"targets\(\) returns \(16, 2\), and must return a tensor \(16, 1\)"
    ):
        make_env(CartpoleBalance())


def test_an_observation_without_columns_is_refused_by_name(make_env, monkeypatch):
    flat = Observation("age", lambda state, ctx: ctx.episode_time, "same")
    monkeypatch.setattr(CartpoleBalance, "observations", {"policy": ("joint_pos_rel",), "critic": (flat,)})
    with pytest.raises(ValueError, match=r"critic observation 'age' returns \(16,\)"):
        make_env(CartpoleBalance())


def test_boolean_rewards_count_as_zero_and_one(make_env, monkeypatch):
    terms_of_bools = {k: returning(lambda t: t >= 0) for k in CartpoleBalance().rewards}
    monkeypatch.setattr(CartpoleBalance, "reward_terms", lambda self: terms_of_bools)
    env = make_env(CartpoleBalance(rewards=dict.fromkeys(terms_of_bools, 2.0)))
    assert torch.allclose(env.step(torch.zeros(16, 1)).reward, torch.tensor(4 * 2.0 * 0.02))


def test_a_value_that_is_not_finite_is_named_whatever_its_kind(make_env, monkeypatch):
    bad = torch.zeros(16, 1)
    bad[4] = float("nan")
    with pytest.raises(NonFiniteTerm, match="action of 'slider' is not finite in environment 4"):
        make_env(CartpoleBalance()).step(bad)
    env = make_env(CartpoleBalance())
    measured = {"pole_angle": torch.zeros(16), "cart_distance": bad[:, 0]}
    monkeypatch.setattr(CartpoleBalance, "metrics", lambda self, state, ctx: measured)
    with pytest.raises(NonFiniteTerm, match="metric 'cart_distance' is not finite in environment 4") as error:
        env.step(torch.zeros(16, 1))
    assert error.value.state.robot.joint_pos.shape == (16, 2)
    monkeypatch.setattr(CartpoleBalance, "joint_targets", lambda self, action, ctx: bad)
    with pytest.raises(NonFiniteTerm, match="target of 'slider'"):
        env.step(torch.zeros(16, 1))


@pytest.mark.parametrize(
    ("items", "offender"),
    [
        ("joint_pos_rel", "observations.teacher"),
        ((act,), "'act'"),
        ((Observation("lean", lambda s, c: s.robot.joint_pos, "sideways"),), "lean.mirror='sideways'"),
    ],
)
def test_an_observation_group_that_is_not_a_tuple_of_items_is_refused_by_name(items, offender):
    @dataclass
    class Wrong(CartpoleBalance):
        observations: ClassVar = {**CartpoleBalance.observations, "teacher": items}

    with pytest.raises(ValueError, match=offender):
        Wrong().validate()


def test_a_per_env_state_that_is_no_dictionary_is_refused_by_name(make_env, monkeypatch):
    monkeypatch.setattr(
        CartpoleBalance, "per_env_state", lambda self, num_envs, random: torch.zeros(num_envs)
    )
    with pytest.raises(ConfigError, match="per_env_state"):
        make_env(CartpoleBalance())


def test_an_initial_state_of_the_wrong_shape_is_refused_by_name(make_env, monkeypatch):
    right = CartpoleBalance.initial_state

    def short(self, num_envs, ctx, random):
        return replace(right(self, num_envs, ctx, random), base_quat=torch.zeros(num_envs, 3))

    monkeypatch.setattr(CartpoleBalance, "initial_state", short)
    with pytest.raises(ValueError, match=r"initial_state\(\).base_quat returns \(16, 3\)"):
        make_env(CartpoleBalance())


def test_a_term_that_raises_is_reported_with_its_line(make_env, monkeypatch):
    terms_with_bug = {**CartpoleBalance().reward_terms(), "effort": returning(lambda t: t.no_such_thing)}
    monkeypatch.setattr(CartpoleBalance, "reward_terms", lambda self: terms_with_bug)
    with pytest.raises(ValueError, match=r"reward 'effort' raised AttributeError: .* \(test_env.py:\d+\)"):
        make_env(CartpoleBalance())


def test_a_task_state_that_is_the_states_own_tensor_or_changes_its_name_is_refused(make_env, monkeypatch):
    monkeypatch.setattr(
        CartpoleBalance, "task_state", lambda self, n, robot, random: {"speed": torch.zeros(n, 2)}
    )
    monkeypatch.setattr(CartpoleBalance, "advance", lambda self, s, c: {"speed": s.robot.joint_vel})
    with pytest.raises(ValueError, match="task state 'speed' is a tensor of the State"):
        make_env(CartpoleBalance())
    monkeypatch.setattr(CartpoleBalance, "advance", lambda self, s, c: {})
    with pytest.raises(ValueError, match="task state 'speed'"):
        make_env(CartpoleBalance())


def layout(value):
    if isinstance(value, dict):
        return {k: layout(v) for k, v in value.items()}
    return type(value).__name__


def test_the_snapshots_layout_belongs_to_the_checkpoints_schema(make_env):
    """Another layout: raise robolearn.training.checkpoint.SCHEMA, migrate or refuse the old one, then change this."""
    from robolearn.training.checkpoint import SCHEMA

    found = layout(make_env(CartpoleBalance()).snapshot())
    entity = found["backend"].pop("published")
    assert SCHEMA == 3
    assert len(entity) == 12
    assert found == {
        "backend": {
            "rows": "Tensor",
            "warning": "Tensor",
            "diverged": "Tensor",
            "params": {"friction": "Tensor"},
        },
        "state": dict.fromkeys(
            [
                "episode.step",
                "episode.total_return",
                "episode.time",
                "episode.action",
                "episode.previous_action",
                "episode.command",
                "episode.command_time",
                "episode.command_left",
                "episode.push_time",
                "episode.push_left",
                "episode.action_delay.lag",
                "episode.observation_delay.lag",
                "observations.policy",
                "observations.critic",
                "terminal_observations.policy",
                "terminal_observations.critic",
                "stats",
            ],
            "Tensor",
        ),
        "random": "Tensor",
    }


def test_an_initial_state_that_is_none_is_refused_by_the_entitys_name(make_env):
    class Nothing(Stand):
        def initial_state(self, num_envs, ctx, random):
            return {"robot": None}

    with pytest.raises(ConfigError, match="initial_state"):
        make_env(Nothing(robot="ant"))
