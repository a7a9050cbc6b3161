"""Restoration of stored values that a task modified into values that cannot be encoded.

Tasks in this process share the objects that other tasks returned. If a task modifies such an
object, a record changes without a call of the engine. The stored value then takes precedence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.persistence import base, models
from wbengine.types import codec

__all__ = ["mend"]

LOG: Final = logging.getLogger(__name__)

_ATOM_VALUE_FIELDS: Final = ("results", "progress_details", "_meta")


def mend(
    connection: base.Connection,
    atoms: Iterable[models.AtomDetail],
    items: Mapping[str, Sequence[models.ItemDetail]],
) -> bool:
    """Replace values that cannot be encoded by their stored values.

    Return True if a value was replaced.
    """
    mended = False
    for atom in atoms:
        wrong = [slot for slot in _ATOM_VALUE_FIELDS if not _is_encodable(getattr(atom, slot))]
        stored = _stored_atom(connection, atom.uuid) if wrong else None
        if stored is not None:
            if not _same_result(atom, stored):
                wrong = [slot for slot in wrong if slot != "results"]
            mended |= _restore(f"Atom {atom.name!r}", atom, stored, wrong)
    for uuid, changed in items.items():
        for item in changed:
            if not _is_encodable(item.value):
                stored_atom = _stored_atom(connection, uuid)
                stored_items = stored_atom.items if stored_atom is not None else None
                if (
                    stored_items is not None
                    and stored_items.attempt == item.attempt
                    and item.index < len(stored_items)
                ):
                    label = f"Item {item.index}"
                    mended |= _restore(label, item, stored_items[item.index], ["value"])
    return mended


def _same_result(atom: models.AtomDetail, stored: models.AtomDetail) -> bool:
    if isinstance(atom, models.RetryDetail) or stored.state not in models.STATES_WITH_RESULT:
        return False
    return atom.state != states.SUCCESS or atom.attempt == stored.attempt


def _stored_atom(connection: base.Connection, uuid: str) -> models.AtomDetail | None:
    try:
        return connection.get_atom_details(uuid)
    except exceptions.NotFound:
        return None


def _restore(label: str, record: Any, stored: Any, wrong: Iterable[str]) -> bool:
    mended = False
    for slot in wrong:
        value = getattr(stored, slot)
        if value is not None:
            LOG.warning(
                "%s: its %s has a new value that cannot be stored; the stored value remains",
                label,
                slot.strip("_"),
            )
            setattr(record, slot, value)
            mended = True
    return mended


def _is_encodable(value: Any) -> bool:
    try:
        codec.pack(value)
    except Exception:
        return False
    return True
