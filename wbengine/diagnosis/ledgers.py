"""Whether the ledger can be used: one row, from its beginning to its end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from wbengine import exceptions
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.engines.worker_based.ledger import base
from wbengine.engines.worker_based.worker_side import describing
from wbengine.views import ledgers

__all__ = ["digest", "look"]


def look(place: Place) -> Iterator[Finding]:
    """Claim a row, and finish it."""
    try:
        with ledgers.opened(place.ledger, place.target) as ledger:
            if ledger is None:
                yield note("ledger", "there is none: what a lost worker ran may have to run twice,"
                           " or fails as WorkerLost (see --ledger)")  # fmt: skip
                return
            wrong = _run_through(ledger)
    except (ValueError, ImportError) as error:
        yield bad("ledger", line(error), "mend --ledger, $WBENGINE_LEDGER, or `ledger` in"
                  " wbengine.toml")  # fmt: skip
        return
    except (exceptions.LedgerFailure, exceptions.TransportFailure) as error:
        yield bad("ledger", line(error), _fix(line(error)))
        return
    if wrong:
        yield bad("ledger", wrong, "it is damaged, or somebody else changes it: use a new one")
    else:
        yield good("ledger", "a row was opened, claimed, finished and dropped")


def _run_through(ledger: base.Ledger) -> str:
    id, holder = str(uuid.uuid4()), describing.identity()
    ledger.open(id, 1)
    try:
        if not ledger.claim(id, 1, holder).granted:
            return "a new row cannot be claimed"
        if ledger.claim(id, 1, f"{holder}-2").granted:
            return "a row was claimed twice"
        if not ledger.finish(id, 1, holder, b"{}"):
            return "a row that was claimed cannot be finished"
    finally:
        ledger.drop(id)
    return ""


def _fix(words: str) -> str:
    if "knows" in words and "format" in words:
        return "it was made by another version: pip install --upgrade wbengine, or name a new one"
    return "start what it is in, or mend --ledger ($WBENGINE_LEDGER): user, password, host, rights"


def digest(place: Place) -> str | None:
    """Which ledger engines would use here; None: none, or it cannot be used."""
    try:
        with ledgers.opened(place.ledger, place.target) as ledger:
            return None if ledger is None else ledger.digest
    except (ValueError, ImportError, exceptions.WbengineException):
        return None
