"""Requests that are claimed as they are taken, and ended as they are answered, on one host."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from wbengine import _names, exceptions
from wbengine.transports._store import Taken

__all__ = ["LABEL_LIMIT", "Claims", "label", "split"]

LOG = logging.getLogger(__name__)

#: What a label takes at most.
LABEL_LIMIT: Final = 1024
#: Who claims says at least so often, in seconds, that he lives.
_BEAT_EVERY: Final = 0.2
#: The state of a row with a result.
_DONE: Final = "done"


class Ledger(Protocol):
    """What is asked of a ledger: see there."""

    @property
    def digest(self) -> str: ...

    def renew(self, holder: str) -> None: ...

    def claim_many(self, holder: str, rows: Sequence[tuple[str, int]]) -> Sequence[object]:
        """Claim each of these (id, epoch), or why not; fewer: there is no space for more."""

    def finish_many(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> Sequence[bool | exceptions.LedgerFailure]: ...

    def release(self, id: str, epoch: int, holder: str) -> bool: ...

    def state(self, id: str) -> Any: ...


class Claims:
    """For whom our folder transport claims requests as it takes them, and ends them."""

    def __init__(self, ledger: Ledger, holder: str) -> None:
        self._ledger = ledger
        self._holder = holder
        self._renew_at = -math.inf
        self.digest = ledger.digest

    def take(self, labelled: Sequence[tuple[Taken, bytes]], began: float) -> None:
        """Claim what depends on rows of the ledger, by the labels, in one step that began then.

        Of what has no claim afterwards nobody knows: whoever runs it has to ask.
        """
        rows: list[tuple[str, int]] = []
        claimed: list[Taken] = []
        for taken, text in labelled:
            row = _row(text, self.digest)
            if row is not None:
                taken.token = (*taken.token, row)
                claimed.append(taken)
                rows.append(row)
        if not rows:
            return
        try:
            now = time.monotonic()
            # After a long rest its last beat is old: who looks at a row would take it for dead.
            if now >= self._renew_at:
                self._ledger.renew(self._holder)
                self._renew_at = now + _BEAT_EVERY
            told = self._ledger.claim_many(self._holder, rows)
        except exceptions.LedgerFailure as error:
            LOG.warning("%d requests cannot be claimed yet: %s", len(rows), error)
            return
        for taken, claim in zip(claimed, told, strict=False):
            if not isinstance(claim, exceptions.LedgerFailure):
                taken.claim, taken.at = claim, began

    def give_back(self, taken: Taken) -> None:
        """What was claimed was given to nobody: whoever gets it may claim it."""
        claim, taken.claim = taken.claim, None
        if claim is None or not claim.granted:
            return
        id, epoch = taken.token[-1]
        try:
            self._ledger.release(id, epoch, self._holder)
        except exceptions.LedgerFailure as error:
            LOG.warning("request %s cannot be given back: %s", id, error)

    def end(self, rows: Sequence[tuple[str, int, bytes]]) -> list[bool]:
        """Store each of these (id, epoch, result); whether its engine is to be answered.

        Whoever removed a row has no use for the answer; if it was lost, its engine may wait for it.
        """
        told = []
        for (id, epoch, _), stored in zip(
            rows, self._ledger.finish_many(self._holder, rows), strict=True
        ):
            if isinstance(stored, exceptions.LedgerFailure):  # it is answered all the same
                LOG.warning("the answer to request %s cannot be stored: %s", id, stored)
            told.append(bool(stored) or not self._is_fenced(id, epoch))
        return told

    def _is_fenced(self, id: str, epoch: int) -> bool:
        try:
            row = self._ledger.state(id)
        except exceptions.LedgerFailure:
            return False  # nobody knows, and the engine does
        return row is not None and (row.epoch != epoch or row.state != _DONE)


def label(data: bytes, row: tuple[str, int, str]) -> bytes:
    """`data`, and before it the row (id, epoch, digest of its ledger) on which it depends."""
    id, epoch, digest = row
    return b"!%b %d %b\n%b" % (id.encode(), epoch, digest.encode(), data)


def split(data: bytes) -> tuple[bytes, bytes]:
    """The label, b"" where there is none, and what it was put before."""
    if data[:1] != b"!":
        return b"", data
    text, _, rest = data.partition(b"\n")
    return text, rest


def _row(text: bytes, digest: str) -> tuple[str, int] | None:
    """(id, epoch), if that is a row of this ledger."""
    try:
        id, epoch, ledger = text[1:].decode("ascii").split(" ")
        return (id, int(epoch)) if ledger == digest and _names.is_label(id) else None
    except ValueError:
        return None
