"""Dashboards with stored flows, and browsers with different rights."""

from __future__ import annotations

import contextlib
import html
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.forms import send
from tests.dashboard.held import Running
from wbengine.dashboard import create_app, parse_users
from wbengine.engines import _allowed
from wbengine.persistence import backends, base

FILE = """\
# name      role      token
ann         admin     token-of-ann-0123456789
olga        operator  token-of-olga-0123456789   # on duty
edith       editor    token-of-edith-0123456789
victor      viewer    token-of-victor-0123456789
gateway     proxy     token-of-gateway-0123456789
"""
TOKENS = {
    name: f"token-of-{name}-0123456789" for name in ("ann", "edith", "olga", "victor", "gateway")
}


@pytest.fixture(scope="module")
def kept() -> story.Kept:
    return story.told()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    """An empty store in a database."""
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


@pytest.fixture
def stranger(kept: story.Kept) -> Iterator[TestClient]:
    """A browser with neither token nor cookie."""
    with client(kept) as browser:
        yield browser


@pytest.fixture
def guest(kept: story.Kept) -> Iterator[TestClient]:
    """A logged-in browser of a read-only dashboard."""
    with client(kept) as browser:
        yield admitted(browser)


@pytest.fixture
def keeper(kept: story.Kept) -> Iterator[TestClient]:
    """A logged-in browser of a dashboard that allows actions."""
    with client(kept, allow_actions=True) as browser:
        yield admitted(browser)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


def client(kept: Any, **options: Any) -> TestClient:
    """Return a browser of a dashboard; `kept` is a store or has one."""
    options.setdefault("token", story.TOKEN)
    app = create_app(getattr(kept, "backend", kept), **options)
    return TestClient(app, base_url=story.HOST, client=("192.0.2.5", 4711))


def admitted(browser: TestClient) -> TestClient:
    answer = browser.get("/", params={"token": story.TOKEN}, follow_redirects=False)
    assert answer.status_code == 303
    return browser


def bearer(token: str = story.TOKEN) -> dict[str, str]:
    """Return the headers of a program with a token or an access key."""
    return {"authorization": f"Bearer {token}"}


def refused(answer: Any, status: int, text: str) -> None:
    """Check the status of a response, and that its text explains it."""
    assert answer.status_code == status and text in html.unescape(answer.text), answer.text


@contextlib.contextmanager
def allowing(*modules: str) -> Iterator[None]:
    """Allow the submission of flows of these modules."""
    _allowed.set_for_process(modules)
    try:
        yield
    finally:
        _allowed.set_for_process(None)


def site(kept: Any, name: str | None = None) -> TestClient:
    """Return a browser of a dashboard with the users of `FILE`; `name` is logged in."""
    browser = client(kept, token=None, users=parse_users(FILE), allow_actions=True)
    if name is not None:
        assert send(browser, "/login", {"token": TOKENS[name]}).status_code == 303
    return browser


@pytest.fixture
def running() -> Iterator[Running]:
    """A running flow."""
    flow = Running()
    yield flow
    flow.end()


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the lines of the audit log."""
    caplog.set_level(logging.INFO, logger="wbengine.audit")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "wbengine.audit"]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return a function that returns the log without messages of the HTTP client."""
    caplog.set_level(0)
    return lambda: "\n".join(
        caplog.handler.format(record)
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore"))
    )
