"""Fleets with real workers: list, ping and control; queues and ledger rows."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import wbengine
from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from tests.views import waiting_task
from wbengine import engines, exceptions, transports
from wbengine.engines.worker_based._engine_side.pings import Pings
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.fleet import _ledgers, _message_queues
from wbengine.fleet import client as fleets
from wbengine.patterns import linear_flow, unordered_flow


@pytest.fixture
def near(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


class Busy:
    """A flow, run in a thread, whose only task runs on a worker until a file exists."""

    def __init__(self, place: dict[str, Any], folder: Path) -> None:
        self._begun, self._go = folder / "begun", folder / "go"
        flow = linear_flow.Flow("f").add(waiting_task.WaitsForFile(name="slow"))
        store = {"begun": str(self._begun), "go": str(self._go)}
        self.engine = engines.load(flow, store=store, engine="worker-based", **place)
        self.lost = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.engine.run()
        except exceptions.WorkerLost:
            self.lost = True

    def __enter__(self) -> Busy:
        self._thread.start()
        until(self._begun.exists)
        return self

    def __exit__(self, *error: object) -> None:
        self._go.touch()
        self.join()

    def join(self) -> None:
        """Wait until the flow has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_workers_are_listed_with_their_properties(
    place: dict[str, Any], looking: fleets.Fleet
) -> None:
    assert looking.workers(wait=0.1) == []
    with (
        worker_in_thread(
            place["url"],
            tasks.Where,
            topic=["a", "b"],
            threads_count=3,
            ledger=place.get("ledger"),
        ) as one,
        worker_in_thread(place["url"], tasks, topic="t", ledger=place.get("ledger")) as other,
    ):
        listed = {seen.name: seen for seen in looking.workers(least=2, wait=30)}
        assert list(listed) == sorted([one.identity, other.identity])
        seen = listed[one.identity]
        assert (seen.topics, seen.slots, seen.running, seen.state) == (("a", "b"), 3, 0, "idle")
        assert seen.tasks == ("tests.support.worker_tasks.Where",)
        assert dict(zip(seen.topics, seen.queues, strict=True)) == one.queues
        assert (seen.version, seen.host) == (wbengine.__version__, socket.gethostname())
        assert seen.ledger is not None
        assert seen.born is not None and seen.born <= seen.heard + 1 <= time.time() + 2
        assert len(listed[other.identity].tasks) > 1
        assert seen.to_dict()["heard"].endswith("Z")
    until(lambda: not looking.workers())


def test_worker_view_shows_running_and_completed_tasks(
    place: dict[str, Any], looking: fleets.Fleet, tmp_path: Path
) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], waiting_task, ledger=ledger):
        began, first = time.time(), time.monotonic()
        with Busy(place, tmp_path):
            runs = time.monotonic()
            looking.workers(least=1, wait=30)
            looking.ping(timeout=30)  # ping replies contain the current task
            (seen,) = looking.workers()
            (work,) = seen.current
            assert (seen.state, seen.running) == ("busy", 1)
            assert work.task == "slow"
            assert work.began is not None and began - 0.2 <= work.began <= time.time() + 0.2
            ran = time.monotonic() - runs

        def after() -> fleets.WorkerView:
            looking.ping(timeout=30)
            return looking.workers()[0]

        until(lambda: after().succeeded)  # an earlier ping may be answered now
        seen = after()
        assert (seen.succeeded, seen.current, seen.running) == (1, (), 0)
        assert ran <= seen.working < time.monotonic() - first


def test_ping_measures_round_trip_and_clock_difference(
    place: dict[str, Any], looking: fleets.Fleet
) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], tasks, ledger=ledger) as one:
        began = time.monotonic()
        (replies,) = looking.ping(timeout=30)
        assert replies.name == one.identity
        assert replies.seconds is not None and 0 < replies.seconds < time.monotonic() - began
        assert replies.ahead is not None and abs(replies.ahead) < 0.2 + replies.seconds / 2
        one_again = looking.ping([one.identity[:-3]], timeout=30)
        assert [ping.name for ping in one_again] == [one.identity]


