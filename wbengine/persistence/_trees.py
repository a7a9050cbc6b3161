"""Records as JSON trees, for backends that store records outside of this process.

A tree contains the fields of a record. The typed codec encodes values of users and preserves their
types. Dates are ISO 8601 strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine.persistence import _sealed_fields, models

__all__ = ["BOOK", "FLOW", "ITEM", "RETRY", "TASK", "Tree", "kind_of", "record_of", "tree_of"]

Tree = dict[str, Any]

BOOK: Final = "book"
FLOW: Final = "flow"
TASK: Final = "task"
RETRY: Final = "retry"
ITEM: Final = "item"

Record = models.LogBook | models.FlowDetail | models.AtomDetail | models.ItemDetail

_CLASSES: Final[Mapping[str, Any]] = {
    BOOK: models.LogBook,
    FLOW: models.FlowDetail,
    TASK: models.TaskDetail,
    RETRY: models.RetryDetail,
    ITEM: models.ItemDetail,
}
_KINDS: Final = {kind: name for name, kind in _CLASSES.items()}


def kind_of(record: Record) -> str:
    """Return 'book', 'flow', 'task', 'retry' or 'item'."""
    return record.kind if isinstance(record, models.AtomDetail) else _KINDS[type(record)]


def tree_of(record: Record) -> Tree:
    """Return the fields of a record as data for `json`, with shortened texts of failures.

    :raises NotEncodable: if a value cannot be encoded; the message contains its location.
    :raises StorageFailure: if it is a flow or logbook that this process could not decrypt.
    """
    try:
        return record.dump(typed=True)
    except exceptions.NotEncodable as error:
        if isinstance(record, models.FlowDetail | models.LogBook):
            _sealed_fields.check_opened(record)
        label = record.index if isinstance(record, models.ItemDetail) else record.name
        raise exceptions.NotEncodable(
            f"{kind_of(record)} {label!r} cannot be saved: {error}",
            path=error.path,
            type_name=error.type_name,
        ) from None


def record_of(kind: str, tree: Mapping[str, Any]) -> Any:
    """Create the record from its tree.

    :raises InvalidFormat: if the tree is invalid.
    """
    try:
        return _CLASSES[kind].load(tree, typed=True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise exceptions.InvalidFormat(f"invalid {kind} record: {error}", error) from error
