"""A robot's computer for tests: a folder with a small ONNX graph, a fake TensorRT of some version and a fake GPU."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from robolearn.runtime import cuda
from robolearn.runtime.engine import EngineSession, build_engine
from robolearn.runtime.errors import Refused
from tests.export.fake_tensorrt import VERSIONS, fake_tensorrt
from tests.export.tensorrt.fake_cudart import FakeCudart

NEW = VERSIONS[-1]

# actions = obs W + b, h_out = h_in + actions.
WEIGHTS = np.array([[1, 0], [0, 2], [1, -1]], np.float32)
BIAS = np.array([0.5, -0.5], np.float32)
FEEDS = {"obs": np.array([[1, 2, 3]], np.float32), "h_in": np.array([[1, 1]], np.float32)}
# actions: 1 + 3 + 0.5, 2 x 2 - 3 - 0.5; h_out: 1 more each.
EXPECTED = {"actions": [[4.5, 0.5]], "h_out": [[5.5, 1.5]]}


def graph(obs: tuple[int | str, ...] = (1, 3), kind: int = TensorProto.FLOAT, last: str = "Add") -> bytes:
    """The network above as ONNX; `last` is the operator of its last node."""
    nodes = [
        helper.make_node("Gemm", ["obs", "W", "b"], ["actions"], "policy"),
        helper.make_node(last, ["h_in", "actions"], ["h_out"], "state"),
    ]
    inputs = [("obs", kind, obs), ("h_in", TensorProto.FLOAT, (1, 2))]
    outputs = [(name, TensorProto.FLOAT, (1, 2)) for name in ("actions", "h_out")]
    tensors = [numpy_helper.from_array(WEIGHTS, "W"), numpy_helper.from_array(BIAS, "b")]
    made = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()


class Robot:
    """A folder with an ONNX graph, on a computer with TensorRT and a GPU."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.onnx, self.engine = folder / "policy.onnx", folder / "policy.engine"
        self.sidecar = folder / "policy.engine.json"
        self.onnx.write_bytes(graph())
        self.become(NEW)

    def become(self, version: str, calls_itself: str | None = None, **gpu: Any) -> None:
        self.gpu = FakeCudart(**gpu)
        self.trt = fake_tensorrt(version, self.gpu, calls_itself)
        self.patch.setitem(sys.modules, "tensorrt", self.trt)
        self.patch.setattr(cuda, "libcudart", lambda: self.gpu)

    def build(self, **options: Any) -> dict[str, Any]:
        return build_engine(self.onnx, self.engine, **options)

    def load(self) -> EngineSession:
        return EngineSession(self.engine, hashlib.sha256(self.onnx.read_bytes()).hexdigest())

    def rewrite(self, **changes: Any) -> None:
        """Change values of the sidecar."""
        self.sidecar.write_text(json.dumps(json.loads(self.sidecar.read_text()) | changes))

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


def refused(code: int, call: Callable[[], object], *parts: str) -> str:
    """The message with which a call is refused: one line, with all `parts` in it."""
    with pytest.raises(Refused) as caught:
        call()
    line = str(caught.value)
    assert caught.value.code == code, line
    assert "\n" not in line
    for part in parts:
        assert part in line
    return line
