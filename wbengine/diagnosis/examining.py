"""All that is looked at: what does not depend on each other at the same time, and all of it within
one time; what depends on something wrong is not tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine.diagnosis import brokers, key_files, ledgers, packages, round_trip, stores, workers
from wbengine.diagnosis.findings import Finding, Place, bad, line, note
from wbengine.diagnosis.lines import Line

__all__ = ["examine"]

#: Seconds for all of it, and those that there are at least beyond the time of one answer.
_WITHIN: Final = 7.0
_BEYOND: Final = 2.0

#: The topic of the worker that is made, where there are no others.
_TOPIC: Final = "doctor"


def examine(place: Place, least: int = 0, began: float | None = None) -> Iterator[Finding]:
    """Findings, as soon as they are made; within 7 s, or 2 s more than one answer may take.  Leaves
    nothing behind, unless something took too long.

    :param least: so many workers have to answer.
    :param began: when that time began, on the monotonic clock (now).
    """
    within = max(_WITHIN, place.timeout + _BEYOND)
    until = within + (time.monotonic() if began is None else began)
    # First: packages that several threads import at once may wait for each other.
    yield from packages.python()
    yield from packages.extras(place)
    yield from packages.pictures()
    yield from packages.plugins()
    yield from key_files.look(place)
    broker = Line("broker", lambda here: _broker(place, here), until)
    ledger = Line("ledger", lambda here: _ledger(place, here, broker), until)
    around = Line("workers", lambda here: _around(place, here, broker, ledger, least), until)
    store = Line("store", lambda here: stores.look(place), until)
    for each in (broker, ledger, around, store):
        yield from each.findings()


def _broker(place: Place, here: Line) -> Iterator[Finding]:
    reached = True
    for finding in brokers.reach(place):
        reached = reached and finding.good is not False
        yield finding
    if not reached:
        return
    here.at = "broker settings"
    try:
        yield from brokers.look(place)
    except exceptions.TransportFailure as error:
        yield _lost(error)


def _ledger(place: Place, here: Line, broker: Line) -> Iterator[Finding]:
    if (place.ledger is None or not place.is_known) and "broker" in broker.wrong(here):
        return  # it would be there
    yield from ledgers.look(place)


def _around(place: Place, here: Line, broker: Line, ledger: Line, least: int) -> Iterator[Finding]:
    """Who works there, and whether one could."""
    wrong = broker.wrong(here)
    if wrong & {"broker", "permissions"}:
        does = "cannot be used" if "broker" in wrong else "does not permit it"
        yield note("round trip", f"not tried: the broker {does}")
        return
    try:
        with brokers.fleet(place) as fleet:
            # Who may use only some queues may use those of the topics that there are.
            found = fleet.workers(least=least)
            unusable = "ledger" in ledger.wrong(here)
            findings = list(workers.look(place, fleet, found, least, ledgers_too=not unusable))
        here.at = "round trip"
        if unusable:
            yield note("round trip", "not tried: the ledger cannot be used")
        else:
            topics = [topic for worker in found for topic in worker.topics]
            yield from round_trip.look(place, topics[0] if topics else _TOPIC)
        yield from findings
    except exceptions.TransportFailure as error:
        yield _lost(error)


def _lost(error: exceptions.TransportFailure) -> Finding:
    return bad("broker", line(error), "see what is found wrong above; else try again")
