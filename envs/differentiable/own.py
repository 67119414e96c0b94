"""The engine `own`: the robot's equations of motion as one Warp kernel, differentiated by Warp."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import mujoco
import torch
import warp as wp

from robolearn.envs.differentiable.engine import Layout, engine_params
from robolearn.envs.differentiable.kernel import SIZES, control_step_kernels
from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.tree import ignored_contacts, read_tree
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import Recorder, patience


class OwnEngine:
    """Hinges, slides and a free base; motors, armature, damping, stops; spheres, capsules and boxes on a flat floor.

    Integration is MuJoCo's `implicitfast`: without contact and away from the joint stops, motion equals MuJoCo's to
    rounding. Ground and stops are springs and dampers (`Mechanics.contacts`, `Mechanics.stop`); MuJoCo's are
    constraints. Unsupported features raise ConfigError (`tree.require_simulable`), except contact between bodies of
    the robot, which is ignored with a warning.

    Gradients are exact almost everywhere, at rest on the ground, in motion and across contact changes: forces are
    continuous, with a kink where a point touches, a motor reaches its limit or a joint reaches its stop.

    `number` is the type of all computation and results; float64 serves to check the gradients of float32.
    """

    def __init__(
        self,
        scene: Scene | Robot,
        num_envs: int,
        device: torch.device,
        model: mujoco.MjModel,
        options: Mapping[str, Any],
        number: Literal["float32", "float64"] = "float32",
    ) -> None:
        scene = Scene.of(scene)
        robot = scene.robot
        self.timestep = float(model.opt.timestep)
        self.params = engine_params(scene)
        self.num_envs, self.device = num_envs, device
        self._layout, self._motors = Layout(scene), len(robot.actuators)
        self._recorder = Recorder(device)
        mechanics = Mechanics(read_tree(scene, model, options), self.timestep)
        _warn_ignored(robot, ignored_contacts(model))
        self._kernels = control_step_kernels(
            mechanics, self._layout.row, self._motors, self._layout.seen, self.params, number
        )
        self._number: torch.dtype = getattr(torch, number)
        with wp.ScopedDevice(self._recorder.warp), patience("the equations of motion"):
            wp.load_module(self._kernels[0].module, device=self._recorder.warp)
        self._steps: dict[int, _Step] = {}

    def forward(self, rows: Tensor, targets: Tensor, params: Tensor, substeps: int) -> tuple[Tensor, Tensor]:
        """See `Engine.forward`."""
        step = self._step(substeps)
        step.set_inputs(rows, targets, params)
        self._recorder.launch(step.forward_graph)
        return step.rows[-1].clone(), step.seen.clone()

    def backward(
        self,
        rows: Tensor,
        targets: Tensor,
        params: Tensor,
        substeps: int,
        grad_rows: Tensor,
        grad_seen: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.backward`."""
        step = self._step(substeps)
        step.set_inputs(rows, targets, params)
        step.set_output_gradients(grad_rows, grad_seen)
        self._recorder.launch(step.backward_graph)
        return step.grad_rows[0].clone(), step.grad_targets.clone()

    def close(self) -> None:
        """See `Engine.close`."""
        self._steps = {}

    def _step(self, substeps: int) -> _Step:
        if substeps not in self._steps:
            sizes = Sizes(self.num_envs, self._layout.row, self._motors, len(self.params), self._layout.seen)
            self._steps[substeps] = _Step(self._kernels, substeps, sizes, self._recorder, self._number)
        return self._steps[substeps]


class Sizes(NamedTuple):
    """Sizes of the arrays of a control step: N environments, and the widths R, A, P and L."""

    envs: int
    row: int
    motors: int
    params: int
    seen: int


