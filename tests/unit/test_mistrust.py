"""What somebody removed from a broker is declared again soon by whoever has reason to think so."""

from __future__ import annotations

import threading
import time
import types
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import until
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based.connections import consumer_loop
from wbengine.engines.worker_based.connections import receiver as receivers
from wbengine.engines.worker_based.connections.outgoing import ECHO, OutgoingMessage
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.proxy import Proxy


class Side(Proxy):
    """A proxy on a broker in memory, and how often it declared its queue."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        handler = dispatcher.Handler(lambda data, message: self.got.append(data["n"]))
        url = f"memory://{uuid.uuid4().hex}"
        super().__init__("me", "x", {"TEST": handler}, url=url)
        self.consumer.take_from(["q"], 2)

    def say(self, number: int, to: str = "me") -> None:
        self.send(OutgoingMessage(env.Envelope("TEST", {"n": number}, routing_key=to), ECHO))


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    thread = threading.Thread(target=made.start, daemon=True)
    thread.start()
    assert made.wait(60)
    yield made
    made.stop()
    thread.join(60)


def test_a_message_without_a_place_lets_all_be_declared_again(side: Side) -> None:
    with side.target.open() as operator:
        for name in ("me", "q"):
            operator.unbind("x", name, name)
        side.say(1)
        until(lambda: {"me", "q"} <= {bound for bound, _, _ in operator.bindings()})
    side.say(2)
    side.say(3, "q")
    until(lambda: sorted(side.got) == [2, 3])


def test_but_not_for_each_of_many(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    declared: list[int] = []
    receiver = side.consumer._receiver
    assert receiver is not None
    before = receiver._declare

    def declare() -> None:
        declared.append(number)
        before()

    receiver._declare = declare  # type: ignore[method-assign]
    monkeypatch.setattr(receivers, "DECLARE_PAUSE", 3600.0)
    for number in range(1, 100):
        side.say(number, "nobody")
        assert side.flush(30)
    side.say(100)
    until(lambda: side.got == [100])  # it has had its turn since
    assert declared == []
    monkeypatch.setattr(receivers, "DECLARE_PAUSE", 0.0)
    number = 101
    side.say(number, "nobody")
    until(lambda: declared == [101] and not receiver._mistrusts)


def test_what_ails_is_said_once_until_it_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_loop, "AILING_PAUSE", 0.01)
    monkeypatch.setattr(consumer_loop, "DRAIN_PERIOD", 1000.0)
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + turned)
    monkeypatch.setattr(consumer_loop, "time", clock)
    ails = ["full", "full", "full", "slow", "", "slow"]
    turns: list[str] = []
    turned = 0.0

    def on_wait() -> None:
        nonlocal turned
        if not ails:
            return
        turns.append(ails.pop(0))
        if turns[-1]:
            raise OSError(turns[-1])
        turned += 2000.0  # that is how long it works

    url = f"memory://{uuid.uuid4().hex}"
    made = Proxy("me", "x", None, on_wait, url=url, until=time.monotonic)
    thread = threading.Thread(target=made.start, daemon=True)
    thread.start()
    until(lambda: len(turns) == 6)
    made.stop()
    thread.join(60)
    said = [each.getMessage() for each in caplog.records if each.name == consumer_loop.__name__]
    assert [text.partition(",")[0] for text in said] == [
        "cannot receive (full)",
        "cannot receive (slow)",
        "cannot receive (slow)",
    ]
