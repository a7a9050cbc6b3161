"""Declaration of queues that an operator removed from the broker."""

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
from wbengine.engines.worker_based._connections import consumer_loop
from wbengine.engines.worker_based._connections import receiver as receivers
from wbengine.engines.worker_based._connections.sender import ECHO, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based.proxy import Proxy


class Side(Proxy):
    """Proxy on a memory broker that records received messages."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        handler = dispatcher.Handler(lambda data, message: self.got.append(data["n"]))
        url = f"memory://{uuid.uuid4().hex}"
        super().__init__("me", "x", {"TEST": handler}, url=url)
        self.consumer.consume_shared(["q"], 2)

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


def test_unroutable_message_causes_queues_to_be_declared_again(side: Side) -> None:
    with side.target.open() as operator:
        for name in ("me", "q"):
            operator.unbind("x", name, name)
        side.say(1)
        until(lambda: {"me", "q"} <= {bound for bound, _, _ in operator.bindings()})
    side.say(2)
    side.say(3, "q")
    until(lambda: sorted(side.got) == [2, 3])


def test_queues_are_not_declared_for_each_unroutable_message(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[int] = []
    receiver = side.consumer._receiver
    assert receiver is not None
    before = receiver._declare

    def declare() -> None:
        declared.append(number)
        before()

    receiver._declare = declare  # type: ignore[method-assign]
    monkeypatch.setattr(receivers, "DECLARE_PAUSE_SECONDS", 3600.0)
    for number in range(1, 100):
        side.say(number, "nobody")
        assert side.flush(30)
    side.say(100)
    until(lambda: side.got == [100])  # a complete iteration has passed
    assert declared == []
    monkeypatch.setattr(receivers, "DECLARE_PAUSE_SECONDS", 0.0)
    number = 101
    side.say(number, "nobody")
    until(lambda: declared == [101])


def test_receive_error_is_logged_once_until_receiving_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_loop, "RECONNECT_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(consumer_loop, "DRAIN_SECONDS", 1000.0)
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + turned)
    monkeypatch.setattr(consumer_loop, "time", clock)
    ails = ["full", "full", "full", "slow", "", "slow"]
    turns: list[str] = []
    turned = 0.0

    def on_wait() -> float:
        nonlocal turned
        if ails:
            turns.append(ails.pop(0))
            if turns[-1]:
                raise OSError(turns[-1])
            turned += 2000.0  # the duration of successful operation
        return time.monotonic()

    url = f"memory://{uuid.uuid4().hex}"
    made = Proxy("me", "x", None, on_wait, url=url)
    thread = threading.Thread(target=made.start, daemon=True)
    thread.start()
    until(lambda: len(turns) == 6)
    made.stop()
    thread.join(60)
    said = [each.getMessage() for each in caplog.records if each.name == consumer_loop.__name__]
    assert [text.partition(",")[0] for text in said] == [
        "cannot receive messages (full)",
        "cannot receive messages (slow)",
        "cannot receive messages (slow)",
    ]
