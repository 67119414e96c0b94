"""The teacher of a distillation: a trained policy that is not changed, with its own observations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.networks import RecurrentState, deviation
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.units import require_same_units


class Teacher:
    """What a trained policy would do in the states that another one comes into; a recurrent one sees every step."""

    def __init__(self, path: str, env: LearnerEnv, needs_std: bool, shards: Shards = ONE) -> None:
        """
        Args:
            path: a run folder, a checkpoint, or pretrained:NAME.
            env: the environments.
            needs_std: whether its standard deviations are needed.
            shards: parts of the environments, each of which it computes for itself: the rounding of a product depends
                on its number of rows, which would be that of a rank.

        Raises:
            ConfigError: there is no such policy, or it cannot act here.
        """
        shown = f"learner.teacher={quote(path, 120)}"
        policy = Policy.load(path).to(env.device)
        if policy.spec.actions != env.num_actions:
            raise ConfigError(
                f"{shown} has {policy.spec.actions} actions, and this robot {env.num_actions}; use one of the same "
                "robot"
            )
        for name, width in policy.spec.inputs.items():
            if name not in env.observations:
                hint = did_you_mean(name, env.observations)
                raise ConfigError(
                    f"{shown} observes the group {quote(name)}, which there is not here{hint}; there is "
                    f"{listing(env.observations)}"
                )
            if env.observations[name].shape[1] != width:
                raise ConfigError(
                    f"{shown} observes {width} columns of the group {quote(name)}, which has "
                    f"{env.observations[name].shape[1]} here: it was trained for another task"
                )
        require_same_units(path, env, shown)
        if needs_std and policy.spec.head != "gaussian":
            raise ConfigError(f"{shown} has no Gaussian actions; use learner.loss=mse")
        self.digest = policy.digest()
        """sha256 of its weights as they were read: the run that it is of may train on."""
        self._shards, self._inputs = shards, tuple(policy.spec.inputs)
        self.policy = policy
        self._runners = [PolicyRunner(policy) for _ in range(shards.count)]
        self.std = deviation(policy.actor).detach() if needs_std else None
        """(A,) its standard deviations."""

    @torch.no_grad()
    def __call__(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Its mean actions (N, A)."""
        parts = {name: self._shards.parts(observations[name]) for name in self._inputs}
        actions = [
            runner({name: obs[i] for name, obs in parts.items()}) for i, runner in enumerate(self._runners)
        ]
        return actions[0] if len(actions) == 1 else torch.cat(actions)

    def reset(self, done: Tensor) -> None:
        """Reset its recurrent state where an episode ended, `done` (N,) bool."""
        for runner, part in zip(self._runners, self._shards.parts(done), strict=True):
            runner.reset(part)

    @property
    def state(self) -> RecurrentState:
        """Its recurrent state, (L, N, H) each; () without one."""
        return tuple(torch.cat(parts, dim=1) for parts in zip(*(r.state for r in self._runners), strict=True))

    def restore(self, state: RecurrentState) -> None:
        """Continue with a recurrent state; () begins anew."""
        for i, runner in enumerate(self._runners):
            runner.state = tuple(self._shards.parts(x, dim=1)[i] for x in state)
