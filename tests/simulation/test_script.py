"""Scripts of commands and pushes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.errors import ConfigError
from robolearn.simulation.script import Director, Push, Script, give_commands
from robolearn.tasks.mdp.terms import forward_axis
from robolearn.training.build import make_env

CALM = [
    "task.pushes.speed=[0,0]",
    "task.pushes.box=[0,0,0]",
    "task.pushes.turn=[0,0,0]",
    "task.moving_starts=0",
]


def walker(*settings: str, num_envs: int = 3) -> Env:
    words = ["task=humanoid_walk", "backend=mujoco", "backend.threads=1", *CALM, *settings]
    return make_env(config.resolve(words), num_envs=num_envs)


def stand(env: Env, steps: int, director: Director | None = None) -> list[dict[str, torch.Tensor]]:
    """Hold the home pose; what each step saw."""
    seen = []
    for _ in range(steps):
        told = director.before_step() if director else {}
        env.step(torch.zeros(env.num_envs, env.num_actions))
        seen.append({**told, "command": env.ctx.command.clone(), "since": env.ctx.command_time.clone()})
    return seen


def test_commands_change_at_their_times_and_the_first_holds_from_the_start() -> None:
    env = walker()
    script = Script.of([{"at": 0, "forward": 0.5}, {"at": 0.1, "yaw": -0.2}], None)
    director = Director(env, script)
    env.reset()
    assert env.ctx.command.tolist() == [[0.5, 0, 0]] * 3
    seen = stand(env, 7, director)
    forward = [float(step["command"][0, 0]) for step in seen]
    # A control step is 0.02 s: the observation at 0.1 s, after the fifth step, shows the second command.
    assert forward == pytest.approx([0.5] * 4 + [0.0] * 3)
    assert float(seen[4]["command"][0, 2]) == pytest.approx(-0.2)
    # The time since the command counts from 0.1 s on: one and two steps after the sixth and the seventh.
    assert [float(step["since"][0]) for step in seen[4:]] == pytest.approx([0.1, 0.02, 0.04])


def test_a_push_jumps_the_base_once_by_its_speed_in_its_direction() -> None:
    env = walker(num_envs=2)
    director = Director(env, Script.of(None, [{"at": 0.04, "speed": 0.8, "direction": "left", "up": 0.1}]))
    env.reset()
    told = stand(env, 6, director)
    assert [bool(step["pushed"][0]) for step in told] == [False, False, True, False, False, False]
    # The jump is to the left of where each base faces.
    assert told[2]["jump"][:, 2].tolist() == pytest.approx([0.1, 0.1])
    size = told[2]["jump"][:, :2].norm(dim=1)
    assert size.tolist() == pytest.approx([0.8, 0.8])


def test_a_force_acts_for_its_time_in_its_direction_and_others_add_to_it() -> None:
    left = {"at": 0.04, "force": 80, "lasting": 0.06, "direction": "left"}
    told = {}
    moved = {}
    for pushes in (
        [left],
        [left, {"at": 0.08, "force": 60, "lasting": 0.02}],
        [{"at": 0.04, "speed": 0.0, "up": 1e-9}],
    ):
        env = walker(num_envs=2)
        director = Director(env, Script.of(None, pushes))
        env.reset()
        ahead = forward_axis(env.backend.state.robot.base_quat)
        told[len(told)] = stand(env, 7, director)
        across = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        moved[len(moved)] = env.backend.state.robot.base_lin_vel[:, 1].clone()
    # A control step is 0.02 s: steps 2, 3 and 4. The robot hardly turns in so short a time.
    assert [round(float(step["force"][0].norm())) for step in told[0]] == [0, 0, 80, 80, 80, 0, 0]
    assert ((told[0][2]["force"][:, :2] * across).sum(dim=1) / 80).tolist() == pytest.approx([1, 1], abs=0.01)
    assert [bool(step["pushed"][0]) for step in told[0]] == [False, False, True, False, False, False, False]
    # Ahead and to the left at right angles: 60 and 80 N make 100 N.
    assert [round(float(step["force"][0].norm())) for step in told[1]] == [0, 0, 80, 80, 100, 0, 0]
    assert "force" not in told[2][2]
    # 4.8 Ns on a humanoid of 33 kg, on its base first: more than the 0.05 m/s at which it drifts.
    assert float((moved[0] - moved[2]).min()) > 0.05


def test_a_force_ends_with_its_episode() -> None:
    env = walker(num_envs=2)
    director = Director(env, Script.of(None, [{"at": 0.02, "force": 50, "lasting": 1}]))
    env.reset()
    stand(env, 3, director)
    env.state.episode.step[0] = env.max_episode_steps  # the first starts anew after the next step
    seen = stand(env, 3, director)
    # In its new episode the force begins at 0.02 s again; the other's goes on.
    assert [[round(float(f)) for f in step["force"].norm(dim=1)] for step in seen] == [
        [50, 50],
        [0, 50],
        [50, 50],
    ]


def test_a_script_takes_away_a_force_that_still_acts() -> None:
    strong = ["task.pushes.force=[90,90]", "task.pushes.seconds=[0.04,0.04]", "task.pushes.lasting=[9,9]"]
    env = walker(*strong, num_envs=1)
    env.reset()
    stand(env, 3)
    applied = []
    apply = env.backend.apply_force
    env.backend.apply_force = lambda force: (applied.append(float(force.norm())), apply(force))  # type: ignore[method-assign]
    director = Director(env, Script.of(None, [{"at": 0.2, "speed": 0.1}]))
    stand(env, 3, director)
    assert applied == [0.0]
    assert float(env.state.episode.shove["force"].norm()) == 0


def test_a_force_is_refused_on_a_backend_without_forces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MujocoBackend, "features", MujocoBackend.features - {"forces"})
    with pytest.raises(ConfigError, match=r"here: pushes.*mujoco"):
        Director(walker(num_envs=1), Script.of(None, [{"at": 1, "force": 50}]), where="here: ")


@pytest.mark.parametrize(("at", "step"), [(0.0, 0), (0.01, 0), (0.03, 2), (0.05, 2), (0.055, 3)])
def test_a_push_between_two_control_steps_comes_with_the_nearer_one(at, step) -> None:
    env = walker(num_envs=1)
    director = Director(env, Script.of(None, [{"at": at, "speed": 0.1}]))
    env.reset()
    told = stand(env, 6, director)
    assert [bool(each["pushed"][0]) for each in told].index(True) == step
    assert sum(bool(each["pushed"][0]) for each in told) == 1


def test_the_same_seed_draws_the_same_directions_and_they_differ_between_envs() -> None:
    jumps = []
    for seed in (1, 1, 2):
        env = walker(num_envs=4)
        director = Director(env, Script.of(None, [{"at": 0, "speed": 1.0, "direction": "random"}]), seed)
        env.reset()
        jumps.append(director.before_step()["jump"])
    assert torch.equal(jumps[0], jumps[1])
    assert not torch.equal(jumps[0], jumps[2])
    assert len({round(float(x), 4) for x in jumps[0][:, 0]}) == 4


def test_given_commands_replace_those_of_the_task_until_they_are_taken_away() -> None:
    env = walker("task.commands.forward=[0.9,0.9]", "task.commands.standing=0", "task.commands.heading=0")
    give_commands(env, lambda own, state, ctx: torch.full_like(own, 0.25))
    env.reset()
    assert env.ctx.command.tolist() == [[0.25] * 3] * 3
    give_commands(env, lambda own, state, ctx: own)
    env.reset()
    assert env.ctx.command[:, 0].tolist() == pytest.approx([0.9] * 3)


def test_paired_envs_draw_the_same_commands_however_their_episodes_end() -> None:
    drawn = []
    for falls in (False, True):
        env = walker("task.commands.seconds=[0.1,0.2]", num_envs=2)
        env.paired = True
        env.reset()
        kept = []
        for step in range(30):
            if falls and step == 3:
                env.state.episode.step[0] = env.max_episode_steps  # env 0 starts anew, env 1 goes on
            env.step(torch.zeros(2, env.num_actions))
            kept.append(env.ctx.command[1].clone())
        drawn.append(torch.stack(kept))
    assert torch.equal(drawn[0], drawn[1])
    assert len(drawn[0].unique(dim=0)) > 2


@pytest.mark.parametrize(
    ("commands", "pushes", "offender"),
    [
        ([{"at": 1, "forward": 1}], None, "commands"),
        ([{"at": 0, "forward": 1}, {"at": 0, "forward": 2}], None, "commands"),
        ({"forward": "fast"}, None, "commands.forward"),
        ({"forward": math.inf}, None, "commands.forward"),
        ({"forward": True}, None, "commands.forward"),
        ("quickly", None, "commands"),
        (None, [{"at": -1, "speed": 1}], "pushes[0].at"),
        (None, [{"at": 1, "speed": -1}], "pushes[0].speed"),
        (None, [{"at": 1, "speed": 1, "direction": "lefft"}], "pushes[0].direction"),
        (None, [{"at": 1, "sped": 1}], "pushes[0]"),
        (None, [{"at": 1}], "pushes[0]"),
        (None, [{"at": 1, "turn": [1, 2]}], "pushes[0].turn"),
        (None, [{"at": 1, "force": -5}], "pushes[0].force"),
        (None, [{"at": 1, "force": 1e9}], "pushes[0].force"),
        (None, [{"at": 1, "force": 5, "lasting": 0}], "pushes[0].lasting"),
        (None, [{"at": 1, "speed": 1, "lasting": 0.5}], "pushes[0].lasting"),
    ],
)
def test_an_invalid_script_is_refused_by_its_place(commands, pushes, offender) -> None:
    with pytest.raises(ConfigError) as caught:
        Script.of(commands, pushes)
    assert str(caught.value).startswith(offender)


def test_a_command_that_the_task_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="foward"):
        Director(walker(), Script.of({"foward": 1.0}, None))


def test_a_robot_on_a_fixed_base_cannot_be_pushed() -> None:
    env = make_env(config.resolve(["task=cartpole_balance", "backend=mujoco"]), num_envs=1)
    with pytest.raises(ConfigError, match="cartpole"):
        Director(env, Script((), (Push(1.0, 1.0, 0.0),)))


def test_an_episode_starts_as_its_first_command_asks_not_as_a_drawn_one() -> None:
    # Every episode starts at up to the commanded speed, and drawn commands are all 1 m/s.
    fast = ["task.moving_starts=1", "task.commands.forward=[1,1]", "task.commands.standing=0"]
    env = walker(*fast)
    assert float(env.backend.state.robot.base_lin_vel.abs().max()) > 0.1
    Director(env, Script.of([{"at": 0}, {"at": 1, "forward": 1.0}], None))
    env.reset()
    assert env.backend.state.robot.base_lin_vel.tolist() == [[0.0, 0.0, 0.0]] * 3


def test_a_script_is_read_from_a_file_and_other_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("commands: {forward: 0.5}\npushes: [{at: 1, speed: 1, direction: left}]\n")
    assert Script.read(file) == Script(((0.0, {"forward": 0.5}),), (Push(1.0, 1.0, 90.0),))
    file.write_text("comands: {forward: 0.5}\n")
    with pytest.raises(ConfigError, match="comands"):
        Script.read(file)
    file.write_text("pushes: [{at: 1, sped: 1}]\n")
    with pytest.raises(ConfigError, match=r"script\.yaml.*sped"):
        Script.read(file)
