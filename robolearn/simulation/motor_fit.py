"""Fits a learned motor, the network of `model: network` in a robot.yaml, to a log of a real one.

A log is one of `robolearn sysid` (`robolearn.simulation.sysid.log`) with the velocities and torques of the motors. The
network's schema is in `robolearn.envs.actuators.network`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from robolearn.core.threads import one_thread
from robolearn.envs.actuators.network import HISTORY, INTERVAL
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.files import replacing
from robolearn.simulation.sysid.log import read

LEAST_ROWS = 100
"""Fewest rows of a log."""
UNIT: dict[str, Callable[[], nn.Module]] = {
    "Softsign": nn.Softsign,
    "Tanh": nn.Tanh,
    "Elu": nn.ELU,
    "Relu": nn.ReLU,
}
"""Activation functions by their names in ONNX."""
TEST_SHARE = 0.2
"""Share of each motor's log, its end, that is kept for the test."""


@dataclass(frozen=True)
class MotorLog:
    """What one motor was asked for and did, (T,) each, in equal steps of time."""

    joint: str
    """Its joint."""
    dt: float
    """Time between two rows [s]."""
    target: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    torque: np.ndarray


@dataclass(frozen=True)
class FittedMotor:
    """A network of a motor, and how well it predicts the end of the logs, which it was not trained on."""

    network: nn.Sequential
    """From (rows, 2 history) to (rows, 1); see the schema."""
    history: int
    """Samples of position error and velocity that it takes."""
    interval: float
    """Time between two of them [s]."""
    error: float
    """Root mean square of the error on the test part [Nm or N]."""
    scale: float
    """Standard deviation of the torque there [Nm or N]."""

    @property
    def share(self) -> float:
        """The error as a share of how much the torque varies."""
        return self.error / max(self.scale, 1e-12)

    def write(self, path: Path) -> None:
        """Write an ONNX file, with history and interval in its metadata, atomically."""
        nodes, weights, value = [], [], "x"
        layers = list(self.network)
        for number, layer in enumerate(layers):
            out = "y" if number == len(layers) - 1 else f"h{number}"
            if isinstance(layer, nn.Linear):
                names = [f"weight{number}", f"bias{number}"]
                nodes.append(helper.make_node("Gemm", [value, *names], [out], transB=1))
                weights += [
                    numpy_helper.from_array(part.detach().cpu().float().numpy(), name)
                    for part, name in zip((layer.weight, layer.bias), names, strict=True)
                ]
            else:
                kind = next(name for name, unit in UNIT.items() if type(layer) is unit)
                nodes.append(helper.make_node(kind, [value], [out]))
            value = out
        inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2 * self.history])
        outputs = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])
        graph = helper.make_graph(nodes, "motor", [inputs], [outputs], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, {HISTORY: str(self.history), INTERVAL: f"{self.interval:.9g}"})
        onnx.checker.check_model(model)
        with replacing(path) as part:
            part.write_bytes(model.SerializeToString())


def read_logs(path: Path, joints: Sequence[str] = ()) -> list[MotorLog]:
    """The motors of a log whose torque was measured, in equal steps of time; `joints` chooses some.

    Raises:
        ConfigError: the file is no log (`robolearn.simulation.sysid.log`), lacks a joint or a signal, or is too short.
    """
    log, where = read(path), quote(str(path), 120)
    measured = [name for k, name in enumerate(log.joints) if np.isfinite(log.torque[:, k]).any()]
    if not measured:
        raise ConfigError(f"{where} has no measured torques (torque.JOINT); it has {listing(log.joints, 12)}")
    for joint in joints:
        if joint not in measured:
            raise ConfigError(
                f"{where} has no motor {quote(joint)} with a torque{did_you_mean(joint, measured)} (valid: "
                f"{listing(measured, 24)})"
            )
    if len(log.time) < LEAST_ROWS:
        raise ConfigError(
            f"{where} has {len(log.time)} rows; a network needs {LEAST_ROWS} at least, better thousands"
        )
    regular = log.clock().regular
    time = log.time if regular is None else regular
    dt = float(np.median(np.diff(time)))
    even = time[0] + dt * np.arange(int((time[-1] - time[0]) / dt + 1e-6) + 1)
    targets, logs = log.commands(), []
    for joint in joints or measured:
        k, values = log.joints.index(joint), {}
        for signal in ("position", "velocity", "torque"):
            column = getattr(log, signal)[:, k]
            known = np.isfinite(column)
            if not known.any():
                raise ConfigError(f"{where} has no {signal}.{joint}, which a motor's log needs")
            values[signal] = np.interp(even, time[known], column[known])
        if np.isnan(targets[:, k]).all():
            raise ConfigError(f"{where} has no target.{joint}, which a motor's log needs")
        row = np.searchsorted(time, even + 1e-9, side="right") - 1  # a target holds until the next
        logs.append(MotorLog(joint, dt, targets[row, k], **values))
    return logs