def test_worker_is_known_before_its_ping_reply_is_recorded(
    near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[bool] = []
    record = Pings.record_reply

    def record_reply(self: Pings, headers: Any) -> None:
        sender = headers.get(hd.WBE_WORKER)
        if sender is not None:
            known.append(sender in {each.identity for each in looking._executor.workers()})
        record(self, headers)

    monkeypatch.setattr(Pings, "record_reply", record_reply)
    looking = fleets.Fleet(url=near)
    with worker_in_thread(near, tasks), looking:
        looking.workers(least=1, wait=30)
        assert looking.ping(timeout=30)[0].seconds is not None
        assert len(known) > 1 and all(known)


def test_ping_of_unresponsive_worker_has_no_result(near: str) -> None:
    with fleets.Fleet(url=near) as looking, worker_in_thread(near, tasks) as one:
        looking.workers(least=1, wait=30)
        one.suspend()
        # The consumer stops without a notice, so the worker stays listed but receives nothing.
        one._proxy.consumer._stopping.set()
        one._proxy.consumer._wake_consumer()
        until(lambda: one._proxy.consumer.has_ended)
        (replies,) = looking.ping(timeout=0.2)
        assert replies == fleets.PingView(one.identity, None, None)


@pytest.mark.parametrize(
    "orders", [("suspend", "resume", "drain"), ("suspend", "stop")], ids=" ".join
)
def test_workers_obey_control_commands(
    place: dict[str, Any], looking: fleets.Fleet, orders: tuple[str, ...]
) -> None:
    ledger = place.get("ledger")
    states = {"suspend": "suspended", "resume": "idle", "drain": "dead", "stop": "dead"}
    with (
        worker_in_thread(place["url"], tasks, ledger=ledger) as one,
        worker_in_thread(place["url"], tasks, ledger=ledger) as other,
    ):
        looking.workers(least=2, wait=30)
        for what in orders:
            replies = looking.control(what, [one.identity])
            assert [worker.name for worker in replies] == [one.identity]
            assert looking.wait_until_obeyed(what, replies, 30, until_stopped=what == "drain") == []
            until(lambda what=what: one.life.state == states[what])  # type: ignore[misc]
            assert other.life.state == "idle"
        looking.control("suspend")
        until(lambda: other.life.state == "suspended")


def test_stop_after_drain_abandons_running_tasks(
    place: dict[str, Any], looking: fleets.Fleet, tmp_path: Path
) -> None:
    ledger = place.get("ledger")
    with (
        worker_in_thread(place["url"], waiting_task, ledger=ledger) as one,
        Busy(place, tmp_path) as busy,
    ):
        replies = looking.control("drain", [one.identity])
        assert looking.wait_until_obeyed("drain", replies, 30) == []
        assert looking.wait_until_obeyed("drain", replies, 0.3, until_stopped=True) == [
            one.identity
        ]
        # A stop after the drain is accepted.
        replies = looking.control("stop", [one.identity])
        assert looking.wait_until_obeyed("stop", replies, 30) == []
        busy.join()
        assert busy.lost
        assert one.gave_up.wait(30)
        assert busy.engine.storage.get_flow_state() == "REVERTED"


@pytest.mark.parametrize("what", ["die", "drian", ""])
def test_unknown_control_command_is_refused(near: str, what: str) -> None:
    with (
        fleets.Fleet(url=near) as looking,
        pytest.raises(ValueError, match=r"must be one of"),
    ):
        looking.control(what)


def test_workers_are_found_by_name_prefix_or_host(near: str) -> None:
    with (
        fleets.Fleet(url=near) as looking,
        worker_in_thread(near, tasks) as one,
    ):
        assert [seen.name for seen in looking.find([one.identity])] == [one.identity]
        assert [seen.name for seen in looking.find([one.identity[:-1], one.identity])] == [
            one.identity
        ]
        assert [seen.name for seen in looking.find([socket.gethostname()])] == [one.identity]
        with pytest.raises(exceptions.NotFound, match=f"did you mean {one.identity!r}"):
            looking.find([one.identity + "x"])
        with worker_in_thread(near, tasks) as other:
            until(lambda: len(looking.workers()) == 2)
            with pytest.raises(exceptions.NotFound, match=r"is ambiguous: .*, "):
                looking.find([socket.gethostname()])
            with pytest.raises(exceptions.NotFound, match=r"worker .nobody.; 2 workers answered"):
                looking.control("stop", [other.identity, "nobody"])
            assert other.life.state == "idle"
        with pytest.raises(exceptions.NotFound, match="unknown worker ''"):
            looking.find([""])


def test_open_does_not_retry_when_timeout_allows_no_second_attempt() -> None:
    """A second attempt would exceed the timeout."""
    tries = 0
    with socket.create_server(("127.0.0.1", 0)) as away:

        def hang_up() -> None:
            nonlocal tries
            with contextlib.suppress(OSError):
                while True:
                    away.accept()[0].close()
                    tries += 1

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(exceptions.TransportFailure, match="cannot be reached"):
                url = f"amqp://127.0.0.1:{away.getsockname()[1]}//"
                fleets.Fleet(url=url, timeout=1.0).open()
        finally:
            away.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert tries == 1


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_closed_fleet_leaves_nothing_on_the_broker(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with (
        worker_in_thread(str(url), tasks),
        fleets.Fleet(url=str(url)) as looking,
    ):
        assert looking.workers(least=1, wait=30)
    assert url.left() == []


def begun(place: dict[str, Any], count: int) -> tuple[Any, threading.Thread]:
    """Run an engine whose tasks no worker executes yet; return it and its thread."""
    flow = unordered_flow.Flow("f")
    flow.add(*(tasks.Where(name=f"t{n}", provides=f"w{n}") for n in range(count)))
    made = engines.load(
        flow,
        store={"rest": 0.0},
        engine="worker-based",
        transition_timeout=None,
        worker_expiry=2,  # short, so that purged requests are noticed soon
        **place,
    )
    thread = threading.Thread(target=made.run)
    thread.start()
    return made, thread


def test_purged_requests_are_resent(place: dict[str, Any], looking: fleets.Fleet) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], tasks, ledger=ledger, threads_count=2) as one:
        (queue,) = one.queues.values()
        one.suspend()
        made, thread = begun(place, 5)

        def waiting() -> int:
            (found,) = _message_queues.list_queues(looking, [queue])
            assert (found.kind, found.topic, found.workers) == ("requests", "t", (one.identity,))
            return found.messages

        until(lambda: waiting() == 5)
        with _ledgers.open_ledger(
            ledger, transports.resolve(place["url"], exchange="default")
        ) as rows:
            assert rows is not None
            found = _ledgers.rows(rows)
            assert [row.state for row in found.rows] == ["open"] * 5
            some = _ledgers.rows(rows, 3)
            assert len(some.rows) == 3 and some.after is not None
            assert _ledgers.rows(rows, state="claimed").rows == ()
        kinds = {each.name: each.kind for each in _message_queues.list_queues(looking)}
        assert kinds[one.identity] == "worker"
        if _message_queues.can_list(looking):
            assert sorted(kinds.values()) == ["engine", "requests", "worker"]
        assert _message_queues.purge(looking, _message_queues.list_queues(looking, [queue])) == {
            queue: 5
        }
        assert waiting() == 0
        one.resume()
        thread.join(60)
        assert not thread.is_alive()
        assert made.storage.get_flow_state() == "SUCCESS"
        assert one.life.successes == 5


