"""Learned motors: a small network from position errors and velocities to torque, read from ONNX and run by torch.

**Schema.** One float input (rows, 2 L): the position errors (joint target - position) [rad or m] of L samples, the
newest first, then the velocities [rad/s or m/s] of the same samples. One output (rows, 1): the torque or force [Nm or
N], before it is clamped to the motor's effort. The newest sample is that of the current physics substep; `interval` [s]
lies between two samples. The file may say L and the interval in its metadata, `robolearn.history` and
`robolearn.interval`.

The graph is a chain of Gemm, MatMul, Add, Sub, Mul, Div (with constants), Identity, Elu, Relu, Tanh, Softsign and
Sigmoid; nothing in the file is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from robolearn.envs.robot import Actuator, Robot
from robolearn.errors import ConfigError, listing, one_line

Tensor = torch.Tensor
HISTORY, INTERVAL = "robolearn.history", "robolearn.interval"
"""Names in the metadata of an ONNX file."""
LARGEST = 4_000_000
"""Most weights of a motor's network."""
WIDEST = 4096
"""Most values that a constant is added to or multiplied with."""
ALIGNED = 16
"""Rows and widths are padded to a multiple of this: the rounding of a matrix product depends on the kernel, which the
library chooses by the shape, and an environment must have the same bits among others and alone."""
UNITS: dict[str, Callable[..., Tensor]] = {
    "Elu": torch.nn.functional.elu,
    "Relu": torch.nn.functional.relu,
    "Tanh": torch.tanh,
    "Softsign": torch.nn.functional.softsign,
    "Sigmoid": torch.sigmoid,
}
"""Activation functions."""
ARITHMETIC = ("Add", "Sub", "Mul", "Div")
OPS = ("Gemm", "MatMul", *ARITHMETIC, "Identity", *UNITS)
"""Every operator that a network may have."""


