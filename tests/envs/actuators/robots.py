"""Small robots with motors of any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from robolearn.envs.robot import Robot

ARM = """
<mujoco model="two">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" armature="0.05" damping="0.1"/>
      <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3" mass="1" contype="0" conaffinity="0"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" armature="0.05" damping="0.1"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3" mass="0.6" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""Two joints that hang from the ceiling."""

GAINS = {"kind": "position", "kp": 40.0, "kd": 2.0, "effort": 30.0}


def arm(folder: Path, shoulder: dict[str, Any] | None = None, elbow: dict[str, Any] | None = None) -> Robot:
    """The arm with these keys for its motors, besides GAINS."""
    (folder / "arm.xml").write_text(ARM, encoding="utf-8")
    step = {"timestep": 0.002, "integrator": "implicitfast"}
    content = {
        "schema": 1,
        "description": "two joints",
        "mjcf": "arm.xml",
        "joints": {"shoulder": {"home": 0.2, "actuator": "one"}, "elbow": {"home": -0.3, "actuator": "two"}},
        "actuators": {"one": {**GAINS, **(shoulder or {})}, "two": {**GAINS, **(elbow or {})}},
        "solver": {
            **{name: dict(step) for name in ("mujoco", "mujoco_warp", "isaaclab", "differentiable")},
            "newton": {"timestep": 0.002, "integrator": "Euler", "disable": ["eulerdamp"]},
        },
    }
    content["actuators"] = {
        name: {key: value for key, value in entry.items() if value is not None}
        for name, entry in content["actuators"].items()
    }
    (folder / "robot.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return Robot.load(folder)
