"""The values in the records of flows, in which secrets are looked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wbengine._secrets import is_secret_key
from wbengine.persistence import changes, models

__all__ = ["values_of_changes", "values_of_flow", "values_of_records"]

_NOTHING = (None, None, None, None)


def values_of_flow(detail: models.FlowDetail) -> Iterator[Any]:
    """All values of a flow, each under its name as far as it has one: for
    `Redactor.with_secrets_from`."""
    if detail.has_meta:
        yield detail.meta
    yield from values_of_records(detail)


def values_of_records(records: Iterable[models.AtomDetail]) -> Iterator[Any]:
    """The values of some of its records."""
    for record in records:
        if record.has_meta:
            yield record.meta
        kept = (record.results, record.revert_results, record.failure, record.revert_failure)
        if kept != _NOTHING:
            secret = is_secret_key(record.name)
            for value in kept:
                if value is not None and not isinstance(value, int | float):
                    # What "make_password" returns is one.
                    yield {record.name: value} if secret else value
        if record.progress_details is not None:
            yield record.progress_details
        yield from _of_items(record.items or ())


def values_of_changes(found: changes.Changes) -> Iterator[Any]:
    """The values of what changed."""
    yield from values_of_flow(found.flow)
    yield from values_of_records(found.atoms)
    for items in found.items.values():
        yield from _of_items(items)


def _of_items(items: Iterable[models.ItemDetail]) -> Iterator[Any]:
    for item in items:
        yield from (item.value, item.results, item.failure, item.revert_failure)
