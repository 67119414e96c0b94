"""`robolearn prefer` in a browser: real films, real keys, and answers that a kill does not lose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robolearn import config
from robolearn.training.train import train
from tests.browser.waiting import until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hopper's run with two checkpoints."""
    small = ["num_envs=16", "max_iterations=2", "checkpoint_interval=1", "torch_threads=1"]
    folder = tmp_path_factory.mktemp("prefer") / "run"
    return train(config.resolve(["task=hopper_run", *small, f"output={folder}"]))


class Asked:
    """The command in a process of its own."""

    def __init__(self, run: Path, folder: Path, pairs: int) -> None:
        words = ["prefer", str(run), "--output", str(folder), "--pairs", str(pairs), "--seconds", "0.3"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "robolearn.cli", *words, "--size", "160x120"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if found := re.search(r"answer at (http://\S+)", line):
                self.url = found[1]
                return
        pytest.fail("".join(said))

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "preferences.jsonl").read_text().splitlines()]


def shown(page: Any, other_than: str = "") -> str:
    """The pair that the page shows, once it is another one."""
    until(page, "old => (document.body.dataset.pair ?? '') !== old", other_than)
    return str(page.evaluate("document.body.dataset.pair"))


def progress(page: Any, count: int) -> None:
    until(page, "n => document.getElementById('progress').textContent.startsWith(`${n} of`)", count)


def test_keys_answer_skip_undo_and_end_and_a_kill_loses_no_answer(
    chromium: Any, run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "preferences"
    asked = Asked(run, folder, 7)
    page = chromium.new_page()
    try:
        page.goto(asked.url)
        first = shown(page)
        # Both films play, with pictures in them.
        until(
            page,
            "[...document.querySelectorAll('video')].every(v => v.videoWidth === 160 && v.currentTime > 0)",
        )
        page.keyboard.press("1")
        second = shown(page, first)
        page.keyboard.press("2")
        third = shown(page, second)
        page.keyboard.press("e")
        fourth = shown(page, third)
        progress(page, 3)
        page.keyboard.press("s")
        fifth = shown(page, fourth)
        progress(page, 3)  # a skipped pair is no answer
        page.keyboard.press("0")
        sixth = shown(page, fifth)
        page.keyboard.press("u")
        assert shown(page, sixth) == fifth
        page.keyboard.press("1")
        assert shown(page, fifth) == sixth
        progress(page, 4)
        pairs = [first, second, third, fourth, fifth, fifth, fifth]
        given = [1, 2, "equal", "skip", "equal", None, 1]
        assert asked.end(signal.SIGKILL) == -signal.SIGKILL
        assert [(" ".join(line["pair"]), line["answer"]) for line in lines(folder)] == list(
            zip(pairs, given, strict=True)
        )
        assert {line["by"] for line in lines(folder)} == {"person"}
        # It goes on where it was: with the pair that was shown.
        asked = Asked(run, folder, 7)
        page.goto(asked.url)
        assert shown(page) == sixth
        page.keyboard.press("2")
        seventh = shown(page, sixth)
        assert asked.end(signal.SIGTERM) == 130
        asked = Asked(run, folder, 7)
        page.goto(asked.url)
        assert shown(page) == seventh
        page.keyboard.press("q")
        page.get_by_text("Ended.").wait_for()
        assert asked.process.wait(60) == 0
        assert len(lines(folder)) == len(given) + 1
    finally:
        asked.process.kill()
        page.close()


def test_the_last_answer_ends_it(chromium: Any, run: Path, tmp_path: Path) -> None:
    asked = Asked(run, tmp_path / "few", 2)
    page = chromium.new_page()
    try:
        page.goto(asked.url)
        first = shown(page)
        page.get_by_role("button", name="the second").click()
        shown(page, first)
        page.keyboard.press("1")
        page.get_by_text("All pairs are answered.").wait_for()
        assert asked.process.wait(60) == 0
        assert [line["answer"] for line in lines(tmp_path / "few")] == [2, 1]
    finally:
        asked.process.kill()
        page.close()
