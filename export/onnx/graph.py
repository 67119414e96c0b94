"""The policy as an ONNX graph: batch 1, fp32 in and out, normalizer inside, recurrent state explicit, no critic."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from typing import Any

import onnx
import torch
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.learners.networks import EstimatingNormalizer, rnn_of
from robolearn.learners.policy import Policy
from robolearn.runtime.errors import NOT_THE_SAME, Refused

OPSET = 18
"""Supported by all three TensorRT versions, and by ONNX Runtime since 1.14."""

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Cast(nn.Module):
    """Converts to another precision inside the ONNX graph."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """`x` rounded to the precision."""
        return x.to(self.dtype)


class LowPrecisionLinear(nn.Module):
    """A linear layer in another precision with float32 input and output."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer.to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        """(N, I) to (N, O)."""
        return self.layer(x.to(self.dtype)).float()


class ExportModule(nn.Module):
    """The module that is exported: a copy of `policy` with matrix products in `precision` and the rest in float32."""

    def __init__(self, policy: Policy, precision: str = "fp32") -> None:
        super().__init__()
        dtype = PRECISIONS[precision]
        self.policy = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
        self.state_dtype = torch.float32
        actor: Any = self.policy.actor
        if dtype != torch.float32:
            # Only the products: raw observations may overflow half precision, and ONNX has few bf16 activations
            # before opset 22.
            actor.mlp = _lowered(actor.mlp, dtype)
            if isinstance(actor.obs_normalizer, EstimatingNormalizer):
                actor.obs_normalizer.estimator = _lowered(actor.obs_normalizer.estimator, dtype)
        rnn = rnn_of(actor)
        if rnn is not None and dtype == torch.float16:  # ONNX's GRU and LSTM have no bf16: float32
            actor.obs_normalizer = nn.Sequential(actor.obs_normalizer, Cast(dtype))
            rnn.to(dtype)
            self.state_dtype = dtype

    def forward(self, obs: Tensor, *state: Tensor) -> Any:
        """(1, D) and state (L, 1, H) each to actions (1, A) and the new state."""
        out = self.policy(obs, *(part.to(self.state_dtype) for part in state))
        return out if not state else (out[0], *(part.float() for part in out[1:]))


def _lowered(layers: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    """The same layers with matrix products in another precision."""
    return nn.Sequential(*(LowPrecisionLinear(m, dtype) if isinstance(m, nn.Linear) else m for m in layers))


def build_graph(policy: Policy, width: int, precision: str, notes: dict[str, Any]) -> onnx.ModelProto:
    """Export a policy.

    Args:
        policy: the trained policy; it is copied.
        width: number of columns of its observation, D.
        precision: of the matrix products, one of PRECISIONS.
        notes: metadata of the file, as JSON by name; the runtime compares `contract` with the manifest.

    Returns:
        Inputs `obs` (1, D)[, `h_in`[, `c_in`]] (L, 1, H), outputs `actions` (1, A)[, `h_out`[, `c_out`]].

    Raises:
        Refused: NOT_THE_SAME; torch cannot export it.
    """
    graph, states = ExportModule(policy, precision), policy.state_names
    example = (torch.zeros(1, width), *(part.cpu() for part in policy.initial_state(1)))
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        # The exporter prints progress and missing optional packages.
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph,
                example,
                None,
                dynamo=True,
                opset_version=OPSET,
                input_names=["obs", *(f"{name}_in" for name in states)],
                output_names=["actions", *(f"{name}_out" for name in states)],
                verbose=False,
            )
    except Exception as error:  # the exporter raises many classes
        raise Refused(
            f"the policy cannot be exported to ONNX: {type(error).__name__}: {error}", NOT_THE_SAME
        ) from error
    finally:
        logger.setLevel(level)
    assert program is not None
    return _cleaned(program.model_proto, notes)


def _cleaned(model: onnx.ModelProto, notes: dict[str, Any]) -> onnx.ModelProto:
    """The model without the exporter's metadata, which names files of this machine; with `notes` as metadata."""
    for part in (
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        del part.metadata_props[:]
        part.doc_string = ""
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
        tensor.doc_string = ""
    del model.metadata_props[:]
    model.doc_string, model.graph.name = "", "policy"
    model.producer_name, model.producer_version = "robolearn", ""
    for name, value in sorted(notes.items()):
        model.metadata_props.add(key=f"robolearn.{name}", value=json.dumps(value, sort_keys=True))
    return model
