"""Record: what a training writes into its run folder, and what it shows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from robolearn import config
from robolearn.config.run_config import Config, agents_of
from robolearn.core.contract import contract_of
from robolearn.core.learner_env import LearnerEnv
from robolearn.core.recorder import Recorder
from robolearn.errors import listing
from robolearn.training import origin, replay
from robolearn.training.active import active
from robolearn.training.metrics import MetricsLog
from robolearn.training.panel import Panel

DONE = "DONE"
"""File in the run folder of a training with ranks that is complete: torchrun's exit code does not tell."""


class Record:
    """The run folder and the panel of a training; a context manager. On a rank that does not write it does nothing."""

    def __init__(
        self,
        run: Config,
        folder: Path,
        env: LearnerEnv,
        start: int,
        ranks: int,
        writes: bool = True,
        actors: str = "",
        again: bool = False,
    ) -> None:
        """A training of `run` that begins after iteration `start`; `actors` says what processes simulate for it; where
        it begins `again`, after ranks were lost, what it is was shown before."""
        self._again = again
        self.run, self.folder, self.env, self.start, self.writes = run, folder, env, start, writes
        where = "" if run.backend_name == config.EXTERNAL else f" on {run.backend_name}"
        shared = f", {ranks} rank{'s' * (ranks != 1)}" if run.ranks else ""
        agents = agents_of(run)
        many = f"{run.num_envs} environments" + (f" of {agents} agents" if agents > 1 else "")
        title = f"{run.task_name}{where}, {many}, {run.learner_name}{shared}"
        title += f", {actors}" if actors else ""
        self._panel = Panel(title, run.max_iterations, shown=again) if writes else None
        self._log: MetricsLog | None = None
        self._open = ExitStack()
        # Now: a resumed run writes it with its first checkpoint.
        self._began_with = origin.here(env.device) if writes else {}
        self._described = not writes

    def __enter__(self) -> Record:
        if self.writes:
            (self.folder / DONE).unlink(missing_ok=True)
            # A run resumed in the same folder keeps its old files until it has written a checkpoint.
            if not (self.folder / config.FILE_NAME).exists():
                self.describe()
            self._log = MetricsLog(self.folder, resume_at=self.start)
            self._open.callback(self._log.close)
        if self._panel is not None:
            self._open.enter_context(self._panel)
            if self._again:
                return self
            self.note(f"run {self.folder}")
            if self._log is not None and (damaged := self._log.damaged):
                where = f"{'lines' if len(damaged) > 1 else 'line'} {listing(map(str, damaged), 8)}"
                self.note(
                    f"{self._log.path.name}: {where} held no numbers of an iteration and is gone from the curves"
                )
            shown = active(
                self.run.task, getattr(self.env, "columns", None), getattr(self.env, "scene", None)
            )
            self._panel.print_active(shown)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def describe(self) -> None:
        """Write the configuration, the contract and the versions, once; before a checkpoint of this run."""
        if self._described:
            return
        self._described = True
        # Without resume and output, so that the run can be moved and resumed again.
        config.save(replace(self.run, resume=None, output=None), self.folder / config.FILE_NAME)
        contract_of(self.env).save(self.folder / "contract.json")
        origin.record_start(self.folder, self.start, self._began_with)

    def note(self, line: str) -> None:
        """Show a line."""
        if self._panel is not None:
            self._panel.note(line)

    def row(self, row: dict[str, Any]) -> None:
        """Log and show the numbers of an iteration."""
        if self._log is not None:
            self._log.write(row)
        if self._panel is not None:
            self._panel.show(row)

    def divergence(self, recorder: Recorder | None, iteration: int, suffix: str = "") -> None:
        """Write a replay of an environment that has diverged in this iteration, where one has."""
        if recorder is None or not (caught := recorder.take()):
            return
        file = self.folder / f"diverged{suffix}{replay.SUFFIX}"
        replay.write(
            file, caught[1], caught[0], self.run, f"the simulation diverged in iteration {iteration}"
        )
        self.note(f"an environment diverged; look at it with robolearn replay {file}")

    def finished(self, iteration: int) -> None:
        """Note that more training would not improve the policy."""
        self.note(f"finished at iteration {iteration}: more would not improve it")
        if self.writes:
            origin.record_finish(self.folder, iteration)

    def done(self) -> None:
        """Note that the training is complete."""
        self.note(f"trained {self.run.task_name}: {self.folder}")
        if self.writes and self.run.ranks:
            (self.folder / DONE).touch()
