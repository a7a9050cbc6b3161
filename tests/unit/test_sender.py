"""Order, urgency, deferral, errors and threads of messages that a sender publishes."""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support import outgoing
from tests.support.threads import call_in_threads
from tests.support.workers import until
from tests.unit.senders import WAIT, Place
from wbengine import exceptions as exc
from wbengine.engines.worker_based._connections import sender as senders
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._memory import memory_broker


@pytest.fixture
def place() -> Iterator[Place]:
    new_place = Place()
    yield new_place
    new_place.sender.stop()
    new_place.reader.broker.release()


def test_urgent_messages_are_published_before_queued_ones(place: Place) -> None:
    for number in range(5):
        place.put(number)
    place.put("beat", first=True)
    place.put("beat 2", first=True)
    place.publish()
    assert place.arrived() == ["beat", "beat 2", 0, 1, 2, 3, 4]


def test_hooks_run_before_and_after_publishing(place: Place) -> None:
    done: list[Any] = []

    def before(word: str) -> Any:
        return lambda: done.append(word) or True

    message = place.put(1, before=before("before"), after=lambda: done.append(1))
    skipped = place.put(2, before=lambda: False, after=lambda: done.append(2))
    withdrawn = place.put(3, before=before("never"))
    withdrawn.withdrawn = True
    place.publish()
    assert done == ["before", 1]
    assert place.arrived() == [1]
    assert message.sent
    assert skipped.sent


def test_unsendable_message_does_not_stop_the_others(place: Place) -> None:
    errors: list[BaseException] = []
    body: Any = {"n": object()}
    envelope = env.Envelope("TEST", body, routing_key="me")
    place.sender.send(outgoing.message(envelope, failed=errors.append))

    def fail() -> bool:
        raise ValueError("no row")

    place.put(1, before=fail, failed=errors.append)
    place.put(2)
    place.publish()
    assert place.arrived() == [2]
    assert {type(error) for error in errors} == {TypeError, ValueError}


@pytest.mark.parametrize("ailment", [None, exc.TransportFailure, exc.LedgerFailure])
def test_connection_broker_and_ledger_errors_are_retried_in_order(
    place: Place, caplog: pytest.LogCaptureFixture, ailment: type[Exception] | None
) -> None:
    tries: list[int] = []
    raised = ailment or place.reader.broker.recoverable_connection_errors[0]

    def full() -> bool:
        tries.append(1)
        if len(tries) < 3:
            raise raised("No space left on device")
        return True

    failed: list[BaseException] = []
    place.put(1)
    place.put(2, before=full, failed=failed.append)
    place.put(3)
    place.publish()
    assert len(tries) == 3
    assert place.arrived() == [1, 2, 3]
    assert not failed
    assert caplog.text.count("No space left") == 1


def test_unrouted_hook_is_called_if_no_queue_is_bound(place: Place) -> None:
    calls: list[str] = []
    envelope = env.Envelope("TEST", {"n": 1}, routing_key="nobody")
    callbacks = {
        "after": lambda: calls.append("after"),
        "unrouted": lambda: calls.append("unrouted"),
    }
    place.sender.send(outgoing.message(envelope, **callbacks))
    place.sender.send(outgoing.message(envelope, after=lambda: calls.append("nobody minds")))
    place.publish()
    assert calls == ["unrouted", "nobody minds"]


