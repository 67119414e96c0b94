"""A task with agents, or with one robot, as a PettingZoo ParallelEnv: one world, whose agents act at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from robolearn.core.env import Env
from robolearn.envs.scene import ROBOT
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, listing
from robolearn.views.gymnasium import ACTION_BOUND
from robolearn.views.gymnasium_tasks import Settings, make
from robolearn.views.pictures import MODES, Pictures, check_mode

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    raise MissingError(
        f"robolearn.views.pettingzoo needs {error.name}: pip install 'robolearn[pettingzoo]'"
    ) from error


def parallel_env(
    task: str,
    settings: Settings = (),
    render_mode: str | None = None,
    action_bound: float = ACTION_BOUND,
    **keywords: Any,
) -> PettingZooView:
    """One world of a task, as PettingZoo's modules make theirs.

    Args:
        task: its name.
        settings: as for `robolearn.gymnasium_ids`: {"task.rewards.upright": 0.5}, or words of the command line.
        render_mode: None or `rgb_array`.
        action_bound: half-width of the action spaces; actions outside are not clipped.
        keywords: `backend`, `device` and `seed`; without a seed each environment gets a random one.

    Raises:
        ConfigError: a setting is invalid or does not concern an environment.
        MissingError: no simulator is installed.
    """
    check_mode(render_mode)
    return PettingZooView(make(task, 1, settings, keywords), render_mode, action_bound)


class PettingZooView(ParallelEnv):
    """An Env of one world. Agents have the names of their entities in the task's scene; they begin their episodes
    together, and end them so unless the task says otherwise (`Task.ends_together`).

    An agent observes its group `policy`; its group `critic`, and the metrics of the task, are in its info.
    """

    def __init__(self, env: Env, render_mode: str | None = None, action_bound: float = ACTION_BOUND) -> None:
        """
        Raises:
            ConfigError: `env` holds more than one world, or an argument is invalid.
        """
        if env.num_envs != env.agents:
            raise ConfigError(
                f"a ParallelEnv is one world, and these are {env.num_envs // env.agents}; make the Env with num_envs=1"
            )
        if not 0 < action_bound < np.inf:
            raise ConfigError(f"action_bound={action_bound:g} must be a finite number above 0")
        self.env = env
        self._pictures = Pictures(env, render_mode)
        self.render_mode = render_mode
        self.metadata: dict[str, Any] = {
            "name": type(env.task).__name__,
            "render_modes": list(MODES),
            "render_fps": 1 / env.dt,
            "is_parallelizable": True,
        }
        self.possible_agents: list[str] = list(env.task.agents) or [ROBOT]
        self.agents: list[str] = []
        widths = {group: env.observations[group].shape[1] for group in ("policy", "critic")}
        box = gymnasium.spaces.Box
        # A space for each agent: each draws its samples from its own generator.
        self._observed = {
            agent: box(-np.inf, np.inf, (widths["policy"],), np.float32) for agent in self.possible_agents
        }
        self._acts = {
            agent: box(-action_bound, action_bound, (env.num_actions,), np.float32)
            for agent in self.possible_agents
        }
        self.state_space = box(-np.inf, np.inf, (widths["critic"] * env.agents,), np.float32)
        self._critic = env.observations["critic"]

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """The space of an agent's observations: its group `policy`."""
        return self._observed[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        """The space of an agent's actions."""
        return self._acts[agent]

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Start an episode; a seed makes everything after it reproducible. Options have no effect.

        Returns:
            Observations and infos by agent.
        """
        # The step that ended an episode has already started the next one; a second reset would be wasted.
        begun = not self.agents and seed is None and self._steps > 0
        if seed is not None:
            self.env.random.generator.manual_seed(int(seed))
        observations = self.env.observations if begun else self.env.reset()
        self.env.check()
        self.agents, self._steps = list(self.possible_agents), 0
        self._critic = observations["critic"].clone()
        return self._by_agent(observations["policy"]), self._infos(observations["critic"], {})

    _steps = 0
    """Steps of the episode that is on, or has ended last."""

    def step(
        self, actions: Mapping[str, np.ndarray]
    ) -> tuple[
        dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """One control period with the actions (A,) of all agents that have not ended. One that has gets action 0.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent, of those that had not ended before;
            after the last step of an episode those of the state it ended in. Nothing where no agent is left.

        Raises:
            ConfigError: an agent's action is missing, or has another shape.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        result = self.env.step(torch.as_tensor(self._rows(actions), device=self.env.device))
        self.env.check()
        self._steps += 1
        seen = result.terminal_observations
        self._critic = seen["critic"].clone()
        metrics = {
            name: (metric.each().tolist(), metric.weight.tolist()) for name, metric in result.metrics.items()
        }
        before, columns = self.agents, (result.reward, result.terminated, result.truncated)
        reward, terminated, truncated = (
            {agent: values[k] for k, agent in enumerate(self.possible_agents) if agent in before}
            for values in (column.tolist() for column in columns)
        )
        self.agents = [agent for agent in before if not (terminated[agent] or truncated[agent])]
        observed, infos = self._by_agent(seen["policy"]), self._infos(seen["critic"], metrics)
        return (
            {agent: observed[agent] for agent in before},
            reward,
            terminated,
            truncated,
            {agent: infos[agent] for agent in before},
        )

    def state(self) -> np.ndarray:
        """The groups `critic` of all agents side by side (K D,)."""
        return _array(self._critic).ravel()

    def render(self) -> np.ndarray | None:
        """An image (480, 640, 3) uint8 of the current state; None without a render mode.

        After the last step of an episode it shows the start of the next one.

        Raises:
            MissingError: no renderer works on this machine.
        """
        return self._pictures.draw()

    def close(self) -> None:
        """Free the simulator and the renderer."""
        self._pictures.close()
        self.env.close()

    def _rows(self, actions: Mapping[str, np.ndarray]) -> np.ndarray:
        """(K, A) the agents' actions."""
        rows = []
        for agent in self.possible_agents:
            if agent not in self.agents:
                rows.append(np.zeros(self.env.num_actions, np.float32))
                continue
            if agent not in actions:
                raise ConfigError(f"there is no action of {agent}; each of {listing(self.agents)} needs one")
            row = np.array(actions[agent], np.float32)
            if row.shape != (self.env.num_actions,):
                raise ConfigError(
                    f"the action of {agent} has shape {row.shape}; expected {(self.env.num_actions,)}"
                )
            rows.append(row)
        return np.stack(rows)

    def _by_agent(self, rows: Tensor) -> dict[str, np.ndarray]:
        return dict(zip(self.possible_agents, _array(rows), strict=True))

    def _infos(
        self, critic: Tensor, metrics: Mapping[str, tuple[list[float], list[float]]]
    ) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {}
        for k, (agent, row) in enumerate(self._by_agent(critic).items()):
            infos[agent] = {name: each[k] for name, (each, weight) in metrics.items() if weight[k]}
            infos[agent]["critic"] = row
        return infos


def _array(tensor: Tensor) -> np.ndarray:
    """A tensor on any device as a copied array."""
    copied: np.ndarray = tensor.detach().cpu().numpy().copy()
    return copied
