"""`robolearn prefer --script`: a script answers, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from robolearn import cli, config
from robolearn.commands.prefer.rollouts import checkpoints
from robolearn.files import locked
from robolearn.learners.preference.folder import Preferences
from robolearn.training.runs import open_run
from robolearn.training.train import train

JUDGE = """
def judge(first, second):
    return 1 if first.actions.mean() > second.actions.mean() else 2

def fails(first, second):
    raise KeyError("no such thing")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cartpole's run with four checkpoints."""
    words = ["task=cartpole_balance", "num_envs=8", "max_iterations=4", "checkpoint_interval=1"]
    folder = tmp_path_factory.mktemp("prefer") / "run"
    return train(config.resolve([*words, "torch_threads=1", f"output={folder}"]))


def ask(run: Path, folder: Path, pairs: int, script: str = "judge.py:judge", *more: str) -> int:
    words = ["prefer", str(run), "--output", str(folder), "--pairs", str(pairs), "--seconds", "0.2"]
    return cli.main([*words, "--script", script, "task.episode_length_s=2", *more])


def test_a_script_answers_and_the_same_command_goes_on(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("judge.py").write_text(JUDGE)
    assert ask(run, Path("p"), 15) == 0
    folder = Preferences("p")
    before = folder.answers()
    assert len(before) == 15
    for pair, answer in before.items():
        first, second = (folder.segment(name) for name in pair)
        assert first.steps == 10
        assert answer.answer == (1 if first.actions.mean() > second.actions.mean() else 2)
        assert first.poses["robot.joint_pos"].shape == (11, 2)
        assert set(first.metrics)
    assert capsys.readouterr().out.count("15 of 15") == 1
    assert ask(run, Path("p"), 18) == 0
    after = Preferences("p").answers()
    assert list(after)[:15] == list(before)
    assert len(after) == 18
    # Segments of several of the run's policies.
    assert len({folder.segment(name).source for pair in after for name in pair}) >= 3
    # The folder trains a reward at once.
    words = ["train", "task=cartpole_balance", "num_envs=8", "max_iterations=1", "learner.preferences=p"]
    assert cli.main([*words, "learner.preference_epochs=1", "learner.task_reward_weight=0"]) == 0


def test_the_same_seed_asks_the_same_pairs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("judge.py").write_text(JUDGE)
    for name in ("a", "b"):
        assert ask(run, Path(name), 4) == 0
    first, second = (list(Preferences(name).answers().items()) for name in ("a", "b"))
    assert [(pair, a.answer) for pair, a in first] == [(pair, a.answer) for pair, a in second]


def test_checkpoints_are_taken_from_early_to_late(run):
    assert [path.stem for path in checkpoints(open_run(str(run)), 2)] == [
        "iteration_000001",
        "iteration_000004",
    ]
    assert len(checkpoints(open_run(str(run)), 9)) == 4
    one = run / "checkpoints" / "iteration_000002.pt"
    assert checkpoints(open_run(str(one)), 9) == [one]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--script", "judge.py"], 2, "judge.py"),
        (["--script", "judge.py:absent"], 2, "absent"),
        (["--script", "judge.py:fails"], 4, "fails"),
        (["--seconds", "30", "--script", "judge.py:judge"], 2, "--seconds"),
        (["--size", "33x33"], 2, "--size"),
    ],
)
def test_what_does_not_work_is_said_in_a_line(run, tmp_path, monkeypatch, capsys, words, code, named):
    monkeypatch.chdir(tmp_path)
    Path("judge.py").write_text(JUDGE)
    every = ["prefer", str(run), "--output", "p", "--pairs", "3", "--seconds", "0.1", *words]
    assert cli.main(every) == code
    said = capsys.readouterr().err
    assert named in said
    assert "Traceback" not in said
    assert not (tmp_path / "p" / "preferences.jsonl").exists()


def test_a_folder_of_another_task_or_in_use_is_refused(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("judge.py").write_text(JUDGE)
    other = config.resolve(["task=cartpole_swingup"])
    config.save(other, tmp_path / "p" / "config.yaml")
    assert ask(run, Path("p"), 3) == 2
    assert "cartpole_swingup" in capsys.readouterr().err
    Path("q").mkdir()
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from robolearn.files import locked\n"
        "with locked(Path('q')): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert ask(run, Path("q"), 3) == 2
        assert str(holder.pid) in capsys.readouterr().err
        holder.communicate("")
    with locked(Path("q")):
        pass


def test_an_episode_too_short_for_two_segments_is_said(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("judge.py").write_text(JUDGE)
    assert ask(run, Path("p"), 3, "judge.py:judge", "task.episode_length_s=0.1") == 2
    assert "--seconds" in capsys.readouterr().err
