"""Sequences of checks that run concurrently with other sequences, up to a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from wbengine.diagnosis.findings import Finding, bad, line, note

__all__ = ["Line"]

_FIX: Final = (
    "check that the service is not overloaded and is reachable, or allow more time: --timeout 60"
)


class Line:
    """Findings of checks that run one after the other in a thread. The thread starts at once.

    :param name: the name of the first check.
    :param checks: generates the findings; it sets `current_check` of the line that it receives.
    :param until: the deadline on the monotonic clock.
    """

    def __init__(
        self, name: str, checks: Callable[[Line], Iterator[Finding]], until: float
    ) -> None:
        #: The name of the current check; None while the checks wait for another line.
        self.current_check: str | None = name
        self._name = name
        self._until = until
        self._began = time.monotonic()
        self._findings: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
        self._failed_checks: set[str] = set()
        self._ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(checks,), name=f"wbengine-{name}")
        thread.daemon = True  # a check that is too slow does not delay the exit
        thread.start()

    def _run(self, checks: Callable[[Line], Iterator[Finding]]) -> None:
        try:
            for finding in checks(self):
                if finding.good is False:
                    self._failed_checks.add(finding.check)
                self._findings.put(finding)
        except Exception as error:
            self._failed_checks.add(self._name)
            words = f"{type(error).__name__}: {line(error)}"
            self._findings.put(
                bad(self.current_check or self._name, words, "for details, see the log (-v)")
            )
        finally:
            self._findings.put(None)
            self._ended.set()

    def failed_checks(self, waiting_line: Line) -> set[str]:
        """Wait for all checks and return the names of those that found a problem.

        :param waiting_line: the line that waits; its `current_check` is None meanwhile.
        """
        before, waiting_line.current_check = waiting_line.current_check, None
        self._ended.wait()
        waiting_line.current_check = before
        return self._failed_checks

    def findings(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is available. The last one may report a timeout."""
        while True:
            try:
                finding = self._findings.get(timeout=max(0.0, self._until - time.monotonic()))
            except queue.Empty:
                yield self._timeout_finding()
                return
            if finding is None:
                return
            yield finding

    def _timeout_finding(self) -> Finding:
        current_check, text = self.current_check, "skipped: the previous checks used all the time"
        if self._began >= self._until:
            return bad(self._name, text, _FIX)  # a problem, because there may be no other finding
        if current_check is None:
            return note(self._name, text)
        return bad(current_check, f"no answer within {self._until - self._began:.0f} s", _FIX)
