"""Levels of curricula: how they change, what scales with them, and that only training has them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from robolearn import config
from robolearn.core import curricula
from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.tasks.mdp.commands import Pushes, VelocityCommands
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.stated import Level, level
from robolearn.tasks.velocity import Velocity
from robolearn.training.build import build_env
from robolearn.training.train import train


def slowly(state, ctx: Context, rise: float) -> torch.Tensor:
    """Up by `rise` a step in the first environment, down as fast in the others."""
    first = torch.arange(len(ctx.episode_time)) == 0
    return torch.where(first, rise, -rise)


@dataclass
class Eased(Velocity):
    curricula: dict[str, Level] = field(
        default_factory=lambda: {
            "commands": level(slowly, 0.5, rise=0.2),
            "pushes": level(slowly, 0.0, rise=0.0),
        }
    )


def eased(training: bool = True, num_envs: int = 3, **changes) -> Env:
    run = config.resolve(["task=velocity", "robot=humanoid", "device=cpu", f"num_envs={num_envs}"])
    fast = VelocityCommands(forward=(1.0, 1.0), sideways=(0.0, 0.0), yaw=(0.0, 0.0), standing=0.0)
    run.task.__class__ = Eased
    run.task.__dict__.update(Eased(commands=fast, **changes).__dict__)
    return build_env(run, num_envs, training=training)


def test_levels_change_every_step_and_stay_within_0_and_1():
    env = eased()
    for expected in ([0.7, 0.3, 0.3], [0.9, 0.1, 0.1], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]):
        env.step(torch.zeros(3, 21))
        assert env.state.per_env["level_commands"].tolist() == pytest.approx(expected, abs=1e-6)
    drained = env.drain()
    assert drained["metric/level_pushes"] == 0.0
    # Of each step the level that it was made at.
    assert drained["metric/level_commands"] == pytest.approx((1.5 + 1.3 + 1.1 + 1.0) / 12, abs=1e-6)


def test_levels_of_many_environments_also_follow_what_the_others_did(monkeypatch):
    monkeypatch.setattr(curricula, "LEVEL_ENVS", 1)
    env = eased()
    env.step(torch.zeros(3, 21))
    # Three times as many as the rates are stated for: twice the mean of 0.2, -0.2 and -0.2 on top.
    expected = [0.5 + 0.2 - 2 * 0.2 / 3, *2 * [0.5 - 0.2 - 2 * 0.2 / 3]]
    assert env.state.per_env["level_commands"].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_level_may_rise_above_1_where_the_task_says_so():
    pushes = {"pushes": level(slowly, 0.9, most=1.5, rise=0.4)}
    env = eased(curricula=pushes)
    for expected in ([1.3, 0.5, 0.5], [1.5, 0.1, 0.1]):
        env.step(torch.zeros(3, 21))
        assert env.state.per_env["level_pushes"].tolist() == pytest.approx(expected, abs=1e-6)


def test_levels_are_logged_as_shares_of_the_one_of_a_complete_training():
    env = eased(curricula={"pushes": level(slowly, 0.9, most=1.5, full=1.2, rise=0.4)})
    for _ in range(2):  # at 0.9 each, then at 1.3, 0.5, 0.5
        env.step(torch.zeros(3, 21))
    assert env.drain()["metric/level_pushes"] == pytest.approx((2.7 + 2.3) / 6 / 1.2, abs=1e-6)


def test_commands_beyond_their_ranges_are_refused():
    with pytest.raises(ValueError, match=r"curricula\.commands\.most"):
        Velocity(curricula={"commands": level(slowly, 0.0, most=2.0, rise=0.1)}).validate()


def test_commands_are_as_fast_as_the_level_allows():
    env = eased()
    assert env.state.episode.command[:, 0].tolist() == [0.5, 0.5, 0.5]
    env.step(torch.zeros(3, 21))
    env.state.episode.command_left = torch.zeros(3)
    env.step(torch.zeros(3, 21))
    assert env.state.episode.command[:, 0].tolist() == pytest.approx([0.9, 0.1, 0.1], abs=1e-6)


def test_pushes_are_as_strong_as_the_level_allows():
    hard = Pushes(speed=(2.0, 2.0), seconds=(0.02, 0.02))
    speeds = []
    for training in (True, False):
        env = eased(training, pushes=hard)
        env.state.episode.push_left = torch.zeros(3)
        env.step(torch.zeros(3, 21))
        speeds.append(env.backend.state.robot.base_lin_vel[:, :2].norm(dim=1).max())
    assert speeds[0] < 1.5 < speeds[1] < 3.0  # half of the episodes start with up to 0.5 m/s


def test_without_training_commands_have_their_full_range_and_there_is_no_level():
    env = eased(training=False)
    assert env.state.episode.command[:, 0].tolist() == [1.0, 1.0, 1.0]
    env.step(torch.zeros(3, 21))
    assert env.state.per_env == {}


def test_a_run_resumed_with_levels_goes_on_exactly(tmp_path):
    words = ["task=velocity", "robot=humanoid", "num_envs=8", "learner.num_steps=4", "device=cpu"]
    small = [*words, "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    whole = train(config.resolve([*small, "max_iterations=4", f"output={tmp_path / 'whole'}"]))
    half = train(config.resolve([*small, "max_iterations=2", f"output={tmp_path / 'half'}"]))
    train(config.resolve([*small, "max_iterations=4", f"resume={half}"]), ["max_iterations"])
    one, other = (torch.load(path / "latest.pt", weights_only=True) for path in (whole, half))
    for name in ("actor_state_dict", "averaged"):
        assert all(torch.equal(x, other[name][k]) for k, x in one[name].items())
    assert torch.equal(one["noise"], other["noise"])


def test_a_curriculum_of_something_else_is_refused():
    with pytest.raises(ConfigError, match=r"curricula\.terrain"):
        config.resolve(["task=velocity", "task.curricula.terrain=1"])
    with pytest.raises(ValueError, match=r"curricula\.terrain"):
        Velocity(curricula={"terrain": level(slowly, 0.0, rise=0.1)}).validate()


def test_levels_that_cannot_be_are_refused():
    def rising(state, ctx: Context, most: float) -> torch.Tensor:
        return most + torch.zeros_like(ctx.episode_time)

    for make in (lambda: level(rising, 0.0), lambda: level(slowly, 0.0, most=0.5, rise=0.1)):
        with pytest.raises(ConfigError, match="most"):
            make()
    for full in (0.5, 2.5):
        with pytest.raises(ConfigError, match=f"full {full}"):
            level(slowly, 0.0, most=2.0, full=full, rise=0.1)


@pytest.mark.parametrize(
    "given", [("task.curricula.pushes=4.5",), ("task.curricula.pushes.most=1", "task.curricula.pushes=1.6")]
)
def test_a_first_level_above_the_highest_one_is_refused(given: tuple[str, ...]):
    with pytest.raises(ConfigError, match=r"curricula\.pushes\.start=(4\.5|1\.6)"):
        config.resolve(["task=velocity", "robot=humanoid", *given])


def broken(state, ctx: Context, rise: float) -> torch.Tensor:
    """`rise`, but for the first environment, whose State means nothing."""
    first = torch.arange(len(ctx.episode_time)) == 0
    return torch.where(first, torch.nan, rise)


def test_a_diverged_environment_does_not_spoil_the_levels_of_the_others():
    env = eased(curricula={"pushes": level(broken, 0.5, rise=0.25)})
    first = torch.tensor([True, False, False])
    levels = env._curricula.changed(env.state.per_env, env.backend.state, env.ctx, first)
    assert levels["level_pushes"].tolist() == [0.5, 0.75, 0.75]


def wide(state, ctx: Context) -> torch.Tensor:
    return torch.zeros(len(ctx.episode_time), 1)


def test_a_curriculum_that_does_not_give_one_number_an_environment_is_named():
    with pytest.raises(ValueError, match=r"'commands'.*one number an environment"):
        eased(curricula={"commands": level(wide, 0.5)})


@dataclass
class Counting(Eased):
    """Counts the episodes of each environment, beside the levels."""

    def per_env_state(self, num_envs, random):
        return {"episodes": torch.zeros(num_envs)}

    def advance_per_env(self, state, ctx, done):
        return {"episodes": ctx.per_env_state["episodes"] + 1}


def test_a_task_with_levels_advances_its_own_per_env_state_alone():
    run = config.resolve(["task=velocity", "robot=humanoid", "device=cpu", "num_envs=2"])
    run.task.__class__ = Counting
    env = build_env(run, 2, training=True)
    env.state.episode.step = torch.tensor([env.max_episode_steps - 1, 0])
    env.step(torch.zeros(2, 21))
    assert env.state.per_env["episodes"].tolist() == [1.0, 0.0]
    assert env.state.per_env.keys() == {"level_pushes", "episodes"}
