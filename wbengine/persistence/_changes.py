"""Changes of a flow's records since a cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.persistence import models

__all__ = ["Changes", "batch_in_cursor"]

_MAX_BATCH_DIGITS: Final = 20


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
        return known


def batch_in_cursor(cursor: str | None, name: str, latest: int) -> int | None:
    """Return the number of the last batch in a cursor `NAME.NUMBER`.

    Return None for an invalid cursor, another `name`, or a batch after `latest`.
    """
    cursor_name, _, number = (cursor or "").partition(".")
    is_number = len(number) <= _MAX_BATCH_DIGITS and number.isascii() and number.isdigit()
    return int(number) if cursor_name == name and is_number and int(number) <= latest else None
