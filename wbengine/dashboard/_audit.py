"""Log of actions and refused requests, with the client of each."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from wbengine.dashboard import _urls, _visitors
from wbengine.diagnosis._one_line import join_lines
from wbengine.views.redaction import Redactor

__all__ = ["MAX_REFUSALS", "WINDOW_SECONDS", "Audit", "address", "client_of", "sender_of"]

LOG: Final = logging.getLogger("wbengine.audit")

#: Limit for log lines that any client can cause.
MAX_REFUSALS: Final = 30
WINDOW_SECONDS: Final = 60.0

_MAX_TEXT_CHARS: Final = 80


class Audit:
    """Writer of the log `wbengine.audit`. Thread-safe.

    All actions are logged: they require a valid form. At most `MAX_REFUSALS` refused requests are
    logged in `WINDOW_SECONDS`; the next line contains the number of suppressed ones. Texts of
    clients are masked, escaped and shortened.
    """

    def __init__(self, redactor: Redactor, clock: Callable[[], float] = time.monotonic) -> None:
        self._redactor = redactor
        self._clock = clock
        self._lock = threading.Lock()
        self._window_start = clock()
        self._logged = self._suppressed = 0

    def done(self, request: Request, action: str) -> None:
        LOG.info("%s, from %s", self._redactor.text(action), client_of(request))

    def failed(self, request: Request, action: str, reason: str) -> None:
        masked_reason = join_lines(self._redactor.text(reason))
        masked_action = self._redactor.text(action)
        LOG.warning("%s failed, from %s: %s", masked_action, client_of(request), masked_reason)

    def refused(self, request: Request, action: str, reason: str | None = None) -> None:
        """Log a form whose action was refused. The arguments contain no text of the client."""
        if self._may_log():
            suffix = f": {reason}" if reason else ""
            LOG.warning("%s refused, from %s%s", action, client_of(request), suffix)

    def rejected(self, request: Request, reason: str, client_text: str | None = None) -> None:
        """Log a rejected request. `client_text` is the part of it that was rejected."""
        if self._may_log():
            quoted_reason = (
                reason if client_text is None else f"{reason} '{self._quoted(client_text)}'"
            )
            target = f"{self._quoted(request.method)} {self._quoted(_urls.path_of(request))}"
            LOG.warning("%s refused, from %s: %s", target, client_of(request), quoted_reason)

    def _quoted(self, text: str) -> str:
        escaped = self._redactor.text(text).encode("unicode_escape").decode("ascii")
        return (
            escaped if len(escaped) <= _MAX_TEXT_CHARS else f"{escaped[: _MAX_TEXT_CHARS - 3]}..."
        )

    def _may_log(self) -> bool:
        """Return whether to log a refusal. If so, first log the number of suppressed ones."""
        with self._lock:
            now = self._clock()
            if now - self._window_start >= WINDOW_SECONDS:
                self._window_start, self._logged = now, 0
            if self._logged >= MAX_REFUSALS:
                self._suppressed += 1
                return False
            self._logged += 1
            suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            LOG.warning("%d more requests refused; not logged one by one", suppressed)
        return True


def client_of(request: Request) -> str:
    """Return the name and role of the visitor, if known, and the address."""
    visitor = _visitors.of_request(request)
    if visitor is None or not visitor.name:
        return address(request)
    return f"{visitor.name}, {visitor.role}, {address(request)}"


def sender_of(request: Request) -> str:
    """Return the name under which an operation of the visitor is recorded."""
    return f"dashboard ({client_of(request)})"


def address(request: Request) -> str:
    """Return the address of the client. A proxy may set it to any text."""
    try:
        return str(ipaddress.ip_address(request.client.host if request.client else ""))
    except ValueError:
        return "unknown address"
