"""The recurrent state of an actor in training: carried from batch to batch, with backpropagation through time.

The recurrent state at the start of a batch is kept with the batch. A gradient step starts from it and runs all T steps
again, so that gradients flow back to the start of the batch or of the episode: Werbos (1990), "Backpropagation through
time: what it does and how to do it", truncated after T steps. A minibatch therefore consists of whole environments with
all their steps, not of single samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.learners.networks import RecurrentState, advance, blank_state, reset_rows

WEIGHTS = "rnn.rnn.weight_hh_l"
"""Name of a recurrent layer's weights in rsl_rl, without the number of the layer."""


def unroll(rnn: nn.GRU | nn.LSTM, inputs: Tensor, state: RecurrentState, done: Tensor) -> Tensor:
    """Outputs (T, n, H) of T successive steps; the recurrent state is reset where an episode ends.

    Args:
        rnn: the recurrent layers.
        inputs: (T, n, D).
        state: before the first step.
        done: (T, n) bool; the episode ended with this step.
    """
    # One step per call: splitting the batch into episodes padded to one length is not faster, and slower with short
    # episodes, because most of the computation is padding.
    outputs = []
    for t in range(len(inputs)):
        output, state = advance(rnn, inputs[t : t + 1], state)
        outputs.append(output)
        state = reset_rows(state, done[t])
    return torch.cat(outputs)


class ActorRecurrence:
    """The recurrent state of an actor in N environments, and its minibatches.

    Recurrent layers always compute in fp32, as on the robot: rounding errors of the state would accumulate over steps.
    """

    def __init__(self, rnn: nn.GRU | nn.LSTM, num_envs: int) -> None:
        """`rnn` belongs to the actor, on its device."""
        self.rnn = rnn
        if next(rnn.parameters()).device.type == "cuda":
            # cuDNN would multiply in TF32, with 10 of 23 mantissa bits. It reads this flag in the backward pass too, so
            # a context around the forward pass is not enough; nothing else in RoboLearn uses cuDNN.
            torch.backends.cudnn.allow_tf32 = False
        self.now = blank_state(rnn, num_envs)
        """The state before the next step, zero where an episode has ended. Overwritten in place, like `start`."""
        self.start = blank_state(rnn, num_envs)
        """The state before the first step of the batch."""

    def begin(self) -> None:
        """Start a batch with the next step."""
        for start, now in zip(self.start, self.now, strict=True):
            start.copy_(now)

    def step(self, inputs: Tensor, rows: slice = slice(None)) -> Tensor:
        """Outputs (N, H) for the inputs (N, D) of a step; advances the state. With `rows`, for these environments."""
        state = tuple(now[:, rows].contiguous() for now in self.now)
        with torch.autocast(inputs.device.type, enabled=False):
            outputs, new = advance(self.rnn, inputs.float().unsqueeze(0), state)
        for now, after in zip(self.now, new, strict=True):
            now[:, rows] = after
        return outputs.squeeze(0)

    def reset(self, done: Tensor) -> None:
        """Reset the state where `done` (N,) bool is set."""
        for now in self.now:
            now.masked_fill_(done[None, :, None], 0.0)

    def tables(self, data: dict[str, Tensor], done: Tensor) -> dict[str, Tensor]:
        """Tables from which minibatches of environments are gathered: `data` (T, N, ...) by name, `done` (T, N), and
        the recurrent state at the start of the batch, `state_0`, ... (L, N, H)."""
        return {**data, "done": done, **{f"state_{i}": x for i, x in enumerate(self.start)}}

    def as_samples(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tables' rows of n environments as samples.

        Returns:
            Views (T n, ...) by name, ordered by time; except the inputs of `replay`, which keep their shape: `actor`
            (T, n, D), `done` (T, n), and the recurrent state.
        """
        kept = ("actor", "done", *(f"state_{i}" for i in range(len(self.start))))
        return {name: x if name in kept else x.flatten(0, 1) for name, x in rows.items()}

    def replay(self, part: dict[str, Tensor]) -> Tensor:
        """Outputs (T n, H) for a minibatch, with gradients through time."""
        state = tuple(part[f"state_{i}"] for i in range(len(self.start)))
        with torch.autocast(part["actor"].device.type, enabled=False):
            return unroll(self.rnn, part["actor"].float(), state, part["done"]).flatten(0, 1)

    def restore(self, state: Any) -> None:
        """Load a checkpoint's recurrent state, or zeros where it holds none."""
        saved = state or tuple(torch.zeros_like(now) for now in self.now)
        for now, then in zip(self.now, saved, strict=True):
            now.copy_(then)


def kind_of(weights: dict[str, Tensor]) -> tuple[str, int, int]:
    """Type, units and number of the recurrent layers in an actor's weights; ("none", 128, 1) without any."""
    found = [x for name, x in weights.items() if name.startswith(WEIGHTS)]
    if not found:
        return "none", 128, 1
    rows, width = found[0].shape
    gates = rows // width
    return {3: "gru", 4: "lstm"}.get(gates, "none"), width, len(found)


def require_same_rnn(weights: dict[str, Tensor], rnn: str, hidden: int, layers: int) -> None:
    """Require that an actor's weights have the recurrent layers that `learner.rnn*` sets.

    Raises:
        ValueError: they have others; the message says what to set.
    """
    found = kind_of(weights)
    if found[0] == "none" and rnn != "none":
        raise ValueError("these weights were trained without recurrent layers: use learner.rnn=none")
    if found[0] != "none" and found != (rnn, hidden, layers):
        raise ValueError(
            f"these weights were trained with recurrent layers: use learner.rnn={found[0]} "
            f"learner.rnn_hidden={found[1]} learner.rnn_layers={found[2]}"
        )
