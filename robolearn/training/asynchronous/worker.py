"""What the processes of an asynchronous training do, whatever engine has started them."""

from __future__ import annotations

import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn import config
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.recorder import Recorder
from robolearn.core.shards import ONE, Shards
from robolearn.envs.state import Tensor
from robolearn.learners.ppo.collector import Collector
from robolearn.training import replay
from robolearn.training.asynchronous.engine import Setup
from robolearn.training.asynchronous.states import STATS
from robolearn.training.build import build_env, build_external

ACTOR = "ROBOLEARN_ACTOR"
"""Environment variable with the number of the actor, for tasks that connect to something of their own."""


def part(index: int, count: int) -> Shards:
    """The environments of an actor as one of `count` equal parts, which draws random numbers of its own."""
    if count == 1:
        return ONE
    shards = Shards(1 << (count - 1).bit_length(), range(index, index + 1))
    shards.total = count  # sums over parts need a power of two; an actor adds up nothing but its own
    return shards


def run_of(setup: Setup) -> Config:
    """The run's configuration in a process with this setup."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(setup.config, encoding="utf-8")
        run = config.load(path, setup.words)
    if setup.device is not None:
        run = replace(run, device=setup.device)
    if any(f.name == "threads" for f in fields(run.backend)) and not run.backend.threads:
        run = replace(run, backend=replace(run.backend, threads=setup.cores))
    return run


class ActorWorker:
    """Environments and an exploring policy."""

    def __init__(self, setup: Setup, state: Any = None) -> None:
        """Build them; with `state`, what a batch carries of an actor, they go on from there."""
        os.environ[ACTOR] = str(setup.index)
        self.setup, self.run = setup, run_of(setup)
        torch.set_num_threads(setup.cores)
        shards, run = part(setup.index, setup.count), self.run
        if run.backend_name == config.EXTERNAL:
            self.env: Any = build_external(run, setup.envs, setup.index)
            shards = ONE
        else:
            rank = setup.index if shards.single else 0  # parts draw other numbers anyway
            self.env = build_env(run, setup.envs, rank, training=True, shards=shards)
        # Not the learner's own numbers: it draws permutations from them at the same time.
        seed = int(np.random.SeedSequence((run.seed, 0, 2, setup.index)).generate_state(1)[0])
        self.collector = Collector(self.env, run.learner, setup.steps, seed, setup.precision, shards)
        self.recorder = Recorder.for_training(self.env)
        if state is not None:
            if saved := state["env"]:
                own = self.env.snapshot()
                fits = self.env.random.fits(saved["random"])
                self.env.restore(
                    {
                        "backend": saved["backend"],
                        "state": {STATS: own["state"][STATS], **saved["state"]},
                        "random": saved["random"] if fits else own["random"],
                    }
                )
            self.collector.restore(state["state"])

    def collect(self, weights: dict[str, Any]) -> dict[str, Any]:
        """A batch as a tree of tensors on the CPU, with what the actor goes on from afterwards.

        Args:
            weights: `actor`, and `random` where the exploration noise is to continue there.

        Raises:
            NonFiniteTerm: a term was not finite; a replay of the second before is in the run folder.
        """
        self.collector.load(weights["actor"])
        if "random" in weights:
            random = weights["random"]
            self.collector.random.set_state(random if random.dim() == 1 else random[self.setup.index])
        try:
            batch = self.collector.collect()
            sums = self._sums()
        except NonFiniteTerm as error:
            raise self._explained(error) from error
        if self.recorder is not None and (caught := self.recorder.take()):
            self._replay("diverged", caught[0], caught[1], "the simulation diverged")
        optional = {"valid": batch.valid, "exogenous": batch.exogenous}
        return _on_cpu(
            {
                "observations": batch.observations,
                "action": batch.action,
                "mean": batch.mean,
                "reward": batch.reward,
                "done": batch.done,
                "truncated": batch.truncated,
                "terminal": batch.terminal,
                **{name: x for name, x in optional.items() if x is not None},
                "std": self.collector.std,
                "sums": sums,
                "env": self.env.snapshot(),
                "state": self.collector.state(),
            }
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase of the last batch [s]."""
        return self.collector.timers.read()

    def _sums(self) -> Any:
        """Sums over the steps of the batch; means by name of third-party environments."""
        return self.env.drained() if isinstance(self.env, Env) else self.env.drain()

    def _explained(self, error: NonFiniteTerm) -> NonFiniteTerm:
        if self.recorder is None or error.env is None:
            return error
        file = self._replay("non_finite", self.recorder.dump(error.env), error.env, str(error))
        return NonFiniteTerm(f"{error}; look at the second before with robolearn replay {file}")

    def _replay(self, name: str, content: Any, env: Any, why: str) -> Path:
        file = Path(self.setup.folder) / f"{name}_actor{self.setup.index}{replay.SUFFIX}"
        replay.write(file, content, env, self.run, why)
        return file


class EvaluatorWorker:
    """Environments with full commands and pushes, and the policy without exploration."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.run = setup, run_of(setup)
        torch.set_num_threads(setup.cores)
        external = self.run.backend_name == config.EXTERNAL
        build: Any = build_external if external else build_env
        self.env = build(self.run, setup.envs, rank=1)
        self.collector = Collector(self.env, self.run.learner, 1, 0, setup.precision)

    @torch.no_grad()
    def evaluate(self, weights: dict[str, Any]) -> dict[str, float]:
        """Run an episode in each environment: means of the first episodes by name."""
        actor, env, groups = self.collector.actor, self.env, self.run.learner.actor_groups
        actor.load_state_dict(weights.get("averaged", weights["actor"]))
        env.reset()
        env.drain()
        live = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        total, length = torch.zeros(env.num_envs, device=env.device), torch.zeros(1, device=env.device)
        fell = torch.zeros_like(live)
        for _ in range(env.max_episode_steps + 1):
            seen = torch.cat([env.observations[name] for name in groups], dim=-1)
            result = env.step(actor.mlp(actor.obs_normalizer(seen)))
            total += torch.where(live, result.reward, 0.0)
            length += live.sum()
            fell |= live & result.terminated
            live &= ~result.done
            if not live.any():
                break
        means = {"return": total.mean(), "length": length.sum() * env.dt / env.num_envs}
        return {name: float(x) for name, x in (means | {"fall_rate": fell.float().mean()}).items()}


def _on_cpu(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, dict):
        return {key: _on_cpu(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_on_cpu(value) for value in tree)
    return tree
