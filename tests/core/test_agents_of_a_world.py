"""An Env whose environments are worlds as several agents see them: what agents share, and what each has of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.checksum import checksum
from robolearn.core.env import Env
from robolearn.core.recorder import Recorder, play_event
from robolearn.envs.agents import AgentBackend
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.state import State, Tensor
from robolearn.errors import ConfigError
from robolearn.simulation.posed import Posed
from robolearn.tasks.carry import PARTNER, Carry
from robolearn.tasks.cartpole_swingup import CartpoleSwingup
from robolearn.tasks.hopper_run import HopperRun
from robolearn.tasks.mdp.commands import Pushes
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Termination, ends
from robolearn.training import replay
from robolearn.training.build import build_env
from tests.factories import load_robot


@pytest.fixture
def carry() -> Iterator[Env]:
    env = build_env(config.resolve(["task=carry"]), 4)
    yield env
    env.close()


def far(state: State, ctx: Context) -> Tensor:
    """The agent itself has gone more than 0.3 m (N,) bool."""
    return state.robot.joint_pos[:, 0] > 0.3


@dataclass
class Wandering(Carry):
    """A world ends where one of its agents goes away."""

    terminations: dict[str, Termination] = field(default_factory=lambda: {"far": ends(far)})


@dataclass
class Seeing(Carry):
    """A policy that sees where the partner is."""

    observations: ClassVar = {
        **Carry.observations,
        "policy": (
            *Carry.observations["policy"],
            Observation("partner", lambda s, c: s.entities[PARTNER].joint_pos, "same"),
        ),
    }


@dataclass
class Knowing(Carry):
    """A policy that sees which agent it is."""

    observations: ClassVar = {**Carry.observations, "policy": (*Carry.observations["policy"], "agent_id")}


@dataclass
class Pushed(Carry):
    """A Backend pushes the first robot only."""

    pushes: Pushes | None = field(default_factory=Pushes)


def test_agents_of_a_world_get_one_command_and_noise_of_their_own(carry):
    assert carry.num_envs == 8
    commands = carry.ctx.command.view(4, 2, 2)
    assert torch.equal(commands[:, 0], commands[:, 1])
    assert len(commands[:, 0].unique(dim=0)) == 4
    # What agents observe of the command has no noise, of their own load it has.
    load = carry.observations["policy"][:, 6:8] - carry.observations["critic"][:, 6:8]
    assert (load.view(4, 2, 2)[:, 0] != load.view(4, 2, 2)[:, 1]).all()


def test_a_world_ends_where_one_of_its_agents_does(make_env):
    env = make_env(Wandering(start_noise=0.0), num_envs=2)
    ended = torch.zeros(4, dtype=torch.bool)
    action = torch.zeros(4, 2)
    action[3, 0] = 2.0  # the partner of world 1
    for _ in range(60):
        result = env.step(action)
        assert torch.equal(result.terminated.view(2, 2)[:, 0], result.terminated.view(2, 2)[:, 1])
        ended |= result.terminated
    assert ended.tolist() == [False, False, True, True]


def test_the_end_of_a_world_starts_all_of_its_agents_anew(make_env):
    env = make_env(Wandering(start_noise=0.0), num_envs=2)
    action = torch.zeros(4, 2)
    action[3, 0] = 2.0
    while not env.step(action).done.any():
        pass
    assert (env.episode_step[:2] > 0).all()
    assert env.episode_step[2:].tolist() == [0, 0]
    assert env.backend.state.robot.joint_pos[2:, 0].tolist() == [0.0, 0.0]


def test_agents_are_paid_by_what_they_see_and_do(carry):
    action = torch.zeros(8, 2)
    action[1] = 1.0  # effort: -0.01, and a change of the action, -0.02, each for two actions and 0.02 s
    reward = carry.step(action).reward.view(4, 2)
    assert torch.allclose(reward[0, 0] - reward[0, 1], torch.tensor(2 * 0.03 * 0.02), atol=1e-7)
    assert torch.equal(reward[1:, 0], reward[1:, 1])


@pytest.mark.parametrize("plain", [CartpoleSwingup, HopperRun])
def test_one_agent_by_the_way_of_several_is_the_task_without_agents_bit_for_bit(make_env, plain):
    two, robot = make_env(plain(), seed=3), load_robot(plain.robot)
    scene = plain().scene(robot)
    one = Env(plain(), robot, AgentBackend(MujocoBackend(scene, 16), scene, ("robot",)), seed=3)
    generator = torch.Generator().manual_seed(0)
    ended = False
    for _ in range(80):
        action = torch.randn(16, one.num_actions, generator=generator)
        a, b = one.step(action), two.step(action)
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.done, b.done)
        for group, seen in a.observations.items():
            assert torch.equal(seen, b.observations[group])
        ended |= bool(a.done.any())
    one.close()
    assert ended or plain is CartpoleSwingup  # whose episodes do not end early


def test_a_policy_that_observes_the_partner_is_refused_by_name(make_env):
    with pytest.raises(ConfigError, match="partner"):
        make_env(Seeing(), num_envs=2)


def test_the_last_second_of_a_world_is_replayed_bit_for_bit(carry):
    recorder = Recorder.install(carry)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        carry.step(0.5 * torch.randn(8, 2, generator=generator))
    dump = recorder.dump(5)  # the partner of world 2
    alone = MujocoBackend(carry.scene, 1)
    alone.restore(dump["snapshot"])
    for event in dump["events"]:
        play_event(alone, event)
    assert checksum(alone.state) == dump["checksum"]
    sees = carry.backend.state.robot.joint_pos[5]
    assert torch.equal(alone.state.entities[PARTNER].joint_pos[0], sees)


def test_a_world_looks_the_same_as_each_of_its_agents_sees_it(carry):
    carry.step(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    qpos = Posed(carry.scene).placing.qpos(carry.backend.state)
    assert np.array_equal(qpos[::2], qpos[1::2])
    assert not np.array_equal(qpos[0], qpos[2])


def test_the_agents_of_a_world_have_one_clock(make_env):
    env = make_env(Carry(episode_length_s=0.2), num_envs=2)
    env.episode_step = torch.tensor([3, 9, 5, 0])
    assert env.episode_step.tolist() == [3, 3, 5, 5]
    done = [env.step(torch.zeros(4, 2)).done.tolist() for _ in range(7)]
    assert done[4] == [False, False, True, True]
    assert done[6] == [True, True, False, False]


@pytest.mark.parametrize("look", [lambda x: x.roll(1, 0), lambda x: x.view(-1, 2, 2).flip(1).view(-1, 2)])
def test_a_policy_that_looks_at_the_neighbouring_row_is_refused_by_name(make_env, look):
    item = Observation("neighbour", lambda s, c: look(s.robot.joint_pos), "same")

    @dataclass
    class Looking(Carry):
        observations: ClassVar = {**Carry.observations, "policy": (*Carry.observations["policy"], item)}

    with pytest.raises(ConfigError, match="'neighbour'"):
        make_env(Looking(), num_envs=2)


def test_an_initial_state_without_one_of_the_agents_is_refused_by_its_name(make_env):
    class Forgetting(Carry):
        def initial_state(self, num_envs, ctx, random):
            return {k: v for k, v in super().initial_state(num_envs, ctx, random).items() if k != PARTNER}

    with pytest.raises(ConfigError, match=f"'{PARTNER}'"):
        make_env(Forgetting(), num_envs=2)


@pytest.mark.parametrize("agents", [("robot", "partner", "partner"), ("robot", 3), "robot", 3])
def test_agents_that_are_no_names_or_one_twice_are_refused(agents):
    class Wrong(Carry):
        pass

    Wrong.agents = agents
    with pytest.raises(ValueError, match=r"^agents="):
        Wrong().validate()


def test_a_shared_policy_can_tell_which_agent_it_is(make_env):
    env = make_env(Knowing(), num_envs=2)
    assert env.observations["policy"][:, -2:].tolist() == [[1.0, 0.0], [0.0, 1.0]] * 2


def test_agents_cannot_be_pushed_and_the_message_names_the_agents():
    with pytest.raises(ValueError, match="agents"):
        Pushed().validate()


def test_whether_agents_end_together_is_true_or_false_and_nothing_else():
    class Perhaps(Carry):
        ends_together: ClassVar[bool] = "no"  # type: ignore[assignment]

    with pytest.raises(ValueError, match="ends_together='no'"):
        Perhaps().validate()


def test_agents_go_on_from_a_snapshot_as_they_did(carry):
    generator = torch.Generator().manual_seed(0)
    actions = [0.3 * torch.randn(8, 2, generator=generator) for _ in range(6)]
    carry.step(actions[0])
    snapshot = carry.snapshot()
    first = [carry.step(action).observations["critic"].clone() for action in actions]
    carry.restore(snapshot)
    again = [carry.step(action).observations["critic"].clone() for action in actions]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# ---------------------------------------------------------------------- agents that end one by one


@dataclass
class Leaving(Wandering):
    """An agent that goes away ends, and its world goes on for the other."""

    ends_together: ClassVar[bool] = False


def leaving(*words: str, num_envs: int = 2) -> Env:
    task = f"{__file__}:Leaving"
    return build_env(config.resolve([f"task={task}", *words]), num_envs)


def test_an_agent_that_ends_is_left_out_until_its_world_starts_anew(monkeypatch):
    env = leaving()
    away: dict[int, bool] = {}
    monkeypatch.setitem(
        env._terminations, "far", lambda s, c: torch.tensor([away.get(i, False) for i in range(4)])
    )
    stay = torch.zeros(4, 2)

    away = {1: True}  # the partner of world 0
    result = env.step(stay)
    assert result.terminated.tolist() == [False, True, False, False]
    assert result.valid is not None
    assert result.valid.tolist() == [True, True, True, True]
    assert env.episode_step.tolist() == [1, 1, 1, 1]

    result = env.step(stay)  # it is still away, and has ended before
    assert result.terminated.tolist() == [False] * 4
    assert result.valid.tolist() == [True, False, True, True]
    assert result.reward[1] == 0.0
    assert result.reward[0] != 0.0

    away = {0: True}
    result = env.step(stay)  # the last one of world 0
    assert result.terminated.tolist() == [True, False, False, False]
    assert result.valid.tolist() == [True, False, True, True]
    assert env.episode_step.tolist() == [0, 0, 3, 3]

    away = {}
    result = env.step(stay)
    assert result.valid.tolist() == [True] * 4
    # Episodes of one and of three steps of 20 ms have ended; the two steps after an end are no steps.
    found = env.drain()
    assert (found["episodes"], found["steps"]) == (2, 14)
    assert found["episode/length"] == pytest.approx(0.04)
    env.close()


def test_time_runs_out_for_those_that_are_left(monkeypatch):
    env = leaving("task.episode_length_s=0.06")
    away = {1: True}
    monkeypatch.setitem(
        env._terminations, "far", lambda s, c: torch.tensor([away.get(i, False) for i in range(4)])
    )
    env.step(torch.zeros(4, 2))
    env.step(torch.zeros(4, 2))
    result = env.step(torch.zeros(4, 2))
    assert result.truncated.tolist() == [True, False, True, True]
    assert result.terminated.tolist() == [False] * 4
    assert env.episode_step.tolist() == [0, 0, 0, 0]
    env.close()


def test_a_snapshot_knows_which_agents_have_ended(monkeypatch):
    env = leaving()
    away = {1: True}
    monkeypatch.setitem(
        env._terminations, "far", lambda s, c: torch.tensor([away.get(i, False) for i in range(4)])
    )
    env.step(torch.zeros(4, 2))
    saved = env.snapshot()
    env.reset()
    env.restore(saved)
    result = env.step(torch.zeros(4, 2))
    assert result.valid is not None
    assert result.valid.tolist() == [True, False, True, True]
    env.close()


def test_the_table_of_a_replay_is_about_the_agent_that_was_recorded(carry, tmp_path, capsys):
    recorder = Recorder.install(carry)
    action = torch.zeros(8, 2)
    action[5, 1] = 5.0  # the partner of world 2 lifts its tray as fast as it can
    for _ in range(5):
        carry.step(action)
    speed = float(carry.backend.state.robot.joint_vel[5].abs().max())
    assert speed > 2 * float(carry.backend.state.robot.joint_vel[4].abs().max())
    file = tmp_path / "partner.replay"
    replay.write(file, recorder.dump(5), 5, config.resolve(["task=carry"]), "a test")
    assert main(["replay", str(file), "--rows", "1"]) == 0
    said = capsys.readouterr().out
    assert "environment 5, partner" in said
    assert f"{speed:.1f} m/s lift" in said


# ---------------------------------------------------------------------- what stands on agents that end one by one


def first_ends(state: State, ctx: Context) -> Tensor:
    """The first agent of a world ends after 0.1 s (N,) bool."""
    first = state.sensors["agent"][:, 0] > 0.5
    return first & (ctx.episode_time > 0.09)


@dataclass
class Ending(Carry):
    """The first agent ends early in every episode, and its world goes on for the second."""

    terminations: dict[str, Termination] = field(default_factory=lambda: {"first": ends(first_ends)})
    ends_together: ClassVar[bool] = False


ENDING = [f"task={__file__}:Ending", "task.episode_length_s=0.4"]
SMALL = ["num_envs=8", "torch_threads=1", "learner.minibatch_size=96"]


def trained(folder: Path, *words: str) -> Path:
    assert main(["train", *ENDING, *SMALL, *words, f"output={folder}"]) == 0
    return folder


def test_steps_of_agents_that_have_ended_are_in_no_batch_and_resume_bit_for_bit(tmp_path):
    trained(tmp_path / "straight", "max_iterations=4")
    trained(tmp_path / "resumed", "max_iterations=2")
    assert main(["train", f"resume={tmp_path / 'resumed'}", ENDING[0], "max_iterations=4"]) == 0
    straight, resumed = (
        torch.load(tmp_path / name / "latest.pt", weights_only=True) for name in ("straight", "resumed")
    )
    for name, value in straight["actor_state_dict"].items():
        assert torch.equal(value, resumed["actor_state_dict"][name])
    # Of 4 iterations with 24 steps of 16 agents, some are those of agents that had ended.
    assert 0 < straight["infos"]["steps"] < 4 * 24 * 16


def test_a_policy_whose_agents_have_all_ended_learns_nothing_in_that_iteration(tmp_path):
    # The first agent ends after 5 of 20 steps, and a batch has 8: often it has no step in one.
    two = [
        "learner.policies={robot: a, partner: b}",
        "learner.num_steps=8",
        "num_envs=2",
        "learner.minibatch_size=16",
    ]
    folder = trained(tmp_path / "run", *two, "max_iterations=8")
    weights = torch.load(folder / "latest.pt", weights_only=True)
    assert all(bool(torch.isfinite(value).all()) for value in weights["a.actor_state_dict"].values())


def test_a_policy_with_memory_of_its_last_action_is_exported_where_agents_end_one_by_one(tmp_path):
    folder = trained(tmp_path / "run", "max_iterations=1")
    quick = [
        "--starts",
        "4",
        "--seconds",
        "0.4",
        "--measure-seconds",
        "0",
        "--output",
        str(tmp_path / "bundle"),
    ]
    assert main(["export", str(folder), ENDING[0], *quick]) == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["guard=on"], "guard=on"),
        (["learner.team_value=true"], "ends_together"),
        (["learner.rnn=gru"], "ends_together"),
        (["learner.policies={robot: a, partner: b}", "ranks=1"], "learner.policies"),
        (["learner.self_play=0.5"], "learner.self_play"),
    ],
)
def test_what_needs_agents_that_end_together_is_refused_by_name(words, named, tmp_path, capsys):
    assert main(["train", *ENDING, "num_envs=16", *words, f"output={tmp_path / 'run'}"]) == 2
    assert named in capsys.readouterr().err
