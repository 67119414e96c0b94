"""A Backend whose motors are computed outside the simulator: one physics substep at a time, torque in, motion out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar, cast

import torch

from robolearn.envs import mjcf
from robolearn.envs.actuators.layer import Factors, Motion, Motors, where
from robolearn.envs.backend import (
    FEATURES,
    MOTOR_DELAY,
    MOTORS,
    Backend,
    GradientBackend,
    Snapshot,
    TerrainBackend,
)
from robolearn.envs.parameters import changed_by
from robolearn.envs.randomize import nominal, parameters, require_settable
from robolearn.envs.robot import Actuator, Robot
from robolearn.envs.scene import Object, Scene
from robolearn.envs.state import Initial, State, Targets, Tensor, by_entity

FACTORS = {
    "gain_scale": ("stiffness", "damping"),
    "kp_scale": ("stiffness",),
    "kd_scale": ("damping",),
    "torque_scale": ("torque",),
}
"""Physical parameters that change motors outside the simulator, each with the factors that it is; see `Factors`."""

GAINS = ("gain_scale", "kp_scale", "kd_scale")
"""Those of them that force actuators lack."""


def with_motors(make: Callable[[Scene], Backend], what: Scene | Robot) -> Backend:
    """The backend that `make` makes of a scene, with the motors that are computed outside the simulator."""
    scene = Scene.of(what)
    if not any(a.outside for robot in scene.robots.values() for a in robot.actuators):
        return make(scene)
    return MotorBackend(make, scene)


class MotorBackend:
    """A Backend that computes the torque of some motors by itself, before each physics substep, from positions and
    velocities at its beginning.

    The simulator below has force actuators in their place, so that the motion is the same in each. The state of the
    motors (`robolearn.envs.actuators.layer`) is part of snapshots; gradients flow through it where the simulator has
    them.
    """

    features: ClassVar[frozenset[str]] = frozenset(FEATURES)

    def __init__(self, make: Callable[[Scene], Backend], scene: Scene) -> None:
        """
        Args:
            make: makes the simulator of a scene.
            scene: has robots with such motors.

        Raises:
            ConfigError: as `make`, or the network of a motor cannot be used.
        """
        self.scene = scene
        bare = _with_force_actuators(scene)
        model = mjcf.build_model(scene)
        named = parameters(scene, model)
        self._own: dict[str, dict[str, Tensor]] = {}
        """For each parameter that changes motors here, by robot, whether it changes each of its motors, (A,) bool."""
        kept: list[str] = []  # parameters that the simulator below is to have, too
        whole: set[str] = set()  # those that select no motor inside it
        outer = [
            (name, actuator) for name, robot in scene.robots.items() for actuator in robot.actuators
        ]  # in the order of the model's actuators
        for name, parameter in named.items():
            chosen = [outer[i] for i in parameter.ids.tolist()] if parameter.field in FACTORS else []
            # The force actuators below have no gains; all else of them is theirs too.
            if name in scene.params and (
                parameter.field not in GAINS or any(not a.outside for _, a in chosen)
            ):
                kept.append(name)
            if chosen and all(a.outside for _, a in chosen):
                whole.add(name)
            if any(a.outside for _, a in chosen):
                self._own[name] = {
                    entity: torch.tensor([(entity, a) in chosen for a in robot.actuators if a.outside])
                    for entity, robot in scene.robots.items()
                }
        self.inner = make(replace(bare, params=tuple(kept)))
        self.num_envs, self.device = self.inner.num_envs, self.inner.device
        below = self.inner.capabilities
        self._motors = {
            name: Motors(robot, below.timestep, self.device)
            for name, robot in scene.robots.items()
            if any(a.outside for a in robot.actuators)
        }
        varies = any(motors.varies for motors in self._motors.values())
        # What the simulator lacks and also selects motors inside it would change only those outside it.
        self._own = {
            name: masks for name, masks in self._own.items() if name in below.params or name in whole
        }
        own = {name: nominal(named[name], model) for name in self._own if name not in below.params}
        if varies:
            own[MOTOR_DELAY] = 0.5
        self.capabilities = replace(
            below,
            pd="explicit",
            params=below.params | set(own),
            features=below.features | {MOTORS},
            drawn={**below.drawn, **({MOTOR_DELAY: (0.0, 1.0)} if varies else {})},
        )
        self._own = {
            name: {entity: mask.to(self.device) for entity, mask in masks.items()}
            for name, masks in self._own.items()
        }
        self._params = {
            name: torch.full((self.num_envs,), value, device=self.device) for name, value in own.items()
        }
        """(N,) each: the parameters that only this backend has."""
        self._factors = {
            name: Factors(*(torch.ones(self.num_envs, len(m.indices), device=self.device) for _ in range(4)))
            for name, m in self._motors.items()
        }
        self._joints = {name: _joints(scene.robots[name], self.device) for name in self._motors}
        self._refresh()
        self._diverged = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        every = ~self._diverged
        self._held: dict[str, Tensor] = {}
        self._motion: dict[str, Motion] = {}
        self._restart(every)
        self._publish()

    # ------------------------------------------------------------------ the contract

    @property
    def state(self) -> State:
        """The current State."""
        return self._state

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`. Delay lines hold the initial joint positions, and no motor has a torque."""
        self.inner.reset(mask, initial)
        self._restart(mask)
        self._diverged = self._set(self._diverged, self._diverged & ~mask)
        self._publish()

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`."""
        given = by_entity(joint_targets, self.scene.robots)
        with nullcontext() if self.capabilities.gradients else torch.no_grad():
            for name, targets in given.items():
                if name in self._motors:
                    self._held[name] = targets if self.capabilities.gradients else targets.clone()
                    mine = targets[:, self._motors[name].columns]
                    self._motion[name] = self._motors[name].command(self._motion[name], mine)
            diverged: Tensor | None = None
            for substep in range(substeps):
                torques = {name: self._torques(name, substep, substeps) for name in self._motors}
                self.inner.step({**given, **torques}, 1)
                now = self.inner.state.diverged
                diverged = now.clone() if diverged is None else diverged | now
        if diverged is not None:
            self._diverged = self._set(self._diverged, diverged)
        self._publish()

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        self.inner.push(mask, jump, turn)

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        motors = {
            name: {key: value.detach().clone() for key, value in motion.items()}
            for name, motion in self._motion.items()
        }
        return {
            "inner": self.inner.snapshot(),
            "motors": motors,
            "held": {name: value.detach().clone() for name, value in self._held.items()},
            "params": {name: value.clone() for name, value in self._params.items()},
            "diverged": self._diverged.clone(),
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        rows = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        for name, motion in self._motion.items():
            for key, value in motion.items():
                if (saved := snapshot["motors"][name][key]).shape[1:] != value.shape[1:]:
                    raise ValueError(
                        f"{key} of the motors of {name!r} has shape {tuple(saved.shape[1:])} in it, and here "
                        f"{tuple(value.shape[1:])}"
                    )
        self.inner.restore(snapshot["inner"], source_rows)
        self._motion = {
            name: {key: snapshot["motors"][name][key][rows] for key in motion}
            for name, motion in self._motion.items()
        }
        self._held = {name: snapshot["held"][name][rows] for name in self._held}
        for name, value in self._params.items():
            value.copy_(snapshot["params"][name][rows])
        self._diverged = self._set(self._diverged, snapshot["diverged"][rows])
        self._refresh()
        self._publish()

    def place(self, mask: Tensor, origins: Tensor) -> None:
        """See `TerrainBackend.place`."""
        cast(TerrainBackend, self.inner).place(mask, origins)

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`."""
        self.inner.apply_force(force)

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        below = {name: value for name, value in params.items() if name in self.inner.capabilities.params}
        if below:
            self.inner.set_params(mask, below)
        for name in params.keys() & self._params.keys():
            known = self._params[name]
            known.copy_(torch.where(mask, params[name], known))
        self._publish()
        self._refresh()

    def check(self) -> None:
        """See `Backend.check`."""
        self.inner.check()

    def close(self) -> None:
        """Free the simulator."""
        self.inner.close()

    def detach(self) -> None:
        """See `GradientBackend.detach`."""
        cast(GradientBackend, self.inner).detach()
        self._motion = {
            name: {key: value.detach() for key, value in motion.items()}
            for name, motion in self._motion.items()
        }
        self._held = {name: value.detach() for name, value in self._held.items()}
        self._publish()

    @property
    def read_at_once(self) -> bool:
        """Whether the simulator below checks each step, which on a GPU would force a sync."""
        return bool(getattr(self.inner, "read_at_once", False))

    @read_at_once.setter
    def read_at_once(self, value: bool) -> None:
        if hasattr(self.inner, "read_at_once"):
            self.inner.read_at_once = value

    @property
    def scratch_bytes(self) -> int:
        """See `robolearn.training.host_memory`."""
        return int(getattr(self.inner, "scratch_bytes", 0))

    # ------------------------------------------------------------------ the motors

    def _torques(self, name: str, substep: int, substeps: int) -> Tensor:
        """(N, A) what a robot's actuators below are told in a substep: torques, and joint targets of the others."""
        motors, entity = self._motors[name], self.inner.state.entities[name]
        pos, vel = entity.joint_pos[:, motors.joints], entity.joint_vel[:, motors.joints]
        torque, self._motion[name] = motors.torque(
            self._motion[name], pos, vel, substep, substeps, self._factors[name]
        )
        if len(motors.indices) == self._held[name].shape[1]:
            return torque
        return self._held[name].index_copy(1, motors.columns, torque)

    def _restart(self, mask: Tensor) -> None:
        """Let the motors hold the joints where they are in the environments in `mask` (N,)."""
        with torch.no_grad():
            for name, motors in self._motors.items():
                entity, (position, actuated) = self.inner.state.entities[name], self._joints[name]
                held = torch.where(position, entity.joint_pos[:, actuated], 0.0)
                pos, vel = entity.joint_pos[:, motors.joints], entity.joint_vel[:, motors.joints]
                motion = motors.start(held[:, motors.columns], pos, vel)
                if name in self._motion:
                    motion = where(mask, motion, self._motion[name])
                    held = torch.where(mask[:, None], held, self._held[name])
                self._motion[name], self._held[name] = motion, held

    def _refresh(self) -> None:
        """Compute what differs between environments, in place: `Env` records `set_params` in a CUDA graph."""
        for name, factors in self._factors.items():
            for factor in (factors.stiffness, factors.damping, factors.torque):
                factor.fill_(1.0)
            for parameter, masks in self._own.items():
                values = self._value(parameter)[:, None]
                for changed in FACTORS[changed_by(parameter)]:
                    factor = getattr(factors, changed)
                    factor.copy_(factor * torch.where(masks[name], values, 1.0))
            if MOTOR_DELAY in self._params:
                factors.delay.copy_(self._params[MOTOR_DELAY][:, None].expand_as(factors.delay))

    def _value(self, parameter: str) -> Tensor:
        """(N,) a parameter, here or in the simulator below."""
        return self._params[parameter] if parameter in self._params else self.inner.state.params[parameter]

    def _set(self, old: Tensor, new: Tensor) -> Tensor:
        """`new`, at the address of `old` where tensors are reused: CUDA graphs read them there."""
        return new if self.capabilities.gradients else old.copy_(new)

    def _publish(self) -> None:
        below = self.inner.state
        params = {**below.params, **self._params}
        parts = (below.sensors, below.agents, below.origin)
        self._state = State(below.entities, params, self._diverged, *parts)


def _with_force_actuators(scene: Scene) -> Scene:
    """The scene with a force actuator in the place of each motor that is computed outside the simulator, without
    parameters."""

    def bare(entity: Robot) -> Robot:
        actuators = tuple(_force(a) if a.outside else a for a in entity.actuators)
        part = entity.part and replace(entity.part, whole=bare(entity.part.whole))
        return replace(entity, actuators=actuators, part=part)

    entities: dict[str, Robot | Object] = {
        name: thing if isinstance(thing, Object) else bare(thing) for name, thing in scene.entities.items()
    }
    return replace(scene, entities=entities, params=())


def _joints(robot: Robot, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each actuator whether its joint targets are positions, and the place of its joint."""
    position = torch.tensor([a.kind == "position" for a in robot.actuators], device=device)
    return position, torch.tensor(robot.actuated, device=device)


def _force(actuator: Actuator) -> Actuator:
    return replace(actuator, kind="force", kp=0.0, kd=0.0, motor=None)
