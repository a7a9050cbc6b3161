"""A real browser that records errors of pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tests.browser import stage as stages
from tests.dashboard import story
from tests.support import workers
from tests.support.browsers import PATIENCE
from wbengine.dashboard import Site, _runner

SIZE: Any = {"width": 1280, "height": 860}
AXE = Axe()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stages.Stage]:
    with stages.staged(tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.fixture(scope="module")
def site(stage: stages.Stage) -> Iterator[Site]:
    """A read-only dashboard."""
    with stage.site() as browser:
        yield browser


@pytest.fixture(scope="module")
def acting(stage: stages.Stage) -> Iterator[Site]:
    """A dashboard that allows actions; started commands are assumed not to fail at once."""
    with pytest.MonkeyPatch.context() as patch, stage.site(allow_actions=True) as acting_site:
        patch.setattr(_runner, "FAILURE_SECONDS", 0.0)
        yield acting_site


class Window:
    """Pages of one user, and the errors in them.

    :param sends_faults: whether the user sends forms with faults, which have a response 400.
    """

    def __init__(self, context: BrowserContext, sends_faults: bool) -> None:
        self._context = context
        self._sends_faults = sends_faults
        self.wrong: list[str] = []

    def page(self) -> Page:
        page = self._context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        return page

    def _said(self, message: ConsoleMessage) -> None:
        is_expected = (
            self._sends_faults and "the server responded with a status of 400" in message.text
        )
        if message.type in ("error", "warning") and not is_expected:
            self.wrong.append(f"{message.type}: {message.text}")

    def _failed(self, request: Any) -> None:
        # Leaving a page aborts its streams and requests.
        if "ERR_ABORTED" not in str(request.failure):
            self.wrong.append(f"failed: {request.url} {request.failure}")


Opener = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Return a function that opens pages of a dashboard with its token, or an empty page for None.

    The test fails if errors occurred in these pages.
    """
    windows: list[tuple[BrowserContext, Window]] = []

    def open_page(
        site: Site | None, path: str = "", *, sends_faults: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(viewport=SIZE, **options)
        context.set_default_timeout(PATIENCE)
        window = Window(context, sends_faults)
        windows.append((context, window))
        page = window.page()
        if site is not None:
            page.goto(f"{site.address}{path}?token={story.TOKEN}")
        return page

    yield open_page
    wrong = []
    for context, window in windows:
        context.close()
        wrong += window.wrong
    assert not wrong, "\n".join(wrong)


def accessible(page: Page) -> None:
    """Check that axe finds no violation."""
    violations = AXE.run(page)
    assert violations.violations_count == 0, violations.generate_report()


def marked(page: Page) -> None:
    """Mark this page, so that a reload can be detected."""
    page.evaluate("window.notReloaded = true")


def is_the_same(page: Page) -> bool:
    return bool(page.evaluate("window.notReloaded === true"))


#: Script that removes a word from all texts of a page.
_WITHOUT = """word => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    texts.currentNode.data = texts.currentNode.data.replaceAll(word, "");
  }
}"""


def shoot(page: Page, name: str, folder: Path) -> None:
    """Save a screenshot without paths of this machine."""
    assert re.fullmatch(r"[a-z-]+", name)
    page.evaluate(_WITHOUT, f"{workers.REPOSITORY}/")
    end = page.evaluate("document.getElementById('main').getBoundingClientRect().bottom")
    size = page.viewport_size
    assert size is not None
    shown = {"x": 0, "y": 0, "width": size["width"], "height": min(end, size["height"])}
    page.screenshot(path=folder / f"dashboard-{name}.png", clip=shown)
