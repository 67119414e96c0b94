"""RemoteEnvs: the environments of all actors, as the learner and the training loop of one process see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.config import placement as placements
from robolearn.config import registry
from robolearn.config.placement import Placement
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.shards import ONE, Shards
from robolearn.core.step_result import StepResult
from robolearn.core.timers import Timers
from robolearn.envs.backend import Capabilities
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, quote
from robolearn.learners.rollout import Batch
from robolearn.tasks.mdp.symmetry import Symmetry
from robolearn.training.asynchronous.engine import Engine, Setup
from robolearn.training.asynchronous.ledger import Ledger
from robolearn.training.asynchronous.local import LocalEngine
from robolearn.training.asynchronous.pool import Delivered, Pool
from robolearn.training.asynchronous.states import States, merged_means
from robolearn.training.build import build_env, build_external, device_of


class RemoteEnvs:
    """A LearnerEnv of `num_envs` environments, those of an update, which actors simulate in batches.

    One environment is built here, for what a learner and a run folder need to know of it.
    """

    gradients = False

    def __init__(self, run: Config) -> None:
        """Environments of a run with mode=async; actors start with `launch`.

        Raises:
            ConfigError: the placement is invalid, names a device or a Ray cluster that is not there, or the learner
                cannot learn from other processes.
        """
        placement = placements.read(run.placement, run.num_envs)
        _require_fit(run)
        _require_devices(placement, run)
        learner = placement.learner
        self.run, self.placement = run, placement
        self.torch_threads = learner.cores or run.torch_threads
        """Threads of the learner; 0: as many as the process may use."""
        self.device = device_of(replace(run, device=learner.device or run.device))
        here = replace(run, device="cpu" if "cuda" not in _simulators(run) else str(self.device))
        self.described: LearnerEnv = (
            build_external(here, 1)
            if run.backend_name == config.EXTERNAL
            else build_env(here, 1, training=True)
        )
        """An environment like those of the actors, on the learner's device where the simulator runs on it."""
        one = self.described
        if one.num_envs > 1:
            one.close()
            raise ConfigError(
                f"mode=async: task={run.task_name} has {one.num_envs} agents in a world, which actors do not divide; "
                "use mode=sync"
            )
        self.num_envs, self.num_actions = run.num_envs, one.num_actions
        self.resets_take_a_step, self.dt = one.resets_take_a_step, one.dt
        self.max_episode_steps = one.max_episode_steps
        shape = self.num_envs
        self.observations = {
            name: torch.zeros(shape, obs.shape[1], device=self.device)
            for name, obs in one.observations.items()
        }
        """(N, D) zeros a group: only their shapes have a meaning."""
        count, batches = placement.actor.count, placement.batches
        in_parts = placement.staleness == 0 and count == batches and not count & (count - 1)
        self.exact = in_parts and run.backend_name != config.EXTERNAL
        """Whether training repeats that of one process bit for bit."""
        self.shards = Shards(count) if self.exact and count > 1 else ONE
        """The parts in which the learner computes."""
        self.random = _AnyRandom()
        self._states = States(count, batches, placement.actor.envs)
        self._pool: Pool | None = None
        # Now: where there is no cluster, nothing has been written yet.
        self._ray = self._connected() if placement.on_ray else None
        self._update: list[tuple[Delivered, Any]] = []
        self._version, self._waited = 0, 0.0
        self._since, self._busy = time.perf_counter(), 0.0

    def launch(
        self,
        folder: Path,
        start: int,
        learner: Any,
        note: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """Start the actors.

        Args:
            folder: the run folder.
            start: iterations done.
            learner: whose batch actors fill.
            note: takes lines for the user.
            stopping: whether the run is to stop; `gather` then raises `Stopped`.
        """
        role, run = self.placement.actor, self.run
        here = replace(run, resume=None, output=None, mode="sync", placement=None)
        setup = Setup(
            role="actor",
            index=0,
            count=self.placement.batches,
            envs=role.envs,
            steps=len(learner.batch.reward),
            precision=learner.precision,
            cores=role.cores,
            config=config.show(here),
            words=tuple(config.named_files(run)),
            folder=str(folder.absolute()),
            resources=role.resources,
            labels=role.labels,
            device=role.device,
        )
        self._stopping, self._version, self._note = stopping, start, note
        self._written = self._file_time()
        self._ledger = Ledger(folder, start)
        starts = self._ledger.starts(self._states.starts(learner.sampler.noise))
        engine = self._ray or LocalEngine(keep=self.placement.staleness + 2)
        pool = Pool(engine, self.placement, setup, starts, note)
        self._pool = pool.__enter__()

    def _connected(self) -> Engine:
        """Ray's engine."""
        from robolearn.training.asynchronous.on_ray import RayEngine

        try:
            return RayEngine(self.placement)
        except ConfigError as error:
            raise ConfigError(f"{quote(str(self.run.placement), 120)}: {error}") from error

    @property
    def actors(self) -> str:
        """What simulates, for the user: number, engine and staleness."""
        p = self.placement
        return (
            f"{p.actor.count} {'Ray' if p.on_ray else 'local'} actor{'s' * (p.actor.count != 1)}, "
            f"{'1 evaluator, ' * (p.evaluator is not None)}staleness {p.staleness}"
        )

    # ------------------------------------------------------------------ batches

    def gather(self, batch: Batch, weights: Mapping[str, Any], timers: Timers) -> dict[str, Tensor]:
        """See `BatchSource`.

        Raises:
            Stopped: the run is to stop.
            ConfigError, MissingError, RunFailed, OtherRankFailed: an actor has failed.
        """
        assert self._pool is not None
        given = {name: x for name, x in weights.items() if name != "random" or self.exact}
        self._update, self._waited = [], 0.0
        with timers("synchronize"):
            self._pool.publish(self._version, given)
            if (role := self.placement.evaluator) is not None and self._version % role.every == 0:
                self._pool.evaluate()
            taken = []
            for _ in range(self.placement.batches):
                began = time.perf_counter()
                taken.append(self._pool.take(self._stopping))
                self._waited += time.perf_counter() - began
            taken.sort(key=lambda each: (each.key.actor, each.key.sequence))
            self._update = [(each, self._pool.engine.load(each.handle)) for each in taken]
            self._fill(batch)
        if not self.exact:
            return {}
        states = [content["state"] for _, content in self._update]
        random = [state["random"] for state in states]
        out = {"random": random[0] if len(random) == 1 else torch.stack(random)}
        if "noise" in states[0]:
            out["noise"] = torch.cat([state["noise"] for state in states]).to(self.device)
        return out

    def _fill(self, batch: Batch) -> None:
        """Copy the update's batches side by side into the learner's."""
        size, n = self.placement.actor.envs, self.num_envs
        batch.lag = torch.zeros(n, dtype=torch.long)
        if batch.std is None:
            batch.std = torch.zeros(n, self.num_actions, device=self.device)
        for i, (delivered, content) in enumerate(self._update):
            rows = slice(i * size, (i + 1) * size)
            for kept, parts in ((batch.observations, "observations"), (batch.terminal, "terminal")):
                for name, tensor in kept.items():
                    tensor[:, rows].copy_(content[parts][name])
            for name in ("action", "mean", "reward", "done", "truncated"):
                getattr(batch, name)[:, rows].copy_(content[name])
            for name, usual in (("valid", True), ("exogenous", False)):
                if name in content:
                    if getattr(batch, name) is None:
                        setattr(batch, name, torch.full_like(batch.done, usual))
                    getattr(batch, name)[:, rows].copy_(content[name])
            batch.std[rows] = content["std"].to(self.device)
            batch.lag[rows] = self._version - delivered.key.version

    def drain(self) -> dict[str, float]:
        """Means of the batches that the learner has just learned from; they are entered in the log, and their keys are
        used up. See `Env.drain`."""
        pool = self._pool
        assert pool is not None
        lags = [self._version - delivered.key.version for delivered, _ in self._update]
        self._ledger.enter(
            self._version + 1, [(each.key, lag) for (each, _), lag in zip(self._update, lags, strict=True)]
        )
        sums = [content["sums"] for _, content in self._update]
        if isinstance(self.described, Env):
            parts = [part.flatten() for part in sums]
            whole = parts[0] if len(parts) == 1 else self.shards.sum(parts) if self.exact else sum(parts)
            means = self.described.means_of(whole)
        else:
            means = merged_means(sums)
        for delivered, content in self._update:
            self._states.keep(delivered.key.actor, delivered.key.sequence, content)
            pool.used(delivered)
        simulated = sum(each.simulate for each, _ in self._update) / len(self._update)
        self._update = []
        self._version += 1
        now, busy = time.perf_counter(), pool.busy
        seconds = max(now - self._since, 1e-9)
        numbers = {
            "lag_mean": sum(lags) / len(lags),
            "lag_max": max(lags),
            "learner_busy": max(0.0, 1 - self._waited / seconds),
            "actors_busy": (busy - self._busy) / (seconds * max(1, pool.actors)),
            "actors": pool.actors,
            "replaced": pool.restarts,
            "simulate": simulated,
        }
        self._since, self._busy = now, busy
        self._follow_file()
        while pool.evaluations:
            means |= {f"eval/{name}": value for name, value in pool.evaluations.popleft().items()}
        return means | {f"async/{name}": float(value) for name, value in numbers.items()}

    def _file_time(self) -> float:
        """When the placement file was written; 0 without one."""
        try:
            return Path(self.run.placement or "").stat().st_mtime if self.run.placement else 0.0
        except OSError:
            return 0.0

    def _follow_file(self) -> None:
        """Start or end actors where the placement file asks for another number now."""
        if (written := self._file_time()) in (0.0, self._written):
            return
        assert self._pool is not None
        assert self.run.placement is not None
        self._written, p = written, self.placement
        try:
            count = placements.actors_in(self.run.placement) or p.actor.count
        except ConfigError as error:
            self._note(f"{error}; the number of actors stays")
            return
        if count == p.actor.count:
            return
        if self.exact or count > p.batches + p.ahead:
            why = "staleness: 0" if self.exact else f"batches: {p.batches} and staleness: {p.staleness}"
            self._note(f"{self.run.placement}: actor.count={count} does not go with {why}; it stays")
            return
        self._note(f"{self.run.placement}: {count} actor{'s' * (count != 1)} instead of {p.actor.count}")
        self._pool.resize(count)
        self.placement = replace(p, actor=replace(p.actor, count=count))

    # ------------------------------------------------------------------ the rest of a LearnerEnv

    @property
    def capabilities(self) -> Capabilities:
        """What the simulator can do; a trajectory is repeated only where actors never collect ahead."""
        own = self.described.capabilities
        return replace(own, exact_restore=own.exact_restore and self.exact)

    @property
    def episode_step(self) -> Tensor:
        """Not known here."""
        raise NotImplementedError

    def reset(self, stagger: bool = False) -> dict[str, Tensor]:
        """Does nothing: actors start their episodes themselves."""
        return self.observations

    def step(self, action: Tensor, joint_targets: Tensor | None = None) -> StepResult:
        """Not possible here."""
        raise NotImplementedError

    def check(self) -> None:
        """Does nothing: actors check their own."""

    def symmetry(self) -> Symmetry | None:
        """See `Env.symmetry`."""
        made = self.described.symmetry()
        return None if made is None else made.to(self.device)

    def detach(self) -> None:
        """Does nothing."""

    def snapshot(self) -> dict[str, Any]:
        """The environments of all actors after the batches that were used; see `Env.snapshot`."""
        return self._states.snapshot()

    def restore(self, snapshot: dict[str, Any], source_rows: Tensor | None = None) -> None:
        """Let actors continue from a snapshot, also one of environments in one process, when they start."""
        self._states.restore(snapshot)

    def close(self) -> None:
        """End the actors."""
        if self._pool is not None:
            self._pool.__exit__()
            self._pool = None
            self._ledger.close()
        elif self._ray is not None:
            self._ray.close()
        self.described.close()


class _AnyRandom:
    """Stands for the generators of the actors: each decides by itself whether a saved state is one of its own."""

    def fits(self, state: Tensor) -> bool:
        return True


def _simulators(run: Config) -> tuple[str, ...]:
    """The devices on which the simulator of a run can run."""
    external = run.backend_name == config.EXTERNAL
    found: tuple[str, ...] = run.task.devices if external else registry.devices(run.backend_name)
    return found


def _require_devices(placement: Placement, run: Config) -> None:
    """Raise ConfigError for a device of a process that is not there, or on which the simulator does not run."""
    simulators = _simulators(run)
    roles = {"actor": placement.actor, "evaluator": placement.evaluator, "learner": placement.learner}
    for name, role in roles.items():
        if role is None or (device := role.device or run.device) in ("auto", "cpu"):
            continue
        simulates, why = name != "learner", None
        if simulates and "cuda" not in simulators:
            why = f"backend={run.backend_name} runs on the CPU"
        elif simulates and placement.on_ray:
            continue  # its node may have GPUs that this one has not
        elif not torch.cuda.is_available():
            why = "PyTorch finds no CUDA GPU here"
        elif (torch.device(device).index or 0) >= torch.cuda.device_count():
            why = f"the number of CUDA GPUs here is {torch.cuda.device_count()}, and the first one is cuda:0"
        if why is None:
            continue
        if role.device is None:
            raise ConfigError(
                f"device={device}: {why}; use device=cpu, or {name}: {{device: cpu}} in the placement"
            )
        raise ConfigError(
            f"{quote(str(run.placement), 120)}: {name}.device={device}: {why}; write {name}: {{device: cpu}}"
        )


def _require_fit(run: Config) -> None:
    """Raise ConfigError for a learner that does not learn from batches of other processes."""
    learner = registry.load("learners", run.learner_name)
    if not getattr(learner, "learns_from_others", False):
        raise ConfigError(
            f"learner={run.learner_name} cannot learn from batches of other processes; use learner=ppo, or mode=sync"
        )
    if getattr(run.learner, "rnn", "none") != "none":
        raise ConfigError(
            f"learner.rnn={run.learner.rnn} with mode=async: the recurrent state of an actor stays in its process; use "
            "learner.rnn=none, or mode=sync"
        )
    device_of(run)
