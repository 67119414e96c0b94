"""A reference policy: a trained one that is not changed, from which the learned policy stays within reach.

The KL divergence from it is a term of the loss, so that a policy that learns something new, such as a higher speed,
does not forget the rest. Ziegler et al. (2019), "Fine-Tuning Language Models from Human Preferences", sec. 2.2, from
which also the steering of its weight is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, quote
from robolearn.learners.losses import divergence, log_prob
from robolearn.learners.networks import deviation
from robolearn.learners.policy import Policy
from robolearn.learners.rollout import Batch
from robolearn.learners.units import require_same_units

ROWS = 2**16
"""Samples that the reference policy looks at together: the activations of all would take much memory."""
STEERING = 0.2
"""Largest relative change of the weight in an iteration."""
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e4


class Reference:
    """The reference policy of a learner."""

    def __init__(
        self, path: str, num_actions: int, device: torch.device, env: LearnerEnv | None = None
    ) -> None:
        """
        Args:
            path: a run folder, a checkpoint, or pretrained:NAME.
            num_actions: the learned policy's.
            device: of the batches.
            env: the learner's; with it, its actions must have the same unit and period as the reference's.

        Raises:
            ConfigError: there is no such policy, or the learned one cannot be compared with it.
        """
        policy = Policy.load(path)
        shown = f"learner.reference={quote(path, 120)}"
        if policy.spec.rnn != "none":
            raise ConfigError(
                f"{shown} is recurrent: what it would do depends on its own past; use one without rnn"
            )
        if policy.spec.head != "gaussian":
            raise ConfigError(f"{shown} has no Gaussian actions; use a policy of learner=ppo")
        if policy.spec.actions != num_actions:
            raise ConfigError(
                f"{shown} has {policy.spec.actions} actions, and this robot {num_actions}; use one of the same robot"
            )
        if env is not None:
            require_same_units(path, env, shown)
        self.digest = policy.digest()
        """sha256 of its weights as they were read: the run that it is of may train on."""
        self.policy = policy.to(device)
        self.std = deviation(self.policy.actor).detach()
        """(A,) its standard deviations."""

    @torch.no_grad()
    def means(self, batch: Batch, shards: Shards = ONE) -> Tensor:
        """Its mean actions (T, N, A) in each step of a batch, for each shard by itself: the rounding of a product
        depends on its number of rows.

        Raises:
            ConfigError: the task has other observations than those it was trained with.
        """
        seen = {name: shards.parts(batch.observations[name][:-1], 1) for name in self.policy.spec.inputs}
        parts = [self._means({name: obs[i] for name, obs in seen.items()}) for i in range(shards.count)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _means(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Its mean actions (T, N, A) for observations (T, N, D)."""
        steps, envs = next(iter(observations.values())).shape[:2]
        rows = {name: obs.flatten(0, 1) for name, obs in observations.items()}
        parts = []
        for start in range(0, steps * envs, ROWS):
            action = self.policy.act({name: obs[start : start + ROWS] for name, obs in rows.items()})
            assert isinstance(action, Tensor)
            parts.append(action)
        return torch.cat(parts).view(steps, envs, -1)


def groups_of(path: str | None) -> tuple[str, ...]:
    """The observation groups that a reference policy needs; none without one."""
    return () if path is None else tuple(Policy.load(path).spec.inputs)


def exact_divergence(mean: Tensor, std: Tensor, reference: Tensor, reference_std: Tensor) -> Tensor:
    """KL(learned || reference) of Gaussians, as a mean over the samples: means (B, A), standard deviations (A,)."""
    return divergence(mean, std, reference, reference_std)


def sampled_divergence(
    action: Tensor, mean: Tensor, std: Tensor, reference: Tensor, reference_std: Tensor
) -> Tensor:
    """The same, estimated from the actions (B, A) that were taken: the mean of r - 1 - log r, with r the ratio of the
    reference's density to that of the learned policy. It is never negative, and has the divergence as its mean:
    Schulman (2020), "Approximating KL Divergence", where it is k3.

    The gradient of this estimate, by the learned policy with the actions fixed, has the mean of that of KL(reference ||
    learned): the expectation of (1 - r) grad log p over actions of the learned policy p."""
    log_ratio = log_prob(action, reference, reference_std) - log_prob(action, mean, std)
    return (log_ratio.exp() - 1 - log_ratio).mean()


def divergence_from(
    reference: Reference, estimator: str, part: Mapping[str, Tensor], mean: Tensor, std: Tensor
) -> Tensor:
    """KL divergence () of the learned policy, means (B, A) and standard deviations (A,), from the reference, with a
    gradient. `part` holds the `action` and the reference's mean, `reference`, of the samples, (B, A) each."""
    theirs = part["reference"], reference.std
    if estimator == "exact":
        return exact_divergence(mean, std, *theirs)
    return sampled_divergence(part["action"], mean, std, *theirs)


@torch.no_grad()
def steer(weight: Tensor, epoch: Tensor, number: int, wanted: float) -> None:
    """Change the weight () by the divergence of the last epoch from the one wanted; `epoch` (L + 1,) are the sums of
    the losses in it, of which the divergence is this `number`, and how many steps it had."""
    found = epoch[number] / epoch[-1].clamp(min=1.0)
    new = steered(weight, found.float(), wanted)
    weight.copy_(torch.where(epoch[-1] > 0, new, weight))


def steered(weight: Tensor, found: Tensor, wanted: float) -> Tensor:
    """The weight () of the divergence after an iteration in which it was `found`, where `wanted` is asked for."""
    error = (found / wanted - 1).clamp(-STEERING, STEERING)
    return (weight * (1 + error)).clamp(LEAST_WEIGHT, MOST_WEIGHT)
