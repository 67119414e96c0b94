"""A folder of preferences: segments and answers on disk, what is refused, and what a kill leaves."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from robolearn.errors import ConfigError
from robolearn.learners.preference import segments
from robolearn.learners.preference.folder import Answer, Preferences
from robolearn.learners.preference.recent import windows
from robolearn.learners.preference.segments import Segment


def made(name: str = "a", steps: int = 3) -> Segment:
    """A segment of two groups, whose numbers count up."""
    return Segment(
        name,
        {
            "policy": np.arange(2 * (steps + 1), dtype=np.float32).reshape(-1, 2),
            "critic": np.ones((steps + 1, 3)),
        },
        np.zeros((steps, 2), np.float32),
        np.arange(steps, dtype=np.float32),
        0.02,
        "a test",
        {"policy": [("height", 1), ("speed", 1)], "critic": [("all", 3)]},
    )


def test_a_segment_is_read_as_it_was_written_and_gives_its_items_after_each_step(tmp_path):
    folder = Preferences(tmp_path / "p", create=True)
    folder.add(made())
    found = Preferences(tmp_path / "p").segment("a")
    assert found.steps == 3
    assert found.seconds == pytest.approx(0.06)
    # Rows 0 1, 2 3, 4 5, 6 7: the second column after each of three steps.
    assert found.item("policy", "speed").tolist() == [[3.0], [5.0], [7.0]]
    assert found.rewards.tolist() == [0.0, 1.0, 2.0]
    assert found.source == "a test"
    with pytest.raises(ConfigError, match="'sped'"):
        found.item("policy", "sped")
    with pytest.raises(ConfigError, match="'state'"):
        found.item("state", "speed")


def test_a_pickle_in_a_segment_is_not_loaded(tmp_path):
    folder = Preferences(tmp_path, create=True)
    folder.add(made())
    with np.load(folder.path("a")) as file:
        content = dict(file)
    np.savez(folder.path("evil"), **{**content, "actions": np.array([{}, {}], object)}, allow_pickle=True)
    with pytest.raises(ConfigError, match=r"evil\.npz"):
        folder.segment("evil")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"actions": np.zeros((4, 2), np.float32)}, "rewards"),
        ({"obs.policy": np.full((4, 2), np.nan, np.float32)}, r"obs\.policy"),
        ({"schema": np.int64(9)}, "schema 9"),
        ({"columns": np.array("[")}, r"b\.npz"),
    ],
)
def test_a_damaged_segment_is_refused_by_name(tmp_path, change, named):
    folder = Preferences(tmp_path, create=True)
    folder.add(made())
    with np.load(folder.path("a")) as file:
        content = dict(file)
    np.savez(folder.path("b"), **{**content, **change})
    with pytest.raises(ConfigError, match=named):
        folder.segment("b")
    (tmp_path / "segments" / "c.npz").write_bytes(b"PK not an archive")
    with pytest.raises(ConfigError, match=r"c\.npz"):
        segments.read(tmp_path / "segments" / "c.npz")


def test_the_last_line_of_a_pair_counts_and_null_takes_it_back(tmp_path):
    folder = Preferences(tmp_path, create=True)
    for pair, answer in ((("a", "b"), 1), (("c", "d"), 2), (("a", "b"), None), (("e", "f"), "equal")):
        folder.append(Answer(pair, answer, "person"))
    assert {pair: a.answer for pair, a in folder.answers().items()} == {("c", "d"): 2, ("e", "f"): "equal"}
    folder.append(Answer(("a", "b"), "skip", "person"))
    folder.append(Answer(("c", "d"), 1, "person"))
    found = folder.answers()
    # In the order in which pairs were first answered.
    assert [(pair, a.answer, a.target) for pair, a in found.items()] == [
        (("a", "b"), "skip", None),
        (("c", "d"), 1, 1.0),
        (("e", "f"), "equal", 0.5),
    ]
    assert folder.last(list(found)) == ("c", "d")


def test_a_line_that_a_loss_of_power_has_cut_is_left_out_and_the_next_one_is_not_joined_to_it(tmp_path):
    folder = Preferences(tmp_path, create=True)
    folder.append(Answer(("a", "b"), 1, "person"))
    with folder.file.open("ab") as file:
        file.write(b'{"schema": 1, "pair": ["c", "d')
    assert list(folder.answers()) == [("a", "b")]
    folder.append(Answer(("e", "f"), 2, "person"))
    assert list(folder.answers()) == [("a", "b"), ("e", "f")]


def test_a_last_line_that_is_not_cut_but_wrong_is_refused_as_any_other(tmp_path):
    folder = Preferences(tmp_path, create=True)
    folder.append(Answer(("a", "b"), 1, "person"))
    whole = folder.file.read_bytes()
    for cut in (b"{", b'{"sch', b'{"schema": 1, "pair"'):
        folder.file.write_bytes(whole + cut)
        assert list(folder.answers()) == [("a", "b")]
    for wrong in (b"hello", b'{"schema": 2, "pair": ["a", "b"]}'):
        folder.file.write_bytes(whole + wrong)
        with pytest.raises(ConfigError, match="line 2"):
            folder.answers()


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        '{"schema": 2, "pair": ["a", "b"], "answer": 1, "by": "x"}',
        '{"schema": 1, "pair": ["a", "b"], "answer": 3, "by": "x"}',
        '{"schema": 1, "pair": ["a", "b"], "answer": true, "by": "x"}',
        '{"schema": 1, "pair": ["a", "a"], "answer": 1, "by": "x"}',
        '{"schema": 1, "pair": ["a", "../b"], "answer": 1, "by": "x"}',
        '{"schema": 1, "pair": ["a"], "answer": 1, "by": "x"}',
        '{"schema": 1, "answer": 1, "by": "x"}',
    ],
)
def test_a_line_that_is_no_answer_is_refused_by_its_number(tmp_path, line):
    folder = Preferences(tmp_path, create=True)
    folder.append(Answer(("a", "b"), 1, "person"))
    with folder.file.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        folder.answers()


def test_a_segment_is_not_overwritten_by_another_one(tmp_path):
    folder = Preferences(tmp_path, create=True)
    folder.add(made())
    folder.add(made())
    before = folder.path("a").read_bytes()
    with pytest.raises(ConfigError, match=r"a\.npz"):
        folder.add(made(steps=4))
    assert folder.path("a").read_bytes() == before


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        Preferences(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        Preferences(tmp_path / "file", create=True)
    with pytest.raises(ConfigError, match="absent"):
        Preferences(tmp_path).segment("absent")


@pytest.mark.slow
def test_answers_that_were_appended_survive_a_kill_and_two_writers_do_not_mix(tmp_path):
    Preferences(tmp_path, create=True)
    code = (
        "import sys; from pathlib import Path\n"
        "from robolearn.learners.preference.folder import Answer, Preferences\n"
        "folder, name = Preferences(Path(sys.argv[1])), sys.argv[2]\n"
        "for i in range(10**6):\n"
        "    folder.append(Answer((f'{name}{i}', 'b'), 1, name)); print(i, flush=True)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in ("x", "y")
    ]
    told = []
    for process in processes:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 30:
                break
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        told.append(max([30, *(int(x) for x in process.stdout.read().split("\n")[:-1] if x)]))
        process.stdout.close()
    answers = Preferences(tmp_path).answers().values()
    for name, last in zip(("x", "y"), told, strict=True):
        mine = [answer.pair[0] for answer in answers if answer.by == name]
        assert mine[: last + 1] == [f"{name}{i}" for i in range(last + 1)]


def test_a_segment_lies_within_one_episode_and_may_end_with_it():
    done = np.array([[0, 0], [0, 1], [0, 0], [1, 0]], bool)
    took = np.array([[1, 1], [1, 1], [1, 1], [1, 0]], bool)
    # Environment 0 ends with its last step; environment 1 after its second, and its last step is not valid.
    assert windows(done, took, 2) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert windows(done, took, 4) == [(0, 0)]
    assert windows(done, took, 5) == []
