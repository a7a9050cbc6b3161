"""A proxy's dealings with what it took, when the connection is lost in the midst of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from wbengine.engines.worker_based import proxy
from wbengine.engines.worker_based.connections import prefetcher


class Broken:
    """An AMQP channel whose connection is gone."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **kwargs: Any) -> Any:
            raise ConnectionResetError("gone")

        return fail


class Delivered:
    """A message, of a connection before that."""

    channel, delivery_tag, delivery_info, headers = object(), 1, None, None
    acknowledged = False


class Side(proxy.Proxy):
    """One whose consumer's thread is the caller's."""

    def __init__(self) -> None:
        super().__init__("me", "x", url="amqp://localhost")
        self.consumer.take_from(["q"], 2)
        assert isinstance(self.consumer.work, prefetcher.AmqpPrefetcher)
        self.work = self.consumer.work
        self.work.channel = Broken()
        self.messages = [Delivered(), Delivered()]
        self.work.held.update(dict.fromkeys(self.messages, 0.0))

    def turn(self) -> None:
        """What a consumer's thread does, on one connection after the other."""
        while self.consumer._soon:
            with contextlib.suppress(ConnectionResetError):
                self.consumer._soon.popleft()()


@pytest.fixture
def side() -> Side:
    return Side()


def test_all_that_was_answered_together_leaves_its_slots(side: Side) -> None:
    side.consumer.ack_many(side.messages)
    side.turn()
    assert side.work.held == {}


def test_whoever_waits_for_what_goes_back_is_told(side: Side) -> None:
    told: list[int] = []
    for number, message in enumerate(side.messages):
        side.consumer.requeue(message, lambda n=number: told.append(n))
    side.turn()
    assert told == [0, 1]
    assert side.work.held == {}
