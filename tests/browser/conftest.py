"""A headless Chromium for the tests of this folder; `make browser` names it in BROWSER, and without it they are
skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",
)
"""WebGL without a GPU, and no connection but those that a test asks for."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A playwright Browser."""
    if not (path := os.environ.get("BROWSER")):
        pytest.skip("BROWSER names no Chromium; make browser does")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
