"""Steps of workflows and published values on pages and in the API."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.conftest import admitted, client
from tests.support import shown_workflows
from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines
from wbengine.dashboard import _atom_table
from wbengine.persistence import backends, base

STEPS = {"attempt", "counts", "shown", "earlier", "continued", "continued_at"}
STEP = {
    "execution_runtime", "reversion_runtime",
    "uuid", "name", "position", "state", "shown_state", "executions", "worker", "submitted",
    "started", "ended", "runtime", "error", "waiting", "repeated", "loop", "omitted", "queued",
    "inherited",
}  # fmt: skip


class Stored:
    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend

    def run(self, workflow: type) -> str:
        engine = engines.load(workflow, backend=self.backend)
        with contextlib.suppress(ConnectionError):
            engine.run()
        return str(engine.storage.flow_uuid)


@pytest.fixture
def stored() -> Iterator[Stored]:
    with backends.backend("memory://") as backend:
        yield Stored(backend)


@pytest.fixture
def browser(stored: Stored) -> Iterator[TestClient]:
    with client(stored) as browser:
        yield admitted(browser)


@contextlib.contextmanager
def waiting(stored: Stored, browser: TestClient) -> Iterator[str]:
    """Run a workflow that waits for a signal; yield its uuid."""
    engine = engines.load(shown_workflows.checkout, backend=stored.backend)
    uuid = str(engine.storage.flow_uuid)
    with Running(engine):
        try:
            until(lambda: any(wait["signal"] for wait in flow(browser, uuid)["waits_for"]))
            yield uuid
        finally:
            engine.suspend()


def flow(browser: TestClient, uuid: str) -> dict[str, Any]:
    data: dict[str, Any] = browser.get(f"/api/v1/flows/{uuid}").json()
    return data


def rows(page: str) -> list[str]:
    """Return the texts of the rows for steps."""
    found = re.findall(r'<tr [^>]*class="step.*?</tr>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in found]


def test_steps_and_published_values_have_stable_keys(stored: Stored, browser: TestClient) -> None:
    with waiting(stored, browser) as uuid:
        data = flow(browser, uuid)
    (atom,) = data["atoms"]
    assert set(atom["steps"]) == STEPS
    assert all(set(step) == STEP for step in atom["steps"]["shown"])
    assert atom["steps"]["counts"] == {"SUCCESS": 41, "REVERTED": 2, "RUNNING": 1}
    assert data["published"] == {
        "progress": "waits",
        shown_workflows.HOSTILE: [shown_workflows.HOSTILE, {"password": "***"}],
    }
    assert data["total"] == 1


def test_page_of_a_flow_shows_folded_steps(stored: Stored, browser: TestClient) -> None:
    with waiting(stored, browser) as uuid:
        page = browser.get(f"/flows/{uuid}").text
    header, poll, sleep, book, ship, reverted, wait = rows(page)
    assert header == "20 x poll, sleep-0; the latest:"
    assert poll.startswith("38 poll ✔ SUCCESS 1 local")
    assert sleep.startswith("39 sleep-0 ✔ SUCCESS")
    assert book.startswith("40 book ↶ REVERTED")
    assert ship.startswith("41 ship ConnectionError: no answer")
    assert "REVERTED failed before 3 local" in ship
    assert reverted.startswith("42 revert-scope ✔ SUCCESS")
    assert re.match("43 wait-for-approved .* Waiting for signal .*until .* WAITING", wait)


def test_names_and_values_are_escaped(stored: Stored, browser: TestClient) -> None:
    with waiting(stored, browser) as uuid:
        (atom,) = flow(browser, uuid)["atoms"]
        paths = ("", "/events", "/timeline", "/graph", "/failures", f"/atoms/{atom['uuid']}")
        answers = [browser.get(f"/flows/{uuid}{path}") for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    pages = [answer.text for answer in answers]
    assert all("<img" not in page for page in pages)
    assert "&lt;img src=x onerror=alert(1)&gt;" in pages[0]
    assert "horse" not in "".join(pages)


def test_number_of_rows_for_steps_is_limited(
    stored: Stored, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = stored.run(shown_workflows.various)
    monkeypatch.setattr(_atom_table, "MAX_STEP_ROWS", 5)
    first, *others = rows(browser.get(f"/flows/{uuid}").text)
    assert re.fullmatch(r"\.\.\. 29\d earlier steps", first)
    assert len(others) == 4 and others[-1].startswith("299 book")


def test_events_of_steps_have_times(stored: Stored, browser: TestClient) -> None:
    with waiting(stored, browser) as uuid:
        events = browser.get(f"/api/v1/flows/{uuid}/events").json()["events"]
    assert all(event["at"] for event in events)
    names = [event["name"] for event in events if event["kind"] == "atom"]
    assert names.index("checkout/1.42-revert-scope") > names.index("checkout/1.41-ship")
