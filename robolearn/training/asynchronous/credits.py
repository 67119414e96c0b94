"""Credits: which batches an update may take, and when an actor may begin one, so that no policy gets too old.

The learner has made `version` updates. A batch is of the version that was current when it was begun, and its lag is the
number of updates between that and its use. It must not exceed K, the staleness. A batch of version v is due with the
update that makes version v + K + 1, at the latest. An update takes M batches, so of those that wait or are being
collected, no more may be due within the next j + 1 updates than these take: r + j M, with r batches that the current
update still needs. `feasible` says whether this holds. Beginning a batch and taking one are allowed only where it holds
afterwards, so it always does, whatever actors do and however long they take. No batch is ever dropped; where the next
update would be one too many for a slow actor, the learner waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable


def feasible(waiting: Iterable[int], version: int, staleness: int, needed: int, batches: int) -> bool:
    """Whether all batches can be used in time.

    Args:
        waiting: version of each batch that is not used, delivered or still being collected.
        version: updates made so far.
        staleness: K, the largest lag.
        needed: r, batches that the current update still needs.
        batches: M, batches of an update.
    """
    due = sorted(each + staleness - version for each in waiting)
    # The i-th batch, in the order in which they are due, is used j updates from now.
    return all(due_in >= _update_of(i, needed, batches) for i, due_in in enumerate(due))


def _update_of(i: int, needed: int, batches: int) -> int:
    """The update, 0 for the current one, that takes the i-th of the waiting batches at the latest."""
    return 0 if i < needed else 1 + (i - needed) // batches


def may_begin(waiting: int, ahead: int, needed: int) -> bool:
    """Whether another batch may be begun: `waiting` batches are not used, of which the current update still takes
    `needed`, and `ahead` may wait for later ones. With ahead <= K M all of them can be used in time."""
    return waiting + 1 <= needed + ahead
