"""`robolearn prefer`: films of a run's policies, two at a time, and answers to which is better."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any

from robolearn import config
from robolearn.commands.prefer.rollouts import Rollouts
from robolearn.commands.prefer.session import AHEAD, Session
from robolearn.commands.viewer.server import HOST
from robolearn.config.run_config import Config
from robolearn.errors import ConfigError, quote
from robolearn.files import locked
from robolearn.learners.preference import judge as judges
from robolearn.learners.preference.folder import EQUAL, SKIP, Pair, Preferences
from robolearn.simulation.video import parse_size
from robolearn.training.build import require_robolearn_task
from robolearn.training.runs import Run, open_run
from robolearn.training.train import set_threads

SIZE, FPS = "480x360", 25.0
ANSWERS: dict[Any, int | str] = {"1": 1, "2": 2, EQUAL: EQUAL, SKIP: SKIP}
"""What the page sends."""
EVERY = 10
"""A script's answers between two lines that say how many there are."""
REST = 0.1
"""Pause of the loop that prepares films [s]."""


def prefer(
    run: str | None,
    overrides: Iterable[str],
    output: Path,
    pairs: int = 100,
    seconds: float = 2.0,
    script: str | None = None,
    noise: float = 1.0,
    checkpoints: int = 5,
    size: str | None = None,
    host: str = HOST,
    port: int | None = None,
) -> int:
    """Ask which of two segments is better, until the folder holds `pairs` answers.

    Args:
        run: see `robolearn.training.runs.open_run`.
        overrides: settings to change.
        output: folder of preferences; one that was begun is continued.
        pairs: answers that it is to hold at the end.
        seconds: length of a segment [s].
        script: `path.py:NAME` of a function that answers; None: a person, in the browser.
        noise: of the actions, as a factor on each policy's standard deviation.
        checkpoints: of the run that act, at most.
        size: width and height of a film.
        host: address of the page.
        port: of the page; None: 8080, or the next free one.

    Returns:
        Number of answers in the folder.

    Raises:
        ConfigError: the run, a setting or the folder is invalid.
        MissingError: there is no renderer or no encoder.
        RunFailed: the script failed.
    """
    pixels = parse_size(size or SIZE)
    judge = None if script is None else judges.load(script, "--script ")
    found = open_run(run, overrides)
    require_robolearn_task(found.config, "prefer")
    steps = round(seconds / found.config.task.control_dt)
    longest = round(found.config.task.episode_length_s / found.config.task.control_dt)
    if not 1 <= steps <= longest:
        raise ConfigError(
            f"--seconds {seconds:g} is {steps} control steps; an episode has {longest}, so use up to "
            f"{found.config.task.episode_length_s:g}"
        )
    set_threads(found.config)
    folder = Preferences(output, create=True)
    with ExitStack() as held:
        held.enter_context(locked(folder.folder, "use another --output"))
        _claim(folder.folder, found.config)
        rollouts = held.enter_context(closing(Rollouts(found, steps, noise, checkpoints)))
        by = "person" if script is None else f"script {script}"
        session = Session(folder, rollouts.segments, pairs, found.config.seed, by)
        _say_where(session, folder)
        try:
            if judge is None:
                _ask_person(session, folder, found, rollouts, pixels, host, port)
            else:
                _ask_script(session, folder, judge)
        finally:
            print(f"{session.answered} of {pairs} pairs are answered, in {folder.file}", flush=True)
        return session.answered


def _claim(folder: Path, run: Config) -> None:
    """Note in a folder which task its segments are of, or check that it is this one."""
    file = folder / config.FILE_NAME
    if not file.exists():
        config.save(run, file)
        return
    from robolearn.config import yaml_file

    task = yaml_file.read(file).get("task")
    saved = task if isinstance(task, dict) else {}
    now = (run.task_name, str(getattr(run.task, "robot", None)))
    before = (str(saved.get("name")), str(saved.get("robot")))
    if now != before:
        raise ConfigError(
            f"{quote(str(folder), 120)} holds preferences about task={before[0]} with robot={before[1]}, and this is "
            f"task={now[0]} with robot={now[1]}; use another --output"
        )


def _say_where(session: Session, folder: Preferences) -> None:
    if session.answered:
        print(f"{folder.folder}: going on after {session.answered} answers", flush=True)


def _ask_script(session: Session, folder: Preferences, judge: judges.Judge) -> None:
    told = session.answered // EVERY
    while not session.done:
        session.refill()
        if session.answered // EVERY > told:
            told = session.answered // EVERY
            print(f"{session.answered} of {session.wanted} pairs are answered", flush=True)
        (pair,) = session.open(1)
        session.answer(pair, judges.ask(judge, *(folder.segment(name) for name in pair)))


def _ask_person(
    session: Session,
    folder: Preferences,
    found: Run,
    rollouts: Rollouts,
    size: tuple[int, int],
    host: str,
    port: int | None,
) -> None:
    """Serve the page until all pairs are answered, or the person ends it. This thread simulates and draws."""
    from robolearn.commands.prefer.films import Films
    from robolearn.commands.prefer.server import Server

    videos = folder.folder / "videos"
    ended = Event()

    def film(name: str) -> Path:
        return videos / f"{name}.mp4"

    def state(content: dict[str, Any]) -> dict[str, Any]:
        pair = next(iter(session.open(1)), None)
        ready = pair is not None and all(film(name).exists() for name in pair)
        return {
            "pair": list(pair) if ready and pair is not None else None,
            "answered": session.answered,
            "wanted": session.wanted,
            "accuracy": session.accuracy,
            "done": session.done,
            "ended": ended.is_set(),
        }

    def answer(content: dict[str, Any]) -> dict[str, Any]:
        pair, given = content.get("pair"), ANSWERS.get(str(content.get("answer")))
        if isinstance(pair, list) and len(pair) == 2 and given is not None:
            session.answer((str(pair[0]), str(pair[1])), given)
        return state({})

    def undo(content: dict[str, Any]) -> dict[str, Any]:
        session.undo()
        return state({})

    def end(content: dict[str, Any]) -> dict[str, Any]:
        ended.set()
        return state({})

    actions = {"/state": state, "/answer": answer, "/undo": undo, "/quit": end}
    with ExitStack() as held:
        films = held.enter_context(closing(Films(rollouts.env.scene, size, FPS)))
        server = held.enter_context(closing(Server(actions, videos, host, port)))
        print(f"answer at {server.url}", flush=True)
        while not (ended.is_set() or session.done):
            session.refill()
            undrawn = _undrawn(session.open(AHEAD), film)
            if undrawn is None:
                ended.wait(REST)
            else:
                films.write(folder.segment(undrawn), film(undrawn))
        ended.wait(REST)  # the last answer's response


def _undrawn(pairs: list[Pair], film: Any) -> str | None:
    """The first segment without a film."""
    return next((name for pair in pairs for name in pair if not film(name).exists()), None)
