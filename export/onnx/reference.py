"""Sessions in real half precision, which ONNX Runtime lacks on a CPU: slow, only for checks during export."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn


class ReferenceSession:
    """The ONNX graph in ONNX's reference evaluator, which rounds and overflows like each type; about 1 ms per call."""

    name = "onnx reference"

    def __init__(self, model: onnx.ModelProto) -> None:
        def shapes(ports: list[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
            return {p.name: tuple(d.dim_value for d in p.type.tensor_type.shape.dim) for p in ports}

        self.inputs, self.outputs = shapes(list(model.graph.input)), shapes(list(model.graph.output))
        self._evaluator = ReferenceEvaluator(model)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32; overflows are infinite or NaN."""
        with np.errstate(over="ignore", invalid="ignore"):
            results = self._evaluator.run(None, feeds)
        assert isinstance(results, list)
        return dict(zip(self.outputs, (np.asarray(r, np.float32) for r in results), strict=True))

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


class TorchSession:
    """The torch module that was exported; for the closed loop, where the evaluator is too slow."""

    name = "torch"

    def __init__(self, module: nn.Module, like: ReferenceSession) -> None:
        self.inputs, self.outputs = like.inputs, like.outputs
        self._module = module

    @torch.no_grad()
    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32."""
        out = self._module(*(torch.from_numpy(feeds[name]).clone() for name in self.inputs))
        parts = out if isinstance(out, tuple) else (out,)
        return dict(zip(self.outputs, (part.numpy() for part in parts), strict=True))

    def close(self) -> None:
        """Does nothing: there are no resources to release."""
