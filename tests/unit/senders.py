"""Sender with a memory broker."""

from __future__ import annotations

import uuid
from typing import Any

from tests.seams.transports import OwnConnection
from tests.support import outgoing
from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.sender import OutgoingMessage, Sender
from wbengine.engines.worker_based._messages import envelope as env

WAIT = 60.0


class Place:
    """Memory broker with one queue that receives all messages."""

    def __init__(self) -> None:
        self.target = transports.resolve(f"memory://{uuid.uuid4().hex}", None, None)
        self.layout = topology.Topology("exchange", "me", (), None)
        self.reader = self.connect().channel()
        self.layout.declare_queues_on(self.reader.broker, ())
        self.sender = Sender(self.target, self.layout, "test")

    def connect(self) -> OwnConnection:
        return OwnConnection(self.target)

    def arrived(self) -> list[Any]:
        bodies = []
        while (message := self.reader.get("me", no_ack=True)) is not None:
            bodies.append(env.parse(message.body)["n"])
        return bodies

    def publish(self) -> None:
        """Start the sender, and wait until it has published all messages."""
        self.sender.start()
        assert self.sender.flush(WAIT)

    def put(
        self, number: Any, first: bool = False, defer: bool = False, **options: Any
    ) -> OutgoingMessage:
        envelope = env.Envelope("TEST", {"n": number}, routing_key="me")
        message = outgoing.message(envelope, **options)
        self.sender.send(message, first=first, defer=defer)
        return message
