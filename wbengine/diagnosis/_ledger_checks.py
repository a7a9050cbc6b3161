"""Check of the ledger with a temporary row."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

from wbengine import exceptions
from wbengine._imports import installing
from wbengine.diagnosis import _broker_checks, _database_advice
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.engines.worker_based._worker_side import describing
from wbengine.fleet import _ledgers
from wbengine.transports import _ledger

__all__ = ["check", "compare"]


def check(place: Place) -> Iterator[Finding]:
    """Check that a row can be opened, claimed, finished and deleted."""
    try:
        with _ledgers.open_ledger(place.ledger, place.target) as ledger:
            if ledger is None:
                yield note("ledger", "no ledger: the task of a lost worker runs twice or fails with"
                           " WorkerLost (see --ledger)")  # fmt: skip
                return
            wrong = _try_row(ledger)
    except (ValueError, ImportError) as error:
        yield bad("ledger", line(error), "correct --ledger, $WBENGINE_LEDGER, or `ledger` in"
                  " wbengine.toml")  # fmt: skip
        return
    except (exceptions.LedgerFailure, exceptions.TransportFailure) as error:
        reason = line(error)
        if (
            place.ledger is None
            and _database_advice.is_denied(reason)
            and _broker_checks.has_worker_role(place)
        ):
            yield note("ledger", f"not checked: this role has the rights of workers ({reason})",
                       "to check the ledger, use the URL of the owner")  # fmt: skip
        else:
            yield bad("ledger", reason, _advice(reason))
        return
    if wrong:
        yield bad(
            "ledger", wrong, "the ledger is damaged, or another program changes it; use a new one"
        )
    else:
        yield good("ledger", "opened, claimed, finished and deleted a row")


def _try_row(ledger: _ledger.Ledger) -> str:
    id, holder = str(uuid.uuid4()), describing.identity()
    ledger.open(id, 1)
    try:
        if not ledger.claim(id, 1, holder).granted:
            return "claiming a new row failed"
        if ledger.claim(id, 1, f"{holder}-2").granted:
            return "two workers claimed the same row"
        if not ledger.finish(id, 1, holder, b"{}"):
            return "finishing a claimed row failed"
    finally:
        ledger.drop(id)
    return ""


def _advice(words: str) -> str:
    if " format " in words:
        advice = installing.upgrade()
        return f"another version of wbengine created the ledger; {advice}, or use a new ledger"
    return _database_advice.advice(words) or (
        "start the server of the ledger, or correct --ledger ($WBENGINE_LEDGER): user, password,"
        " host,"
        " permissions"
    )


def compare(place: Place, digests: Iterable[str | None]) -> tuple[set[str | None], bool] | None:
    """Return the digests of other ledgers, and whether the ledger has lost its data.

    None: there is no ledger, or it is unusable.
    """
    try:
        with _ledgers.open_ledger(place.ledger, place.target) as ledger:
            if ledger is None:
                return None
            others = {each for each in digests if each is None or not ledger.accepts(each)}
            return others, ledger.has_lost_data
    except (ValueError, ImportError, exceptions.WbengineException):
        return None
