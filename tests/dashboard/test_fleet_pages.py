"""Workers, queues, requests and metrics in the API and on pages, with a broker and a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, admitted, bearer, client, refused
from tests.dashboard.forms import send, token_in
from tests.dashboard.site import PATIENCE
from tests.support import dead_lettered
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, operations, task, transports
from wbengine.dashboard import parse_users
from wbengine.engines.worker_based.worker import Worker
from wbengine.fleet import _ledgers, _summary
from wbengine.fleet.client import Fleet, PingView
from wbengine.patterns import linear_flow, unordered_flow
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
    with worker_in_thread(url, Busy, topic="bakery", exchange="town"):
        fleet = Fleet("town", url=url)
        with client(kept, fleet=fleet, allow_actions=True) as test_client:
            admitted(test_client)
            until(lambda: known(test_client))
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
        until(lambda: known(browser)[0]["running"])
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
        until(lambda: notice in str(only_atom(browser, path)["waiting"]))
        assert notice in browser.get(f"/flows/{detail.uuid}").text
    finally:
        until(lambda: stopped(engine, thread), PATIENCE)


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
        until(lambda: only_atom(browser, path)["state"] == "RUNNING")
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
    until(lambda: "suspended" in {worker["state"] for worker in known(browser)})
    page = browser.get("/workers").text
    assert ">Suspend</button>" not in page and ">Resume</button>" in page
    assert send(browser, "/workers/resume", fields).status_code == 303
    until(lambda: "suspended" not in {worker["state"] for worker in known(browser)})
    answer = send(browser, "/workers/drain", fields)
    assert answer.status_code == 303
    assert "The worker is draining" in browser.get(answer.headers["location"]).text
    until(lambda: "idle" not in {worker["state"] for worker in known(browser)})


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


DEAD_LETTERS = "default.dead-letters"


class Town:
    """A dashboard, a worker and their broker."""

    def __init__(self, kept: story.Kept, home: Path, worker: Worker, url: str) -> None:
        self.home, self.worker, self.url = home, worker, url
        users = parse_users(FILE)
        fleet = Fleet(url=url)
        self.browser = client(kept, token=None, users=users, fleet=fleet, allow_actions=True)

    def get(self, path: str, user: str = "victor") -> Any:
        return self.browser.get(f"/api/v1/{path}", headers=bearer(TOKENS[user])).json()

    def post(self, path: str, user: str = "ann") -> Any:
        return self.browser.post(f"/api/v1/{path}", json={}, headers=bearer(TOKENS[user]))

    def dead_letter(self, number: int, **options: Any) -> None:
        (queue,) = self.worker.queues.values()
        dead_lettered.put(self.url, self.home, number, **{"queue": queue, **options})

    def dead(self, query: str = "") -> list[str]:
        listed = self.get(f"requests?state=dead{query}")["requests"]
        return [each["id"] for each in listed]

    def queues(self) -> dict[str, int]:
        return {each["name"]: each["messages"] for each in self.get("queues")["queues"]}

    def signed_in(self, user: str) -> TestClient:
        assert send(self.browser, "/login", {"token": TOKENS[user]}).status_code == 303
        return self.browser


@pytest.fixture
def town(kept: story.Kept, tmp_path: Path) -> Iterator[Town]:
    url = f"filesystem://{tmp_path / 'broker'}"
    with worker_in_thread(url, tasks) as worker:
        site = Town(kept, tmp_path, worker, url)
        with site.browser:
            until(lambda: site.get("workers")["workers"])
            yield site


@pytest.fixture
def open_requests(town: Town) -> Iterator[list[str]]:
    """Four requests that no worker executes yet."""
    town.worker.suspend()
    flow = unordered_flow.Flow("f").add(*(tasks.Where(name=f"t{n}") for n in range(4)))
    engine = engines.load(
        flow, store={"rest": 0.0}, engine="worker-based", url=town.url, transition_timeout=None
    )
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        until(lambda: len(town.get("requests?state=open")["requests"]) == 4)
        yield [each["id"] for each in town.get("requests")["requests"]]
    finally:
        town.worker.resume()
        thread.join(60)


def test_requests_are_listed_in_pages(town: Town, open_requests: list[str]) -> None:
    first = town.get("requests?limit=3")
    assert first["schema"] == "wbengine/requests/1" and first["ledger"] is True
    rest = town.get(f"requests?limit=3&after={first['after']}")
    listed = [each["id"] for page in (first, rest) for each in page["requests"]]
    assert sorted(listed) == sorted(open_requests) and rest["after"] is None
    assert first["requests"][0].keys() == {
        "id", "epoch", "state", "age", "worker", "task", "flow", "action", "queue", "reason",
    }  # fmt: skip
    assert town.get("requests?state=claimed")["requests"] == []
    assert town.get("requests?older_than=3600")["requests"] == []
    assert town.get("requests?worker=nobody")["requests"] == []
    for query, message in (
        ("state=opne", "state must be one of open, claimed, done, dead, got 'opne'"),
        ("limit=1001", "limit must be a number from 1 to 1000"),
        ("older_than=x", "older_than must be a number"),
    ):
        assert message in town.get(f"requests?{query}")["detail"]


def test_request_of_a_worker_is_found_by_its_name_and_task(town: Town) -> None:
    flow = unordered_flow.Flow("f").add(tasks.Where(name="slow"))
    engine = engines.load(flow, store={"rest": 3.0}, engine="worker-based", url=town.url)
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        identity = town.worker.identity
        until(lambda: town.get(f"requests?worker={identity}&task=slow")["requests"])
        (found,) = town.get("requests?task=slow")["requests"]
        assert (found["state"], found["worker"]) == ("claimed", identity)
        assert town.get(f"requests?worker={identity}&task=fast")["requests"] == []
    finally:
        thread.join(60)


def test_dead_letters_are_listed_and_retried(town: Town, audit: Any) -> None:
    for number in range(3):
        town.dead_letter(number)
    assert town.dead() == ["id-0", "id-1", "id-2"] and town.dead("&task=t1") == ["id-1"]
    assert town.dead("&limit=1") == ["id-0"] and town.dead("&flow=x") == []
    assert town.get("requests")["requests"] == [], "they are not in the ledger"
    (letter, *_) = town.get("requests?state=dead")["requests"]
    assert (letter["action"], letter["reason"]) == ("execute", "lost with 2 workers")
    assert town.post("requests/id-1/retry", "victor").status_code == 403
    answer = town.post("requests/id-1/retry", "olga")
    assert answer.json() == {
        "schema": "wbengine/request-retry/1", "request": "id-1", "task": "t1", "flow": None,
    }  # fmt: skip
    until((town.home / "ran-1").exists)
    assert town.dead() == ["id-0", "id-2"]
    for id, message in (("id-1", "unknown dead letter"), ("id-", "ambiguous: id-0, id-2")):
        refused(town.post(f"requests/{id}/retry"), 404, message)
    assert "request retry 'id-1', from olga, operator" in audit()[1]


def test_dead_letter_that_cannot_be_sent_stays(town: Town) -> None:
    town.dead_letter(0, cls="Gone")
    town.dead_letter(1)
    with _ledgers.open_ledger(None, transports.resolve(town.url)) as ledger:
        assert ledger is not None
        ledger.open("id-1", 3)
    refused(town.post("requests/id-0/retry"), 404, "no worker offers")
    refused(town.post("requests/id-1/retry"), 400, "must be done before")
    assert town.dead() == ["id-0", "id-1"]


@pytest.mark.usefixtures("open_requests")
def test_purge_deletes_the_messages_of_one_queue(town: Town) -> None:
    town.dead_letter(0)
    (queue,) = town.worker.queues.values()
    until(lambda: town.queues()[queue] == 4)
    assert town.post(f"queues/{queue}/purge", "olga").status_code == 403
    answer = town.post("queues/t/purge")
    assert answer.json() == {"schema": "wbengine/queue-purge/1", "queue": queue, "messages": 4}
    assert (town.queues()[queue], town.dead()) == (0, ["id-0"])
    assert town.post(f"queues/{DEAD_LETTERS}/purge").json()["messages"] == 1
    assert town.dead() == []
    refused(town.post("queues/nothing/purge"), 404, "unknown queue 'nothing'")


def test_admin_purges_a_queue_and_retries_a_dead_letter_on_pages(town: Town) -> None:
    town.dead_letter(0, name=f"t token={story.CANARY} {story.SCRIPT}")
    town.dead_letter(1)
    browser = town.signed_in("ann")
    page = browser.get("/queues").text
    assert f'data-confirm="Delete all messages in {DEAD_LETTERS}?"' in page
    assert 'href="/queues/dead"' in page
    letters = browser.get("/queues/dead").text
    assert "id-0" in letters and "token=***" in letters and story.SCRIPT not in letters
    fields = {"form_token": token_in(page), "queue": DEAD_LETTERS, "request": "id-1"}
    answer = send(browser, "/requests/retry", fields)
    assert answer.status_code == 303
    assert "sent to a worker" in browser.get(answer.headers["location"]).text
    until((town.home / "ran-1").exists)
    answer = send(browser, "/queues/purge", fields)
    assert answer.status_code == 303
    assert "The messages are deleted." in browser.get(answer.headers["location"]).text
    assert "No dead letters" in browser.get("/queues/dead").text
    assert send(browser, "/queues/purge", {**fields, "queue": ""}).status_code == 400
    assert send(browser, "/queues/explode", fields).status_code == 404


def test_queues_are_listed_in_pages(town: Town) -> None:
    names = [each["name"] for each in town.get("queues")["queues"]]
    assert len(names) > 1 and town.get("queues")["after"] is None
    listed, after = list[str](), ""
    while after is not None:
        page = town.get(f"queues?limit=1&after={after}")
        listed += [each["name"] for each in page["queues"]]
        after = page["after"]
    assert listed == names


def test_workers_are_listed_in_pages(town: Town) -> None:
    with worker_in_thread(town.url, tasks, name="other"):
        until(lambda: len(town.get("workers")["workers"]) == 2)
        first = town.get("workers?limit=1")
        second = town.get(f"workers?limit=1&after={first['after']}")
        names = [each["name"] for page in (first, second) for each in page["workers"]]
        assert len(names) == 2 and names == sorted(names) and second["after"] is None
        assert town.get("workers?limit=0")["status"] == 400


def test_worker_is_pinged(town: Town) -> None:
    identity = town.worker.identity
    assert town.post(f"workers/{identity}/ping", "victor").status_code == 403
    pong = town.post(f"workers/{identity[:-1]}/ping", "olga").json()
    assert pong["worker"] == identity and 0 < pong["seconds"] < 2
    browser = town.signed_in("olga")
    page = browser.get("/workers").text
    assert "Ping</button>" in page and "Stop</button>" not in page
    fields = {"form_token": token_in(page), "worker": identity}
    answer = send(browser, "/workers/ping", fields)
    assert "The worker answered." in browser.get(answer.headers["location"]).text


def test_worker_that_does_not_answer_is_an_error(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ping(fleet: Fleet, names: list[str], timeout: float) -> list[PingView]:
        return [PingView(names[0], None)]

    monkeypatch.setattr(Fleet, "ping", ping)
    answer = town.post("workers/w/ping")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "Worker 'w' did not answer within 2 s"


@pytest.mark.usefixtures("open_requests")
def test_status_is_the_load_of_the_workers(town: Town) -> None:
    status = town.get("status")
    assert status["schema"] == "wbengine/status/1" and status["exchange"] == "default"
    assert (status["workers"], status["running"]) == (1, 0) and status["slots"] >= 1
    assert status["broker_error"] is None and {*_summary.FIELDS} < {*status}
    until(lambda: town.get("status")["waiting"] == 4)


def test_operator_cannot_purge(town: Town) -> None:
    town.dead_letter(0)
    browser = town.signed_in("olga")
    assert "Purge</button>" not in browser.get("/queues").text
    letters = browser.get("/queues/dead").text
    assert "Retry</button>" in letters
    fields = {"form_token": token_in(letters), "queue": DEAD_LETTERS}
    assert send(browser, "/queues/purge", fields).status_code == 403
    assert town.dead() == ["id-0"]
