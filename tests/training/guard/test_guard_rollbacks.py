"""What a rollback leaves behind: after a kill, in memory, in the files of a run that is moved, in TensorBoard."""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest

from robolearn import config
from robolearn.errors import ConfigError, RunFailed
from robolearn.training import checkpoint
from robolearn.training import train as training
from robolearn.training.guard.guard import learned_from
from robolearn.training.guard.remedies import scaled
from robolearn.training.train import train

HERE = Path(__file__).parent
COUNTING = f"task={HERE / 'counting.py'}:Counting"
SMALL = [
    COUNTING,
    "num_envs=8",
    "learner.num_steps=5",
    "learner.minibatch_size=20",
    "learner.actor_hidden=[8]",
    "learner.critic_hidden=[8]",
    "torch_threads=1",
    "guard=on",
    "guard.warmup=2",
    "guard.patience=2",
    "guard.interval=2",
    "guard.video=false",
]


def run(*words: str) -> Path:
    resolved = config.resolve([*SMALL, *words])
    return train(resolved, config.resume_changes(words, resolved))


def resume(folder: Path, *words: str) -> Path:
    words = (f"resume={folder}", COUNTING, *words)
    resolved = config.resolve(words)
    return train(resolved, config.resume_changes(words, resolved))


def decisions(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "guard" / "decisions.json").read_text())["decisions"]
    return found


def weight(folder: Path) -> float:
    return float(config.load(folder, [COUNTING]).task.rewards["episodes"])


class Killed(BaseException):
    """Stands for the end of the process."""


