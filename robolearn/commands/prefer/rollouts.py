"""Segments of what a run's policies do, from its early checkpoints to its last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from robolearn.core.columns import units_of
from robolearn.core.env import Env
from robolearn.envs.state import State, Tensor
from robolearn.learners import saved
from robolearn.learners.networks import deviation
from robolearn.learners.policy import Policy, PolicyRunner
from robolearn.learners.preference.recent import windows
from robolearn.learners.preference.segments import Segment, columns_of
from robolearn.training.build import device_of, make_env
from robolearn.training.runs import Run

ENVS = 16
"""Robots that are simulated at once."""
STRETCH = 4
"""Length of a rollout in segments: they come from different parts of it."""
POSES = ("base_pos", "base_quat", "joint_pos")
"""What a film needs of an entity."""


def checkpoints(run: Run, count: int) -> list[Path]:
    """At most `count` checkpoints of a run from its first to its newest, evenly spaced; the named one alone where the
    run is a checkpoint or a pretrained policy."""
    folder, path = saved.find_run(run.name)
    found = sorted((folder / "checkpoints").glob("iteration_*.pt")) if path.name == saved.LATEST else []
    if not found:
        return [path]
    picked = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[i] for i in dict.fromkeys(picked.tolist())]


class Rollouts:
    """Simulates a run's task."""

    def __init__(self, run: Run, steps: int, noise: float, count: int) -> None:
        """
        Args:
            run: whose policies act, in its task.
            steps: of a segment.
            noise: of the actions, as a factor on each policy's standard deviation.
            count: checkpoints that act, at most.
        """
        self.run, self.steps, self.noise, self.count = run, steps, noise, count
        self.env: Env = make_env(run.config, num_envs=ENVS)

    def segments(self, count: int, named: str, seed: int) -> list[Segment]:
        """New segments, about equally many of each checkpoint, about `count` in all; `named` begins their names, `seed`
        is that of actions and choice."""
        found = checkpoints(self.run, self.count)
        random = np.random.default_rng(seed)
        noise = torch.Generator(self.env.device).manual_seed(seed)
        out: list[Segment] = []
        for i, path in enumerate(found):
            content = saved.load(path)
            policy = Policy.from_checkpoint(content, str(path)).to(device_of(self.run.config))
            share = count * (i + 1) // len(found) - count * i // len(found)
            source = f"{path}, iteration {content.get('iter', 0)}"
            name = f"{named}-{int(content.get('iter', 0)):06d}"
            out += self._of(policy, share, name, source, random, noise)
        return out

    @torch.no_grad()
    def _of(
        self,
        policy: Policy,
        count: int,
        named: str,
        source: str,
        random: np.random.Generator,
        noise: torch.Generator,
    ) -> list[Segment]:
        env, runner = self.env, PolicyRunner(policy)
        has_std = policy.spec.head != "deterministic"
        std = deviation(policy.actor) if has_std else torch.tensor(0.1, device=env.device)
        env.reset()
        rows: dict[str, list[Tensor]] = {}

        def keep(name: str, value: Tensor) -> None:
            rows.setdefault(name, []).append(value.detach().float().cpu().clone())

        for _ in range(STRETCH * self.steps):
            for name, value in env.observations.items():
                keep(f"before.{name}", value)
            for name, value in _poses(env.backend.state).items():
                keep(f"pose.{name}", value)
            mean = runner(env.observations)
            drawn = torch.randn(mean.shape, generator=noise, device=env.device)
            action = mean + self.noise * std * drawn
            result = env.step(action)
            took = ~result.diverged
            if result.valid is not None:  # an agent that had ended before its world did nothing that counts
                took = took & result.valid
            runner.reset(result.done | ~took)
            keep("action", action)
            keep("reward", result.reward)
            keep("done", result.done)
            keep("took", took)
            for name, value in result.terminal_observations.items():
                keep(f"after.{name}", value)
            for name, ratio in result.metrics.items():
                keep(f"metric.{name}", ratio.each())
        env.check()
        for name, value in _poses(env.backend.state).items():
            keep(f"pose.{name}", value)
        data = {name: torch.stack(values).numpy() for name, values in rows.items()}
        return self._cut(data, count, named, source, random)

    def _cut(
        self, data: dict[str, np.ndarray], count: int, named: str, source: str, random: np.random.Generator
    ) -> list[Segment]:
        done, took = data["done"] > 0, data["took"] > 0
        places = windows(done, took, self.steps)
        out = []
        for i, place in enumerate(random.permutation(len(places))[:count]):
            start, env = places[int(place)]
            span, last = slice(start, start + self.steps), start + self.steps - 1

            def those(prefix: str, span: slice = span, env: int = env) -> dict[str, np.ndarray]:
                return {k.removeprefix(prefix): v[span, env] for k, v in data.items() if k.startswith(prefix)}

            after = those("after.", slice(last, last + 1))
            # The pose after the end of an episode is the next one's first: the film ends with the one before.
            end = last if done[last, env] else last + 1
            final = those("pose.", slice(end, end + 1))
            out.append(
                Segment(
                    f"{named}-{i:03d}",
                    {k: np.concatenate([v, after[k]]) for k, v in those("before.").items()},
                    data["action"][span, env],
                    data["reward"][span, env],
                    self.env.dt,
                    source,
                    columns_of(self.env),
                    those("metric."),
                    {k: np.concatenate([v, final[k]]) for k, v in those("pose.").items()},
                    *units_of(self.env),
                )
            )
        return out

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()


def _poses(state: State) -> dict[str, Tensor]:
    return {
        f"{name}.{field}": getattr(entity, field)
        if field != "base_pos" or state.origin is None
        else entity.base_pos + state.origin  # where it is on a terrain, which the film shows
        for name, entity in state.entities.items()
        for field in POSES
        if getattr(entity, field).shape[1]
    }
