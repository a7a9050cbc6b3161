"""Moving all that a store keeps to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wbengine import exceptions
from wbengine.operations import commands, exporting
from wbengine.persistence import base, models, owners, trees
from wbengine.persistence.backends import journals
from wbengine.signals import Signal
from wbengine.types.outline import Outline

__all__ = ["move"]


class _Moving(NamedTuple):
    """A book with its flows; by uuid their outlines, signals, and what their tasks logged."""

    book: models.LogBook
    outlines: dict[str, Outline]
    logs: dict[str, list[models.LogChunk]]
    signals: Mapping[str, Sequence[Signal]]


def move(old: base.Backend | str, new: base.Backend) -> Iterator[models.LogBook]:
    """Copy every book of a store to another one, read it back there, and yield it.

    Nothing of `old` is changed.  What `new` has already is compared: a move that failed may be
    repeated.

    :param old: the store, or the path of a folder of journals, which a version before has kept.
    :raises FlowBusy: somebody runs one of the flows.
    :raises Duplicate: `new` has another book, or flow, of the same uuid.
    :raises StorageFailure: one of the stores cannot be used; or what was read back is not the same.
    """
    with contextlib.closing(new.get_connection()) as target:
        target.upgrade()
        for moving in _journals(old) if isinstance(old, str) else _books(old):
            yield _put(target, moving)


def _books(old: base.Backend) -> Iterator[_Moving]:
    with contextlib.closing(old.get_connection()) as connection:
        for row in connection.get_logbooks(lazy=True):
            book = connection.get_logbook(row.uuid)
            outlines, logs = {}, {}
            for flow in book:
                logs[flow.uuid] = connection.get_logs(flow.uuid)
                lease = connection.get_lease(flow.uuid)
                if lease is not None and not owners.died(lease.owner):
                    raise commands.busy(flow.uuid, lease.owner)
                outline = connection.get_outline(flow.uuid)
                if outline is not None:
                    outlines[flow.uuid] = outline
            signals = connection.signals([flow.uuid for flow in book])
            yield _Moving(book, outlines, logs, signals)


def _journals(path: str) -> Iterator[_Moving]:
    for book, uuids in journals.books(path):
        outlines = {}
        for uuid in uuids:
            kept = journals.read_flow(path, uuid)
            if kept.owner is not None and not owners.died(kept.owner):
                raise commands.busy(uuid, kept.owner)
            book.add(kept.detail)
            if kept.outline is not None:
                outlines[uuid] = kept.outline
        yield _Moving(book, outlines, {}, {})


def _put(target: base.Connection, moving: _Moving) -> models.LogBook:
    book = moving.book
    try:
        kept = target.get_logbook(book.uuid)
    except exceptions.NotFound:
        target.save_logbook(book)
        kept = target.get_logbook(book.uuid)
    else:
        if _told(kept) != _told(book):
            raise exceptions.Duplicate(
                f"The store moved to has another log book {book.uuid}: move to an empty one"
            )
    if _told(kept) != _told(book):
        raise exceptions.StorageFailure(
            f"Log book {book.uuid} reads otherwise where it was moved to; nothing was changed where"
            " it is from"
        )
    for uuid, outline in moving.outlines.items():
        target.save_outline(uuid, outline)
    for flow in book:
        logs, signals = moving.logs.get(flow.uuid, ()), moving.signals.get(flow.uuid, ())
        exporting.keep_beside(target, flow, logs, signals)
    return book


def _told(book: models.LogBook) -> list[trees.Tree]:
    """All that a book says, in its order."""
    told = [trees.tree_of(book)]
    for flow in book:
        told.append(trees.tree_of(flow))
        for atom in flow:
            told.append(trees.tree_of(atom))
            told += [trees.tree_of(item) for item in atom.items or ()]
    return told
