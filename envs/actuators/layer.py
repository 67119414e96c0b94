"""The torque of motors as a pure function of tensors: delay, controller, clamp.

For each physics substep of length h, in this order:

1. **delay**: the joint target that was asked for `delay` control steps ago. Joint targets change once a control step:
   within a substep in which one arrives the motor follows a mean of old and new, weighted by their shares of it.
2. **controller**: kp (target - position) - kd velocity; of a force motor the target itself; of a learned motor its
   network. With backlash the position is that of a rotor without mass that moves within the play (`_through_play`).
3. **clamp**: to the effort; then, with a lag, the torque approaches that by the share 1 - exp(-h / lag); then it is
   clamped to the torque-speed curve. What comes out is what the lag goes on from.

The torque-speed curve of a DC motor, at speed v [rad/s] in the direction of the torque (v < 0: the motor brakes):

    saturation (1 - v / no_load_speed), at least 0 and at most the effort

A curve of points is interpolated between them; beyond the last point it stays, and a braking motor has the torque of
standstill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from robolearn.envs.actuators.model import MotorModel
from robolearn.envs.actuators.network import MotorNetwork
from robolearn.envs.robot import Actuator, Robot

Tensor = torch.Tensor
Motion = dict[str, Tensor]
"""State of N environments' motors, (N, ...) by name; see `Motors.start`."""

ROUNDING = 1e-4
"""A delay this close to a whole number of substeps is that number."""


@dataclass(frozen=True)
class Factors:
    """What differs between environments, (N, A) each."""

    stiffness: Tensor
    """Factor on kp."""
    damping: Tensor
    """Factor on kd."""
    torque: Tensor
    """Factor on effort and torque-speed curve."""
    delay: Tensor
    """Where in its range the delay of a motor is, 0 to 1."""


