"""Values that workflows published with `steps.publish`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wbengine import _payloads
from wbengine.persistence import models

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = ["loaded_from", "published_in"]


def published_in(records: Iterable[models.AtomDetail]) -> dict[str, Any]:
    """Return the published values in the records of a flow, by name.

    If several workflows published the same name, the value of the workflow that was started last is
    returned.
    """
    values: dict[str, Any] = {}
    for record in sorted(records, key=lambda record: record.submitted or 0.0):
        content = record.meta_value(models.WORKFLOW)
        in_record = content.get(models.PUBLISHED) if isinstance(content, Mapping) else None
        if isinstance(in_record, Mapping):
            values.update(in_record)
    return values


def loaded_from(records: Iterable[models.AtomDetail], payloads: Payloads | None) -> dict[str, Any]:
    """Return the published values as `published_in` does, and load large ones.

    :raises PayloadUnavailable: if a value is lost or damaged, or there are no payloads.
    """
    return {
        name: _payloads.loaded(payloads, value, f"published value {name!r}")
        for name, value in published_in(records).items()
    }
