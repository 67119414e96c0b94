"""The controller of a robot as one module: sensor readings, command and state in; joint targets and new state out.

It calls the task's own functions, in the order of `robolearn.core.env.Env`: what the robot computes is what was
trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from robolearn.core.contract import mapping
from robolearn.core.env import Env
from robolearn.core.measurable import Reads, reads
from robolearn.envs.state import State, Tensor
from robolearn.envs.terrain import Ground
from robolearn.tasks.mdp.context import Context
from robolearn.tasks.mdp.sensors import Sensor, measured

COMMAND, OUTPUTS = "command", ("targets", "actions", "observations")
"""Names of the input besides sensors and state, and of the outputs besides the state."""
STARTED = "started"
"""State: 0 in the first step after a reset, else 1; (1, 1)."""
REMEMBERED = {
    "action": "last_action",
    "previous_action": "previous_action",
    "command": "last_command",
    "episode_time": "time",
}
"""Fields of Context that are state on the robot, and the name of that state."""


class Exportable(nn.Module):
    """A controller: a module with named inputs and outputs."""

    sensors: dict[str, Sensor]
    """The sensors that it reads, by name, in the order of the inputs."""
    initial: dict[str, Tensor]
    """The state after a reset by name, (1, ...) each."""
    targets_of: tuple[str, ...]
    """What the joint targets depend on: `action`, and whatever else."""
    affine: bool
    """Whether the joint targets are offset + scale x action, where they depend on nothing else."""

    @property
    def example(self) -> dict[str, Tensor]:
        """An example of each input, by name, in order: sensors, command, state."""
        raise NotImplementedError

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [*OUTPUTS, *(f"{name}_out" for name in self.initial)]


class Controller(Exportable):
    """One control step of one robot.

    Inputs, (1, ...) each: the sensors that the policy reads, the command (1, C) where there is one, the state. Outputs:
    joint targets (1, A), actions (1, A), observations (1, D), the new state.
    """

    def __init__(self, env: Env, network: nn.Module, recurrent: Mapping[str, Tensor]) -> None:
        """
        Args:
            env: of the task as on the robot.
            network: observations (1, D) and recurrent state to actions (1, A) and new recurrent state.
            recurrent: the recurrent state after a reset, by name.

        Raises:
            ConfigError: the policy reads what no robot measures.
        """
        super().__init__()
        self.task, self.robot, self.timestep = env.task, env.robot, env.capabilities.timestep
        self.network = network
        first = torch.tensor([0], device=env.device)
        self._state, self._ctx = env.backend.state.rows(first).each(Tensor.cpu), _on_cpu(env.ctx.rows(first))
        self.reads: Reads = reads(env.task, self._state, self._ctx, env.num_actions)
        self.targets_of = self.reads.targets
        self.affine = mapping(env.task, self._ctx, env.num_actions)[2]
        sensors = {s.name: s for s in env.task.all_sensors()}
        self.sensors = {name: sensors[name] for name in self.reads.sensors}
        """The sensors that the policy reads, by name."""
        self.readings = {name: sensor(self._state).clone() for name, sensor in self.sensors.items()}
        """An example reading (1, ...) of each sensor."""
        self.recurrent = tuple(recurrent)
        self.initial = {**self._initial(), **recurrent}
        """The state after a reset by name, (1, ...) each."""

    @property
    def example(self) -> dict[str, Tensor]:
        """An example of each input, by name, in order."""
        command = {COMMAND: self._ctx.command.clone()} if self._ctx.command.shape[1] else {}
        return {**self.readings, **command, **{f"{name}_in": value for name, value in self.initial.items()}}

    def _initial(self) -> dict[str, Tensor]:
        ctx, needed = self._ctx, self.reads.remembered
        past = [item for item in self.task.items("policy") if item.history > 1]
        # Each a tensor of its own: the exporter takes one tensor given twice for one input.
        state = {REMEMBERED[name]: torch.zeros_like(getattr(ctx, name)).view(1, -1) for name in needed}
        state |= {f"task_{name}": ctx.task_state[name].float() for name in self.reads.task_state}
        for item in past:
            width = item.compute(self._state, ctx).shape[1]
            state[f"past_{item.name}"] = torch.zeros(1, item.history, width)
        if self.reads.task_state or past or "episode_time" in needed:
            state[STARTED] = torch.zeros(1, 1)
        return state

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """One control step; see the class."""
        given = dict(zip(self.example, values, strict=True))
        kept = {name.removesuffix("_in"): value for name, value in given.items() if name.endswith("_in")}
        started = kept[STARTED] > 0.5 if STARTED in kept else None
        state = self._measured(given)
        ctx = self._before(kept)
        # The task state advances by the command that the robot was following.
        if self.reads.task_state:
            new = self.task.advance(state, ctx)
            was = ctx.task_state
            ctx = replace(
                ctx, task_state=was | {k: _where(started, new[k], was[k]) for k in self.reads.task_state}
            )
        ctx = replace(ctx, command=given.get(COMMAND, self._ctx.command))
        out = {REMEMBERED[name]: getattr(ctx, name).view(1, -1) for name in self.reads.remembered}
        out |= {f"task_{name}": ctx.task_state[name].float() for name in self.reads.task_state}
        columns = []
        for item in self.task.items("policy"):
            value = item.compute(state, ctx)
            if item.history > 1:
                name = f"past_{item.name}"
                older = _where(started, kept[name][:, 1:], value[:, None].repeat(1, item.history - 1, 1))
                out[name] = torch.cat((older, value[:, None]), dim=1)
                value = out[name].flatten(1)
            columns.append(value)
        observations = torch.cat(columns, dim=1)
        result = self.network(observations, *(kept[name] for name in self.recurrent))
        action, *recurrent = result if self.recurrent else (result,)
        previous = ctx.action
        targets = self.task.joint_targets(action, replace(ctx, action=action, previous_action=previous))
        out |= dict(zip(self.recurrent, recurrent, strict=True))
        out |= {REMEMBERED["action"]: action, REMEMBERED["previous_action"]: previous}
        if started is not None:
            out[STARTED] = torch.ones_like(kept[STARTED])
        return (targets, action, observations, *(out[name] for name in self.initial))

    def _measured(self, given: Mapping[str, Tensor]) -> State:
        """A State that holds the readings. What else is in it was found to matter to nothing, see `reads`."""
        return measured(self._state, self.sensors.values(), given)

    def _before(self, kept: Mapping[str, Tensor]) -> Context:
        """The Context with what the state holds of the step before."""
        ctx = self._ctx
        fields: dict[str, Any] = {
            name: kept[REMEMBERED[name]].view(getattr(ctx, name).shape) for name in self.reads.remembered
        }
        if "episode_time" in fields:
            fields["episode_time"] = fields["episode_time"] + ctx.dt * kept[STARTED][:, 0]
        task_state = {
            k: kept[f"task_{k}"].to(v.dtype) if k in self.reads.task_state else v
            for k, v in ctx.task_state.items()
        }
        return replace(ctx, **fields, task_state=task_state)


def _where(mask: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    assert mask is not None
    return torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)


def _on_cpu(ctx: Context) -> Context:
    """A Context on the CPU."""

    def moved(part: object) -> dict[str, Any]:
        return {name: value.cpu() for name, value in vars(part).items() if isinstance(value, Tensor)}

    robot = replace(ctx.robot, **moved(ctx.robot), tables={})
    named: dict[str, Any] = {
        name: {k: v.cpu() for k, v in getattr(ctx, name).items()} for name in ("task_state", "per_env_state")
    }
    terrain = None if ctx.terrain is None else Ground.of(ctx.terrain.heights, torch.device("cpu"))
    return replace(ctx, robot=robot, terrain=terrain, **moved(ctx), **named)
