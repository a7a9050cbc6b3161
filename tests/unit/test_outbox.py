"""The publisher's thread: order, urgency, what is withdrawn, and what cannot be sent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import topology
from wbengine.engines.worker_based.outbox import Outbox, Parcel
from wbengine.transports import memory

WAIT = 20.0


class Place:
    """A broker in memory with one queue that everything goes to."""

    def __init__(self) -> None:
        self.target = transports.resolve(f"memory://{uuid.uuid4().hex}", None, None)
        self.layout = topology.Topology("exchange", "me", (), None)
        self.reader = self.connect()
        self.queue = self.layout.declare_own(self.reader.channel(), ours=True)
        self.outbox = Outbox(self.target, self.layout, "test")

    def connect(self) -> kombu.Connection:
        return self.target.connect()

    def arrived(self) -> list[Any]:
        bodies = []
        while (message := self.queue.get(no_ack=True)) is not None:
            bodies.append(env.parse(message.body)["n"])
        return bodies

    def put(self, number: Any, first: bool = False, **options: Any) -> Parcel:
        parcel = Parcel(env.Envelope("TEST", {"n": number}, routing_key="me"), **options)
        self.outbox.put(parcel, first)
        return parcel


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.outbox.stop()
    made.reader.release()


def test_in_order_except_for_the_urgent(place: Place) -> None:
    for number in range(5):
        place.put(number)
    place.put("beat", first=True)
    place.put("beat 2", first=True)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == ["beat", "beat 2", 0, 1, 2, 3, 4]


def test_before_and_after(place: Place) -> None:
    done: list[Any] = []

    def before(word: str) -> Any:
        return lambda: done.append(word) or True

    parcel = place.put(1, before=before("before"), after=lambda: done.append(1))
    skipped = place.put(2, before=lambda: False, after=lambda: done.append(2))
    withdrawn = place.put(3, before=before("never"))
    withdrawn.withdrawn = True
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert done == ["before", 1]
    assert place.arrived() == [1]
    assert parcel.sent
    assert skipped.sent


def test_one_that_can_not_be_sent_does_not_stop_the_others(place: Place) -> None:
    errors: list[BaseException] = []
    body: Any = {"n": object()}
    place.outbox.put(Parcel(env.Envelope("TEST", body, routing_key="me"), failed=errors.append))

    def fail() -> bool:
        raise ValueError("no row")

    place.put(1, before=fail, failed=errors.append)
    place.put(2)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [2]
    assert [type(error) for error in errors] == [TypeError, ValueError]


def test_a_lost_connection_delays_but_loses_nothing(place: Place) -> None:
    tries: list[int] = []
    lost: type[Exception] = place.reader.recoverable_connection_errors[0]

    def flaky() -> bool:
        tries.append(1)
        if len(tries) < 3:
            raise lost("gone")
        return True

    place.put(1)
    place.put(2, before=flaky)
    place.put(3)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert len(tries) == 3
    assert place.arrived() == [1, 2, 3]


@pytest.mark.parametrize("ailment", [exc.TransportFailure, exc.LedgerFailure])
def test_what_ails_the_broker_delays_but_loses_nothing(
    place: Place, caplog: pytest.LogCaptureFixture, ailment: type[Exception]
) -> None:
    tries: list[int] = []

    def full() -> bool:
        tries.append(1)
        if len(tries) < 3:
            raise ailment("No space left on device")
        return True

    failed: list[BaseException] = []
    place.put(1, before=full, failed=failed.append)
    place.put(2)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [1, 2]
    assert not failed
    assert caplog.text.count("No space left") == 1


def test_what_reaches_no_queue_is_told(place: Place) -> None:
    told: list[str] = []
    envelope = env.Envelope("TEST", {"n": 1}, routing_key="nobody")
    callbacks = {"after": lambda: told.append("after"), "unrouted": lambda: told.append("unrouted")}
    place.outbox.put(Parcel(envelope, **callbacks))
    place.outbox.put(Parcel(envelope, after=lambda: told.append("nobody minds")))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert told == ["unrouted", "nobody minds"]


def test_a_connection_that_is_lost_in_the_midst_of_publishing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published again, unless it wants to be told that nobody knows."""
    lost = place.reader.recoverable_connection_errors[0]
    fails = [True, False, True]
    publish = memory.Transport.Channel.basic_publish

    def flaky(self: Any, *args: Any, **options: Any) -> bool:
        if fails and fails.pop(0):
            raise lost("gone")
        return publish(self, *args, **options)

    monkeypatch.setattr(memory.Transport.Channel, "basic_publish", flaky)
    told: list[str] = []
    place.put(1)
    place.put(2, after=lambda: told.append("after"), uncertain=lambda: told.append("uncertain"))
    place.put(3)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert told == ["uncertain"]
    assert place.arrived() == [1, 3]


def test_many_threads(place: Place) -> None:
    place.outbox.start()

    def put(start: int) -> None:
        for number in range(start, start + 200):
            place.put(number)

    threads = [threading.Thread(target=put, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.outbox.flush(WAIT)
    arrived = place.arrived()
    assert len(arrived) == len(set(arrived)) == 600
    for start in (0, 1000, 2000):
        own = [number for number in arrived if start <= number < start + 1000]
        assert own == sorted(own)


def test_closed_it_publishes_nothing_more(place: Place) -> None:
    place.outbox.start()
    place.put(1)
    assert place.outbox.flush(WAIT)
    place.outbox.stop()
    place.put(2)
    place.outbox.stop()
    assert place.arrived() == [1]


@pytest.mark.parametrize("first", [False, True])
def test_flushing_what_was_never_published_is_honest(place: Place, first: bool) -> None:
    place.put(1, first=first)
    assert place.outbox.flush(0) is False
    place.outbox.start()
    assert place.outbox.flush(WAIT) is True
    place.outbox.stop()
    place.put(2, first=first)
    assert place.outbox.flush(0) is False
