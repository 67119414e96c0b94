"""`rollout_share` with real processes: a rank that is slow for real holds up nobody."""

from __future__ import annotations

import pytest

from robolearn.cli import main
from robolearn.training.metrics import read_metrics
from tests.training.ranks.processes import TINY, run, said

TASK = """
import os, time
from robolearn.tasks.cartpole import CartpoleBalance

class Slow(CartpoleBalance):
    '''A cartpole whose steps take long in rank 1.'''

    def advance(self, state, ctx):
        time.sleep(0.2 if os.environ["RANK"] == "1" else 0.02)
        return super().advance(state, ctx)
"""
WORDS = ["num_envs=32", "shards=4", "learner.num_steps=8", "learner.minibatch_size=64"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["recovery=restart", "recovery=takeover"])
def test_a_slow_rank_is_cut_and_the_log_counts_the_steps_that_were_taken(how, tmp_path):
    if how == "recovery=takeover":
        pytest.importorskip("torchft")
    (tmp_path / "slow.py").write_text(TASK)
    count = 60 if how == "recovery=takeover" else 4  # with takeover, rank 0 may begin alone
    words = [f"task={tmp_path}/slow.py:Slow", *WORDS, f"max_iterations={count}", "ranks=2"]
    words += ["rollout_share=0.5", how]
    assert run(tmp_path / "run", *words) == 0, said(tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == count
    before, cut = 0, 0
    for row in rows:
        taken = row["steps"] - before
        before = row["steps"]
        if "rank1/waiting" not in row:  # with takeover, rank 0 may begin alone
            assert taken == 256
            continue
        # Rank 0 takes all of its 8 x 16 steps, rank 1 between one and seven times 16.
        assert taken % 16 == 0
        assert 9 * 16 <= taken < 16 * 16
        assert row["rollout/cut"] == pytest.approx(1 - taken / 256)
        cut += 1
    assert cut >= 2


@pytest.mark.slow
def test_a_cut_run_says_that_it_does_not_go_on_bit_for_bit(tmp_path):
    words = [*TINY, "max_iterations=3", "ranks=2", "rollout_share=0.5"]
    assert run(tmp_path / "run", *words) == 0, said(tmp_path / "run")
    assert run(tmp_path / "more", f"resume={tmp_path / 'run'}", "max_iterations=4") == 0
    assert "not bit for bit" in said(tmp_path / "more")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["rollout_share=0.5"], "rollout_share"),
        (["rollout_share=0.5", "ranks=1"], "rollout_share"),
        (["rollout_share=0", "ranks=2"], "rollout_share"),
        (["rollout_share=0.5", "ranks=2", "learner.rnn=gru"], "learner.rnn"),
    ],
)
def test_a_setting_that_cannot_be_cut_is_refused(words, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, *words, "max_iterations=1", "output=run"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_learner_that_needs_complete_rollouts_is_refused_by_the_ranks_and_leaves_no_folder(tmp_path):
    words = ["task=cartpole_balance", "num_envs=32", "ranks=2", "shards=2", "rollout_share=0.5"]
    assert run(tmp_path / "run", *words, "learner=shac", "backend=differentiable", "max_iterations=1") == 2
    assert "learner=shac" in said(tmp_path / "run")
    assert not (tmp_path / "run").exists()
