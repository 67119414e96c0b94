"""A run resumes bit for bit after a kill at any moment, after Ctrl-C, and after its end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
from robolearn.training import checkpoint
from robolearn.training.train import train
from tests.training.equal import assert_equal

RUN = [
    "task=humanoid_walk",
    "num_envs=24",
    "max_iterations=8",
    "checkpoint_interval=3",
    "learner.num_steps=24",
    "learner.num_epochs=4",
    "learner.minibatch_size=144",
    "torch_threads=2",
    # Features that have a state: delays, randomization, pushes and their level; of the task's defaults the correlated
    # noise and the averaged weights.
    "task.action_delay=[0,2]",
    "task.observation_delay=[0,1]",
    "task.randomize={friction: [0.5, 1.2], mass_scale: [0.9, 1.1]}",
    "task.pushes.seconds=[0.05,0.2]",
    "task.curricula.pushes.start=0.5",
    "task.episode_length_s=1.0",
]

KILL_DURING = {
    "simulate": """
import robolearn.core.env
step, calls = robolearn.core.env.Env.step, []
def patched(self, action):
    calls.append(1)
    if len(calls) == 24 * 4 + 10: kill()
    return step(self, action)
robolearn.core.env.Env.step = patched
""",
    "learn": """
import robolearn.learners.ppo.update as update
step, calls = update.Update._gradient_step, []
def patched(self, *args):
    calls.append(1)
    if len(calls) == 16 * 4 + 5: kill()
    return step(self, *args)
update.Update._gradient_step = patched
""",
    "write": """
import robolearn.training.checkpoint, os
fsync, calls = os.fsync, []
def patched(number):
    calls.append("latest" in os.readlink(f"/proc/self/fd/{number}"))
    if sum(calls) == 2: os.ftruncate(number, 5000); kill()   # latest.pt of iteration 6, half written
    fsync(number)
os.fsync = patched
""",
}

SCRIPT = """
import os, signal, sys
def send(number): os.kill(os.getpid(), number)
def kill(): send(signal.SIGKILL)
signal.signal(signal.SIGINT, signal.default_int_handler)  # under nohup it is ignored
PATCH
from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
sys.argv.insert(1, "train")
sys.exit(main())
"""

SMALL = [
    "task=cartpole_balance",
    "num_envs=4",
    "learner.num_steps=4",
    "learner.minibatch_size=16",
    "max_iterations=3",
    "torch_threads=1",
    "output=run",
]


def during(iteration: int, do: str) -> str:
    """A patch that runs `do` in the middle of an iteration."""
    return f"""
import robolearn.training.train
row = robolearn.training.train._row
def patched(iteration, *rest):
    if iteration == {iteration}: {do}
    return row(iteration, *rest)
