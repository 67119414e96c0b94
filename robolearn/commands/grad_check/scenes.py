"""Scenes in which gradients are checked: in the air, standing on the ground, and touching down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch

from robolearn.commands.grad_check.differences import Rollout, Scene
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, Tensor

SETTLING = 0.5
"""Standing time before the standing scene begins [s]: contacts have settled and no robot has fallen."""
ALOFT = 1.0
"""Height of the soles in smooth motion [m]."""
FALL = 0.5
"""Initial downward speed of dropped robots [m/s]."""


class Scenes:
    """Makes scenes for the robots of one backend; `random` draws on the CPU, so that every device gets the same."""

    def __init__(
        self, backend: Backend, robot: Robot, substeps: int, control_dt: float, random: torch.Generator
    ) -> None:
        self.backend, self.robot = backend, robot
        self.substeps, self.control_dt, self.random = substeps, control_dt, random
        self._lift: Callable[[InitialState, Tensor], InitialState] | None = (
            self._find_lift() if robot.feet else None
        )

    @property
    def grounded(self) -> bool:
        """Whether the robot has feet and can be lifted off the ground."""
        return self._lift is not None

    def smooth(self, steps: int) -> Scene:
        """In the air: joints around home, all of them moving, motors below their effort."""
        first, second = (self._airborne() for _ in range(2))
        return self._scene(first, second, self._around(self._home_targets(), 0.2, steps))

    def standing(self, steps: int) -> Scene:
        """At rest on the ground in slightly different stances, with joint targets that vary slightly."""
        backend, held = self.backend, self._around(self._home_targets(), 0.03, 1)[0]
        with torch.no_grad():
            backend.reset(self._every(), self._at_height(self.home(), torch.zeros(backend.num_envs)))
            for _ in range(round(SETTLING / self.control_dt)):
                backend.step(held, self.substeps)
        entity = backend.state.robot
        initial = InitialState(
            **{f.name: getattr(entity, f.name).detach().clone() for f in fields(InitialState)}
        )
        return self._scene(initial, initial, self._around(held, 0.01, steps))

    def onset(self, steps: int) -> Scene:
        """Dropped from different heights, so that all robots touch down before the end, at different times."""
        # The shorter of the two falls, before and after the reset.
        shortest = self.control_dt * max(1, steps // 2)
        first, second = (self._dropped(shortest) for _ in range(2))
        return self._scene(first, second, self._around(self._home_targets(), 0.1, steps))

    def home(self) -> InitialState:
        """All robots at rest, joints at home and the base at its home height."""
        n, device = self.backend.num_envs, self.backend.device
        zeros, upright = torch.zeros(n, 3, device=device), torch.zeros(n, 4, device=device)
        upright[:, 0] = 1.0
        place = zeros.clone()
        place[:, 2] = self.robot.home_height
        joints = torch.tensor(self.robot.home, device=device).repeat(n, 1)
        return InitialState(place, upright, zeros, zeros, joints, torch.zeros_like(joints))

    def _scene(self, first: InitialState, second: InitialState, targets: Tensor) -> Scene:
        reset = torch.arange(self.backend.num_envs, device=self.backend.device) % 2 == 1
        return Scene(first, second, reset, targets, self._unit(), self.substeps)

    def _airborne(self) -> InitialState:
        initial = self._noisy(self.home(), position=0.1, speed=0.5)
        return (
            self._at_height(initial, torch.full((self.backend.num_envs,), ALOFT)) if self._lift else initial
        )

    def _dropped(self, seconds: float) -> InitialState:
        assert self._lift is not None
        n = self.backend.num_envs
        share = torch.linspace(0.1, 0.8, n)[torch.randperm(n, generator=self.random)]
        initial = self._noisy(self.home(), position=0.0, speed=0.1)
        initial = self._at_height(initial, share * FALL * seconds)
        higher = self._lift(initial, torch.ones(n, device=self.backend.device))
        return replace(
            initial,
            base_lin_vel=initial.base_lin_vel - FALL * (higher.base_pos - initial.base_pos),
            joint_vel=initial.joint_vel - FALL * (higher.joint_pos - initial.joint_pos),
        )

    def _noisy(self, initial: InitialState, position: float, speed: float) -> InitialState:
        parts = {f.name: getattr(initial, f.name) for f in fields(initial)}
        for name in ("joint_pos", "base_lin_vel", "base_ang_vel", "joint_vel"):
            size = position if name == "joint_pos" else speed
            parts[name] = parts[name] + size * self._uniform(*parts[name].shape)
        return InitialState(**parts)

    def _at_height(self, initial: InitialState, height: Tensor) -> InitialState:
        """The initial state lifted so that the centre of the lowest sole is at `height` (N,) [m]."""
        assert self._lift is not None
        with torch.no_grad():
            self.backend.reset(self._every(), initial)
        low = self.backend.state.robot.foot_pos[:, :, 2].amin(dim=1).detach()
        return self._lift(initial, height.to(low) - low)

    def _find_lift(self) -> Callable[[InitialState, Tensor], InitialState] | None:
        """A function that lifts the robot: by its free base, or by a joint that lifts all feet by its position."""
        if self.robot.base:

            def base(initial: InitialState, by: Tensor) -> InitialState:
                place = initial.base_pos.clone()
                place[:, 2] += by
                return replace(initial, base_pos=place)

            return base
        heights = []
        for j in (None, *range(len(self.robot.joints))):
            initial = self.home()
            if j is not None:
                initial.joint_pos[:, j] += 0.1
            with torch.no_grad():
                self.backend.reset(self._every(), initial)
            heights.append(self.backend.state.robot.foot_pos[0, :, 2].detach().clone())
        found = [
            j for j, high in enumerate(heights[1:]) if float((high - heights[0] - 0.1).abs().max()) < 1e-4
        ]
        if not found:
            return None

        def joint(initial: InitialState, by: Tensor) -> InitialState:
            place = initial.joint_pos.clone()
            place[:, found[0]] += by
            return replace(initial, joint_pos=place)

        return joint

    def _home_targets(self) -> Tensor:
        """(N, A) joint targets: home for position actuators, 0 for force actuators."""
        kinds = zip(self.robot.actuators, self.robot.actuated, strict=True)
        row = [self.robot.home[joint] if a.kind == "position" else 0.0 for a, joint in kinds]
        return torch.tensor(row, device=self.backend.device).repeat(self.backend.num_envs, 1)

    def _around(self, targets: Tensor, spread: float, steps: int) -> Tensor:
        """(T, N, A) joint targets, uniform within `spread` units of `targets` (N, A)."""
        return targets + spread * self._unit() * self._uniform(steps, *targets.shape)

    def _unit(self) -> Tensor:
        row = [1.0 if a.kind == "position" else a.effort for a in self.robot.actuators]
        return torch.tensor(row, device=self.backend.device)

    def _uniform(self, *shape: int) -> Tensor:
        return (2.0 * torch.rand(shape, generator=self.random) - 1.0).to(self.backend.device)

    def _every(self) -> Tensor:
        return torch.ones(self.backend.num_envs, dtype=torch.bool, device=self.backend.device)


def airborne_throughout(rollout: Rollout) -> Tensor:
    """(N,) whether no foot touched at any time."""
    return ~rollout.touching.flatten(2).any(dim=2).any(dim=0)


def stood_throughout(rollout: Rollout) -> Tensor:
    """(N,) whether every foot touched at all times."""
    return rollout.touching.all(dim=2).all(dim=0)


def touched_down(rollout: Rollout) -> Tensor:
    """(N,) whether no foot touched at the start and one did later."""
    any_foot = rollout.touching.any(dim=2)
    return ~any_foot[0] & any_foot[1:].any(dim=0)
