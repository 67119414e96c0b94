"""Finite differences: what a simulator's gradients are held against, environment by environment.

Environments do not know of each other, so that one rollout moves all N of them along a direction of their own, and
gives N directional derivatives.
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

Numbers = dict[str, Tensor]
"""Tensors by name, with environments in the last dimension but one."""

KINDS = {
    "targets": ("targets",),
    "positions": ("base_pos", "turn", "joint_pos"),
    "velocities": ("base_lin_vel", "base_ang_vel", "joint_vel"),
}
"""What a direction moves: one of these in turn, so that no kind hides behind another that weighs more."""

STEPS_64 = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Difference steps tried where differences are taken in float64 [rad, m, rad/s, m/s, or share of a motor's effort]."""
STEPS_32 = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
"""The same in float32, whose rounding drowns anything smaller."""
NOISY = ("joint_torque", "foot_force")
"""Fields left out in float32: gains and the ground are stiff, so that these are known to fewer digits than others."""


@dataclass
class Scene:
    """Where N environments start and what is done with them over T control steps."""

    start: InitialState
    again: InitialState
    """Where those that are reset start again."""
    reset: Tensor
    """(N,) bool: which are reset, half-way; nobody with a single step."""
    targets: Tensor
    """(T, N, A)."""
    unit: Tensor
    """(A,) what a difference of 1 is in a target: 1 rad or m, or the motor's effort."""
    substeps: int

    @property
    def steps(self) -> int:
        """T."""
        return len(self.targets)

    def inputs(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Shapes of what a direction of that kind moves, by name; poses are the first and the second, stacked."""
        n = len(self.start.joint_pos)
        if kind == "targets":
            return {"targets": (self.steps, n, self.targets.shape[2])}
        wide = {"joint_pos": self.start.joint_pos.shape[1], "joint_vel": self.start.joint_vel.shape[1]}
        return {name: (2, n, wide.get(name, 3)) for name in KINDS[kind]}


class Rollout(NamedTuple):
    """What came of a scene."""

    final: Numbers
    """Every field of State after the last step, (N, K) each."""
    touching: Tensor
    """(T + 1, N, F) bool: which feet pressed on the ground, at the start and after each step."""
    lost: Tensor
    """(N,) bool: the simulator gave up on it."""


def simulate(backend: Backend, scene: Scene, moved: Numbers, dtype: torch.dtype = torch.float32) -> Rollout:
    """Play a scene with its inputs moved by as much as `moved` says (see `Scene.inputs`; none: as it is)."""
    n, half = backend.num_envs, scene.steps // 2
    every = torch.ones(n, dtype=torch.bool, device=backend.device)
    targets = scene.targets.to(dtype)
    if "targets" in moved:
        targets = targets + moved["targets"] * scene.unit.to(dtype)
    backend.reset(every, _posed(scene.start, moved, 0, dtype))
    touching, lost = [_touching(backend)], ~every
    for t, target in enumerate(targets):
        if t == half and t:
            backend.reset(scene.reset, _posed(scene.again, moved, 1, dtype))
        backend.step(target, scene.substeps)
        touching.append(_touching(backend))
        lost = lost | backend.state.diverged
    final = {name: value.reshape(n, -1) for name, value in backend.state.robot.tensors().items()}
    return Rollout(final, torch.stack(touching), lost)


def _posed(pose: InitialState, moved: Numbers, which: int, dtype: torch.dtype) -> InitialState:
    """A pose moved; the base turns about its own axes."""
    parts = {f.name: getattr(pose, f.name).to(dtype) for f in fields(pose)}
    for name, part in parts.items():
        if name in moved:
            parts[name] = part + moved[name][which]
    if "turn" in moved:
        # To first order, which is what a derivative sees; the length comes back to 1.
        turn, real, imaginary = moved["turn"][which], parts["base_quat"][:, :1], parts["base_quat"][:, 1:]
        change = (-(imaginary * turn).sum(1, keepdim=True), real * turn + torch.linalg.cross(imaginary, turn))
        quat = parts["base_quat"] + 0.5 * torch.cat(change, dim=1)
        parts["base_quat"] = quat / quat.norm(dim=1, keepdim=True)
    return InitialState(**parts)


def _touching(backend: Backend) -> Tensor:
    return (backend.state.robot.foot_force.detach() != 0).any(dim=2)


@dataclass(frozen=True)
class Agreement:
    """How near gradients are to differences."""

    errors: list[float]
    """Relative error along each direction, with the difference step that suits it best."""
    by_step: dict[float, float]
    """The error in the middle by difference step, the same for every direction."""

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors)

    @property
    def median(self) -> float:
        """The error in the middle."""
        return median(self.errors)


def compare_states(
    backend: Backend, reference: Backend | None, scene: Scene, directions: int, random: torch.Generator
) -> Agreement:
    """Gradients of the final State by all that went in, against central differences.

    Along each direction the gradient is that of a random projection of all fields of the final State. A field is
    divided by the size of its own differences (along all directions of that kind), so that each counts the same.

    Args:
        backend: what is checked, in float32.
        reference: the same simulator in float64 to take the differences of; None takes them of `backend`.
        scene: what is done.
        directions: how many random directions.
        random: they and the projections are drawn here.
    """
    dtype = torch.float64 if reference else torch.float32
    kinds = [list(KINDS)[k % len(KINDS)] for k in range(directions)]
    along = [_direction(scene.inputs(kind), random, backend.device) for kind in kinds]
    sweep = STEPS_64 if reference else STEPS_32

    def after(direction: Numbers, step: float) -> Numbers:
        moved = {name: step * part.to(dtype) for name, part in direction.items()}
        final = simulate(reference or backend, scene, moved, dtype).final
        return {name: value.double() for name, value in final.items()}

    with torch.no_grad():
        slopes = [[_slope(after, direction, step) for direction in along] for step in sweep]
    moved = {
        name: torch.zeros(shape, device=backend.device, requires_grad=True)
        for kind in KINDS
        for name, shape in scene.inputs(kind).items()
    }
    rollout = simulate(backend, scene, moved)
    by_hand, automatic = [], []
    for k, (kind, direction) in enumerate(zip(kinds, along, strict=True)):
        alike = [i for i, other in enumerate(kinds) if other == kind]
        weights = {}
        for name, value in rollout.final.items():
            size = torch.stack([slopes[len(sweep) // 2][i][name] for i in alike]).square().mean().sqrt()
            drawn = _drawn(value.shape, random, backend.device).double()
            counts = size > 0 and (reference is not None or name not in NOISY)
            weights[name] = drawn / size if counts else torch.zeros_like(drawn)
        by_hand.append([_projected(weights, per_step[k]) for per_step in slopes])
        objective = _projected(weights, rollout.final).sum()
        asked = {name: moved[name] for name in direction}
        by = torch.autograd.grad(objective, list(asked.values()), retain_graph=True, allow_unused=True)
        automatic.append(along_direction(dict(zip(asked, by, strict=True)), direction))
    return _best(sweep, by_hand, automatic)


def compare_returns(
    returns: Callable[[Tensor], Tensor],
    reference: Callable[[Tensor], Tensor] | None,
    actions: Tensor,
    directions: int,
    random: torch.Generator,
) -> Agreement:
    """Gradients of a number an environment by all actions, against central differences.

    Args:
        returns: (N,) of actions (T, N, A) in float32, the same for the same actions.
        reference: the same of actions in float64, to take the differences of; None takes them of `returns`.
        actions: where.
        directions: how many random directions.
        random: they are drawn here.
    """
    dtype = torch.float64 if reference else torch.float32
    sweep = STEPS_64 if reference else STEPS_32
    along = [_drawn(actions.shape, random, actions.device) for _ in range(directions)]

    def after(direction: Numbers, step: float) -> Numbers:
        return {"": (reference or returns)(actions.to(dtype) + step * direction[""].to(dtype)).double()}

    with torch.no_grad():
        by_hand = [[_slope(after, {"": d}, step)[""] for step in sweep] for d in along]
    leaf = actions.clone().requires_grad_()
    (by,) = torch.autograd.grad(returns(leaf).sum(), leaf)
    return _best(sweep, by_hand, [along_direction({"": by}, {"": d}) for d in along])


def along_direction(by: dict[str, Tensor | None], direction: Numbers) -> Tensor:
    """(N,) what a gradient says of each environment's own change along a direction."""
    products = [
        (by_one.double() * direction[name].double()).sum(dim=(0, 2))
        for name, by_one in by.items()
        if by_one is not None
    ]
    return torch.stack(products).sum(dim=0)


def _direction(shapes: dict[str, tuple[int, ...]], random: torch.Generator, device: torch.device) -> Numbers:
    return {name: _drawn(shape, random, device) for name, shape in shapes.items()}


def _drawn(shape: Iterable[int], random: torch.Generator, device: torch.device) -> Tensor:
    # On the CPU, so that every machine draws the same.
    return torch.randn(tuple(shape), generator=random).to(device)


def _slope(after: Callable[[Numbers, float], Numbers], direction: Numbers, step: float) -> Numbers:
    up, down = after(direction, step), after(direction, -step)
    return {name: (up[name] - down[name]) / (2 * step) for name in up}


def _projected(weights: Numbers, values: Numbers) -> Tensor:
    """(N,)."""
    return torch.stack([(weights[name] * values[name].double()).sum(dim=1) for name in weights]).sum(dim=0)


def _best(sweep: tuple[float, ...], by_hand: list[list[Tensor]], automatic: list[Tensor]) -> Agreement:
    errors = [
        [relative_error(a, b) for b in per_step] for a, per_step in zip(automatic, by_hand, strict=True)
    ]
    middle = [median(row) for row in zip(*errors, strict=True)]
    return Agreement([min(row) for row in errors], dict(zip(sweep, middle, strict=True)))


def relative_error(automatic: Tensor, by_hand: Tensor) -> float:
    """|a - b| / |b|, the norms over environments; 0 where both are 0, infinite where a number is not finite."""
    apart, size = float((automatic - by_hand).norm()), float(by_hand.norm())
    if not (math.isfinite(apart) and math.isfinite(size)):
        return math.inf
    return apart / size if size else (0.0 if apart == 0 else math.inf)
