"""Checks in a line: one after the other, while other lines go on; what takes too long is named."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from wbengine.diagnosis.findings import Finding, bad, line, note

__all__ = ["Line"]

_FIX: Final = "see whether it is busy, or cut off from here; or give it more time: --timeout 60"


class Line:
    """Findings that a thread makes, from now on.

    :param name: of the first check.
    :param checks: makes them; it is given the line, to say `at` which check it is.
    :param until: when they have to be there, on the monotonic clock.
    """

    def __init__(
        self, name: str, checks: Callable[[Line], Iterator[Finding]], until: float
    ) -> None:
        #: The check that is being made; None: it waits for another line.
        self.at: str | None = name
        self._name = name
        self._until = until
        self._began = time.monotonic()
        self._made: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
        self._wrong: set[str] = set()
        self._ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(checks,), name=f"wbengine-{name}")
        thread.daemon = True  # nobody waits for what takes too long
        thread.start()

    def _run(self, checks: Callable[[Line], Iterator[Finding]]) -> None:
        try:
            for finding in checks(self):
                if finding.good is False:
                    self._wrong.add(finding.check)
                self._made.put(finding)
        except Exception as error:
            self._wrong.add(self._name)
            words = f"{type(error).__name__}: {line(error)}"
            self._made.put(bad(self.at or self._name, words, "see what the log says: -v"))
        finally:
            self._made.put(None)
            self._ended.set()

    def wrong(self, asking: Line) -> set[str]:
        """The checks that found something wrong, once the last one is made: `asking` waits."""
        before, asking.at = asking.at, None
        self._ended.wait()
        asking.at = before
        return self._wrong

    def findings(self) -> Iterator[Finding]:
        """All of them, as soon as they are made; the last one may say that there was no time."""
        while True:
            try:
                found = self._made.get(timeout=max(0.0, self._until - time.monotonic()))
            except queue.Empty:
                yield self._late()
                return
            if found is None:
                return
            yield found

    def _late(self) -> Finding:
        at, late = self.at, "not tried: what comes before it took all the time"
        if self._began >= self._until:
            return bad(self._name, late, _FIX)  # nothing else may be found wrong
        if at is None:
            return note(self._name, late)
        return bad(at, f"no answer within {self._until - self._began:.0f} s", _FIX)