def samples(log: MotorLog, history: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (K, 2 history) and torques (K,) of a log, with `stride` rows between samples; see the schema."""
    first = (history - 1) * stride
    index = np.arange(first, len(log.torque))[:, None] - stride * np.arange(history)
    error = log.target - log.position
    return np.concatenate([error[index], log.velocity[index]], axis=1), log.torque[first:]


def fit(
    logs: Sequence[MotorLog],
    history: int = 3,
    interval: float = 0.0,
    hidden: Sequence[int] = (32, 32),
    unit: str = "Softsign",
    steps: int = 3000,
    seed: int = 0,
) -> FittedMotor:
    """Fit one network to all motors of the logs, which must be of one kind.

    Args:
        logs: motors, at least one.
        history: samples of position error and velocity that the network takes.
        interval: time between two of them [s], a multiple of the logs' steps; 0: that of the logs. The physics step has
            to be a divisor of it.
        hidden: widths of the hidden layers.
        unit: activation function, of UNIT.
        steps: gradient steps.
        seed: of weights and batches.

    Raises:
        ConfigError: a setting is invalid, or logs do not fit it or one another.
    """
    if unit not in UNIT:
        raise ConfigError(
            f"there is no unit {quote(unit)}{did_you_mean(unit, UNIT)} (valid: {listing(UNIT)})"
        )
    dts = sorted({log.dt for log in logs})
    if not dts or dts[-1] - dts[0] > 1e-3 * dts[0]:
        raise ConfigError("logs of one motor must have equal steps of time; resample them")
    stride = max(1, round(interval / dts[0]))
    if interval and abs(stride * dts[0] - interval) > 0.01 * dts[0]:
        raise ConfigError(
            f"interval={interval:g} s is not a multiple of the log's step of {dts[0]:g} s; use {stride * dts[0]:g}"
        )
    if history < 1 or any(len(log.torque) < 10 * history * stride for log in logs):
        raise ConfigError(f"history={history}: it must be 1 or more, and the logs ten times as long at least")
    parts = [samples(log, history, stride) for log in logs]
    cuts = [int(len(torque) * (1 - TEST_SHARE)) for _, torque in parts]

    def joined(chosen: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, torques = (np.concatenate(column) for column in zip(*chosen, strict=True))
        return torch.tensor(inputs, dtype=torch.float32), torch.tensor(torques, dtype=torch.float32)

    inputs, torques = joined([(x[:cut], y[:cut]) for (x, y), cut in zip(parts, cuts, strict=True)])
    test_inputs, test_torques = joined([(x[cut:], y[cut:]) for (x, y), cut in zip(parts, cuts, strict=True)])
    with one_thread(torch.device("cpu")):  # of networks this small, waking others takes longer than the work
        network = _trained(inputs, torques, hidden, unit, steps, seed)
    with torch.no_grad():
        wrong = network(test_inputs).squeeze(1) - test_torques
    error, scale = float(wrong.square().mean().sqrt()), float(test_torques.std())
    return FittedMotor(network, history, stride * dts[0], error, scale)


def _trained(
    inputs: torch.Tensor, torques: torch.Tensor, hidden: Sequence[int], unit: str, steps: int, seed: int
) -> nn.Sequential:
    """A network trained on normalized values by Adam with a rate that falls as a cosine; the normalization is then
    folded into its first and last layer."""
    mean, std = inputs.mean(0), inputs.std(0).clamp(min=1e-6)
    centre, spread = torques.mean(), torques.std().clamp(min=1e-6)
    x, y = (inputs - mean) / std, ((torques - centre) / spread)[:, None]
    random = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    widths = (x.shape[1], *hidden, 1)
    for number, (before, after) in enumerate(pairwise(widths)):
        linear = nn.Linear(before, after)
        with torch.no_grad():  # of this generator, not of the global one
            linear.weight.copy_(torch.randn(after, before, generator=random) / math.sqrt(before))
            linear.bias.zero_()
        layers += [linear] if number == len(widths) - 2 else [linear, UNIT[unit]()]
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for _ in range(steps):
        batch = torch.randint(len(x), (min(512, len(x)),), generator=random)
        loss = (network(x[batch]) - y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    first: Any = network[0]
    last: Any = network[-1]
    with torch.no_grad():
        first.weight /= std
        first.bias -= first.weight @ mean
        last.weight *= spread
        last.bias.mul_(spread).add_(centre)
    return network
