"""A real browser, which tells of everything that a page should not do."""

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
from wbengine.dashboard import Site, runner

SIZE: Any = {"width": 1280, "height": 860}
AXE = Axe()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stages.Stage]:
    with stages.staged(tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.fixture(scope="module")
def site(stage: stages.Stage) -> Iterator[Site]:
    """A dashboard to look at."""
    with stage.site() as found:
        yield found


@pytest.fixture(scope="module")
def acting(stage: stages.Stage) -> Iterator[Site]:
    """One on which things can be done; no command is expected to fail at once."""
    with pytest.MonkeyPatch.context() as patch, stage.site(allow_actions=True) as found:
        patch.setattr(runner, "PATIENCE", 0.0)
        yield found


class Window:
    """Pages of one user, and what went wrong in them."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self.wrong: list[str] = []

    def page(self) -> Page:
        page = self._context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        return page

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _failed(self, request: Any) -> None:
        # A page that is left takes its streams with it, and what it was about to read.
        if "ERR_ABORTED" not in str(request.failure):
            self.wrong.append(f"failed: {request.url} {request.failure}")


Opener = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens pages of a dashboard, for who has its token (None: an empty page); nothing went wrong
    in them afterwards, nor was forbidden by the policy."""
    windows: list[tuple[BrowserContext, Window]] = []

    def open_page(site: Site | None, path: str = "", **options: Any) -> Page:
        context = browser.new_context(viewport=SIZE, **options)
        context.set_default_timeout(PATIENCE)
        window = Window(context)
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
    """Nothing that axe objects to."""
    found = AXE.run(page)
    assert found.violations_count == 0, found.generate_report()


def marked(page: Page) -> None:
    """Tell this page from the same page, loaded again."""
    page.evaluate("window.notReloaded = true")


def is_the_same(page: Page) -> bool:
    return bool(page.evaluate("window.notReloaded === true"))


#: Takes a word out of all texts of a page.
_WITHOUT = """word => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    texts.currentNode.data = texts.currentNode.data.replaceAll(word, "");
  }
}"""


def shoot(page: Page, name: str, folder: Path) -> None:
    """Keep a picture, on which nobody sees where this was run."""
    assert re.fullmatch(r"[a-z-]+", name)
    page.evaluate(_WITHOUT, f"{workers.REPOSITORY}/")
    end = page.evaluate("document.getElementById('main').getBoundingClientRect().bottom")
    size = page.viewport_size
    assert size is not None
    shown = {"x": 0, "y": 0, "width": size["width"], "height": min(end, size["height"])}
    page.screenshot(path=folder / f"dashboard-{name}.png", clip=shown)
