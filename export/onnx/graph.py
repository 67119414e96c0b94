"""The policy as an ONNX graph: batch 1, fp32 in and out, normalizer inside, recurrent state explicit, no critic."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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
    """The bare network as an ONNX graph, for other deployment stacks.

    Args:
        policy: the trained policy; it is copied.
        width: number of columns of its observation, D.
        precision: of the matrix products, one of PRECISIONS.
        notes: metadata of the file, as JSON by name.

    Returns:
        Inputs `obs` (1, D)[, `h_in`[, `c_in`]] (L, 1, H), outputs `actions` (1, A)[, `h_out`[, `c_out`]].

    Raises:
        Refused: NOT_THE_SAME; torch cannot export it.
    """
    graph, states = ExportModule(policy, precision), policy.state_names
    example = {"obs": torch.zeros(1, width)}
    example |= {f"{name}_in": part.cpu() for name, part in zip(states, policy.initial_state(1), strict=True)}
    return exported(graph, example, ["actions", *(f"{name}_out" for name in states)], "policy", notes)


def exported(
    module: nn.Module, example: Mapping[str, Tensor], outputs: Sequence[str], name: str, notes: dict[str, Any]
) -> onnx.ModelProto:
    """A module as an ONNX graph of fixed shapes.

    Args:
        module: takes the tensors of `example`, in order.
        example: an example of each input, by name; no two of them the same tensor.
        outputs: names of what it returns, in order.
        name: of the graph.
        notes: metadata of the file, as JSON by name.

    Raises:
        Refused: NOT_THE_SAME; torch cannot export it.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        # The exporter prints progress, missing optional packages and what it does not optimize.
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        quiet = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(example.values()),
                None,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(example),
                output_names=list(outputs),
                verbose=False,
            )
    except Exception as error:  # the exporter raises many classes
        cause = error.__cause__ or error
        why = re.sub(r"\x1b\[[0-9;]*m", "", str(cause)).strip().partition("\n\n")[0]
        raise Refused(
            f"the {name} cannot be exported to ONNX: {type(cause).__name__}: {why:.400}", NOT_THE_SAME
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    return _cleaned(_bounded(program.model_proto), name, notes)


def _bounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the largest float32 in place of infinite bounds, as of an action or a joint without a limit: it
    computes the same, and weights that are not finite are a fault."""
    bounds = {i for node in model.graph.node if node.op_type in ("Clip", "Max", "Min") for i in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in bounds and tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            if np.isinf(values).any():
                most = np.finfo(np.float32).max
                finite = np.clip(values, -most, most)
                tensor.CopyFrom(onnx.numpy_helper.from_array(finite, tensor.name))
    return model


def _cleaned(model: onnx.ModelProto, name: str, notes: dict[str, Any]) -> onnx.ModelProto:
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
    model.doc_string, model.graph.name = "", name
    model.producer_name, model.producer_version = "robolearn", ""
    for key, value in sorted(notes.items()):
        model.metadata_props.add(key=f"robolearn.{key}", value=json.dumps(value, sort_keys=True))
    return model
