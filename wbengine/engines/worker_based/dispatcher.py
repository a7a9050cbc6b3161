"""From a message's type to whoever handles it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._log_rate import RareWarnings

LOG = logging.getLogger(__name__)

#: What `untrusted` returns.
_untrusted = 0
_counting: Final = threading.Lock()

#: `(data, message)`: the decoded body, and the kombu message that brought it.
ProcessMessage = Callable[[Any, Any], None]
RequeueFilter = Callable[[Any, Any], bool]


def untrusted() -> int:
    """How many messages this process refused because nobody signed them who may say them."""
    return _untrusted


class Handler:
    """What to do with one type of message.

    `validator(data)` raises `InvalidFormat` for bodies that must not be processed.  With
    `owns_ack` the handler acknowledges the message itself, when its work is done; otherwise it is
    acknowledged before it is processed, and processed at most once.
    """

    __slots__ = ("owns_ack", "process_message", "validator")

    def __init__(
        self,
        process_message: ProcessMessage,
        validator: Callable[[Any], None] | None = None,
        *,
        owns_ack: bool = False,
    ) -> None:
        self.process_message = process_message
        self.validator = validator
        self.owns_ack = owns_ack


class TypeDispatcher:
    """Hand each message to the handler of its type.

    No message can end the thread that delivers it: what has no handler is rejected, what does not
    validate and what makes its handler fail is taken off the queue, counted in `refused`, and
    named in one log line.  What its handler took in is counted in `handled`.

    `requeue_filters` are asked first; if one says so, the message goes back to where it came from.
    """

    def __init__(
        self,
        type_handlers: Mapping[str, Handler] | None = None,
        requeue_filters: Sequence[RequeueFilter] | None = None,
    ) -> None:
        self._type_handlers = dict(type_handlers or {})
        self._requeue_filters = list(requeue_filters or ())
        #: Number of messages that were not processed, by reason.
        self.refused: Counter[str] = Counter()
        #: Number of messages that were, by type.
        self.handled: Counter[str] = Counter()
        self._distrusted = RareWarnings(LOG)

    @property
    def type_handlers(self) -> dict[str, Handler]:
        return self._type_handlers

    @property
    def requeue_filters(self) -> list[RequeueFilter]:
        return self._requeue_filters

    def on_message(self, data: Any, message: Any) -> None:
        """Process one message; never raises for what the message holds."""
        try:
            for wants in self._requeue_filters:
                if wants(data, message):
                    message.requeue()
                    return
            kind = message.properties.get("type")
            handler = self._type_handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                self.refuse(message, "type", f"nothing handles type {str(kind)[:80]!r}")
                return
            if handler.validator is not None:
                try:
                    handler.validator(data)
                except exc.InvalidFormat as error:
                    self.refuse(message, "format", str(error))
                    return
            if not handler.owns_ack and not self._settled(message, message.ack):
                return  # it comes again
            handler.process_message(data, message)
            self.handled[kind] += 1
        except Exception:
            self.refused["error"] += 1
            LOG.exception("failed to process message %s", message.delivery_tag)
            if not message.acknowledged:
                self._settled(message, message.reject)

    def refuse(self, message: Any, reason: str, text: str) -> None:
        """Take a message off its queue without processing it; never raises."""
        self.refused[reason] += 1
        LOG.warning("refused message %s: %s", message.delivery_tag, text[:500])
        self._settled(message, message.reject)

    def distrust(self, message: Any, why: str) -> None:
        """`refuse` a message that nobody said who may; anybody can send any number of those."""
        global _untrusted
        self.refused["untrusted"] += 1
        with _counting:
            _untrusted += 1
        self._distrusted.tell(why, "refused message %s: %s", message.delivery_tag, why[:500])
        self._settled(message, message.reject)

    def _settled(self, message: Any, how: Callable[[], None]) -> bool:
        """Acknowledge or reject; False when its connection is gone, which others tell."""
        try:
            how()
        except Exception as error:
            self.refused["gone"] += 1
            level = logging.DEBUG if isinstance(error, OSError) else logging.WARNING
            LOG.log(level, "message %s cannot be settled (%s)", message.delivery_tag, error)
            return False
        return True
