"""A task begins once its broker has noted that."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine.interop.celery.protocol import codec
from wbengine.interop.celery.worker import notes
from wbengine.interop.celery.worker.deeds import Acknowledge, GiveBack, Mark, Run
from wbengine.interop.celery.worker.jobs import Past

from .test_service import NOW, SAFE, Bench, kinds, message_of, moment


def test_it_runs_once_the_broker_has_noted_that() -> None:
    bench = Bench(nonce="me")
    (mark,) = bench.come(message_of("a"))
    assert isinstance(mark, Mark) and mark.job.note == "me.1"
    assert (bench.service.running, bench.service.began) == (1, 1)
    assert bench.service.query(["a"])["a"][0] == "reserved"
    assert bench.come(message_of("b")) == [] and bench.service.waiting == 1
    assert bench.come(message_of("a"), Past.GIVEN, "copy") == [Acknowledge("copy")]
    assert bench.service.on_marked([mark.job], NOW) == [Run(mark.job)]
    assert bench.service.on_marked([mark.job], NOW) == []  # once
    (safe,) = Bench().come(message_of(task=SAFE, args=[]))
    assert isinstance(safe, Run)  # it may run twice


def test_somebody_else_began_it() -> None:
    bench = Bench()
    (mark,) = bench.come(message_of("a"))
    bench.come(message_of("b"))
    (another,) = bench.service.on_refused([mark.job], NOW)
    assert another.job.id == "b" and bench.service.on_marked([mark.job], NOW) == []
    assert bench.service.counts["elsewhere"] == 1


@pytest.mark.parametrize("change", ["revoke", "expire", "drain", "abandon"])
def test_what_nobody_wants_any_more_when_it_is_noted(change: str) -> None:
    bench = Bench()
    (mark,) = bench.come(message_of("a", expires=moment(5)))
    bench.come(message_of("b"))
    now = NOW + 6 if change == "expire" else NOW
    if change == "revoke":
        assert bench.service.revoke(["a"], False, NOW) == []
    elif change != "expire":
        assert kinds(getattr(bench.service, change)(NOW)) == ["GiveBack"]
    first, *others = bench.service.on_marked([mark.job], now)
    if change == "drain":
        assert first == Run(mark.job) and others == []  # it has begun
    elif change == "abandon":
        assert first == GiveBack(mark.job) and others == []
    else:
        assert first.state == "REVOKED" and kinds(others) == ["Mark"]


def test_a_note_that_was_made_for_nothing() -> None:
    """Nobody heard of it: it is not taken for one of a task that has begun, once."""
    bench = Bench(nonce="me")
    bench.come(message_of("a"))
    bench.service.on_disconnected()
    assert not bench.service.busy
    assert bench.service.query(["a"]) == {"a": ["spared", {"id": "a", "notes": ["me.1"]}]}
    assert bench.service.query(["a"]) == {}
    assert bench.come(message_of("a"), Past.BEGUN, note="me.1") == []
    assert bench.service.query(["a"])["a"][0] == "doubted"
    (end,) = bench.nobody_knows()
    assert end.result.value["exc_type"] == "WorkerLostError"


def test_a_note_that_was_made_for_nothing_comes_back_to_its_worker() -> None:
    bench = Bench(nonce="me")
    bench.come(message_of("a"))
    bench.service.on_disconnected()
    assert bench.come(message_of("a"), Past.BEGUN, note="another.1") == []
    bench.service.on_disconnected()
    (run,) = bench.come(message_of("a"), Past.BEGUN, note="me.1")
    assert isinstance(run, Run)
    bench.service.on_disconnected()
    bench.finish(run.job, 3)
    # What waits for a slot has not begun, either.
    bench = Bench(nonce="me")
    bench.come(message_of("a"))
    bench.service.on_disconnected()
    bench.run(message_of("b"))
    for _ in range(2):
        assert bench.come(message_of("a"), Past.BEGUN, note="me.1") == []
        assert bench.service.waiting == 1
        bench.service.on_disconnected()


def test_a_note_stands_for_its_message() -> None:
    bench = Bench()
    job = bench.run(message_of("a"))
    old = job.receipt
    assert bench.come(message_of("a"), Past.GIVEN, "plain") == [Acknowledge("plain")]
    assert job.receipt == old
    assert bench.come(message_of("a"), Past.BEGUN, "note") == [Acknowledge(old)]
    assert job.receipt == "note"


def test_the_note_of_another_worker_stands_for_a_message_that_has_not_begun() -> None:
    bench = Bench()
    bench.come(message_of("a"), Past.GIVEN, "plain")
    assert bench.come(message_of("a"), Past.BEGUN, "note") == [Acknowledge("plain")]
    (end,) = bench.nobody_knows()
    assert end.result.value["exc_type"] == "WorkerLostError"
    for eta in (None, moment(60)):
        bench = Bench()
        bench.run(message_of("first"))
        bench.come(message_of("a", eta=eta), Past.NONE, "plain")
        assert bench.service.waiting + bench.service.held == 1
        assert bench.come(message_of("a", eta=eta), Past.BEGUN, "note") == [Acknowledge("plain")]
        assert bench.service.waiting + bench.service.held == 0
        (end,) = bench.nobody_knows()
        assert (end.job.id, end.state) == ("a", "FAILURE")


def test_a_note_says_all_that_its_message_does() -> None:
    wire = codec.encode(message_of("ä", eta=moment(5), kwargs={"x": "\n"}))
    wire.headers |= {"bytes": b"\xff\n", "number": 7, "none": None, "list": [1, {"a": 2.5}]}
    wire.properties["priority"] = 3
    wire.body += b"\n\xff"

    class Message:
        body = memoryview(notes.write(wire))
        properties: Any = {"content_type": "application/x-wbengine-note"}

    assert notes.read(Message()) == wire
    Message.body = Message.body[:7]
    with pytest.raises(ValueError, match="cut short"):
        notes.read(Message())
    Message.properties = {}
    with pytest.raises(ValueError, match="no note"):
        notes.read(Message())


def test_queues_of_notes_have_names_that_fit() -> None:
    assert notes.begun_queue("celery") == "celery.wbengine.begun"
    names = {notes.begun_queue(letter * 255) for letter in "abä"}
    assert len(names) == 3 and all(len(name) < 100 for name in names)
