"""Steps, logs and published values of workflows on pages and in the API."""

from __future__ import annotations

import contextlib
import html
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard.conftest import admitted, client
from tests.dashboard.story import CANARY
from tests.support import shown_workflows
from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines, task
from wbengine.dashboard import _atom_table
from wbengine.patterns import linear_flow
from wbengine.persistence import models
from wbengine.persistence.backends import _memory

LOG = logging.getLogger("tests.step_pages")
LOG.setLevel(logging.INFO)
HOSTILE = "<img src=x onerror=alert(1)>"


@task.task
def book(what: str, password: str) -> str:
    LOG.info("booked %s with %s", what, password)
    return f"booked {what}"


@book.revert
def cancel(what: str, password: str) -> None:
    LOG.info("cancelled %s", what)


@task.task(retries=1)
def ship(what: str) -> None:
    LOG.warning("%s cannot be shipped %s", what, HOSTILE)
    raise ConnectionError(f"no answer {HOSTILE}")


@task.task
def note(text: str, more: str) -> None:
    pass


@task.workflow(name="checkout")
def checkout(steps: Any) -> None:
    steps.run(book, "car", CANARY)
    steps.run(note, "short", f"{'x' * 150} {CANARY} {'y' * 300}")
    steps.run(ship, "lamp")


class Loud(task.Task):
    def execute(self) -> None:
        LOG.error("the disk is full")
        raise OSError("no space")


class Stored:
    """A store with flows."""

    def __init__(self) -> None:
        self.backend = _memory.MemoryBackend()

    def run(self, flow: Any) -> str:
        engine = engines.load(flow, backend=self.backend)
        with contextlib.suppress(OSError):
            engine.run()
        return str(engine.storage.flow_uuid)

    def uuid_of(self, flow: str, name: str) -> str:
        with contextlib.closing(self.backend.get_connection()) as connection:
            records: list[models.AtomDetail] = list(connection.get_atoms_for_flow(flow))
        return next(record.uuid for record in records if record.name == name)


@pytest.fixture(scope="module")
def stored() -> Stored:
    return Stored()


@pytest.fixture(scope="module")
def uuid(stored: Stored) -> str:
    return stored.run(checkout)


@pytest.fixture
def browser(stored: Stored) -> Iterator[TestClient]:
    with client(stored) as browser:
        yield admitted(browser)


@pytest.fixture
def showing(stored: Stored) -> Iterator[TestClient]:
    """A browser of a dashboard that shows values."""
    with client(stored, show_values=True) as browser:
        yield admitted(browser)


