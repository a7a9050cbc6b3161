"""Who works there: whether anybody does, in which versions, with which ledgers and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import wbengine
from wbengine.diagnosis import ledgers
from wbengine.diagnosis.clocks import ahead
from wbengine.diagnosis.findings import Finding, Place, bad, good, note
from wbengine.engines.worker_based.connections import connecting, queue_counts
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.views import fleet as fleets

__all__ = ["look"]

#: So many workers are named.
_NAMED = 3


def look(
    place: Place,
    fleet: fleets.Fleet,
    found: list[fleets.WorkerView],
    least: int = 0,
    *,
    ledgers_too: bool = True,
) -> Iterator[Finding]:
    """The workers that were `found`, each asked for its clock, and for its ledger, too, if there is
    one here to compare it with.  `least` of them have to be there.
    """
    refusing = _refusing(fleet)
    if refusing:
        yield bad("keys", f"take what is asked here, and do not answer: {_some(refusing)}",
                  "give doctor the keys of the workers (--keys, or $WBENGINE_KEYS), if their logs"
                  " tell of messages that they refused")  # fmt: skip
    if not found:
        if not refusing:
            yield _nobody(place, fleet, least)
        return
    count = f"{len(found)} answer, with {sum(one.slots for one in found)} slots"
    if len(found) < least:
        yield bad("workers", f"{count}, and not {least}", _start(place))
    else:
        yield good("workers", count)
    yield from _versions(found)
    if ledgers_too:
        yield from _ledgers(place, found)
    pings = fleet.ping(timeout=min(place.timeout, 3.0))
    silent = [one.name for one in pings if one.seconds is None]
    if silent:
        yield bad("workers", f"do not answer: {_some(silent)}",
                  "they are frozen, or were killed a moment ago: see their logs")  # fmt: skip
    wrong = False
    for ping in pings:
        if ping.ahead is not None and ping.seconds is not None:
            told = list(ahead("worker clock", f"of {ping.name}", ping.ahead, ping.seconds / 2))
            if not told[0].good:
                wrong = True
                yield from told
    if not wrong and len(silent) < len(pings):
        yield good("worker clock", "the clocks of the workers agree with that of this host")


def _refusing(fleet: fleets.Fleet) -> list[str]:
    """Those that took the question who is there, and did not answer, where the broker tells: who
    is dead does not take it.
    """
    if not queue_counts.tells_all(fleet.target):
        return []
    connection = fleet.connect()
    try:
        queues = queue_counts.count(connection, fleet.target, fleet.exchange, ())
    finally:
        connecting.release(connection)
    known = {one.name for one in fleet.workers()}  # also who came a moment ago
    return [
        queue.name
        for queue in queues
        if env.ALL_WORKERS in queue.keys and not queue.messages and queue.name not in known
    ]


def _start(place: Place) -> str:
    return f"start one: wbengine worker TOPIC --tasks MODULE --exchange {place.exchange}"


def _nobody(place: Place, fleet: fleets.Fleet, least: int) -> Finding:
    """Nothing is wrong with that, unless somebody wants workers, or they are elsewhere."""
    connection = fleet.connect()
    try:
        others = [name for name in queue_counts.exchanges(connection) if name != place.exchange]
    finally:
        connecting.release(connection)
    told, fix = f"none answers on exchange {place.exchange!r}", _start(place)
    if others:
        told = f"{told} (there are others here: {', '.join(others[:_NAMED])})"
        fix = f"use the exchange that they are on: --exchange {others[0]}; or {fix}"
    return bad("workers", told, fix) if least or others else note("workers", told, fix)


def _versions(found: list[fleets.WorkerView]) -> Iterator[Finding]:
    versions = Counter(one.version or "unknown" for one in found)
    if set(versions) - {wbengine.__version__}:
        told = ", ".join(f"{count} run {version}" for version, count in sorted(versions.items()))
        yield note("versions", f"{told}; here is {wbengine.__version__}")


def _ledgers(place: Place, found: list[fleets.WorkerView]) -> Iterator[Finding]:
    mine = ledgers.digest(place)
    others = [one for one in found if one.ledger != mine and one.version is not None]
    if mine is None or not others:
        if mine is not None:
            yield good("ledgers", "the workers have the ledger that is named here")
        return
    yield bad(
        "ledgers",
        f"have another ledger than the one that is named here, and refuse requests that have a row"
        f" in it: {_some([one.name for one in others])}",
        "give engines and workers the same --ledger (or $WBENGINE_LEDGER), and start again those"
        " that have another one",
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
