"""Which episodes end in a step, and which worlds start anew."""

from __future__ import annotations

import torch

from robolearn.core.ends import GONE, Ends


def bits(text: str) -> torch.Tensor:
    return torch.tensor([each == "1" for each in text.replace(" ", "")])


def shown(tensor: torch.Tensor | None) -> str:
    assert tensor is not None
    return "".join(str(int(each)) for each in tensor.tolist())


def test_one_robot_ends_where_it_has_ended_or_its_time_is_over():
    ends = Ends.of(bits("1 0 1 0"), bits("0 1 1 0"), 1, {})
    assert (shown(ends.terminated), shown(ends.truncated)) == ("1010", "0100")
    assert shown(ends.done) == shown(ends.renewed) == "1110"
    assert ends.valid is None
    assert ends.still_gone() == {}
    assert ends.counted(rows := torch.ones(4)) is rows


def test_a_world_ends_for_all_of_its_agents():
    # Three worlds of two: one has an agent that ended, one is late, one goes on.
    ends = Ends.of(bits("01 00 00"), bits("00 11 00"), 2, {})
    assert (shown(ends.terminated), shown(ends.truncated)) == ("110000", "001100")
    assert shown(ends.renewed) == "111100"


def test_agents_end_one_by_one_and_their_world_starts_anew_with_the_last():
    # Worlds of two: the first agent ends; the second ends after the first; one is late with one gone; both end at once.
    ends = Ends.of(bits("10 11 00 11"), bits("00 00 11 00"), 2, {GONE: bits("00 10 10 00")})
    assert shown(ends.valid) == "11010111"
    assert (shown(ends.terminated), shown(ends.truncated)) == ("10010011", "00000100")
    assert shown(ends.renewed) == "00111111"
    assert shown(ends.still_gone()[GONE]) == "10000000"
    assert ends.counted(torch.arange(1.0, 9.0)).tolist() == [1, 2, 0, 4, 0, 6, 7, 8]