robolearn.training.train._row = patched
"""


def command(folder: Path, *words: str, patch: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("PATCH", patch), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def final(run: Path) -> dict:
    content = torch.load(run / "latest.pt", weights_only=True)
    content["infos"].pop("seconds")  # wall time differs
    return content


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = command(folder, *RUN, "output=run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILL_DURING)
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, tmp_path, moment):
    killed = command(tmp_path, *RUN, "output=run", patch=KILL_DURING[moment])
    assert killed.returncode == -signal.SIGKILL
    run = tmp_path / "run"
    assert checkpoint.load(run / "latest.pt")["iter"] == 3
    resumed = command(tmp_path, "resume=run")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at iteration 3, exactly" in resumed.stdout
    assert_equal(final(uninterrupted), final(run))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, 9))
    whole = [json.loads(line) for line in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward/total"] for row in rows] == [row["reward/total"] for row in whole]
    assert rows[-1]["steps"] == whole[-1]["steps"] == 8 * 24 * 24


@pytest.mark.slow
def test_a_finished_run_resumes_with_more_iterations_and_is_refused_without(uninterrupted, tmp_path):
    short = command(tmp_path, *RUN, "output=run", "max_iterations=5")
    assert short.returncode == 0
    again = command(tmp_path, "resume=run")
    assert again.returncode == 2
    assert "max_iterations=10" in again.stderr
    assert len(again.stderr.strip().splitlines()) == 1
    more = command(tmp_path, "resume=run", "max_iterations=8")
    assert more.returncode == 0, more.stderr
    assert_equal(final(uninterrupted), final(tmp_path / "run"))


def test_a_shac_run_on_a_differentiable_backend_resumes_to_the_same_bits(tmp_path, monkeypatch, capsys):
    pytest.importorskip("warp")
    monkeypatch.chdir(tmp_path)
    small = ["num_envs=6", "checkpoint_interval=2", "learner.num_steps=8", "learner.critic_epochs=2"]
    delays = ["task.action_delay=[0,2]", "task.observation_delay=[0,1]", "task.episode_length_s=0.4"]
    settings = ["device=cpu", "learner.decay_iterations=4", *small, *delays]
    run = ["train", "task=cartpole_swingup", "learner=shac", *settings]
    assert main([*run, "max_iterations=4", "output=whole"]) == 0
    assert main([*run, "max_iterations=2", "output=run"]) == 0
    capsys.readouterr()
    assert main(["train", "resume=run", "max_iterations=4"]) == 0
    assert "resumed at iteration 2, exactly" in capsys.readouterr().out
    assert_equal(final(Path("whole")), final(Path("run")))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_run_after_the_iteration_with_a_checkpoint_that_resumes_exactly(
    uninterrupted, tmp_path, which
):
    stopped = command(tmp_path, *RUN, "output=run", patch=during(2, f"send(signal.{which})"))
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert checkpoint.load(tmp_path / "run" / "latest.pt")["iter"] == 2
    assert "stopped at iteration 2" in stopped.stdout
    assert command(tmp_path, "resume=run").returncode == 0
    assert_equal(final(uninterrupted), final(tmp_path / "run"))


@pytest.mark.parametrize("which", ["SIGINT", "SIGTERM"])
def test_a_signal_that_the_process_ignored_from_its_start_stays_ignored(tmp_path, which):
    """As a shell does with SIGINT for background jobs."""
    ignore = f"signal.signal(signal.{which}, signal.SIG_IGN)\n"
    done = command(tmp_path, *SMALL, patch=ignore + during(2, f"send(signal.{which})"))
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(tmp_path / "run" / "latest.pt")["iter"] == 3


CLOSING = """
from robolearn.core.env import Env
close = Env.close
def patched(self): close(self); send(signal.SIGTERM)
Env.close = patched
"""

BEGINNING = """
import robolearn.training.train
robolearn.training.train.set_threads = lambda run: send(signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (during(3, "send(signal.SIGTERM)"), 0),  # no iteration is left to interrupt
        ("import atexit; atexit.register(lambda: send(signal.SIGTERM))", 0),
        (CLOSING, 0),
        (BEGINNING, 130),
    ],
    ids=["last iteration", "exit", "closing", "beginning"],
)
def test_a_signal_at_any_time_ends_with_a_documented_code(tmp_path, patch, code):
    done = command(tmp_path, *SMALL, patch=patch)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    if code == 0:
        assert checkpoint.load(tmp_path / "run" / "latest.pt")["iter"] == 3


# The first process waits in its second iteration until the test closes its standard input.
WAITS = during(2, 'print("here", flush=True); sys.stdin.read()')


