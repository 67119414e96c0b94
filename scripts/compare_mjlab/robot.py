"""Turns mjlab's export into a robot folder and into the settings of an equivalent training run in robolearn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

EXPORT = "mjlab.json"
"""Name of the export in the robot's folder, next to robot.yaml; the task reads it too."""


def read_export(folder: Path) -> dict[str, Any]:
    """The content of mjlab.json."""
    return json.loads((folder / EXPORT).read_text(encoding="utf-8"))


def write_robot(folder: Path) -> None:
    """Write robot.yaml next to the exported robot.xml, which makes `folder` a robot of robolearn."""
    export = read_export(folder)
    options = export["options"]
    content = {
        "schema": 1,
        "description": f"the robot of mjlab's {export['task']}",
        "mjcf": "robot.xml",
        "base": export["base"],
        "home_height": export["home_height"],
        "feet": export["feet"],
        "joints": {
            name: {"home": home, **({"actuator": name} if name in export["actuators"] else {})}
            for name, home in export["home"].items()
        },
        "actuators": {name: {"kind": "position", **model} for name, model in export["actuators"].items()},
        "solver": {"mujoco": options, "mujoco_warp": {**options, **export["sizes"]}},
    }
    (folder / "robot.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def settings(folder: Path, num_envs: int) -> list[str]:
    """robolearn's overrides that correspond to the exported task and learner."""
    export = read_export(folder)
    learner = export["learner"]
    algorithm, actor, critic = learner["algorithm"], learner["actor"], learner["critic"]
    batch = num_envs * learner["num_steps_per_env"]
    values = {
        "control_dt": export["options"]["timestep"] * export["decimation"],
        "episode_length_s": export["episode_length_s"],
    }
    words = [
        f"task={Path(__file__).with_name('task.py')}:MjlabVelocity",
        f"task.robot={folder}",
        f"num_envs={num_envs}",
        *(f"task.{name}={value}" for name, value in values.items()),
    ]
    learner_settings = {
        "num_steps": learner["num_steps_per_env"],
        "num_epochs": algorithm["num_learning_epochs"],
        "minibatch_size": max(2, batch // algorithm["num_mini_batches"]),
        "learning_rate": algorithm["learning_rate"],
        "schedule": algorithm["schedule"],
        "desired_kl": algorithm["desired_kl"],
        # mjlab takes every gradient step of an iteration; robolearn would stop early at a large KL divergence.
        "max_kl": 1e9,
        "gamma": algorithm["gamma"],
        "lam": algorithm["lam"],
        "clip": algorithm["clip_param"],
        "clip_value_loss": str(algorithm["use_clipped_value_loss"]).lower(),
        "value_loss_coef": algorithm["value_loss_coef"],
        "entropy_coef": algorithm["entropy_coef"],
        "max_grad_norm": algorithm["max_grad_norm"],
        "init_std": actor["distribution_cfg"]["init_std"],
        "actor_hidden": str(list(actor["hidden_dims"])).replace(" ", ""),
        "critic_hidden": str(list(critic["hidden_dims"])).replace(" ", ""),
        "activation": actor["activation"],
        "symmetry": "none",
        "precision": "fp32",  # as rsl_rl
    }
    return [*words, *(f"learner.{name}={value}" for name, value in learner_settings.items())]
