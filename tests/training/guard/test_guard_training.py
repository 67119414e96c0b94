"""A training under the guard: the same bits while it only watches, rollback, resume, exit code 4, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robolearn import config
from robolearn.cli import main
from robolearn.commands.report.blocks import Page
from robolearn.commands.report.reading import read
from robolearn.commands.report.report import page_of
from robolearn.errors import ConfigError, RunFailed
from robolearn.training import checkpoint
from robolearn.training.guard import evidence
from robolearn.training.train import train
from tests.training.equal import assert_equal

HERE = Path(__file__).parent
SMALL = [
    "num_envs=8",
    "learner.num_steps=5",
    "learner.minibatch_size=20",
    "learner.actor_hidden=[8]",
    "learner.critic_hidden=[8]",
    "torch_threads=1",
]
QUICK = ["guard=on", "guard.warmup=2", "guard.patience=2", "guard.interval=2"]
COUNTING = f"task={HERE / 'counting.py'}:Counting"


def run(*words: str) -> Path:
    resolved = config.resolve([*SMALL, *words])
    return train(resolved, config.resume_changes(words, resolved))


def newest(folder: Path) -> dict[str, Any]:
    """The newest checkpoint, without what measures time."""
    content = checkpoint.load(folder / "latest.pt")
    content["infos"].pop("seconds")
    return content


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def decisions(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "guard" / evidence.DECISIONS).read_text())["decisions"]
    return found


@pytest.mark.parametrize("task", ["hopper_run", "arm_lift"])
def test_a_guard_that_only_watches_changes_no_bit(tmp_path, task):
    words = [f"task={task}", "max_iterations=6", "checkpoint_interval=3"]
    folders = [run(*words, f"guard={mode}", f"output={tmp_path / mode}") for mode in ("on", "off")]
    watched, alone = (newest(folder) for folder in folders)
    watched["infos"].pop("guard")
    assert_equal(watched, alone)
    assert not (folders[1] / "guard").exists()
    logged = set(rows(folders[0])[-1]) - set(rows(folders[1])[-1])
    assert {"guard/success", "guard/energy", "guard/action_spread", "guard/suspicions"} <= logged
    assert all(name.startswith("guard/") for name in logged)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the guard stopped at its first finding."""
    folder = tmp_path_factory.mktemp("guard") / "run"
    words = [COUNTING, *QUICK, "guard.rollbacks=0", "max_iterations=30", f"output={folder}"]
    with pytest.raises(RunFailed, match=r"latest\.pt"):
        run(*words)
    return folder


def test_the_checkpoint_that_is_kept_has_the_bits_of_a_run_that_ended_there(stopped, tmp_path):
    (decision,) = decisions(stopped)
    back = decision["back_to"]
    assert 0 <= back <= decision["onset"] < decision["iteration"]
    kept = newest(stopped)
    assert kept["iter"] == back
    kept["infos"].pop("guard")
    if back:
        words = [COUNTING, f"max_iterations={back}", f"output={tmp_path / 'run'}"]
        assert_equal(kept, newest(run(*words)))
    # Later checkpoints belong to a history that is given up.
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == [f"iteration_{back:06d}.pt"]


def test_a_finding_is_noted_with_its_evidence(stopped):
    (decision,) = decisions(stopped)
    assert decision["finding"] == "success"
    assert decision["action"] == "stopped"
    assert decision["success"]["now"] < decision["success"]["before"]
    assert decision["reward"]["now"] > decision["reward"]["before"]
    folder = stopped / "guard"
    for name in ("rows", "checkpoint", "replay"):
        assert (folder / decision[name]).is_file()
    given_up = [each["iteration"] for each in rows(folder, decision["rows"])]
    assert given_up == list(range(decision["back_to"] + 1, decision["iteration"] + 1))
    assert decision["video"] is None
    assert decision["no_video"]


