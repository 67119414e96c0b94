"""The recurrent state of an actor while it learns: carried from batch to batch, and learned through time.

The state in which a batch begins is kept with the batch. A gradient step starts there and runs all T
steps again, so gradients flow back through them, up to the start of the batch or of the episode: Werbos (1990),
"Backpropagation through time: what it does and how to do it", truncated after T steps. A minibatch is therefore
a group of environments with all their steps, and no longer any samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.learners.networks import RecurrentState, advance, blank_state, reset_rows

WEIGHTS = "rnn.rnn.weight_hh_l"
"""What rsl_rl calls the weights of a recurrent layer, without its number."""


def unroll(rnn: nn.GRU | nn.LSTM, inputs: Tensor, state: RecurrentState, done: Tensor) -> Tensor:
    """Outputs (T, n, H) of T steps in order, with the recurrent state reset at the end of an episode.

    Args:
        rnn: the recurrent layers.
        inputs: (T, n, D).
        state: before the first step.
        done: (T, n) bool; the episode ended with this step.
    """
    # One step a call: cutting the batch into its episodes and padding them to one length is no faster, and
    # with frequent ends slower, because most of what it computes is padding.
    outputs = []
    for t in range(len(inputs)):
        output, state = advance(rnn, inputs[t : t + 1], state)
        outputs.append(output)
        state = reset_rows(state, done[t])
    return torch.cat(outputs)


class ActorRecurrence:
    """The recurrent state of an actor in N environments, and the minibatches it learns from.

    Recurrent layers always compute in fp32: the robot does, and over many steps a rounded state would lead
    somewhere else.
    """

    def __init__(self, rnn: nn.GRU | nn.LSTM, num_envs: int) -> None:
        """`rnn` belongs to the actor, on its device."""
        self.rnn = rnn
        if next(rnn.parameters()).device.type == "cuda":
            # cuDNN would multiply in TF32, which keeps 10 bits of 23. Its backward pass asks long after the forward
            # one, so no context around that would do; nothing else of ours uses cuDNN.
            torch.backends.cudnn.allow_tf32 = False
        self.now = blank_state(rnn, num_envs)
        """Before the next step; zero where an episode has ended. Overwritten in place, like `start`."""
        self.start = blank_state(rnn, num_envs)
        """Before the first step of the batch."""

    def begin(self) -> None:
        """A batch begins with the next step."""
        for start, now in zip(self.start, self.now, strict=True):
            start.copy_(now)

    def step(self, inputs: Tensor) -> Tensor:
        """Outputs (N, H) for the inputs (N, D) of a step; the state goes on."""
        with torch.autocast(inputs.device.type, enabled=False):
            outputs, new = advance(self.rnn, inputs.float().unsqueeze(0), self.now)
        for now, after in zip(self.now, new, strict=True):
            now.copy_(after)
        return outputs.squeeze(0)

    def reset(self, done: Tensor) -> None:
        """Reset the state where `done` (N,) bool is set."""
        for now in self.now:
            now.masked_fill_(done[None, :, None], 0.0)

    def tables(self, data: dict[str, Tensor], done: Tensor) -> dict[str, Tensor]:
        """All that a minibatch of environments is gathered from: `data` (T, N, ...) by name, `done` (T, N), and
        the state they start from, `state_0`, ... (L, N, H)."""
        return {**data, "done": done, **{f"state_{i}": x for i, x in enumerate(self.start)}}

    def as_samples(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tables' rows of n environments, seen as samples.

        Returns:
            Views (T n, ...) by name, the steps of time one after the other; but what `replay` needs as it is:
            `actor` (T, n, D), `done` (T, n), and the state.
        """
        kept = ("actor", "done", *(f"state_{i}" for i in range(len(self.start))))
        return {name: x if name in kept else x.flatten(0, 1) for name, x in rows.items()}

    def replay(self, part: dict[str, Tensor]) -> Tensor:
        """Outputs (T n, H) for a minibatch, through which gradients flow back in time."""
        state = tuple(part[f"state_{i}"] for i in range(len(self.start)))
        with torch.autocast(part["actor"].device.type, enabled=False):
            return unroll(self.rnn, part["actor"].float(), state, part["done"]).flatten(0, 1)

    def restore(self, state: Any) -> None:
        """Take a checkpoint's recurrent state; without one it is zero everywhere."""
        saved = state or tuple(torch.zeros_like(now) for now in self.now)
        for now, then in zip(self.now, saved, strict=True):
            now.copy_(then)


def kind_of(weights: dict[str, Tensor]) -> tuple[str, int, int]:
    """Kind, units and layers of the recurrent part of an actor's weights; ("none", 128, 1) where there is none."""
    found = [x for name, x in weights.items() if name.startswith(WEIGHTS)]
    if not found:
        return "none", 128, 1
    rows, width = found[0].shape
    return (
        {3: "gru", 4: "lstm"}.get(rows // width, "none"),
        width,
        len(found),
    )  # so many gates has a unit of each


def require_same_rnn(weights: dict[str, Tensor], rnn: str, hidden: int, layers: int) -> None:
    """Refuse an actor's weights of another recurrent part than `learner.rnn*` says, with what to set.

    Raises:
        ValueError: they are.
    """
    found = kind_of(weights)
    if found[0] == "none" and rnn != "none":
        raise ValueError("these weights were learned without a recurrent state: use learner.rnn=none")
    if found[0] != "none" and found != (rnn, hidden, layers):
        raise ValueError(
            f"these weights were learned with a recurrent state: use learner.rnn={found[0]} "
            f"learner.rnn_hidden={found[1]} learner.rnn_layers={found[2]}"
        )
