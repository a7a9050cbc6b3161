"""The form that gives a flow the signal that a task of it waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.forms import send, token_in
from tests.support import signalled
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.dashboard import create_app, parse_users
from wbengine.engines import base as engine_base
from wbengine.persistence import backends, base

TOKENS = {name: f"token-of-{name}-0123456789" for name in ("olga", "victor")}
USERS = f"olga operator {TOKENS['olga']}\nvictor viewer {TOKENS['victor']}\n"


@contextlib.contextmanager
def site(kept: base.Backend, name: str) -> Iterator[TestClient]:
    app = create_app(kept, users=parse_users(USERS), allow_actions=True)
    with TestClient(app, base_url=story.HOST, client=("192.0.2.5", 4711)) as client:
        assert send(client, "/login", {"token": TOKENS[name]}).status_code == 303
        yield client


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[base.Backend, engine_base.Engine]]:
    """The store of a flow that waits, and its engine."""
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engine = engines.load(signalled.flow(), backend=backend)
        thread = threading.Thread(target=engine.run)
        thread.start()
        until(lambda: written(backend, engine) == states.RUNNING)
        yield backend, engine
        engine.suspend()
        thread.join(60)


def written(kept: base.Backend, engine: engine_base.Engine) -> str | None:
    """The state of the flow as who looks at the store sees it."""
    with kept.get_connection() as connection:
        return connection.get_flow_details(engine.storage.flow_uuid, lazy=True).state


def test_operator_gives_a_signal(
    waiting: tuple[base.Backend, engine_base.Engine], audit: Any
) -> None:
    kept, engine = waiting
    path = f"/flows/{engine.storage.flow_uuid}"
    with site(kept, "olga") as browser:
        page = browser.get(path).text
        assert "<option>approved</option>" in page and "It waits for signal" in page
        fields = {"form_token": token_in(page), "signal": "approved"}
        odd = send(browser, f"{path}/signal", {**fields, "value": "{"})
        assert odd.status_code == 400 and "The value is no JSON" in odd.text
        wrong = send(browser, f"{path}/signal", {**fields, "signal": "aproved"})
        assert wrong.status_code == 404 and "did you mean" in wrong.text
        answer = send(browser, f"{path}/signal", {**fields, "value": '{"secret": "canary"}'})
        assert answer.status_code == 303
        until(lambda: written(kept, engine) == states.SUCCESS)
        assert engine.storage.fetch("found") == {"secret": "canary"}
        page = browser.get(answer.headers["location"]).text
        assert "The flow was given the signal." in page and "Give a signal" not in page
        late = send(browser, f"{path}/signal", fields)
        assert late.status_code == 409 and "has ended in SUCCESS" in late.text
    lines = audit()
    uuid = engine.storage.flow_uuid
    assert lines[2] == f"signal flow {uuid} 'approved', from olga, operator, 192.0.2.5"
    assert "canary" not in "".join(lines)


def test_signal_is_given_once(waiting: tuple[base.Backend, engine_base.Engine]) -> None:
    kept, engine = waiting
    path = f"/flows/{engine.storage.flow_uuid}"
    engine.suspend()
    until(lambda: written(kept, engine) == states.SUSPENDED)
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get(path).text), "signal": "approved"}
        assert send(browser, f"{path}/signal", fields).status_code == 303
        again = send(browser, f"{path}/signal", fields)
        assert again.status_code == 409 and "before, and that one counts" in again.text


def test_viewer_gives_none(waiting: tuple[base.Backend, engine_base.Engine]) -> None:
    kept, engine = waiting
    path = f"/flows/{engine.storage.flow_uuid}"
    with site(kept, "victor") as viewer:
        page = viewer.get(path).text
        assert "It waits for signal" in page and "Give a signal" not in page
        answer = send(viewer, f"{path}/signal", {"signal": "approved"})
        assert answer.status_code == 403
    with kept.get_connection() as connection:
        assert connection.signals([engine.storage.flow_uuid]) == {}
