"""What a RabbitMQ confirmed, as it counts."""

from __future__ import annotations

import collections
import random
from typing import Any

import kombu
import pytest

from tests.support.brokers import Brokers
from wbengine.interop.celery import brokers
from wbengine.interop.celery.confirms import Confirms


class Channel:
    """What a channel of py-amqp is to who waits for confirmations."""

    def __init__(self) -> None:
        self.events: dict[str, set[Any]] = collections.defaultdict(set)
        self.selected = 0

    def confirm_select(self) -> None:
        self.selected += 1

    def say(self, word: str, number: int, multiple: bool) -> None:
        for heard in self.events[word]:
            heard(number, multiple)


@pytest.mark.parametrize("seed", range(50))
def test_each_is_settled_once(seed: int) -> None:
    """Whatever the broker answers, one by one or many at once, in any order."""
    dice, channel, told = random.Random(seed), Channel(), list[tuple[int, bool]]()
    confirms: Confirms[int] = Confirms(channel, lambda what, kept: told.append((what, kept)))
    expected: dict[int, bool] = {}
    left: set[int] = set()
    for _ in range(200):
        if dice.random() < 0.5 or not left:
            number = confirms.expect(len(expected) + 1)
            expected[number] = True
            left.add(number)
            if dice.random() < 0.1:
                confirms.take_back(number)
                left.discard(number)
                del expected[number]
        else:
            number, kept, many = dice.choice(sorted(left)), dice.random() < 0.8, dice.random() < 0.4
            before = len(told)
            channel.say("basic_ack" if kept else "basic_nack", number, many)
            known = [one for one in sorted(left) if one <= number] if many else [number]
            assert told[before:] == [(one, kept) for one in known]
            left.difference_update(known)
        assert len(confirms) == len(left) and all(one in confirms for one in left)
    assert channel.selected == 1 and len(told) == len(expected) - len(left)


def test_who_is_told_may_publish_again() -> None:
    """What was refused, say: that has a number of its own."""
    channel, told = Channel(), list[Any]()

    def settled(what: str, kept: bool) -> None:
        told.append((what, kept))
        if not kept:
            confirms.expect(f"{what} again")

    confirms: Confirms[str] = Confirms(channel, settled)
    for name in "abc":
        confirms.expect(name)
    channel.say("basic_nack", 2, True)
    assert told == [("a", False), ("b", False)] and len(confirms) == 3
    channel.say("basic_ack", 5, True)
    assert told[2:] == [("c", True), ("a again", True), ("b again", True)] and not len(confirms)
    channel.say("basic_ack", 5, True)
    assert len(told) == 5


def test_as_a_broker_counts(broker_servers: Brokers) -> None:
    told: list[tuple[int, bool]] = []
    with broker_servers["rabbitmq"].place() as url, kombu.Connection(str(url)) as connection:
        brokers.declare(connection, brokers.queue_named("q"))
        channel = connection.channel()
        confirms: Confirms[int] = Confirms(channel, lambda what, kept: told.append((what, kept)))
        producer = kombu.Producer(channel)
        for number in range(300):
            confirms.expect(number)
            producer.publish("x", routing_key="q", exchange="")
        while len(confirms):
            connection.drain_events(timeout=60)
    assert sorted(told) == [(number, True) for number in range(300)]


def test_a_queue_that_is_there(broker_servers: Brokers) -> None:
    """With other arguments it serves as well; what is not permitted is told."""
    with broker_servers["rabbitmq"].place() as url, kombu.Connection(str(url)) as connection:
        first = kombu.Queue("q", queue_arguments={"x-max-length": 5})
        brokers.declare(connection, first)
        brokers.declare(connection, brokers.queue_named("q"))
        with pytest.raises(connection.channel_errors, match="ACCESS_REFUSED"):
            brokers.declare(connection, brokers.queue_named("amq.mine"))
        assert first(connection.channel()).queue_declare(passive=True).queue == "q"
