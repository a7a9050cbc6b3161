"""All checks within a shared time limit.

Independent checks run concurrently. Checks that depend on a failed check are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine.diagnosis import (
    broker_checks,
    key_files,
    ledger_checks,
    packages,
    round_trip,
    store_checks,
    worker_checks,
)
from wbengine.diagnosis.findings import Finding, Place, bad, line, note
from wbengine.diagnosis.lines import Line

__all__ = ["examine"]

#: Minimum time limit of all checks, and its minimum excess over the timeout of one answer, in
#: seconds.
_MIN_TOTAL_SECONDS: Final = 7.0
_EXTRA_SECONDS: Final = 2.0

#: Topic of the temporary worker if there are no other workers.
_TOPIC: Final = "doctor"


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
    yield from packages.python()
    yield from packages.extras(place)
    yield from packages.graphs()
    yield from packages.plugins()
    unsigned = False
    for finding in key_files.check(place):
        unsigned = finding.good is False
        yield finding
    broker = Line("broker", lambda own_line: _broker(place, own_line), until)
    ledger = Line("ledger", lambda own_line: _ledger(place, own_line, broker), until)
    around = Line(
        "workers",
        lambda own_line: _workers(place, own_line, broker, ledger, least, unsigned),
        until,
    )
    store = Line("store", lambda own_line: store_checks.check(place), until)
    for each in (broker, ledger, around, store):
        yield from each.findings()


def _broker(place: Place, own_line: Line) -> Iterator[Finding]:
    reached = True
    for finding in broker_checks.check_connection(place):
        reached = reached and finding.good is not False
        yield finding
    if not reached:
        return
    own_line.current_check = "broker settings"
    try:
        yield from broker_checks.check(place)
    except exceptions.TransportFailure as error:
        yield _connection_lost(error)


def _ledger(place: Place, own_line: Line, broker: Line) -> Iterator[Finding]:
    if (place.ledger is None or not place.is_known) and "broker" in broker.failed_checks(own_line):
        return  # the ledger would be on the broker
    yield from ledger_checks.check(place)


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
        with broker_checks.fleet(place) as fleet:
            # An existing topic is preferred for the round trip, because the user's permissions may
            # cover only queues of existing topics.
            worker_views = fleet.workers(least=least)
            unusable = "ledger" in ledger.failed_checks(own_line)
            findings = list(
                worker_checks.check(place, fleet, worker_views, least, ledgers_too=not unusable)
            )
        own_line.current_check = "round trip"
        if unusable or unsigned:
            why = "the ledger failed" if unusable else "the keys cannot be used"
            yield note("round trip", f"skipped: {why}")
        else:
            topics = [topic for worker in worker_views for topic in worker.topics]
            yield from round_trip.check(place, topics[0] if topics else _TOPIC)
        yield from findings
    except exceptions.TransportFailure as error:
        yield _connection_lost(error)


def _connection_lost(error: exceptions.TransportFailure) -> Finding:
    return bad("broker", line(error), "fix the problems above, then try again")