def test_exit_code_4_after_the_last_rollback_in_one_line(tmp_path, capfd):
    words = [COUNTING, *SMALL, *QUICK, "guard.rollbacks=1", "guard.video=false", f"output={tmp_path / 'run'}"]
    assert main(["train", *words, "max_iterations=60"]) == 4
    error = capfd.readouterr().err.strip()
    assert error.count("\n") == 0
    assert "latest.pt" in error
    first, second = decisions(tmp_path / "run")
    assert (first["action"], second["action"]) == ("rolled back", "stopped")


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the guard rolled back once, and that ended before the second finding."""
    folder = tmp_path_factory.mktemp("guard") / "run"
    probe = tmp_path_factory.mktemp("probe") / "run"
    with pytest.raises(RunFailed):
        run(COUNTING, *QUICK, "guard.rollbacks=1", "max_iterations=60", f"output={probe}")
    last = decisions(probe)[1]["iteration"] - 1
    assert last > decisions(probe)[0]["iteration"] - decisions(probe)[0]["back_to"]
    return run(COUNTING, *QUICK, "guard.rollbacks=1", f"max_iterations={last}", f"output={folder}")


def test_a_run_goes_on_from_the_healthy_checkpoint_with_the_stated_change(rolled_back):
    (decision,) = decisions(rolled_back)
    assert decision["changes"] == ["task.rewards.episodes=0.1"]
    saved = config.load(rolled_back, [COUNTING])
    assert float(saved.task.rewards["episodes"]) == 0.1
    # One history: no iteration is counted twice.
    logged = rows(rolled_back)
    assert [each["iteration"] for each in logged] == list(range(1, saved.max_iterations + 1))
    assert [each["steps"] for each in logged] == [40 * each["iteration"] for each in logged]


def test_a_run_resumed_before_and_after_a_rollback_has_the_same_bits(rolled_back, tmp_path):
    (decision,) = decisions(rolled_back)
    last = config.load(rolled_back, [COUNTING]).max_iterations
    folder, resumed = tmp_path / "run", [f"resume={tmp_path / 'run'}", COUNTING]
    before = decision["iteration"] - 1
    run(COUNTING, *QUICK, "guard.rollbacks=1", f"max_iterations={before}", f"output={folder}")
    after = max(before, decision["back_to"]) + 1
    for end in (after, last):
        resolved = config.resolve([*resumed, f"max_iterations={end}"])
        changes = config.resume_changes(resumed, resolved)
        assert changes == []
        train(resolved, changes)
    whole, parts = newest(rolled_back), newest(folder)
    for content in (whole, parts):
        for each in content["infos"]["guard"]["decisions"]:
            each.pop("rewards")
    assert_equal(whole, parts)


def test_a_run_that_resumes_in_another_folder_can_roll_back(rolled_back, tmp_path):
    content = checkpoint.load(rolled_back / "latest.pt")
    needed = content["infos"]["guard"]["checkpoints"]
    assert needed
    assert {path.name for path in (rolled_back / "guard").glob("iteration_*.pt")} == {
        f"iteration_{i:06d}.pt" for i in needed
    }
    words = [f"resume={rolled_back}", COUNTING, f"output={tmp_path / 'other'}", "max_iterations=60"]
    resolved = config.resolve(words)
    with pytest.raises(RunFailed):
        train(resolved, config.resume_changes(words, resolved))
    assert newest(tmp_path / "other")["iter"] <= content["iter"]
    assert len(decisions(tmp_path / "other")) == 2


def test_the_report_shows_every_decision(rolled_back):
    page: Page = page_of(read(str(rolled_back)), (COUNTING,), stills=False)
    (section,) = [each for each in page.sections if each.id == "guard"]
    shown = str(section.blocks)
    (decision,) = decisions(rolled_back)
    for text in (decision["said"], "task.rewards.episodes=0.1", "rolled back"):
        assert text in shown
    assert not any("guard/" in str(each.blocks) for each in page.sections if each.id == "files")


def test_a_third_party_environment_is_watched_by_the_signals_that_it_has(tmp_path):
    folder = run("task=gymnasium:Pendulum-v1", "guard=on", "max_iterations=4", f"output={tmp_path / 'run'}")
    last = rows(folder)[-1]
    assert {"guard/action_spread", "guard/state_spread", "guard/suspicions"} <= set(last)
    assert "guard/success" not in last


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["guard=maybe"], "guard.mode"),
        (["guard.rolbacks=1"], "rollbacks"),
        (["guard.patience=0"], "guard.patience"),
        (["guard.rise=1"], "guard.rise"),
        (["guard=on", "mode=async"], "mode=async"),
        (["guard=on", "ranks=2"], "ranks=2"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(words, named):
    with pytest.raises(ConfigError, match=named):
        config.resolve(["task=cartpole_balance", *words])


def test_guard_on_is_short_for_its_mode_and_settings_are_merged():
    resolved = config.resolve(["task=cartpole_balance", "guard.patience=7", "guard=on", "guard.kl=3"])
    assert (resolved.guard.mode, resolved.guard.patience, resolved.guard.kl) == ("on", 7, 3.0)
    assert config.resolve(["task=cartpole_balance"]).guard.mode == "off"
    changed = config.resolve(["guard.kl=4"], resolved)
    assert (changed.guard.patience, changed.guard.kl) == (7, 4.0)


@pytest.mark.slow
def test_the_command_films_a_finding_where_it_can(tmp_path):
    words = [COUNTING, *SMALL, *QUICK, "guard.rollbacks=0", "max_iterations=30", f"output={tmp_path / 'run'}"]
    assert main(["train", *words]) == 4
    (decision,) = decisions(tmp_path / "run")
    if decision["video"] is None:  # no renderer or encoder here
        assert decision["no_video"]
    else:
        assert (tmp_path / "run" / "guard" / decision["video"]).stat().st_size > 1000
