"""Compares gradients through a simulator with finite differences, per environment.

Environments are independent, so one rollout perturbs each of N environments along a separate direction and gives N
directional derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from statistics import median
from typing import NamedTuple

import torch

from robolearn.envs.backend import Backend
from robolearn.envs.state import InitialState, Tensor

Tensors = dict[str, Tensor]
"""Tensors by name, with environments in the last dimension but one."""

KINDS = {
    "targets": ("targets",),
    "positions": ("base_pos", "turn", "joint_pos"),
    "velocities": ("base_lin_vel", "base_ang_vel", "joint_vel"),
}
"""Inputs that a direction perturbs. Directions cycle through the kinds, so that no kind dominates the others."""

STEPS_64 = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Steps of the differences in float64 [rad, m, rad/s, m/s, or share of a motor's effort]."""
STEPS_32 = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""Steps of the differences in float32, where rounding dominates smaller steps."""
NOISY = ("joint_torque", "foot_force")
"""Fields omitted in float32: stiff gains and contacts leave them fewer correct digits than other fields."""


@dataclass
class Scene:
    """Initial states, resets and joint targets of N environments over T control steps."""

    start: InitialState
    restart: InitialState
    """Initial state of the environments that are reset."""
    reset: Tensor
    """(N,) bool: environments that are reset after T // 2 steps; no reset where T is 1."""
    targets: Tensor
    """(T, N, A) joint targets."""
    unit: Tensor
    """(A,) scale of a perturbation of the targets: 1 rad or m, or the motor's effort."""
    substeps: int

    @property
    def steps(self) -> int:
        """T."""
        return len(self.targets)

    def inputs(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs that a direction of this kind perturbs, by name.

        Parts of initial states are (2, N, K): those of `start` and `restart`.
        """
        n = len(self.start.joint_pos)
        if kind == "targets":
            return {"targets": (self.steps, n, self.targets.shape[2])}
        wide = {"joint_pos": self.start.joint_pos.shape[1], "joint_vel": self.start.joint_vel.shape[1]}
        return {name: (2, n, wide.get(name, 3)) for name in KINDS[kind]}


class Rollout(NamedTuple):
    """Results of a scene."""

    final: Tensors
    """Every field of State after the last step, (N, K) each."""
    touching: Tensor
    """(T + 1, N, F) bool: feet in contact with the ground, at the start and after each step."""
    diverged: Tensor
    """(N,) bool: environments that diverged."""


def simulate(backend: Backend, scene: Scene, offsets: Tensors, dtype: torch.dtype = torch.float32) -> Rollout:
    """Simulate a scene with `offsets` added to its inputs, by name and shape of `Scene.inputs`; {} adds nothing."""
    n, half = backend.num_envs, scene.steps // 2
    every = torch.ones(n, dtype=torch.bool, device=backend.device)
    targets = scene.targets.to(dtype)
    if "targets" in offsets:
        targets = targets + offsets["targets"] * scene.unit.to(dtype)
    backend.reset(every, _perturbed(scene.start, offsets, 0, dtype))
    touching, diverged = [_touching(backend)], ~every
    for t, target in enumerate(targets):
        if t == half and t:
            backend.reset(scene.reset, _perturbed(scene.restart, offsets, 1, dtype))
        backend.step(target, scene.substeps)
        touching.append(_touching(backend))
        diverged = diverged | backend.state.diverged
    final = {name: value.reshape(n, -1) for name, value in backend.state.robot.tensors().items()}
    return Rollout(final, torch.stack(touching), diverged)


def _perturbed(initial: InitialState, offsets: Tensors, which: int, dtype: torch.dtype) -> InitialState:
    """An initial state plus `offsets[name][which]`; "turn" rotates the base about its body axes."""
    parts = {f.name: getattr(initial, f.name).to(dtype) for f in fields(initial)}
    for name, part in parts.items():
        if name in offsets:
            parts[name] = part + offsets[name][which]
    if "turn" in offsets:
        # To first order, which is exact for derivatives, then normalized.
        turn, real, imaginary = offsets["turn"][which], parts["base_quat"][:, :1], parts["base_quat"][:, 1:]
        change = (-(imaginary * turn).sum(1, keepdim=True), real * turn + torch.linalg.cross(imaginary, turn))
        quat = parts["base_quat"] + 0.5 * torch.cat(change, dim=1)
        parts["base_quat"] = quat / quat.norm(dim=1, keepdim=True)
    return InitialState(**parts)


def _touching(backend: Backend) -> Tensor:
    return (backend.state.robot.foot_force.detach() != 0).any(dim=2)


@dataclass(frozen=True)
class Agreement:
    """Relative errors of gradients against differences."""

    errors: list[float]
    """Relative error along each direction, at the difference step with the smallest error."""
    by_step: dict[float, float]
    """Median error over directions, by difference step."""

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors)

    @property
    def median(self) -> float:
        """The median error."""
        return median(self.errors)


def compare_states(
    backend: Backend, reference: Backend | None, scene: Scene, directions: int, random: torch.Generator
) -> Agreement:
    """Compare gradients of the final State by initial states and joint targets with central differences.

    Along each direction the gradient is that of a random projection of all fields of the final State. Each field is
    divided by the root mean square of its differences over all directions of the same kind, so that all fields have
    the same weight.

    Args:
        backend: the backend to check, in float32.
        reference: the same simulator in float64, for the differences; None uses `backend`.
        scene: initial states, resets and joint targets.
        directions: number of random directions.
        random: generator of the directions and projections.
    """
    dtype = torch.float64 if reference else torch.float32
    kinds = [list(KINDS)[k % len(KINDS)] for k in range(directions)]
    drawn = [_direction(scene.inputs(kind), random, backend.device) for kind in kinds]
    sweep = STEPS_64 if reference else STEPS_32

    def final_state(direction: Tensors, step: float) -> Tensors:
        offsets = {name: step * part.to(dtype) for name, part in direction.items()}
        final = simulate(reference or backend, scene, offsets, dtype).final
        return {name: value.double() for name, value in final.items()}

    with torch.no_grad():
        slopes = [[_central_difference(final_state, d, step) for d in drawn] for step in sweep]
    leaves = {
        name: torch.zeros(shape, device=backend.device, requires_grad=True)
        for kind in KINDS
        for name, shape in scene.inputs(kind).items()
    }
    rollout = simulate(backend, scene, leaves)
    numeric, automatic = [], []
    for k, (kind, direction) in enumerate(zip(kinds, drawn, strict=True)):
        same_kind = [i for i, other in enumerate(kinds) if other == kind]
        weights = {}
        for name, value in rollout.final.items():
            size = torch.stack([slopes[len(sweep) // 2][i][name] for i in same_kind]).square().mean().sqrt()
            weight = _randn(value.shape, random, backend.device).double()
            included = size > 0 and (reference is not None or name not in NOISY)
            weights[name] = weight / size if included else torch.zeros_like(weight)
        numeric.append([_project(weights, per_step[k]) for per_step in slopes])
        objective = _project(weights, rollout.final).sum()
        inputs = {name: leaves[name] for name in direction}
        grads = torch.autograd.grad(objective, list(inputs.values()), retain_graph=True, allow_unused=True)
        automatic.append(along_direction(dict(zip(inputs, grads, strict=True)), direction))
    return _agreement(sweep, numeric, automatic)


def compare_returns(
    returns: Callable[[Tensor], Tensor],
    reference: Callable[[Tensor], Tensor] | None,
    actions: Tensor,
    directions: int,
    random: torch.Generator,
) -> Agreement:
    """Compare gradients of each environment's return by all actions with central differences.

    Args:
        returns: deterministic function from actions (T, N, A) to returns (N,), in float32.
        reference: the same function in float64, for the differences; None uses `returns`.
        actions: (T, N, A) the point at which the gradients are compared.
        directions: number of random directions.
        random: generator of the directions.
    """
    dtype = torch.float64 if reference else torch.float32
    sweep = STEPS_64 if reference else STEPS_32
    drawn = [_randn(actions.shape, random, actions.device) for _ in range(directions)]

    def value(direction: Tensors, step: float) -> Tensors:
        return {"": (reference or returns)(actions.to(dtype) + step * direction[""].to(dtype)).double()}

    with torch.no_grad():
        numeric = [[_central_difference(value, {"": d}, step)[""] for step in sweep] for d in drawn]
    leaf = actions.clone().requires_grad_()
    (grad,) = torch.autograd.grad(returns(leaf).sum(), leaf)
    return _agreement(sweep, numeric, [along_direction({"": grad}, {"": d}) for d in drawn])


def along_direction(grads: dict[str, Tensor | None], direction: Tensors) -> Tensor:
    """(N,) directional derivative of each environment: its gradients times its part of the direction."""
    products = [
        (grad.double() * direction[name].double()).sum(dim=(0, 2))
        for name, grad in grads.items()
        if grad is not None
    ]
    return torch.stack(products).sum(dim=0)


def _direction(shapes: dict[str, tuple[int, ...]], random: torch.Generator, device: torch.device) -> Tensors:
    return {name: _randn(shape, random, device) for name, shape in shapes.items()}


def _randn(shape: Iterable[int], random: torch.Generator, device: torch.device) -> Tensor:
    # Drawn on the CPU, so that every device gets the same numbers.
    return torch.randn(tuple(shape), generator=random).to(device)


def _central_difference(
    function: Callable[[Tensors, float], Tensors], direction: Tensors, step: float
) -> Tensors:
    up, down = function(direction, step), function(direction, -step)
    return {name: (up[name] - down[name]) / (2 * step) for name in up}


def _project(weights: Tensors, values: Tensors) -> Tensor:
    """Weighted sum (N,) of all values."""
    return torch.stack([(weights[name] * values[name].double()).sum(dim=1) for name in weights]).sum(dim=0)


def _agreement(sweep: tuple[float, ...], numeric: list[list[Tensor]], automatic: list[Tensor]) -> Agreement:
    errors = [
        [relative_error(a, b) for b in per_step] for a, per_step in zip(automatic, numeric, strict=True)
    ]
    medians = [median(row) for row in zip(*errors, strict=True)]
    return Agreement([min(row) for row in errors], dict(zip(sweep, medians, strict=True)))


def relative_error(automatic: Tensor, numeric: Tensor) -> float:
    """|a - b| / |b|, the norms over environments; 0 where both are 0, infinite where a number is not finite."""
    difference, size = float((automatic - numeric).norm()), float(numeric.norm())
    if not (math.isfinite(difference) and math.isfinite(size)):
        return math.inf
    return difference / size if size else (0.0 if difference == 0 else math.inf)
