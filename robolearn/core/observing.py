"""What is observed of a State: a sample of each item, what happens to it on its way to the policy, and the past."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from robolearn.core import env_state
from robolearn.core.arrival import Arrival, channels_of, resolved
from robolearn.core.delay import DelayLine
from robolearn.core.env_state import EnvState, Named
from robolearn.core.history import Columns, ObservationHistory
from robolearn.core.learner_env import LEVEL
from robolearn.core.measurable import sources
from robolearn.core.noise import EpisodeNoise, ObservationNoise
from robolearn.core.rows import Rows
from robolearn.core.sensor_errors import SensorErrors
from robolearn.envs.robot import Robot
from robolearn.envs.state import State, Tensor
from robolearn.tasks.mdp.context import Context, Random, computed_once
from robolearn.tasks.mdp.observations import shown_params
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.tasks.mdp.symmetry import Symmetry, sagittal
from robolearn.tasks.mdp.task import Task

READINGS = "sensor readings"
"""Name of the readings among the samples; no observation group can have it."""


class Observing:
    """Computes the observation groups of an Env; what it keeps from step to step is in the EnvState.

    A sample of the group `policy` becomes what the policy observes in this order: the value that the sensors measure
    (errors of the sensors themselves included), bias, white and slow noise, drop-out, delay (of sensors, then of the
    whole group), history. Other groups hold true values, and have a history only.
    """

    def __init__(
        self,
        task: Task,
        samples: Columns,
        agents: int,
        errors: SensorErrors,
        state: State,
        ctx: Context,
    ) -> None:
        """
        Args:
            task: the task.
            samples: the items of each group with the width of one sample.
            agents: number of agents of a world.
            errors: of the sensors.
            state, ctx: of N environments.

        Raises:
            ConfigError: what `Task.sensing` or an error of a sensor asks for cannot be; it is named.
        """
        self._history = ObservationHistory(samples)
        self.columns = self._history.columns
        """Items of each observation group with their widths, in the order of the columns."""
        seen = errors.known(state, errors.empty(len(ctx.episode_time), ctx.episode_time.device))
        self._params = shown_params(seen.params, ctx)
        self.names = {g: [i.name for i, width in items for _ in range(width)] for g, items in samples.items()}
        """The item of each column of one sample, by group."""
        self.device, self._errors, items = ctx.episode_time.device, errors, samples["policy"]
        self._noise = ObservationNoise(task.noise, items, agents, self.device)
        self._delay = DelayLine(task.observation_delay)
        sensing = task.sensing
        self._late: dict[str, Sensor] = {}
        self._shapes: dict[str, torch.Size] = {}
        channels, channel = [], [-1] * len(self.names["policy"])
        if sensing or errors.on:
            found = sources(task, state, ctx, ctx.action.shape[1])
            errors.require(found.sensors, tuple(found.task_state))
            known = [sensor.name for sensor in task.all_sensors()]
            sensing = resolved(sensing, items, found.items, known)
            channels = channels_of(sensing, found.items, known, found.task_state)
            of_sensor = {name: i for i, (members, _) in enumerate(channels) for name in members}
            channel = [of_sensor.get(min(found.items[name], default=""), -1) for name in self.names["policy"]]
            self._late = {s.name: s for s in task.all_sensors() if s.name in of_sensor}
            self._shapes = {name: sensor(state).shape[1:] for name, sensor in self._late.items()}
            for name, shape in self._shapes.items():
                channel += [of_sensor[name]] * shape.numel()
            if self._late:
                self.names[READINGS] = [n for n, s in self._shapes.items() for _ in range(s.numel())]
        self._episode_noise = EpisodeNoise(sensing, items, ctx.dt, agents, self.device)
        self._arrival = Arrival([how for _, how in channels], channel, agents, self.device)

    def complete(self, state: EnvState, num_envs: int) -> None:
        """Add to a new EnvState what is kept here."""
        width = len(self.names["policy"])
        state.episode.observation_delay = self._delay.empty(num_envs, width, self.device)
        state.episode.history = self._history.empty(num_envs, self.device)
        state.episode.sensing = {
            **self._episode_noise.empty(num_envs, self.device),
            **self._arrival.empty(num_envs, self.device),
        }
        if self._noise.row is not None:
            state.transit["noise"] = torch.zeros(num_envs, width, device=self.device)
        if self._episode_noise.slow:
            state.transit["normal"] = torch.zeros(num_envs, width, device=self.device)
        if self._arrival.dropping:
            state.transit["drops"] = self._arrival.none(num_envs)

    def symmetry(self, robot: Robot) -> Symmetry:
        """The left-right symmetry of a robot in the columns of each observation group.

        Raises:
            ConfigError: see `sagittal`.
        """
        return sagittal(robot, self.columns, self.device, self._params)

    def moved(self, saved: Named) -> Named:
        """The tensors of an EnvState by path, with those of a version that delayed the policy's observations with
        their histories at their places here, where a delay comes before the history."""
        place, width = "episode.observation_delay", len(self.names["policy"])
        joined = saved.get(f"{place}.past")
        if joined is None or joined.shape[-1] == width:
            return saved
        rows = torch.arange(len(joined), device=joined.device)
        observed, newest, out, column = joined[rows, saved[f"{place}.lag"]], [], dict(saved), 0
        for (item, size), (_, whole) in zip(
            self._history.samples["policy"], self.columns["policy"], strict=True
        ):
            part = slice(column, column := column + whole)
            newest.append(joined[..., part][..., -size:])
            if item.history > 1:
                out[f"episode.history.policy/{item.name}"] = observed[:, part].view(-1, item.history, size)
        return {**out, f"{place}.past": torch.cat(newest, dim=-1)}

    def samples(self, state: State, errors: Named, ctx: Context) -> Named:
        """One sample of every group (N, D): of `policy` with the `errors` of the sensors, of the others as it is.

        Where sensors are late, their readings are beside them, as READINGS.
        """
        out, sensed, known = {}, self._errors.sensed(state, errors), self._errors.known(state, errors)
        for name, columns in self._history.samples.items():
            seen = sensed if name == "policy" else known
            out[name] = torch.cat([computed_once(item.compute, seen, ctx) for item, _ in columns], dim=1)
        if self._late:
            rows = len(ctx.episode_time)
            out[READINGS] = torch.cat([s(sensed).reshape(rows, -1) for s in self._late.values()], dim=1)
        return out

    def draw(self, state: EnvState, random: Random) -> None:
        """Draw the noise of a step. An episode that begins in this step begins with the same."""
        num_envs = len(state.episode.step)
        if self._noise.row is not None:
            state.transit["noise"] = self._noise.draw(random, num_envs)
        if self._episode_noise.slow:
            state.transit["normal"] = self._episode_noise.normal(random, num_envs)
        if self._arrival.dropping:
            state.transit["drops"] = self._arrival.drops(random, num_envs)

    def arriving(self, state: EnvState, samples: Named) -> Named:
        """The observations (N, D) a group after one more step with these `samples`."""
        episode, transit, seen = state.episode, state.transit, dict(samples)
        if self._episode_noise.slow:
            episode.sensing = self._episode_noise.advanced(episode.sensing, transit["normal"])
        white = transit["noise"] if self._noise.row is not None else None
        seen["policy"] = _noisy(seen["policy"], episode.sensing, white)
        if self._arrival.on:
            values = torch.cat((seen["policy"], seen.pop(READINGS)), dim=1)
            drops = transit["drops"] if self._arrival.dropping else None
            arrived, episode.sensing = self._arrival.push(episode.sensing, values, drops)
            seen["policy"] = arrived[:, : len(self.names["policy"])]
        seen["policy"], episode.observation_delay = self._delay.push(
            episode.observation_delay, seen["policy"]
        )
        episode.history = self._history.push(episode.history, seen)
        return self._history.joined(seen, episode.history)

    def begin(self, state: EnvState, random: Random, samples: Named, rows: Rows) -> Named:
        """The first observations of new episodes in `rows`, of their first `samples`, (K, D) a group each."""
        episode, transit, first = state.episode, state.transit, dict(samples)
        sensing = episode.sensing
        if sensing:
            normal = transit["normal"] if self._episode_noise.slow else None
            sensing = self._episode_noise.start(sensing, random, normal)
        white = rows.take(transit["noise"]) if self._noise.row is not None else None
        levels: Named = {name: rows.take(sensing[name]) for name in ("bias", "slow") if name in sensing}
        first["policy"] = _noisy(first["policy"], levels, white)
        if self._arrival.on:
            values = rows.spread(torch.cat((first["policy"], first.pop(READINGS)), dim=1))
            sensing = self._arrival.start(sensing, random, values)
        episode.sensing = env_state.where(rows.mask, sensing, episode.sensing)
        line = episode.observation_delay
        if self._delay.delays:
            wide = state.per_env.get(f"{LEVEL}randomize")
            drawn = self._delay.draw(line, random, rows.spread(first["policy"]), wide)
            episode.observation_delay = env_state.where(rows.mask, drawn, line)
        past = self._history.start(first)
        episode.history = rows.put(past, episode.history)
        return self._history.joined(first, past)

    def readings(self, state: EnvState, sensors: Iterable[Sensor], world: State) -> Named:
        """What the robot's computer has of `sensors` in this step, (N, ...) each by name: with the errors of the
        sensors themselves, and as late as the observations. Noise is of the observations alone."""
        sensed = self._errors.sensed(world, state.episode.sensor_errors)
        out = {sensor.name: sensor(sensed) for sensor in sensors}
        if self._arrival.on:
            column = len(self.names["policy"])
            arrived = self._arrival.arrived(state.episode.sensing)
            for name, shape in self._shapes.items():
                part = arrived[:, column : column + shape.numel()]
                column += shape.numel()
                if name in out:
                    out[name] = part.view(-1, *shape)
        return out


def _noisy(sample: Tensor, levels: Named, white: Tensor | None) -> Tensor:
    """A sample with its bias, white and slow noise."""
    for part in (levels.get("bias"), white, levels.get("slow")):
        sample = sample if part is None else sample + part
    return sample
