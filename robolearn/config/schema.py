"""Schema of a run's configuration: its settings, the version of the saved file, and conversion to plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from robolearn.config import fields
from robolearn.config.guarding import GuardConfig
from robolearn.errors import ConfigError, quote

SCHEMA = 2
"""Version of the saved file. A change that makes older files unreadable raises it and adds a migration."""


def _renamed_values(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 called the backend of an external environment `own`."""
    names = {("backend", "name"): {"own": "external"}}
    for (section, key), new in names.items():
        tree = content.get(section)
        if isinstance(tree, dict) and isinstance(tree.get(key), str):
            content = {**content, section: {**tree, key: new.get(tree[key], tree[key])}}
    return content


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _renamed_values}
"""MIGRATIONS[1] converts the content of a file from schema 1 to schema 2."""

SECTIONS = {"task": "tasks", "backend": "backends", "learner": "learners"}
"""Settings that choose a class by name, with the registry's kind of each."""

FILE_NAME = "config.yaml"
"""File of the resolved configuration in a run folder."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Configuration of a training run."""

    schema: int = SCHEMA
    """Version of this file's layout."""
    num_envs: int = field(default=1024, metadata={"min": 1, "max": 1_048_576})
    """Number of environments simulated in parallel."""
    seed: int = field(default=1, metadata={"min": 0, "max": 2**32 - 1})
    """Seed of all random numbers; on a CPU the same seed gives the same run."""
    device: str = field(
        default="auto",
        metadata={
            "pattern": r"auto|cpu|cuda(:\d{1,2})?",
            "form": "auto, cpu, cuda or cuda:N (a GPU's number)",
        },
    )
    """Device to compute on: auto, cpu, cuda or cuda:N."""
    max_iterations: int = field(default=300, metadata={"min": 1, "max": 1_000_000_000})
    """Iterations to train, counted from the start of the run."""
    checkpoint_interval: int = field(default=25, metadata={"min": 1, "max": 1_000_000_000})
    """Iterations between two checkpoints."""
    resume: str | None = None
    """Run folder or checkpoint to resume."""
    weights: str | None = None
    """Run, checkpoint or pretrained:NAME whose networks and learning rate a new run starts with; iterations, curricula
    and optimizer start anew. null: untrained ones."""
    output: str | None = None
    """Run folder to write; null: runs/TASK/TIME."""
    torch_threads: int = field(default=0, metadata={"min": 0, "max": 1024})
    """Number of PyTorch's CPU threads; 0: as many as the process may use, its share where there are ranks."""
    ranks: int = field(default=0, metadata={"min": 0, "max": 65536})
    """Number of processes that train together; on a CPU any number gives the same bits. 0: one process, which computes
    whole batches and not shards."""
    shards: int = field(default=16, metadata={"min": 1, "max": 65536})
    """Equal parts of the environments that ranks share, a power of two. Each draws its own random numbers and computes
    its own gradient, so that results do not depend on the number of ranks; without ranks it has no effect."""
    recovery: Literal["restart", "takeover"] = "restart"
    """What happens where a rank is lost. restart: all ranks start again from the last iteration; takeover: the others
    take over its environments until it is back, with torchft."""
    rank_timeout: float = field(default=20.0, metadata={"min": 1.0, "max": 86400.0})
    """Longest that ranks wait for one of them after the first iteration [s]; it is then named, and all start again."""
    rollout_share: float = field(default=1.0, metadata={"min": 0.01, "max": 1.0})
    """Share of the ranks whose rollouts are complete in every iteration: those of slower ranks then end early. 1: all;
    below, results differ from run to run."""
    mode: Literal["sync", "async"] = "sync"
    """sync: collect, then learn; async: processes of their own collect while the learner learns, see docs/async.md."""
    placement: str | None = None
    """With mode=async: YAML file that says where actors, learner and evaluator run; null: an actor a core but one."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    """on: watch for reward hacking, and roll back where it is found; guard.<field>=... changes how, see
    docs/guard.md."""
    robot: dict[str, Any] = field(default_factory=dict, metadata={"open": True})
    """Changes to the robot's description, as in robot.yaml, for example robot.actuators.knee.kp=80. robot=NAME chooses
    the robot (task.robot)."""
    task: Any
    """The task; chosen with task=NAME, changed with, for example, task.rewards.upright=0.5."""
    backend: Any
    """The simulator; chosen with backend=NAME; auto takes the best one installed."""
    learner: Any
    """The algorithm; chosen with learner=NAME, changed with, for example, learner.learning_rate=3e-4."""
    task_name: str = field(metadata={"hidden": True})
    """Name of the task; saved as task.name."""
    backend_name: str = field(metadata={"hidden": True})
    """Name of the backend in use, never auto; saved as backend.name."""
    learner_name: str = field(metadata={"hidden": True})
    """Name of the learner; saved as learner.name."""


_HINTS = fields.hints(Config)
_METAS = {f.name: f.metadata for f in dataclasses.fields(Config)}
SHOWN = [f.name for f in dataclasses.fields(Config) if not f.metadata.get("hidden")]
"""The keys of the saved file, in order."""
SCALARS = [name for name in SHOWN if name not in SECTIONS and name != "schema"]
"""The settings that are a single value."""


def scalars(tree: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings that are a single value, each checked against its type and range."""
    return {key: fields.apply(None, _HINTS[key], tree[key], where + key, _METAS[key]) for key in tree}


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain dictionaries, lists and scalars, each section with its `name` first."""
    content = {name: _plain(getattr(config, name)) for name in SHOWN}
    for section in SECTIONS:
        content[section] = {"name": getattr(config, f"{section}_name"), **content[section]}
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, fields.Parts):
        return _plain(value.plain())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in fields.hints(type(value))}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def migrated(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content converted to this version's schema.

    Raises:
        ConfigError: no migration leads from the file's schema to this version's.
    """
    schema, shown = content.get("schema"), quote(str(path), 120)
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ConfigError(
            f"{shown} has no schema number; this version of RoboLearn reads configurations of schema {SCHEMA}"
        )
    if schema > SCHEMA:
        raise ConfigError(
            f"{shown} has schema {schema}, and this version of RoboLearn reads schema {SCHEMA}: "
            "a newer version wrote it; install that one"
        )
    for version in range(schema, SCHEMA):
        if version not in MIGRATIONS:
            raise ConfigError(
                f"{shown} has schema {schema}, too old for this version of RoboLearn (schema {SCHEMA}): train "
                "again, or use the version that wrote it"
            )
        content = MIGRATIONS[version](content)
    return {**content, "schema": SCHEMA}
