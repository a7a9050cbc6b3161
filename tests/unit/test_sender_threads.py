"""Messages that the calling thread publishes while the sender is idle."""

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
from wbengine.engines.worker_based._connections.outgoing import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    made.sender.start()
    asleep(made)
    yield made
    made.sender.stop()
    made.reader.broker.release()


def now(place: Place, number: Any, **options: Any) -> OutgoingMessage:
    message = outgoing.message(env.Envelope("TEST", {"n": number}, routing_key="me"), **options)
    place.sender.send(message)
    return message


def asleep(place: Place) -> None:
    """Wait until the calling thread publishes messages."""
    until(lambda: place.put("probe").sent, WAIT)


def test_call_deferred_by_an_after_hook_runs_soon(place: Place) -> None:
    done: list[Any] = []
    now(place, 1, after=lambda: place.sender.call_later(done.append, 1))
    until(lambda: done == [[1]])


def test_call_deferred_by_another_thread_while_publishing_runs_soon(place: Place) -> None:
    done: list[Any] = []

    def meanwhile() -> bool:
        other = threading.Thread(target=place.sender.call_later, args=(done.append, 1))
        other.start()
        other.join()
        return True

    now(place, 1, before=meanwhile)
    until(lambda: done == [[1]])


@pytest.mark.parametrize("first", [False, True])
def test_messages_added_while_publishing_follow_in_order(place: Place, first: bool) -> None:
    place.arrived()

    def meanwhile() -> bool:
        for number in (2, 3):
            other = threading.Thread(target=place.put, args=(number, first))
            other.start()
            other.join()
        return True

    now(place, 1, before=meanwhile)
    found: list[Any] = []
    until(lambda: len(found) == 3 or bool(found.extend(place.arrived())))
    assert found == [1, 2, 3]


def test_message_of_an_interrupted_caller_is_published_by_the_sender(place: Place) -> None:
    place.arrived()
    interrupted: list[int] = []

    def interrupt() -> bool:
        interrupted.append(1)
        if len(interrupted) == 1:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        now(place, 1, before=interrupt)
    now(place, 2)
    assert place.sender.flush(WAIT)
    assert place.arrived() == [1, 2]
    asleep(place)


def test_message_lost_in_callers_thread_is_published_by_sender_thread(place: Place) -> None:
    place.arrived()
    lost: type[Exception] = place.reader.broker.recoverable_connection_errors[0]
    tries: list[str] = []

    def flaky() -> bool:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise lost("gone")
        return True

    message = now(place, 1, before=flaky)
    assert not message.sent
    now(place, 2)
    assert place.sender.flush(WAIT)
    assert place.arrived() == [1, 2]
    assert tries[0] == "MainThread" != tries[1]
    asleep(place)


def test_failed_hook_receives_the_error_of_an_unsendable_message(place: Place) -> None:
    place.arrived()
    errors: list[BaseException] = []

    def fail() -> bool:
        raise ValueError("no row")

    now(place, 1, before=fail, failed=errors.append)
    now(place, 2, before=lambda: False)
    now(place, 3)
    assert place.arrived() == [3]
    assert [str(error) for error in errors] == ["no row"]


def test_stop_does_not_wait_for_a_blocked_caller(place: Place) -> None:
    begun, over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow() -> bool:
        begun.set()
        return over.wait(WAIT)

    told = {"before": slow, "failed": errors.append}
    lender = threading.Thread(target=now, args=(place, 1), kwargs=told)
    lender.start()
    assert begun.wait(WAIT)
    flushed: list[bool] = []
    flusher = threading.Thread(target=lambda: flushed.append(place.sender.flush(0.05)))
    flusher.start()
    flusher.join()
    assert flushed == [False]
    place.sender.stop()
    over.set()
    lender.join(WAIT)
    assert not lender.is_alive()
    assert not errors  # The message is unpublished: a later owner may publish it.


def test_interrupt_after_a_batch_leaves_the_sender_usable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(place.sender, "_release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        now(place, 1)
    now(place, 2)
    assert place.sender.flush(WAIT)
    assert place.arrived()[-2:] == [1, 2]


class Interrupting(OutgoingMessage):
    """Message that raises KeyboardInterrupt when it is marked as sent."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "sent" and value:
            raise KeyboardInterrupt


def test_interrupt_after_publishing_does_not_publish_twice(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        place.sender.send(Interrupting(env.Envelope("TEST", {"n": 1}, routing_key="me")))
    assert place.sender.flush(5)
    assert place.arrived()[-1:] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_calls_and_messages_complete_without_further_activity(place: Place, seed: int) -> None:
    """Several threads publish messages and defer calls; no thread wakes the sender after their last
    call.
    """
    place.arrived()
    done: list[Any] = []

    def work(who: int) -> None:
        chance = random.Random(seed * 100 + who)
        for number in range(150):
            what = chance.random()
            if what < 0.5:
                after = None
                if chance.random() < 0.5:
                    after = lambda n=number: place.sender.call_later(done.extend, (who, n, "after"))  # noqa: E731
                now(place, (who, number), after=after)
                expected[who] += after is not None
            elif what < 0.75:
                place.put((who, number), defer=chance.random() < 0.5)
            else:
                place.sender.call_later(done.extend, (who, number))
                expected[who] += 1
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.004)
            if chance.random() < 0.02:
                assert place.sender.flush(WAIT)

    expected = [0] * 3
    call_in_threads(work, range(3))
    arrived: list[Any] = []
    until(lambda: bool(arrived.extend(place.arrived())) or not place.sender.queue_length)
    until(lambda: len(done) == sum(expected))
    arrived += place.arrived()
    for who in range(3):
        own: Sequence[int] = [number for of, number in arrived if of == who]
        assert list(own) == sorted(set(own))


def test_message_of_a_call_interrupted_at_any_line_is_published(place: Place) -> None:
    """Wherever Ctrl-C interrupts the call, its message is published without another call."""
    send = type(place.sender).send
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
        asleep(place)
        wanted, seen = interrupted + 1, 0
        sys.settrace(trace)
        try:
            now(place, interrupted)
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
        finally:
            sys.settrace(None)
        until(lambda: not place.sender.queue_length, WAIT)
    assert interrupted > 5
