"""What a transport and the ledger of the same place tell each other, so that a request is claimed
as it is taken, and ended as it is answered.

A message begins with a *label*: the row on which it depends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from wbengine import _names
from wbengine.transports._store import Taken

__all__ = ["LABEL_LIMIT", "FolderClaims", "RedisClaims", "label", "row_of", "split"]

#: What a label takes at most.
LABEL_LIMIT: Final = 1024


class FolderClaims(Protocol):
    """For whom requests are claimed, by the ledger of the same folders."""

    def take(self, labelled: Sequence[tuple[Taken, bytes]], began: float) -> None:
        """Claim what depends on rows of the ledger, by the labels, in one step that began then.

        Of what has no claim afterwards nothing is known: the worker has to ask.
        """

    def give_back(self, taken: Taken) -> None:
        """What was claimed was given to no worker: others may claim it."""

    def end(self, rows: Sequence[tuple[str, int, bytes]]) -> list[bool]:
        """Store each of these (id, epoch, result); whether its engine is to be answered."""


class RedisClaims(Protocol):
    """For whom requests are claimed in the ledger of the same Redis, by the scripts that take and
    answer them (`_claim_scripts`)."""

    holder: str

    @property
    def digest(self) -> str:
        """Of that ledger."""

    def read(self, said: Sequence[bytes]) -> Any:
        """What `Taken.claim` is to be: from verdict, epoch, holder, result."""

    def restore(self) -> None:
        """The server may have lost everything: see that it still is that ledger.  Never raises."""


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


def row_of(text: bytes, digest: str) -> tuple[str, int] | None:
    """(id, epoch), if that is a row of this ledger."""
    try:
        id, epoch, ledger = text[1:].decode("ascii").split(" ")
        return (id, int(epoch)) if ledger == digest and _names.is_label(id) else None
    except ValueError:
        return None
