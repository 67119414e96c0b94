"""What every simulator looks like to the rest of RoboLearn: `State` out, targets in.

A backend converts at its own border into one convention: SI units, float32 tensors on the
backend's device, quaternions wxyz, joints in the *robot's* order, velocities of the link frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from robolearn.envs.state import InitialState, State, Tensor

PARAMETERS = {
    "friction": "sliding friction of the feet",
    "mass_scale": "mass and inertia of every body, as a factor",
    "gain_scale": "stiffness and damping of every position actuator, as a factor",
}
"""The per-environment physical parameters a backend may offer, (N,) each."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; validation, tests and messages read it."""

    name: str
    timestep: float
    """Length of one physics substep [s]."""
    derived_lag: int
    """Substeps by which torque, body, foot and contact fields lag behind after a step: 0 or 1."""
    pd: Literal["implicit", "explicit"]
    """Whether position actuators are integrated inside the solver or evaluated once a substep."""
    exact_restore: bool
    """A restored environment repeats its trajectory bit for bit."""
    gradients: bool = False
    """`step` can be differentiated."""
    params: frozenset[str] = frozenset()
    """Names `set_params` takes; see `PARAMETERS`."""


Snapshot = dict[str, Any]
"""Opaque rows of a backend (tensors and plain values only, so that it can be stored safely)."""


class Backend(Protocol):
    """A simulator holding N copies of one robot. The constructor loads; nothing else is public."""

    num_envs: int
    device: torch.device
    capabilities: Capabilities

    @property
    def state(self) -> State:
        """The current State."""

    def reset(self, mask: Tensor, pose: InitialState) -> None:
        """Put the environments in `mask` (N,) bool into their row of `pose`, at rest otherwise (no warm
        start, no warnings, position actuators holding the pose), and make every field of their State
        current. Others are untouched.
        """

    def step(self, targets: Tensor, substeps: int) -> None:
        """Hold `targets` (N, A) for `substeps` physics steps. Position actuators take joint positions
        [rad], force actuators forces [N] or torques [Nm], in the robot's actuator order.
        """

    def push(self, mask: Tensor, jump: Tensor) -> None:
        """Add `jump` (N, 3), world axes [m/s], to the velocity of the free bases in `mask` (N,) bool. The
        State shows it after the next step.
        """

    def snapshot(self) -> Snapshot:
        """Everything that `restore` needs, copied."""

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """Environment i becomes row `source_rows[i]` of the snapshot (row i without it)."""

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """Set physical parameters, (N,) a name, in the environments in `mask`.

        Raises:
            ValueError: for a name that is not in `capabilities.params`.
        """

    def check(self) -> None:
        """Raise RunFailed, with the remedy, where the simulator has dropped part of the physics since the last call
        because it did not fit its arrays. It reads back from the device: called once an iteration.
        """

    def close(self) -> None:
        """Free the simulator."""


class GradientBackend(Backend, Protocol):
    """A simulator through which gradients flow; its `capabilities.gradients` says so.

    `step` and `reset` bind a State of new tensors, which are part of the graph of the targets (and of the State)
    they came from; nothing is written in place. Where `reset` leaves an environment alone, gradients flow on through
    it; where it does not, they end. With gradients off, or none asked for, it is a Backend like any other.
    """

    def detach(self) -> None:
        """Cut what the next step goes on from, State included, off the graph it came from."""
