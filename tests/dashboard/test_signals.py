"""The form that gives a flow the signal that a task of it waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import site
from tests.dashboard.forms import send, token_in
from tests.support import signalled
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.persistence import backends, base


class Waiting:
    """A flow that waits for a signal."""

    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend
        self.engine = engines.load(signalled.flow(), backend=backend)
        self.uuid = self.engine.storage.flow_uuid
        self.path = f"/flows/{self.uuid}"

    def state(self) -> str | None:
        """As who looks at the store sees it."""
        with self.backend.get_connection() as connection:
            return connection.get_flow_details(self.uuid, lazy=True).state


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        made = Waiting(backend)
        thread = threading.Thread(target=made.engine.run)
        thread.start()
        until(lambda: made.state() == states.RUNNING)
        yield made
        made.engine.suspend()
        thread.join(60)


def test_operator_gives_a_signal(waiting: Waiting, audit: Any) -> None:
    path = waiting.path
    with site(waiting, "olga") as browser:
        page = browser.get(path).text
        assert "<option>approved</option>" in page and "It waits for signal" in page
        fields = {"form_token": token_in(page), "signal": "approved"}
        odd = send(browser, f"{path}/signal", {**fields, "value": "{"})
        assert odd.status_code == 400 and "The value is no JSON" in odd.text
        wrong = send(browser, f"{path}/signal", {**fields, "signal": "aproved"})
        assert wrong.status_code == 404 and "did you mean" in wrong.text
        answer = send(browser, f"{path}/signal", {**fields, "value": '{"secret": "canary"}'})
        assert answer.status_code == 303
        until(lambda: waiting.state() == states.SUCCESS)
        assert waiting.engine.storage.fetch("found") == {"secret": "canary"}
        page = browser.get(answer.headers["location"]).text
        assert "The flow was given the signal." in page and "Give a signal" not in page
        late = send(browser, f"{path}/signal", fields)
        assert late.status_code == 409 and "has ended in SUCCESS" in late.text
    lines = audit()
    assert lines[2] == f"signal flow {waiting.uuid} 'approved', from olga, operator, 192.0.2.5"
    assert "canary" not in "".join(lines)


def test_signal_is_given_once(waiting: Waiting) -> None:
    waiting.engine.suspend()
    until(lambda: waiting.state() == states.SUSPENDED)
    with site(waiting, "olga") as browser:
        fields = {"form_token": token_in(browser.get(waiting.path).text), "signal": "approved"}
        assert send(browser, f"{waiting.path}/signal", fields).status_code == 303
        again = send(browser, f"{waiting.path}/signal", fields)
        assert again.status_code == 409 and "before, and that one counts" in again.text


def test_viewer_gives_none(waiting: Waiting) -> None:
    with site(waiting, "victor") as viewer:
        page = viewer.get(waiting.path).text
        assert "It waits for signal" in page and "Give a signal" not in page
        answer = send(viewer, f"{waiting.path}/signal", {"signal": "approved"})
        assert answer.status_code == 403
    with waiting.backend.get_connection() as connection:
        assert connection.signals([waiting.uuid]) == {}
