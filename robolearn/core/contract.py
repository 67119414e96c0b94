"""Contract: the numbers that a robot's computer needs to run a policy, without the simulator."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError
from robolearn.files import replacing
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.task import Task

SCHEMA = 1
"""Version of contract.json's layout."""
SMALL, LARGE = 0.01, 20.0
"""A small action, and one beyond those of trained policies."""
MOTOR = ("joint", "kind", "kp", "kd", "effort")
"""What the contract says of each actuator: what the robot's drive is told. The rotor's inertia it has by itself."""


@dataclass(frozen=True)
class Contract:
    """The agreement between a trained policy and the robot that runs it. SI units, the robot's joint order."""

    schema: int
    """Version of this layout."""
    task: str
    """Class of the task."""
    robot: str
    """Name of the robot."""
    control_dt: float
    """Control period [s]."""
    observations: list[dict[str, Any]]
    """Items of the policy's observation in order: `name` in the vocabulary, `width`, first `column`."""
    joints: list[dict[str, Any]]
    """Every joint in order: `name`, `home`, `lower`, `upper` [rad or m]."""
    actions: list[dict[str, Any]]
    """Every actuator in order: `joint`, `kind`, `kp`, `kd`, `effort`, and its joint target, offset + scale x action; of
    a task whose joint targets are no such sum (a clamp, a filter), those of small actions after a reset."""
    command: list[str]
    """Names of the command's columns."""
    action_delay: tuple[int, int]
    """Range of the delay between action and actuator in training [control steps]."""
    observation_delay: tuple[int, int]
    """Range of the delay of the observation in training [control steps]."""
    extra: dict[str, Any]
    """Empty. In older contracts what a policy needs besides its network, such as a gait clock."""

    def save(self, path: Path) -> None:
        """Write as JSON in full precision, atomically."""
        with replacing(path) as part:
            part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Contract:
        """Read a contract.json.

        Raises:
            ConfigError: its schema is another one; both are named.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("schema") != SCHEMA:
            raise ConfigError(
                f"{path} has schema {content.get('schema')} and this RoboLearn reads schema {SCHEMA}"
            )
        delays = {name: tuple(content[name]) for name in ("action_delay", "observation_delay")}
        return cls(**{**content, **delays})


class Contracting(LearnerEnv, Protocol):
    """Environments that state their contract themselves, as external ones do."""

    def contract(self) -> Contract:
        """The Contract of a policy trained in these environments."""


def contract_of(env: LearnerEnv) -> Contract:
    """The Contract of a policy trained in `env`.

    Scale and offset are computed with `Task.joint_targets`, so they are those of the training, see `mapping`.
    """
    if not isinstance(env, Env):
        return cast(Contracting, env).contract()
    task, robot, constants = env.task, env.robot, env.ctx.robot
    at_rest = task.task_state(1, constants, env.random.fork())
    first = env.ctx.rows(slice(0, 1))
    # Without the command, which is another one in each environment.
    ctx = replace(first, task_state=at_rest, command=torch.zeros_like(first.command))
    offset, scale, _ = mapping(task, ctx, env.num_actions)
    column, observations = 0, []
    for item, width in env.columns["policy"]:
        observations.append({"name": item.name, "width": width, "column": column})
        column += width
    return Contract(
        schema=SCHEMA,
        task=type(task).__name__,
        robot=robot.name,
        control_dt=task.control_dt,
        observations=observations,
        joints=[
            {"name": name, "home": home, "lower": low, "upper": high}
            for name, home, low, high in zip(
                robot.joints, robot.home, _finite(constants.lower), _finite(constants.upper), strict=True
            )
        ],
        actions=[
            {name: getattr(actuator, name) for name in MOTOR} | {"offset": o, "scale": s}
            for actuator, o, s in zip(robot.actuators, offset.tolist(), scale.tolist(), strict=True)
        ],
        command=list(task.commands.names) if task.commands else [],
        action_delay=task.action_delay,
        observation_delay=task.observation_delay,
        extra={},
    )


def mapping(task: Task, ctx: Context, actions: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Offset (A,) and scale (A,) of a task's joint targets, and whether these are offset + scale x action. Where they
    are not, offset and scale are those of small actions.

    Args:
        ctx: of one environment.
        actions: number of actuators, A.
    """
    ones = torch.ones(1, actions, device=ctx.episode_time.device)
    offset = task.joint_targets(0 * ones, ctx)[0]
    scale = task.joint_targets(ones, ctx)[0] - offset
    odd = -2.5 * torch.arange(1, actions + 1, device=ones.device)[None].cos()

    def straight(action: torch.Tensor) -> bool:
        given = task.joint_targets(action, ctx)[0]
        return torch.allclose(given, offset + scale * action[0], rtol=1e-4, atol=1e-5)

    if straight(odd):
        # A clamp may show only where all actions are large.
        return offset, scale, straight(LARGE * ones) and straight(-LARGE * ones)
    return offset, (task.joint_targets(SMALL * ones, ctx)[0] - offset) / SMALL, False


def _finite(limits: torch.Tensor) -> list[float | None]:
    """JSON has no infinity: a joint without a limit has null."""
    return [x if abs(x) != float("inf") else None for x in limits.tolist()]
