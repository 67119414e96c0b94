"""Waits for what a page shows."""

from __future__ import annotations

from typing import Any


def until(page: Any, expression: str, argument: Any = None, seconds: float = 60.0) -> None:
    """Wait until a page's expression, or function of the argument, is true.

    `page.wait_for_function` evaluates its text in the page, which the content security policy of ours forbids.

    """
    for _ in range(int(seconds / 0.05)):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")
