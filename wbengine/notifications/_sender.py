"""The interface of what sends messages to a place."""

from __future__ import annotations

from typing import Protocol

from wbengine.notifications._message import Message

__all__ = ["SendError", "Sender"]


class SendError(Exception):
    """A message was not sent. The text contains no secrets."""


class Sender(Protocol):
    """Sends messages to one place.

    :ivar place: the place for logs, without secrets.
    :ivar takes_all: whether messages contain all events, not only examples.
    """

    @property
    def place(self) -> str: ...
    @property
    def takes_all(self) -> bool: ...

    def send(self, message: Message) -> None:
        """Send a message once, without retries, within a limited time.

        :raises Exception: if the message may not have been sent.
        """
