"""AMQP connection: reading, writing and wake-ups by several threads."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from amqp import serialization

from tests.unit.amqp_frames import delivered
from wbengine.transports._amqp import amqp_frames as frames
from wbengine.transports._amqp.amqp_connection import AmqpChannel, AmqpConnection
from wbengine.transports._amqp.amqp_socket import AmqpSocket


class Ends:
    """Both ends of an open py-amqp connection."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        made: Any = types.SimpleNamespace(
            sock=ours, connected=True, connect=lambda: None, close=ours.close
        )
        self.socket = AmqpSocket(made)
        self.socket.connect()
        self.others: list[Any] = []
        self.channel: Any = types.SimpleNamespace(
            channel_id=7, basic_consume=lambda *args, **options: None, auto_decode=True
        )
        raw = types.SimpleNamespace(
            transport=self.socket,
            collect=self.socket.close,
            heartbeat=0,
            frame_max=131072,
            bytes_sent=0,
            bytes_recv=0,
            on_inbound_frame=self.others.append,
            channel=lambda: self.channel,
        )
        connection: Any = types.SimpleNamespace(connection=raw, transport=None)
        self.amqp = AmqpConnection(connection)

    def open_channel(self) -> AmqpChannel:
        return self.amqp.channel("x", AmqpChannel)

    def took(self) -> bytes:
        found = b""
        while select.select([self.theirs], [], [], 0)[0]:
            found += self.theirs.recv(65536)
        return found

    def close(self) -> None:
        self.amqp.close()
        self.socket.close()
        self.theirs.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_wake_up_before_wait_is_remembered_without_writing_a_byte(ends: Ends) -> None:
    ends.amqp.wake_up()
    ends.amqp.wake_up()
    assert not select.select([ends.amqp._wake_reader], [], [], 0)[0]
    assert ends.amqp.wait(3600) is False  # returns at once
    assert ends.amqp.wait(0.001) is False  # a wake-up ends one wait


@pytest.mark.usefixtures("frequent_thread_switches")
def test_no_wake_up_is_lost(ends: Ends) -> None:
    rounds = 10_000
    work: deque[int] = deque()
    done = threading.Semaphore(0)

    def ask() -> None:
        for number in range(rounds):
            work.append(number)
            ends.amqp.wake_up()
            done.acquire()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    left = rounds
    while left:
        began = time.monotonic()
        ends.amqp.wait(90)
        assert time.monotonic() - began < 45, "it slept, and there was work"
        while work:
            work.popleft()
            done.release()
            left -= 1
    asking.join()


def test_wait_for_wake_up_ignores_incoming_data(ends: Ends) -> None:
    ends.theirs.send(b"something")
    began = time.monotonic()
    ends.amqp.wait_for_wake_up(0.05)
    assert time.monotonic() - began > 0.04
    threading.Timer(0.01, ends.amqp.wake_up).start()
    ends.amqp.wait_for_wake_up(90)
    assert time.monotonic() - began < 45
    assert ends.amqp.wait(90) is True


def frame(kind: int, payload: bytes, channel: int = 7) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def test_received_frames_reach_their_receivers_in_order(ends: Ends) -> None:
    told: list[Any] = []
    ends.others = told
    ends.amqp.raw.on_inbound_frame = told.append
    channel = ends.open_channel()
    channel.start("q", "consumer", told.append)
    channel.on_receipt = lambda number, multiple: told.append((number, multiple))
    unknown = struct.pack(">HH", 10, 60) + b"\7reasons"
    receipt = struct.pack(">HHQB", 60, 80, 12, 1)
    message = amqp.Message(b"body", type="t", application_headers={"a": 1})
    large = delivered(amqp.Message(b"x" * 9000, type="t"), 6)
    said = b"".join(
        (
            delivered(message),
            frame(1, receipt),
            frame(8, b"", channel=0),
            frame(1, unknown, channel=0),
            large,
            frame(1, receipt, channel=9),
            delivered(message, 7),
        )
    )
    for at in range(0, len(said), 1000):
        ends.theirs.send(said[at : at + 1000])
        assert ends.amqp.wait(60)
        ends.amqp.read()
    first, *between, last = told
    assert (first.delivery_tag, first.body, first.headers) == (5, b"body", {"a": 1})
    assert (last.delivery_tag, last.body) == (7, b"body")
    assert between[:3] == [(12, True), (8, 0, b""), (1, 0, unknown)]
    # Parts of the large message, which py-amqp joins, and a frame of an unknown channel.
    assert [each[0] for each in between[3:-1]] == [1, 2, 3, 3, 3]
    assert between[-1] == (1, 9, receipt)
    assert not ends.amqp.wait(0)


def test_each_delivery_is_acknowledged_once(ends: Ends) -> None:
    got: list[Any] = []
    channel = ends.open_channel()
    channel.start("q", "consumer", got.append)
    for tag in range(1, 7):
        ends.theirs.send(delivered(amqp.Message(b"", type="t"), tag))
    assert ends.amqp.wait(60)
    ends.amqp.read()
    assert [each.delivery_tag for each in got] == [1, 2, 3, 4, 5, 6]
    got[1].ack()
    got[1].ack()
    made = frames.Frames(7, "x", 4096)
    assert ends.took() == made.ack(2)
    channel.ack_many([got[5], got[0], got[1], got[2]])
    assert ends.took() == made.ack(3, multiple=True) + made.ack(6)
    assert channel.claim(got[3])
    got[3].ack()
    assert ends.took() == b""
    assert [each.acknowledged for each in got] == [True] * 4 + [False, True]
    assert channel.receipt(got[3]) == made.ack(4)


def test_writes_inside_together_are_sent_at_exit_or_by_another_thread(ends: Ends) -> None:
    got: list[Any] = []
    channel = ends.open_channel()
    channel.start("q", "consumer", got.append)
    ends.theirs.send(delivered(amqp.Message(b"", type="t"), 1))
    assert ends.amqp.wait(60)
    ends.amqp.read()
    with ends.amqp.together():
        got[0].ack()
        assert ends.took() == b""
        ends.amqp.put(b"now")
        other = threading.Thread(target=ends.amqp.flush)
        other.start()
        other.join()
        receipt = frames.Frames(7, "x", 4096).ack(1)
        assert ends.took() == receipt + b"now"
        ends.amqp.put(b"later")
        ends.amqp.flush()
        assert ends.took() == b""
    assert ends.took() == b"later"


def test_message_fetched_with_get_is_converted_from_py_amqp(ends: Ends) -> None:
    channel = ends.open_channel()
    raw = amqp.Message(b"body", type="t", application_headers={"a": 1, "compression": "x"})
    raw.delivery_info = {"delivery_tag": 3, "redelivered": True, "routing_key": "k"}
    ends.channel.basic_get = lambda queue: raw
    found = channel.get("q")
    assert found is not None
    assert (found.delivery_tag, found.redelivered, found.routing_key) == (3, True, "k")
    assert (found.body, found.headers, found.compressed) == (b"body", {"a": 1}, True)
    found.ack()
    args = serialization.dumps("Lb", (3, False))
    assert ends.took() == frame(1, struct.pack(">HH", 60, 80) + args)
