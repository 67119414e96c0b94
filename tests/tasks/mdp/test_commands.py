"""Commands of velocity, heading and pose, and the ranges of commands, pushes, noise and physical parameters."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from robolearn import config
from robolearn.config import fields
from robolearn.core.contract import contract_of
from robolearn.envs.state import quat_rotate
from robolearn.errors import ConfigError
from robolearn.tasks.humanoid_walk import HumanoidWalk
from robolearn.tasks.mdp.commands import Command, Drawn, PoseCommands, VelocityCommands, quat_of
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.observations import VOCABULARY
from robolearn.tasks.mdp.symmetry import sagittal
from robolearn.tasks.stand import Stand
from tests.factories import load_robot

CPU = torch.device("cpu")
HALF = math.sqrt(0.5)


def facing(*headings: float) -> SimpleNamespace:
    """A State of robots that stand upright and face along `headings` [rad]."""
    half = torch.tensor(headings) / 2
    zeros = torch.zeros(len(headings))
    return SimpleNamespace(
        robot=SimpleNamespace(base_quat=torch.stack((half.cos(), zeros, zeros, half.sin()), dim=-1))
    )


def at_level(level: float | None = None) -> SimpleNamespace:
    """A Context of environments at a level of the curriculum of commands; None: without one."""
    state = {} if level is None else {"level_commands": torch.tensor([level])}
    return SimpleNamespace(per_env_state=state)


def steered(
    commands: VelocityCommands, targets: list[float], state: SimpleNamespace, level: float | None = None
) -> torch.Tensor:
    """The commands that follow from (0.3, 0.1, 0.7) where each steers to its target heading."""
    values = torch.tensor([[0.3, 0.1, 0.7]]).repeat(len(targets), 1)
    aim = {"heading": torch.tensor(targets), "steers": torch.ones(len(targets), dtype=torch.bool)}
    return commands.follow(values, aim, state, at_level(level))


def test_a_turning_rate_is_the_gain_times_the_angle_left_to_the_heading():
    commands = VelocityCommands(yaw=(-2.0, 2.0), heading_gain=0.5)
    # 1 - 0.2 = 0.8 to the left; -1 - 0.2 = 1.2 to the right.
    follows = steered(commands, [1.0, -1.0], facing(0.2, 0.2))
    assert follows[:, 2].tolist() == pytest.approx([0.4, -0.6], abs=1e-6)
    assert follows[:, :2].tolist() == [[pytest.approx(0.3), pytest.approx(0.1)]] * 2


def test_a_heading_is_reached_the_shorter_way_round():
    commands = VelocityCommands(yaw=(-2.0, 2.0), heading_gain=1.0)
    # From 3 to -3 rad it is 2 pi - 6 = 0.2832 to the left, not 6 to the right.
    follows = steered(commands, [-3.0, 3.0], facing(3.0, -3.0))
    assert follows[:, 2].tolist() == pytest.approx([0.283185, -0.283185], abs=1e-5)


def test_the_turning_rate_to_a_heading_stays_within_the_range_of_yaw():
    commands = VelocityCommands(yaw=(-0.4, 0.3), heading_gain=10.0)
    assert steered(commands, [1.0, -1.0], facing(0.0, 0.0))[:, 2].tolist() == pytest.approx([0.3, -0.4])


def test_the_turning_rate_to_a_heading_is_as_large_as_the_level_of_the_commands():
    commands = VelocityCommands(yaw=(-0.4, 0.3), heading_gain=10.0)
    assert steered(commands, [1.0, -1.0], facing(0.0, 0.0), 0.1)[:, 2].tolist() == pytest.approx(
        [0.03, -0.04]
    )


def test_a_command_that_does_not_steer_keeps_its_turning_rate():
    aim = {"heading": torch.tensor([1.0, 1.0]), "steers": torch.tensor([False, True])}
    values = torch.tensor([[0.3, 0.1, 0.7]]).repeat(2, 1)
    follows = VelocityCommands(heading_gain=0.5).follow(values, aim, facing(0.0, 0.0), at_level())
    assert follows[:, 2].tolist() == pytest.approx([0.7, 0.5])


def test_a_command_to_stand_steers_to_no_heading():
    drawn = VelocityCommands(standing=0.5, heading=1.0, forward=(1.0, 1.0)).sample(1000, Random(1, CPU))
    standing = (drawn.values == 0).all(dim=1)
    assert 400 < standing.sum() < 600
    assert torch.equal(drawn.aim["steers"], ~standing)


def test_a_share_of_the_commands_steers_to_a_heading_within_the_range():
    commands = VelocityCommands(standing=0.0, heading=0.3, heading_range=(0.5, 1.0))
    aim = commands.sample(2000, Random(1, CPU)).aim
    assert 0.25 < aim["steers"].float().mean() < 0.35
    assert 0.5 <= aim["heading"].min() < 0.52
    assert 0.98 < aim["heading"].max() <= 1.0


def test_without_heading_control_no_further_random_number_is_drawn():
    plain, steering = Random(3, CPU), Random(3, CPU)
    one, two = VelocityCommands().sample(8, plain), VelocityCommands(heading=0.5).sample(8, steering)
    assert one.aim == {}
    assert torch.equal(one.values, two.values)
    assert torch.equal(one.seconds, two.seconds)
    by_hand = Random(3, CPU)
    low, high = (-0.5, -0.3, -0.8), (1.0, 0.3, 0.8)
    values = by_hand.uniform(low, high, 8) * (by_hand.uniform(0.0, 1.0, 8, 1) >= 0.2)
    assert torch.equal(one.values, values)
    assert torch.equal(one.seconds, by_hand.uniform(3.0, 8.0, 8))
    assert torch.equal(plain.generator.get_state(), by_hand.generator.get_state())


def test_roll_pitch_and_yaw_become_a_quaternion_of_turns_about_the_fixed_axes():
    quarter = math.pi / 2
    quats = quat_of(
        torch.tensor(
            [[quarter, 0, 0], [0, quarter, 0], [0, 0, quarter], [quarter, 0, quarter], [0, 0, 3 * quarter]]
        )
    )
    # sin and cos of 45 degrees are sqrt(1/2). Roll, then yaw: z * x = (h + h k)(h + h i) = 1/2 (1 + i + j + k).
    # Yaw by 270 degrees: cos(135) = -h, sin(135) = h.
    expected = [
        [HALF, HALF, 0, 0],
        [HALF, 0, HALF, 0],
        [HALF, 0, 0, HALF],
        [0.5, 0.5, 0.5, 0.5],
        [-HALF, 0, 0, HALF],
    ]
    torch.testing.assert_close(quats, torch.tensor(expected), atol=1e-6, rtol=0)


def test_the_quaternion_of_a_gripper_that_points_down_is_continuous_in_its_yaw():
    angles = torch.tensor([[0.0, math.pi, yaw] for yaw in (-0.02, -0.01, 0.0, 0.01, 0.02)])
    steps = quat_of(angles).diff(dim=0).norm(dim=1)
    # 0.01 rad turn a unit quaternion by 0.005.
    torch.testing.assert_close(steps, torch.full((4,), 0.005), atol=1e-6, rtol=0)


def test_pose_commands_are_positions_within_their_ranges_and_unit_quaternions():
    commands = PoseCommands(
        x=(0.2, 0.4), y=(-0.1, 0.1), z=(0.5, 0.5), roll=(-3, 3), pitch=(-1, 1), yaw=(-3, 3)
    )
    values, seconds, aim = commands.sample(500, Random(1, CPU))
    assert values.shape == (500, 7)
    assert aim == {}
    for column, name in enumerate(commands.names):
        low, high = commands.ranges()[name]
        assert low <= values[:, column].min()
        assert values[:, column].max() <= high
    assert torch.allclose(values[:, 3:].norm(dim=1), torch.ones(500), atol=1e-5)
    assert seconds.min() >= 3.0
    assert seconds.max() <= 6.0


def test_pose_commands_without_orientation_are_positions():
    commands = PoseCommands(orientation=False)
    assert commands.names == ("x", "y", "z")
    assert commands.units == ("m", "m", "m")
    assert commands.sample(4, Random(1, CPU)).values.shape == (4, commands.width) == (4, 3)
    assert list(commands.ranges()) == ["x", "y", "z"]


@dataclass
class Reach(Stand):
    """Stands, and observes where its hand should be."""

    commands: PoseCommands | None = field(default_factory=lambda: PoseCommands(seconds=(0.1, 0.1)))
    observations: ClassVar = {name: (*items, "pose_commands") for name, items in Stand.observations.items()}


def test_a_task_with_pose_commands_redraws_and_observes_them(make_env):
    env = make_env(Reach())
    names = [(item.name, width) for item, width in env.columns["policy"]]
    assert names[-1] == ("pose_commands", 7)
    first = env.ctx.command.clone()
    assert torch.equal(env.observations["policy"][:, -7:], first)
    for _ in range(4):
        env.step(torch.zeros(env.num_envs, env.num_actions))
    assert torch.equal(env.ctx.command, first)
    env.step(torch.zeros(env.num_envs, env.num_actions))  # 5 steps of 0.02 s are 0.1 s
    assert not torch.isclose(env.ctx.command[:, 0], first[:, 0]).all()


def test_the_contract_of_pose_commands_names_their_columns(make_env):
    contract = contract_of(make_env(Reach()))
    assert contract.command == ["x", "y", "z", "qw", "qx", "qy", "qz"]
    assert contract.observations[-1] == {
        "name": "pose_commands",
        "width": 7,
        "column": contract.observations[-1]["column"],
    }


@pytest.mark.parametrize("orientation", [True, False])
def test_the_mirror_image_of_a_pose_command_is_the_pose_behind_the_mirror(orientation: bool):
    angles = torch.tensor([[0.3, -0.4, 1.1]])
    pose = torch.cat((torch.tensor([[0.4, 0.2, 0.3]]), quat_of(angles)), dim=1)[:, : 7 if orientation else 3]
    item = VOCABULARY["pose_commands"]
    mirror = sagittal(load_robot("humanoid"), {"policy": [(item, pose.shape[1])]}, CPU).groups["policy"]
    image = mirror(pose)
    assert image[0, :3].tolist() == pytest.approx([0.4, -0.2, 0.3])
    assert torch.equal(mirror(image), pose)
    if orientation:
        # Where the hand points, v, is seen in the mirror as (vx, -vy, vz): x and z axes of the hand keep their
        # meaning, its y axis points to the other side.
        for axis, sign in (([1.0, 0, 0], 1), ([0, 1.0, 0], -1), ([0, 0, 1.0], 1)):
            one = quat_rotate(pose[:, 3:], torch.tensor([axis]))
            other = quat_rotate(image[:, 3:], torch.tensor([axis]))
            seen = one * torch.tensor([1.0, -1.0, 1.0]) * sign
            torch.testing.assert_close(other, seen, atol=1e-6, rtol=0)


def test_commands_that_steer_follow_the_robot_every_step_and_in_the_first_state(make_env):
    task = HumanoidWalk()
    task.commands = VelocityCommands(heading=1.0, standing=0.0, yaw=(-9.0, 9.0), heading_gain=1.0)
    env = make_env(task)

    def left() -> torch.Tensor:
        w, x, y, z = env.backend.state.robot.base_quat.unbind(-1)
        angle = env.state.episode.aim["heading"] - torch.atan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))
        return torch.atan2(angle.sin(), angle.cos())

    assert torch.allclose(env.ctx.command[:, 2], left(), atol=1e-5)
    targets = env.state.episode.aim["heading"].clone()
    for _ in range(3):
        env.step(torch.ones(env.num_envs, env.num_actions))
        assert torch.allclose(env.ctx.command[:, 2], left(), atol=1e-5)
    assert torch.equal(env.state.episode.aim["heading"], targets)


def test_a_new_episode_and_an_expired_command_bring_a_new_target_heading(make_env):
    task = HumanoidWalk(episode_length_s=0.06)
    task.commands = VelocityCommands(heading=1.0, standing=0.0, seconds=(0.04, 0.04))
    env = make_env(task)
    seen = [env.state.episode.aim["heading"].clone()]
    for _ in range(3):
        env.step(torch.zeros(env.num_envs, env.num_actions))
        seen.append(env.state.episode.aim["heading"].clone())
    assert [torch.equal(a, b) for a, b in itertools.pairwise(seen)] == [True, False, False]


def test_aims_are_part_of_a_snapshot(make_env):
    task = HumanoidWalk()
    task.commands = VelocityCommands(heading=0.5)
    env, again = make_env(task), make_env(task, seed=2)
    again.restore(env.snapshot())
    assert torch.equal(again.state.episode.aim["heading"], env.state.episode.aim["heading"])
    assert torch.equal(again.state.episode.aim["steers"], env.state.episode.aim["steers"])


def test_the_command_in_the_documentation_draws_one_height_an_environment(make_env):
    page = (Path(__file__).resolve().parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")
    (block,) = [
        part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "HeightCommands" in part
    ]
    found: dict = {"__name__": __name__}
    exec(block, found)  # noqa: S102
    task = Stand()
    task.commands = found["HeightCommands"](height=(0.5, 0.6))
    env = make_env(task)
    assert env.ctx.command.shape == (16, 1)
    assert env.ctx.command.min() >= 0.5
    assert env.ctx.command.max() <= 0.6
    assert contract_of(env).command == ["height"]


@dataclass
class Hop(Command):
    """A command with a mistake: two names and three columns."""

    @property
    def names(self):
        return ("height", "speed")

    @property
    def units(self):
        return ("m", "m/s")

    def ranges(self):
        return {"height": (0.0, 1.0), "speed": (0.0, 1.0)}

    def sample(self, num_envs, random):
        return Drawn(random.uniform(0.0, 1.0, num_envs, 3), random.uniform(1.0, 1.0, num_envs), {})


@dataclass
class Hops(Stand):
    commands: Hop | None = field(default_factory=Hop)


def test_a_command_whose_values_do_not_fit_its_names_is_refused_by_name(make_env):
    with pytest.raises(ConfigError, match=r"commands\.sample\(\): values.*2"):
        make_env(Hops())


@dataclass
class Loose(Hop):
    """A command with a mistake: a tuple instead of Drawn."""

    def sample(self, num_envs, random):
        return tuple(super().sample(num_envs, random))


@dataclass
class LooseHops(Stand):
    commands: Loose | None = field(default_factory=Loose)


def test_a_command_that_draws_something_else_is_refused_by_name(make_env):
    with pytest.raises(ConfigError, match=r"commands\.sample\(\).*Drawn"):
        make_env(LooseHops())


@pytest.mark.parametrize(("item", "task"), [("pose_commands", HumanoidWalk), ("velocity_commands", Stand)])
def test_an_observation_of_commands_that_the_task_does_not_have_is_refused_by_name(item: str, task: type):
    class Confused(task):
        observations: ClassVar = {**task.observations, "policy": (*task.observations["policy"], item)}

    with pytest.raises(ValueError, match=item):
        Confused().validate()


@dataclass
class ByProtocol(Stand):
    """Annotates the protocol instead of the class."""

    commands: Command | None = field(default_factory=PoseCommands)


def test_settings_of_a_command_are_those_of_its_class_also_where_the_field_names_the_protocol():
    changed = fields.apply(ByProtocol(), ByProtocol, {"commands": {"x": [0.1, 0.2]}}, "task", {})
    assert changed.commands == PoseCommands(x=(0.1, 0.2))


@pytest.mark.parametrize(
    "word", ["task.commands=3", "task.commands.forward=[0,1]", "task.commands={forward: [0,1]}"]
)
def test_commands_cannot_be_set_where_a_task_has_none(word: str):
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=cartpole_balance", word])
    assert "task.commands" in str(error.value)


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("task.pushes.speed=[0.5,0]", "[0.0,0.5]"),
        ("task.pushes.seconds=[6,3]", "[3.0,6.0]"),
        ("task.commands.forward=[1,-1]", "[-1.0,1.0]"),
        ("task.commands.seconds=[0,3]", "longer than 0 s"),
        ("task.commands.heading_range=[2,-2]", "[-2.0,2.0]"),
    ],
)
def test_a_range_of_commands_or_pushes_with_swapped_ends_is_refused_with_the_right_one(
    word: str, right: str
) -> None:
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=humanoid_walk", word])
    assert word.partition("=")[0] in str(error.value)
    assert right in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        "task.noise.base_ang_vel=-0.1",
        "task.noise.base_ang_vel=1e9",
        "task.randomize.friction=[0,1]",
        "task.randomize.friction=[0.5,1e6]",
        "task.randomize.friction=[2,1]",
        "task.randomize.mass_scale=[1e-6,1]",
        "task.randomize.mass_scale=[1,1000]",
        "task.randomize.gain_scale=[1,1e30]",
        "task.pushes.speed=[0,1e6]",
        "task.pushes.seconds=[1,1e30]",
        "task.commands.forward=[0,1e9]",
        "task.commands.yaw=[-1e9,0]",
        "task.commands.seconds=[1,1e30]",
        "task.commands.heading=1.5",
        "task.commands.heading_gain=0",
        "task.commands.heading_range=[-10,0]",
        "task.action_delay=[0,1000]",
        "task.observation_delay=[-1,0]",
        "task.control_dt=1e9",
        "task.episode_length_s=1e30",
    ],
)
def test_numbers_beyond_their_bounds_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.resolve(["task=humanoid_walk", word])
    assert word.partition("=")[0] in str(error.value)


@pytest.mark.parametrize(
    "word", ["task.noise.base_ang_vel=0", "task.randomize={friction: [0.001, 10], mass_scale: [0.01, 100]}"]
)
def test_the_ends_of_the_bounds_are_allowed(word: str) -> None:
    config.resolve(["task=humanoid_walk", word])
