"""Actor and critic networks: rsl_rl's models, with RoboLearn's normalizer under the same buffer names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from rsl_rl.models import MLPModel, RNNModel
from tensordict import TensorDict
from torch import nn

from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.tasks.mdp.symmetry import Reflection

RecurrentState = tuple[Tensor, ...]
"""State of recurrent layers: (h,) of a GRU, (h, c) of an LSTM, (L, N, H) each for L layers, N robots and H hidden
units; () without recurrent layers."""

OBS_SET = "network"
"""Name, in rsl_rl, of the list of groups that a network takes; each of our networks has one list."""


ESTIMATES = "<estimates>"
"""Name, in rsl_rl's list of groups, of the columns that a network's own estimator adds."""


class Normalizer(nn.Module):
    """Running mean and variance of observations, updated once an iteration from the whole batch.

    Its buffers have the names of rsl_rl's in a checkpoint, so that each loads the other's weights. rsl_rl's normalizer
    reads from the device and averages over ranks itself; this one takes `shards`.
    """

    _mean: Tensor
    _var: Tensor
    _std: Tensor
    count: Tensor

    def __init__(self, width: int, eps: float = 1e-2) -> None:
        """Statistics of D = `width` columns; `eps` is added to each standard deviation."""
        super().__init__()
        self.eps = eps
        for name, value in (("_mean", 0.0), ("_var", 1.0), ("_std", 1.0)):
            self.register_buffer(name, torch.full((1, width), value))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))

    def forward(self, obs: Tensor) -> Tensor:
        """Observations (..., D) at mean 0 and variance 1."""
        return (obs - self._mean) / (self._std + self.eps)

    def inverse(self, normalized: Tensor) -> Tensor:
        """The observations (..., D) before normalization."""
        return normalized * (self._std + self.eps) + self._mean

    @torch.no_grad()
    def absorb(
        self,
        obs: Tensor | Sequence[Tensor],
        shards: Shards = ONE,
        reflection: Reflection | None = None,
    ) -> None:
        """Add a batch (M, D), or that of each shard, to the statistics; with `reflection`, the batch together with its
        mirror image.

        Chan, Golub, LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample
        variances"; the moments of shards are averaged first.
        """
        parts = [obs] if isinstance(obs, Tensor) else obs
        mean = shards.mean([part.mean(dim=0, keepdim=True) for part in parts])
        # Around the mean of all shards: E[x^2] - E[x]^2 would lose precision by cancellation.
        variance = shards.mean([(part - mean).square().mean(dim=0, keepdim=True) for part in parts])
        if reflection is not None:
            mean, variance = _with_mirror_image(mean, variance, reflection)
        added = shards.total_rows(parts)
        total = self.count + added
        rate = added / total
        delta = mean - self._mean
        self._mean += rate * delta
        self._var += rate * (variance - self._var + (1 - rate) * delta.square())
        self._std.copy_(self._var.sqrt())
        self.count.copy_(total)


class EstimatingNormalizer(Normalizer):
    """A Normalizer that adds columns: what a small network estimates from the normalized observations, at mean 0 and
    variance 1 too. See `robolearn.learners.estimator`, which trains it."""

    def __init__(self, width: int, estimated: int, hidden: tuple[int, ...], activation: str) -> None:
        """`width` observed columns, `estimated` further ones."""
        super().__init__(width)
        self.width, self.activation = width, activation
        layers = build_model({"obs": width}, estimated, hidden, activation, None)
        self.estimator = layers.mlp.requires_grad_(False)
        self.estimated = Normalizer(estimated)
        """Statistics of what is estimated."""

    def normalized(self, obs: Tensor) -> Tensor:
        """Observations (..., D) at mean 0 and variance 1, without estimates."""
        return super().forward(obs)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations (..., D) at mean 0 and variance 1, followed by the estimates, (..., D + E)."""
        seen = self.normalized(obs)
        return torch.cat((seen, self.estimator(seen)), dim=-1)

    def inverse(self, normalized: Tensor) -> Tensor:
        """The observations (..., D) before normalization, of (..., D + E)."""
        return super().inverse(normalized[..., : self.width])


def estimating(model: MLPModel) -> EstimatingNormalizer:
    """The normalizer of a network that was built with estimates."""
    normalizer = model.obs_normalizer
    assert isinstance(normalizer, EstimatingNormalizer)
    return normalizer


