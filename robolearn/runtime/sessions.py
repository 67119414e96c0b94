"""Sessions: a loaded network, run by ONNX Runtime here and by TensorRT in `engine`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from robolearn.runtime.errors import BAD_INPUT, NOT_HERE, Refused


class Session(Protocol):
    """A loaded network with static shapes."""

    name: str
    """onnxruntime or tensorrt."""
    inputs: dict[str, tuple[int, ...]]
    """Shape of each input by name, in the ONNX graph's order; all are float32."""
    outputs: dict[str, tuple[int, ...]]
    """Shape of each output by name; all are float32."""

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32; the next call may overwrite the arrays."""

    def close(self) -> None:
        """Release its resources."""


class OnnxSession:
    """ONNX Runtime on one CPU thread: more threads would take cores from the control loop.

    Raises:
        Refused: NOT_HERE where onnxruntime is not installed or lacks the precision, BAD_INPUT for a file that it
            does not load or whose shapes are dynamic.
    """

    name = "onnxruntime"

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise Refused("onnxruntime is not installed: pip install onnxruntime", NOT_HERE) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        # A thread that spins between calls would keep one core busy.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own exception classes are not public
            if "NOT_IMPLEMENTED" in str(error):
                raise Refused(
                    f"ONNX Runtime has no operators for the precision of {path.name} on this CPU; use TensorRT: "
                    "python runtime.py build",
                    NOT_HERE,
                ) from None
            raise Refused(f"ONNX Runtime cannot load {path.name}: {error}", BAD_INPUT) from None
        self.inputs = {i.name: _static(path, i) for i in session.get_inputs()}
        self.outputs = {o.name: _static(path, o) for o in session.get_outputs()}
        self.metadata = dict(session.get_modelmeta().custom_metadata_map)
        """Metadata of the ONNX file, by name."""
        self._session, self._names = session, list(self.outputs)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32."""
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))

    def bind(self, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> Callable[[], None]:
        """A function that computes `outputs` from `feeds`, arrays that it reads and writes in place: around a small
        graph `run` takes twice the time. All are contiguous float32 of the graph's shapes."""
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        run = self._session.run_with_iobinding

        def bound(
            _held: tuple[object, ...] = (feeds, outputs),
        ) -> None:  # the binding has only their addresses
            run(binding)

        return bound

    def close(self) -> None:
        """Does nothing: ONNX Runtime frees its memory when the session is deleted."""


def _static(path: Path, port: object) -> tuple[int, ...]:
    """The shape of an input or output; refused where it is not fixed or not float32."""
    name, shape, kind = (getattr(port, key) for key in ("name", "shape", "type"))
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise Refused(
            f"{path.name}: {name} has the dynamic shape {shape}; export with a fixed batch of 1", BAD_INPUT
        )
    if kind != "tensor(float)":
        raise Refused(f"{path.name}: {name} is {kind}; it must be float32", BAD_INPUT)
    return tuple(shape)
