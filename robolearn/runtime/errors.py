"""How the runtime says no: one line and an exit code, the same as those of `robolearn export`."""

from __future__ import annotations

OK = 0
BAD_INPUT = 2
"""A bundle, a file or an option that cannot be used."""
NOT_THE_SAME = 3
"""Export, checker or parity failure: the policy is not the one that was trained."""
OVER_BUDGET = 4
"""Too slow for its control period, measured or modelled."""
NOT_HERE = 5
"""What was required cannot be had on this machine."""
ENGINE = 6
"""An engine of another device or TensorRT version, or one that could not be built."""


class Refused(Exception):
    """A one-line message for the user, and the exit code that goes with it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code