def _with_mirror_image(mean: Tensor, variance: Tensor, reflection: Reflection) -> tuple[Tensor, Tensor]:
    """Mean and variance (1, D) of a batch together with its mirror image, from those of the batch."""
    both = 0.5 * (mean + reflection(mean))
    spread = variance + (mean - both).square()  # each half's variance about the mean of both
    return both, 0.5 * (spread + spread.index_select(1, reflection.permutation))


def build_model(
    groups: Mapping[str, int],
    outputs: int,
    hidden: tuple[int, ...],
    activation: str,
    init_std: float | None,
    rnn: str = "none",
    rnn_hidden: int = 128,
    rnn_layers: int = 1,
    std_type: Literal["scalar", "log"] = "scalar",
    estimated: int = 0,
    estimator_hidden: tuple[int, ...] = (),
) -> MLPModel:
    """An rsl_rl network over observation groups, given with their widths.

    With `init_std` it has a Gaussian head of that standard deviation; without, its outputs are plain numbers, such as
    values. The learned parameter is the standard deviation or, with `std_type` log, its logarithm. With `rnn`, gru or
    lstm, there are `rnn_layers` recurrent layers of `rnn_hidden` units between normalizer and MLP. With `estimated`
    above 0 its normalizer is an EstimatingNormalizer of so many columns.
    """
    width = sum(groups.values())
    if estimated:
        groups = {**groups, ESTIMATES: estimated}
    distribution = {
        "class_name": "GaussianDistribution",
        "init_std": init_std,
        "std_range": (0.05, 10.0),
        "std_type": std_type,
    }
    recurrent = {"rnn_type": rnn, "rnn_hidden_dim": rnn_hidden, "rnn_num_layers": rnn_layers}
    model = (MLPModel if rnn == "none" else RNNModel)(
        obs=TensorDict({name: torch.zeros(1, width) for name, width in groups.items()}, batch_size=[1]),
        obs_groups={OBS_SET: list(groups)},
        obs_set=OBS_SET,
        output_dim=outputs,
        hidden_dims=hidden,
        activation=activation,
        obs_normalization=True,
        distribution_cfg=distribution if init_std is not None else None,
        **({} if rnn == "none" else recurrent),
    )
    model.obs_normalizer = (
        EstimatingNormalizer(width, estimated, estimator_hidden, activation)
        if estimated
        else Normalizer(width)
    )
    return model


def require_unfolded(state: Mapping[str, Any]) -> None:
    """Raise ValueError for a learner's state of an older version that mirrored the second half of a gait clock's cycle:
    the shapes agree, the meaning does not."""
    if state.get("folded"):
        raise ValueError(
            "these weights were trained with a gait clock (learner.symmetry=cycle), which this version does not have: "
            "train again, or use the version that trained them"
        )


def rnn_of(model: MLPModel) -> nn.GRU | nn.LSTM | None:
    """The recurrent layers of a network that `build_model` made, or None."""
    return model.rnn.rnn if isinstance(model, RNNModel) else None


def deviation(actor: MLPModel) -> Tensor:
    """Standard deviations (A,) of a Gaussian policy's actions; they do not depend on the state."""
    gaussian = actor.distribution
    low, high = gaussian.std_range
    learned = gaussian.log_std_param.exp() if gaussian.std_type == "log" else gaussian.std_param
    return learned.clamp(low, high)


def blank_state(rnn: nn.GRU | nn.LSTM, num_envs: int) -> RecurrentState:
    """The recurrent state of `num_envs` robots at the start of an episode: zeros, (L, N, H) each."""
    weight = next(rnn.parameters())
    count = 2 if isinstance(rnn, nn.LSTM) else 1
    return tuple(weight.new_zeros(rnn.num_layers, num_envs, rnn.hidden_size) for _ in range(count))


def advance(rnn: nn.GRU | nn.LSTM, inputs: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
    """Outputs (T, N, H) for inputs (T, N, D) of T successive steps, and the recurrent state after the last."""
    if isinstance(rnn, nn.LSTM):
        h, c = state
        outputs, new = rnn(inputs, (h, c))
        return outputs, tuple(new)
    outputs, h = rnn(inputs, state[0])
    return outputs, (h,)


def reset_rows(state: RecurrentState, done: Tensor) -> RecurrentState:
    """The recurrent state with zeros where the episode ended, `done` (N,) bool; not in place."""
    # A product with 0 would keep NaN and infinity, and their gradients.
    return tuple(torch.where(done[None, :, None], 0.0, part) for part in state)
