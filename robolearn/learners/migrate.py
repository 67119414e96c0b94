"""Converts checkpoints of schema 2, and rsl_rl's, to the current layout: one tree of state, and a described policy.

What the policy's weights do not determine is read from the run's config.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from robolearn.config import yaml_file
from robolearn.core.env_state import from_first_layout
from robolearn.errors import ConfigError, quote
from robolearn.learners.networks import require_unfolded
from robolearn.learners.recurrent import kind_of

Weights = dict[str, torch.Tensor]


def to_current(content: dict[str, Any], folder: Path, schema: int) -> dict[str, Any]:
    """A checkpoint's content in the current layout; `folder` is its run folder.

    Raises:
        ConfigError: a part of it is missing, or its weights need a gait clock.
    """
    try:
        require_unfolded(content)
        env = {"env": from_first_layout(content["env"])} if "totals" in (content.get("env") or {}) else {}
        settings = yaml_file.read(folder / "config.yaml")
        policy = {} if "policy" in content else {"policy": _policy(content, settings)}
        return {**content, "schema": schema, **env, **policy}
    except ValueError as error:
        raise ConfigError(f"the checkpoint in {quote(str(folder), 120)}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise ConfigError(f"the checkpoint in {quote(str(folder), 120)} is incomplete ({error!r})") from error


def _policy(content: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
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
    }
    state = {f"actor.{name}": value for name, value in weights.items()}
    return {"spec": spec, "state": state}
