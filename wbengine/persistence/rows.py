"""Records as plain JSON trees, for every backend whose records leave this process.

A tree is what the record's `to_dict` says, with the values of users written by the typed codec, so
that they come back equal and of the same type; dates are ISO 8601 texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from wbengine import _codec, exceptions
from wbengine.persistence import models

__all__ = ["Tree", "VALUES", "tree_of", "record_of"]

#: A JSON object.
Tree = dict[str, Any]

BOOK: Final = "book"
FLOW: Final = "flow"
TASK: Final = "task"
RETRY: Final = "retry"
ITEM: Final = "item"

#: The keys of a tree, by kind of record, under which there are values of users.
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    BOOK: ("meta",),
    FLOW: ("meta",),
    TASK: ("meta", "results", "revert_results", "progress_details"),
    RETRY: ("meta", "revert_results", "progress_details"),
    ITEM: ("value", "results", "revert_results"),
}

_MOMENTS: Final = ("created_at", "updated_at")

Record = models.LogBook | models.FlowDetail | models.AtomDetail | models.ItemDetail


def kind_of(record: Record) -> str:
    """One of 'book', 'flow', 'task', 'retry' and 'item'."""
    if isinstance(record, models.AtomDetail):
        return record.kind
    return _KINDS[type(record)]


def tree_of(record: Record) -> Tree:
    """The record's own row, as what `json` can write.

    :raises NotEncodable: a value cannot be kept; the error says which, and where in it.
    """
    kind = kind_of(record)
    tree = record.to_dict()
    for key in VALUES[kind]:
        tree[key] = _codec.pack(tree[key], key)
    if kind == RETRY:
        tree["results"] = [
            [_codec.pack(value, "results"), failures] for value, failures in tree["results"]
        ]
    elif kind == BOOK:
        for key in _MOMENTS:
            tree[key] = None if tree[key] is None else tree[key].isoformat()
    return tree


def record_of(kind: str, tree: Mapping[str, Any]) -> Any:
    """The record that `tree_of` wrote.

    :raises InvalidFormat: it is no such tree.
    """
    try:
        told = dict(tree)
        for key in VALUES[kind]:
            if key in told:
                told[key] = _codec.unpack(told[key])
        if kind == RETRY:
            told["results"] = [
                (_codec.unpack(value), failures) for value, failures in told.get("results") or ()
            ]
        elif kind == BOOK:
            for key in _MOMENTS:
                if told.get(key) is not None:
                    told[key] = datetime.fromisoformat(told[key])
        return _MAKERS[kind](told)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise exceptions.InvalidFormat(f"This is no record of a {kind}: {error}", error) from error


_KINDS: Final[Mapping[type, str]] = {
    models.LogBook: BOOK,
    models.FlowDetail: FLOW,
    models.ItemDetail: ITEM,
}
_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    BOOK: models.LogBook.from_dict,
    FLOW: models.FlowDetail.from_dict,
    TASK: models.TaskDetail.from_dict,
    RETRY: models.RetryDetail.from_dict,
    ITEM: models.ItemDetail.from_dict,
}
