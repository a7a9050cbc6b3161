"""The fixture `browser`: a real browser for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import servers
from tools import _servers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Timeout in milliseconds for pages and expectations. It only limits failures.
PATIENCE = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield the Chromium of the system.

    Each module has its own, because the driver has an event loop in this thread while it exists.
    """
    program = _servers.find("browser")
    if program is None:
        servers.skip_or_fail(_servers.reason(["browser"]))
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE
        )
        try:
            yield chromium
        finally:
            chromium.close()
