"""`robolearn play`: a viewer in the browser. This file is its loop, the only thread that touches the simulation."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from robolearn.commands.viewer import server as serving
from robolearn.commands.viewer.operate import Operator
from robolearn.commands.viewer.plots import History, Probe
from robolearn.commands.viewer.source import BundleSource, RunSource, Source, has_checkpoint, newest
from robolearn.config.run_config import EXTERNAL
from robolearn.core.env import Env
from robolearn.errors import ConfigError, RunFailed, listing, one_line, quote
from robolearn.export.driver import config_of, is_bundle
from robolearn.learners import saved
from robolearn.runtime.errors import Refused
from robolearn.training.build import make_env
from robolearn.training.runs import load_config, load_policy, open_run
from robolearn.training.train import set_threads

if TYPE_CHECKING:
    import viser

FRAME = 1 / 30
"""Least time between two frames [s]."""
TOLD = 0.2
"""Least time between two updates of the plots and of the status [s]."""
LOOKED = 1.0
"""Time between two looks for new checkpoints [s]."""
IDLE = 0.25
"""Time between two looks for a browser where none is connected [s]."""
MOST = 64
"""Largest number of robots."""


def view(
    run: str | None,
    overrides: Iterable[str] = (),
    num_envs: int = 1,
    host: str = serving.HOST,
    port: int | None = None,
    follow: bool = False,
    output: Path | None = None,
) -> None:
    """Serve a viewer of a run's policy, or of a bundle's controller, until interrupted.

    Args:
        run: see `robolearn.training.runs.open_run`; or the folder of a bundle.
        overrides: settings to change, in Hydra's grammar.
        num_envs: number of robots; of worlds, where they have several agents.
        host: address to listen on.
        port: None: 8080, or the next free one.
        follow: switch to each new checkpoint of the run; waits for the first one.
        output: folder of recordings; None: the run folder.

    Raises:
        ConfigError: the run, an override or an argument is invalid; the environment is a third-party one.
        MissingError: viser is not installed.
        Refused: the bundle is damaged.
    """
    serving.require_viser()
    if not 1 <= num_envs <= MOST:
        raise ConfigError(f"--num-envs {num_envs}: the viewer shows 1 to {MOST} robots")
    serving.free_port(host, port)  # before the work of making the env
    bundle = Path(run) if run is not None and is_bundle(run) else None
    if follow and (bundle is not None or (run is not None and run.startswith(saved.PREFIX))):
        raise ConfigError(
            f"--follow needs a run that is being trained, and {quote(run)} gets no new checkpoints"
        )
    if follow:
        _await_first_checkpoint(run)
    if bundle is not None:
        settings, title, folder = config_of(bundle, overrides), bundle.resolve().name, bundle
    else:
        found = open_run(run, overrides)
        settings, title, folder = found.config, found.name, found.folder
        load_policy(found)  # refuses a setting that changes the trained network
    if settings.backend_name == EXTERNAL:
        raise ConfigError(
            f"task={settings.task_name} brings its own simulator, which the viewer cannot draw; write a video: "
            "robolearn play --video FILE.mp4"
        )
    set_threads(settings)
    env = make_env(settings, num_envs=num_envs)
    try:
        source = BundleSource(env, bundle) if bundle else _run_source(env, run)
        if isinstance(source, BundleSource) and (left_out := source.driver.left_out):
            print(f"not simulated: noise of {listing(left_out)}: no single reading can have it")
        server = serving.open_server(host, port)
        try:
            viewer = Viewer(
                server,
                env,
                source,
                title=f"{settings.task_name}: {title}",
                folder=output or folder,
                follow=follow,
            )
            print(serving.address(host, server.get_port()), flush=True)
            try:
                viewer.run()
            finally:
                viewer.panel.recording.close(2.0)
        finally:
            serving.stop(server)
            source.close()
    finally:
        env.close()


def _run_source(env: Env, run: str | None) -> RunSource:
    folder, checkpoint = saved.find_run(run)
    return RunSource(env, checkpoint, folder)


def _await_first_checkpoint(run: str | None) -> None:
    """Wait until the run folder has a checkpoint, where it is one that is being trained."""
    folder = Path(run) if run is not None else None
    if folder is None or not (folder / "config.yaml").is_file() or has_checkpoint(folder):
        return
    load_config(folder)
    print(f"waiting for the first checkpoint of {folder}", file=sys.stderr)
    while not has_checkpoint(folder):
        time.sleep(LOOKED)


class Viewer:
    """The loop. viser's callbacks run in other threads and hand their work in with `do`."""

    def __init__(
        self,
        server: viser.ViserServer,
        env: Env,
        source: Source,
        title: str = "",
        folder: Path | None = None,
        follow: bool = False,
    ) -> None:
        """
        Args:
            server: of viser, just started.
            env: the robots; starts anew.
            source: of their actions.
            title: of the run, for the panel.
            folder: of recordings.
            follow: whether to switch to new checkpoints.
        """
        from robolearn.commands.viewer.drawing import Drawing
        from robolearn.commands.viewer.panel import Panel

        self.server, self.env, self.source = server, env, source
        self.title, self.folder = title, folder or Path()
        self.paused, self.speed, self.follow = False, 1.0, follow
        self.error = ""
        """Why the simulation stands still; empty while it runs."""
        self.steps = 0
        self.achieved = 0.0
        """Simulated seconds per second of wall time, over the last second."""
        self._measured = time.perf_counter(), 0.0
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ends = threading.Event()
        self.operator = Operator(env)
        self.drawing = Drawing(server, env)
        self.probe, self.history = Probe(env), History(env.dt)
        self._newest = newest(source)
        self._tried: str | None = None
        """The newest checkpoint that was switched to; one that cannot be read is tried once."""
        self.time = 0.0
        """Simulated time since the start [s]."""
        self._drawn_at = 0.0
        env.reset()
        source.reset()
        self.panel = Panel(self)
        self.drawing.update()

    # ------------------------------------------------------------------ from any thread

    def do(self, work: Callable[[], None]) -> None:
        """Have the loop do some work, before its next step."""
        self._queue.put(work)

    def end(self) -> None:
        """Have `run` return."""
        self._ends.set()

    @property
    def watched(self) -> bool:
        """Whether a browser is connected."""
        return bool(self.server.get_clients())

    # ------------------------------------------------------------------ the loop's thread

    def run(self) -> None:
        """Simulate in real time while a browser is connected, until `end` is called or Ctrl-C is pressed."""
        last, stale = time.perf_counter(), False
        budget = 0.0
        """Simulated time that is due [s]."""
        due = dict.fromkeys((self._draw, self._tell, self._look), 0.0)
        """When to call each again."""
        while not self._ends.is_set():
            stale |= self._work()
            if not self.watched:  # without a browser nothing is simulated, and no core is busy
                self._ends.wait(IDLE)
                last = time.perf_counter()
                continue
            now = time.perf_counter()
            running = not self.paused and not self.error
            # A simulation that cannot keep up runs slower than asked for, instead of falling behind ever further.
            most = max(2 * self.env.dt, 2 * self.speed * FRAME)
            budget = min(budget + self.speed * (now - last), most) if running else 0.0
            last = now
            while running and budget >= self.env.dt and time.perf_counter() - now < FRAME:
                self.step()
                budget -= self.env.dt
                stale, running = True, not self.error
            if stale and now >= due[self._draw]:
                self._draw()
                due[self._draw], stale = now + FRAME, False
            for work, period in ((self._tell, TOLD), (self._look, LOOKED)):
                if now >= due[work]:
                    work()
                    due[work] = now + period
            rest = (self.env.dt - budget) / self.speed if running else FRAME
            self._ends.wait(min(max(rest, 0.001), FRAME))

    def _tell(self) -> None:
        """Show times and curves in the panel."""
        now = time.perf_counter()
        since, simulated = self._measured
        if now - since >= 1.0:
            self.achieved = (self.time - simulated) / (now - since)
            self._measured = now, self.time
        self.panel.refresh()

    def _work(self) -> bool:
        """Do the work that callbacks have handed in; whether there was any."""
        some = False
        while True:
            try:
                work = self._queue.get_nowait()
            except queue.Empty:
                return some
            self._try(work)
            some = True

    def _try(self, work: Callable[[], None]) -> None:
        """Do some work; the simulation stands still after an error, until it is reset."""
        try:
            work()
        except (ConfigError, RunFailed, Refused) as error:
            self.error = one_line(str(error))
            print(f"robolearn: {self.error}", file=sys.stderr)

    @torch.no_grad()
    def step(self) -> None:
        """One control step of every robot."""
        self._try(self._step)

    def _step(self) -> None:
        self.operator.before_step()
        result = self.env.step(*self.source())
        self.env.check()
        self.source.reset(result.done if result.valid is None else result.done | ~result.valid)
        self.steps += 1
        self.time += self.env.dt
        self.history.add(self.time, self.probe.read(self.drawing.shown))
        self.panel.recording.step()

    def _draw(self) -> None:
        self.drawing.update()
        self.panel.recording.frame(self.time - self._drawn_at)
        self._drawn_at = self.time

    def reset(self) -> None:
        """Begin new episodes."""
        self.error = ""
        self.env.reset()
        self.source.reset()
        self.history.clear()

    def switch(self, name: str) -> None:
        """Act with another checkpoint from the next step on. One that cannot be read is only reported."""
        try:
            self.source.switch(name)
        except ConfigError as error:
            self.panel.say(str(error))
        else:
            self.panel.say(f"acting with {name}")
        self.panel.offer(self.source.choices(), self.source.name)

    def follow_training(self, follow: bool) -> None:
        """Whether to switch to the newest checkpoint, now and whenever there is another."""
        self.follow, self._tried = follow, None

    def _look(self) -> None:
        """Offer new checkpoints, and switch to the newest if it is to be followed."""
        now = newest(self.source)
        if now != self._newest:
            self._newest = now
            self.panel.offer(self.source.choices(), self.source.name)
        if self.follow and now is not None and now != self.source.name and now != self._tried:
            self._tried = now
            self.switch(now)