@pytest.fixture
def holder(tmp_path):
    """A process that trains in run/, and locks it as long as its standard input is open."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("PATCH", WAITS), *SMALL, "checkpoint_interval=1"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any(line == "here\n" for line in process.stdout)
        yield process
        process.kill()


@pytest.mark.slow
def test_a_second_training_in_a_run_folder_is_exit_code_2_and_names_the_process(holder, tmp_path):
    second = command(tmp_path, "resume=run")
    assert (second.returncode, len(second.stderr.splitlines())) == (2, 1), second.stderr
    assert f"process {holder.pid} on {socket.gethostname()} since 20" in second.stderr
    elsewhere = command(tmp_path, "resume=run", "output=other")
    assert elsewhere.returncode == 0, elsewhere.stderr
    holder.stdin.close()
    assert holder.wait() == 0
    assert command(tmp_path, "resume=run", "max_iterations=4").returncode == 0


def test_the_lock_of_a_run_folder_is_released_by_a_kill(holder, tmp_path):
    holder.kill()
    holder.wait()
    resumed = command(tmp_path, "resume=run")
    assert resumed.returncode == 0, resumed.stderr
    assert checkpoint.load(tmp_path / "run" / "latest.pt")["iter"] == 3


def test_a_change_that_prevents_an_exact_resume_is_named(uninterrupted, tmp_path):
    result = command(
        tmp_path, f"resume={uninterrupted}", "output=other", "max_iterations=9", "learner.clip=0.1"
    )
    assert result.returncode == 0, result.stderr
    assert "not bit for bit: learner.clip" in result.stdout
    assert (tmp_path / "other" / "latest.pt").exists()
    assert checkpoint.load(uninterrupted / "latest.pt")["iter"] == 8  # the first run is unchanged


def test_a_changed_learning_rate_takes_effect_and_the_simulation_is_restored(uninterrupted, tmp_path):
    words = ["output=other", "max_iterations=9", "learner.learning_rate=1e-5", "learner.schedule=fixed"]
    result = command(tmp_path, f"resume={uninterrupted}", *words)
    assert result.returncode == 0, result.stderr
    row = json.loads((tmp_path / "other" / "metrics.jsonl").read_text())
    assert row["loss/learning_rate"] == 1e-5
    assert (row["iteration"], row["steps"]) == (9, 9 * 24 * 24)  # counted from the start of the run


@pytest.mark.parametrize("change", ["task.action_delay=[0,5]", "task.observation_delay=[0,0]", "seed=77"])
def test_a_changed_task_setting_or_seed_resumes_the_weights_but_not_the_simulation(
    uninterrupted, tmp_path, change
):
    result = command(tmp_path, f"resume={uninterrupted}", "output=other", "max_iterations=9", change)
    assert result.returncode == 0, result.stderr
    assert f"not bit for bit: {change.partition('=')[0]} differ" in result.stdout


@pytest.mark.slow
def test_a_resume_killed_before_its_first_checkpoint_leaves_the_run_unchanged(tmp_path):
    assert command(tmp_path, *RUN, "output=run", "max_iterations=3").returncode == 0
    words = ["resume=run", "max_iterations=8", "task.episode_length_s=2"]
    assert command(tmp_path, *words, patch=KILL_DURING["learn"].replace("16 * 4 + 5", "3")).returncode == -9
    assert "episode_length_s: 1.0" in (tmp_path / "run" / "config.yaml").read_text()
    result = command(tmp_path, "resume=run", "max_iterations=4")
    assert "resumed at iteration 3, exactly" in result.stdout
    assert not list((tmp_path / "run").rglob(".*.part*"))


def test_resuming_an_older_checkpoint_in_the_same_folder_is_refused(uninterrupted, tmp_path):
    before = (uninterrupted / "metrics.jsonl").read_text()
    result = command(tmp_path, f"resume={uninterrupted}/checkpoints/iteration_000003.pt", "max_iterations=9")
    assert result.returncode == 2
    assert "add output=DIR" in result.stderr
    assert (uninterrupted / "metrics.jsonl").read_text() == before


def test_the_advice_where_latest_pt_is_damaged_works(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    latest = tmp_path / "run" / "latest.pt"
    latest.write_bytes(latest.read_bytes()[:3000])
    refused = command(tmp_path, "resume=run", "max_iterations=7")
    assert refused.returncode == 2
    assert "use the newest one from checkpoints/" in refused.stderr
    older = command(tmp_path, "resume=run/checkpoints/iteration_000006.pt", "max_iterations=9")
    assert older.returncode == 2
    assert "add output=DIR" in older.stderr
    result = command(tmp_path, "resume=run/checkpoints/iteration_000008.pt", "max_iterations=9")
    assert result.returncode == 0, result.stderr
    assert checkpoint.load(latest)["iter"] == 9


def test_another_number_of_environments_resumes_from_the_weights(uninterrupted, tmp_path):
    result = command(tmp_path, f"resume={uninterrupted}", "output=other", "max_iterations=9", "num_envs=8")
    assert result.returncode == 0, result.stderr
    assert "not bit for bit: num_envs" in result.stdout


def test_resuming_a_checkpoint_of_weights_only_reports_that_it_is_not_exact(uninterrupted, tmp_path):
    path = uninterrupted / "checkpoints" / "iteration_000006.pt"
    result = command(tmp_path, f"resume={path}", "output=other", "max_iterations=7")
    assert result.returncode == 0, result.stderr
    assert "resumed at iteration 6, not bit for bit: this checkpoint holds weights only" in result.stdout


def test_a_command_that_is_started_again_names_the_files_of_its_run(tmp_path):
    """As torchrun starts it, whose words are those of the first start."""
    (tmp_path / "own.py").write_text(
        "from robolearn.tasks.cartpole import CartpoleBalance\nclass Own(CartpoleBalance):\n    pass\n"
    )
    small = ["learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "learner.num_steps=2", "num_envs=2"]
    words = [f"task={tmp_path / 'own.py'}:Own", *small, "max_iterations=1", f"output={tmp_path / 'run'}"]
    run = config.resolve(words)
    train(run)
    again = replace(run, resume=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"own\.py"):
        config.resume_changes([], again)
    assert config.resume_changes(config.named_files(run), again) == []
