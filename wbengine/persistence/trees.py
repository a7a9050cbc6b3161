"""Records as plain JSON trees, for every backend whose records leave this process.

A tree is what the record's `to_dict` says, with the values of users written by the typed codec, so
that they come back equal and of the same type; dates are ISO 8601 texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from wbengine import _codec, _codec_tags, exceptions, states
from wbengine.persistence import models
from wbengine.types import _description

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

#: The texts that are no values of users, and yet given by them.
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    BOOK: ("name",),
    FLOW: ("name",),
    TASK: ("name",),
    RETRY: ("name",),
    ITEM: (),
}
_FAILURES: Final = ("failure", "revert_failure")

Record = models.LogBook | models.FlowDetail | models.AtomDetail | models.ItemDetail


def kind_of(record: Record) -> str:
    """One of 'book', 'flow', 'task', 'retry' and 'item'."""
    if isinstance(record, models.AtomDetail):
        return record.kind
    return _KINDS[type(record)]


def tree_of(record: Record) -> Tree:
    """The record's own row, as what `json` can write.

    Of the texts of failures the first 65,536 characters are kept.

    :raises NotEncodable: a value cannot be kept; the error says of which record, and where in it.
    """
    kind = kind_of(record)
    tree = (
        record.to_dict(marshal_time=True)
        if isinstance(record, models.LogBook)
        else record.to_dict()
    )
    try:
        for key in VALUES[kind]:
            tree[key] = _codec.pack(tree[key], key)
        if kind == RETRY:
            tree["results"] = [
                [_codec.pack(value, "results"), failures] for value, failures in tree["results"]
            ]
        for key in _WORDS[kind]:
            if not (tree[key].isascii() or _codec_tags.is_text(tree[key])):
                raise exceptions.NotEncodable(path=key, type_name="str with lone surrogates")
    except exceptions.NotEncodable as error:
        raise _named(record, error) from None
    for description in _failures_in(kind, tree):
        _description.shorten(description)
    return tree


def _failures_in(kind: str, tree: Tree) -> Iterator[Tree]:
    for key in _FAILURES:
        if tree.get(key) is not None:
            yield tree[key]
    if kind == RETRY:
        for _, failures in tree["results"]:
            yield from failures.values()


def _named(record: Record, error: exceptions.NotEncodable) -> exceptions.NotEncodable:
    which = record.index if isinstance(record, models.ItemDetail) else record.name
    return exceptions.NotEncodable(
        f"{kind_of(record)} {which!r} cannot be kept: {error}",
        path=error.path,
        type_name=error.type_name,
    )


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
        _check(kind, told)
        return _MAKERS[kind](told)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise exceptions.InvalidFormat(f"This is no record of a {kind}: {error}", error) from error


def _check(kind: str, told: Mapping[str, Any]) -> None:
    """Refuse what would only be noticed when somebody works with the record."""
    for key in _WORDS[kind]:
        if not (isinstance(told[key], str) and _codec_tags.is_text(told[key])):
            raise TypeError(f"its {key} is {told[key]!r:.80}")
    for key, known in _KNOWN[kind].items():
        if told.get(key) is not None and told[key] not in known:
            raise ValueError(f"its {key} is {told[key]!r:.80}")
    for key in ("attempt", "epoch", "index", "order"):
        if not isinstance(told.get(key, 0), int):
            raise TypeError(f"its {key} is {told[key]!r:.80}")


_KNOWN: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    BOOK: {},
    FLOW: {"state": states.FLOW_STATES},
    TASK: {"state": states.ATOM_STATES, "intention": states.INTENTIONS},
    RETRY: {"state": states.ATOM_STATES, "intention": states.INTENTIONS},
    ITEM: {"state": states.ATOM_STATES},
}
_KINDS: Final[Mapping[type, str]] = {
    models.LogBook: BOOK,
    models.FlowDetail: FLOW,
    models.ItemDetail: ITEM,
}
_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    BOOK: functools.partial(models.LogBook.from_dict, unmarshal_time=True),
    FLOW: models.FlowDetail.from_dict,
    TASK: models.TaskDetail.from_dict,
    RETRY: models.RetryDetail.from_dict,
    ITEM: models.ItemDetail.from_dict,
}
