"""Values in the records of flows that may contain secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wbengine._security.masking import is_secret_key
from wbengine.persistence import _changes, models

__all__ = ["values_of_changes", "values_of_flow", "values_of_records"]


def values_of_flow(detail: models.FlowDetail) -> Iterator[Any]:
    """Yield the values of a flow, with their names, for `Redactor.with_secrets_from`."""
    if detail.has_meta:
        yield detail.meta
    yield from values_of_records(detail)


def values_of_records(records: Iterable[models.AtomDetail]) -> Iterator[Any]:
    """Yield the values in records of atoms."""
    for record in records:
        if record.has_meta:
            yield record.meta
        values = (record.results, record.revert_results, record.failure, record.revert_failure)
        # Not compared with `==`, which returns an array for an array.
        texts = [each for each in values if each is not None and not isinstance(each, int | float)]
        if texts:
            is_secret = is_secret_key(record.name)
            for value in texts:
                # The result of an atom named "make_password" is a secret.
                yield {record.name: value} if is_secret else value
        if record.progress_details is not None:
            yield record.progress_details
        yield from _of_items(record.items or ())


def values_of_changes(flow_changes: _changes.Changes) -> Iterator[Any]:
    """Yield the values in changed records."""
    yield from values_of_flow(flow_changes.flow)
    yield from values_of_records(flow_changes.atoms)
    for items in flow_changes.items.values():
        yield from _of_items(items)


def _of_items(items: Iterable[models.ItemDetail]) -> Iterator[Any]:
    for item in items:
        yield from (item.value, item.results, item.failure, item.revert_failure)
