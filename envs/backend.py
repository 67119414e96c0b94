"""The interface of every simulator: joint targets in, `State` out.

A backend converts to one convention: SI units, float32 tensors on the backend's device, quaternions wxyz, joints in
the *robot's* order, velocities of the link frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch

from robolearn.envs.parameters import changed_by
from robolearn.envs.scene import Scene
from robolearn.envs.state import Initial, State, Targets, Tensor
from robolearn.errors import ConfigError

FEATURES = {
    "objects": "objects that can move",
    "fixed_objects": "objects that are fixed",
    "robots": "several robots",
    "parts": "parts of a robot as robots of their own",
    "frames": "frames",
    "contacts": "contacts",
    "self_contact": "contacts of a robot with itself",
    "forces": "forces on a robot's base",
    "terrain": "uneven ground (terrain)",
    "selected_masses": "the masses of some bodies of a robot as a parameter",
    "dcmotor": "the motor model dcmotor",
    "motors": "motors that are computed outside the simulator",
}
"""What of a scene a backend may lack."""
MOTORS, MOTOR_DELAY = "motors", "motor_delay"
"""The feature that `robolearn.envs.actuators` adds to every backend, and the parameter of delays with a range."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend supports."""

    name: str
    timestep: float
    """Length of one physics substep [s]."""
    derived_lag: int
    """Physics substeps by which torque, body, foot and contact fields lag after a step: 0 or 1."""
    pd: Literal["implicit", "explicit"]
    """Whether position actuators are integrated inside the solver (implicit) or evaluated once per substep
    (explicit)."""
    exact_restore: bool
    """Whether a restored environment repeats its trajectory bit for bit."""
    gradients: bool = False
    """Whether gradients flow through `step`; see `GradientBackend`."""
    params: frozenset[str] = frozenset()
    """Names that `set_params` accepts; see `PARAMETERS`."""
    features: frozenset[str] = frozenset()
    """What it can simulate besides one robot on the ground; see `FEATURES`."""
    drawn: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    """Ranges of parameters that every episode draws, unless `task.randomize` has other ones."""


def asked_features(scene: Scene) -> dict[str, str]:
    """What a scene asks for of FEATURES, each with the place where it does."""
    asked: dict[str, str] = {}
    for name, thing in scene.objects.items():
        asked.setdefault("fixed_objects" if thing.fixed else "objects", f"entities.{name}")
    for name in list(scene.robots)[1:]:
        if name not in scene.parts:
            asked.setdefault("robots", f"entities.{name}")
    for name in scene.parts:
        asked.setdefault("parts", f"entities.{name}")
    for entity, frames in scene.frames.items():
        for frame in frames:
            asked.setdefault("frames", f"frames.{entity}: {frame}")
    for entity, contacts in scene.contacts.items():
        for label, contact in contacts.items():
            own = contact.other.partition("/")[0] == entity
            asked.setdefault("self_contact" if own else "contacts", f"contacts.{entity}.{label}")
    if scene.terrain is not None:
        asked["terrain"] = "terrain"
    for name, robot in scene.robots.items():
        for motor in (a for a in robot.actuators if a.motor is not None):
            asked.setdefault("motors" if motor.outside else "dcmotor", f"entities.{name}: {motor.joint}")
    for name in scene.params:
        if name.count("/") == 2 and changed_by(name) == "mass_scale":
            asked.setdefault("selected_masses", f"params: {name}")
    return asked


def require_features(scene: Scene, backend: str, features: frozenset[str]) -> None:
    """Check that a backend can simulate a scene, before anything starts.

    Raises:
        ConfigError: it lacks a feature; the message names it, where the scene asks for it, and what the backend has.
    """
    for feature, where in asked_features(scene).items():
        if feature not in features:
            has = (
                ", ".join(FEATURES[each] for each in FEATURES if each in features)
                or "one robot on the ground"
            )
            raise ConfigError(
                f"backend={backend} does not support {FEATURES[feature]} (scene {where}); it supports {has}. "
                "Choose another backend"
            )


Snapshot = dict[str, Any]
"""A copy of a backend's simulation state: tensors and plain values only, so that it can be stored safely."""


class Backend(Protocol):
    """A simulator of N copies of one scene. The constructor, `(scene, num_envs, device, config)`, takes a
    `robolearn.envs.scene.Scene`, or a Robot for a scene of it alone."""

    features: ClassVar[frozenset[str]]
    """What of FEATURES it has."""
    num_envs: int
    device: torch.device
    capabilities: Capabilities

    @property
    def state(self) -> State:
        """The current State."""

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """Reset the environments in `mask` (N,) bool to their rows of `initial`.

        An entity without an initial state starts where the scene has it, a robot in its home pose. Clears warm starts
        and warnings, makes position actuators hold the initial joint positions, and updates every field of their State.
        The other environments do not change.
        """

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """Hold `joint_targets` (N, A) for `substeps` physics steps. Robots without joint targets hold their last ones.

        Position actuators take joint positions [rad or m], force actuators torques [Nm] or forces [N], in the robot's
        actuator order.
        """

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """Add `jump` (N, 3) [m/s] to the velocity of the first robot's free base, and `turn` (N, 3) [rad/s] to its
        angular velocity, world axes both, in the environments in `mask` (N,) bool.

        Velocities are those of the base's origin; joints keep theirs. The State shows it after the next step.
        """

    def apply_force(self, force: Tensor) -> None:
        """Let `force` (N, 3) [N], world axes, act at the centre of mass of the first robot's base in the next `step`,
        instead of the force before. With the feature `forces`; a reset does not change it.
        """

    def snapshot(self) -> Snapshot:
        """Copy everything that `restore` needs."""

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """Set environment i to row `source_rows[i]` of the snapshot, or to row i without `source_rows`.

        Raises:
            ConfigError: the snapshot is of a scene with other parameters.
        """

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """Set physical parameters, (N,) per name, in the environments in `mask` (N,) bool.

        Raises:
            ValueError: a name is not in `capabilities.params`.
        """

    def check(self) -> None:
        """Check that the simulator has not dropped physics that did not fit its arrays since the last call.

        This reads back from the device; call it once per iteration.

        Raises:
            RunFailed: contacts or constraints were dropped; the message names the setting to raise.
        """

    def close(self) -> None:
        """Free the simulator."""


class TerrainBackend(Backend, Protocol):
    """A backend of a scene with a terrain: environments are at different places of it."""

    def place(self, mask: Tensor, origins: Tensor) -> None:
        """Move the origin of the environments in `mask` (N,) bool to their rows of `origins` (N, 3), in the world [m].

        Called just before these environments are reset; until then their State has no meaning. `State.origin` has all
        of them.
        """


class GradientBackend(Backend, Protocol):
    """A backend with `capabilities.gradients`: gradients flow through its steps.

    `step` and `reset` bind a State of new tensors, which belong to the autograd graph of the joint targets and of the
    State before; nothing is written in place. A reset ends the gradients of the environments that it resets; through
    the others they flow on. Without gradients it behaves as any other Backend.
    """

    def detach(self) -> None:
        """Detach the simulation state and the State from the autograd graph."""
