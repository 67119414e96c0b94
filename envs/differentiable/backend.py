"""The `differentiable` backend: gradients of any function of its State by joint targets and initial states."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import mujoco
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import Capabilities, Snapshot, require_features
from robolearn.envs.differentiable.engine import ControlStep, Engine, Layout
from robolearn.envs.differentiable.parameters import Parameters
from robolearn.envs.randomize import require_settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import (
    Initial,
    InitialState,
    State,
    Targets,
    Tensor,
    by_entity,
    home,
    quat_rotate_inverse,
)
from robolearn.envs.warp_graphs import quiet, require_device
from robolearn.errors import MissingError, listing

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] counts as divergence."""


@dataclass
class DifferentiableConfig:
    """Settings of the `differentiable` backend."""

    engine: Literal["own", "newton"] = "own"
    """own: one generated kernel per robot, exact and fast; newton: Newton's Featherstone solver, for comparison."""
    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the value of robot.yaml."""
    contact_stiffness: float = field(default=0.0, metadata={"min": 0.0, "max": 1e9})
    """Stiffness of the floor under each contact point [N/m]; 0 takes the value of robot.yaml."""

    @property
    def options(self) -> str:
        """Whose options of robot.yaml it takes: the engines integrate differently, so each has its own."""
        return "newton" if self.engine == "newton" else "differentiable"


class DifferentiableBackend:
    """The `differentiable` backend; implements `robolearn.envs.backend.GradientBackend`.

    While PyTorch records gradients, a step and a reset bind new tensors to the State, which are part of the autograd
    graph. A reset is a `torch.where`, so gradients keep flowing through the environments that are not reset. The
    graph keeps only the input rows of each control step, and the backward pass simulates the step again: memory
    grows by a few hundred numbers per environment and step, until `detach`. All fields of the State are at time t.

    A scene has one robot. Contact forces are the ground's: bodies of the robot pass through each other.
    """

    config_class: ClassVar[type] = DifferentiableConfig
    features: ClassVar[frozenset[str]] = frozenset({"frames", "contacts"})
    """Of `robolearn.envs.backend.FEATURES`. Both engines simulate one robot, and only the ground touches it."""

    def __init__(
        self,
        scene: Scene | Robot,
        num_envs: int,
        device: str = "cpu",
        config: DifferentiableConfig | None = None,
    ) -> None:
        """Raises:
        ConfigError: the scene or its robot has something that cannot be simulated; names it.
        """
        config = config or DifferentiableConfig()
        self.scene = scene = Scene.of(scene)
        require_features(scene, "differentiable", self.features)
        quiet()
        self.device = require_device(device, "differentiable")
        self.robot, self.num_envs = scene.robot, num_envs
        model = mjcf.build_model(scene, config.options)
        mjcf.override_options(model, config.timestep, "robot", 0)
        options = dict(mjcf.options(self.robot, config.options))
        if config.contact_stiffness:
            options["contact_stiffness"] = config.contact_stiffness
        self._parameters = Parameters(scene, model)
        self.capabilities = Capabilities(
            name="differentiable",
            timestep=float(model.opt.timestep),
            derived_lag=0,
            pd="implicit" if config.engine == "own" else "explicit",
            exact_restore=self.device.type == "cpu",
            gradients=True,
            params=frozenset(self._parameters.names),
            features=self.features,
        )
        require_settable(scene.params, self.capabilities)
        self._engine = self._make_engine(model, config.engine, options)
        self._layout = Layout(scene)
        self._position_joints = [
            self.robot.actuated[i] if a.kind == "position" else None
            for i, a in enumerate(self.robot.actuators)
        ]
        self._home = home(scene, scene.first, num_envs, self.device)
        self._set_all_params(
            torch.tensor([list(self._parameters.nominal.values())] * num_envs, device=self.device)
        )
        every = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._rows = torch.zeros(num_envs, self._layout.row, device=self.device)
        self._seen = torch.zeros(num_envs, self._layout.seen, device=self.device)
        self._diverged = ~every
        self.reset(every, {})

    def _make_engine(self, model: mujoco.MjModel, name: str, options: dict[str, Any]) -> Engine:
        if name == "newton":
            if importlib.util.find_spec("newton") is None:
                raise MissingError("backend.engine=newton needs newton: pip install 'robolearn[newton]'")
            from robolearn.envs.differentiable.newton import NewtonEngine

            return NewtonEngine(self.scene, self.num_envs, self.device, model, options)
        from robolearn.envs.differentiable.own import OwnEngine

        return OwnEngine(self.scene, self.num_envs, self.device, model, options)

    @property
    def state(self) -> State:
        """The current State; the next step binds new tensors and leaves these as they are."""
        return self._state

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`. Gradients flow by the pose of the environments in `mask`, and on through the others."""
        chosen, given = (
            mask[:, None],
            by_entity(initial, self.scene.entities).get(self.scene.first, self._home),
        )
        # Rows outside the mask may hold NaN, and a gradient of 0 times NaN is NaN: replace them before they are used.
        start_state = InitialState(
            **{
                name: torch.where(chosen, value, getattr(self._home, name))
                for name, value in vars(given).items()
            }
        )
        start = self._layout.rows(start_state)
        seen = self._advance(start, self._holding_targets(start_state), 0)[1]
        self._rows, self._seen = torch.where(chosen, start, self._rows), torch.where(chosen, seen, self._seen)
        self._publish(self._diverged & ~mask)

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`. Gradients flow by `joint_targets` and by everything before.

        Raises:
            ValueError: `joint_targets` has none of the robot.
        """
        given = by_entity(joint_targets, self.scene.robots)
        if self.scene.first not in given:
            raise ValueError(
                f"backend=differentiable: step() got joint targets of {listing(given)}; those of its robot, "
                f"{self.scene.first!r}, are missing"
            )
        targets = given[self.scene.first]
        rows, seen = self._advance(self._rows, targets, substeps)
        with torch.no_grad():
            speeds = torch.cat(
                (rows[:, 7:13] if self.robot.base else rows[:, :0], rows[:, -len(self.robot.joints) :]), dim=1
            )
            finite = torch.isfinite(rows).all(dim=1) & torch.isfinite(seen).all(dim=1)
            finite &= (speeds.abs() < ABSURD_SPEED).all(dim=1)
            # Clipping to the effort would hide a NaN target.
            finite &= torch.isfinite(targets).all(dim=1)
        # A diverged environment keeps its last rows, detached: no gradient flows through the diverged step.
        kept = finite[:, None]
        self._rows, self._seen = (
            torch.where(kept, rows, self._rows.detach()),
            torch.where(kept, seen, self._seen.detach()),
        )
        self._publish(~finite)

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        if self.robot.base:
            change = torch.zeros_like(self._rows)
            change[:, 7:10] = torch.where(mask[:, None], jump, 0.0)
            if turn is not None:
                own = quat_rotate_inverse(self._rows[:, 3:7], turn)
                change[:, 10:13] = torch.where(mask[:, None], own, 0.0)
            self._rows = self._rows + change

    def detach(self) -> None:
        """Detach the current State from the autograd graph: gradients end here."""
        self._rows, self._seen = self._rows.detach(), self._seen.detach()
        self._publish(self._diverged)

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`; it lacks this feature."""
        raise NotImplementedError("backend=differentiable has no forces")

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        parts = {"rows": self._rows, "seen": self._seen, "params": self._params, "diverged": self._diverged}
        return {name: part.detach().clone() for name, part in parts.items()}

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        self._rows, self._seen = snapshot["rows"][source], snapshot["seen"][source]
        self._set_all_params(snapshot["params"][source])
        self._publish(snapshot["diverged"][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        columns = [
            torch.where(mask, params[name], known) if name in params else known
            for name, known in zip(self._parameters.names, self._params.unbind(1), strict=True)
        ]
        self._set_all_params(torch.stack(columns, dim=1))
        self._publish(self._diverged)

    def check(self) -> None:
        """See `Backend.check`. This backend has no buffers that can overflow."""

    def close(self) -> None:
        """Free the engine's memory."""
        self._engine.close()

    def _set_all_params(self, params: Tensor) -> None:
        self._params = params
        self._engine_params = self._parameters.of_engine(params, self._engine.params)

    def _advance(self, rows: Tensor, targets: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled() or not (rows.requires_grad or targets.requires_grad):
            return self._engine.forward(rows.detach(), targets.detach(), self._engine_params, substeps)
        result: Any = ControlStep.apply(self._engine, rows, targets, self._engine_params, substeps)
        return result

    def _holding_targets(self, initial: InitialState) -> Tensor:
        """Joint targets (N, A) at which position actuators hold the joint positions and force actuators apply 0."""
        still = torch.zeros_like(initial.joint_pos[:, :1]).squeeze(1)
        columns = [still if joint is None else initial.joint_pos[:, joint] for joint in self._position_joints]
        return torch.stack(columns, dim=1) if columns else initial.joint_pos[:, :0]

    def _publish(self, diverged: Tensor) -> None:
        self._diverged = diverged
        params = dict(zip(self._parameters.names, self._params.unbind(1), strict=True))
        self._state = State({self.scene.first: self._layout.entity(self._seen)}, params, diverged)
