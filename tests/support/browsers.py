"""A real browser for tests: the fixture `browser`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import servers
from tools import _servers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Milliseconds that a page, or what is expected of it, is waited for: it only bounds a failure.
PATIENCE = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of the system.

    One for each module: what drives it has an event loop in this thread for as long as it lives.
    """
    program = _servers.find("browser")
    if program is None:
        servers.skip_or_fail(_servers.reason(["browser"]))
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE
        )
        try:
            yield found
        finally:
            found.close()
