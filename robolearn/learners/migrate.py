"""Converts checkpoints of schema 2, and rsl_rl's, to the current layout: one tree of state, and a described policy.

What the policy's weights do not determine is read from the run's config.yaml and contract.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from robolearn.config import registry, yaml_file
from robolearn.core.env_state import from_first_layout
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, quote
from robolearn.learners.recurrent import kind_of
from robolearn.tasks.mdp.observations import VOCABULARY, Observation
from robolearn.tasks.mdp.symmetry import Symmetry, sagittal

Weights = dict[str, torch.Tensor]


def to_current(content: dict[str, Any], folder: Path, schema: int) -> dict[str, Any]:
    """A checkpoint's content in the current layout; `folder` is its run folder.

    Raises:
        ConfigError: a part of it is missing.
    """
    try:
        env = {"env": from_first_layout(content["env"])} if "totals" in (content.get("env") or {}) else {}
        settings = yaml_file.read(folder / "config.yaml")
        policy = {} if "policy" in content else {"policy": _policy(content, settings, folder)}
        return {**content, "schema": schema, **env, **policy}
    except (KeyError, TypeError, AttributeError, IndexError, OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"the checkpoint in {quote(str(folder), 120)} is incomplete ({error!r})") from error


def _policy(content: dict[str, Any], settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The policy's entry, with its spec derived from the weights."""
    weights: Weights = content["actor_state_dict"]
    layers = [
        value for name, value in weights.items() if name.startswith("mlp.") and name.endswith(".weight")
    ]
    rnn, rnn_hidden, rnn_layers = kind_of(weights)
    spec: dict[str, Any] = {
        "inputs": {"policy": weights["obs_normalizer._mean"].shape[-1]},
        "actions": layers[-1].shape[0],
        "hidden": tuple(layer.shape[0] for layer in layers[:-1]),
        "activation": settings["learner"]["activation"],
        "head": "gaussian",
        "std_type": "log" if "distribution.log_std_param" in weights else "scalar",
        "rnn": rnn,
        "rnn_hidden": rnn_hidden,
        "rnn_layers": rnn_layers,
        "cycle": None,
    }
    state = {f"actor.{name}": value for name, value in weights.items()}
    if content.get("folded"):
        symmetry = _symmetry(
            settings["task"], json.loads((folder / "contract.json").read_text(encoding="utf-8"))
        )
        spec["cycle"] = symmetry.cycle["policy"]
        for name, table in (("observation", symmetry.groups["policy"]), ("action", symmetry.action)):
            state |= {f"{name}_permutation": table.permutation, f"{name}_sign": table.sign}
    return {"spec": spec, "state": state}


def _symmetry(task: dict[str, Any], contract: dict[str, Any]) -> Symmetry:
    """The symmetry of a task's group `policy`, from the observations in its contract; needs no simulator."""
    task_items = [
        i for i in registry.load("tasks", task["name"]).observations["policy"] if isinstance(i, Observation)
    ]
    known = VOCABULARY | {item.name: item for item in task_items}
    columns = [(known[item["name"]], item["width"]) for item in contract["observations"]]
    return sagittal(
        Robot.load(registry.load("robots", task["robot"])), {"policy": columns}, torch.device("cpu")
    )
