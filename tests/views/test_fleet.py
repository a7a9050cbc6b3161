"""Who works, how fast they answer, and whether they do what they are told; by real workers."""

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
from tests.views import held
from wbengine import engines, exceptions
from wbengine.engines.worker_based.messages import envelope, pinging
from wbengine.patterns import linear_flow
from wbengine.views import fleet as fleets


@pytest.fixture
def near(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


class Busy:
    """A flow whose one task runs on a worker until it may end; run in a thread."""

    def __init__(self, place: dict[str, Any], folder: Path) -> None:
        self._begun, self._go = folder / "begun", folder / "go"
        flow = linear_flow.Flow("f").add(held.Held(name="slow"))
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
        """Until the flow has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_who_is_there(place: dict[str, Any], looking: fleets.Fleet) -> None:
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
        found = {seen.name: seen for seen in looking.workers(least=2, wait=30)}
        assert list(found) == sorted([one.identity, other.identity])
        seen = found[one.identity]
        assert (seen.topics, seen.slots, seen.running, seen.state) == (("a", "b"), 3, 0, "idle")
        assert seen.tasks == ("tests.support.worker_tasks.Where",)
        assert dict(zip(seen.topics, seen.queues, strict=True)) == one.queues
        assert (seen.version, seen.host) == (wbengine.__version__, socket.gethostname())
        assert seen.ledger is not None
        assert seen.born is not None and seen.born <= seen.heard + 1 <= time.time() + 2
        assert len(found[other.identity].tasks) > 1
        assert seen.to_dict()["heard"].endswith("Z")
    until(lambda: not looking.workers())


def test_what_a_worker_does(place: dict[str, Any], looking: fleets.Fleet, tmp_path: Path) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], held, ledger=ledger):
        began, first = time.time(), time.monotonic()
        with Busy(place, tmp_path):
            runs = time.monotonic()
            looking.workers(least=1, wait=30)
            looking.ping(timeout=30)  # whoever is asked tells what he does now
            (seen,) = looking.workers()
            (work,) = seen.current
            assert (seen.state, seen.running) == ("busy", 1)
            assert work.task == "slow"
            assert work.began is not None and began - 0.2 <= work.began <= time.time() + 0.2
            ran = time.monotonic() - runs

        def after() -> fleets.WorkerView:
            looking.ping(timeout=30)
            return looking.workers()[0]

        until(lambda: after().succeeded)  # what was asked for before may be answered now
        seen = after()
        assert (seen.succeeded, seen.current, seen.running) == (1, (), 0)
        assert ran <= seen.working < time.monotonic() - first


def test_round_trips(place: dict[str, Any], looking: fleets.Fleet) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], tasks, ledger=ledger) as one:
        began = time.monotonic()
        (told,) = looking.ping(timeout=30)
        assert told.name == one.identity
        assert told.seconds is not None and 0 < told.seconds < time.monotonic() - began
        assert told.ahead is not None and abs(told.ahead) < 0.2 + told.seconds / 2
        one_again = looking.ping([one.identity[:-3]], timeout=30)
        assert [ping.name for ping in one_again] == [one.identity]


def test_who_has_answered_is_known_by_what_he_told(near: str) -> None:
    looking = fleets.Fleet(url=near)
    known: list[bool] = []

    class Pings(pinging.Pings):
        def hear(self, headers: Any) -> None:
            told = headers.get(envelope.WBE_WORKER)
            if told is not None:
                known.append(told in {each.identity for each in looking._executor.workers()})
            super().hear(headers)

    looking._executor._pings = Pings()
    with worker_in_thread(near, tasks), looking:
        looking.workers(least=1, wait=30)
        assert looking.ping(timeout=30)[0].seconds is not None
        assert len(known) > 1 and all(known)


def test_who_is_gone_does_not_answer(near: str) -> None:
    with fleets.Fleet(url=near) as looking, worker_in_thread(near, tasks) as one:
        looking.workers(least=1, wait=30)
        one.suspend()
        # Nobody takes its messages any more, and it could not say so.
        one._proxy.consumer._stopping.set()
        one._proxy.consumer._ring()
        until(lambda: one._proxy.consumer.ended)
        (told,) = looking.ping(timeout=0.2)
        assert told == fleets.PingView(one.identity, None, None)


@pytest.mark.parametrize("orders", [("suspend", "resume", "drain"), ("suspend", "stop")])
def test_workers_obey(
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
            told = looking.control(what, [one.identity])
            assert [worker.name for worker in told] == [one.identity]
            assert looking.obeyed(what, told, 30, to_the_end=what == "drain") == []
            until(lambda what=what: one.life.state == states[what])  # type: ignore[misc]
            assert other.life.state == "idle"
        looking.control("suspend")
        until(lambda: other.life.state == "suspended")


def test_stop_gives_up_what_runs(
    place: dict[str, Any], looking: fleets.Fleet, tmp_path: Path
) -> None:
    ledger = place.get("ledger")
    with (
        worker_in_thread(place["url"], held, ledger=ledger) as one,
        Busy(place, tmp_path) as busy,
    ):
        told = looking.control("drain", [one.identity])
        assert looking.obeyed("drain", told, 30) == []
        assert looking.obeyed("drain", told, 0.3, to_the_end=True) == [one.identity]
        # It is not too late to be in a hurry.
        told = looking.control("stop", [one.identity])
        assert looking.obeyed("stop", told, 30) == []
        busy.join()
        assert busy.lost
        assert one.gave_up.wait(30)
        assert busy.engine.storage.get_flow_state() == "REVERTED"


@pytest.mark.parametrize("what", ["die", "drian", ""])
def test_no_such_order(near: str, what: str) -> None:
    with (
        fleets.Fleet(url=near) as looking,
        pytest.raises(ValueError, match=r"nothing a worker can be told"),
    ):
        looking.control(what)


def test_names(near: str) -> None:
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
            with pytest.raises(exceptions.NotFound, match=r"several workers: .*, "):
                looking.find([socket.gethostname()])
            with pytest.raises(exceptions.NotFound, match=r"no worker 'nobody'.*2 others"):
                looking.control("stop", [other.identity, "nobody"])
            assert other.life.state == "idle"
        with pytest.raises(exceptions.NotFound, match="no worker ''"):
            looking.find([""])


def test_a_broker_that_is_away() -> None:
    """It is not tried again, when another try would have no time."""
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
def test_nothing_is_left(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with (
        worker_in_thread(str(url), tasks, ledger="memory://fleet"),
        fleets.Fleet(url=str(url)) as looking,
    ):
        assert looking.workers(least=1, wait=30)
    assert url.left() == []
