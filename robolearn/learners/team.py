"""Team: the policies of the agents of a world, where they do not all share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.policy import Observations, Policy, PolicyRunner


class Team:
    """Policies by name, and which agent has which. Environments w K + k, k = 0 ... K - 1, are the agents of world w."""

    def __init__(self, policies: Mapping[str, Policy], of_agents: Mapping[str, str]) -> None:
        """
        Args:
            policies: by name; shared, not copied.
            of_agents: the name of the policy of each of the K agents, in their order.
        """
        self.policies, self.of_agents = dict(policies), dict(of_agents)

    @classmethod
    def is_in(cls, content: Mapping[str, Any]) -> bool:
        """Whether the content of a checkpoint holds several policies, instead of one."""
        entry = content.get("policy")
        return isinstance(entry, dict) and "agents" in entry

    @classmethod
    def from_checkpoint(cls, content: Mapping[str, Any], where: str = "the checkpoint") -> Self:
        """The policies in the content of a checkpoint; `where` names the checkpoint in error messages.

        Raises:
            ConfigError: one of them is damaged.
        """
        entry = content["policy"]
        named, of_agents = entry.get("policies"), entry["agents"]
        if not (
            isinstance(named, dict)
            and isinstance(of_agents, dict)
            and all(isinstance(name, str) for name in (*of_agents, *of_agents.values()))
            and set(of_agents.values()) == set(named)
        ):
            raise ConfigError(
                f"{where} holds several policies that cannot be read: agents and policies do not fit"
            )
        policies = {
            name: Policy.from_checkpoint({"policy": each}, f"{where}, policy {name},")
            for name, each in named.items()
        }
        return cls(policies, of_agents)

    def entry(self) -> dict[str, Any]:
        """What a checkpoint saves of these policies: plain values and tensors, not copied."""
        return {
            "agents": dict(self.of_agents),
            "policies": {name: each.entry() for name, each in self.policies.items()},
        }

    def to(self, device: torch.device) -> Self:
        """The same, with the policies on a device."""
        for policy in self.policies.values():
            policy.to(device)
        return self

    def named(self, name: str) -> Policy:
        """The policy of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self.policies:
            raise ConfigError(
                f"there is no policy {quote(name)}{did_you_mean(name, self.policies)} "
                f"(valid: {listing(self.policies)})"
            )
        return self.policies[name]

    def places(self, name: str) -> list[int]:
        """Which of the K agents have that policy."""
        return places(self.of_agents, name)


def places(of_agents: Mapping[str, str], name: str) -> list[int]:
    """Which of the agents have the policy of that name, counted from 0."""
    return [k for k, policy in enumerate(of_agents.values()) if policy == name]


def rows_of(tensor: Tensor, agents: int, chosen: Sequence[int]) -> Tensor:
    """The rows of some agents of each world, (W len(chosen), ...), of a row for each, (W agents, ...); a copy."""
    each = tensor.view(-1, agents, *tensor.shape[1:])
    return torch.stack([each[:, k] for k in chosen], dim=1).flatten(0, 1)


def put_rows(into: Tensor, rows: Tensor, agents: int, chosen: Sequence[int]) -> None:
    """Write such rows to their places."""
    to, given = into.view(-1, agents, *into.shape[1:]), rows.view(-1, len(chosen), *rows.shape[1:])
    for i, k in enumerate(chosen):
        to[:, k] = given[:, i]


def runner_of(content: Mapping[str, Any], where: str, device: torch.device) -> PolicyRunner | TeamRunner:
    """The policy in the content of a checkpoint, or the policies of its agents, with their recurrent states.

    Raises:
        ConfigError: see `Policy.from_checkpoint`.
    """
    if Team.is_in(content):
        return TeamRunner(Team.from_checkpoint(content, where).to(device))
    return PolicyRunner(Policy.from_checkpoint(content, where).to(device))


class TeamRunner:
    """A team with the recurrent states, if it has any, of N simulated agents."""

    def __init__(self, team: Team) -> None:
        """The policies are shared, not copied or changed."""
        self.team = team
        self._runners = {name: PolicyRunner(policy) for name, policy in team.policies.items()}

    def __call__(self, observations: Observations) -> Tensor:
        """Actions (N, A) for observations by group, (N, D) each."""
        agents, out = len(self.team.of_agents), None
        for group, obs in observations.items():
            if len(obs) % agents:
                raise ConfigError(
                    f"the run has policies of {agents} agents ({listing(self.team.of_agents)}), and group "
                    f"{quote(group)} has {len(obs)} rows, not as many for each: it is of another task"
                )
        for name, runner in self._runners.items():
            mine = self.team.places(name)
            action = runner({group: rows_of(obs, agents, mine) for group, obs in observations.items()})
            if out is None:
                out = action.new_zeros(len(action) // len(mine) * agents, action.shape[1])
            put_rows(out, action, agents, mine)
        assert out is not None
        return out

    def reset(self, done: Tensor | None = None) -> None:
        """Reset recurrent states; with `done` (N,) bool, only of the agents whose episode ended."""
        for name, runner in self._runners.items():
            mine = None if done is None else rows_of(done, len(self.team.of_agents), self.team.places(name))
            runner.reset(mine)
