"""Env: a Task on a Backend. It owns the order of a step, time limits, resets, delays and all randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from robolearn.core.capture import Captured, Place, Slots
from robolearn.core.delay import DelayLine
from robolearn.core.finite import NonFiniteTerm as NonFiniteTerm
from robolearn.core.finite import Watch
from robolearn.core.graphs import Graph
from robolearn.core.step_result import StepResult as StepResult
from robolearn.core.task_check import check_parts, require_shape
from robolearn.core.totals import Totals
from robolearn.core.trees import copied, detached, moved
from robolearn.envs.backend import Backend, Capabilities, GradientBackend
from robolearn.envs.mjcf import joint_limits
from robolearn.envs.robot import Robot
from robolearn.envs.state import Pose, Tensor
from robolearn.errors import RunFailed
from robolearn.tasks.mdp.context import Context, Random, RobotConstants
from robolearn.tasks.mdp.symmetry import Symmetry, sagittal
from robolearn.tasks.mdp.task import Ratio, Task


class Diverged(RunFailed):
    """Too many simulated environments diverged for the results to be trusted."""


class Env:
    """N environments of one task, reset by themselves as their episodes end.

    Order of a step: delay the action; push; simulate; State; advance the task's memory; terminations and
    rewards; redraw expired commands; observe into the terminal buffer; reset what is done, make its
    kinematics current; observe. Terms see the state *after* the simulation and the command the robot
    was following; every random number (noise, commands, poses, delays) is drawn here, once.

    On a backend with gradients a step is differentiable: rewards and observations carry the graph of every action
    since `detach`, or since the start of the episode. Sums and metrics carry none.
    """

    resets_take_a_step = False

    def __init__(self, task: Task, robot: Robot, backend: Backend, seed: int = 1, rank: int = 0) -> None:
        self.task, self.robot, self.backend = task, robot, backend
        self.num_envs, self.device = backend.num_envs, backend.device
        self.gradients = backend.capabilities.gradients
        """Whether gradients flow through a step."""
        self.num_actions = len(robot.actuators)
        timestep = backend.capabilities.timestep
        self.substeps = round(task.control_dt / timestep)
        if self.substeps < 1 or abs(self.substeps * timestep - task.control_dt) > 1e-9:
            raise ValueError(
                f"task.control_dt={task.control_dt:g} is not a multiple of the {timestep:g} s physics step of "
                f"backend={backend.capabilities.name}; use {max(1, self.substeps) * timestep:g}"
            )
        unsettable = set(task.randomize) - backend.capabilities.params
        if unsettable:
            raise ValueError(
                f"task.randomize.{min(unsettable)}: backend={backend.capabilities.name} cannot set it; it can set "
                f"{', '.join(sorted(backend.capabilities.params))}"
            )
        self.max_episode_steps = max(1, round(task.episode_length_s / task.control_dt))
        self.random = Random(int(np.random.SeedSequence((seed, rank)).generate_state(1)[0]), self.device)

        n, zeros = self.num_envs, lambda *shape: torch.zeros(self.num_envs, *shape, device=self.device)
        self.ctx = Context(
            RobotConstants.of(robot, joint_limits(robot), self.device),
            task.control_dt,
            action=zeros(self.num_actions),
            previous_action=zeros(self.num_actions),
            command=zeros(3 if task.commands else 0),
            episode_time=zeros(),
            command_time=zeros(),
            push_time=zeros() + torch.inf,
            memory=task.memory(n, self.random),
        )
        self.episode_step = torch.zeros(n, dtype=torch.long, device=self.device)
        self.episode_return = zeros()
        self.command_left = zeros()
        self.push_left = zeros()
        self._reward_terms = task.reward_terms()
        weights = [task.rewards[name] for name in self._reward_terms]
        self._weights = torch.tensor(weights, dtype=torch.float32, device=self.device)
        self._terminations = task.terminations()
        self.columns = check_parts(task, backend.state, self.ctx, self.num_actions)
        """Items of each observation group with their widths, in the order of the columns."""
        self._noise = self._noise_row()
        self._actions = DelayLine(task.action_delay, n, self.num_actions, self.device)
        self._delayed: DelayLine | None = None
        self.observations: dict[str, Tensor] = {}
        self.terminal_observations: dict[str, Tensor] = {}
        metrics = list(task.metrics(backend.state, self.ctx))
        self._totals = Totals(list(self._reward_terms), metrics, self._weights, task.control_dt)
        self.read_at_once = self.device.type == "cpu"
        """Whether looking at a number costs nothing; on a GPU it would wait for all that is queued."""
        self._watch = Watch(self.read_at_once, lambda: self.backend.state, lambda: self.episode_step)
        self._incoming, self._targets = zeros(self.num_actions), zeros(self.num_actions)
        self._given: Tensor | None = None
        self._drawn_noise: Tensor | float = 0.0 if self._noise is None else zeros(len(self._noise))
        self._done = torch.zeros(n, dtype=torch.bool, device=self.device)
        self._outcome = zeros(), self._done, self._done, self.terminal_observations, self._done
        self._parts = (self._send, self._assess, self._restart, self._look_again)
        self._act, self._judge, self._renew, self._begin = self._parts
        self.reset()
        # What is recorded overwrites the tensors of the step before, and gradients need those of every step.
        if self.device.type == "cuda" and not self.gradients:
            self.capture()

    @property
    def dt(self) -> float:
        """Control period [s]."""
        return self.ctx.dt

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do."""
        return self.backend.capabilities

    # ------------------------------------------------------------------ stepping

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Start an episode everywhere. With `stagger` their ages are spread over the episode's length, so
        that a training batch holds every part of an episode from the first step on.

        Returns:
            The first observations, (N, D) a group.
        """
        self.detach()
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.backend.reset(everywhere, self._reset(everywhere))
        if stagger:
            ages = self.random.uniform(0.0, 1.0, self.num_envs) * self.max_episode_steps
            self.episode_step = ages.long()
        fresh = self._observe()
        policy = fresh["policy"] = fresh["policy"] + self._draw_noise()
        self._delayed = DelayLine(self.task.observation_delay, self.num_envs, policy.shape[1], self.device)
        self._delayed.draw(everywhere, self.random, policy)
        self.terminal_observations = {name: obs.clone() for name, obs in fresh.items()}
        self.observations = fresh
        return fresh

    def step(self, action: Tensor, targets: Tensor | None = None) -> StepResult:
        """One control period for every environment; `action` (N, A).

        `targets` (N, A) are sent to the actuators in place of what the task makes of the action: a robot's own
        runtime has computed them, and the action is still what rewards and observations see. Where the backend has
        gradients, they flow to both.

        Raises:
            NonFiniteTerm: the action, a term or a start pose is not finite; it is named. On a GPU `drain` raises it.
        """
        assert self._delayed is not None
        if self.gradients:
            self._incoming = action.to(self._incoming).clone()
        else:
            self._incoming.copy_(action.detach())
        self._given = None if targets is None else targets.to(self.device)
        (self._act if targets is None else self._send)()
        self.backend.step(self._targets, self.substeps)
        self._judge()
        # Only where looking is free: a GPU resets nobody rather than ask whether there is somebody.
        if not self.read_at_once or self._done.any():
            self._renew()
            self.backend.reset(self._done, self._pose)
            self._begin()
        return StepResult(self.observations, *self._outcome, metrics=self._metrics)

    def _send(self) -> None:
        """What reaches the actuators, from the action that has come in; and pushes."""
        ctx = self.ctx
        # A copy: whoever acts may reuse its buffer for the next action.
        ctx.previous_action, ctx.action = ctx.action, self._incoming.clone()
        joints = [actuator.joint for actuator in self.robot.actuators]
        self._watch.look(ctx.action, joints, "action of")
        arriving = self._actions.push(ctx.action)
        self._targets = self.task.targets(arriving, ctx) if self._given is None else self._given
        self._watch.look(self._targets, joints, "target of")
        self._push()

    def _assess(self) -> None:
        """What came of it: memory, rewards, ends of episodes, and the observations they ended with."""
        task, ctx, delayed, state = self.task, self.ctx, self._delayed, self.backend.state
        assert delayed is not None
        ctx.episode_time = ctx.episode_time + ctx.dt
        ctx.command_time = ctx.command_time + ctx.dt
        ctx.push_time = ctx.push_time + ctx.dt
        self.episode_step = self.episode_step + 1
        ctx.memory = task.advance(state, ctx)

        diverged = state.diverged.clone()  # the reset below clears it in the State
        terminated = diverged.clone()
        for term in self._terminations.values():
            terminated |= term(state, ctx)
        truncated = (self.episode_step >= self.max_episode_steps) & ~terminated
        done = self._done = terminated | truncated
        raw = self._rewards(diverged)
        # Not a matrix product: its rounding depends on where in the batch a row stands, and copies of one
        # environment must stay equal to the bit.
        reward = (raw * self._weights).sum(dim=1) * ctx.dt
        metrics = self._metrics = self._measured(diverged)
        self.episode_return = self.episode_return + reward.detach()
        self._totals.add(
            raw, list(metrics.values()), done, terminated, diverged, self.episode_return, ctx.episode_time
        )

        self._redraw_commands()
        self._drawn_noise = self._draw_noise()
        for name, obs in self._observe(diverged).items():
            self.terminal_observations[name] = obs
        seen = self.terminal_observations["policy"] + self._drawn_noise
        self.terminal_observations["policy"] = delayed.push(seen)
        self.observations = self.terminal_observations.copy()
        self._outcome = reward, terminated, truncated, self.terminal_observations, diverged

    def _restart(self) -> None:
        """Draw new episodes where the old ones ended: parameters, commands, memory and the pose to start from."""
        self._pose = self._reset(self._done)

    def _look_again(self) -> None:
        """Observe the new episodes' first state."""
        delayed, done = self._delayed, self._done
        assert delayed is not None
        fresh = self._observe()
        fresh["policy"] = fresh["policy"] + self._drawn_noise
        delayed.draw(done, self.random, fresh["policy"])
        for name, obs in fresh.items():
            self.observations[name] = torch.where(done[:, None], obs, self.observations[name])

    def capture(self, make: Callable[[torch.device], Graph | None] | None = None) -> None:
        """From now on replay each part of a step as one graph (`make`: as for `Graphed`), as a GPU needs."""
        slots = Slots(self._places)
        made = [Captured(part, slots, self.device, [self.random.generator], make) for part in self._parts]
        self._act, self._judge, self._renew, self._begin = made

    def _places(self) -> list[Place]:
        """Every attribute that a step goes on from."""
        assert self._delayed is not None
        places: list[Place] = [(self, name) for name in (*self._MUTABLE, "_incoming", "_targets", "_done")]
        if isinstance(self._drawn_noise, Tensor):
            places += [(self, "_drawn_noise")]
        places += [(self.ctx, name) for name in self._CONTEXT]
        for line in (self._actions, self._delayed):
            places += [(line, "lag"), *([] if line.past is None else [(line, "past")])]
        return [*places, (self._totals, "sums"), (self._watch, "seen")]

    def _rewards(self, diverged: Tensor) -> Tensor:
        """Raw reward terms (N, K); rows of diverged environments count nothing."""
        state = self.backend.state
        columns = [term(state, self.ctx) for term in self._reward_terms.values()]
        raw = (
            torch.stack(columns, dim=1).float()
            if columns
            else torch.zeros(self.num_envs, 0, device=self.device)
        )
        raw = torch.where(diverged[:, None], 0.0, raw)
        self._watch.look(raw, list(self._reward_terms), "reward")
        return raw

    @torch.no_grad()
    def _measured(self, diverged: Tensor) -> dict[str, Ratio]:
        """The task's metrics; rows of diverged environments count in none."""
        out = {}
        for name, value in self.task.metrics(self.backend.state, self.ctx).items():
            total, weight = value if isinstance(value, Ratio) else (value, torch.ones_like(value))
            out[name] = Ratio(torch.where(diverged, 0.0, total), torch.where(diverged, 0.0, weight))
        if out:
            parts = [part for m in out.values() for part in (m.total, m.weight)]
            names = [name for name in out for _ in range(2)]
            self._watch.look(torch.stack([p.float() for p in parts], dim=1), names, "metric")
        return out

    def _push(self) -> None:
        """Shove the robots whose time has come."""
        pushes = self.task.pushes
        if pushes is None or not pushes.speed[1]:
            return
        jump, seconds = pushes.sample(self.num_envs, self.random)
        self.push_left = self.push_left - self.ctx.dt
        due = self.push_left <= 0
        self.push_left = torch.where(due, seconds, self.push_left)
        self.ctx.push_time = torch.where(due, 0.0, self.ctx.push_time)
        self.backend.push(due, jump)

    def _observe(self, diverged: Tensor | None = None) -> dict[str, Tensor]:
        """Every group (N, D), without noise or delay."""
        state = self.backend.state
        groups = {}
        for name, columns in self.columns.items():
            obs = torch.cat([item.compute(state, self.ctx) for item, _ in columns], dim=1)
            if diverged is not None:
                obs = torch.where(diverged[:, None], 0.0, obs)
            self._watch.look(
                obs, [i.name for i, width in columns for _ in range(width)], f"{name} observation"
            )
            groups[name] = obs
        return groups

    def _reset(self, mask: Tensor) -> Pose:
        """Draw new episodes where `mask` is set: everything for all rows, kept for those.

        Returns:
            Where the backend is to put the robots.
        """
        task, ctx, n = self.task, self.ctx, self.num_envs
        if task.randomize:
            params = {k: self.random.uniform(*bounds, n) for k, bounds in sorted(task.randomize.items())}
            self.backend.set_params(mask, params)
        ctx.action = torch.where(mask[:, None], 0.0, ctx.action)
        ctx.previous_action = torch.where(mask[:, None], 0.0, ctx.previous_action)
        ctx.episode_time = torch.where(mask, 0.0, ctx.episode_time)
        ctx.push_time = torch.where(mask, torch.inf, ctx.push_time)
        self.episode_step = torch.where(mask, 0, self.episode_step)
        self.episode_return = torch.where(mask, 0.0, self.episode_return)
        self.command_left = torch.where(mask, 0.0, self.command_left)
        self._redraw_commands(elapsed=0.0)
        if task.pushes is not None:
            self.push_left = torch.where(mask, task.pushes.sample(n, self.random)[1], self.push_left)
        for name, start in task.memory(n, self.random).items():
            where = mask.view(-1, *[1] * (start.dim() - 1))
            ctx.memory[name] = torch.where(where, start, ctx.memory[name])
        self._actions.draw(mask, self.random, torch.zeros_like(ctx.action))
        with torch.no_grad():  # where an episode starts owes nothing to what was done in the one before
            pose = task.pose(n, ctx, self.random)
        widths = {"base_quat": 4, "joint_pos": len(self.robot.joints), "joint_vel": len(self.robot.joints)}
        for name, value in vars(pose).items():
            require_shape(f"pose().{name}", value, (n, widths.get(name, 3)), "a row an environment")
            self._watch.look(value, [name] * value.shape[-1], "start pose")
        return pose

    def _redraw_commands(self, elapsed: float | None = None) -> None:
        if self.task.commands is None:
            return
        self.command_left = self.command_left - (self.ctx.dt if elapsed is None else elapsed)
        expired = self.command_left <= 0
        command, seconds = self.task.commands.sample(self.num_envs, self.random)
        self.ctx.command = torch.where(expired[:, None], command, self.ctx.command)
        self.ctx.command_time = torch.where(expired, 0.0, self.ctx.command_time)
        self.command_left = torch.where(expired, seconds, self.command_left)

    def _noise_row(self) -> Tensor | None:
        """Half-width of the noise on every column of the policy group."""
        if not self.task.noise:
            return None
        widths = [
            self.task.noise.get(i.name, 0.0) for i, width in self.columns["policy"] for _ in range(width)
        ]
        return torch.tensor(widths, device=self.device)

    def _draw_noise(self) -> Tensor | float:
        if self._noise is None:
            return 0.0
        return self._noise * self.random.uniform(-1.0, 1.0, self.num_envs, len(self._noise))

    # ------------------------------------------------------------------ the rest

    def check(self) -> None:
        """Read back what steps have seen and, on a GPU, could not tell at once. To be called now and then.

        Raises:
            NonFiniteTerm: a term was not finite since the last call.
            RunFailed: the simulator has dropped part of the physics.
        """
        self.backend.check()
        self._watch.read()

    def drain(self) -> dict[str, float]:
        """Means since the last call, by name; see `Totals.drain`. Everything that is read back is read here.

        Raises:
            NonFiniteTerm, RunFailed: see `check`.
        """
        self.check()
        return self._totals.drain()

    def symmetry(self) -> Symmetry | None:
        """The task's left-right symmetry in the columns of this Env's groups, where it has one."""
        if not self.task.symmetric:
            return None
        return sagittal(self.robot, self.columns, self.device)

    _MUTABLE = (
        "episode_step",
        "episode_return",
        "command_left",
        "push_left",
        "observations",
        "terminal_observations",
    )
    _CONTEXT = ("action", "previous_action", "command", "episode_time", "command_time", "push_time", "memory")

    @torch.no_grad()
    def snapshot(self) -> dict[str, Any]:
        """Everything the Env needs to go on exactly here: backend rows, context, delays, random state."""
        assert self._delayed is not None
        return {
            "backend": self.backend.snapshot(),
            "env": {name: copied(getattr(self, name)) for name in self._MUTABLE},
            "context": {name: copied(getattr(self.ctx, name)) for name in self._CONTEXT},
            "delays": {"action": self._actions.snapshot(), "observation": self._delayed.snapshot()},
            "random": self.random.generator.get_state(),
            "totals": self._totals.sums.clone(),
        }

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Go on from a snapshot; environment i becomes its row `source_rows[i]` (row i without)."""
        assert self._delayed is not None
        # A checkpoint was read into the CPU's memory; a generator's state belongs there wherever it is from.
        snapshot = {k: v if k == "random" else moved(v, self.device) for k, v in snapshot.items()}
        rows = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        self.backend.restore(snapshot["backend"], rows)
        for name in self._MUTABLE:
            setattr(self, name, copied(snapshot["env"][name], rows))
        for name in self._CONTEXT:
            setattr(self.ctx, name, copied(snapshot["context"][name], rows))
        self._actions.restore(snapshot["delays"]["action"], rows)
        self._delayed.restore(snapshot["delays"]["observation"], rows)
        self.random.generator.set_state(snapshot["random"])
        self._totals.sums = snapshot["totals"].clone()

    def detach(self) -> None:
        """Cut all that the next step goes on from off the graph of the steps before, which can then be freed.

        Gradients of what comes later end here; the numbers stay. Without gradients there is nothing to cut.
        """
        if not self.gradients or self._delayed is None:
            return
        cast(GradientBackend, self.backend).detach()
        for owner, name in [*self._places(), (self, "_given"), (self, "_outcome")]:
            setattr(owner, name, detached(getattr(owner, name)))

    def close(self) -> None:
        """Free the simulator."""
        self.backend.close()
