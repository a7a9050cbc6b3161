"""Messages to incoming webhooks of Slack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wbengine._text import json_text, terminal_text
from wbengine.notifications._http import Endpoint
from wbengine.notifications._message import Group, Message
from wbengine.views import _formatting

__all__ = ["Slack"]

_MAX_LENGTH: Final = 10_000


class Slack:
    """Sends messages to an incoming webhook, whose URL is a secret."""

    takes_all: Final = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def place(self) -> str:
        return self._endpoint.place

    def send(self, message: Message) -> None:
        lines = [line for group in message.groups for line in _lines(group)]
        if message.dashboard is not None:
            lines.append(f"<{_escaped(message.dashboard)}|Dashboard>")
        text = "\n".join(lines)
        if len(text) > _MAX_LENGTH:
            text = f"{text[: _MAX_LENGTH - 3].rpartition(chr(10))[0]}\n..."
        self._endpoint.post(json_text.encode({"text": text}), {})


def _lines(group: Group) -> Iterator[str]:
    yield f"*{_escaped(group.title)}*"
    for event in group.events:
        subject = _escaped(event.flow or event.name)
        link = subject if event.url is None else f"<{_escaped(event.url)}|{subject}>"
        others = (_formatting.iso(event.at), event.reason, event.worker)
        yield "  ".join([f"• {link}", *(_escaped(part) for part in others if part)])
    if group.count > len(group.events):
        yield f"... and {group.count - len(group.events):,} more"


def _escaped(text: str) -> str:
    """Escape the characters that begin mentions and links in Slack."""
    visible = terminal_text.visible(text)
    return visible.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
