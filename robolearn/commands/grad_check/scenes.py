"""Situations in which gradients are checked: in the air, standing on the ground, and touching down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch

from robolearn.commands.grad_check.differences import Rollout, Scene
from robolearn.envs.backend import Backend
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState, Tensor

SETTLING = 0.5
"""How long a robot stands before it is checked standing [s]: the ground has come to rest, and nobody has toppled."""
ALOFT = 1.0
"""How high the soles are in smooth motion [m]."""
FALL = 0.5
"""Speed at which robots are dropped [m/s]."""


class Scenes:
    """Makes scenes for the robots of one backend; `random` draws on the CPU, so that every machine draws the same."""

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
        """Whether the robot has feet and can be put on the ground and off it."""
        return self._lift is not None

    def smooth(self, steps: int) -> Scene:
        """Nothing touches: joints around home, everything moving, motors within their limits."""
        first, second = (self._aloft() for _ in range(2))
        return self._scene(first, second, self._around(self._home_targets(), 0.2, steps))

    def standing(self, steps: int) -> Scene:
        """On the ground, come to rest in slightly different stances, which targets then leave a little."""
        backend, held = self.backend, self._around(self._home_targets(), 0.03, 1)[0]
        with torch.no_grad():
            backend.reset(self._every(), self._at_height(self.home(), torch.zeros(backend.num_envs)))
            for _ in range(round(SETTLING / self.control_dt)):
                backend.step(held, self.substeps)
        entity = backend.state.robot
        pose = InitialState(
            **{f.name: getattr(entity, f.name).detach().clone() for f in fields(InitialState)}
        )
        return self._scene(pose, pose, self._around(held, 0.01, steps))

    def onset(self, steps: int) -> Scene:
        """Dropped from heights that differ, so that everyone touches down before the end, and not at once."""
        # The shorter of the two falls: up to the reset, or from there.
        shortest = self.control_dt * max(1, steps // 2)
        first, second = (self._dropped(shortest) for _ in range(2))
        return self._scene(first, second, self._around(self._home_targets(), 0.1, steps))

    def home(self) -> InitialState:
        """Everybody at rest in the home pose, as the MJCF has its base."""
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

    def _aloft(self) -> InitialState:
        pose = self._noisy(self.home(), position=0.1, speed=0.5)
        return self._at_height(pose, torch.full((self.backend.num_envs,), ALOFT)) if self._lift else pose

    def _dropped(self, seconds: float) -> InitialState:
        assert self._lift is not None
        n = self.backend.num_envs
        share = torch.linspace(0.1, 0.8, n)[torch.randperm(n, generator=self.random)]
        pose = self._noisy(self.home(), position=0.0, speed=0.1)
        pose = self._at_height(pose, share * FALL * seconds)
        higher = self._lift(pose, torch.ones(n, device=self.backend.device))
        return replace(
            pose,
            base_lin_vel=pose.base_lin_vel - FALL * (higher.base_pos - pose.base_pos),
            joint_vel=pose.joint_vel - FALL * (higher.joint_pos - pose.joint_pos),
        )

    def _noisy(self, pose: InitialState, position: float, speed: float) -> InitialState:
        parts = {f.name: getattr(pose, f.name) for f in fields(pose)}
        for name in ("joint_pos", "base_lin_vel", "base_ang_vel", "joint_vel"):
            size = position if name == "joint_pos" else speed
            parts[name] = parts[name] + size * self._uniform(*parts[name].shape)
        return InitialState(**parts)

    def _at_height(self, pose: InitialState, height: Tensor) -> InitialState:
        """The pose lifted so that the lowest sole's centre is at `height` (N,) [m]."""
        assert self._lift is not None
        with torch.no_grad():
            self.backend.reset(self._every(), pose)
        low = self.backend.state.robot.foot_pos[:, :, 2].amin(dim=1).detach()
        return self._lift(pose, height.to(low) - low)

    def _find_lift(self) -> Callable[[InitialState, Tensor], InitialState] | None:
        """What raises the whole robot: its free base, or else a joint that raises every foot by as much as itself."""
        if self.robot.base:

            def base(pose: InitialState, by: Tensor) -> InitialState:
                place = pose.base_pos.clone()
                place[:, 2] += by
                return replace(pose, base_pos=place)

            return base
        heights = []
        for j in (None, *range(len(self.robot.joints))):
            pose = self.home()
            if j is not None:
                pose.joint_pos[:, j] += 0.1
            with torch.no_grad():
                self.backend.reset(self._every(), pose)
            heights.append(self.backend.state.robot.foot_pos[0, :, 2].detach().clone())
        found = [
            j for j, high in enumerate(heights[1:]) if float((high - heights[0] - 0.1).abs().max()) < 1e-4
        ]
        if not found:
            return None

        def joint(pose: InitialState, by: Tensor) -> InitialState:
            place = pose.joint_pos.clone()
            place[:, found[0]] += by
            return replace(pose, joint_pos=place)

        return joint

    def _home_targets(self) -> Tensor:
        """(N, A): the home pose for position actuators, nothing for force actuators."""
        kinds = zip(self.robot.actuators, self.robot.actuated, strict=True)
        row = [self.robot.home[joint] if a.kind == "position" else 0.0 for a, joint in kinds]
        return torch.tensor(row, device=self.backend.device).repeat(self.backend.num_envs, 1)

    def _around(self, targets: Tensor, spread: float, steps: int) -> Tensor:
        """(T, N, A) targets that differ from these by up to `spread` units."""
        return targets + spread * self._unit() * self._uniform(steps, *targets.shape)

    def _unit(self) -> Tensor:
        row = [1.0 if a.kind == "position" else a.effort for a in self.robot.actuators]
        return torch.tensor(row, device=self.backend.device)

    def _uniform(self, *shape: int) -> Tensor:
        return (2.0 * torch.rand(shape, generator=self.random) - 1.0).to(self.backend.device)

    def _every(self) -> Tensor:
        return torch.ones(self.backend.num_envs, dtype=torch.bool, device=self.backend.device)


def smooth_throughout(rollout: Rollout) -> Tensor:
    """(N,) whether no foot touched."""
    return ~rollout.touching.flatten(2).any(dim=2).any(dim=0)


def stood_throughout(rollout: Rollout) -> Tensor:
    """(N,) whether every foot touched all the time."""
    return rollout.touching.all(dim=2).all(dim=0)


def touched_down(rollout: Rollout) -> Tensor:
    """(N,) whether no foot touched at first, and one did later."""
    anywhere = rollout.touching.any(dim=2)
    return ~anywhere[0] & anywhere[1:].any(dim=0)
