"""Changes of a flow's records since a cursor."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.persistence import models

__all__ = ["Changes", "batch_in_cursor", "cursor_of"]

_BATCH_BYTES: Final = 8
_MAC_BYTES: Final = 8
_CURSOR: Final = re.compile(f"[0-9a-f]{{{2 * (_MAC_BYTES + _BATCH_BYTES)}}}")


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of `Connection.get_changes`.

    :ivar cursor: the cursor for the next call.
    :ivar whole: whether the result is the complete flow, which replaces all earlier data.
    :ivar flow: the flow without its atoms.
    :ivar atoms: new or changed atoms. They include their items only if `whole`.
    :ivar items: changed items by the uuid of their atom; empty if `whole`. Their atoms may be
        missing in `atoms`.
    """

    cursor: str
    whole: bool
    flow: models.FlowDetail
    atoms: Sequence[models.AtomDetail]
    items: Mapping[str, Sequence[models.ItemDetail]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return True

    def put_into(self, known: models.FlowDetail | None) -> models.FlowDetail:
        """Apply the changes and return the current flow with its atoms.

        :param known: the flow as of the previous cursor. It is modified unless `whole`.
        """
        if known is None or self.whole:
            self.flow.add_all(self.atoms)
            return self.flow
        known.update(self.flow)
        known.epoch = self.flow.epoch
        for atom in self.atoms:
            stored_atom = known.find(atom.uuid)
            if stored_atom is None:
                known.add(atom)
            else:
                stored_atom.update_row(atom)
        for uuid, changed in self.items.items():
            atom_of_items = known.find(uuid)
            if atom_of_items is not None and atom_of_items.items is not None:
                for item in changed:
                    atom_of_items.items.put(item)
        for atom in self.atoms:
            _discard_earlier_steps(known, atom)
        return known


def _discard_earlier_steps(flow: models.FlowDetail, workflow: models.AtomDetail) -> None:
    """Discard the steps that the store deleted when a workflow continued as a new attempt."""
    first = models.first_attempt(workflow)
    if not first:
        return
    for atom in list(flow):
        note = atom.meta_value(models.STEP)
        if note and note.get("workflow") == workflow.uuid and note.get("attempt", first) < first:
            flow.discard(atom.uuid)


def cursor_of(secret: str, batch: int) -> str:
    """Return the cursor after a batch of a flow.

    The number is encrypted, because numbers of batches count those of other flows, too. The same
    batch has the same cursor in all processes.

    :param secret: a random text of the flow, which no visitor knows.
    """
    number = batch.to_bytes(_BATCH_BYTES)
    mac = _digest(secret, b"mac" + number)
    return (mac + _masked(secret, mac, number)).hex()


def batch_in_cursor(cursor: str | None, secret: str, latest: int) -> int | None:
    """Return the number of the batch in a cursor of the flow with this `secret`.

    Return None for an invalid cursor, another flow, or a batch after `latest`.
    """
    if cursor is None or not _CURSOR.fullmatch(cursor):
        return None
    content = bytes.fromhex(cursor)
    mac, masked = content[:_MAC_BYTES], content[_MAC_BYTES:]
    number = _masked(secret, mac, masked)
    batch = int.from_bytes(number)
    is_own = hmac.compare_digest(mac, _digest(secret, b"mac" + number))
    return batch if is_own and batch <= latest else None


def _masked(secret: str, mac: bytes, number: bytes) -> bytes:
    """Encrypt or decrypt a number with a key that is different for each MAC."""
    key = _digest(secret, b"key" + mac)
    return bytes(byte ^ other for byte, other in zip(number, key, strict=True))


def _digest(secret: str, message: bytes) -> bytes:
    return hmac.digest(secret.encode(), message, "sha256")[:_MAC_BYTES]
