"""The door to PettingZoo: environments of several agents with Box spaces.

`pettingzoo_ids.py` finds the environment that an ID names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import gymnasium
import numpy as np
import torch
from pettingzoo import AECEnv, ParallelEnv

from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line
from robolearn.external.agents import (
    AgentsEnv,
    agent_of,
    id_columns,
    joint_actions,
    joint_columns,
    own_columns,
    require_observations,
)
from robolearn.external.env import NO_LIMIT, Actions, Transition
from robolearn.external.failures import describe, failing
from robolearn.external.pettingzoo_ids import find
from robolearn.external.spaces import require_actions
from robolearn.external.task import ExternalTask


@dataclass
class PettingZooTask(ExternalTask):
    """A PettingZoo environment."""

    door: ClassVar[str] = "pettingzoo"
    found: ClassVar[Any] = None
    """Class or function that makes a ParallelEnv."""
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 64,
        "max_iterations": 300,
        "learner.num_steps": 25,
        "learner.minibatch_size": 1200,
        "learner.num_epochs": 8,
        "learner.gamma": 0.98,
        "learner.desired_kl": 0.02,
        "learner.entropy_coef": 0.0,
        "learner.actor_hidden": (128, 128),
        "learner.critic_hidden": (256, 128),
    }

    kwargs: dict[str, Any] = field(default_factory=dict, metadata={"open": True})
    """Arguments of the environment's constructor, such as task.kwargs.N=5. Environments of mpe2 have the argument
    `continuous_actions`, which is true without a value here."""
    agent_id: Literal["auto", "on", "off"] = "auto"
    """Whether an agent observes which one it is, as a column for each agent; auto: where their spaces differ."""
    ends_together: bool = False
    """Whether all agents of a world end in the same step, which recurrent policies and learner=distill need; an
    agent that ends before the others then ends the run."""
    episode_steps: int = field(default=0, metadata={"min": 0, "max": 10_000_000})
    """Time limit of an episode in steps (time-out, not failure); 0: the environment's."""

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """See `ExternalTask.named`; `id` is a module with a function `parallel_env`, a function of a module, or
        path.py:NAME of a class or function."""
        made = super().named(id)
        made.found = staticmethod(find(id, made.door))
        return made

    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> PettingZooEnv:
        """See `ExternalTask.make`; `num_envs` is the number of worlds."""
        return PettingZooEnv(self, num_envs, device, seed, rank, render)


