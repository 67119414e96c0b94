"""The `differentiable` backend: gradients of whatever follows from its State, by actions and start poses."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import Capabilities, Snapshot
from robolearn.envs.differentiable.engine import ControlStep, Engine, Layout
from robolearn.envs.randomize import nominal, require_settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, State, Tensor
from robolearn.envs.warp_graphs import quiet, require_device
from robolearn.errors import MissingError

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] is a diverged simulation, not a robot."""


@dataclass
class DifferentiableConfig:
    """The differentiable backend's own settings."""

    engine: Literal["own", "newton"] = "own"
    """own: our kernel, exact and fast; newton: Newton's Featherstone solver, to compare with."""
    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's own."""
    contact_stiffness: float = field(default=0.0, metadata={"min": 0.0, "max": 1e9})
    """Of the floor under each point [N/m]; 0 takes the robot's own."""


class DifferentiableBackend:
    """The `differentiable` backend; the contract is `robolearn.envs.backend.GradientBackend`.

    Where PyTorch records gradients, a step and a reset bind new tensors to the State, which are outputs of its graph;
    a reset is a `torch.where`, so that gradients go on through the environments it leaves alone. Only the rows a
    control step went on from are kept for the way back, which simulates it again: memory grows by some hundred
    numbers an environment and step, until `detach`. All fields of the State are at time t.
    """

    config_class: ClassVar[type] = DifferentiableConfig

    def __init__(
        self, robot: Robot, num_envs: int, device: str = "cpu", config: DifferentiableConfig | None = None
    ) -> None:
        config = config or DifferentiableConfig()
        quiet()
        self.device = require_device(device, "differentiable")
        self.robot, self.num_envs = robot, num_envs
        # The engines integrate differently, so a robot has options for each.
        self._options = "newton" if config.engine == "newton" else "differentiable"
        model = mjcf.build_model(robot, self._options)
        mjcf.override_options(model, config.timestep, "robot", 0)
        options = dict(robot.solver[self._options])
        if config.contact_stiffness:
            options["contact_stiffness"] = config.contact_stiffness
        self._engine = self._make_engine(model, config.engine, options)
        self.capabilities = Capabilities(
            name="differentiable",
            timestep=self._engine.timestep,
            derived_lag=0,
            pd="implicit" if config.engine == "own" else "explicit",
            exact_restore=self.device.type == "cpu",
            gradients=True,
            params=frozenset(self._engine.params),
        )
        self._layout = Layout(robot)
        self._held = [
            robot.actuated[i] if a.kind == "position" else None for i, a in enumerate(robot.actuators)
        ]
        self._params = torch.zeros(num_envs, len(self._engine.params), device=self.device)
        for column, name in enumerate(self._engine.params):
            self._params[:, column] = nominal(name, model)
        every = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._rows = torch.zeros(num_envs, self._layout.row, device=self.device)
        self._seen = torch.zeros(num_envs, self._layout.seen, device=self.device)
        self._diverged = ~every
        self.reset(every, self._home())

    def _make_engine(self, model: mujoco.MjModel, name: str, options: dict[str, Any]) -> Engine:
        if name == "newton":
            if importlib.util.find_spec("newton") is None:
                raise MissingError("backend.engine=newton needs newton: pip install 'robolearn[newton]'")
            from robolearn.envs.differentiable.newton import NewtonEngine

            return NewtonEngine(self.robot, self.num_envs, self.device, model, options)
        from robolearn.envs.differentiable.own import OwnEngine

        return OwnEngine(self.robot, self.num_envs, self.device, model, options)

    def _home(self) -> InitialState:
        zeros = torch.zeros(self.num_envs, 3, device=self.device)
        upright = torch.zeros(self.num_envs, 4, device=self.device)
        upright[:, 0] = 1.0
        home = torch.tensor(self.robot.home, device=self.device).expand(self.num_envs, -1)
        return InitialState(zeros, upright, zeros, zeros, home, torch.zeros_like(home))

    @property
    def state(self) -> State:
        """The current State; the next step binds new tensors and leaves these as they are."""
        return self._state

    def reset(self, mask: Tensor, pose: InitialState) -> None:
        """See `Backend.reset`. Gradients flow by the pose of the environments in `mask`, and on through the others."""
        chosen = mask[:, None]
        # Rows that are not read may hold anything: a gradient of 0 by what is not a number would be none either.
        home = vars(self._home())
        pose = InitialState(
            **{name: torch.where(chosen, value, home[name]) for name, value in vars(pose).items()}
        )
        start = self._layout.rows(pose)
        seen = self._advanced(start, self._holding(pose), 0)[1]
        self._rows, self._seen = torch.where(chosen, start, self._rows), torch.where(chosen, seen, self._seen)
        self._publish(self._diverged & ~mask)

    def step(self, targets: Tensor, substeps: int) -> None:
        """See `Backend.step`. Gradients flow by `targets` and by everything before."""
        rows, seen = self._advanced(self._rows, targets, substeps)
        with torch.no_grad():
            speeds = torch.cat(
                (rows[:, 7:13] if self.robot.base else rows[:, :0], rows[:, -len(self.robot.joints) :]), dim=1
            )
            sound = torch.isfinite(rows).all(dim=1) & torch.isfinite(seen).all(dim=1)
            sound &= (speeds.abs() < ABSURD_SPEED).all(dim=1)
            sound &= torch.isfinite(targets).all(dim=1)  # a motor's limits make a number of what is none
        # Where the simulation gave up, the environment stays where it was; no gradient comes back from there.
        kept = sound[:, None]
        self._rows, self._seen = (
            torch.where(kept, rows, self._rows.detach()),
            torch.where(kept, seen, self._seen.detach()),
        )
        self._publish(~sound)

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """See `Backend.push`."""
        if self.robot.base:
            change = torch.zeros_like(self._rows)
            change[:, 7:10] = torch.where(mask[:, None], jump, 0.0)
            self._rows = self._rows + change

    def detach(self) -> None:
        """Cut what the next step goes on from off the graph: gradients end here."""
        self._rows, self._seen = self._rows.detach(), self._seen.detach()
        self._publish(self._diverged)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        parts = {"rows": self._rows, "seen": self._seen, "params": self._params, "diverged": self._diverged}
        return {name: part.detach().clone() for name, part in parts.items()}

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        self._rows, self._seen = snapshot["rows"][source], snapshot["seen"][source]
        self._params = snapshot["params"][source]
        self._publish(snapshot["diverged"][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        columns = [
            torch.where(mask, params[name], known) if name in params else known
            for name, known in zip(self._engine.params, self._params.unbind(1), strict=True)
        ]
        self._params = torch.stack(columns, dim=1)
        self._publish(self._diverged)

    def check(self) -> None:
        """See `Backend.check`: everything has room here."""

    def close(self) -> None:
        """Free the engine's memory."""
        self._engine.close()

    def _advanced(self, rows: Tensor, targets: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled() or not (rows.requires_grad or targets.requires_grad):
            return self._engine.forward(rows.detach(), targets.detach(), self._params, substeps)
        result: Any = ControlStep.apply(self._engine, rows, targets, self._params, substeps)
        return result

    def _holding(self, pose: InitialState) -> Tensor:
        """Targets (N, A) with which position actuators hold the pose, and force actuators do nothing."""
        still = torch.zeros_like(pose.joint_pos[:, :1]).squeeze(1)
        columns = [still if joint is None else pose.joint_pos[:, joint] for joint in self._held]
        return torch.stack(columns, dim=1) if columns else pose.joint_pos[:, :0]

    def _publish(self, diverged: Tensor) -> None:
        self._diverged = diverged
        params = dict(zip(self._engine.params, self._params.unbind(1), strict=True))
        self._state = State({"robot": self._layout.entity(self._seen)}, params, diverged)
