"""The form that sends a signal to a flow that waits for it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import refused, site
from tests.dashboard.forms import send, token_in
from tests.support import signalled
from tests.support.waiting import until
from wbengine import engines, states
from wbengine.persistence import backends, base
from wbengine.views import flow_status


class Waiting:
    """A flow that waits for a signal."""

    def __init__(self, backend: base.Backend, flow: Any) -> None:
        self.backend = backend
        self.engine = engines.load(flow, backend=backend)
        self.uuid = self.engine.storage.flow_uuid
        self.path = f"/flows/{self.uuid}"

    def state(self) -> str | None:
        """Return the stored state."""
        with self.backend.get_connection() as connection:
            return connection.get_flow_details(self.uuid, lazy=True).state

    def shown_state(self) -> str:
        with self.backend.get_connection() as connection:
            return flow_status.read(connection, self.uuid).shown_state


@contextlib.contextmanager
def run(flow: Any, folder: Path) -> Iterator[Waiting]:
    with backends.backend(f"sqlite:///{folder}/flows.db") as backend:
        waiting_flow = Waiting(backend, flow)
        thread = threading.Thread(target=waiting_flow.engine.run)
        thread.start()
        until(lambda: waiting_flow.shown_state() == states.WAITING)
        yield waiting_flow
        waiting_flow.engine.suspend()
        thread.join(60)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    with run(signalled.flow(), tmp_path) as waiting_flow:
        yield waiting_flow


def test_operator_sends_a_signal(waiting: Waiting, audit: Any) -> None:
    path = waiting.path
    with site(waiting, "olga") as browser:
        page = browser.get(path).text
        assert re.search(r'class="badge state-WAITING"><i[^>]*data-field="icon"', page)
        row = browser.get("/").text
        assert 'class="badge state-WAITING"' in row and "for approved since <time" in row
        (flows,) = browser.get("/api/v1/flows").json()["flows"]
        one = browser.get(f"/api/v1{path}").json()
        assert flows["shown_state"] == one["shown_state"] == "WAITING"
        (wait,) = flows["waits_for"]
        assert one["waits_for"] == [wait] and wait["signal"] == "approved"
        assert wait["task"] == "wait-for-approved" and wait["since"] < wait["until"]
        assert "<option>approved</option>" in page and "Waiting for signal" in page
        fields = {"form_token": token_in(page), "signal": "approved"}
        odd = send(browser, f"{path}/signal", {**fields, "value": "{"})
        assert odd.status_code == 400 and "The value must be JSON" in odd.text
        wrong = send(browser, f"{path}/signal", {**fields, "signal": "aproved"})
        assert wrong.status_code == 404 and "did you mean" in wrong.text
        answer = send(browser, f"{path}/signal", {**fields, "value": '{"secret": "canary"}'})
        assert answer.status_code == 303
        until(lambda: waiting.state() == states.SUCCESS)
        assert waiting.engine.storage.fetch("found") == {"secret": "canary"}
        page = browser.get(answer.headers["location"]).text
        assert "The signal was sent to the flow." in page and "Give a signal" not in page
        refused(send(browser, f"{path}/signal", fields), 409, "has ended in SUCCESS")
    lines = audit()
    assert lines[2] == f"signal flow {waiting.uuid} 'approved', from olga, operator, 192.0.2.5"
    assert "canary" not in "".join(lines)


def test_signal_is_accepted_once(waiting: Waiting) -> None:
    waiting.engine.suspend()
    until(lambda: waiting.state() == states.SUSPENDED)
    with site(waiting, "olga") as browser:
        fields = {"form_token": token_in(browser.get(waiting.path).text), "signal": "approved"}
        assert send(browser, f"{waiting.path}/signal", fields).status_code == 303
        refused(send(browser, f"{waiting.path}/signal", fields), 409, "its first value counts")


def test_form_of_workflow_accepts_any_signal(tmp_path: Path) -> None:
    with run(signalled.ticks(), tmp_path) as waiting, site(waiting, "olga") as browser:
        path = waiting.path
        page = browser.get(path).text
        assert '<input name="signal"' in page and "<option>tick</option>" in page
        assert "\x1f" not in page and "Waiting for signal &#39;tick #2&#39;" in page
        assert "for tick #2 since <time" in browser.get("/").text
        waits = browser.get(f"/api/v1{path}").json()["waits_for"]
        assert [(wait["signal"], wait["number"]) for wait in waits] == [
            ("tick", 1), ("tick", 2), ("tick", 3),
        ]  # fmt: skip
        for name in ("other", "tick", "tick", "tick"):
            fields = {"form_token": token_in(page), "signal": name, "value": '"x"'}
            assert send(browser, f"{path}/signal", fields).status_code == 303
        until(lambda: waiting.state() == states.SUCCESS)
        assert '<input name="signal"' not in browser.get(path).text


def test_page_lists_awaited_signals_after_a_signal_that_nothing_awaits(tmp_path: Path) -> None:
    with run(signalled.order, tmp_path) as waiting, site(waiting, "olga") as browser:
        page = browser.get(waiting.path).text
        assert "<option>approved</option>" in page
        fields = {"form_token": token_in(page), "signal": "aproved"}
        answer = send(browser, f"{waiting.path}/signal", fields)
        page = browser.get(answer.headers["location"]).text
        assert "Nothing waits for a signal of this name now. Awaited signals: approved." in page
        fields["signal"] = "approved"
        answer = send(browser, f"{waiting.path}/signal", fields)
        assert "The signal was sent to the flow.<" in browser.get(answer.headers["location"]).text


def test_viewer_cannot_send_a_signal(waiting: Waiting) -> None:
    with site(waiting, "victor") as viewer:
        page = viewer.get(waiting.path).text
        assert "Waiting for signal" in page and "Give a signal" not in page
        answer = send(viewer, f"{waiting.path}/signal", {"signal": "approved"})
        assert answer.status_code == 403
    with waiting.backend.get_connection() as connection:
        assert connection.signals([waiting.uuid]) == {}