class PettingZooEnv(AgentsEnv):
    """W worlds of K agents as N = W K environments: row w K + k is world w as agent k of `possible_agents` sees it.

    Observation groups:
        `policy`: the agent's own observation, D numbers, and with `task.agent_id` K more, 1 for the agent itself.
        `critic`: the observations of all agents of the world, K D numbers, the agent's own first, then those of the
            agents that come after it, and so on around; and the same K more.

    D is the width of the widest observation; narrower ones have zeros behind them. Of an action an agent takes the
    first numbers, as many as its own has. An agent that has ended observes zeros, also in the others' `critic`, and its
    rows are no steps (`StepResult.valid`). A world starts again in the step in which its last agent ends.
    """

    def __init__(
        self, task: PettingZooTask, num_envs: int, device: torch.device, seed: int, rank: int, render: bool
    ) -> None:
        """
        Args:
            num_envs: W.

        Raises:
            ConfigError, MissingError, RunFailed: the environment cannot be made or reset, or its spaces do not fit.
        """
        self.worlds: list[ParallelEnv] = []
        try:
            for i in range(num_envs):
                self.worlds.append(_world(task, "rgb_array" if render and i == 0 else None))
            self._begin(task, device, seed, rank)
        except BaseException:
            self.close()
            raise

    def _begin(self, task: PettingZooTask, device: torch.device, seed: int, rank: int) -> None:
        first = self.worlds[0]
        self.agent_names = agents = _agents(first, task.name)
        """K names, in the order of the rows."""
        try:
            spaces = [(first.observation_space(a), first.action_space(a)) for a in agents]
        except Exception as error:  # code of the user
            raise ConfigError(f"task={task.name}: its spaces cannot be read: {describe(error)}") from error
        named = [agent_of(task.name, a) for a in agents]
        seen = [require_observations(space, a) for (space, _), a in zip(spaces, named, strict=True)]
        moved = [require_actions(space, a) for (_, space), a in zip(spaces, named, strict=True)]
        alike = all(space == seen[0] for space in seen) and all(box == moved[0] for box in moved)
        self._identified = task.agent_id == "on" or (task.agent_id == "auto" and not alike)
        self.agents = count = len(agents)
        cpu = torch.device("cpu")
        self._boxes = moved
        self._own = [Actions.of(box.low, box.high, task.actions, cpu) for box in moved]
        self._shared = all(box == moved[0] for box in moved)
        self._widths = [int(np.prod(space.shape)) for space in seen]
        worlds, width = len(self.worlds), max(self._widths)
        self._seen = np.zeros((worlds, count, width), np.float32)
        self._alive, self._gone = np.zeros((worlds, count), bool), np.zeros((worlds, count), bool)
        self._ages = np.zeros(worlds, np.int64)
        # In agent k's critic: agents k, k + 1 and so on around.
        self._order = (np.arange(count)[:, None] + np.arange(count)) % count
        self._ids = np.broadcast_to(np.eye(count, dtype=np.float32), (worlds, count, count))
        limit = task.episode_steps or _limit(first)
        self._limit = task.episode_steps
        self._ends_together = task.ends_together or count == 1
        self.resets_take_a_step = not self._ends_together
        super().__init__(
            task.name,
            worlds * count,
            device,
            task.control_dt or _period(first),
            limit,
            joint_actions(self._own, self._shared, device),
            _columns(width, agents, self._identified),
        )
        drawn = np.random.SeedSequence((seed, rank)).generate_state(worlds)
        self._seeds: list[int] | None = [int(number) >> 1 for number in drawn]
        self.reset()

    # ------------------------------------------------------------------ stepping

    def _start(self, stagger: bool) -> dict[str, Tensor]:
        seeds, self._seeds = self._seeds, None  # seeded once: all later random numbers follow from that
        for w in range(len(self.worlds)):
            self._restart(w, None if seeds is None else seeds[w])
        return self._groups()

    def _restart(self, w: int, seed: int | None = None) -> None:
        """Start the next episode of world `w`."""
        with failing("reset", self.name):
            observed, _ = self.worlds[w].reset(seed=seed)
            there = set(self.worlds[w].agents)
        self._seen[w], self._alive[w], self._gone[w], self._ages[w] = 0.0, False, False, 0
        for k, agent in enumerate(self.agent_names):
            if agent in there:
                self._alive[w, k] = True
                self._see(w, k, observed)
        if not self._alive[w].any():
            raise RunFailed(f"task={self.name} has no agents after a reset")

    def _see(self, w: int, k: int, observed: Mapping[str, Any]) -> None:
        agent = self.agent_names[k]
        if agent not in observed:
            raise RunFailed(f"task={self.name} gives no observation of {agent}, which is among its agents")
        row = np.asarray(observed[agent], np.float32).ravel()
        if len(row) != self._widths[k]:
            raise RunFailed(
                f"task={self.name} gives an observation of {len(row)} numbers to {agent}, whose space has "
                f"{self._widths[k]}"
            )
        self._seen[w, k, : len(row)] = row

    def _advance(self, actions: Tensor) -> Transition:
        worlds, count = self._alive.shape
        given = self._given(actions.cpu().view(worlds, count, -1))
        shape = worlds, count
        reward = np.zeros(shape, np.float32)
        terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        valid = self._alive.copy()
        for w in range(worlds):
            self._step_world(w, given, reward[w], terminated[w], truncated[w])
        ended = terminated | truncated
        terminal = None
        if ended.any():
            terminal = self._groups()
            self._alive &= ~ended
            self._gone |= ended
            if self._ends_together and (ended.any(axis=1) & self._alive.any(axis=1)).any():
                raise RunFailed(
                    f"task={self.name}: an agent ended before the others; use task.ends_together=false"
                )
            self._seen[ended] = 0.0
            for w in np.flatnonzero(~self._alive.any(axis=1)).tolist():
                self._restart(w)
        observations = self._groups()
        return Transition(
            observations,
            self._tensor(reward.ravel()),
            self._tensor(terminated.ravel()),
            self._tensor(truncated.ravel()),
            observations if terminal is None else terminal,
            None if valid.all() else self._tensor(valid.ravel()),
        )

    def _step_world(
        self,
        w: int,
        given: list[np.ndarray],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Step a world, and write its agents' results (K,)."""
        world, alive = self.worlds[w], np.flatnonzero(self._alive[w]).tolist()
        with failing("step", self.name):
            # Copies: an environment may keep or change what it is given.
            actions = {self.agent_names[k]: given[k][w].copy() for k in alive}
            observed, rewards, ended, out_of_time, _ = world.step(actions)
            there = set(world.agents)
            for k in alive:
                agent = self.agent_names[k]
                if agent not in rewards:
                    raise RunFailed(
                        f"task={self.name} gives no reward of {agent}, which was among its agents"
                    )
                reward[k] = rewards[agent]
                terminated[k], truncated[k] = ended.get(agent, False), out_of_time.get(agent, False)
        self._ages[w] += 1
        if self._limit and self._ages[w] >= self._limit:
            truncated[alive] = True
        for k in alive:
            agent = self.agent_names[k]
            over = terminated[k] or truncated[k]
            if agent not in there and not over:
                raise RunFailed(
                    f"task={self.name} took {agent} from its agents, with neither a termination nor a truncation"
                )
            # Of a state that has no value, the observation is not needed.
            if agent in observed or not terminated[k]:
                self._see(w, k, observed)
        for k, agent in enumerate(self.agent_names):
            if agent in there and not self._alive[w, k] and not self._gone[w, k]:  # it has joined
                self._alive[w, k] = True
                self._see(w, k, observed)

    def _given(self, actions: Tensor) -> list[np.ndarray]:
        """Actions (W, K, A) of the policy's space as those of each agent's own, (W, ...)."""
        out = []
        for k, (own, box) in enumerate(zip(self._own, self._boxes, strict=True)):
            mine = actions[:, k, : len(own.low)]
            if not self._shared:
                mine = own.given(mine)
            rows = mine.numpy().reshape(len(mine), *box.shape).astype(box.dtype)
            # Clipped again to the space's bounds: ours are rounded to float32.
            out.append(np.clip(rows, box.low, box.high))
        return out

    def _groups(self) -> dict[str, Tensor]:
        """(N, D) a group of what is seen now; copies."""
        worlds, count, width = self._seen.shape
        policy, critic = [self._seen], [self._seen[:, self._order].reshape(worlds, count, count * width)]
        if self._identified:
            policy.append(self._ids)
            critic.append(self._ids)
        return {
            name: self._tensor(np.concatenate(parts, axis=2).reshape(worlds * count, -1))
            for name, parts in (("policy", policy), ("critic", critic))
        }

    def _tensor(self, array: np.ndarray) -> Tensor:
        """A copy of an array."""
        return torch.from_numpy(np.array(array)).to(self.device)

    def render(self) -> np.ndarray:
        """See `ExternalEnv.render`."""
        image = self.worlds[0].render()
        return np.array(image) if isinstance(image, np.ndarray) else super().render()

    def close(self) -> None:
        """Free the worlds."""
        for world in self.worlds:
            world.close()


# ---------------------------------------------------------------------------------------- making environments


def _world(task: PettingZooTask, render: str | None) -> ParallelEnv:
    """One world.

    Raises:
        ConfigError: its constructor raises, or makes something else.
        MissingError: it needs a package that is not installed.
    """
    kwargs: dict[str, Any] = dict(task.kwargs)
    if task.id.startswith("mpe2."):
        kwargs.setdefault("continuous_actions", True)  # the others do not fit a policy
    if render is not None:
        kwargs["render_mode"] = render
    make: Callable[..., Any] = task.found
    try:
        world = make(**kwargs)
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingError(f"task={task.name} needs a package: {one_line(str(error), 240)}") from error
    except Exception as error:  # a constructor of another library may raise anything
        raise ConfigError(f"task={task.name} cannot be made: {describe(error)}") from error
    if isinstance(world, AECEnv):
        raise ConfigError(
            f"task={task.name} makes an AECEnv, whose agents act in turn; make a ParallelEnv of it with "
            "pettingzoo.utils.aec_to_parallel"
        )
    if not isinstance(world, ParallelEnv):
        raise ConfigError(
            f"task={task.name} makes {type(world).__name__}, which is not a pettingzoo.ParallelEnv"
        )
    return world


def _agents(world: ParallelEnv, name: str) -> list[str]:
    agents = list(getattr(world, "possible_agents", None) or ())
    if not agents or len(set(agents)) != len(agents):
        raise ConfigError(
            f"task={name}: `possible_agents` of the environment must name its agents, each once"
        )
    return agents


def _columns(width: int, agents: list[str], identified: bool) -> dict[str, list[str]]:
    """Names of the columns of the groups."""
    ids = id_columns(agents) if identified else []
    return {"policy": own_columns(width) + ids, "critic": joint_columns(width, len(agents)) + ids}


def _limit(world: ParallelEnv) -> int:
    """Time limit [steps], which PettingZoo's environments call `max_cycles`; NO_LIMIT where there is none."""
    limit = getattr(world.unwrapped, "max_cycles", None)
    return int(limit) if isinstance(limit, int | np.integer) and limit > 0 else NO_LIMIT


def _period(world: ParallelEnv) -> float:
    """Control period [s]: the environment's `dt`, or one over its `render_fps`; 0 where it has neither."""
    dt: Any = getattr(world.unwrapped, "dt", None)
    rate: Any = (getattr(world, "metadata", None) or {}).get("render_fps")
    if _is_number(dt) and dt > 0:
        return float(dt)
    return 1.0 / float(rate) if _is_number(rate) and rate > 0 else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
