"""Values that were kept already, and that somebody changed since into what cannot be kept.

Tasks in this process are given the very objects that others returned.  One that puts something into
such an object changes a record behind the engine's back: what was written is what counts then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _codec, exceptions, states
from wbengine.persistence import base, models

__all__ = ["mend"]

LOG: Final = logging.getLogger(__name__)

_OF_ATOMS: Final = ("results", "progress_details", "_meta")


def mend(
    connection: base.Connection,
    atoms: Iterable[models.AtomDetail],
    items: Mapping[str, Sequence[models.ItemDetail]],
) -> bool:
    """Give records back the values that are kept, where the present ones cannot be.

    Returns whether there was anything to be given back; what was never kept stays as it is.
    """
    mended = False
    for atom in atoms:
        wrong = [slot for slot in _OF_ATOMS if not _fits(getattr(atom, slot))]
        kept = _kept(connection, atom.uuid) if wrong else None
        if kept is not None:
            if not _same_result(atom, kept):
                wrong = [slot for slot in wrong if slot != "results"]
            mended |= _give_back(f"Atom {atom.name!r}", atom, kept, wrong)
    for uuid, changed in items.items():
        for item in changed:
            if not _fits(item.value):
                atom_kept = _kept(connection, uuid)
                every = atom_kept.items if atom_kept is not None else None
                if every is not None and every.attempt == item.attempt and item.index < len(every):
                    who = f"Item {item.index}"
                    mended |= _give_back(who, item, every[item.index], ["value"])
    return mended


def _same_result(atom: models.AtomDetail, kept: models.AtomDetail) -> bool:
    """Whether what is kept is the result of the same execution."""
    if isinstance(atom, models.RetryDetail) or kept.state not in models.WITH_RESULT:
        return False
    return atom.state != states.SUCCESS or atom.attempt == kept.attempt


def _kept(connection: base.Connection, uuid: str) -> models.AtomDetail | None:
    try:
        return connection.get_atom_details(uuid)
    except exceptions.NotFound:
        return None


def _give_back(who: str, record: Any, kept: Any, wrong: Iterable[str]) -> bool:
    mended = False
    for slot in wrong:
        value = getattr(kept, slot)
        if value is not None:
            LOG.warning(
                "%s: somebody changed its %s into what cannot be kept; what was kept counts",
                who,
                slot.strip("_"),
            )
            setattr(record, slot, value)
            mended = True
    return mended


def _fits(value: Any) -> bool:
    try:
        _codec.pack(value)
    except Exception:
        return False
    return True
