"""Export of tasks whose agents are parts of a robot: each bundle describes the part that it is for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from robolearn.cli import main
from robolearn.envs.parts import part
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT, Scene
from robolearn.envs.state import Initial, InitialState, Tensor
from robolearn.tasks.mdp import terms
from robolearn.tasks.mdp.context import Context, Random
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.stated import Reward, Termination, reward
from robolearn.tasks.mdp.task import Task

OTHER = "other"
ARM = """<body name="{side}_base" pos="{x} 0 0.1"><geom size="0.05"/>
  <body name="{side}_arm" pos="0 0 0.1">
    <joint name="{side}_shoulder" axis="0 {sign} 0" range="-1 1" limited="true"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.3"/>
  </body></body>"""
MODEL = """<mujoco model="pair"><worldbody><body name="bench"><geom type="box" size="0.5 0.1 0.05"/>
  {left}{right}
</body></worldbody><actuator>
  <position name="left_shoulder" joint="left_shoulder" kp="20" kv="2" forcerange="-20 20"/>
  <position name="right_shoulder" joint="right_shoulder" kp="20" kv="2" forcerange="-20 20"/>
</actuator></mujoco>"""


@dataclass
class Pair(Task):
    """Two arms of one robot, each of which holds still."""

    robot: str = "pair.xml"
    control_dt: float = 0.02
    episode_length_s: float = 0.6
    rewards: dict[str, Reward] = field(default_factory=lambda: {"effort": reward(terms.effort, -0.01)})
    terminations: dict[str, Termination] = field(default_factory=dict)
    agents: ClassVar[tuple[str, ...]] = (ROBOT, OTHER)
    observations: ClassVar = {
        "policy": ("joint_pos_rel", "joint_vel_rel"),
        "critic": ("joint_pos_rel", Observation("other", lambda s, c: s.entities[OTHER].joint_pos, "same")),
    }

    def scene(self, robot: Robot) -> Scene:
        """Both arms."""
        return Scene({ROBOT: part(robot, "left_"), OTHER: part(robot, "right_")})

    def joint_targets(self, action: Tensor, ctx: Context) -> Tensor:
        """Joint targets (N, 1) [rad]."""
        return 0.3 * action

    def initial_state(self, num_envs: int, ctx: Context, random: Random) -> Initial:
        """Both arms upright."""
        place = torch.zeros(num_envs, 3, device=random.device)
        drawn = random.uniform((-0.2,), (0.2,), num_envs)
        return {name: InitialState.at_rest(place, joint_pos=drawn) for name in (ROBOT, OTHER)}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """(axis signs of both arms, words) -> the folder of the export."""

    def export(signs: tuple[int, int], *words: str) -> Path:
        monkeypatch.chdir(tmp_path)
        left, right = (
            ARM.format(side=side, x=x, sign=sign)
            for side, x, sign in (("left", -0.4, signs[0]), ("right", 0.4, signs[1]))
        )
        Path("pair.xml").write_text(MODEL.format(left=left, right=right))
        task = f"task={__file__}:Pair"
        small = ["num_envs=4", "max_iterations=1", "torch_threads=1", "learner.minibatch_size=48"]
        assert main(["train", task, *small, *words, "output=run"]) == 0
        quick = ["--starts", "4", "--seconds", "0.4", "--measure-seconds", "0", "--output", "out"]
        assert main(["export", "run", task, *quick]) == 0
        return Path("out")

    return export


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.slow
def test_each_bundle_describes_the_part_that_its_policy_drives(exported):
    out = exported((1, -1), "learner.policies={robot: left, other: right}")
    left, right = manifest(out / "left"), manifest(out / "right")
    assert left["parts"] == {"robot": {"robot": "pair", "joints": {"shoulder": "left_shoulder"}}}
    assert right["parts"] == {"other": {"robot": "pair", "joints": {"shoulder": "right_shoulder"}}}
    assert left["joints"]["shoulder"]["axis"] == [0, 1, 0]
    assert right["joints"]["shoulder"]["axis"] == [0, -1, 0]
    assert left["joints"]["shoulder"]["positive"] != right["joints"]["shoulder"]["positive"]
    assert 'axis="0 -1 0"' in (out / "right" / "robot.xml").read_text()
    assert "right_shoulder" in (out / "right" / "REPORT.md").read_text()
    assert "policy right" in (out / "right" / "REPORT.md").read_text()


@pytest.mark.parametrize(("signs", "warned"), [((1, -1), True), ((1, 1), False)])
def test_one_bundle_for_both_parts_says_where_its_model_is_not_of_both(signs, warned, exported):
    out = exported(signs)
    assert set(manifest(out)["parts"]) == {"robot", "other"}
    assert ("those of other differ" in (out / "REPORT.md").read_text().replace("\n", " ")) == warned
