"""Commands for workers, queues and stores, with real workers."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import wbengine as package
from tests.cli import shop
from tests.cli.conftest import Command
from tests.support import dead_lettered
from tests.support import worker_tasks as tasks
from tests.support.brokers import Place
from tests.support.later_layout import LATER, later_release
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions, transports
from wbengine._cli import fleets
from wbengine.engines.worker_based import worker as workers
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.fleet import _ledgers
from wbengine.patterns import unordered_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends._sql import schema_revisions


@pytest.fixture
def url(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    broker_url = f"filesystem://{home / 'broker'}"
    monkeypatch.setenv("WBENGINE_URL", broker_url)
    return broker_url


@pytest.fixture
def one(url: str) -> Iterator[workers.Worker]:
    with worker_in_thread(url, tasks, threads_count=3) as worker:
        yield worker


def waiting(url: str, count: int) -> tuple[Any, threading.Thread]:
    """Run an engine whose tasks no worker executes yet; return it and its thread."""
    flow = unordered_flow.Flow("f").add(*(tasks.Where(name=f"t{n}") for n in range(count)))
    engine = engines.load(
        flow, store={"rest": 0.0}, engine="worker-based", url=url, transition_timeout=None,
        worker_expiry=2,
    )  # fmt: skip
    thread = threading.Thread(target=engine.run)
    thread.start()
    return engine, thread


# -- workers


def test_workers_are_listed(wbengine: Command, one: workers.Worker) -> None:
    data = wbengine("workers", "list", "--json").json
    assert data["schema"] == "wbengine/workers-ls/1"
    (listed,) = data["workers"]
    assert (listed["name"], listed["state"], listed["slots"]) == (one.identity, "idle", 3)
    assert listed["version"] == package.__version__
    answer = wbengine("workers", "list")
    assert answer.code == 0 and answer.err == ""
    head, row = answer.out.splitlines()
    assert re.split("  +", head) == ["NAME", "STATE", "TOPICS", "BUSY", "LAST MESSAGE", "VERSION"]
    assert row.split()[:4] == [one.identity, "idle", "t", "0/3"]


def test_worker_is_found_by_its_name(wbengine: Command, url: str) -> None:
    with (
        worker_in_thread(url, tasks, name="shop-1") as one,
        worker_in_thread(url, tasks, name="shop-1") as same,
        worker_in_thread(url, tasks, name="shop-10") as other,
    ):
        assert one.identity.startswith("shop-1-") and one.identity != same.identity
        answer = wbengine("workers", "drain", "shop-10", "--wait")
        assert answer.code == 0 and answer.out.startswith(other.identity)
        wbengine.fails(66, "worker name 'shop-1' is ambiguous: ", "workers", "drain", "shop-1")


def test_worker_is_shown(wbengine: Command, one: workers.Worker) -> None:
    answer = wbengine("workers", "show", one.identity[:-2])
    assert answer.code == 0
    assert one.identity in answer.out and "tests.support.worker_tasks.Where" in answer.out
    (shown,) = wbengine("workers", "show", one.identity, "--json").json["workers"]
    assert shown["queues"] == list(one.queues.values())
    wbengine.fails(66, "unknown worker 'nobody'", "workers", "show", "nobody")
    wbengine.fails(66, f"did you mean {one.identity!r}", "workers", "show", one.identity + "0")


def test_workers_are_pinged(wbengine: Command, one: workers.Worker) -> None:
    began = time.monotonic()
    (pinged,) = wbengine("workers", "ping", "--json").json["workers"]
    assert pinged["name"] == one.identity and 0 < pinged["seconds"] < time.monotonic() - began
    assert one.identity in wbengine("workers", "ping", one.identity).out


def test_workers_are_suspended_resumed_and_drained(wbengine: Command, one: workers.Worker) -> None:
    answer = wbengine("workers", "suspend", one.identity)
    assert (answer.code, answer.out) == (0, f"{one.identity}  suspend  done\n")
    assert one.life.state == "suspended"
    data = wbengine("workers", "resume", "--all", "--json").json
    assert data == {
        "schema": "wbengine/workers-resume/1",
        "order": "resume",
        "workers": [{"name": one.identity, "done": True}],
    }
    assert one.life.state == "idle"
    assert wbengine("workers", "drain", one.identity, "--wait").code == 0
    assert one.ended.wait(60)


def test_stop_of_all_workers_requires_confirmation(
    wbengine: Command, one: workers.Worker, url: str
) -> None:
    wbengine.fails(2, "pass --yes", "workers", "stop", "--all")
    assert one.life.state == "idle"
    assert wbengine("workers", "stop", "--all", "--yes").code == 0
    assert one.ended.wait(60)


def test_incomplete_drain_is_reported_after_the_time_limit(wbengine: Command, url: str) -> None:
    flow = unordered_flow.Flow("f").add(shop.Slow("t"))
    engine = engines.load(flow, engine="worker-based", url=url)
    thread = threading.Thread(target=engine.run)
    with worker_in_thread(url, shop) as one:
        thread.start()
        until(lambda: one.life.current)
        answer = wbengine("workers", "drain", one.identity, "--wait", "--within", "0.2")
        (wbengine.folder / "go").touch()
        thread.join(60)
    assert answer.code == 75
    assert f"drain not completed within 0.2 s by {one.identity}" in answer.error
    assert answer.out == f"{one.identity}  drain  not yet\n"
    assert engine.storage.get_flow_state() == "SUCCESS"


def test_status_shows_workers_and_slots(wbengine: Command, one: workers.Worker) -> None:
    data = wbengine("status", "--json").json
    assert (data["workers"], data["slots"], data["running"]) == (1, 3, 0)
    assert data["topics"] == {"t": 1}
    assert "0 of 3 busy" in wbengine("status").out
    few = wbengine("status", "--min-workers", "2", "--timeout", "2")
    assert few.code == 69 and "at least 2 workers must answer within 2 s, got 1" in few.error


def test_status_of_conductors_without_workers(wbengine: Command, redis_url: Place) -> None:
    wbengine.setenv("WBENGINE_URL", redis_url)
    wbengine.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{wbengine.folder}/flows.db")
    wbengine("flow", "submit", "tests.cli.shop:order")
    alone = wbengine("status", "--json")
    assert alone.code == 69 and alone.json["conductors"]["pending"] == 1
    assert not alone.json["conductors"]["is_served"]
    with (
        contextlib.closing(backends.fetch(f"sqlite:///{wbengine.folder}/flows.db")) as store,
        contextlib.closing(store.get_connection()) as connection,
    ):
        connection.add_codes("", [""])
    served = wbengine("status")
    assert served.code == 0, served.err
    assert re.search(r"conductors +running\nnot begun +1 flow in PENDING", served.out)
    required = wbengine("status", "--min-workers", "1", "--timeout", "1")
    assert required.code == 69 and "no worker answered" in required.error


def test_status_without_a_broker_shows_the_store(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_URL", raising=False)
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/flows.db")
    missing = wbengine("status")
    assert missing.code == 69 and "no worker answered" in missing.error, "there is no store"
    wbengine("flow", "submit", "tests.cli.shop:order")
    answer = wbengine("status")
    assert answer.code == 0, answer.err
    assert "no conductor (wbengine serve) runs now" in answer.out
    assert re.search(r"not begun +1 flow in PENDING", answer.out)
    assert wbengine("status", "--min-workers", "1", "--timeout", "0.2").code == 69

    def refuse(settings: object) -> None:
        raise exceptions.TransportFailure("the folder belongs to another user")

    monkeypatch.setattr(fleets, "create", refuse)
    answer = wbengine("status")
    assert answer.code == 0 and "the folder belongs to another user" in answer.out
    document = wbengine("status", "--json").json
    assert document["broker_error"] == "the folder belongs to another user"
    assert document["conductors"]["pending"] == 1


# -- queues


def test_status_waits_for_workers(wbengine: Command, one: workers.Worker, url: str) -> None:
    seen = threading.Event()

    def work() -> None:
        with worker_in_thread(url, tasks):
            seen.wait(60)

    later = threading.Timer(0.5, work)
    later.start()
    answer = wbengine("status", "--min-workers", "2", "--json")
    seen.set()
    later.join(60)
    assert answer.code == 0 and answer.json["workers"] == 2


def test_queues_of_ended_processes_are_one_line_after_the_backlog(
    wbengine: Command, home: Path, redis_url: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_URL", redis_url)
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/flows.db")
    flow = wbengine("flow", "submit", "tests.cli.shop:order").out.strip()
    with transports.resolve(str(redis_url), exchange="default").open() as broker:
        broker.declare_exchange("default")
        for queue, key in (("host-1-0123abcd", env.ALL_WORKERS), ("e-1", env.ALL_ENGINES)):
            broker.declare_queue(queue, owned=True)
            broker.bind("default", key, queue)
        listed = wbengine("queues", "list", "--json").json
        assert {row["name"]: row["abandoned"] for row in listed["queues"]} == {
            "host-1-0123abcd": False, "e-1": False,
        }  # fmt: skip
        with redis.Redis.from_url(redis_url) as client:  # as if their processes had died
            (own,) = client.keys("*:own")
            about = own[: -len("own")] + b"m"
            client.zadd(own, {"host-1-0123abcd": 0, "e-1": 0})
            client.hset(about, "since", int(client.hget(about, "t")) - 60_000)
        answer = wbengine("queues", "list")
    assert answer.out.startswith("Backlog: 1 pending flow, the oldest for ")
    assert "host-1-0123abcd" not in answer.out
    # The messages are broadcasts, also those of the command itself.
    assert answer.error.startswith("1 queue of ended engines and 1 of ended workers, with ")
    assert wbengine("queues", "list", "--json").json["backlog"]["flows"] == 1
    assert wbengine("flow", "show", flow, "--json").json["state"] == "PENDING"


def test_queues_are_listed_and_purged(wbengine: Command, one: workers.Worker, url: str) -> None:
    (queue,) = one.queues.values()
    one.suspend()
    engine, thread = waiting(url, 4)
    until(lambda: wbengine("queues", "list", queue, "--json").json["queues"][0]["messages"] == 4)
    data = wbengine("queues", "list", "--json").json
    assert data["complete"] is True
    assert {listed["kind"] for listed in data["queues"]} == {"requests", "worker", "engine"}
    table = wbengine("queues", "list").out.splitlines()
    assert [row.split() for row in table if queue in row] == [[queue, "requests", "4", "1", "t"]]

    rows = wbengine("queues", "list", "--requests", "--json").json
    assert [row["state"] for row in rows["rows"]] == ["open"] * 4 and rows["after"] is None
    some = wbengine("queues", "list", "--requests", "--limit", "3", "--json").json
    others = wbengine("queues", "list", "--requests", "--after", some["after"], "--json").json
    assert len(some["rows"]) == 3 and len(others["rows"]) == 1
    claimed = wbengine("queues", "list", "--requests", "--state", "claimed", "--json")
    assert claimed.json["rows"] == []
    listing = ("queues", "list", "--requests", "--json")
    assert len(wbengine(*listing, "--worker", "").json["rows"]) == 4
    for other in (("--worker", "nobody"), ("--older-than", "1h"), ("--task", "t0")):
        assert wbengine(*listing, *other).json["rows"] == [], "no worker runs it yet"

    wbengine.fails(2, "4 messages in 1 queues", "queues", "purge", queue)
    dry = wbengine("queues", "purge", "--all", "--dry-run", "--json").json
    assert dry["queues"] == [{"name": queue, "messages": 4}] and dry["dry_run"] is True
    assert wbengine("queues", "purge", queue, "--yes", "--json").json["queues"] == dry["queues"]
    assert wbengine("queues", "list", queue, "--json").json["queues"][0]["messages"] == 0
    one.resume()
    thread.join(60)
    assert engine.storage.get_flow_state() == "SUCCESS"


def test_running_request_is_listed_by_its_task_and_worker(
    wbengine: Command, one: workers.Worker, url: str
) -> None:
    flow = unordered_flow.Flow("f").add(tasks.Where(name="slow"))
    engine = engines.load(flow, store={"rest": 8.0}, engine="worker-based", url=url)
    thread = threading.Thread(target=engine.run)
    thread.start()
    listing = ("queues", "list", "--requests", "--json", "--task")
    until(lambda: wbengine(*listing, "slow").json["rows"])
    (row,) = wbengine(*listing, "slow", "--worker", one.identity).json["rows"]
    assert (row["state"], row["holder"]) == ("claimed", one.identity)
    assert wbengine(*listing, "fast").json["rows"] == []
    thread.join(60)


def dead(wbengine: Command) -> list[str]:
    letters = wbengine("queues", "list", "--dead", "--json").json["requests"]
    return [letter["id"] for letter in letters]


def test_retry_sends_each_dead_letter_to_a_worker_that_offers_its_task(
    wbengine: Command, url: str, home: Path
) -> None:
    for number, cls in enumerate(("Touch", "Nothing", "Touch", "Gone")):
        dead_lettered.put(url, home, number, cls=cls)
    alone = wbengine("queues", "retry", "id-0", "--yes", "--timeout", "0.2")
    assert (alone.code, alone.out) == (66, "")
    no_worker = "no worker offers tests.support.worker_tasks"
    assert f"cannot send request id-0: {no_worker}.Touch on topic 't'" in alone.error
    with worker_in_thread(url, tasks):
        answer = wbengine("queues", "retry", "--all", "--yes")
        assert answer.code == 66
        assert [line.split()[0] for line in answer.out.splitlines()[1:]] == ["id-0", "id-2"]
        first, second, last = answer.err.splitlines()
        assert f"id-1: {no_worker}.Nothing" in first and f"id-3: {no_worker}.Gone" in second
        assert "2 of 4 dead letters could not be sent" in last
        for number in (0, 2):
            until((home / f"ran-{number}").exists)
        assert dead(wbengine) == ["id-1", "id-3"]
        data = wbengine("queues", "retry", "--all", "--yes", "--json").json
        assert data["requests"] == []
        assert [letter["id"] for letter in data["failed"]] == ["id-1", "id-3"]
        assert f"id-1: {no_worker}.Nothing" in data["failed"][0]["why"]


def test_retry_completes_an_interrupted_retry(
    wbengine: Command, one: workers.Worker, url: str, home: Path
) -> None:
    for number in range(3):
        dead_lettered.put(url, home, number)
    with _ledgers.open_ledger(None, transports.resolve(url)) as ledger:
        assert ledger is not None
        ledger.open("id-0", 4)
        ledger.open("id-1", 3)  # not from a retry: its engine continues
        ledger.open("id-2", 4)
        ledger.claim("id-2", 4, one.identity)
    answer = wbengine("queues", "retry", "--all", "--yes")
    until((home / "ran-0").exists)
    assert answer.code == 1
    assert "request id-1 must be done before it is sent again, got row state open" in answer.err
    assert "request id-2 must be done before it is sent again, got row state claimed" in answer.err
    assert dead(wbengine) == ["id-1", "id-2"]


def test_dead_letters_are_listed_retried_and_purged(
    wbengine: Command, one: workers.Worker, url: str, home: Path
) -> None:
    (worker,) = wbengine("workers", "list", "--json").json["workers"]
    for number in range(2):
        dead_lettered.put(url, home, number, worker["queues"][0])
    queue = "default.dead-letters"
    table = wbengine("queues", "list", queue).out.split()
    assert [queue, "dead", "2", "0"] == table[-5:-1]
    head, first, _ = wbengine("queues", "list", "--dead").out.splitlines()
    assert head.split() == ["REQUEST", "TASK", "ACTION", "QUEUE", "AGE", "REASON"]
    assert ["id-0", "t0", "execute", worker["queues"][0]] == first.split()[:4]
    assert first.endswith("lost with 2 workers")
    cut = wbengine("queues", "list", "--dead", "--limit", "1")
    assert [line.split()[0] for line in cut.out.splitlines()] == ["REQUEST", "id-0"]
    assert "for more dead letters: --limit 2" in cut.err
    cut = wbengine("queues", "list", "--dead", "--limit", "1", "--json").json
    assert [listed["id"] for listed in cut["requests"]] == ["id-0"] and cut["more"] is True
    listing = ("queues", "list", "--dead", "--json")
    for filters, ids in ((("--task", "t1"), ["id-1"]), (("--flow", "f"), []),
                         (("--older-than", "1h"), [])):  # fmt: skip
        chosen = wbengine(*listing, *filters).json["requests"]
        assert [each["id"] for each in chosen] == ids, filters
    dry = wbengine("queues", "retry", "--all", "--dry-run", "--json").json
    assert [listed["id"] for listed in dry["requests"]] == ["id-0", "id-1"]
    wbengine.fails(2, "send 1 dead letters again", "queues", "retry", "id-1")
    data = wbengine("queues", "retry", "id-1", "--yes", "--json").json
    assert [listed["id"] for listed in data["requests"]] == ["id-1"]
    until((home / "ran-1").exists)
    left = wbengine("queues", "list", "--dead", "--json").json["requests"]
    assert [listed["id"] for listed in left] == ["id-0"]
    wbengine("queues", "purge", queue, "--yes")
    assert "No dead letters found." in wbengine("queues", "list", "--dead").err
    assert not (home / "ran-0").exists()


# -- stores


def test_db_commands_show_whether_a_newer_store_is_usable(
    wbengine: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/flows.db")
    with later_release(tmp_path):
        wbengine("db", "upgrade")
    now = wbengine("db", "current", "--json").json
    assert (now["revision"], now["wanted"], now["usable"]) == (LATER, schema_revisions.HEAD, True)
    answer = wbengine("db", "upgrade")
    assert answer.out == f"revision {LATER} (newer than {schema_revisions.HEAD}, and usable)\n"
    with later_release(tmp_path, oldest=LATER):
        monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{home}/other.db")
        wbengine("db", "upgrade")
    now = wbengine("db", "current", "--json").json
    assert (now["revision"], now["wanted"], now["usable"]) == (LATER, schema_revisions.HEAD, False)


def test_db_commands_upgrade_check_and_prune_the_store(wbengine: Command) -> None:
    place = f"sqlite:///{wbengine.folder}/flows.db"
    wbengine.setenv("WBENGINE_PERSISTENCE", place)
    assert wbengine("db", "current", "--json").json["revision"] is None
    upgraded = wbengine("db", "upgrade", "--json").json
    assert upgraded["before"] is None and upgraded["after"] is not None
    assert "already current" in wbengine("db", "upgrade").out
    now = wbengine("db", "current", "--json").json
    assert now["revision"] == now["wanted"] == upgraded["after"] and now["usable"]
    with backends.backend(place) as backend, backend.get_connection() as connection:
        for number, state in enumerate(("SUCCESS", "SUCCESS", "FAILURE")):
            book = models.LogBook(f"b{number}")
            flow = models.FlowDetail(f"f{number}")
            flow.state = state
            book.add(flow)
            connection.save_logbook(book)
    checked = wbengine("db", "check", "--json").json
    assert (checked["books"], checked["flows"], checked["damaged"]) == (3, 3, [])
    prune = ("flow", "prune", "--older-than", "0", "--state", "success")
    wbengine.fails(2, "pass --yes", *prune)
    dry = wbengine(*prune, "--dry-run", "--json").lines
    assert sorted(row["name"] for row in dry) == ["f0", "f1"]
    assert {row["schema"] for row in dry} == {"wbengine/flow-prune/1"}
    earlier_name = wbengine("db", *prune[1:], "--dry-run", "--json").lines
    assert [row["schema"] for row in earlier_name] == ["wbengine/db-prune/1"] * 2
    assert "prune" not in wbengine("db", "--help").out
    assert wbengine("db", "prune", "--older-than", "1h", "--yes").out == ""
    assert len(wbengine(*prune, "--yes", "--batch", "1").out.splitlines()) == 2
    assert wbengine("db", "check", "--json").json["flows"] == 1


def test_db_check_reports_a_damaged_index_page(wbengine: Command, home: Path) -> None:
    """The damaged index page is not needed to read the records."""
    path = home / "flows.db"
    place = ("--persistence", f"sqlite:///{path}")
    assert wbengine("db", "upgrade", *place).code == 0
    assert wbengine("db", "check", *place).code == 0
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((size,),) = database.execute("PRAGMA page_size")
        ((page,),) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'ix_wbe_flowdetails_created'"
        )
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 8)
    answer = wbengine("db", "check", *place, "--json")
    assert answer.code == 1
    assert answer.json["damaged"] and str(page) in answer.json["damaged"][0]


def test_db_check_reports_an_index_that_misses_a_row(wbengine: Command, home: Path) -> None:
    path = home / "flows.db"
    place = ("--persistence", f"sqlite:///{path}")
    with backends.backend(place[1]) as backend, backend.get_connection() as connection:
        book = models.LogBook("b")
        book.add(models.FlowDetail("f"))
        connection.save_logbook(book)
    assert wbengine("db", "check", *place).code == 0
    index = "ix_wbe_flowdetails_created"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        ((text,),) = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (index,))
        database.execute(f"DROP INDEX {index}")
        database.execute(f"CREATE INDEX {index} ON wbe_flowdetails (created, id) WHERE name = ''")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, index))
    answer = wbengine("db", "check", *place, "--json")
    assert answer.code == 1
    assert any(f"missing from index {index}" in line for line in answer.json["damaged"])


def test_db_commands_accept_a_store_without_revisions(wbengine: Command) -> None:
    place = ("--persistence", "memory")
    assert wbengine("db", "current", *place).code == 0
    assert wbengine("db", "upgrade", *place).out == "this kind of store has no revisions\n"
    assert wbengine("db", "check", *place, "--json").json["flows"] == 0


# -- worker


def test_worker_reads_settings_from_a_file(wbengine: Command, home: Path, url: str) -> None:
    (home / "wares.py").write_text(
        "from wbengine import task\nclass Price(task.Task):\n    def execute(self): return 1\n"
    )
    (home / "wbengine.toml").write_text(
        'exchange = "shop"\n[worker]\nconcurrency = "2"\ntopic = ["first"]\n'
    )
    process = wbengine.begin("worker", "--tasks", "wares")
    try:
        assert wbengine("status", "--min-workers", "1").code == 0
        data = wbengine("workers", "list", "--json").json
        (listed,) = data["workers"]
        assert (data["exchange"], listed["topics"], listed["slots"]) == ("shop", ["first"], 2)
        assert listed["tasks"] == ["wares.Price"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "exchange  shop" in err
