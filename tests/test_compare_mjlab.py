"""scripts/compare_mjlab.py without mjlab: training on a handmade export, and the errors for a missing mjlab."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.envs import mjcf
from robolearn.envs.robot import Robot
from robolearn.training.build import make_env
from robolearn.training.train import make_learner

SCRIPTS = Path(__file__).parent.parent / "scripts"
SCRIPT = SCRIPTS / "compare_mjlab.py"

# A trunk of 0.2 x 0.2 x 0.2 m on two legs of 0.3 m: hips at the bottom of the trunk, balls of radius 0.05 m as feet.
LEG = """
      <body name="{side}_leg" pos="0 {y} -0.1">
        <joint name="{side}_hip" type="hinge" axis="0 1 0" range="-1 1" armature="0.01"/>
        <inertial pos="0 0 -0.15" mass="1" diaginertia="0.01 0.01 0.001"/>
        <geom name="{side}_ball" type="sphere" size="0.05" pos="0 0 -0.3" friction="0.6 0.005 0.0001" priority="1"/>
        <site name="{side}_leg" pos="0 0 -0.35"/>
      </body>"""
ROBOT = f"""
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="trunk" pos="0 0 0.5">
      <freejoint/>
      <inertial pos="0 0 0" mass="3" diaginertia="0.02 0.02 0.02"/>
      <geom name="trunk" type="box" size="0.1 0.1 0.1"/>
      {LEG.format(side="left", y=0.1)}
      {LEG.format(side="right", y=-0.1)}
    </body>
  </worldbody>
</mujoco>"""
JOINTS = ("left_hip", "right_hip")
EXPORT = {
    "task": "Two-Legs",
    "base": "trunk",
    "feet": ["left_leg", "right_leg"],
    "home": dict.fromkeys(JOINTS, 0.1),
    "home_height": 0.45,
    "start_lift": [0.02, 0.02],
    "actuators": {name: {"kp": 20.0, "kd": 1.0, "effort": 15.0} for name in JOINTS},
    "action_scale": {"left_hip": 0.5, "right_hip": 0.25},
    "pose_std": {kind: dict.fromkeys(JOINTS, 0.2) for kind in ("standing", "walking", "running")},
    "decimation": 4,
    "episode_length_s": 10.0,
    "options": {"timestep": 0.005, "solver": "newton", "iterations": 10, "integrator": "implicitfast"},
    "sizes": {"nconmax": 20, "njmax": 100},
    "learner": {
        "num_steps_per_env": 4,
        "actor": {"hidden_dims": [8, 8], "activation": "elu", "distribution_cfg": {"init_std": 1.0}},
        "critic": {"hidden_dims": [8], "activation": "elu"},
        "algorithm": {
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "learning_rate": 1e-3,
            "schedule": "adaptive",
            "desired_kl": 0.01,
            "gamma": 0.99,
            "lam": 0.95,
            "clip_param": 0.2,
            "use_clipped_value_loss": True,
            "value_loss_coef": 1.0,
            "entropy_coef": 0.01,
            "max_grad_norm": 1.0,
        },
    },
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules `robot` and `fingerprint` of the script."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from compare_mjlab import fingerprint, robot

    return robot, fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as exported by mjlab's side."""
    folder = tmp_path / "legs"
    folder.mkdir()
    (folder / "robot.xml").write_text(ROBOT)
    (folder / "mjlab.json").write_text(json.dumps(EXPORT))
    return folder


def resolved(robot: ModuleType, folder: Path) -> config.Config:
    robot.write_robot(folder)
    return config.resolve([*robot.settings(folder, 8), "backend=mujoco", "device=cpu", "seed=3"])