def text_of(browser: TestClient, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert HOSTILE not in answer.text and CANARY not in answer.text
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", answer.text).split()))


def test_page_of_a_step_shows_its_failure_attempts_and_log(
    stored: Stored, browser: TestClient, uuid: str
) -> None:
    step = stored.uuid_of(uuid, "checkout/1.2-ship")
    text = text_of(browser, f"/flows/{uuid}/atoms/{step}")
    assert "ship ↶ REVERTED failed before step" in text
    assert "Inputs what str, 4 characters" in text
    assert f"ConnectionError: no answer {HOSTILE}" in text
    assert f"WARNING execution 1 lamp cannot be shipped {HOSTILE}" in text
    assert f"WARNING execution 2 lamp cannot be shipped {HOSTILE}" in text
    assert len(re.findall(r"[12] execute ✘ FAILURE", text)) == 2


def test_values_of_a_step_are_shown_on_request(
    stored: Stored, browser: TestClient, showing: TestClient, uuid: str
) -> None:
    path = f"/flows/{uuid}/atoms/{stored.uuid_of(uuid, 'checkout/1.0-book')}"
    hidden, shown = text_of(browser, path), text_of(showing, path)
    assert "Inputs what str, 3 characters password str, 23 characters" in hidden
    assert "Result str, 10 characters" in hidden
    assert "what car" in shown and "password ***" in shown
    assert "Result booked car" in shown
    assert "execution 1 booked car with ***" in shown
    assert "reversion 1 cancelled car" in shown
    assert "reverted in" in shown


def test_incomplete_argument_of_a_step_is_not_shown(
    stored: Stored, showing: TestClient, uuid: str
) -> None:
    """The start of a secret would not be masked."""
    text = text_of(showing, f"/flows/{uuid}/atoms/{stored.uuid_of(uuid, 'checkout/1.1-note')}")
    assert "text short" in text and "Further inputs are too long" in text
    assert "xxx" not in text and "canary" not in text


def test_page_of_an_unknown_step_is_missing(browser: TestClient, uuid: str) -> None:
    assert browser.get(f"/flows/{uuid}/atoms/{uuid}").status_code == 404


def test_failure_of_a_workflow_leads_to_its_step_and_lines(
    stored: Stored, browser: TestClient, uuid: str
) -> None:
    step = stored.uuid_of(uuid, "checkout/1.2-ship")
    text = text_of(browser, f"/flows/{uuid}/failures")
    assert "Raised by step checkout/1.2-ship" in text
    assert text.count(f"lamp cannot be shipped {HOSTILE}") == 1  # only the attempt that failed
    assert f'href="/flows/{uuid}/atoms/{step}"' in browser.get(f"/flows/{uuid}/failures").text
    undone = text.partition("Reverted tasks and steps, in this order")[2]
    assert undone.index("checkout/1.0-book") < undone.index("checkout ↶ REVERTED")


def test_failure_of_a_task_has_its_lines(stored: Stored, browser: TestClient) -> None:
    uuid = stored.run(linear_flow.Flow("nightly").add(Loud("loud")))
    text = text_of(browser, f"/flows/{uuid}/failures")
    assert "Log of this attempt" in text and "ERROR the disk is full" in text


def test_logs_of_a_flow_are_latest_first(stored: Stored, browser: TestClient, uuid: str) -> None:
    text = text_of(browser, f"/flows/{uuid}/logs")
    assert text.index("cancelled car") < text.index("booked car with ***")
    page = browser.get(f"/flows/{uuid}/logs", params={"part": "body", "task": "ship"}).text
    assert page.count("lamp cannot be shipped") == 2 and "booked" not in page
    assert browser.get(f"/flows/{uuid}/logs?task=nobody").status_code == 404


def test_page_of_a_workflow_has_the_lines_of_its_steps(
    stored: Stored, browser: TestClient, uuid: str
) -> None:
    text = text_of(browser, f"/flows/{uuid}/atoms/{stored.uuid_of(uuid, 'checkout')}")
    assert "checkout/1.2-ship lamp cannot be shipped" in text


def test_logs_are_polled_only_while_lines_may_follow(
    stored: Stored, browser: TestClient, uuid: str
) -> None:
    assert "every 2s" not in browser.get(f"/flows/{uuid}/logs").text
    engine = engines.load(checkout, backend=stored.backend)
    engine.compile()
    engine.prepare()
    path = f"/flows/{engine.storage.flow_uuid}/logs"
    assert "every 2s" in browser.get(path).text
    assert "No log lines yet" in text_of(browser, path)


def test_list_and_head_count_steps(browser: TestClient, uuid: str) -> None:
    assert "0 of 3 steps" in text_of(browser, "/?find=checkout")
    head = text_of(browser, f"/flows/{uuid}?part=head")
    assert "3 REVERTED" in head and "Done 0 of 3 steps" in head
    row = browser.get(f"/api/v1/flows?find={uuid}").json()["flows"][0]
    assert row["step_counts"] == {"REVERTED": 3}
    assert browser.get(f"/api/v1/flows/{uuid}").json()["step_counts"] == {"REVERTED": 3}


STEPS = {"attempt", "counts", "shown", "earlier", "continued", "continued_at"}
STEP = {
    "execution_runtime", "reversion_runtime",
    "uuid", "name", "position", "state", "shown_state", "executions", "worker", "submitted",
    "started", "ended", "runtime", "error", "waiting", "repeated", "loop", "omitted", "queued",
    "inherited",
}  # fmt: skip


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
