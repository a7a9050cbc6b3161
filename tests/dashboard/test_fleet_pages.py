"""Pages of workers, queues, ledger and metrics for a fleet with one worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send, token_in
from tests.dashboard.site import PATIENCE
from tests.support import workers
from wbengine import engines, operations, task
from wbengine.fleet.client import Fleet
from wbengine.patterns import linear_flow
from wbengine.persistence import base, models

GO = threading.Event()


class Busy(task.Task):
    def execute(self) -> None:
        assert GO.wait(PATIENCE)


class Other(Busy):
    """A task that the worker does not offer."""


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"filesystem://{tmp_path_factory.mktemp('broker')}"


@pytest.fixture
def browser(kept: story.Kept, url: str) -> Iterator[TestClient]:
    with workers.worker_in_thread(url, Busy, topic="bakery", exchange="town"):
        fleet = Fleet("town", url=url)
        with client(kept, fleet=fleet, allow_actions=True) as test_client:
            admitted(test_client)
            workers.until(lambda: known(test_client))
            yield test_client


def known(browser: TestClient) -> list[Any]:
    """Return the known workers."""
    told: list[Any] = browser.get("/api/v1/workers").json()["workers"]
    return told


def only_atom(browser: TestClient, path: str) -> dict[str, Any]:
    """Return the only atom of a flow, or an empty one if the flow is not stored yet."""
    (atom,) = browser.get(path).json()["atoms"] or [{"state": None, "waiting": None}]
    return dict(atom)


def stopped(engine: Any, thread: threading.Thread) -> bool:
    """Return whether the flow ended. An engine that has not started ignores `suspend`."""
    engine.suspend()
    thread.join(0.1)
    return not thread.is_alive()


@pytest.fixture
def dough() -> str:
    """Return the name of the running task."""
    return "knead the dough"


@pytest.fixture
def working(url: str, browser: TestClient, dough: str) -> Iterator[None]:
    """Keep the worker busy during the test."""
    GO.clear()
    engine = engines.load(
        linear_flow.Flow("f").add(Busy(dough)),
        engine="workers", url=url, exchange="town", topics=["bakery"],
    )  # fmt: skip
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        workers.until(lambda: known(browser)[0]["running"])
        yield
    finally:
        GO.set()
        thread.join(PATIENCE)


@pytest.mark.usefixtures("working")
def test_busy_worker_is_shown_with_its_task_and_request(browser: TestClient) -> None:
    page = browser.get("/workers").text
    assert ">busy<" in page and "bakery" in page and "knead the dough" in page
    data = browser.get("/api/v1/workers").json()
    assert data["schema"] == "wbengine/workers/1"
    (worker,) = data["workers"]
    assert worker["state"] == "busy" and worker["topics"] == ["bakery"]
    assert worker["current"][0]["task"] == "knead the dough"
    rows = browser.get("/api/v1/requests").json()
    assert rows["schema"] == "wbengine/requests/1" and rows["ledger"]
    assert [row["state"] for row in rows["requests"]] == ["claimed"]
    page = browser.get("/queues").text
    assert page.index("pending flow") < page.index("Table of queues")
    assert rows["requests"][0]["id"] in page and "topic bakery" in page
    assert rows["requests"][0]["id"] not in browser.get("/queues?state=done").text
    assert browser.get("/queues?state=nothing").status_code == 400


def test_task_that_no_worker_offers_is_shown_as_such(
    kept: story.Kept, url: str, browser: TestClient
) -> None:
    flow = linear_flow.Flow("lost").add(story.Fine("nobody knows how"))
    detail = base.create_flow_detail(flow, backend=kept.backend, meta={models.ENGINE: "workers"})
    engine = engines.load(
        flow, flow_detail=detail, backend=kept.backend,
        engine="workers", url=url, exchange="town", topics=["bakery"],
    )  # fmt: skip
    thread = threading.Thread(target=engine.run)
    thread.start()
    notice = "No known worker offers tests.dashboard.story.Fine."
    path = f"/api/v1/flows/{detail.uuid}"
    try:
        workers.until(lambda: notice in str(only_atom(browser, path)["waiting"]))
        assert notice in browser.get(f"/flows/{detail.uuid}").text
    finally:
        workers.until(lambda: stopped(engine, thread), PATIENCE)


def test_task_of_a_serial_engine_is_not_expected_from_workers(
    kept: story.Kept, browser: TestClient
) -> None:
    GO.clear()
    flow = linear_flow.Flow("here").add(Other("at home"))
    detail = base.create_flow_detail(flow, backend=kept.backend)
    engine = engines.load(flow, flow_detail=detail, backend=kept.backend, engine="serial")
    thread = threading.Thread(target=engine.run)
    browser.get("/workers")  # the workers are known from here on
    thread.start()
    path = f"/api/v1/flows/{detail.uuid}"
    try:
        workers.until(lambda: only_atom(browser, path)["state"] == "RUNNING")
        assert "offers" not in str(only_atom(browser, path)["waiting"])
    finally:
        GO.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("dough", [f"knead token={story.CANARY} {story.SCRIPT}"])
@pytest.mark.usefixtures("working")
def test_texts_of_workers_are_masked(browser: TestClient) -> None:
    response = browser.get("/api/v1/workers")
    assert response.json()["workers"][0]["current"][0]["task"] == f"knead token=*** {story.SCRIPT}"
    page = browser.get("/workers").text
    assert "knead token=***" in page and story.SCRIPT not in page
    for path in ("/workers", "/queues", "/metrics", "/api/v1/workers", "/api/v1/requests"):
        assert story.CANARY not in browser.get(path).text, path


def test_queues_are_listed(browser: TestClient) -> None:
    data = browser.get("/api/v1/queues").json()
    assert data["schema"] == "wbengine/queues/1"
    assert "bakery" in {queue["topic"] for queue in data["queues"]}


def test_metrics_require_the_token(kept: story.Kept, browser: TestClient) -> None:
    operations.pause_tasks(kept.backend, "bakery.*")
    try:
        page = browser.get("/metrics")
    finally:
        operations.resume_tasks(kept.backend, "bakery.*")
    assert 'wbengine_task_pauses{pattern="bakery.*"} 1.0' in page.text
    assert page.headers["content-type"].startswith("text/plain")
    assert "wbengine_worker_slots{" in page.text and "wbengine_queue_messages{" in page.text
    assert not [uuid for uuid in kept.uuids.values() if uuid in page.text]
    browser.cookies.clear()
    assert browser.get("/metrics").status_code == 401


def test_worker_is_drained_by_its_form(browser: TestClient) -> None:
    page = browser.get("/workers").text
    name = known(browser)[0]["name"]
    fields = {"form_token": token_in(page), "worker": name}
    assert ">Suspend</button>" in page and ">Resume</button>" not in page
    assert send(browser, "/workers/explode", fields).status_code == 404
    assert send(browser, "/workers/drain", {**fields, "worker": "nobody"}).status_code == 404
    assert send(browser, "/workers/suspend", fields).status_code == 303
    workers.until(lambda: "suspended" in {worker["state"] for worker in known(browser)})
    page = browser.get("/workers").text
    assert ">Suspend</button>" not in page and ">Resume</button>" in page
    assert send(browser, "/workers/resume", fields).status_code == 303
    workers.until(lambda: "suspended" not in {worker["state"] for worker in known(browser)})
    answer = send(browser, "/workers/drain", fields)
    assert answer.status_code == 303
    assert "The worker is draining" in browser.get(answer.headers["location"]).text
    workers.until(lambda: "idle" not in {worker["state"] for worker in known(browser)})


def test_unreachable_broker_is_reported_without_its_password(
    kept: story.Kept, log: Callable[[], str]
) -> None:
    url = f"redis://wbe:{story.CANARY}@127.0.0.1:1/0"
    fleet = Fleet("town", url=url, timeout=1.0)
    with client(kept, fleet=fleet) as found:
        admitted(found)
        for path in ("/workers", "/queues", "/metrics", "/api/v1/workers", "/api/v1/queues"):
            answer = found.get(path)
            assert answer.status_code == (503 if "/api/" in path else 200), path
            assert story.CANARY not in answer.text
        assert "cannot be reached" in found.get("/workers").text
        status = found.get("/api/v1/status")
    assert status.status_code == 200 and story.CANARY not in status.text
    assert "cannot be reached" in status.json()["broker_error"]
    assert status.json()["workers"] is None
    assert status.json()["conductors"]["pending"] == 0
    assert story.CANARY not in log()


def test_status_without_a_broker_is_the_work_of_conductors(kept: story.Kept) -> None:
    with client(kept) as found:
        status = admitted(found).get("/api/v1/status").json()
    assert status["broker_error"] == "The dashboard has no broker."
    assert status["slots"] is None and status["conductors"]["is_served"] is False
