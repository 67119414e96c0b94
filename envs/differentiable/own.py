"""Our own engine: a robot's equations as one Warp kernel, differentiated by Warp."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import mujoco
import torch
import warp as wp

from robolearn.envs.differentiable.engine import Layout
from robolearn.envs.differentiable.kernel import SIZES, control_step_kernels
from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.tree import left_out, read_tree
from robolearn.envs.randomize import settable
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.envs.warp_graphs import Recorder, patience


class OwnEngine:
    """Hinges, slides and a free base; motors, armature, damping, stops; spheres, capsules and boxes on a flat floor.

    Integration is MuJoCo's `implicitfast`: without contact and away from the stops a robot moves as it does there, to
    rounding. Ground and stops give way (`Mechanics.touches`, `Mechanics.stop`) where MuJoCo's are constraints. What
    is not simulated is refused (`tree.refuse_unknown`), but for contact among a robot's own bodies, which there is not.

    All of a step is differentiated exactly, at rest on the ground and in motion, and so is the way into and out of
    contact almost everywhere: forces are continuous but have a kink where a point touches, where a motor reaches its
    limit and where a joint reaches its stop.

    `number` is the type it computes with, and that of what it returns; float64 is for checking float32's gradients.
    """

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        device: torch.device,
        model: mujoco.MjModel,
        options: Mapping[str, Any],
        number: Literal["float32", "float64"] = "float32",
    ) -> None:
        self.timestep = float(model.opt.timestep)
        self.params = tuple(sorted(settable(robot)))
        self.num_envs, self.device = num_envs, device
        self._layout, self._motors = Layout(robot), len(robot.actuators)
        self._recorder = Recorder(device)
        _tell(robot, left_out(model))
        mechanics = Mechanics(read_tree(robot, model, options), self.timestep)
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
        step.take(rows, targets, params)
        self._recorder.launch(step.ahead)
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
        step.take(rows, targets, params)
        step.take_gradients(grad_rows, grad_seen)
        self._recorder.launch(step.back)
        return step.by_rows[0].clone(), step.by_targets.clone()

    def close(self) -> None:
        """See `Engine.close`."""
        self._steps = {}

    def _step(self, substeps: int) -> _Step:
        if substeps not in self._steps:
            room = Room(self.num_envs, self._layout.row, self._motors, len(self.params), self._layout.seen)
            self._steps[substeps] = _Step(self._kernels, substeps, room, self._recorder, self._number)
        return self._steps[substeps]


class Room(NamedTuple):
    """Sizes of a control step's arrays: N environments, and the widths R, A, P and L."""

    envs: int
    row: int
    motors: int
    params: int
    seen: int


class _Step:
    """One number of substeps: memory that never moves, and the recorded way through it and back."""

    def __init__(
        self,
        kernels: dict[int, wp.Kernel],
        substeps: int,
        room: Room,
        recorder: Recorder,
        number: torch.dtype,
    ) -> None:
        self.kernels, self.sizes, self.envs = kernels, pieces(substeps), room.envs

        def zeros(width: int) -> Tensor:
            return torch.zeros(room.envs, width, dtype=number, device=recorder.device)

        self.rows = [zeros(room.row) for _ in range(len(self.sizes) + 1)]
        """(N, R) before, between and after the launches."""
        self.targets, self.params, self.seen = zeros(room.motors), zeros(room.params), zeros(room.seen)
        self.by_rows = [zeros(room.row) for _ in self.rows]
        self.by_targets, self.by_params, self.by_seen = (
            zeros(room.motors),
            zeros(room.params),
            zeros(room.seen),
        )
        self.last_seen = zeros(room.seen)
        """(N, L) gradient by what the last launch sees; nobody asks what the others see."""
        self.ahead, self.back = recorder.record(self._forward), recorder.record(self._backward)

    def take(self, rows: Tensor, targets: Tensor, params: Tensor) -> None:
        """Copy the arguments of a step to where the graphs read them."""
        self.rows[0].copy_(rows)
        self.targets.copy_(targets)
        self.params.copy_(params)

    def take_gradients(self, by_rows: Tensor, by_seen: Tensor) -> None:
        """Copy the gradients by its results."""
        self.by_rows[-1].copy_(by_rows)
        self.last_seen.copy_(by_seen)

    def _forward(self) -> None:
        for k, size in enumerate(self.sizes):
            wp.launch(self.kernels[size], dim=self.envs, inputs=self._inputs(k), outputs=self._outputs(k))

    def _backward(self) -> None:
        # Between the launches the way there is taken again; what follows from the last one, nobody asks.
        for k, size in enumerate(self.sizes[:-1]):
            wp.launch(self.kernels[size], dim=self.envs, inputs=self._inputs(k), outputs=self._outputs(k))
        # A launch adds to the gradients by what it read.
        for tensor in (*self.by_rows[:-1], self.by_targets, self.by_params):
            wp.from_torch(tensor).zero_()
        for k, size in reversed(list(enumerate(self.sizes))):
            by_seen = self.last_seen if k == len(self.sizes) - 1 else self.by_seen
            wp.from_torch(self.by_seen).zero_()
            wp.launch(
                self.kernels[size], dim=self.envs, adjoint=True, inputs=self._inputs(k), outputs=self._outputs(k),
                adj_inputs=[wp.from_torch(x) for x in (self.by_rows[k], self.by_targets, self.by_params)],
                adj_outputs=[wp.from_torch(x) for x in (self.by_rows[k + 1], by_seen)],
            )  # fmt: skip

    def _inputs(self, k: int) -> list[Any]:
        return [wp.from_torch(x) for x in (self.rows[k], self.targets, self.params)]

    def _outputs(self, k: int) -> list[Any]:
        return [wp.from_torch(x) for x in (self.rows[k + 1], self.seen)]


_told: set[str] = set()


def _tell(robot: Robot, pairs: list[str]) -> None:
    """Say once what of a robot is not simulated."""
    if pairs and robot.name not in _told:
        _told.add(robot.name)
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        sys.stderr.write(
            f"backend=differentiable: {robot.name} does not feel itself: {pairs[0]}{more} pass through\n"
        )


def pieces(substeps: int) -> list[int]:
    """A number of substeps as launches that there are kernels for; [0], which only looks, for none."""
    found: list[int] = []
    while substeps:
        found.append(next(size for size in SIZES if size <= substeps))
        substeps -= found[-1]
    return found or [0]
