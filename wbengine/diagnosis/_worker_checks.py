"""Checks of the workers: number, versions, ledgers and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import wbengine
from wbengine.diagnosis import _ledger_checks
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good, note
from wbengine.engines.worker_based._connections import connecting, queue_counts
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.fleet import client as fleets

__all__ = ["check"]

_MAX_NAMES = 3


def check(
    place: Place,
    fleet: fleets.Fleet,
    workers: list[fleets.WorkerView],
    least: int = 0,
    *,
    ledgers_too: bool = True,
) -> Iterator[Finding]:
    """Check the workers, with a ping to each for its clock.

    :param workers: the workers that answered.
    :param ledgers_too: whether to compare their ledgers with the ledger of this process.
    """
    refusing = _silent_workers(fleet)
    if refusing:
        yield bad("keys", f"workers receive messages but do not answer: {_shorten(refusing)}",
                  "if their logs report rejected messages, pass the keys of the workers to doctor"
                  " (--keys, or $WBENGINE_KEYS); if the logs report an unknown message format, the"
                  " release of the workers is not next to this one")  # fmt: skip
    if not workers:
        if not refusing:
            yield _no_worker(place, fleet, least)
        return
    count = f"{len(workers)} answered, with {sum(worker.slots for worker in workers)} slots"
    if len(workers) < least:
        yield bad("workers", f"{count}; at least {least} must answer", _start_advice(place))
    else:
        yield good("workers", count)
    yield from _check_versions(workers)
    if ledgers_too:
        yield from _check_ledgers(place, workers)
    pings = fleet.ping(timeout=min(place.timeout, 3.0))
    silent = [worker.name for worker in pings if worker.seconds is None]
    if silent:
        yield bad("workers", f"no answer from {_shorten(silent)}",
                  "see their logs; they may be frozen or were killed")  # fmt: skip
    wrong = False
    for ping in pings:
        if ping.ahead is not None and ping.seconds is not None:
            clock_findings = list(
                check_clock("worker clock", f"of {ping.name}", ping.ahead, ping.seconds / 2)
            )
            if not clock_findings[0].good:
                wrong = True
                yield from clock_findings
    if not wrong and len(silent) < len(pings):
        yield good("worker clock", "the clocks of the workers agree with the clock of this host")


def _silent_workers(fleet: fleets.Fleet) -> list[str]:
    """Return the names of workers that received the request for a report and did not answer.

    Such workers are alive, because a dead worker leaves the request in its queue. The result is
    empty if the broker does not list queues.
    """
    if not queue_counts.can_list_queues(fleet.target):
        return []
    connection = fleet.connect()
    try:
        queues = queue_counts.count(connection, fleet.target, fleet.exchange, ())
    finally:
        connecting.release(connection)
    names = {
        worker.name for worker in fleet.workers()
    }  # includes workers that answered after the queues were read
    return [
        queue.name
        for queue in queues
        if env.ALL_WORKERS in queue.keys and not queue.messages and queue.name not in names
    ]


def _start_advice(place: Place) -> str:
    return f"start a worker: wbengine worker TOPIC --tasks MODULE --exchange {place.exchange}"


def _no_worker(place: Place, fleet: fleets.Fleet, least: int) -> Finding:
    """Return the finding for no workers: a problem if they are required or exist elsewhere."""
    connection = fleet.connect()
    try:
        others = [name for name in queue_counts.exchanges(connection) if name != place.exchange]
    finally:
        connecting.release(connection)
    text, fix = f"no worker answered on exchange {place.exchange!r}", _start_advice(place)
    if others:
        text = f"{text} (other exchanges: {', '.join(others[:_MAX_NAMES])})"
        fix = f"use the exchange of the workers: --exchange {others[0]}; or {fix}"
    return bad("workers", text, fix) if least or others else note("workers", text, fix)


def _check_versions(workers: list[fleets.WorkerView]) -> Iterator[Finding]:
    versions = Counter(worker.version or "unknown" for worker in workers)
    if set(versions) - {wbengine.__version__}:
        text = ", ".join(
            f"{count} have version {version}" for version, count in sorted(versions.items())
        )
        yield note("versions", f"{text}; this command has version {wbengine.__version__}")


def _check_ledgers(place: Place, workers: list[fleets.WorkerView]) -> Iterator[Finding]:
    workers = [worker for worker in workers if worker.version is not None]
    compared = _ledger_checks.compare(place, {worker.ledger for worker in workers})
    if compared is None:
        return
    digests, has_lost_data = compared
    if has_lost_data:
        yield note("ledgers", "the server of the ledger lost its data while processes used it: the"
                   " requests of that time are lost, and their tasks fail with WorkerLost; it must"
                   " not be flushed, evict keys, or restart without its data")  # fmt: skip
    others = [worker for worker in workers if worker.ledger in digests]
    if not others:
        yield good("ledgers", "the workers use the same ledger")
        return
    yield bad(
        "ledgers",
        "workers use another ledger and refuse requests with a row in this one:"
        f" {_shorten([worker.name for worker in others])}",
        "set the same --ledger (or $WBENGINE_LEDGER) for all engines and workers, and restart those"
        " with another one",
    )


def _shorten(names: list[str]) -> str:
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + rest
