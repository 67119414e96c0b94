"""Policy: maps observations to actions as on the robot, without an Env, a simulator or the learner that trained it.

policy = Policy.load("runs/walk")        # or a checkpoint, or pretrained:humanoid_walk
action = policy.act({"policy": obs})     # (N, A); for a recurrent policy use PolicyRunner(policy)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from rsl_rl.models import MLPModel
from torch import nn

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, listing, quote
from robolearn.learners import saved
from robolearn.learners.networks import (
    RecurrentState,
    advance,
    blank_state,
    build_model,
    reset_rows,
    rnn_of,
)

Observations = Mapping[str, Tensor]
"""(N, D) per group, by name."""

Act = Callable[[Observations], Tensor]
"""Observations by group to actions (N, A)."""

Head = Literal["gaussian", "squashed", "deterministic"]
"""Meaning of the last layer's outputs. gaussian: mean of the action; squashed: mean of the action before a tanh;
deterministic: the action itself."""


@dataclass(frozen=True)
class PolicySpec:
    """Description of a policy without its weights, as saved in every checkpoint."""

    inputs: dict[str, int]
    """Observation groups with their widths, in the order in which the network takes them."""
    actions: int
    hidden: tuple[int, ...]
    activation: str
    head: Head = "gaussian"
    std_type: Literal["scalar", "log"] = "scalar"
    """gaussian and squashed: whether the learned parameter is the standard deviation or its logarithm."""
    rnn: Literal["none", "gru", "lstm"] = "none"
    rnn_hidden: int = 128
    rnn_layers: int = 1
    estimated: int = 0
    """Number of columns that the policy estimates from its observations, see `robolearn.learners.estimator`."""
    estimator_hidden: tuple[int, ...] = ()
    """Hidden layers of the network that estimates them."""

    def build(self) -> MLPModel:
        """A network of this description with untrained weights."""
        init_std = None if self.head == "deterministic" else 1.0
        recurrent = (self.rnn, self.rnn_hidden, self.rnn_layers)
        return build_model(
            *(self.inputs, self.actions, self.hidden, self.activation, init_std, *recurrent, self.std_type),
            *(self.estimated, self.estimator_hidden),
        )


class Policy(nn.Module):
    """Normalizer, network and head in one module; no critic, no exploration.

    It stores nothing between calls: a recurrent policy takes its recurrent state and returns the new one; the caller
    stores and resets it. `PolicyRunner` does that for simulated robots.
    """

    def __init__(self, spec: PolicySpec, actor: MLPModel) -> None:
        """`actor` is shared, not copied."""
        super().__init__()
        if spec.head not in get_args(Head):
            raise ConfigError(f"unknown policy head {quote(spec.head)}; valid: {listing(get_args(Head))}")
        self.spec, self.actor = spec, actor

    # ------------------------------------------------------------------ on disk

    @classmethod
    def load(cls, path: str) -> Policy:
        """The policy of a run folder, of a checkpoint or of `pretrained:NAME`, on the CPU; imports no simulator.

        Raises:
            ConfigError: there is no such run, or it holds no readable policy.
        """
        folder, file = saved.find_run(str(path))
        return cls.from_checkpoint(saved.load(file, folder), str(file))

    @classmethod
    def from_checkpoint(cls, content: Mapping[str, Any], where: str = "the checkpoint") -> Policy:
        """The policy in the content of a checkpoint; `where` names the checkpoint in error messages.

        Raises:
            ConfigError: the content holds no policy, or a damaged one.
        """
        entry = content.get("policy")
        if isinstance(entry, dict) and "policies" in entry:
            several = entry["policies"]
            named = listing(map(str, several)) if isinstance(several, dict) else "which cannot be read"
            raise ConfigError(
                f"{where} holds several policies, {named}; one of a single policy is needed here"
            )
        if not isinstance(entry, dict):
            raise ConfigError(
                f"{where} holds no policy: its learner's `policy` is not a robolearn.learners.policy.Policy"
            )
        try:
            sizes = {key: tuple(entry["spec"].get(key, ())) for key in ("hidden", "estimator_hidden")}
            described = {**entry["spec"], **sizes}
            if described.pop("cycle", None) is not None:  # of an older version
                raise ValueError(
                    "it needs a gait clock, which this version does not have: use the one that trained it"
                )
            spec = PolicySpec(**described)
            with torch.random.fork_rng(devices=[]):
                policy = cls(spec, spec.build())
            policy.load_state_dict(entry["state"])
        except (ConfigError, MissingError, MemoryError):
            raise
        except Exception as error:  # a damaged description raises almost any error
            why = " ".join(str(error).split())
            raise ConfigError(f"{where} holds a policy that cannot be read ({why})") from error
        return policy.eval().requires_grad_(False)

    def digest(self) -> str:
        """sha256 of its weights and its normalizer, with their names."""
        found = hashlib.sha256()
        for name, value in sorted(self.state_dict().items()):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def entry(self) -> dict[str, Any]:
        """What a checkpoint saves of this policy: plain values and tensors, not copied."""
        return {"spec": asdict(self.spec), "state": self.state_dict()}

    # ------------------------------------------------------------------ acting

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the recurrent state's tensors: () without one, ("h",) of a GRU, ("h", "c") of an LSTM."""
        return {"none": (), "gru": ("h",), "lstm": ("h", "c")}[self.spec.rnn]

    def initial_state(self, num_envs: int) -> RecurrentState:
        """The recurrent state at the start of an episode: zeros (L, N, H), one tensor for each of `state_names`."""
        rnn = rnn_of(self.actor)
        return () if rnn is None else blank_state(rnn, num_envs)

    def observe(self, observations: Observations) -> Tensor:
        """The policy's input groups side by side, (N, D).

        Raises:
            ConfigError: a group is missing, or has another width than in training.
        """
        for name, width in self.spec.inputs.items():
            if name not in observations:
                raise ConfigError(
                    f"the policy needs observation group {quote(name)}; available: {listing(observations)}"
                )
            if observations[name].shape[-1] != width:
                raise ConfigError(
                    f"the policy needs {width} columns of observation group {quote(name)}, but it has "
                    f"{observations[name].shape[-1]}: it was trained for another task, robot, observations or history"
                )
        parts = [observations[name] for name in self.spec.inputs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    @torch.no_grad()
    def act(self, observations: Observations, *state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """`forward` for observations by group."""
        return self(self.observe(observations), *state)

    @torch.no_grad()
    def forward(self, obs: Tensor, *state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The action (N, A) for all inputs side by side (N, D).

        For a recurrent policy, `state` is one tensor (L, N, H) for each of `state_names`, and the result is the action
        followed by the new state's tensors.
        """
        latent = self.actor.obs_normalizer(obs)
        rnn = rnn_of(self.actor)
        if rnn is not None:
            outputs, state = advance(rnn, latent.unsqueeze(0), state)
            latent = outputs.squeeze(0)
        action = self.actor.mlp(latent)
        if self.spec.head == "squashed":
            action = action.tanh()
        return action if rnn is None else (action, *state)


class PolicyRunner:
    """A policy with the recurrent state, if it has one, of N simulated robots.

    The first call after a full reset sets N.
    """

    def __init__(self, policy: Policy) -> None:
        """The policy is shared, not copied or changed."""
        self.policy = policy
        self.state: RecurrentState = ()

    def __call__(self, observations: Observations) -> Tensor:
        """Actions (N, A) for observations by group, (N, D) each."""
        obs = self.policy.observe(observations)
        if not self.policy.state_names:
            action: Tensor = self.policy(obs)
            return action
        if not self.state:
            self.state = self.policy.initial_state(len(obs))
        action, *state = self.policy(obs, *self.state)
        self.state = tuple(state)
        return action

    def reset(self, done: Tensor | None = None) -> None:
        """Reset the recurrent state; with `done` (N,) bool, only of the robots whose episode ended."""
        self.state = () if done is None else reset_rows(self.state, done)


def reset_state(policy: Act, done: Tensor | None = None) -> None:
    """Reset a policy's recurrent state where an episode ended, `done` (N,) bool; without `done`, everywhere.

    Call it before the first step and after each step. A policy without a `reset` method is left as it is.
    """
    reset = getattr(policy, "reset", None)
    if reset is not None:
        reset(done)
