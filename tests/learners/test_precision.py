"""`learner.precision`: fp32 unless bf16 is asked for."""

from __future__ import annotations

import pytest

from robolearn.learners.precision import choose_precision


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")])
def test_only_bf16_itself_rounds_to_bf16(wanted, chosen):
    assert choose_precision(wanted) == chosen
