"""Dispatch messages to handlers by type."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._logs.repeated_messages import RareWarnings

LOG = logging.getLogger(__name__)

_untrusted = 0
_count_lock: Final = threading.Lock()

#: `(data, message)`: the decoded body, and the kombu message.
ProcessMessage = Callable[[Any, Any], None]
RequeueFilter = Callable[[Any, Any], bool]


def untrusted() -> int:
    """Return the number of messages that this process rejected because of their signatures."""
    return _untrusted


@dataclass(slots=True, eq=False)
class Handler:
    """The handler of one type of message.

    `validator(data)` raises `InvalidFormat` for bodies that must not be processed. With `owns_ack`,
    the handler acknowledges the message after its work. Otherwise the message is acknowledged
    before it is processed (at most once).
    """

    process_message: ProcessMessage
    validator: Callable[[Any], None] | None = None
    owns_ack: bool = field(default=False, kw_only=True)


class TypeDispatcher:
    """Passes each message to the handler of its type.

    No message can end the thread that delivers it. Messages without a handler, invalid messages
    and messages that make a handler fail are removed from the queue, counted in `refused` and
    logged. Processed messages are counted in `handled`.

    If one of the `requeue_filters` returns True, the message is requeued.
    """

    __slots__ = ("_untrusted_warnings", "handled", "refused", "requeue_filters", "type_handlers")

    def __init__(
        self,
        type_handlers: Mapping[str, Handler] | None = None,
        requeue_filters: Sequence[RequeueFilter] | None = None,
    ) -> None:
        self.type_handlers = dict(type_handlers or {})
        self.requeue_filters = list(requeue_filters or ())
        self.refused: Counter[str] = Counter()
        self.handled: Counter[str] = Counter()
        self._untrusted_warnings = RareWarnings(LOG)

    def on_message(self, data: Any, message: Any) -> None:
        """Process one message; never raises because of its content."""
        try:
            for wants in self.requeue_filters:
                if wants(data, message):
                    message.requeue()
                    return
            kind = message.properties.get("type")
            handler = self.type_handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                self.refuse(
                    message, "type", f"no handler exists for messages of type {str(kind)[:80]!r}"
                )
                return
            if handler.validator is not None:
                try:
                    handler.validator(data)
                except exc.InvalidFormat as error:
                    self.refuse(message, "format", str(error))
                    return
            if not handler.owns_ack and not self._try_settle(message, message.ack):
                return  # The message is delivered again.
            handler.process_message(data, message)
            self.handled[kind] += 1
        except Exception:
            self.refused["error"] += 1
            LOG.exception("failed to process message %s", message.delivery_tag)
            if not message.acknowledged:
                self._try_settle(message, message.reject)

    def refuse(self, message: Any, reason: str, text: str) -> None:
        """Remove a message from its queue without processing it; never raises."""
        self.refused[reason] += 1
        LOG.warning("refused message %s: %s", message.delivery_tag, text[:500])
        self._try_settle(message, message.reject)

    def refuse_untrusted(self, message: Any, why: str) -> None:
        """`refuse` a message without a valid signature.

        The number of warnings is limited, because any client can send such messages.
        """
        global _untrusted
        self.refused["untrusted"] += 1
        with _count_lock:
            _untrusted += 1
        self._untrusted_warnings.warn(
            why, "refused message %s: %s", message.delivery_tag, why[:500]
        )
        self._try_settle(message, message.reject)

    def _try_settle(self, message: Any, how: Callable[[], None]) -> bool:
        try:
            how()
        except Exception as error:
            self.refused["gone"] += 1
            level = logging.DEBUG if isinstance(error, OSError) else logging.WARNING
            LOG.log(
                level,
                "message %s cannot be acknowledged or rejected (%s)",
                message.delivery_tag,
                error,
            )
            return False
        return True
