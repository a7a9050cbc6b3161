"""The publisher's thread: order, urgency, what is withdrawn, and what cannot be sent."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support import errands
from tests.support.workers import until
from tests.unit.outboxes import WAIT, Place
from wbengine import exceptions as exc
from wbengine.engines.worker_based.connections import outbox as outboxes
from wbengine.engines.worker_based.connections.outbox import UNHURRIED
from wbengine.engines.worker_based.connections.parcels import Errand, Parcel
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports import memory


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
    envelope = env.Envelope("TEST", body, routing_key="me")
    place.outbox.put(errands.parcel(envelope, failed=errors.append))

    def fail() -> bool:
        raise ValueError("no row")

    place.put(1, before=fail, failed=errors.append)
    place.put(2)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [2]
    assert {type(error) for error in errors} == {TypeError, ValueError}


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
    place.outbox.put(errands.parcel(envelope, **callbacks))
    place.outbox.put(errands.parcel(envelope, after=lambda: told.append("nobody minds")))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert told == ["unrouted", "nobody minds"]


def test_a_connection_that_is_lost_in_the_midst_of_publishing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published again, unless it wants to be told that nobody knows."""
    lost = place.reader.recoverable_connection_errors[0]
    fails = [False, True]
    publish = memory.MemoryStore.publish

    def flaky(self: Any, *args: Any, **options: Any) -> bool:
        if fails and fails.pop(0):
            raise lost("gone")
        return publish(self, *args, **options)

    monkeypatch.setattr(memory.MemoryStore, "publish", flaky)
    told: list[str] = []
    place.put(1)
    place.put(2, after=lambda: told.append("after"), uncertain=lambda: told.append("uncertain"))
    place.put(3)
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert told == ["uncertain"]
    assert place.arrived() == [1, 3]


def test_errands_are_run_for_all_that_goes_out_together(place: Place) -> None:
    told: list[tuple[str, list[int]]] = []

    class Together(Errand):
        def prepare(self, parcels: Sequence[Parcel]) -> None:
            told.append(("prepare", [parcel.matter for parcel in parcels]))
            for parcel in parcels:
                parcel.withdrawn = parcel.matter == 1

        def sent(self, parcels: Sequence[Parcel]) -> None:
            told.append(("sent", [parcel.matter for parcel in parcels]))

    one, other = Together(), Together()
    for number, errand in enumerate((one, one, other, one)):
        envelope = env.Envelope("TEST", {"n": number}, routing_key="me")
        place.outbox.put(Parcel(envelope, errand, number))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [0, 2, 3]
    assert told == [
        ("prepare", [0, 1, 3]), ("prepare", [2]), ("sent", [0, 3]), ("sent", [2])
    ]  # fmt: skip


def test_large_ones_go_out_one_after_the_other(place: Place) -> None:
    together: list[int] = []

    class Counting(Errand):
        def sent(self, parcels: Sequence[Parcel]) -> None:
            together.append(len(parcels))

    errand, large = Counting(), "x" * 700_000
    for size in (large, large, "", ""):
        place.outbox.put(Parcel(env.Envelope("TEST", {"n": size}, routing_key="me"), errand))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert together == [1, 3]


def test_chores_are_done_together_and_after_what_is_published(place: Place) -> None:
    done: list[Any] = []
    for number in range(3):
        place.outbox.later(done.append, number)
    place.put(1, after=lambda: done.append("published"))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert done == ["published", [0, 1, 2]]


def test_many_things_to_be_done_are_not_waited_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(place.outbox, "_wake", lambda: woken.append(place.outbox._chore_count))
    done: list[Any] = []
    for count in (2, 1, outboxes.MOST, 1, outboxes.MOST):
        place.outbox.later(done.append, *range(count))
    assert woken == [2, 3 + outboxes.MOST]
    monkeypatch.undo()
    place.outbox.stop()
    assert len(done[0]) == 4 + 2 * outboxes.MOST


