"""Maskers for flows of which only a line is shown: they need to know the flow's secrets, too."""

from __future__ import annotations

import threading
import uuid as uuids
from collections import OrderedDict
from typing import Final

from wbengine import exceptions
from wbengine.persistence import base, listing, models
from wbengine.views import sources
from wbengine.views.masking import Masker

__all__ = ["line", "masker_of"]

#: Flows of more atoms are not read for a line.
_SMALL: Final = 200
_KEPT: Final = 1000

_lock: Final = threading.Lock()
#: What is known of flows, as they were when they were written last.
_known: OrderedDict[tuple[str, float | None, bool], Masker] = OrderedDict()


def masker_of(connection: base.Connection, row: listing.FlowRow, masker: Masker) -> Masker:
    """`masker`, which also knows what is secret in the flow of `row`.

    Of one that is large, or of which nothing failed, the flow's own values are read only: one small
    record, once for each time that the flow was written.
    """
    key = (row.uuid, row.updated, row.error is not None)
    with _lock:
        found = _known.get(key)
    if found is None:
        found = _looked(connection, row)
        with _lock:
            _known[key] = found
            while len(_known) > _KEPT:
                _known.popitem(last=False)
    return masker.knowing_as(found)


def line(row: listing.FlowRow, masker: Masker) -> str | None:
    """Why the flow failed, in one line; of a large one, with a message that may tell what only its
    results say to be secret, no more than what failed with which type of exception.
    """
    if row.error is None:
        return None
    if sum(row.counts.values()) <= _SMALL:
        return masker.text(row.error)
    return masker.text(": ".join(row.error.split(": ")[:2]))


def _looked(connection: base.Connection, row: listing.FlowRow) -> Masker:
    try:
        if row.error is not None and sum(row.counts.values()) <= _SMALL:
            return Masker().knowing_flow(connection.get_flow_details(row.uuid))
        own = uuids.uuid5(uuids.NAMESPACE_OID, f"{row.uuid} {models.INJECTOR}")
        return Masker().knowing(*sources.of_records([connection.get_atom_details(str(own))]))
    except (exceptions.NotFound, exceptions.CorruptRecord):
        return Masker()
