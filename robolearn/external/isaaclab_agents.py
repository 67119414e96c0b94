"""IsaacLabAgentsEnv: the environments of an Isaac Lab task of several agents, a `DirectMARLEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, RunFailed, listing, one_line
from robolearn.external.agents import (
    AgentsEnv,
    agent_of,
    id_columns,
    joint_actions,
    joint_columns,
    own_columns,
    require_observations,
)
from robolearn.external.env import Actions, Transition
from robolearn.external.failures import failing
from robolearn.external.isaaclab_env import IsaacLabEnv
from robolearn.external.spaces import Box, require_actions
from robolearn.external.tensor_env import TensorTask

JOINT, STATE = "joint", "state"
"""Groups that the critic may observe: the observations of all agents of its world, and the task's own state."""


class IsaacLabAgentsEnv(AgentsEnv, IsaacLabEnv):
    """W worlds of K agents as N = W K environments: row w K + k is world w as agent k of `possible_agents` sees it.

    Observation groups:
        `policy`: the agent's own observation, D numbers, and with `task.agent_id` K more, 1 for the agent itself.
        `critic`: with `joint`, the observations of all agents of the world, K D numbers, the agent's own first, then
            those of the agents that come after it, and so on around; with `state` the task's own state. K more, 1 for
            the agent itself, follow with `task.agent_id`, and wherever `state` is there and `joint` is not, because
            the state does not tell whose value is asked for.

    D is the width of the widest observation; narrower ones have zeros behind them. Of an action an agent takes the
    first numbers, as many as its own has.

    Isaac Lab resets a world once all of its agents are terminated, or all are out of time, in the same step. An agent
    that ends before has no more steps (`StepResult.valid`): it is given actions of 0 and observes zeros, also in the
    others' `joint`. Here a world is reset in the step in which its last agent ends too, which is when
    PettingZoo's API, Isaac Lab's model, ends an episode.
    """

    def __init__(
        self,
        task: TensorTask,
        inner: Any,
        device: torch.device,
        agent_id: Literal["auto", "on", "off"],
        ends_together: bool,
    ) -> None:
        """See `TensorEnv`, and `IsaacLabAgentsTask` for the last two."""
        self._agent_id, self._ends_together = agent_id, ends_together
        self._final: dict[str, Tensor] | None = None
        self._stepping = self._rewarded = False
        super().__init__(task, inner, device)
        self._rewards_of, inner._get_rewards = inner._get_rewards, self._before_resets
        self._reset_of, inner._reset_idx = inner._reset_idx, self._before_reset

    # ------------------------------------------------------------------ spaces

    def _observed(self, task: TensorTask, first: Any, device: torch.device) -> dict[str, list[str]]:
        inner, name = self.inner, task.name
        self.agent_names = agents = list(inner.possible_agents)
        """K names, in the order of the rows."""
        if not agents or len(set(agents)) != len(agents):
            raise ConfigError(f"task={name}: `possible_agents` must name its agents, each once")
        seen = [require_observations(inner.observation_spaces[a], agent_of(name, a)) for a in agents]
        moved = [require_actions(inner.action_spaces[a], agent_of(name, a)) for a in agents]
        self._widths = [int(np.prod(space.shape)) for space in seen]
        self._own = [Actions.of(box.low, box.high, task.actions, device) for box in moved]
        self._boxes = moved
        self._shared = all(box == moved[0] for box in moved)
        unlike = not self._shared or any(space != seen[0] for space in seen)
        self._identified = self._agent_id == "on" or (self._agent_id == "auto" and unlike)
        self.agents = count = len(agents)
        self._ends_together |= count == 1
        self.resets_take_a_step = not self._ends_together
        self._parts = _critic_parts(task, inner)
        self._identifies = self._identified or self._parts == (STATE,)
        worlds, width = int(inner.num_envs), max(self._widths)
        self._alive = torch.ones(worlds, count, dtype=torch.bool, device=device)
        self._early = torch.zeros((), dtype=torch.bool, device=device)
        # In agent k's critic: agents k, k + 1 and so on around.
        self._order = (torch.arange(count)[:, None] + torch.arange(count)).to(device) % count
        self._ids = torch.eye(count, device=device).expand(worlds, count, count)
        self.device = device
        columns = {JOINT: joint_columns(width, count)}
        if STATE in self._parts:
            columns[STATE] = [f"state[{i}]" for i in range(self._state_rows().shape[1])]
        ids = id_columns(agents)
        return {
            "policy": own_columns(width) + ids * self._identified,
            "critic": [c for part in self._parts for c in columns[part]] + ids * self._identifies,
        }

    def _actions(self, task: TensorTask, device: torch.device) -> Actions:
        return joint_actions(self._own, self._shared, device)

    # ------------------------------------------------------------------ stepping

    def check(self) -> None:
        """See `ExternalEnv.check`; also raises where an agent ended before the others and must not."""
        super().check()
        if bool(self._early):
            self._early = torch.zeros_like(self._early)
            raise RunFailed(
                f"task={self.name}: an agent ended before the others; use task.ends_together=false"
            )

    def _start(self, stagger: bool) -> dict[str, Tensor]:
        self._alive = torch.ones_like(self._alive)
        return super()._start(stagger)

    def _rows(self, observed: Mapping[str, Any]) -> dict[str, Tensor]:
        return self._groups_of(self._stacked(observed), self._state_rows(), self._alive)

    def _advance(self, actions: Tensor) -> Transition:
        alive = self._alive
        self._final, self._rewarded, self._stepping = None, False, True
        try:
            given = self._given(actions, alive)
            with failing("step", self.name):
                observed, rewards, ended, out_of_time, extras = self.inner.step(given)
        finally:
            self._stepping = False
        if not self._rewarded:
            raise RunFailed(
                f"task={self.name} does not step as DirectMARLEnv does: its class overrides step, and when its worlds "
                "are reset is not known"
            )
        terminated = self._of_each(ended, "termination").bool()
        truncated = self._of_each(out_of_time, "time-out").bool()
        over = (terminated | truncated) & alive
        goes_on = alive & ~over
        self._note_early(over, goes_on)
        restarted = ~goes_on.any(dim=1)
        self._alive = goes_on | restarted[:, None]
        now, state = self._stacked(observed), self._state_rows()
        observations = terminal = self._groups_of(now, state, self._alive)
        if not self.read_at_once or bool(over.any()):
            last, last_state = now, state
            if self._final is not None:
                last = torch.where(restarted[:, None, None], self._final[JOINT], now)
                last_state = torch.where(restarted[:, None], self._final[STATE], state)
            terminal = self._groups_of(last, last_state, alive)
        reward = self._of_each(rewards, "reward")
        made = self._transition(
            observations,
            terminal,
            reward.flatten(),
            terminated.flatten(),
            truncated.flatten(),
            self._logged_now(extras),
        )
        if not self._ends_together and not (self.read_at_once and bool(alive.all())):
            made.valid = alive.flatten()
        return made

    def _note_early(self, over: Tensor, goes_on: Tensor) -> None:
        if not self._ends_together:
            return
        self._early = self._early | (over.any(dim=1) & goes_on.any(dim=1)).any()
        if self.read_at_once:
            self.check()

    def _logged_now(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """See `IsaacLabEnv._logged_now`; those of an agent under AGENT/NAME."""
        log = self._new_log(extras)
        for agent in self.agent_names:
            mine = self._new_log(extras.get(agent) or {}, agent)
            log |= {f"{agent}/{key}": value for key, value in mine.items()}
        return log

    # ------------------------------------------------------------------ inside Isaac Lab's step

    def _before_resets(self) -> dict[str, Tensor]:
        """The task's rewards; then marks the worlds whose last agent ends in this step to be reset.

        DirectMARLEnv calls this after it has decided which worlds it resets, and before it resets them.
        """
        inner = self.inner
        rewards: dict[str, Tensor] = self._rewards_of()
        self._rewarded = True
        terminated = self._of_each(inner.terminated_dict, "termination").bool()
        truncated = self._of_each(inner.time_out_dict, "time-out").bool()
        gone = ~self._alive | terminated | truncated
        inner.reset_buf |= gone.all(dim=1).to(inner.reset_buf.device)
        return rewards

    def _before_reset(self, env_ids: Any) -> None:
        """Keeps what the worlds ended in, and resets those of `env_ids`."""
        inner = self.inner
        if self._stepping and self._final is None:
            final = {agent: inner.extras[agent].pop("final_obs", None) for agent in self.agent_names}
            if any(value is None for value in final.values()):
                raise RunFailed(
                    f"task={self.name} gives no extras[AGENT]['final_obs'] for ended episodes, although "
                    "compute_final_obs is set: the state that the episodes ended in is lost"
                )
            # A state that is made of the observations must be of these, and not of those of the step before.
            inner.obs_dict = final
            self._final = {JOINT: self._stacked(final), STATE: self._state_rows()}
        self._reset_of(env_ids)

    # ------------------------------------------------------------------ rows

    def _given(self, actions: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """Actions (N, A) of the policy's space as those of each agent's own, (W, ...); 0 of agents that have ended."""
        each = actions.reshape(*alive.shape, -1)
        given = {}
        for k, (agent, own, box) in enumerate(zip(self.agent_names, self._own, self._boxes, strict=True)):
            mine = each[:, k, : len(own.low)]
            if not self._shared:
                mine = own.given(mine)
            nothing = torch.clamp(torch.zeros_like(own.low), own.low, own.high)
            # A copy: tasks keep what they are given.
            given[agent] = torch.where(alive[:, k, None], mine, nothing).reshape(len(mine), *box.shape)
        return given

    def _stacked(self, observed: Mapping[str, Any]) -> Tensor:
        """(W, K, D) observations of the agents, with zeros behind those of the narrower ones; a copy."""
        rows = self._alive.new_zeros((*self._alive.shape, max(self._widths)), dtype=torch.float32)
        for k, (agent, width) in enumerate(zip(self.agent_names, self._widths, strict=True)):
            values = observed.get(agent)
            if not isinstance(values, torch.Tensor):
                what = "no observation" if values is None else f"the observation {type(values).__name__}"
                raise RunFailed(f"task={self.name} gives {what} to {agent}, which must be a tensor")
            values = values.detach().reshape(len(values), -1)
            if values.shape[1] != width:
                raise RunFailed(
                    f"task={self.name} gives an observation of {values.shape[1]} numbers to {agent}, whose space has "
                    f"{width}"
                )
            rows[:, k, :width] = values
        return rows

    def _state_rows(self) -> Tensor:
        """(W, S) float32 the task's state, a copy; (W, 0) where the critic does not observe it."""
        worlds = len(self._alive)
        if STATE not in self._parts:
            return torch.zeros(worlds, 0, device=self.device)
        value = self.inner.state()
        if not isinstance(value, torch.Tensor) or len(value) != worlds:
            what = f"{len(value)} rows" if isinstance(value, torch.Tensor) else type(value).__name__
            raise RunFailed(
                f"task={self.name} gives a state of {what}, which must be a tensor of {worlds} rows, one a world"
            )
        return value.detach().reshape(worlds, -1).to(self.device, torch.float32, copy=True)

    def _groups_of(self, seen: Tensor, state: Tensor, alive: Tensor) -> dict[str, Tensor]:
        """(N, D) a group of what the agents see, (W, K, D), and the states (W, S); of `alive` agents (W, K)."""
        worlds, count, width = seen.shape
        seen = torch.where(alive[..., None], seen, 0.0)
        made = {
            JOINT: seen[:, self._order].reshape(worlds, count, count * width),
            STATE: state[:, None].expand(worlds, count, state.shape[1]),
        }
        policy, critic = [seen], [made[part] for part in self._parts]
        if self._identified:
            policy.append(self._ids)
        if self._identifies:
            critic.append(self._ids)
        return {
            name: torch.cat(parts, dim=2).reshape(worlds * count, -1)
            for name, parts in (("policy", policy), ("critic", critic))
        }

    def _of_each(self, values: Mapping[str, Any], what: str) -> Tensor:
        """(W, K) a number of each agent."""
        for agent in self.agent_names:
            if agent not in values:
                raise RunFailed(f"task={self.name} gives no {what} of {agent}")
        worlds = len(self._alive)
        each = [torch.as_tensor(values[agent], device=self.device) for agent in self.agent_names]
        return torch.stack([value.detach().reshape(-1).expand(worlds) for value in each], dim=1)


def _critic_parts(task: TensorTask, inner: Any) -> tuple[str, ...]:
    """What the critic observes, of JOINT and STATE.

    Raises:
        ConfigError: a group does not exist, or the state does not fit.
    """
    if task.policy_groups:
        raise ConfigError(
            f"task.policy_groups: in task={task.name} a policy observes what its agent observes; leave it out"
        )
    space, declared = inner.state_space, inner.cfg.state_space
    # A negative number is Isaac Lab's word for the observations of all agents, side by side.
    own = space is not None and not (isinstance(declared, int) and declared < 0)
    there = [JOINT, STATE] if own else [JOINT]
    for part in task.critic_groups:
        if part not in there:
            raise ConfigError(
                f"task.critic_groups: task={task.name} has no group {part!r} for a critic; valid: {listing(there)}"
            )
    parts = tuple(task.critic_groups) or (STATE if own else JOINT,)
    if STATE in parts and (not isinstance(space, Box) or len(space.shape) > 2):
        raise ConfigError(
            f"task={task.name}: the state space {one_line(str(space), 120)} is not a Box of flat numbers; use "
            f"task.critic_groups=[{JOINT}]"
        )
    return parts
