"""Values that workflows published with `steps.publish`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wbengine.persistence import models

__all__ = ["published_in"]


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
