"""All checks within a shared time limit.

Independent checks run concurrently. Checks that depend on a failed check are skipped.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from wbengine import exceptions
from wbengine.diagnosis import (
    _broker_checks,
    _key_files,
    _ledger_checks,
    _packages,
    _payload_checks,
    _round_trip,
    _store_checks,
    _worker_checks,
)
from wbengine.diagnosis.findings import Finding, Place, bad, line, note

__all__ = ["Line", "examine"]

#: Minimum time limit of all checks, and its minimum excess over the timeout of one answer, in
#: seconds.
_MIN_TOTAL_SECONDS: Final = 7.0
_EXTRA_SECONDS: Final = 2.0

_TIMEOUT_HINT: Final = (
    "check that the service is not overloaded and is reachable, or allow more time: --timeout 60"
)

#: Topic of the temporary worker if there are no other workers.
_TOPIC: Final = "doctor"


class Line:
    """Findings of checks that run one after the other in a thread. The thread starts at once.

    :param name: the name of the first check.
    :param checks: generates the findings; it sets `current_check` of the line that it receives.
    :param until: the deadline on the monotonic clock.
    :param is_optional: whether missing answers are no problem.
    """

    def __init__(
        self,
        name: str,
        checks: Callable[[Line], Iterator[Finding]],
        until: float,
        *,
        is_optional: bool = False,
    ) -> None:
        #: The name of the current check; None while the checks wait for another line.
        self.current_check: str | None = name
        self._name = name
        self._until = until
        self._is_optional = is_optional
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
        make_finding = note if self._is_optional else bad
        current_check, text = self.current_check, "skipped: the previous checks used all the time"
        if self._began >= self._until:
            # A problem, because there may be no other finding.
            return make_finding(self._name, text, _TIMEOUT_HINT)
        if current_check is None:
            return note(self._name, text)
        text = f"no answer within {self._until - self._began:.0f} s"
        return make_finding(current_check, text, _TIMEOUT_HINT)


def examine(place: Place, least: int = 0, began: float | None = None) -> Iterator[Finding]:
    """Run all checks and yield findings as soon as they are available.

    The checks take at most 7 s, or the timeout of one answer plus 2 s if that is longer. They
    delete what they create, unless a check exceeds this time.

    :param least: minimum number of workers that must answer.
    :param began: start of the time limit on the monotonic clock; the default is now.
    """
    within = max(_MIN_TOTAL_SECONDS, place.timeout + _EXTRA_SECONDS)
    until = within + (time.monotonic() if began is None else began)
    # First, because threads that import a package at the same time may block each other.
    yield from _packages.python()
    yield from _packages.extras(place)
    yield from _packages.graphs()
    yield from _packages.plugins()
    unsigned = False
    for finding in _key_files.check(place):
        unsigned = finding.good is False
        yield finding
    broker = Line("broker", lambda own_line: _broker(place, own_line), until)
    ledger = Line("ledger", lambda own_line: _ledger(place, own_line, broker), until)
    around = Line(
        "workers",
        lambda own_line: _workers(place, own_line, broker, ledger, least, unsigned),
        until,
        is_optional=not (least or place.has_own_broker),
    )
    store = Line("store", lambda own_line: _store_checks.check(place), until)
    payloads = Line("payloads", lambda own_line: _payload_checks.check(place), until)
    for each in (broker, ledger, around, store, payloads):
        yield from each.findings()


def _broker(place: Place, own_line: Line) -> Iterator[Finding]:
    reached = True
    for finding in _broker_checks.check_connection(place):
        reached = reached and finding.good is not False
        yield finding
    if not reached:
        return
    own_line.current_check = "broker settings"
    try:
        yield from _broker_checks.check(place)
    except exceptions.TransportFailure as error:
        yield _connection_lost(error)


def _ledger(place: Place, own_line: Line, broker: Line) -> Iterator[Finding]:
    if (place.ledger is None or not place.is_known) and "broker" in broker.failed_checks(own_line):
        return  # the ledger would be on the broker
    yield from _ledger_checks.check(place)


def _workers(
    place: Place, own_line: Line, broker: Line, ledger: Line, least: int, unsigned: bool
) -> Iterator[Finding]:
    """Check the workers, and the execution of a task by a temporary worker."""
    wrong = broker.failed_checks(own_line)
    if wrong & {"broker", "permissions"}:
        why = "the broker failed" if "broker" in wrong else "a permission is missing"
        yield note("round trip", f"skipped: {why}")
        return
    try:
        with _broker_checks.fleet(place) as fleet:
            # An existing topic is preferred for the round trip, because the user's permissions may
            # cover only queues of existing topics.
            worker_views = fleet.workers(least=least)
            unusable = "ledger" in ledger.failed_checks(own_line)
            findings = list(
                _worker_checks.check(place, fleet, worker_views, least, ledgers_too=not unusable)
            )
        own_line.current_check = "round trip"
        is_worker = _broker_checks.has_worker_role(place)
        if unusable or unsigned or is_worker:
            why = "this role has the rights of workers" if is_worker else "the keys cannot be used"
            why = "the ledger failed" if unusable else why
            yield note("round trip", f"skipped: {why}")
        else:
            topics = [topic for worker in worker_views for topic in worker.topics]
            yield from _round_trip.check(place, topics[0] if topics else _TOPIC)
        yield from findings
    except exceptions.TransportFailure as error:
        yield _connection_lost(error)


def _connection_lost(error: exceptions.TransportFailure) -> Finding:
    return bad("broker", line(error), "fix the problems above, then try again")
