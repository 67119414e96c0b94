"""Sessions in real half precision, which ONNX Runtime has not on a processor: slow, for checks on this machine only."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from robolearn.export.onnx.graph import Graph
from robolearn.learners.policy import Policy


class ReferenceSession:
    """The graph in ONNX's own evaluator, which rounds and overflows as each type does; about a millisecond a call."""

    name = "onnx reference"

    def __init__(self, model: onnx.ModelProto) -> None:
        def shapes(ports: list[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
            return {p.name: tuple(d.dim_value for d in p.type.tensor_type.shape.dim) for p in ports}

        self.inputs, self.outputs = shapes(list(model.graph.input)), shapes(list(model.graph.output))
        self._evaluator = ReferenceEvaluator(model)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32; what overflows is infinite or not a number."""
        with np.errstate(over="ignore", invalid="ignore"):
            results = self._evaluator.run(None, feeds)
        assert isinstance(results, list)
        return dict(zip(self.outputs, (np.asarray(r, np.float32) for r in results), strict=True))

    def close(self) -> None:
        """Nothing to give back."""


class TorchSession:
    """The module the graph was exported from; for the closed loop, where the evaluator takes too long."""

    name = "torch"

    def __init__(self, policy: Policy, precision: str, like: ReferenceSession) -> None:
        self.inputs, self.outputs = like.inputs, like.outputs
        self._graph = Graph(policy, precision)

    @torch.no_grad()
    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32."""
        out = self._graph(*(torch.from_numpy(feeds[name]) for name in self.inputs))
        parts = out if isinstance(out, tuple) else (out,)
        return dict(zip(self.outputs, (part.numpy() for part in parts), strict=True))

    def close(self) -> None:
        """Nothing to give back."""
