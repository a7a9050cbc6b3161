"""Records as plain JSON trees, for every backend whose records leave this process.

A tree is what the record tells of itself, with the values of users written by the typed codec, so
that they come back equal and of the same type; dates are ISO 8601 texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine.persistence import models

__all__ = ["BOOK", "FLOW", "ITEM", "RETRY", "TASK", "Tree", "kind_of", "record_of", "tree_of"]

#: A JSON object.
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
    """One of 'book', 'flow', 'task', 'retry' and 'item'."""
    return record.kind if isinstance(record, models.AtomDetail) else _KINDS[type(record)]


def tree_of(record: Record) -> Tree:
    """The record's own row, as what `json` can write.

    Of the texts of failures the first 65,536 characters are kept.

    :raises NotEncodable: a value cannot be kept; the error says of which record, and where in it.
    """
    try:
        return record.dump(typed=True)
    except exceptions.NotEncodable as error:
        which = record.index if isinstance(record, models.ItemDetail) else record.name
        raise exceptions.NotEncodable(
            f"{kind_of(record)} {which!r} cannot be kept: {error}",
            path=error.path,
            type_name=error.type_name,
        ) from None


def record_of(kind: str, tree: Mapping[str, Any]) -> Any:
    """The record that `tree_of` wrote.

    :raises InvalidFormat: it is no such tree.
    """
    try:
        return _CLASSES[kind].load(tree, typed=True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise exceptions.InvalidFormat(f"This is no record of a {kind}: {error}", error) from error
