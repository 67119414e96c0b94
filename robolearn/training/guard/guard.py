"""The guard of a training: looks at every iteration, keeps checkpoints, and decides where to go back to.

It only watches: until it rolls back, a training computes the same bits as without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.errors import RunFailed
from robolearn.learners.learner import Learner, Report
from robolearn.training import checkpoint
from robolearn.training.guard import evidence
from robolearn.training.guard.detectors import (
    MEANING,
    SPREADS,
    SUCCESS,
    Finding,
    Track,
    look,
    numbers_of,
    smoothed,
)
from robolearn.training.guard.remedies import remedy
from robolearn.training.guard.signals import Signals, deviation

KEY = "guard"
"""Entry of the guard's state in a checkpoint's `infos`."""


class RolledBack(Exception):
    """The training goes on from a healthy checkpoint, with a change."""

    def __init__(self, run: Config, changes: list[str], folder: Path, content: dict[str, Any]) -> None:
        """The changed configuration, the dotted keys of the change that prevent an exact resume, the run folder, and
        the content of the checkpoint."""
        super().__init__()
        self.run, self.changes, self.folder, self.content = run, changes, folder, content


@dataclass
class _Kept:
    """What the guard remembers besides `Track`; plain values."""

    checkpoints: list[int]
    """Iterations of its checkpoints."""
    decisions: list[dict[str, Any]]
    """All decisions of the run."""


class Guard:
    """Watches the training of one run in one process."""

    def __init__(self, run: Config, env: LearnerEnv, folder: Path, state: dict[str, Any] | None) -> None:
        """
        Args:
            run: the configuration.
            env: what is trained in; its steps are watched from now on.
            folder: the run folder.
            state: what `state` returned where the run resumes.
        """
        self.run, self.config, self.env, self.run_folder = run, run.guard, env, folder
        self.folder = folder / evidence.FOLDER
        self.signals = Signals(env) if isinstance(env, Env) else None
        state = state or {}
        self.track = Track(**state.get("track", {}))
        self._kept = _Kept(list(state.get("checkpoints", [])), list(state.get("decisions", [])))
        self.findings: list[Finding] = []
        """Those of the last iteration, the longest lasting first."""

    def begin(self, start: int, saved_in: Path | None, content: Callable[[], dict[str, Any]]) -> None:
        """Get ready to train after iteration `start`: the checkpoints of a run that resumes in another folder are
        copied from the guard's folder of `saved_in`; without any, `content` is the first."""
        evidence.forget_after(self.folder, start)
        kept = []
        for iteration in self._kept.checkpoints:
            there = self._path(iteration)
            other = None if saved_in is None else saved_in / evidence.FOLDER / there.name
            if not there.exists() and other is not None and other.is_file():
                self.folder.mkdir(exist_ok=True)
                shutil.copy2(other, there)
            if there.exists():
                kept.append(iteration)
        self._kept.checkpoints = kept
        if not kept:
            self.keep(start, content())

    @property
    def alarm(self) -> Finding | None:
        """The confirmed finding of the last iteration; None without one."""
        return next((finding for finding in self.findings if finding.confirmed), None)

    def look(self, iteration: int, report: Report, learner: Learner) -> dict[str, float]:
        """Look at an iteration.

        Returns:
            Its numbers, `guard/NAME` each, for the log.
        """
        if self.signals is not None:
            seen, stated = self.signals.read(), self.signals.stated
            seen["reward"] = report.env["reward/total"]
        else:
            seen, stated = _of_batch(report, learner), False
        row = numbers_of(seen, report.losses, report.env)
        self.findings = look(self.track, row, iteration, stated, self.config)
        if self.findings:
            evidence.record_suspicions(self.folder, iteration, self.findings)
        streak = max((finding.streak for finding in self.findings), default=0)
        named = {f"guard/{name}": value for name, value in seen.items() if name != "reward"}
        return {**named, "guard/suspicions": float(len(self.findings)), "guard/streak": float(streak)}

    # ------------------------------------------------------------------ checkpoints

    def _path(self, iteration: int) -> Path:
        return self.folder / f"iteration_{iteration:06d}.pt"

    def due(self, iteration: int) -> bool:
        """Whether it keeps a checkpoint of this iteration."""
        return iteration % self.config.interval == 0

    def keep(self, iteration: int, content: dict[str, Any]) -> None:
        """Keep a checkpoint, as `checkpoint.local` makes it."""
        self.folder.mkdir(exist_ok=True)
        checkpoint.write_content(content, self._path(iteration))
        self._kept.checkpoints = [*(i for i in self._kept.checkpoints if i != iteration), iteration]

    def state(self, iteration: int) -> dict[str, Any]:
        """What a resume needs, plain values; checkpoints that are no longer needed are not in it."""
        needed = [self.track.start, *(int(best["iteration"]) for best in self.track.best.values())]
        kept = self._kept.checkpoints
        recent = iteration - 2 * self.config.patience - self.config.interval
        wanted = {max((i for i in kept if i <= at), default=min(kept)) for at in needed} if kept else set()
        self._kept.checkpoints = [i for i in kept if i in wanted or i >= recent]
        return {
            "track": self.track.plain(),
            "checkpoints": list(self._kept.checkpoints),
            "decisions": list(self._kept.decisions),
        }

    def prune(self) -> None:
        """Delete the guard's checkpoints that the newest checkpoint of the run does not name any more."""
        for file in self.folder.glob("iteration_*.pt"):
            if file not in {self._path(i) for i in self._kept.checkpoints}:
                file.unlink()

    # ------------------------------------------------------------------ rolling back

    def roll_back(
        self,
        iteration: int,
        learner: Learner,
        recorder: Recorder | None,
        infos: dict[str, Any],
        note: Callable[[str], None],
        film: evidence.Film | None,
    ) -> RolledBack:
        """Note the confirmed finding with its evidence, and make the last healthy checkpoint the newest of the run.

        Returns:
            How the training goes on.

        Raises:
            RunFailed: it has been rolled back as often as `guard.rollbacks` allows.
        """
        finding = self.alarm
        assert finding is not None
        number, goes_on = len(self._kept.decisions) + 1, len(self._kept.decisions) < self.config.rollbacks
        last = min(finding.onset, iteration - self.config.patience)
        target = max((i for i in self._kept.checkpoints if i <= last), default=min(self._kept.checkpoints))
        content = checkpoint.load(self._path(target))
        healthy = checkpoint.weights_path(self.run_folder, target)
        than = "it was" if finding.name == SUCCESS else "limit"
        said = f"{MEANING[finding.name]} ({finding.value:.3g}, {than} {finding.limit:.3g})"
        stem = self.folder / f"finding_{number}"
        checkpoint.write_content(
            checkpoint.local(iteration, learner, self.env, infos), stem.with_suffix(".pt")
        )
        evidence.keep_rows(self.run_folder, stem.with_suffix(".jsonl"), target)
        files = evidence.record_scene(self.run, self.env, learner, recorder, stem, said, film)
        before, now = self._before(finding), self.track.recent[-1]
        blamed = {each["blamed"] for each in self._kept.decisions if each["blamed"]}
        change = remedy(self.run, finding.name, before, now, healthy, target > 0, blamed)
        decision = {
            "number": number,
            "iteration": iteration,
            "finding": finding.name,
            "said": said,
            "confirmed": [each.name for each in self.findings if each.confirmed],
            "value": finding.value,
            "limit": finding.limit,
            "streak": finding.streak,
            "onset": finding.onset,
            "reward": {"before": before.get("reward"), "now": self._mean("reward")},
            "success": {"before": before.get("success"), "now": self._success()},
            "rewards": {k: [before.get(k, 0.0), v] for k, v in now.items() if k.startswith("reward/")},
            "back_to": target,
            "action": "rolled back" if goes_on else "stopped",
            "changes": change.words if goes_on else [],
            "blamed": change.blamed if goes_on else None,
            "why": change.why if goes_on else f"guard.rollbacks={self.config.rollbacks} is used up",
            "rows": stem.with_suffix(".jsonl").name,
            "checkpoint": stem.with_suffix(".pt").name,
            **files,
        }
        self._kept.decisions.append(decision)
        self._kept.checkpoints = [i for i in self._kept.checkpoints if i <= target]
        self.track = Track()
        changed = config.resolve(change.words, self.run) if goes_on else self.run
        content["infos"] = {**(content["infos"] or {}), KEY: self.state(target)}
        for path in healthy.parent.glob("iteration_*.pt"):
            if path.name > healthy.name:
                path.unlink()  # of the history that is given up; its last state is in the evidence
        checkpoint.write(self.run_folder, content)
        config.save(replace(changed, resume=None, output=None), self.run_folder / config.FILE_NAME)
        evidence.write_decisions(self.folder, self._kept.decisions)
        evidence.forget_after(self.folder, target)
        self.prune()
        note(f"guard: iteration {iteration}: {said}; evidence: {stem}.*")
        if not goes_on:
            raise RunFailed(
                f"the guard has rolled back {self.config.rollbacks} times, and at iteration {iteration} "
                f"{said}; {self.run_folder / checkpoint.LATEST} is the last healthy checkpoint, of iteration {target}"
            )
        note(f"guard: back to iteration {target}, on with {' '.join(change.words)}: {change.why}")
        # Other weights of rewards fit the saved simulation.
        exact = [word.partition("=")[0] for word in change.words if not word.startswith("task.rewards.")]
        return RolledBack(changed, exact, self.run_folder, content)

    def _before(self, finding: Finding) -> dict[str, float]:
        """The numbers of where the run was healthy: where success was best, or the baseline."""
        bests = [best for best in self.track.best.values() if int(best["iteration"]) == finding.onset]
        return bests[0] if bests else self.track.base

    def _mean(self, name: str) -> float:
        recent = self.track.recent
        return sum(row[name] for row in recent) / len(recent)

    def _success(self) -> float | None:
        return smoothed(self.track.recent) if "success" in self.track.recent[-1] else None


def _of_batch(report: Report, learner: Learner) -> dict[str, float]:
    """The signals of environments of which only rewards and the learner's batch are known."""
    out = {"reward": report.env["reward/total"], "length": 1.0}
    batch = getattr(learner, "batch", None)
    if batch is not None:
        names = dict(zip(SPREADS, (batch.action, next(iter(batch.observations.values()))), strict=True))
        for name, rows in names.items():
            flat = rows.flatten(0, -2).double()
            count = torch.tensor(float(len(flat)), device=flat.device)
            out[name] = float(deviation(flat.sum(dim=0), flat.square().sum(dim=0), count))
    return out