def killed_after_latest(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Train until the first rollback has replaced latest.pt, and not yet config.yaml."""
    replace = os.replace

    def stop(source: Any, target: Any) -> None:
        if Path(target).name == "config.yaml" and (folder / "guard" / "finding_1.pt").exists():
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(Killed):
            run("guard.rollbacks=1", "max_iterations=11", f"output={folder}")


def test_a_kill_between_the_checkpoint_and_the_configuration_of_a_rollback_keeps_the_change(
    tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    killed_after_latest(monkeypatch, folder)
    assert weight(folder) == 1.0
    resume(folder)
    assert weight(folder) == 0.1
    assert [each["changes"] for each in decisions(folder)] == [["task.rewards.episodes=0.1"]]
    logged = [json.loads(line)["iteration"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, 12))


def test_what_the_user_sets_when_resuming_is_not_replaced_by_the_change(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    killed_after_latest(monkeypatch, folder)
    resume(folder, "task.rewards.episodes=0.5")
    assert weight(folder) == 0.5


def test_a_rollback_lets_the_old_environments_and_learners_go(tmp_path, monkeypatch):
    made: list[weakref.ref[Any]] = []
    make, iterate, alive = training.make_learner, training._iterate, []

    def noted(run: Any, env: Any, *rest: Any) -> Any:
        learner = make(run, env, *rest)
        made.extend((weakref.ref(env), weakref.ref(learner)))
        return learner

    def counted(*args: Any) -> Any:
        if len(alive) < len(made) // 2 - 1:  # the first iteration after a rollback
            gc.collect()
            alive.append(sum(each() is not None for each in made[:-2]))
        return iterate(*args)

    monkeypatch.setattr(training, "make_learner", noted)
    monkeypatch.setattr(training, "_probe", lambda run, n: ())
    monkeypatch.setattr(training, "_iterate", counted)
    run("guard.rollbacks=2", "max_iterations=14", f"output={tmp_path / 'run'}")
    assert len(made) == 6
    assert alive == [0, 0]


def test_a_run_with_the_healthy_policy_as_reference_can_be_moved(tmp_path):
    folder = run("max_iterations=4", f"output={tmp_path / 'run'}")
    (weights,) = (folder / "checkpoints").glob("*.pt")
    words = [f"learner.reference={str(weights)!r}", "learner.reference_coef=0.1", "max_iterations=6"]
    resume(folder, *words)
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    assert config.load(moved, [COUNTING]).learner.reference == str(moved / "checkpoints" / weights.name)
    resume(moved, "max_iterations=7")
    assert checkpoint.load(moved / "latest.pt")["iter"] == 7


def test_decisions_are_numbered_on_after_a_time_without_the_guard(tmp_path):
    folder = run("guard.rollbacks=1", "max_iterations=11", f"output={tmp_path / 'run'}")
    first = decisions(folder)
    before = (folder / "guard" / "finding_1.jsonl").read_bytes()
    resume(folder, "guard=off", "max_iterations=13")
    with pytest.raises(RunFailed):
        resume(folder, "guard=on", "max_iterations=60")
    again = decisions(folder)
    assert again[0] == first[0]
    assert [each["number"] for each in again] == [1, 2]
    assert again[1]["back_to"] >= 13
    assert (folder / "guard" / "finding_1.jsonl").read_bytes() == before


def test_tensorboard_forgets_what_a_rollback_to_the_start_gives_up(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run("guard.interval=50", "guard.rollbacks=3", "max_iterations=11", f"output={tmp_path / 'run'}")
    assert {each["back_to"] for each in decisions(folder)} == {0}
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("reward/total")] == list(range(1, 12))


def test_its_checkpoints_do_not_pile_up_between_those_of_the_run(tmp_path):
    words = ["task=cartpole_balance", "num_envs=8", "learner.num_steps=5", "learner.minibatch_size=20"]
    words += [
        "guard=on",
        "guard.interval=1",
        "guard.patience=1",
        "checkpoint_interval=1000",
        "torch_threads=1",
    ]
    most, folder = 0, tmp_path / "run"
    keep = training.Guard.prune

    def counted(self: Any, saved: bool = False) -> None:
        nonlocal most
        keep(self, saved)
        most = max(most, len(list((folder / "guard").glob("iteration_*.pt"))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Guard, "prune", counted)
        resolved = config.resolve([*words, "max_iterations=30", f"output={folder}"])
        train(resolved)
    assert 0 < most <= 8


def test_where_nothing_can_be_changed_training_stops_instead_of_repeating_itself(tmp_path):
    with pytest.raises(RunFailed, match="nothing left to change"):
        run("guard.weight=1", "max_iterations=30", f"output={tmp_path / 'run'}")
    (decision,) = decisions(tmp_path / "run")
    assert (decision["action"], decision["changes"]) == ("stopped", [])


def test_a_file_in_the_place_of_the_guards_folder_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "guard").write_text("")
    with pytest.raises(ConfigError, match="guard"):
        run("max_iterations=2", f"output={tmp_path / 'run'}")


def test_the_saved_rate_is_halved_for_each_change_since_the_checkpoint_was_kept():
    content = {"learning_rate": 0.008, "iter": 10}
    words = ["learner.learning_rate=0.0005"]
    assert scaled(content, words, [], 10) == {"learning_rate": 0.004}
    # One before that led to this checkpoint again, one of a checkpoint before it, and one of other settings.
    earlier = [{"back_to": b, "changes": c} for b, c in ((10, words), (5, words), (10, ["task.x=1"]))]
    assert scaled(content, words, earlier, 10) == {"learning_rate": 0.002}
    assert scaled(content, ["task.x=1"], earlier, 10) == {}


def test_with_preferences_the_reward_is_the_one_that_is_learned_from():
    class Settings:
        preferences, task_reward_weight = "folder", 0.5

    rewards = {"reward/total": 0.2, "reward/alive": 0.2, "reward/preference": 0.3}
    rewards["reward/preference_penalty"] = -0.1
    found = learned_from(rewards, Settings())
    assert found == pytest.approx({**rewards, "reward/total": 0.1 + 0.3 - 0.1, "reward/alive": 0.1})


@pytest.mark.parametrize("name", ["clone", "distill", "dpo"])
def test_a_learner_that_does_not_learn_from_the_reward_is_refused_by_name(name, tmp_path):
    given = {
        "clone": ["learner.demonstrations=x"],
        "distill": ["learner.teacher=x"],
        "dpo": ["learner.reference=x", "learner.preferences=x"],
    }
    with pytest.raises(ConfigError, match=f"learner={name}"):
        config.resolve(["task=cartpole_balance", f"learner={name}", *given[name], "guard=on"])


def test_settings_of_a_guard_that_is_off_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"guard\.kl"):
        config.resolve(["task=cartpole_balance", "guard.kl=3"])
