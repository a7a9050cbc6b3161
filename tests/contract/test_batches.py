"""Limits of received batches in bytes, on every transport."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams import transports
from tests.seams.transports import MAX_BATCH_BYTES
from tests.support import outgoing
from tests.support.waiting import until
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based.proxy import Proxy

#: Transports that deliver several messages at once.
BATCHING = ("filesystem", "redis")

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

#: Size of a message that exceeds the limit of a batch.
LARGE = MAX_BATCH_BYTES * 3 // 2
MEGABYTE = 1024 * 1024


class Receiver:
    """Process that blocks in message 0 until `released`, and counts the bytes of later messages."""

    def __init__(self, target: dict[str, Any], queue: str) -> None:
        handler = dispatcher.Handler(self._on_message, owns_ack=True)
        self.proxy = Proxy("receiver", "x", {"TEST": handler}, **target)
        if queue != "receiver":
            self.proxy.consumer.consume_shared([queue], 64)
        self.busy, self.released = threading.Event(), threading.Event()
        self.numbers: list[int] = []
        #: For each message, its size and the size of received messages not handled yet.
        self.counts: list[tuple[int, int]] = []

    def _on_message(self, data: Any, message: Any) -> None:
        self.counts.append((len(message.body), transports.batch_bytes(self.proxy)))
        self.numbers.append(data["n"])
        self.proxy.consumer.ack(message)
        if data["n"] == 0:
            self.busy.set()
            assert self.released.wait(60)

    @property
    def excesses(self) -> list[tuple[int, int]]:
        """Messages that were received in a batch that exceeds the limit."""
        return [(size, more) for size, more in self.counts if more and size + more > LIMIT]


#: Limit of a batch, including message heads.
LIMIT = MAX_BATCH_BYTES + 64 * 1024

#: A receiver, and a function that sends it a message of a number and a size.
Received = tuple[Receiver, Callable[[int, int], None]]


@contextlib.contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    thread = threading.Thread(target=proxy.start, daemon=True)
    thread.start()
    assert proxy.wait(60)
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(params=[*transports.KINDS, "rabbitmq", "kombu"])
def kind(request: pytest.FixtureRequest) -> str:
    """Kind of the transport."""
    kind_name: str = request.param
    return kind_name


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Options of a receiving and a sending proxy."""
    if kind in ("redis", "rabbitmq"):
        both = {"url": request.getfixturevalue(f"{kind}_url")}
    elif kind == "memory":
        both = {"url": f"memory://{tmp_path.name}"}
    elif kind == "kombu":
        both = {"url": f"sqlalchemy+sqlite:///{tmp_path}/broker.db"}
    else:
        options = {"polling_interval": 60}
        both = {"url": f"filesystem://{tmp_path}/a", "transport_options": options}
    return {"in": both, "out": both}


@pytest.fixture(params=["receiver", "shared"])
def received(
    request: pytest.FixtureRequest, target: dict[str, dict[str, Any]]
) -> Iterator[Received]:
    """A receiver that handles message 0."""
    receiver = Receiver(target["in"], request.param)
    sender = Proxy("sender", "x", {}, **target["out"])
    with transports.no_polling(), running(receiver.proxy), running(sender):

        def send(number: int, size: int) -> None:
            body = {"n": number, "text": "x" * size}
            sender.send(outgoing.message(env.Envelope("TEST", body, routing_key=request.param)))
            assert sender.flush(60)

        send(0, 0)
        assert receiver.busy.wait(60)
        try:
            yield receiver, send
        finally:
            receiver.released.set()


def test_batch_is_limited_by_bytes_except_for_single_message(kind: str, received: Received) -> None:
    receiver, send = received
    sizes = [MEGABYTE] * 6 + [LARGE] * 2 + [MEGABYTE, 0, 0, MEGABYTE]
    for number, size in enumerate(sizes, 1):
        send(number, size)
    receiver.released.set()
    until(lambda: len(receiver.numbers) > len(sizes))
    assert receiver.numbers == list(range(len(sizes) + 1))
    assert not receiver.excesses
    assert (max(more for _, more in receiver.counts) > MEGABYTE) == (kind in BATCHING)


@pytest.mark.parametrize(("kind", "received"), [("rabbitmq", "receiver")], indirect=True)
def test_batch_is_limited_while_amqp_method_waits_for_reply(received: Received) -> None:
    receiver, send = received
    for number in range(1, 13):
        send(number, MEGABYTE)
    transports.declare_again(receiver.proxy)
    receiver.released.set()
    until(lambda: len(receiver.numbers) > 12)
    assert sorted(receiver.numbers) == list(range(13))
    assert not receiver.excesses
