"""Pages of steps of workflows, log lines on pages, and the counts of steps."""

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
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

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
    def __init__(self, backend: base.Backend) -> None:
        self.backend = backend

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
def stored() -> Iterator[Stored]:
    with backends.backend("memory://") as backend:
        yield Stored(backend)


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
