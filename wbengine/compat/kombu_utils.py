"""Messages of kombu in log lines."""

from __future__ import annotations

from typing import Any


class DelayedPretty:
    """A message that is described when it is shown, once."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._text: str | None = None

    def __str__(self) -> str:
        if self._text is None:
            self._text = _described(self._message)
        return self._text


def _described(message: Any) -> str:
    known = message.properties or {}
    told = {
        "content_type": message.content_type,
        "correlation_id": known.get("correlation_id"),
        "routing_key": (known.get("delivery_info") or {}).get("routing_key"),
        "type": known.get("type"),
        "body_length": None if message.body is None else len(message.body),
    }
    shown = {name: value for name, value in told.items() if value is not None}
    return f"{message.delivery_tag}: {shown}"