def test_chores_are_done_in_any_case(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    done: list[Any] = []

    def fail(things: list[Any]) -> None:
        raise ValueError(things)

    place.outbox.later(fail, 1)
    place.outbox.later(done.append, 2)
    place.outbox.stop()
    assert done == [[2]]
    place.outbox.later(done.append, 3)
    assert done == [[2], [3]]
    assert "ValueError: [1]" in caplog.text


def test_the_unhurried_wait_for_a_reason_not_to_be_sent(place: Place) -> None:
    envelope = env.Envelope("TEST", {"n": 1}, routing_key="me")
    parcels = [Parcel(envelope) for _ in range(3)]
    before = time.monotonic()
    for parcel in parcels:
        place.outbox.put_unhurried(parcel)
    parcels[0].withdrawn = True
    due = place.outbox.hasten(before)
    assert due is not None and due >= before + UNHURRIED
    parcels[1].withdrawn = True
    assert place.outbox.hasten(due + 1) == due + 1 + UNHURRIED  # others will come
    assert place.outbox.hasten(due + 2) is None  # none came
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [1]
    assert [parcel.sent for parcel in parcels] == [False, False, True]


def test_what_is_put_soon_goes_out_with_the_next_one(place: Place) -> None:
    """Without another thread; or by itself when it is time."""
    place.outbox.start()
    place.put(0)
    until(lambda: place.outbox._spare is not None)
    soon = [Parcel(env.Envelope("TEST", {"n": n}, routing_key="me")) for n in (1, 2)]
    for parcel in soon:
        place.outbox.put_soon(parcel)
    assert not any(parcel.sent for parcel in soon)
    now = Parcel(env.Envelope("TEST", {"n": 3}, routing_key="me"))
    place.outbox.put_now(now)
    assert all(parcel.sent for parcel in (*soon, now))
    assert place.arrived() == [0, 1, 2, 3]
    due = place.outbox.put_soon(late := Parcel(env.Envelope("TEST", {"n": 4}, routing_key="me")))
    assert place.outbox.hasten(due - UNHURRIED) == due
    assert not late.sent
    place.outbox.hasten(due)
    until(lambda: late.sent)
    assert place.arrived() == [4]
    assert place.outbox.hasten(due + 1) is None
    place.outbox.put_soon(last := Parcel(env.Envelope("TEST", {"n": 5}, routing_key="me")))
    place.outbox.hasten_soon(math.inf)
    until(lambda: last.sent)


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


class Together(Errand):
    """Refuses to prepare any of those among which there is a 2."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        if any(parcel.envelope.body["n"] == 2 for parcel in parcels):
            raise ValueError("2 is odd")

    def sent(self, parcels: Sequence[Parcel]) -> None:
        self.told += [parcel.envelope.body["n"] for parcel in parcels]

    def failed(self, parcel: Parcel, error: BaseException) -> None:
        self.told.append(f"not {parcel.envelope.body['n']}")


def test_what_cannot_be_prepared_does_not_fail_what_goes_out_with_it(place: Place) -> None:
    errand = Together()
    for number in range(5):
        envelope = env.Envelope("TEST", {"n": number}, routing_key="me")
        place.outbox.put(Parcel(envelope, errand))
    place.outbox.start()
    assert place.outbox.flush(WAIT)
    assert place.arrived() == [0, 1, 3, 4]
    assert errand.told == ["not 2", 0, 1, 3, 4]


def test_chores_are_done_once_whenever_it_ends(place: Place) -> None:
    done: list[tuple[int, int]] = []
    begun, over = threading.Event(), threading.Event()

    def chore(things: list[tuple[int, int]]) -> None:
        done.extend(things)
        begun.set()

    def put(who: int) -> None:
        counts[who] = 0
        while not over.is_set():
            place.outbox.later(chore, (who, counts[who]))
            counts[who] += 1

    counts: dict[int, int] = {}
    place.outbox.start()
    threads = [threading.Thread(target=put, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(WAIT)
    place.outbox.stop()
    over.set()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done)) == sum(counts.values())
