"""All that is looked at, one after the other: what depends on something wrong is not tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine.diagnosis import brokers, ledgers, packages, round_trip, stores, workers
from wbengine.diagnosis.findings import Finding, Place, bad, line, note
from wbengine.views import fleet as fleets

__all__ = ["examine"]

#: The topic of the worker that is made, where there are no others.
_TOPIC: Final = "doctor"


def examine(place: Place) -> Iterator[Finding]:
    """Findings, as soon as they are made.  Leaves nothing behind."""
    yield from packages.python()
    yield from packages.extras(place)
    yield from packages.plugins()
    good = True
    for finding in brokers.reach(place):
        good = good and finding.good is not False
        yield finding
    if good:
        yield from _around(place)
    else:
        yield note("round trip", "not tried: the broker cannot be used")
    yield from stores.look(place)


def _around(place: Place) -> Iterator[Finding]:
    """What needs a broker."""
    permitted = True
    try:
        for finding in brokers.look(place):
            permitted = permitted and not (finding.check == "permissions" and not finding.good)
            yield finding
        yield from ledgers.look(place)
        if not permitted:
            yield note("round trip", "not tried: the broker does not permit it")
            return
        with fleets.Fleet(timeout=min(place.timeout, 5.0), **place.engine_options) as fleet:
            # Who may use only some queues may use those of the topics that there are.
            topics = [topic for worker in fleet.workers() for topic in worker.topics]
            findings = list(workers.look(place, fleet))
        yield from round_trip.look(place, topics[0] if topics else _TOPIC)
        yield from findings
    except exceptions.TransportFailure as error:
        yield bad("broker", line(error), "see what is found wrong above; else try again")
