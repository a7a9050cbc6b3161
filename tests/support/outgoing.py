"""Outgoing messages whose delivery hooks are functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env


class FunctionHooks(DeliveryHooks):
    """Hooks that call the given functions. If `before()` returns False, the message is not sent."""

    def __init__(
        self,
        before: Callable[[], Any] | None = None,
        after: Callable[[], Any] | None = None,
        failed: Callable[[BaseException], Any] | None = None,
        unrouted: Callable[[], Any] | None = None,
        uncertain: Callable[[], Any] | None = None,
    ) -> None:
        self._before = before
        self._after = after
        self._failed = failed
        self._unrouted = unrouted
        self._uncertain = uncertain

    @property
    def mandatory(self) -> bool:  # type: ignore[override]
        return self._unrouted is not None

    @property
    def repeats(self) -> bool:
        return self._uncertain is None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            if self._before is not None and not self._before():
                message.withdrawn = True

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        if self._after is not None:
            self._after()

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        if self._failed is not None:
            self._failed(error)

    def unrouted(self, message: OutgoingMessage) -> None:
        assert self._unrouted is not None
        self._unrouted()

    def uncertain(self, message: OutgoingMessage) -> None:
        assert self._uncertain is not None
        self._uncertain()


def message(envelope: env.Envelope, **headers: Any) -> OutgoingMessage:
    """Return a message with its own hooks."""
    return OutgoingMessage(envelope, FunctionHooks(**headers))