class Chain:
    """A chain of affine maps and activation functions, as read from an ONNX file."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ConfigError: the file cannot be read, or has an operator or a structure that is not supported; it is named.
        """
        self.path = path
        self.steps: list[tuple[np.ndarray, np.ndarray] | Callable[[Tensor], Tensor]] = []
        """Affine maps, weight (out, in) and bias (out,), and activation functions."""
        self._read(self._model())
        affine = [step for step in self.steps if isinstance(step, tuple)]
        if not affine:
            self.fail("has no Gemm or MatMul, so it is no network")
        self.inputs, outputs = affine[0][0].shape[1], affine[-1][0].shape[0]
        if outputs != 1:
            self.fail(f"has {outputs} outputs; a motor has one, its torque")
        if sum(weight.size for weight, _ in affine) > LARGEST:
            self.fail(f"has more than {LARGEST} weights, too many for a motor that is computed each substep")
        if not all(np.isfinite(part).all() for step in affine for part in step):
            self.fail("has a weight that is not finite")

    def fail(self, problem: str) -> NoReturn:
        """Raise ConfigError about the file."""
        raise ConfigError(f"{self.path}: {problem}")

    def _model(self) -> Any:
        import onnx

        try:
            model = onnx.load_model(str(self.path), load_external_data=False)
        except Exception as error:  # a damaged file raises almost any error
            self.fail(f"is no ONNX file: {one_line(str(error), 120)}")
        if not model.graph.node:
            self.fail("is no ONNX file, or has no operators")
        return model

    def _read(self, model: Any) -> None:
        import onnx

        tensors = [*model.graph.initializer, *(a.t for node in model.graph.node for a in node.attribute)]
        for each in tensors:
            # Its place is any path that the file names.
            if each.data_location == onnx.TensorProto.EXTERNAL:
                self.fail(
                    f"keeps its weight {each.name!r} in another file; export it with the weights inside"
                )
        # A newer number alone makes no other graph.
        model.ir_version = min(model.ir_version, onnx.IR_VERSION)
        try:
            onnx.checker.check_model(model.SerializeToString())
        except Exception as error:  # it, too, raises almost any error
            self.fail(f"is no valid ONNX file: {one_line(str(error), 160)}")
        self.metadata = {each.key: each.value for each in model.metadata_props}
        graph = model.graph
        constants: dict[str, np.ndarray] = {}
        for each in graph.initializer:
            constants[each.name] = self._numbers(each.name, each)
        inputs = [each.name for each in graph.input if each.name not in constants]
        if len(inputs) != 1 or len(graph.output) != 1:
            self.fail(
                f"has {len(inputs)} inputs and {len(graph.output)} outputs; a motor's network has one of each"
            )
        current = inputs[0]
        for node in graph.node:
            settings = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type == "Constant" and "value" in settings:
                constants[node.output[0]] = self._numbers(node.output[0], settings["value"])
                continue
            if node.op_type not in OPS or node.domain not in ("", "ai.onnx"):
                self.fail(
                    f"has the operator {node.op_type}, which a motor's network may not (valid: {listing(OPS)})"
                )
            used = [name for name in node.input if name]
            if used.count(current) != 1 or not set(used) - {current} <= set(constants):
                self.fail(
                    f"is not a chain: {node.op_type} takes {listing(used)}, and only {current} is its input"
                )
            self._add(node, [constants.get(name) for name in used], settings)
            current = node.output[0]
        if current != graph.output[0].name:
            self.fail(f"is not a chain: its output {graph.output[0].name} is not that of its last operator")

    def _numbers(self, name: str, tensor: Any) -> np.ndarray:
        """The numbers of a TensorProto."""
        import onnx

        try:
            value = onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # a damaged one raises almost any error
            self.fail(f"has a damaged weight {name!r}: {one_line(str(error), 120)}")
        if value.dtype.kind != "f":
            self.fail(f"has the constant {name!r} of type {value.dtype}; weights are float")
        return value.astype(np.float64)

    def _add(self, node: Any, operands: Sequence[np.ndarray | None], settings: dict[str, Any]) -> None:
        op, first = node.op_type, operands[0] is None
        if op == "Identity":
            return
        if op in UNITS:
            unit, alpha = UNITS[op], settings.get("alpha")
            self.steps.append((lambda x: unit(x, alpha)) if alpha is not None else unit)
            return
        if op in ("Gemm", "MatMul"):
            weight = operands[1] if first else None
            if weight is None or weight.ndim != 2 or settings.get("transA", 0):
                self.fail(f"has a {op} whose second operand is no matrix of weights, or with transA")
            weight = weight if settings.get("transB", 0) else weight.T
            weight = weight * settings.get("alpha", 1.0)
            bias = np.zeros(len(weight))
            if len(operands) > 2 and operands[2] is not None:
                bias = bias + self._row(op, operands[2], len(weight)) * settings.get("beta", 1.0)
            self._append(weight, bias)
            return
        constant = operands[1] if first else operands[0]
        assert constant is not None
        if constant.size > WIDEST:
            self.fail(f"has a {op} with {constant.size} numbers; a motor's network has {WIDEST} at most")
        width = self._width(constant)
        value = self._row(op, constant, width)
        scale, shift = np.ones(width), np.zeros(width)
        if op == "Add":
            shift = value
        elif op == "Sub":
            scale, shift = (scale, -value) if first else (-scale, value)
        elif op == "Mul":
            scale = value
        elif first:
            scale = 1 / np.where(value == 0, np.nan, value)
        else:
            self.fail("divides a constant by its input, which is not supported")
        self._append(np.diag(scale), shift)

    def _width(self, constant: np.ndarray) -> int:
        """Width of the values that a constant is added to."""
        affine = [step for step in self.steps if isinstance(step, tuple)]
        if affine:
            return int(affine[-1][0].shape[0])
        if constant.size == 1:
            self.fail("begins with arithmetic on a single number; state one number for each input")
        return int(constant.size)

    def _row(self, op: str, value: np.ndarray, width: int) -> np.ndarray:
        if value.size not in (1, width):
            self.fail(f"has a {op} with {value.size} numbers where {width} are expected")
        return np.broadcast_to(value.reshape(-1), (width,))

    def _append(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Add an affine map; one that follows another is merged with it."""
        affine = [step for step in self.steps if isinstance(step, tuple)]
        if affine and affine[-1][0].shape[0] != weight.shape[1]:
            self.fail(
                f"has a layer for {weight.shape[1]} values after one that gives {affine[-1][0].shape[0]}"
            )
        if self.steps and isinstance(last := self.steps[-1], tuple):
            self.steps[-1] = weight @ last[0], weight @ last[1] + bias
        else:
            self.steps.append((weight, bias))


class MotorNetwork:
    """A learned motor, of one or several joints of a robot."""

    def __init__(
        self,
        number: int,
        chain: Chain,
        columns: Sequence[int],
        samples: int,
        stride: int,
        device: torch.device,
    ) -> None:
        """`columns` are its places among the robot's motors; there are `stride` substeps between its `samples`."""
        self.number, self.samples, self.stride = number, samples, stride
        self.columns = torch.tensor(columns, device=device)
        self._steps: list[tuple[Tensor, Tensor] | Callable[[Tensor], Tensor]] = []
        width = chain.inputs
        for step in chain.steps:
            if not isinstance(step, tuple):
                self._steps.append(step)
                continue
            weight, bias = step
            rows = -(-len(weight) // ALIGNED) * ALIGNED
            padded = np.zeros((rows, width))
            padded[: len(weight), : weight.shape[1]] = weight
            shift = np.pad(bias, (0, rows - len(bias)))
            self._steps.append(
                tuple(torch.tensor(x, dtype=torch.float32, device=device) for x in (padded, shift))  # type: ignore[arg-type]
            )
            width = rows

    @classmethod
    def of(
        cls, robot: Robot, drives: Sequence[Actuator], timestep: float, device: torch.device
    ) -> list[MotorNetwork]:
        """The networks of a robot's motors.

        Raises:
            ConfigError: one cannot be used; it is named.
        """
        groups: dict[tuple[Path, int, float], list[int]] = {}
        for column, drive in enumerate(drives):
            if drive.motor is not None and drive.motor.network is not None:
                key = drive.motor.network, drive.motor.history, drive.motor.interval
                groups.setdefault(key, []).append(column)
        made = []
        for number, ((path, history, interval), columns) in enumerate(groups.items()):
            where = f"{robot.source}: actuators.{drives[columns[0]].joint}"
            chain = Chain(path)
            samples = history or _stated(chain, HISTORY, int, chain.inputs // 2)
            if chain.inputs != 2 * samples:
                raise ConfigError(
                    f"{where}.history: {path} takes {chain.inputs} inputs, and {samples} samples of error and velocity "
                    f"are {2 * samples}; state history: {chain.inputs // 2}, if that is its schema"
                )
            between = interval or _stated(chain, INTERVAL, float, timestep)
            stride = round(between / timestep)
            if samples > 1 and (stride < 1 or abs(stride * timestep - between) > 1e-6):
                raise ConfigError(
                    f"{where}.interval: the samples of {path} are {between:g} s apart, which is not a multiple of the "
                    f"physics step of {timestep:g} s; set backend.timestep to a divisor of it"
                )
            made.append(cls(number, chain, columns, samples, max(stride, 1), device))
        return made

    @property
    def _names(self) -> tuple[str, str]:
        return f"errors.{self.number}", f"speeds.{self.number}"

    def start(self, targets: Tensor, pos: Tensor, vel: Tensor) -> dict[str, Tensor]:
        """A history, (N, substeps, motors) of errors and of velocities, as if it had always been so."""
        length = (self.samples - 1) * self.stride + 1
        values = ((targets - pos)[:, self.columns], vel[:, self.columns])
        return {
            name: value[:, None].expand(-1, length, -1).clone()
            for name, value in zip(self._names, values, strict=True)
        }

    def torque(
        self, asked: Tensor, motion: dict[str, Tensor], targets: Tensor, pos: Tensor, vel: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`asked` (N, A) with the torques of this network's motors, and its history after the substep."""
        now = ((targets - pos)[:, self.columns], vel[:, self.columns])
        past = {
            name: torch.cat((value[:, None], motion[name][:, :-1]), dim=1)
            for name, value in zip(self._names, now, strict=True)
        }
        inputs = torch.cat([past[name][:, :: self.stride] for name in self._names], dim=1)  # (N, 2 L, motors)
        rows = inputs.transpose(1, 2).reshape(-1, 2 * self.samples)
        torque = self.compute(rows).view(len(asked), -1)
        return asked.index_copy(1, self.columns, torque), past

    def compute(self, rows: Tensor) -> Tensor:
        """The network's output (K,) of rows (K, 2 L); see the module's docstring."""
        count = len(rows)
        value = torch.nn.functional.pad(rows, (0, 0, 0, -count % ALIGNED))
        for step in self._steps:
            if isinstance(step, tuple):
                value = torch.nn.functional.linear(value, *(part.to(value) for part in step))
            else:
                value = step(value)
        return value[:count, 0]


def _stated(chain: Chain, key: str, kind: type, default: float) -> Any:
    """A number of a file's metadata."""
    if key not in chain.metadata:
        return default
    try:
        value = kind(chain.metadata[key])
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        chain.fail(f"says {key} = {chain.metadata[key]!r:.40} in its metadata, which is no number above 0")
    return value
