"""A real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests import servers
from tools import _servers


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of the system."""
    program = _servers.find("browser")
    if program is None:
        servers.skip_or_fail(_servers.reason(["browser"]))
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()