def test_an_exported_robot_trains_with_mjlabs_sizes(parts, folder):
    cfg = resolved(parts[0], folder)
    env: Env = make_env(cfg)
    try:
        assert env.substeps == 4
        assert env.max_episode_steps == 500  # 10 s of 4 x 5 ms
        # Velocity, angular velocity and gravity (3 each), positions and velocities of two joints, two actions, a
        # command (3); the critic adds, for each of two feet, height, air time and contact (1 each) and force (3).
        assert {name: obs.shape[1] for name, obs in env.observations.items()} == {"policy": 18, "critic": 30}
        action = torch.tensor([[1.0, -2.0]]).repeat(8, 1)
        # Home is 0.1 rad, and a unit of action 0.5 rad on the left and 0.25 rad on the right.
        torch.testing.assert_close(env.task.joint_targets(action, env.ctx)[0], torch.tensor([0.6, -0.4]))
        torch.testing.assert_close(env.backend.state.robot.base_pos[:, 2], torch.full((8,), 0.47))
        for _ in range(10):
            assert torch.isfinite(env.step(action).reward).all()
        report = make_learner(cfg, env).iterate(env)
        assert report.steps == 8 * 4
        assert report.losses["gradient_steps"] == 5 * 4  # no early stop
    finally:
        env.close()


def test_the_task_state_tracks_the_feet_from_the_air_to_the_ground(parts, folder):
    env = make_env(resolved(parts[0], folder))
    try:
        seen = []
        for _ in range(20):  # 2 cm fall takes 0.06 s, three steps
            env.step(torch.zeros(8, 2))
            seen.append({name: value[0, 0].item() for name, value in env.ctx.task_state.items()})
        first = next(i for i, state in enumerate(seen) if state["contact"])
        assert 2 <= first <= 5
        assert [state["landed"] for state in seen[: first + 2]] == [False] * first + [True, False]
        assert seen[first - 1]["air_time"] == pytest.approx(first * 0.02)
        assert seen[first]["air_time"] == 0.0
        assert 0 < seen[first]["peak"] < 0.022  # the initial height: 0.47 - 0.1 - 0.35 cos(0.1) m
        assert seen[first + 1]["peak"] == 0.0
    finally:
        env.close()


def test_every_difference_between_two_models_is_listed(parts, folder):
    robot, fingerprint = parts
    robot.write_robot(folder)
    model = mjcf.build_model(Robot.load(folder))
    theirs, ours = fingerprint.take(model), fingerprint.take(model)
    assert set(theirs["joint"]) == set(theirs["actuator"]) == set(JOINTS)
    assert set(theirs["geom"]) == {"floor", "trunk", "left_ball", "right_ball"}
    assert fingerprint.differences(theirs, ours) == []
    theirs["option"]["iterations"]["value"] = [100.0]
    theirs["geom"]["left_ball"]["friction"][0] = 0.7
    ours["joint"]["extra"] = {}
    assert fingerprint.differences(theirs, ours) == [
        "option iterations: 100 in mjlab, 10 in robolearn",
        "joint extra: only in robolearn",
        "geom left_ball, friction: 0.7 0.005 0.0001 in mjlab, 0.6 0.005 0.0001 in robolearn",
    ]


def refused(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.returncode, done.stderr


def interpreter(tmp_path: Path, version: str) -> str:
    """A script that prints `version`, as a Python with that version of mjlab does."""
    path = tmp_path / f"python-{version}"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_missing_or_unsupported_mjlab_is_one_line_with_the_fix(tmp_path):
    code, line = refused()
    assert code == 2
    assert "--mjlab" in line
    code, line = refused("--mjlab", str(tmp_path / "nothing"))
    assert code == 2
    assert str(tmp_path / "nothing") in line
    # Isolated from all packages of this interpreter.
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    code, line = refused("--mjlab", str(bare))
    assert code == 3
    assert "pip install mjlab==1.6.0" in line
    code, line = refused("--mjlab", interpreter(tmp_path, "1.5.3"))
    assert code == 3
    assert "1.5.3" in line
    assert "1.6.x" in line


def test_a_misspelt_backend_is_refused_before_anything_starts(tmp_path):
    code, line = refused("--mjlab", interpreter(tmp_path, "1.6.2"), "backend=mujoc")
    assert code == 2
    assert "mujoc" in line
