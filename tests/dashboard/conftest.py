"""A dashboard of a story, and browsers of different rights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.held import Running
from wbengine.dashboard import create_app


@pytest.fixture(scope="module")
def kept() -> story.Kept:
    return story.told()


@pytest.fixture
def stranger(kept: story.Kept) -> Iterator[TestClient]:
    """Who has neither token nor cookie."""
    with client(kept) as found:
        yield found


@pytest.fixture
def guest(kept: story.Kept) -> Iterator[TestClient]:
    """Who may look."""
    with client(kept) as found:
        yield admitted(found)


@pytest.fixture
def keeper(kept: story.Kept) -> Iterator[TestClient]:
    """Who may do things, too."""
    with client(kept, allow_actions=True) as found:
        yield admitted(found)


def client(kept: story.Kept, **options: Any) -> TestClient:
    options.setdefault("token", story.TOKEN)
    app = create_app(kept.backend, **options)
    return TestClient(app, base_url=story.HOST, client=("192.0.2.5", 4711))


def admitted(found: TestClient) -> TestClient:
    answer = found.get("/", params={"token": story.TOKEN}, follow_redirects=False)
    assert answer.status_code == 303
    return found


@pytest.fixture
def running() -> Iterator[Running]:
    """A flow under way."""
    made = Running()
    yield made
    made.end()


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the audit."""
    caplog.set_level(logging.INFO, logger="wbengine.audit")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "wbengine.audit"]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What was written to the log, but for what the client tells of its own requests."""
    caplog.set_level(0)
    return lambda: "\n".join(
        caplog.handler.format(record)
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore"))
    )
