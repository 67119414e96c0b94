"""The log of used batches."""

from __future__ import annotations

import pytest

from robolearn.errors import ConfigError
from robolearn.training.asynchronous.ledger import FILE_NAME, Key, Ledger
from robolearn.training.metrics import read_metrics


def test_what_was_used_after_a_checkpoint_is_rolled_back_with_it(tmp_path):
    log = Ledger(tmp_path)
    for iteration in (1, 2, 3):
        log.enter(iteration, [(Key(0, "a", iteration - 1, iteration - 1), 0)])
    log.close()
    again = Ledger(tmp_path, resume_at=2)
    again.enter(3, [(Key(0, "b", 2, 2), 0)])
    again.close()
    rows = read_metrics(tmp_path / FILE_NAME)
    assert [(row["iteration"], row["incarnation"], row["sequence"]) for row in rows] == [
        (1, "a", 0),
        (2, "a", 1),
        (3, "b", 2),
    ]


@pytest.mark.parametrize("sequence", [4, 6])
def test_a_batch_that_is_used_twice_or_left_out_is_a_bug(tmp_path, sequence):
    log = Ledger(tmp_path)
    log.enter(1, [(Key(1, "a", 4, 0), 0)])
    with pytest.raises(AssertionError, match="actor 1"):
        log.enter(2, [(Key(1, "a", sequence, 0), 0)])


def test_a_gap_across_a_resume_is_a_bug_and_a_checkpoint_of_another_log_is_refused(tmp_path):
    log = Ledger(tmp_path)
    log.enter(1, [(Key(0, "a", 0, 0), 0), (Key(3, "b", 0, 0), 0)])
    log.enter(2, [(Key(0, "a", 1, 1), 0)])
    log.close()
    again = Ledger(tmp_path, resume_at=2)
    # The checkpoint has the state of actor 0 and its number, of 1 a state only, and of 3, which has left, nothing.
    assert again.starts({0: ("state 0", 2), 1: ("state 1", 0)}) == {
        0: ("state 0", 2),
        1: ("state 1", 0),
        3: (None, 1),
    }
    with pytest.raises(ConfigError, match="batch 3 of actor 0"):
        again.starts({0: ("state 0", 3)})
    with pytest.raises(AssertionError, match="actor 0"):
        again.enter(3, [(Key(0, "c", 3, 2), 0)])
    again.close()


def test_a_run_that_one_process_has_continued_goes_on_with_the_numbers_of_the_log(tmp_path):
    log = Ledger(tmp_path)
    log.enter(1, [(Key(0, "a", 0, 0), 0)])
    log.close()
    again = Ledger(tmp_path, resume_at=7)  # iterations 2 to 7 have no batches of actors
    assert again.starts({0: ("state", 0)}) == {0: ("state", 1)}
    again.enter(8, [(Key(0, "b", 1, 7), 0)])
    again.close()


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"iteration": 1}\n{"itera', encoding="utf-8")
    assert read_metrics(tmp_path / FILE_NAME) == [{"iteration": 1}]
