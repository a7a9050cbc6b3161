"""Who asked for what, and what came of it: one line each."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from wbengine.dashboard import urls, visitors
from wbengine.diagnosis.one_line import joined
from wbengine.views.redaction import Redactor

__all__ = ["MOST", "WINDOW", "Audit", "address", "asker"]

LOG: Final = logging.getLogger("wbengine.audit")

#: So many refusals are told one by one in so many seconds, for anybody can cause them.
MOST: Final = 30
WINDOW: Final = 60.0

#: Characters of a text of somebody else's.
_LONGEST: Final = 80


class Audit:
    """Writes the log `wbengine.audit`.

    What was done, or failed, takes a form of ours, and is told each time.  What was refused anybody
    can cause: of more than `MOST` in a `WINDOW` the next line says how many were left out.  What a
    stranger sent is told cut, escaped and masked.  For any thread.
    """

    def __init__(self, redactor: Redactor, clock: Callable[[], float] = time.monotonic) -> None:
        self._redactor = redactor
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._told = self._untold = 0

    def done(self, request: Request, what: str) -> None:
        LOG.info("%s, from %s", what, asker(request))

    def failed(self, request: Request, what: str, why: str) -> None:
        because = joined(self._redactor.text(why))
        LOG.warning("%s failed, from %s: %s", what, asker(request), because)

    def refused(self, request: Request, what: str, why: str | None = None) -> None:
        """What a form wanted was not done; all words are ours."""
        if self._is_told():
            because = f": {why}" if why else ""
            LOG.warning("%s refused, from %s%s", what, asker(request), because)

    def turned_away(self, request: Request, why: str, said: str | None = None) -> None:
        """A request did not get to a page, because of what it `said`."""
        if self._is_told():
            because = why if said is None else f"{why} '{self._quoted(said)}'"
            what = f"{self._quoted(request.method)} {self._quoted(urls.path_of(request))}"
            LOG.warning("%s refused, from %s: %s", what, asker(request), because)

    def _quoted(self, text: str) -> str:
        """A stranger's text: masked, in one line of printable ASCII, and not long."""
        shown = self._redactor.text(text).encode("unicode_escape").decode("ascii")
        return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."

    def _is_told(self) -> bool:
        """Whether a refusal is told now; says before it how many were not."""
        with self._lock:
            now = self._clock()
            if now - self._began >= WINDOW:
                self._began, self._told = now, 0
            if self._told >= MOST:
                self._untold += 1
                return False
            self._told += 1
            untold, self._untold = self._untold, 0
        if untold:
            LOG.warning("%d more were refused, and not told one by one", untold)
        return True


def asker(request: Request) -> str:
    """Who asked, by name and role where there are such, and from where."""
    visitor = visitors.of_request(request)
    if visitor is None or not visitor.name:
        return address(request)
    return f"{visitor.name}, {visitor.role}, {address(request)}"


def address(request: Request) -> str:
    """Who asked, as far as that is an address: a proxy may tell anything."""
    try:
        return str(ipaddress.ip_address(request.client.host if request.client else ""))
    except ValueError:
        return "an unknown address"
