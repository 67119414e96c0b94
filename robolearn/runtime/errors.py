"""Errors of the runtime: a one-line message and an exit code, the same codes as those of `robolearn export`."""

from __future__ import annotations

OK = 0
BAD_INPUT = 2
"""A bundle, a file or an option that cannot be used."""
NOT_THE_SAME = 3
"""The exported policy is not the trained one: export, checker, parity, golden check or closed loop failed."""
OVER_BUDGET = 4
"""Too slow for its control period, measured or modelled."""
NOT_HERE = 5
"""A required package or device is missing on this machine."""
ENGINE = 6
"""The engine is for another device or TensorRT version, or could not be built."""


class Refused(Exception):
    """A one-line message for the user and its exit code, `code`."""

    longest = 1000
    """Most characters of a message: a damaged file may hold any text."""

    def __init__(self, message: str, code: int) -> None:
        text = " ".join(message.split())
        super().__init__(text if len(text) <= self.longest else f"{text[: self.longest]}...")
        self.code = code
