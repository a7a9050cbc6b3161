"""A message of a broker, and what was done to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Message:
    """What the dispatcher needs of a kombu message; notes what is done with it, in order."""

    delivery_tag = "tag-1"

    def __init__(self, kind: Any = "NOTIFY") -> None:
        self.properties = {"type": kind}
        self.done: list[str] = []
        self.channel = self

    def ack_many(self, messages: Iterable[Message]) -> None:
        """As its channel does."""
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
