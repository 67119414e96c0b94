"""The guard of a training: looks at every iteration, keeps checkpoints, and decides where to go back to.

It only watches: until it rolls back, a training computes the same bits as without it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from robolearn import config
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.errors import ConfigError, RunFailed, quote
from robolearn.files import replacing
from robolearn.learners.learner import Learner, Report
from robolearn.training import checkpoint
from robolearn.training.guard import evidence
from robolearn.training.guard.detectors import (
    MEANING,
    REWARD,
    SPREADS,
    SUCCESS,
    Finding,
    Track,
    look,
    mean_terms,
    numbers_of,
    smoothed,
    window,
)
from robolearn.training.guard.remedies import KEY as KEY
from robolearn.training.guard.remedies import PENDING, remedy, scaled
from robolearn.training.guard.signals import Signals, deviation


@dataclass
class Healthy:
    """Where a training goes on after a rollback."""

    run: Config
    """The changed configuration."""
    folder: Path
    """The run folder."""
    content: dict[str, Any]
    """Of the checkpoint, until `take` has been called."""

    def take(self) -> dict[str, Any]:
        """The content of the checkpoint, which is forgotten here: it holds a whole simulation."""
        content, self.content = self.content, {}
        return content


class RolledBack(Exception):
    """The training goes on from a healthy checkpoint, with a change. Its traceback holds the environments and the
    learner that are given up: keep `healthy`, and let go of the rest."""

    def __init__(self, healthy: Healthy) -> None:
        """Where it goes on."""
        super().__init__()
        self.healthy = healthy


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
        self._make_folder()
        state = state or {}
        track = state.get("track", {})
        known = {each.name for each in fields(Track)}
        self.track = Track(**track) if track.keys() <= known else Track()
        self._looked = state.get("iteration")
        self._kept = _Kept(list(state.get("checkpoints", [])), list(state.get("decisions", [])))
        self._saved = list(self._kept.checkpoints)
        self.findings: list[Finding] = []
        """Those of the last iteration, the longest lasting first."""
        self._unwritten = ""

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            shown = quote(str(self.folder), 120)
            raise ConfigError(
                f"guard=on cannot write {shown}: {error.strerror}; move it away, or use guard=off"
            ) from None

    def begin(self, start: int, saved_in: Path | None, content: Callable[[], dict[str, Any]]) -> None:
        """Get ready to train after iteration `start`: the checkpoints of a run that resumes in another folder are
        copied from the guard's folder of `saved_in`; without any, `content` is the first."""
        self._best_effort(lambda: evidence.forget_after(self.folder, start))
        if self._kept.decisions:
            self._best_effort(lambda: evidence.write_decisions(self.folder, self._kept.decisions))
        self._forget_weights_after(start)
        kept = []
        for iteration in self._kept.checkpoints:
            there = self._path(iteration)
            other = None if saved_in is None else saved_in / evidence.FOLDER / there.name
            if not there.exists() and other is not None and other.is_file():
                with replacing(there) as part:
                    shutil.copy2(other, part)
            if there.exists():
                kept.append(iteration)
        self._kept.checkpoints = kept
        paused = self._looked not in (None, start)
        if paused:  # trained without the guard since it last looked
            self.track = Track()
        if not kept or paused:
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
        else:
            seen, stated = _of_batch(learner), False
        rewards = learned_from(report.env, self.run.learner)
        seen["reward"] = rewards["reward/total"]
        row = numbers_of(seen, report.losses, rewards)
        width = window(self.env.max_episode_steps, report.steps // self.env.num_envs)
        self.findings = look(self.track, row, iteration, stated, self.config, width)
        if self.findings:
            self._best_effort(lambda: evidence.record_suspicions(self.folder, iteration, self.findings))
        streak = max((finding.streak for finding in self.findings), default=0)
        named = {f"guard/{name}": value for name, value in seen.items() if name != "reward"}
        named["guard/mean_reward"] = self._mean("reward")
        if (success := self._success()) is not None:
            named["guard/episode_success"] = success
        return {**named, "guard/suspicions": float(len(self.findings)), "guard/streak": float(streak)}

    def take_note(self) -> str:
        """What could not be written since the last call; empty where all was."""
        said, self._unwritten = self._unwritten, ""
        return said

    def _best_effort(self, write: Callable[[], object]) -> bool:
        """Write evidence, which a training does without where the disk is full; whether it was written."""
        try:
            write()
        except (ConfigError, OSError) as error:
            self._unwritten = f"guard: not written: {error}"
            return False
        return True

    # ------------------------------------------------------------------ checkpoints

    def _path(self, iteration: int) -> Path:
        return self.folder / f"iteration_{iteration:06d}.pt"

    def due(self, iteration: int) -> bool:
        """Whether it keeps a checkpoint of this iteration."""
        return iteration % self.config.interval == 0

    def keep(self, iteration: int, content: dict[str, Any]) -> None:
        """Keep a checkpoint, as `checkpoint.local` makes it."""
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
            "iteration": iteration,
            "track": self.track.plain(),
            "checkpoints": list(self._kept.checkpoints),
            "decisions": list(self._kept.decisions),
        }

    def prune(self, saved: bool = False) -> None:
        """Delete the guard's checkpoints that neither it needs nor the newest checkpoint of the run names, which was
        `saved` just now, or before."""
        if saved:
            self._saved = list(self._kept.checkpoints)
        needed = {self._path(i) for i in (*self._kept.checkpoints, *self._saved)}
        for file in self.folder.glob("iteration_*.pt"):
            if file not in needed:
                file.unlink(missing_ok=True)

    def _forget_weights_after(self, iteration: int) -> None:
        """Delete weights in checkpoints/ of a history that is given up; its last state is in the evidence. Of a
        reference policy they stay."""
        weights = checkpoint.weights_path(self.run_folder, iteration)
        reference = getattr(self.run.learner, "reference", None)
        for path in weights.parent.glob("iteration_*.pt"):
            if path.name > weights.name and (not reference or path.absolute() != Path(reference).absolute()):
                path.unlink(missing_ok=True)

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
            RunFailed: it has been rolled back as often as `guard.rollbacks` allows, or there is nothing to change.
        """
        finding = self.alarm
        assert finding is not None
        number, allowed = len(self._kept.decisions) + 1, len(self._kept.decisions) < self.config.rollbacks
        last = min(finding.onset, iteration - self.config.patience)
        target = max((i for i in self._kept.checkpoints if i <= last), default=min(self._kept.checkpoints))
        content = checkpoint.load(self._path(target))
        healthy = checkpoint.weights_path(self.run_folder, target)
        than = "it was" if finding.name == SUCCESS else "limit"
        said = f"{MEANING[finding.name]} ({finding.value:.3g}, {than} {finding.limit:.3g})"
        stem = self.folder / f"finding_{number}"
        last_state, rows = stem.with_suffix(".pt"), stem.with_suffix(".jsonl")
        has_state = self._best_effort(
            lambda: checkpoint.write_content(
                checkpoint.local(iteration, learner, self.env, infos), last_state
            )
        )
        has_rows = self._best_effort(lambda: evidence.keep_rows(self.run_folder, rows, target))
        files: dict[str, str | None] = {"replay": None, "video": None, "no_video": None}
        self._best_effort(
            lambda: files.update(
                evidence.record_scene(self.run, self.env, learner, recorder, stem, said, film)
            )
        )
        before, now = self._before(finding), mean_terms(self.track.recent)
        blamed = {each["blamed"] for each in self._kept.decisions if each["blamed"]}
        change = remedy(self.run, finding.name, before, now, healthy, target > 0, blamed)
        changed = config.resolve(change.words, self.run) if change.words else self.run
        goes_on = allowed and bool(config.changed(self.run, changed))
        why_not = f"guard.rollbacks={self.config.rollbacks} is used up"
        if allowed:
            why_not = "no setting is left that the guard could change"
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
            "why": change.why if goes_on else why_not,
            "rows": rows.name if has_rows else None,
            "checkpoint": last_state.name if has_state else None,
            **files,
        }
        if goes_on:
            content |= scaled(content, change.words, self._kept.decisions, target)
        self._kept.decisions.append(decision)
        self._kept.checkpoints = [i for i in self._kept.checkpoints if i <= target]
        self.track = Track()
        # The change is in the checkpoint, too: a resume applies it where this process is killed before it is saved.
        state = self.state(target) | ({PENDING: change.words} if goes_on else {})
        content["infos"] = {**(content.get("infos") or {}), KEY: state}
        checkpoint.write(self.run_folder, content)
        if goes_on:
            config.save(replace(changed, resume=None, output=None), self.run_folder / config.FILE_NAME)
        self._best_effort(lambda: evidence.write_decisions(self.folder, self._kept.decisions))
        self._best_effort(lambda: evidence.forget_after(self.folder, target))
        self._forget_weights_after(target)
        self.prune(saved=True)
        if unwritten := self.take_note():
            note(unwritten)
        note(f"guard: iteration {iteration}: {said}; evidence: {stem}.*")
        if not goes_on:
            begins = "the guard has nothing left to change"
            if not allowed:
                begins = f"the guard has rolled back {self.config.rollbacks} times"
            raise RunFailed(
                f"{begins}, and at iteration {iteration} {said}; {self.run_folder / checkpoint.LATEST} is the last "
                f"healthy checkpoint, of iteration {target}"
            )
        note(f"guard: back to iteration {target}, on with {' '.join(change.words)}: {change.why}")
        return RolledBack(Healthy(changed, self.run_folder, content))

    def _before(self, finding: Finding) -> dict[str, float]:
        """The numbers of where the run was healthy: where success was best, or the baseline."""
        bests = [best for best in self.track.best.values() if int(best["iteration"]) == finding.onset]
        return bests[0] if bests else self.track.base

    def _mean(self, name: str) -> float:
        recent = self.track.recent
        return sum(row[name] for row in recent) / len(recent)

    def _success(self) -> float | None:
        known = any("success" in row for row in self.track.whole)
        return smoothed(self.track.whole) if known else None


def learned_from(rewards: Mapping[str, float], learner: Any) -> dict[str, float]:
    """The numbers of an Env with the rewards per step that are learned from: the task's and, with
    `learner.preferences`, the one from preferences, each as it is weighted; `reward/total` is their sum."""
    if not getattr(learner, "preferences", None):
        return dict(rewards)
    added = {k: rewards.get(f"{REWARD}{k}", 0.0) for k in ("preference", "preference_penalty")}
    factor = learner.task_reward_weight
    out = {
        k: factor * v if k.startswith(REWARD) and k.removeprefix(REWARD) not in added else v
        for k, v in rewards.items()
    }
    out["reward/total"] += sum(added.values())
    return out


def _of_batch(learner: Learner) -> dict[str, float]:
    """The signals of environments of which only rewards and the learner's batch are known."""
    out = {"length": 1.0}
    batch = getattr(learner, "batch", None)
    if batch is not None:
        names = dict(zip(SPREADS, (batch.action, next(iter(batch.observations.values()))), strict=True))
        for name, rows in names.items():
            flat = rows.flatten(0, -2).double()
            count = torch.tensor(float(len(flat)), device=flat.device)
            out[name] = float(deviation(flat.sum(dim=0), flat.square().sum(dim=0), count))
    return out