class Motors:
    """The motors of one robot whose torque is computed outside the simulator, A of them, in the order of its actuators.

    It holds constants only; what changes is a Motion, which `start`, `command` and `torque` return anew. All of them
    are differentiable by targets, positions and velocities.
    """

    def __init__(self, robot: Robot, timestep: float, device: torch.device) -> None:
        """`timestep` is that of the physics [s].

        Raises:
            ConfigError: the network of a motor cannot be used.
        """
        self.indices = [i for i, actuator in enumerate(robot.actuators) if actuator.outside]
        """Their places among the robot's actuators."""
        drives = [robot.actuators[i] for i in self.indices]
        self.columns = torch.tensor(self.indices, device=device)
        self.joints = torch.tensor([robot.actuated[i] for i in self.indices], device=device)
        """(A,) place of each one's joint among the robot's."""
        self.timestep, self._drives = timestep, drives

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        models = [_model(drive) for drive in drives]
        self._force = torch.tensor([drive.kind == "force" for drive in drives], device=device)
        self._kp, self._kd = column([d.kp for d in drives]), column([d.kd for d in drives])
        self._effort = column([drive.effort for drive in drives])
        self._soonest, self._latest = (
            column([m.delay[0] for m in models]),
            column([m.delay[1] for m in models]),
        )
        self._past = int(-(-max(m.delay[1] for m in models) // 1))  # the ceiling
        self.varies = any(low < high for low, high in (m.delay for m in models))
        """Whether the delay of a motor has a range."""
        self._play = column([m.backlash for m in models])
        self._plays = any(m.backlash > 0 for m in models)
        self._share = column([-math.expm1(-timestep / m.lag) if m.lag else 1.0 for m in models])
        self._lags = any(m.lag > 0 for m in models)
        linear = [m.saturation > 0 for m in models]
        self._linear = torch.tensor(linear, device=device) if any(linear) else None
        self._saturation = column([m.saturation for m in models])
        self._no_load = column([m.no_load_speed or 1.0 for m in models])
        self._curve = _Curves([m.curve for m in models], device) if any(m.curve for m in models) else None
        self.networks = MotorNetwork.of(robot, drives, timestep, device)

    # ------------------------------------------------------------------ what changes

    def start(self, targets: Tensor, pos: Tensor, vel: Tensor) -> Motion:
        """The state of motors that hold their joints: targets, positions and velocities (N, A). `commands` (N, 1 +
        longest delay, A) are the joint targets of the last control steps, the newest first; `rotor` (N, A) is the
        position of each rotor, `torque` (N, A) what the lag goes on from, `errors.K` and `speeds.K` the history of the
        network K."""
        motion = {"commands": targets[:, None].expand(-1, 1 + self._past, -1).clone()}
        if self._plays:
            motion["rotor"] = pos.clone()
        if self._lags:
            motion["torque"] = torch.zeros_like(pos)
        for network in self.networks:
            motion |= network.start(targets, pos, vel)
        return motion

    def command(self, motion: Motion, targets: Tensor) -> Motion:
        """The state at the beginning of a control step with these joint targets (N, A)."""
        commands = torch.cat((targets[:, None], motion["commands"][:, : self._past]), dim=1)
        return {**motion, "commands": commands}

    def torque(
        self, motion: Motion, pos: Tensor, vel: Tensor, substep: int, substeps: int, factors: Factors
    ) -> tuple[Tensor, Motion]:
        """The torque (N, A) of substep `substep` of the `substeps` of a control step.

        Args:
            motion: the state of the motors.
            pos, vel: (N, A) of their joints at the beginning of the substep.
            substep, substeps: from 0 on, and their number.
            factors: what differs between environments.

        Returns:
            The torque, and the state after the substep.
        """
        after = dict(motion)
        targets = self._arriving(motion["commands"], substep, substeps, factors.delay)
        kp, kd = self._kp * factors.stiffness, self._kd * factors.damping
        asked = kp * (targets - pos) - kd * vel
        if self._plays:
            through, rotor = self._through_play(motion["rotor"], targets, pos, kp, kd)
            asked = torch.where(self._play > 0, through, asked)
            after["rotor"] = rotor
        asked = torch.where(self._force, targets, asked)
        for network in self.networks:
            asked, history = network.torque(asked, motion, targets, pos, vel)
            after |= history
        effort = self._effort * factors.torque
        torque = asked.clamp(-effort, effort)
        if self._lags:
            before = motion["torque"]
            torque = torch.where(self._share < 1, before + self._share * (torque - before), torque)
        if self._linear is not None:
            top, bottom = self._limits(vel, factors.torque)
            limited = torch.minimum(torch.maximum(torque, bottom), top)
            torque = torch.where(self._linear, limited, torque)
        if self._curve is not None:
            torque = self._curve.clamp(torque, vel, factors.torque)
        if self._lags:
            after["torque"] = torque
        return torque, after

    # ------------------------------------------------------------------ the parts

    def _arriving(self, commands: Tensor, substep: int, substeps: int, place: Tensor) -> Tensor:
        """(N, A) the joint targets that the motors follow in a substep."""
        if not self._past:
            return commands[:, 0]
        late = (self._soonest + (self._latest - self._soonest) * place) * substeps
        whole = late.round()
        late = torch.where((late - whole).abs() < ROUNDING, whole, late)
        whole = late.floor()
        late, whole = (x.expand_as(commands[:, 0]) for x in (late, whole))

        def old(substeps_old: Tensor) -> Tensor:
            """Commands of so many substeps ago: control steps change between substeps, at `substep` 0."""
            steps = torch.div(substeps_old - substep + substeps - 1, substeps, rounding_mode="floor")
            index = steps.long().clamp(0, self._past)
            return commands.gather(1, index[:, None]).squeeze(1)

        return torch.lerp(old(whole), old(whole + 1), late - whole)

    def _through_play(
        self, rotor: Tensor, targets: Tensor, pos: Tensor, kp: Tensor, kd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The torque that comes through the play of a gear, and the rotor's position after the substep.

        The rotor has no mass, carries the encoder and is at most half of the play from the joint. By itself it moves so
        that its controller asks for no torque, kd w' = kp (target - w), here by one implicit Euler step; where that
        would take it further than the play it stays at the end, and what the controller then asks for is the torque on
        the joint. Without damping this is kp times the error beyond the half play (a dead zone)."""
        slow = kd / self.timestep
        stiff = (kp + slow).clamp(min=1e-12)
        free = (slow * (rotor - pos) + kp * (targets - pos)) / stiff
        half = 0.5 * self._play
        held = free.clamp(-half, half)
        return stiff * (free - held), pos + held

    def _limits(self, vel: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """The largest and the least torque (N, A) of the linear torque-speed curve."""
        effort, saturation = self._effort * factor, self._saturation * factor
        fast = vel / self._no_load
        top = (saturation * (1.0 - fast)).clamp(min=0.0).minimum(effort)
        bottom = (saturation * (-1.0 - fast)).clamp(max=0.0).maximum(-effort)
        return top, bottom


class _Curves:
    """Torque-speed curves of points, of some of A motors."""

    def __init__(self, curves: Sequence[Sequence[tuple[float, float]]], device: torch.device) -> None:
        """An empty one is of a motor without."""
        longest = max(len(curve) for curve in curves)
        speeds, turns, standstill = [], [], []
        for curve in curves:
            points = list(curve) or [(0.0, 0.0)]
            slopes = [(t1 - t0) / (v1 - v0) for (v0, t0), (v1, t1) in pairwise(points)]
            # The curve is its first torque and, from each point on, a change of slope; after the last one it is level.
            changes = [b - a for a, b in zip([0.0, *slopes], [*slopes, 0.0], strict=True)]
            padding = [0.0] * (longest - len(points))
            speeds.append([v for v, _ in points] + padding)
            turns.append(changes + padding)
            standstill.append(points[0][1])
        self._has = torch.tensor([bool(curve) for curve in curves], device=device)
        self._speeds, self._turns = torch.tensor(speeds, device=device), torch.tensor(turns, device=device)
        self._standstill = torch.tensor(standstill, device=device)

    def clamp(self, torque: Tensor, vel: Tensor, factor: Tensor) -> Tensor:
        """Torque (N, A) within the curve at these speeds (N, A)."""
        along = torch.where(torque < 0, -vel, vel).clamp(min=0.0)[..., None]
        most = self._standstill + (self._turns * (along - self._speeds).clamp(min=0.0)).sum(-1)
        # A copy: autograd keeps it for the backward pass, and the next reset writes the factors in place.
        most = (most * factor.clone()).clamp(min=0.0)
        return torch.where(self._has, torque.clamp(-most, most), torque)


def _model(drive: Actuator) -> MotorModel:
    assert drive.motor is not None
    return drive.motor


def where(mask: Tensor, new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Motion:
    """Rows of `new` where `mask` (N,) is set, of `old` elsewhere."""
    return {name: torch.where(mask.view(-1, *[1] * (x.dim() - 1)), x, old[name]) for name, x in new.items()}
