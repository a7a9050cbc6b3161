"""Acknowledging and requeueing messages on a lost connection."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from wbengine.engines.worker_based import proxy


class Broken:
    """Consumer whose connection is lost."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise ConnectionResetError("gone")

        return fail


class Delivered:
    """Message of an earlier connection."""

    channel, delivery_tag, delivery_info, headers = Broken(), 1, None, None
    acknowledged = False

    def requeue(self) -> None:
        raise ConnectionResetError("gone")


class Side(proxy.Proxy):
    """Proxy whose consumer runs in the calling thread."""

    def __init__(self) -> None:
        super().__init__("me", "x", url="amqp://localhost")
        self.consumer.consume_shared(["q"], 2)
        self.work = self.consumer.work
        self.work.channel = Broken()  # type: ignore[assignment]
        self.messages = [Delivered(), Delivered()]
        self.work.held.update(dict.fromkeys(self.messages))

    def turn(self) -> None:
        """Run the pending calls as the consumer thread does, on one connection after another."""
        while self.consumer._pending_calls:
            with contextlib.suppress(ConnectionResetError):
                self.consumer._pending_calls.popleft()()


@pytest.fixture
def side() -> Side:
    return Side()


def test_acknowledging_on_a_lost_connection_frees_all_slots(side: Side) -> None:
    side.consumer.ack_many(side.messages)
    side.turn()
    assert side.work.held == {}


def test_requeue_on_a_lost_connection_calls_all_callbacks(side: Side) -> None:
    told: list[int] = []
    for number, message in enumerate(side.messages):
        side.consumer.requeue(message, lambda n=number: told.append(n))
    side.turn()
    assert told == [0, 1]
    assert side.work.held == {}
