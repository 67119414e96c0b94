"""Exact left-right symmetry of networks, by their weights: the mirror image of an observation gives that of the action.

Of hidden units the second half are the mirror images of the first. A layer W (O, I) is then equivariant where
W[o, i] = s_o s_i W[p(o), p(i)], with the reflections (p, s) of its outputs and inputs (Ravanbakhsh et al., 2017,
"Equivariance Through Parameter-Sharing"). Elementwise activations keep this. So symmetry costs no operation in a
forward or backward pass: weights begin on that subspace, gradients are projected onto it, and Adam's step, which treats
each weight alike up to its sign, stays there. Half of the multiplications are then redundant; see `blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.core.learner_env import LearnerEnv
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError
from robolearn.learners.optimizer import DeviceAdam
from robolearn.tasks.mdp.symmetry import OneSided, Reflection, Symmetry

ROUNDING = 1e-3
"""How far weights may be from their mirror images, as a share of the largest, to count as symmetric."""


def choose_symmetry(
    env: LearnerEnv, wanted: str, hidden: Sequence[int], rnn: str = "none"
) -> Symmetry | None:
    """The left-right symmetry that a learner's networks with these `hidden` layers use, as its setting `wanted` says;
    None without.

    Raises:
        ConfigError: a symmetry is asked for that the task or the networks do not have.
    """
    asked = wanted in ("augment", "equivariant")
    try:
        symmetry = env.symmetry() if wanted != "none" else None
    except OneSided:
        if asked:
            raise
        symmetry = None
    if symmetry is None:
        if asked:
            raise ConfigError(
                f"learner.symmetry={wanted}: the task or its robot has no symmetry; use learner.symmetry=none"
            )
        return None
    if asked and rnn != "none":
        raise ConfigError(
            f"learner.symmetry={wanted}: the recurrent state of a mirror image is unknown; "
            f"use learner.symmetry=none with learner.rnn={rnn}"
        )
    fits = rnn == "none" and not any(width % 2 for width in hidden)
    return symmetry if fits or wanted != "auto" else None


class Equivariance:
    """Keeps the networks of one optimizer symmetric."""

    def __init__(
        self, adam: DeviceAdam, networks: Sequence[tuple[MLPModel, Reflection, Reflection | None]]
    ) -> None:
        """
        Args:
            adam: the optimizer of all networks, which are on one device.
            networks: each with the reflection of its observations, all columns side by side, and that of its outputs;
                None where the outputs, such as values, are the same for a mirror image.
        """
        self.adam = adam
        images: dict[int, tuple[Tensor, Tensor]] = {}
        for network, seen, acted in networks:
            images |= _images(network, seen, acted)
        order = torch.arange(len(adam.shared), device=adam.shared.device)
        sign = torch.ones_like(adam.shared)
        for parameter, gradient in zip(adam.parameters, adam.gradients, strict=True):
            start = int(gradient.storage_offset())
            index, signs = images[id(parameter)]
            order[start : start + len(index)] = start + index
            sign[start : start + len(index)] = signs
        self._order, self._sign, self._images = order, sign, images

    def project_gradients(self) -> None:
        """Replace each gradient by the mean of itself and its mirror image."""
        shared = self.adam.shared
        image = shared.index_select(0, self._order).mul_(self._sign)
        shared.add_(image).mul_(0.5)

    @torch.no_grad()
    def project_weights(self) -> None:
        """Replace each weight by the mean of itself and its mirror image; symmetric ones stay equal to the bit."""
        for parameter in self.adam.parameters:
            index, signs = self._images[id(parameter)]
            flat = parameter.reshape(-1)
            mean = (flat + flat[index] * signs) * 0.5
            parameter.copy_(mean.view_as(parameter))

    @torch.no_grad()
    def take(self, loaded: MLPModel) -> None:
        """Accept weights that were `loaded` into the actor, and project those of all networks.

        Raises:
            ValueError: the actor was trained without this symmetry; projected, it would compute something else.
        """
        for parameter in loaded.parameters():
            if id(parameter) not in self._images:
                continue
            index, signs = self._images[id(parameter)]
            flat = parameter.reshape(-1)
            if (flat - flat[index] * signs).abs().max() > ROUNDING * flat.abs().max():
                raise ValueError(
                    "its policy was trained without the symmetry of its weights, which learner.symmetry=equivariant "
                    "(auto, here) needs; use learner.symmetry=augment or none"
                )
        self.project_weights()

    @torch.no_grad()
    def begin(self) -> None:
        """Make freshly drawn weights symmetric, of the same variance: the mean of two has half of it."""
        for parameter in self.adam.parameters:
            if parameter.dim() == 2:
                index, signs = self._images[id(parameter)]
                flat = parameter.reshape(-1)
                parameter.copy_(((flat + flat[index] * signs) * math.sqrt(0.5)).view_as(parameter))
        self.project_weights()


def _images(
    network: MLPModel, seen: Reflection, acted: Reflection | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """For each parameter, by its id: the flat index (n,) of each element's mirror image, and its sign (n,)."""
    out = {}
    layers = [layer for layer in network.mlp if isinstance(layer, nn.Linear)]
    inputs = seen.permutation, seen.sign
    for layer in layers:
        if layer is not layers[-1]:
            outputs = _halves(layer.out_features, layer.weight.device)
        elif acted is not None:
            outputs = acted.permutation, acted.sign
        else:
            outputs = _alike(layer.out_features, layer.weight.device)
        (rows, row_signs), (columns, column_signs) = outputs, inputs
        index = rows[:, None] * layer.in_features + columns[None, :]
        out[id(layer.weight)] = index.flatten(), torch.outer(row_signs, column_signs).flatten()
        out[id(layer.bias)] = outputs
        inputs = outputs
    if network.distribution is not None and acted is not None:
        for spread in network.distribution.parameters():
            out[id(spread)] = acted.permutation, torch.ones_like(acted.sign)
    return out


def _halves(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The reflection of hidden units: the halves change places."""
    if width % 2:
        raise ValueError(
            f"learner.symmetry=equivariant: a hidden layer has {width} units; an even number can be mirrored"
        )
    return torch.arange(width, device=device).roll(width // 2), torch.ones(width, device=device)


def _alike(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The reflection of outputs that are the same for a mirror image."""
    return torch.arange(width, device=device), torch.ones(width, device=device)