class _Step:
    """Buffers at fixed addresses and the recorded forward and backward graphs for one number of substeps."""

    def __init__(
        self,
        kernels: dict[int, wp.Kernel],
        substeps: int,
        sizes: Sizes,
        recorder: Recorder,
        number: torch.dtype,
    ) -> None:
        self.kernels, self.launches, self.envs = kernels, split_substeps(substeps), sizes.envs

        def zeros(width: int) -> Tensor:
            return torch.zeros(sizes.envs, width, dtype=number, device=recorder.device)

        self.rows = [zeros(sizes.row) for _ in range(len(self.launches) + 1)]
        """(N, R) before, between and after the launches."""
        self.targets, self.params, self.seen = zeros(sizes.motors), zeros(sizes.params), zeros(sizes.seen)
        self.grad_rows = [zeros(sizes.row) for _ in self.rows]
        self.grad_targets, self.grad_params, self.grad_seen = (
            zeros(sizes.motors),
            zeros(sizes.params),
            zeros(sizes.seen),
        )
        self.grad_last_seen = zeros(sizes.seen)
        """(N, L) gradient by the outputs of the last launch; the other launches' outputs have none."""
        self.forward_graph = recorder.record(self._forward)
        self.backward_graph = recorder.record(self._backward)

    def set_inputs(self, rows: Tensor, targets: Tensor, params: Tensor) -> None:
        """Copy the arguments of a step into the buffers that the graphs read."""
        self.rows[0].copy_(rows)
        self.targets.copy_(targets)
        self.params.copy_(params)

    def set_output_gradients(self, grad_rows: Tensor, grad_seen: Tensor) -> None:
        """Copy the gradients by the results of a step."""
        self.grad_rows[-1].copy_(grad_rows)
        self.grad_last_seen.copy_(grad_seen)

    def _forward(self) -> None:
        for k, size in enumerate(self.launches):
            wp.launch(self.kernels[size], dim=self.envs, inputs=self._inputs(k), outputs=self._outputs(k))

    def _backward(self) -> None:
        # Recompute the rows between the launches; the result of the last launch is not needed.
        for k, size in enumerate(self.launches[:-1]):
            wp.launch(self.kernels[size], dim=self.envs, inputs=self._inputs(k), outputs=self._outputs(k))
        # An adjoint launch adds to the gradients by its inputs.
        for tensor in (*self.grad_rows[:-1], self.grad_targets, self.grad_params):
            wp.from_torch(tensor).zero_()
        for k, size in reversed(list(enumerate(self.launches))):
            grad_seen = self.grad_last_seen if k == len(self.launches) - 1 else self.grad_seen
            wp.from_torch(self.grad_seen).zero_()
            wp.launch(
                self.kernels[size], dim=self.envs, adjoint=True, inputs=self._inputs(k), outputs=self._outputs(k),
                adj_inputs=[wp.from_torch(x) for x in (self.grad_rows[k], self.grad_targets, self.grad_params)],
                adj_outputs=[wp.from_torch(x) for x in (self.grad_rows[k + 1], grad_seen)],
            )  # fmt: skip

    def _inputs(self, k: int) -> list[Any]:
        return [wp.from_torch(x) for x in (self.rows[k], self.targets, self.params)]

    def _outputs(self, k: int) -> list[Any]:
        return [wp.from_torch(x) for x in (self.rows[k + 1], self.seen)]


_warned: set[str] = set()


def _warn_ignored(robot: Robot, pairs: list[str]) -> None:
    """Print once per robot which contacts are not simulated."""
    if pairs and robot.name not in _warned:
        _warned.add(robot.name)
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        sys.stderr.write(
            f"backend=differentiable: no contact between bodies of {robot.name}: {pairs[0]}{more} "
            "pass through each other\n"
        )


def split_substeps(substeps: int) -> list[int]:
    """Sizes of the launches that add up to `substeps`; [0], which only computes the outputs, for none."""
    launches: list[int] = []
    while substeps:
        launches.append(next(size for size in SIZES if size <= substeps))
        substeps -= launches[-1]
    return launches or [0]
