"""The log of used batches."""

from __future__ import annotations

import pytest

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


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"iteration": 1}\n{"itera', encoding="utf-8")
    assert read_metrics(tmp_path / FILE_NAME) == [{"iteration": 1}]