def test_connection_lost_while_publishing_calls_the_uncertain_hook(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages without that hook are published again."""
    fails = [False, True]
    put = memory_broker.MemoryBroker.put

    def flaky(self: Any, *args: Any, **options: Any) -> bool:
        if fails and fails.pop(0):
            raise ConnectionResetError("gone")
        return put(self, *args, **options)

    monkeypatch.setattr(memory_broker.MemoryBroker, "put", flaky)
    calls: list[str] = []
    place.put(1)
    place.put(2, after=lambda: calls.append("after"), uncertain=lambda: calls.append("uncertain"))
    place.put(3)
    place.publish()
    assert calls == ["uncertain"]
    assert place.arrived() == [1, 3]


def test_confirmed_replies_do_not_repeat_the_warning_of_the_sender(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    reply = outgoing.message(env.Envelope("TEST", {}), after=lambda: done.append(1))
    for _ in range(2):
        place.sender._log_failure("too many connections")
        place.sender.report_replies([reply])
    assert caplog.text.count("cannot publish (too many connections), retrying") == 1
    assert done == [1, 1]


def test_hooks_are_called_once_for_each_batch(place: Place) -> None:
    calls: list[tuple[str, list[int]]] = []

    class Together(DeliveryHooks):
        def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
            calls.append(("prepare", [message.correlation for message in messages]))
            for message in messages:
                message.withdrawn = message.correlation == 1

        def sent(self, messages: Sequence[OutgoingMessage]) -> None:
            calls.append(("sent", [message.correlation for message in messages]))

    one, other = Together(), Together()
    for number, hooks in enumerate((one, one, other, one)):
        envelope = env.Envelope("TEST", {"n": number}, routing_key="me")
        place.sender.send(OutgoingMessage(envelope, hooks, number))
    place.publish()
    assert place.arrived() == [0, 2, 3]
    assert calls == [
        ("prepare", [0, 1, 3]), ("prepare", [2]), ("sent", [0, 3]), ("sent", [2])
    ]  # fmt: skip


def test_large_messages_are_published_in_separate_batches(place: Place) -> None:
    together: list[int] = []

    class Counting(DeliveryHooks):
        def sent(self, messages: Sequence[OutgoingMessage]) -> None:
            together.append(len(messages))

    hooks, large = Counting(), "x" * 700_000
    for size in (large, large, "", ""):
        place.sender.send(
            OutgoingMessage(env.Envelope("TEST", {"n": size}, routing_key="me"), hooks)
        )
    place.publish()
    assert together == [1, 3]


def test_deferred_calls_run_together_after_publishing(place: Place) -> None:
    done: list[Any] = []
    for number in range(3):
        place.sender.call_later(done.append, number)
    place.put(1, after=lambda: done.append("published"))
    place.publish()
    assert done == ["published", [0, 1, 2]]


def test_full_batch_of_deferred_calls_runs_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "_CALLS_DEFERRED_SECONDS", 3600.0)
    done: list[Any] = []
    place.sender.start()
    place.sender.call_later(done.append, *range(senders.MAX_BATCH_MESSAGES - 1))
    place.put(1)
    until(lambda: place.arrived() == [1])
    assert not done
    place.sender.call_later(done.append, senders.MAX_BATCH_MESSAGES - 1)
    until(lambda: done == [[*range(senders.MAX_BATCH_MESSAGES)]])


def test_stop_runs_deferred_calls_although_one_fails(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[Any] = []

    def fail(things: list[Any]) -> None:
        raise ValueError(things)

    place.sender.call_later(fail, 1)
    place.sender.call_later(done.append, 2)
    place.sender.stop()
    assert done == [[2]]
    place.sender.call_later(done.append, 3)
    assert done == [[2], [3]]
    assert "ValueError: [1]" in caplog.text


def test_deferred_message_is_published_with_the_next_message(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "DEFERRED_SECONDS", 3600.0)
    place.sender.start()
    place.put(0)
    until(lambda: place.arrived() == [0])
    deferred = [place.put(number, defer=True) for number in (1, 2)]
    assert not any(message.sent for message in deferred)
    now = place.put(3)
    assert all(message.sent for message in (*deferred, now)), "in this thread"
    assert place.arrived() == [1, 2, 3]


def test_deferred_message_is_published_after_its_delay(place: Place) -> None:
    by: list[str] = []
    place.sender.start()
    for number in range(3):  # The thread of the sender sleeps before each message.
        place.put(number, defer=True, after=lambda: by.append(threading.current_thread().name))
        until(lambda n=number: place.arrived() == [n])  # type: ignore[misc]
    assert by == ["wbengine-sender-test"] * 3


def test_full_batch_of_deferred_messages_is_published_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "DEFERRED_SECONDS", 3600.0)
    place.sender.start()
    place.put("first")
    until(lambda: place.arrived() == ["first"])
    deferred = [place.put(number, defer=True) for number in range(senders.MAX_BATCH_MESSAGES - 1)]
    assert not any(message.sent for message in deferred)
    place.put("last", defer=True)
    until(lambda: all(message.sent for message in deferred))
    until(lambda: place.sender.queue_length == 0)
    assert place.arrived() == [*range(senders.MAX_BATCH_MESSAGES - 1), "last"]


def test_messages_of_many_threads_keep_the_order_of_each_thread(place: Place) -> None:
    place.sender.start()

    def put(start: int) -> None:
        for number in range(start, start + 200):
            place.put(number)

    call_in_threads(put, (0, 1000, 2000))
    assert place.sender.flush(WAIT)
    arrived = place.arrived()
    assert len(arrived) == len(set(arrived)) == 600
    for start in (0, 1000, 2000):
        own = [number for number in arrived if start <= number < start + 1000]
        assert own == sorted(own)


def test_stopped_sender_publishes_nothing(place: Place) -> None:
    place.sender.start()
    place.put(1)
    assert place.sender.flush(WAIT)
    place.sender.stop()
    place.put(2)
    place.sender.stop()
    assert place.arrived() == [1]


@pytest.mark.parametrize("first", [False, True])
def test_flush_returns_false_while_a_message_is_unpublished(place: Place, first: bool) -> None:
    place.put(1, first=first)
    assert place.sender.flush(0) is False
    place.sender.start()
    assert place.sender.flush(WAIT) is True
    place.sender.stop()
    place.put(2, first=first)
    assert place.sender.flush(0) is False


class Together(DeliveryHooks):
    """Hooks that cannot prepare a batch with message 2."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        if any(message.envelope.body["n"] == 2 for message in messages):
            raise ValueError("2 is odd")

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self.told += [message.envelope.body["n"] for message in messages]

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self.told.append(f"not {message.envelope.body['n']}")


def test_message_that_cannot_be_prepared_fails_alone_in_its_batch(place: Place) -> None:
    hooks = Together()
    for number in range(5):
        envelope = env.Envelope("TEST", {"n": number}, routing_key="me")
        place.sender.send(OutgoingMessage(envelope, hooks))
    place.publish()
    assert place.arrived() == [0, 1, 3, 4]
    assert hooks.told == ["not 2", 0, 1, 3, 4]


def test_deferred_calls_run_once_while_the_sender_stops(place: Place) -> None:
    done: list[tuple[int, int]] = []
    begun, over = threading.Event(), threading.Event()

    def call(things: list[tuple[int, int]]) -> None:
        done.extend(things)
        begun.set()

    def put(who: int) -> None:
        counts[who] = 0
        while not over.is_set():
            place.sender.call_later(call, (who, counts[who]))
            counts[who] += 1

    counts: dict[int, int] = {}
    place.sender.start()
    threads = [threading.Thread(target=put, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(WAIT)
    place.sender.stop()
    over.set()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done)) == sum(counts.values())


# Messages that the calling thread publishes while the sender is idle.


@pytest.fixture
def idle(place: Place) -> Place:
    """Place whose sender waits in its thread."""
    place.sender.start()
    asleep(place)
    return place


def asleep(place: Place) -> None:
    """Wait until the calling thread publishes messages."""
    until(lambda: place.put("probe").sent, WAIT)


def test_call_deferred_by_an_after_hook_runs_soon(idle: Place) -> None:
    done: list[Any] = []
    idle.put(1, after=lambda: idle.sender.call_later(done.append, 1))
    until(lambda: done == [[1]])


def test_call_deferred_by_another_thread_while_publishing_runs_soon(idle: Place) -> None:
    done: list[Any] = []

    def meanwhile() -> bool:
        other = threading.Thread(target=idle.sender.call_later, args=(done.append, 1))
        other.start()
        other.join()
        return True

    idle.put(1, before=meanwhile)
    until(lambda: done == [[1]])


@pytest.mark.parametrize("first", [False, True])
def test_messages_added_while_publishing_follow_in_order(idle: Place, first: bool) -> None:
    idle.arrived()

    def meanwhile() -> bool:
        for number in (2, 3):
            other = threading.Thread(target=idle.put, args=(number, first))
            other.start()
            other.join()
        return True

    idle.put(1, before=meanwhile)
    found: list[Any] = []
    until(lambda: len(found) == 3 or bool(found.extend(idle.arrived())))
    assert found == [1, 2, 3]


def test_message_of_an_interrupted_caller_is_published_by_the_sender(idle: Place) -> None:
    idle.arrived()
    interrupted: list[int] = []

    def interrupt() -> bool:
        interrupted.append(1)
        if len(interrupted) == 1:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        idle.put(1, before=interrupt)
    idle.put(2)
    assert idle.sender.flush(WAIT)
    assert idle.arrived() == [1, 2]
    asleep(idle)


def test_message_lost_in_callers_thread_is_published_by_sender_thread(idle: Place) -> None:
    idle.arrived()
    lost: type[Exception] = idle.reader.broker.recoverable_connection_errors[0]
    tries: list[str] = []

    def flaky() -> bool:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise lost("gone")
        return True

    message = idle.put(1, before=flaky)
    assert not message.sent
    idle.put(2)
    assert idle.sender.flush(WAIT)
    assert idle.arrived() == [1, 2]
    assert tries[0] == "MainThread" != tries[1]
    asleep(idle)


def test_failed_hook_receives_the_error_of_an_unsendable_message(idle: Place) -> None:
    idle.arrived()
    errors: list[BaseException] = []

    def fail() -> bool:
        raise ValueError("no row")

    idle.put(1, before=fail, failed=errors.append)
    idle.put(2, before=lambda: False)
    idle.put(3)
    assert idle.arrived() == [3]
    assert [str(error) for error in errors] == ["no row"]


def test_stop_does_not_wait_for_a_blocked_caller(idle: Place) -> None:
    begun, over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow() -> bool:
        begun.set()
        return over.wait(WAIT)

    told = {"before": slow, "failed": errors.append}
    lender = threading.Thread(target=idle.put, args=(1,), kwargs=told)
    lender.start()
    assert begun.wait(WAIT)
    flushed: list[bool] = []
    flusher = threading.Thread(target=lambda: flushed.append(idle.sender.flush(0.05)))
    flusher.start()
    flusher.join()
    assert flushed == [False]
    idle.sender.stop()
    over.set()
    lender.join(WAIT)
    assert not lender.is_alive()
    assert not errors  # The message is unpublished: a later owner may publish it.


def test_interrupt_after_a_batch_leaves_the_sender_usable(
    idle: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(idle.sender, "_release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        idle.put(1)
    idle.put(2)
    assert idle.sender.flush(WAIT)
    assert idle.arrived()[-2:] == [1, 2]


class Interrupting(OutgoingMessage):
    """Message that raises KeyboardInterrupt when it is marked as sent."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "sent" and value:
            raise KeyboardInterrupt


def test_interrupt_after_publishing_does_not_publish_twice(idle: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        idle.sender.send(Interrupting(env.Envelope("TEST", {"n": 1}, routing_key="me")))
    assert idle.sender.flush(5)
    assert idle.arrived()[-1:] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_calls_and_messages_complete_without_further_activity(idle: Place, seed: int) -> None:
    """Several threads publish messages and defer calls; no thread wakes the sender after their last
    call.
    """
    idle.arrived()
    done: list[Any] = []

    def work(who: int) -> None:
        chance = random.Random(seed * 100 + who)
        for number in range(150):
            what = chance.random()
            if what < 0.5:
                after = None
                if chance.random() < 0.5:
                    after = lambda n=number: idle.sender.call_later(done.extend, (who, n, "after"))  # noqa: E731
                idle.put((who, number), after=after)
                expected[who] += after is not None
            elif what < 0.75:
                idle.put((who, number), defer=chance.random() < 0.5)
            else:
                idle.sender.call_later(done.extend, (who, number))
                expected[who] += 1
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.004)
            if chance.random() < 0.02:
                assert idle.sender.flush(WAIT)

    expected = [0] * 3
    call_in_threads(work, range(3))
    arrived: list[Any] = []
    until(lambda: bool(arrived.extend(idle.arrived())) or not idle.sender.queue_length)
    until(lambda: len(done) == sum(expected))
    arrived += idle.arrived()
    for who in range(3):
        own: Sequence[int] = [number for of, number in arrived if of == who]
        assert list(own) == sorted(set(own))


def test_message_of_a_call_interrupted_at_any_line_is_published(idle: Place) -> None:
    """Wherever Ctrl-C interrupts the call, its message is published without another call."""
    send = type(idle.sender).send
    lines, first = inspect.getsourcelines(send)
    last = first + next(n for n, line in enumerate(lines) if "_publish_some" in line)
    wanted = seen = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal wanted, seen
        # The second event at a line is the end of a `with`, before which no signal is handled.
        if event == "line" and frame.f_code is send.__code__ and seen < frame.f_lineno <= last:
            wanted, seen = wanted - 1, frame.f_lineno
            if wanted == 0:
                raise KeyboardInterrupt
        return trace

    interrupted = 0
    while True:
        asleep(idle)
        wanted, seen = interrupted + 1, 0
        sys.settrace(trace)
        try:
            idle.put(interrupted)
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        finally:
            sys.settrace(None)
        until(lambda: not idle.sender.queue_length, WAIT)
    assert interrupted > 5
