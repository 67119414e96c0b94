"""Env: a Task on a Backend. It holds the order of a step, time limits, resets, delays and all random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from robolearn.core import commanding, env_state
from robolearn.core.capture import Captured, Places
from robolearn.core.curricula import Curricula
from robolearn.core.delay import DelayLine, delayed_targets
from robolearn.core.ends import GONE, Ends
from robolearn.core.env_state import EnvState, EpisodeState, leaves, with_leaves
from robolearn.core.episode_stats import EpisodeStats, as_ratios
from robolearn.core.finite_check import FiniteCheck
from robolearn.core.finite_check import NonFiniteTerm as NonFiniteTerm
from robolearn.core.graphs import Graph
from robolearn.core.learner_env import LEVEL
from robolearn.core.noise import drawn_of_agents
from robolearn.core.observing import Observing
from robolearn.core.physics import Physics
from robolearn.core.rows import Rows, without
from robolearn.core.sensor_errors import SensorErrors
from robolearn.core.shards import ONE, Shards
from robolearn.core.shoves import Shoves
from robolearn.core.step_result import StepResult as StepResult
from robolearn.core.task_check import check_backend, check_parts, draw, initial_values, takes_rows, tried
from robolearn.core.threads import step_threads
from robolearn.core.tiles import Tiles
from robolearn.envs.agents import AgentBackend
from robolearn.envs.backend import Backend, Capabilities, GradientBackend, require_features
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.robot import Robot
from robolearn.envs.scene import ROBOT
from robolearn.envs.state import Initial, Tensor
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.symmetry import Symmetry
from robolearn.tasks.mdp.task import Ratio, Task


class Env:
    """N environments of one task, which reset themselves as their episodes end.

    Order of a step: delay the action; push; simulate; State; advance the task state; terminations and rewards; redraw
    expired commands and let commands follow the State; observe (terminal observations); reset the environments that
    are done; observe these. What the policy observes is made in the order of `Observing`: true value, bias, noise,
    drop-out, delay, history. Terms see the state *after* the simulation and the command the robot was following; every
    random number (noise, commands, initial states, delays) is drawn here, once.

    Everything that a step changes, except the backend's rows, is in `state`. On a backend with gradients a step is
    differentiable: rewards and observations carry the autograd graph of every action since `detach`, or since the start
    of the episode. Sums and metrics carry none.
    """

    def __init__(
        self,
        task: Task,
        robot: Robot,
        backend: Backend,
        seed: int = 1,
        rank: int = 0,
        training: bool = False,
        shards: Shards = ONE,
    ) -> None:
        """
        Args:
            task, robot, backend: what N robots are to do, which, and their simulator.
            seed, rank: of all random numbers; evaluations have another rank than trainings.
            training: whether the task's curricula are in force; without, commands and pushes have their full ranges.
            shards: the parts of a run that these environments are.
        """
        task = task.filled()
        self.scene = task.scene(robot)
        if len(self.scene.parts) and ROBOT in self.scene.robots:
            robot = self.scene.robots[ROBOT]  # what acts is a part of the robot
        require_features(self.scene, backend.capabilities.name, backend.capabilities.features)
        self.agents, self.agent_names = max(1, len(task.agents)), task.agents
        self.resets_take_a_step = self.agents > 1 and not task.ends_together
        """Agents of a world, which are neighbouring environments; see `robolearn.envs.agents`."""
        if self.agents > 1:
            backend = AgentBackend(backend, self.scene, task.agents)
        self.task, self.robot, self.backend = task, robot, backend
        self.num_envs, self.device = backend.num_envs, backend.device
        self.gradients = backend.capabilities.gradients
        """Whether gradients flow through a step."""
        self.num_actions = len(robot.actuators)
        self.substeps = check_backend(task, self.scene, backend.capabilities)
        self.max_episode_steps = max(1, round(task.episode_length_s / task.control_dt))
        self.shards = shards
        drawn = int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])
        self.random = Random(shards.seeds(drawn), self.device)
        self.random.group(self.agents, self.num_envs)
        self.dt = task.control_dt
        """Control period [s]."""
        self._constants = RobotConstants.of(robot, joint_limits(robot), self.device)
        self._action_delay = DelayLine(task.action_delay)
        self._errors = SensorErrors(task, self._constants, self.agents)
        self._curricula = Curricula(task, training, shards)
        self._physics = Physics(task, self.scene, backend)
        self._shoves = Shoves(task.pushes)
        self._tiles = Tiles(
            self.scene.terrain, training and task.has_levels, self.num_envs, self.device, shards
        )
        self.state = self._blank()
        """Everything that a step changes, see `EnvState`."""
        self._reward_terms = task.reward_terms()
        stated = task.reward_weights()
        weights = [stated[name] for name in self._reward_terms]
        self._weights = torch.tensor(weights, dtype=torch.float32, device=self.device)
        self._terminations = task.termination_terms()
        known = self._errors.known(backend.state, self.state.episode.sensor_errors)
        items = check_parts(task, known, self.ctx, self.num_actions)
        self._observing = Observing(task, items, self.agents, self._errors, backend.state, self.ctx)
        self.columns = self._observing.columns
        """Items of each observation group with their widths, in the order of the columns."""
        self._takes_rows = not self.gradients and takes_rows(task, backend.state, self.ctx)
        """Whether a reset may observe the new episodes only."""
        metrics = [*task.metrics(backend.state, self.ctx), *self._curricula.names]
        self._stats = EpisodeStats(
            list(self._reward_terms), metrics, self._weights, self.dt, 0 if shards.single else shards.count
        )
        self.read_at_once = self.device.type == "cpu"
        """Whether reading a number costs nothing; on a GPU the read would wait for everything queued."""
        self.paired = False
        """Whether resets leave the random numbers of later steps as they are: two simulators then draw the same
        commands, pushes and noise, however their episodes end. The first episodes are then meant to be compared: a
        later one begins with numbers that the steps draw, too."""
        self._finite = FiniteCheck(
            self.read_at_once,
            lambda: self.backend.state,
            lambda: self.state.episode.step,
            lambda: self.state.flags,
            first_env=shards.mine.start * (self.num_envs // shards.count),
        )
        self._complete()
        self._metrics: dict[str, Ratio] = {}
        self.watch: Callable[[Env], None] | None = None
        """Is called in each step before episodes that have ended are reset; it may read this Env and change nothing."""
        self._parts = (self._send, self._assess, self._restart, self._look_again)
        self._act: Callable[[], None]
        self._act, self._judge, self._renew, self._begin = self._parts
        self._physics.start(backend, self.random, self._level("randomize"))
        self.reset()
        # A CUDA graph overwrites the tensors of the step before, and gradients need those of every step.
        if self.device.type == "cuda" and not self.gradients:
            self.capture()

    def _blank(self) -> EnvState:
        """The state before the first reset, without the parts that depend on the observations; see `_complete`."""
        task, n = self.task, self.num_envs

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(n, *shape, device=self.device)

        never = torch.zeros(n, dtype=torch.bool, device=self.device)
        episode = EpisodeState(
            step=torch.zeros(n, dtype=torch.long, device=self.device),
            total_return=zeros(),
            time=zeros(),
            action=zeros(self.num_actions),
            previous_action=zeros(self.num_actions),
            command=zeros(task.commands.width if task.commands else 0),
            command_time=zeros(),
            command_left=zeros(),
            aim=draw(task.commands, n, self.random.fork()).aim if task.commands else {},
            push_time=zeros() + torch.inf,
            push_left=zeros(),
            shove=self._shoves.none(n, self.device),
            physics_left=self._physics.empty(),
            task=task.task_state(n, self._constants, self.random),
            action_delay=self._action_delay.empty(n, self.num_actions, self.device),
            observation_delay={},
            history={},
            sensing={},
            sensor_errors=self._errors.empty(n, self.device),
            held={"targets": zeros(self.num_actions)} if task.packet_loss else {},
            gone={GONE: never.clone()} if self.resets_take_a_step else {},
        )
        outcome = Ends.none(never, alone=self.resets_take_a_step).outcome()
        per_env = self._curricula.added_to(task.per_env_state(n, self.random), n, self.device)
        return EnvState(
            episode,
            per_env=self._tiles.added_to(per_env),
            observations={},
            terminal_observations={},
            outcome={"reward": zeros(), "diverged": never.clone(), "exogenous": never.clone(), **outcome},
            transit={
                "action": zeros(self.num_actions),
                "joint_targets": zeros(self.num_actions),
                "jump": zeros(3),
            },
            stats=torch.zeros(0),
            flags={},
        )

    def _level(self, name: str) -> Tensor | None:
        """(N,) level of a curriculum; None without one."""
        return self.state.per_env.get(f"{LEVEL}{name}")

    def _complete(self) -> None:
        """Add the parts of the state whose shapes depend on the task's observations, terms and metrics."""
        self.state.stats = self._stats.empty()
        self._observing.complete(self.state, self.num_envs)

    @property
    def ctx(self) -> Context:
        """The state as terms read it."""
        return self._context(share=False)

    def _context(self, share: bool = True) -> Context:
        """The same; with `share`, terms share what they compute, see `once`. Gradients are summed in another order
        where terms share, so with gradients they do not."""
        episode = self.state.episode
        ctx = Context(
            self._constants,
            self.dt,
            action=episode.action,
            previous_action=episode.previous_action,
            command=episode.command,
            episode_time=episode.time,
            command_time=episode.command_time,
            push_time=episode.push_time,
            task_state=episode.task,
            per_env_state=self.state.per_env,
            hidden=self._physics.hidden,
            terrain=self._tiles.ground,
            origin=self.backend.state.origin,
        )
        return ctx.sharing() if share and not self.gradients else ctx

    @property
    def observations(self) -> dict[str, Tensor]:
        """The current observations, (N, D) a group."""
        return self.state.observations

    @property
    def terminal_observations(self) -> dict[str, Tensor]:
        """(N, D) a group: the observations of the state that the last step ended in, before any reset."""
        return self.state.terminal_observations

    @property
    def episode_step(self) -> Tensor:
        """(N,) int64 control steps into each episode."""
        return self.state.episode.step

    @episode_step.setter
    def episode_step(self, steps: Tensor) -> None:
        # The agents of a world have one clock: that of the first one.
        self.state.episode.step = steps[:: self.agents].repeat_interleave(self.agents)

    def readings(self, names: Iterable[str]) -> dict[str, Tensor]:
        """What the robot's computer has of these sensors in this step, (N, ...) each; see `Observing.readings`."""
        wanted = {sensor.name: sensor for sensor in self.task.all_sensors()}
        return self._observing.readings(self.state, [wanted[name] for name in names], self.backend.state)

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""
        return self.backend.capabilities

    # ------------------------------------------------------------------ stepping

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode in every environment. With `stagger` their ages are spread over the episode's length, so
        that a training batch holds every part of an episode from the first step on.

        Returns:
            The first observations, (N, D) a group.
        """
        self.detach()
        rows = self._rows(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self.backend.reset(rows.mask, self._new_episodes(rows.mask))
        episode = self.state.episode
        if stagger:
            ages = self.random.uniform(0.0, 1.0, self.num_envs) * self.max_episode_steps
            episode.step = ages.long()
        self._follow()
        self._observing.draw(self.state, self.random)
        first = self._observing.begin(self.state, self.random, self._observe(rows), rows)
        self.state.terminal_observations = env_state.clone(first)
        self.state.observations = first
        return first

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """One control period for every environment; `action` (N, A).

        `joint_targets` (N, A), such as those of a robot's runtime, replace `Task.joint_targets` of the action; rewards
        and observations still see the action. On a backend with gradients, gradients flow to both.

        Raises:
            NonFiniteTerm: the action, a term or an initial state is not finite; it is named. On a GPU `drain` raises.
        """
        with step_threads(self.num_envs, self.device):
            self._step(action, joint_targets)
        state, outcome = self.state, self.state.outcome
        return StepResult(
            state.observations,
            outcome["reward"],
            outcome["terminated"],
            outcome["truncated"],
            state.terminal_observations,
            outcome["diverged"],
            outcome.get("valid"),
            exogenous=outcome["exogenous"],
            metrics=self._metrics,
        )

    def _step(self, action: Tensor, joint_targets: Tensor | None) -> None:
        transit = self.state.transit
        if self.gradients:
            transit["action"] = action.to(transit["action"]).clone()
        else:
            transit["action"].copy_(action.detach())
        if joint_targets is None:
            self._act()
        else:
            self._send(joint_targets.to(self.device))
        self.backend.step(self.state.transit["joint_targets"], self.substeps)
        self._judge()
        if self.watch is not None:
            self.watch(self)
        # Skips the reset when no env is done; on a GPU the check would force a sync.
        # What a shard draws must not depend on the envs of others.
        done = self.shards.parts(self.state.outcome["renewed"])
        used = [not self.read_at_once or bool(part.any()) for part in done]
        if any(used):
            before = self.random.state() if self.paired else None
            with self.random.only(used):
                self._renew()
                self.backend.reset(self.state.outcome["renewed"], self._initial)
                self._begin()
            if before is not None:
                self.random.set_state(before)

    def _rows(self, mask: Tensor) -> Rows:
        return Rows.of(mask, by_index=self.read_at_once and self._takes_rows)

    def _send(self, given: Tensor | None = None) -> None:
        """Delay the action, compute the joint targets (or take those `given`), and push."""
        episode, transit = self.state.episode, self.state.transit
        # A copy: the caller may reuse its buffer for the next action.
        episode.previous_action, episode.action = episode.action, transit["action"].clone()
        joints = [actuator.joint for actuator in self.robot.actuators]
        self._finite.look(episode.action, joints, "action of")
        late = self._action_delay, episode.action_delay
        targets, episode.action_delay = delayed_targets(*late, self.task, self.ctx, episode.action, given)
        self._finite.look(targets, joints, "joint target of")
        if episode.held:
            lost = drawn_of_agents(self.random.rand, self.num_envs, 1, self.agents) < self.task.packet_loss
            targets = torch.where(lost, episode.held["targets"], targets)
            episode.held = {"targets": targets}
        left, level = episode.physics_left, self._level("randomize")
        episode.physics_left = self._physics.advance(self.backend, left, self.dt, self.random, level)
        transit["joint_targets"] = self._errors.reached(targets, episode.sensor_errors)
        self._push()

    def _assess(self) -> None:
        """Advance the task state; compute rewards, terminations, statistics and the terminal observations."""
        task, episode, state = self.task, self.state.episode, self.backend.state
        for name in ("time", "command_time", "push_time"):
            setattr(episode, name, getattr(episode, name) + self.dt)
        episode.step = episode.step + 1
        episode.task = self._errors.advanced(state, episode.sensor_errors, self.ctx)

        ctx = self._context()
        diverged = state.diverged.clone()  # the reset below clears it in the State
        # Rows to set to 0; None where no environment diverged, as in almost every step.
        lost = None if self.read_at_once and not diverged.any() else diverged
        ended = diverged.clone()
        for term in self._terminations.values():
            ended |= term(state, ctx)
        timed_out = self._tiles.left(state, episode.step >= self.max_episode_steps)
        ends = Ends.of(ended, timed_out, self.agents, episode.gone)
        done, episode.gone = ends.done, ends.still_gone()
        raw = ends.counted(self._rewards(ctx, lost))
        # Not a matrix product: its rounding depends on where in the batch a row stands, and copies of one
        # environment must stay equal to the bit.
        reward = (raw * self._weights).sum(dim=1) * self.dt
        metrics = self._measured(ctx, lost)
        if ends.valid is not None:
            metrics = {name: Ratio(*map(ends.counted, metric)) for name, metric in metrics.items()}
        total_return = episode.total_return + reward.detach()
        counts = done, ends.terminated, diverged, total_return, episode.time, ends.valid
        stats = self._stats.add(self.state.stats, raw, list(metrics.values()), *counts)
        # Where the sums are finite, so are all their summands.
        if not self.read_at_once or not math.isfinite(stats.sum().item()):
            self._look_at_terms(raw, metrics)
        self.state.stats, episode.total_return, self._metrics = stats, total_return, metrics
        self.state.outcome = {
            **ends.outcome(),
            "reward": reward,
            "diverged": diverged,
            "exogenous": episode.push_time < 1.5 * self.dt,  # pushed in this step
        }
        if self.state.per_env:
            # The State of a diverged environment means nothing, and a NaN here would survive every reset.
            now = {**self.state.per_env, **task.advance_per_env(state, ctx, done)}
            self.state.per_env = env_state.where(done & ~diverged, now, self.state.per_env)
            levels = self._curricula.changed(self.state.per_env, state, ctx, diverged)
            now = {**self.state.per_env, **levels}
            self.state.per_env = self._tiles.changed(now, task, state, ctx, done & ~diverged)

        self.state.outcome["exogenous"] |= self._redraw_commands()
        seen = self._observe(lost=lost)
        self._observing.draw(self.state, self.random)
        seen = self._observing.arriving(self.state, seen)
        self.state.terminal_observations = seen
        self.state.observations = seen.copy()

    def _restart(self) -> None:
        """Draw new episodes where the old ones ended: parameters, commands, task state and initial states."""
        self._initial = self._new_episodes(self.state.outcome["renewed"])

    def _look_again(self) -> None:
        """Observe the first state of the new episodes."""
        rows = self._rows(self.state.outcome["renewed"])
        self._follow(rows.mask)
        first = self._observing.begin(self.state, self.random, self._observe(rows), rows)
        self.state.observations = rows.put(first, self.state.observations)

    def capture(self, make: Callable[[torch.device], Graph | None] | None = None) -> None:
        """From now on replay each part of a step as one CUDA graph (`make`: as for `Graphed`)."""
        places: Places[EnvState] = Places(lambda: self.state, lambda state: setattr(self, "state", state))
        made = [Captured(part, places, self.device, self.random.generators, make) for part in self._parts]
        self._act, self._judge, self._renew, self._begin = made

    def _rewards(self, ctx: Context, lost: Tensor | None) -> Tensor:
        """Raw reward terms (N, K), 0 in the rows `lost` (N,) to divergence."""
        columns = [term(self.backend.state, ctx) for term in self._reward_terms.values()]
        if not columns:
            return torch.zeros(self.num_envs, 0, device=self.device)
        return without(lost, torch.stack(columns, dim=1).float())

    @torch.no_grad()
    def _measured(self, ctx: Context, lost: Tensor | None) -> dict[str, Ratio]:
        """The task's metrics; rows `lost` (N,) to divergence count in none."""
        levels = self._curricula.shares(self.state.per_env)
        return as_ratios({**self.task.metrics(self.backend.state, ctx), **levels}, lost)

    def _look_at_terms(self, raw: Tensor, metrics: dict[str, Ratio]) -> None:
        """Check that the reward terms (N, K) and the metrics are finite."""
        self._finite.look(raw, list(self._reward_terms), "reward")
        if metrics:
            parts = [part.float() for m in metrics.values() for part in m]
            self._finite.look(
                torch.stack(parts, dim=1), [name for name in metrics for _ in range(2)], "metric"
            )

    def _push(self) -> None:
        """Push the robots whose next push is due."""
        pushes, episode = self.task.pushes, self.state.episode
        if pushes is None or not pushes.active:
            return
        jump, turn, seconds = pushes.sample(self.num_envs, self.random)
        if (level := self._level("pushes")) is not None:
            jump, turn = jump * level[:, None], None if turn is None else turn * level[:, None]
        left = episode.push_left - self.dt
        due = left <= 0
        episode.push_left = torch.where(due, seconds, left)
        self.push(due, jump, turn)
        episode.shove = self._shoves.apply(episode.shove, due, self.random, level, self.backend, self.dt)

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """Push the robots of the environments in `mask` (N,) bool, before the next step; see `Backend.push`."""
        episode, transit = self.state.episode, self.state.transit
        episode.push_time = torch.where(mask, 0.0, episode.push_time)
        transit["jump"] = torch.where(mask[:, None], jump, transit["jump"])
        self.backend.push(mask, jump, turn)

    def restart_command_time(self, mask: Tensor) -> None:
        """Count the time since the command from now on where `mask` (N,) bool: an operator has given another one."""
        episode = self.state.episode
        episode.command_time = torch.where(mask, 0.0, episode.command_time)

    def _observe(self, rows: Rows | None = None, lost: Tensor | None = None) -> dict[str, Tensor]:
        """One sample of every group (N, D), or of only its `rows`, as it is; 0 in rows `lost` (N,) to divergence."""
        state, ctx = self.backend.state, self._context()
        if rows is not None:
            state, ctx = rows.state(state), rows.context(ctx)
        errors = self.state.episode.sensor_errors
        errors = errors if rows is None else rows.take(errors)
        samples = {n: without(lost, obs) for n, obs in self._observing.samples(state, errors, ctx).items()}
        for name, obs in samples.items():
            self._finite.look(obs, self._observing.names[name], f"{name} observation", rows)
        return samples

    def _new_episodes(self, mask: Tensor) -> Initial:
        """Draw new episodes for every row and keep those of `mask` (N,): the random numbers of an environment do not
        depend on which others start anew.

        Returns:
            The initial states that the backend is to set, (N, ...) each.
        """
        task, old, n, wide = self.task, self.state.episode, self.num_envs, self._level("randomize")
        self.state.per_env = self._tiles.begin(mask, self.state.per_env, self.random, self.backend)
        physics_left = self._physics.renew(self.backend, mask, self.random, wide)
        zeros, none = torch.zeros_like(old.time), torch.zeros_like(old.action)
        command, seconds, aim = old.command, old.command_left, old.aim
        if task.commands is not None:
            command, seconds, aim = commanding.drawn(task.commands, n, self.random, self._level("commands"))
        new = EpisodeState(
            step=torch.zeros_like(old.step),
            total_return=zeros,
            time=zeros,
            action=none,
            previous_action=none,
            command=command,
            command_time=zeros if task.commands else old.command_time,
            command_left=seconds,
            aim=aim,
            push_time=zeros + torch.inf,
            push_left=old.push_left if task.pushes is None else task.pushes.sample(n, self.random)[2],
            shove=env_state.tree_map(torch.zeros_like, old.shove),
            physics_left=physics_left,
            task=task.task_state(n, self._constants, self.random),
            action_delay=self._action_delay.draw(old.action_delay, self.random, none, wide),
            observation_delay=old.observation_delay,  # drawn with the first observation
            history=old.history,  # starts with it, too
            sensing=old.sensing,  # likewise
            sensor_errors=self._errors.draw(self.random, n, wide),
            held=old.held,
            gone=env_state.tree_map(torch.zeros_like, old.gone),
        )
        self.state.episode = env_state.where(mask, new, old)
        if old.held:  # until one arrives, the motors hold the targets of action 0
            held = {"targets": task.joint_targets(none, self.ctx)}
            self.state.episode.held = env_state.where(mask, held, old.held)
        with torch.no_grad():  # no gradient flows from an initial state to the episode before
            initial = tried("initial_state()", task.initial_state, n, self.ctx, self.random)
        for label, value in initial_values(initial, self.backend.state, n, task.agents):
            self._finite.look(value, [label] * value.shape[-1], "initial state")
        return initial

    def _redraw_commands(self) -> Tensor:
        """Draw new commands where the old ones expired: (N,) bool."""
        commands, level = self.task.commands, self._level("commands")
        if commands is None:
            return torch.zeros_like(self.state.outcome["done"])
        expired = commanding.redraw(commands, self.state.episode, self.dt, self.random, level)
        self._follow()
        return expired

    def _follow(self, mask: Tensor | None = None) -> None:
        """Let the commands, of the rows `mask` (N,) or of all, follow the state of the robot."""
        if self.task.commands is not None:
            commanding.follow(
                self.task.commands, self.state.episode, self.backend.state, self._context(), mask
            )

    # ------------------------------------------------------------------ the rest

    def check(self) -> None:
        """Raise the errors that steps on a GPU could not report at once; to be called about once an iteration.

        Raises:
            NonFiniteTerm: a term was not finite since the last call.
            RunFailed: the simulator dropped contacts or constraints.
        """
        self.backend.check()
        self._finite.read()

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name, over the environments of all ranks; see `EpisodeStats.means`. On a GPU
        only this reads values to the host.

        Raises:
            NonFiniteTerm, RunFailed: see `check`.
        """
        sums = self.drained()
        return self.means_of(sums if self.shards.single else self.shards.sum(sums.unbind()))

    def drained(self) -> Tensor:
        """The sums behind `drain`, (S,) or a row for each shard; they start at 0 again."""
        self.check()
        sums, self.state.stats = self.state.stats, self._stats.empty()
        return sums

    def means_of(self, sums: Tensor) -> dict[str, float]:
        """Means by name of sums (S,) that `drained` returned, of these environments or of others of the same task."""
        return self._stats.means(sums)

    def symmetry(self) -> Symmetry | None:
        """The left-right symmetry of task and robot in the columns of this Env's observation groups; None without."""
        if not self.task.symmetric or self.robot.mirror is None:
            return None
        return self._observing.symmetry(self.robot)

    @torch.no_grad()
    def snapshot(self) -> dict[str, Any]:
        """Everything that an exact resume needs: the backend's rows, the state by path, the random state."""
        return {
            "backend": self.backend.snapshot(),
            "state": leaves(env_state.clone(self._kept())),
            "random": self.random.state(),
        }

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Continue from a snapshot; environment i becomes row `source_rows[i]` of it (row i by default)."""
        moved = env_state.to(snapshot["backend"], self.device), env_state.to(snapshot["state"], self.device)
        rows = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        self.backend.restore(moved[0], rows)
        now = self.state
        own = leaves(self._kept())
        anew = {path: own[path] for path in self.lacking(snapshot)}
        state = with_leaves(self._kept(), anew | self._observing.moved(moved[1])).rows(rows)
        # Sums since they were last read. A version whose task had other metrics has sums of others.
        stats = state.stats if state.stats.shape == now.stats.shape else now.stats
        self.state = replace(state, stats=stats, outcome=now.outcome, transit=now.transit, flags=now.flags)
        self.random.set_state(snapshot["random"])

    @property
    def levels(self) -> tuple[str, ...]:
        """Name of the level of each curriculum in the per-env state; () outside of a training."""
        return (*self._curricula.names, *self._tiles.names)

    def keep_levels(self, snapshot: dict[str, Any], terrain: bool = True) -> None:
        """Begin with the mean levels that another simulation of this task had reached at a `snapshot`; those of the
        terrain only on the same `terrain`."""
        reached = self._curricula.reached(self.state.per_env, snapshot["state"])
        self.state.per_env = self._tiles.reached(reached, snapshot["state"]) if terrain else reached

    def lacking(self, snapshot: dict[str, Any]) -> list[str]:
        """What the task keeps for itself and a snapshot of a version before does not have: `restore` starts it anew."""
        return [
            p for p in leaves(self._kept()) if p.startswith("episode.task.") and p not in snapshot["state"]
        ]

    def _kept(self) -> EnvState:
        """The state without the parts that are meaningful only within a step."""
        return replace(self.state, outcome={}, transit={}, flags={})

    def detach(self) -> None:
        """Detach the state from the autograd graph of the steps so far, which can then be freed.

        Gradients of later steps end here; the numbers stay. Does nothing on a backend without gradients.
        """
        if not self.gradients:
            return
        cast(GradientBackend, self.backend).detach()
        self.state = env_state.detach(self.state)

    def close(self) -> None:
        """Free the simulator."""
        self.backend.close()