def test_queue_is_found_by_prefix_and_unknown_name_gets_a_suggestion(
    place: dict[str, Any], looking: fleets.Fleet
) -> None:
    with worker_in_thread(place["url"], tasks, ledger=place.get("ledger")) as one:
        (queue,) = one.queues.values()
        if _message_queues.can_list(looking):  # other brokers need exact names
            assert [
                each.name for each in _message_queues.list_queues(looking, ["t."], wait=30)
            ] == [queue]
        with pytest.raises(exceptions.NotFound, match=f"unknown queue 'x{queue}' .did you mean"):
            _message_queues.list_queues(looking, [f"x{queue}"], wait=30)


def test_empty_broker_has_no_queues(place: dict[str, Any], looking: fleets.Fleet) -> None:
    assert _message_queues.list_queues(looking, wait=0.1) == []
    with pytest.raises(exceptions.NotFound, match="unknown queue 'q'"):
        _message_queues.list_queues(looking, ["q"], wait=0.1)


def test_few_reads_find_the_rows_of_a_rare_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = transports.resolve("amqp://localhost")
    with _ledgers.open_ledger(f"dir://{tmp_path}/ledger", target) as ledger:
        assert ledger is not None
        ledger.open_many([(f"row{number:04}", 1) for number in range(2500)])
        claimed = [f"row{number:04}" for number in range(0, 2500, 50)]
        for id in claimed:
            assert ledger.claim(id, 1, "worker").granted
        reads, read = [], ledger.list_rows
        monkeypatch.setattr(ledger, "list_rows", lambda *words: reads.append(words) or read(*words))
        page = _ledgers.rows(ledger, 30, state="claimed")
        assert [row.id for row in page.rows] == claimed[:30] and page.after is not None
        page = _ledgers.rows(ledger, 30, page.after, "claimed")
        assert [row.id for row in page.rows] == claimed[30:] and page.after is None
        assert len(reads) <= 6


def test_ledger_rows_are_listed_by_state_in_pages(tmp_path: Path) -> None:
    target = transports.resolve("amqp://localhost")
    with _ledgers.open_ledger(None, target) as none:
        assert none is None
    with _ledgers.open_ledger(f"dir://{tmp_path}/ledger", target) as found:
        assert found is not None
        assert _ledgers.rows(found) == _ledgers.RowPage((), None)
        with pytest.raises(ValueError, match=r"got 'opened' .did you mean 'open'"):
            _ledgers.rows(found, state="opened")
        with pytest.raises(ValueError, match="1 to 1000"):
            _ledgers.rows(found, 0)
        found.open_many([(f"row{number:03}", 1) for number in range(250)])
        for number in range(200, 250):
            assert found.claim(f"row{number}", 1, "w").granted
        page = _ledgers.rows(found, 40, state="claimed")
        assert [row.id for row in page.rows] == [f"row{number}" for number in range(200, 240)]
        rest = _ledgers.rows(found, 40, page.after, "claimed")
        assert ([row.id for row in rest.rows], rest.after) == (
            [f"row{number}" for number in range(240, 250)],
            None,
        )
