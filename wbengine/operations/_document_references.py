"""References to large values in exported flows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import _payloads, exceptions
from wbengine._payloads import checking
from wbengine.persistence import base
from wbengine.types._references import Reference

__all__ = ["LargeValues", "keep", "references"]

_MAX_LISTED: Final = 10


class LargeValues(NamedTuple):
    """The large values to which an imported flow refers.

    :ivar place: the folder or bucket of the store, for messages; None: it has none.
    :ivar total: number of the values.
    :ivar missing: references to the values that are lost.
    """

    place: str | None
    total: int
    missing: list[Reference]

    def describe_missing(self) -> str:
        """Return a text about the missing values, or an empty one if there are none."""
        if not self.missing:
            return ""
        if self.place is None:
            return (
                f"the flow refers to large values ({self.total:,}), and this store has no place for"
                " them: before the import, set `payloads` (--payloads or"
                f" ${_payloads.VARIABLE})"
            )
        listed = "; ".join(
            f"data/{each.address[:2]}/{each.address} ({each.kind}, {each.size:,} bytes)"
            for each in self.missing[:_MAX_LISTED]
        )
        more = len(self.missing) - _MAX_LISTED
        return (
            f"{len(self.missing):,} of {self.total:,} large values of the flow are not in"
            f" {self.place}: copy these files from the place of the exporting store: {listed}"
            + (f"; and {more:,} more" if more > 0 else "")
        )


def references(document: Mapping[str, Any]) -> list[Reference]:
    """Return the references in a document of `export`, each once.

    :raises InvalidFormat: if one is invalid.
    """
    signals = [json.loads(text) for _, text, _ in document["signals"]]
    found = checking.references_in([document["flow"], document["atoms"], signals], "")
    return list(dict.fromkeys(reference for _, reference in found))


def keep(backend: base.Backend, document: Mapping[str, Any], flow_uuid: str) -> LargeValues:
    """Keep the large values of a flow while it is in the store, also those that are copied later.

    :raises StorageFailure: if the folder or bucket cannot be reached.
    """
    found, payloads = references(document), backend.payloads
    if payloads is None or not found:
        return LargeValues(None if payloads is None else str(payloads), len(found), found)
    for reference in found:
        payloads.keep(reference, flow_uuid)
    missing = []
    for reference in found:
        try:
            payloads.check(reference, "", read=False)
        except exceptions.PayloadUnavailable:
            missing.append(reference)
    return LargeValues(str(payloads), len(found), missing)
