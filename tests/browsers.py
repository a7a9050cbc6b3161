"""A real browser for tests: the fixture `browser`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests import servers
from tools import _servers

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of the system.

    One for each module: what drives it has an event loop in this thread for as long as it lives.
    """
    program = _servers.find("browser")
    if program is None:
        servers.skip_or_fail(_servers.reason(["browser"]))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()
