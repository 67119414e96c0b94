"""Several policies that learn at the same time in one simulation: a PPO learner for each, of the agents that have it.

Each has networks, optimizer, step size and normalizers of its own, and learns from the rows of its agents; its critic
may observe the others, as `learner.critic_groups` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.step_result import StepResult
from robolearn.core.threads import one_thread
from robolearn.core.timers import Timers
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, did_you_mean, listing, quote
from robolearn.learners.learner import Report
from robolearn.learners.ppo.config import PPOConfig
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.rows import RowsOfEnv
from robolearn.learners.team import Team, places, put_rows, rows_of

OF_ROWS = ("random", "noise", "memory")
"""Keys of a learner's state that belong to the rows that it learned from."""


class AgentRows(RowsOfEnv):
    """The environments of some of the agents of each world, for the learner of their policy.

    It cannot be stepped or reset alone: `Several` does that for all agents together.
    """

    def __init__(
        self, env: LearnerEnv, agents: int, mine: Sequence[int], drain: Callable[[], dict[str, float]]
    ) -> None:
        """
        Args:
            env: the environments of all agents.
            agents: K, how many there are in a world.
            mine: places of those to choose, 0 to K - 1.
            drain: the same for each policy in one iteration.
        """
        super().__init__(env, env.num_envs // agents * len(mine))
        self._drain, self.all_agents, self.mine = drain, agents, list(mine)
        self.agents = len(self.mine)
        """Agents of a world that have this policy."""

    def rows(self, tensor: Tensor) -> Tensor:
        """Those of these agents."""
        return rows_of(tensor, self.all_agents, self.mine)

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Nothing is reset: `Several` begins for all agents."""
        return self.observations

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """Refused."""
        raise AssertionError("the agents of a world step together")

    def drain(self) -> dict[str, float]:
        """The means of all agents, drained once."""
        return self._drain()


class Several:
    """A learner of several policies, see `PPOConfig.policies`; `iterate` collects a batch of all agents and lets each
    policy learn from its own."""

    config_class: ClassVar[type] = PPOConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    learns_from_cut_rollouts: ClassVar[bool] = False

    def __init__(self, env: LearnerEnv, config: PPOConfig, seed: int = 1, shards: Shards = ONE) -> None:
        """
        Raises:
            ConfigError: the agents of `config.policies` are not those of the environments, or a setting does not work
                with several policies.
        """
        self.env, self.config, self.device, self.shards = env, config, env.device, shards
        self._drained: dict[str, float] | None = None
        self.of_agents = _policies_of_agents(env, config, shards)
        names = list(dict.fromkeys(self.of_agents.values()))
        self.timers = Timers(env.device)
        agents = len(self.of_agents)
        # The same number of steps for each, however many agents have its policy.
        each = replace(config, num_steps=config.steps_of(shards.whole(env.num_envs)))
        self.envs = {
            name: AgentRows(env, agents, places(self.of_agents, name), self._drain) for name in names
        }
        self.learners = {
            name: PPO(self.envs[name], each, _seed(seed, i), shards) for i, name in enumerate(names)
        }
        """A PPO learner by the name of the policy."""
        for learner in self.learners.values():
            learner.timers = self.timers
        env.reset(stagger=True)

    @property
    def precision(self) -> str:
        """Arithmetic of the networks."""
        return next(iter(self.learners.values())).precision

    @property
    def policy(self) -> Team:
        """The current policies, see `PPO.policy`."""
        return Team({name: learner.policy for name, learner in self.learners.items()}, self.of_agents)

    @property
    def scratch_bytes(self) -> int:
        """Temporary memory in every iteration; the policies learn one after another."""
        return max(learner.scratch_bytes for learner in self.learners.values())

    def iterate(self, env: LearnerEnv) -> Report:
        """Collect a batch, and let each policy learn from the rows of its agents.

        Raises:
            NonFiniteTerm: see `PPO.iterate`.
        """
        with one_thread(self.device, not self.shards.single):
            self.timers.start()
            self._collect(env)
            reports = {name: learner.learn(self.envs[name]) for name, learner in self.learners.items()}
            drained, self._drained = self._drain(), None
        return _joined(reports, drained, self.timers.read())

    def _drain(self) -> dict[str, float]:
        """`LearnerEnv.drain` of all agents, once an iteration; the first policy waits for the environments."""
        if self._drained is None:
            self._drained = self.env.drain()
        return dict(self._drained)

    def _collect(self, env: LearnerEnv) -> None:
        batches = [learner.batch for learner in self.learners.values()]
        parts = list(zip(self.envs.values(), self.learners.values(), strict=True))
        for batch in batches:
            if batch.valid is not None:
                batch.valid.fill_(True)
        action = torch.zeros(env.num_envs, env.num_actions, device=self.device)
        for t in range(len(batches[0].reward)):
            with self.timers("infer"):
                for rows, learner in parts:
                    chosen = learner.sampler(rows.observations, t)
                    put_rows(action, chosen, rows.all_agents, rows.mine)
            with self.timers("simulate"):
                result = env.step(action.clone())
            for rows, learner in parts:
                learner.batch.record(t, rows.of(result))
                learner.sampler.reset_state(learner.batch.done[t])
        with self.timers("infer"):
            for rows, learner in parts:
                for name, obs in learner.batch.observations.items():
                    obs[-1] = rows.rows(env.observations[name])

    def state_dict(self) -> dict[str, Any]:
        """The state of each learner, its keys after the name of its policy and a dot."""
        return {
            f"{name}.{key}": value
            for name, learner in self.learners.items()
            for key, value in learner.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; each policy also starts from the state of a single one.

        Raises:
            KeyError, ValueError: a policy is missing, or does not fit.
        """
        for name, learner in self.learners.items():
            mine = {
                key.partition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")
            }
            # Of a single policy all start, each with its own random numbers.
            alone = {key: value for key, value in state.items() if key not in OF_ROWS}
            learner.load_state_dict(alone if "actor_state_dict" in state else mine)


def _policies_of_agents(env: LearnerEnv, config: PPOConfig, shards: Shards) -> dict[str, str]:
    """The name of the policy of each agent, in the order of the environments.

    Raises:
        ConfigError: see `Several`.
    """
    agents: tuple[str, ...] = tuple(getattr(env, "agent_names", ()))
    if len(agents) < 2:
        raise ConfigError(
            "learner.policies: the task has one agent, and so one policy; leave learner.policies out"
        )
    for agent in config.policies:
        if agent not in agents:
            raise ConfigError(
                f"learner.policies names the agent {quote(agent)}{did_you_mean(agent, agents)} "
                f"(valid: {listing(agents)})"
            )
    for agent in agents:
        if agent not in config.policies:
            raise ConfigError(
                f"learner.policies has no policy for the agent {agent}; name one for each of {listing(agents)}"
            )
    if env.resets_take_a_step and not shards.single:
        raise ConfigError(
            "learner.policies with ranks: an agent may end before others here, and a shard may then hold no step of a "
            "policy; leave ranks out, or let agents end together"
        )
    if config.preferences is not None:
        raise ConfigError(
            "learner.preferences: a reward that is learned from preferences is of one policy; leave learner.policies "
            "out"
        )
    return {agent: config.policies[agent] for agent in agents}


def _seed(seed: int, number: int) -> int:
    """The seed of a policy's learner; that of the first one is the run's own."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0]) if number else seed


def _joined(reports: Mapping[str, Report], drained: dict[str, float], seconds: dict[str, float]) -> Report:
    """One report: losses are means over the policies, and those of each after a slash and its name, as `kl/front`."""
    losses: dict[str, float] = {}
    for key in dict.fromkeys(key for report in reports.values() for key in report.losses):
        values = [report.losses[key] for report in reports.values() if key in report.losses]
        losses[key] = math.fsum(values) / len(values)
    for name, report in reports.items():
        losses |= {f"{key}/{name}": value for key, value in report.losses.items()}
    steps = sum(report.steps for report in reports.values())
    notes = [f"{name}: {note}" for name, report in reports.items() for note in report.notes]
    return Report(steps, losses, drained, seconds, notes=notes)
