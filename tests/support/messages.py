"""A test double for messages of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Message:
    """The part of a kombu message that the dispatcher uses. It records its calls in order."""

    delivery_tag = "tag-1"

    def __init__(self, kind: Any = "NOTIFY") -> None:
        self.properties = {"type": kind}
        self.done: list[str] = []
        self.channel = self

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages, as the channel does."""
        for message in messages:
            message.ack()

    @property
    def acknowledged(self) -> bool:
        return bool({"ack", "reject", "requeue"} & set(self.done))

    def ack(self) -> None:
        self.done.append("ack")

    def reject(self) -> None:
        self.done.append("reject")

    def requeue(self) -> None:
        self.done.append("requeue")
