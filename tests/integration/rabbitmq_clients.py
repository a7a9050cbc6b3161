"""Clients of a RabbitMQ for tests, and its queues."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

from tests.support import brokers, outgoing
from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based.proxy import Proxy

QUICK = {"heartbeat": 1}


AnyClient = TypeVar("AnyClient", bound="Client")


class Client:
    """Running proxy that collects the messages it receives."""

    def __init__(self, url: str, topic: str, **options: Any) -> None:
        handler = dispatcher.Handler(self._on_message, owns_ack=True)
        self.keeps = options.pop("keeps", False)
        self.queues = options.pop("queues", ())
        slots = options.pop("slots", 2)
        self.proxy = Proxy(topic, "x", {"TEST": handler}, url=url, **options)
        self.received: list[int] = []
        self.messages: list[Any] = []
        if self.queues:
            self.proxy.consumer.consume_shared(self.queues, slots)

    def _on_message(self, data: Any, message: Any) -> None:
        self.messages.append(message)
        self.received.append(data["n"])
        if not self.keeps:
            self.proxy.consumer.ack(message)

    @contextlib.contextmanager
    def running(self: AnyClient) -> Iterator[AnyClient]:
        thread = threading.Thread(target=self.proxy.start, daemon=True)
        thread.start()
        assert self.proxy.wait(60)
        try:
            yield self
        finally:
            self.proxy.stop()
            thread.join(60)
            assert not thread.is_alive()

    def arrives(self, to: str) -> bool:
        """Send a message to `to`, and return whether this side has received any."""
        self.send(0, to)
        return bool(self.received)

    def pause(self) -> None:
        """Stop the delivery of requests, and return when it has stopped."""
        paused = threading.Event()
        self.proxy.consumer.pause_requests()
        self.proxy.consumer.call_soon(paused.set)
        assert paused.wait(30)

    def send(self, number: int, to: str, **options: Any) -> OutgoingMessage:
        properties = {
            name: options.pop(name) for name in ("priority", "persistent") if name in options
        }
        headers, defer = options.pop("headers", {}), options.pop("defer", False)
        envelope = env.Envelope(
            "TEST", {"n": number}, routing_key=to, headers=headers, **properties
        )
        message = outgoing.message(envelope, **options)
        self.proxy.send(message, defer=defer)
        return message


class ReplyingWorker(Client):
    """Client that receives requests as a worker does, and replies from any thread."""

    def __init__(self, url: str, slots: int = 2, **options: Any) -> None:
        super().__init__(url, "w", queues=("q",), slots=slots, keeps=True, **options)
        self.confirmed: list[int] = []
        self.max_held = 0

    def _on_message(self, data: Any, message: Any) -> None:
        super()._on_message(data, message)
        self.max_held = max(self.max_held, len(self.proxy.consumer.work.held))

    def answer(self, message: Any, to: str = "e", soon: bool = False) -> bool:
        number = env.body_of(message)["n"]
        envelope = env.Envelope("TEST", {"n": number}, routing_key=to)
        answer = outgoing.message(envelope, after=lambda: self.confirmed.append(number))
        return self.proxy.consumer.answer(answer, message, soon)

    @contextlib.contextmanager
    def answering(self, threads: int) -> Iterator[None]:
        """Answer all received messages from `threads` threads."""
        ends = threading.Event()
        numbers = iter(range(10**9))
        lock = threading.Lock()

        def run() -> None:
            while True:
                with lock:
                    number = next(numbers)
                while number >= len(self.messages):
                    if ends.wait(0.001):
                        return
                assert self.answer(self.messages[number], soon=number % 3 == 0)

        threads_of_replies = [threading.Thread(target=run) for _ in range(threads)]
        for thread in threads_of_replies:
            thread.start()
        try:
            yield
        finally:
            ends.set()
            for thread in threads_of_replies:
                thread.join(60)


def queues(server: brokers.Rabbitmq, url: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in server.queues(url.rpartition("/")[2])}
