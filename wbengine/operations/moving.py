"""Copying the contents of a store to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wbengine import exceptions
from wbengine.operations import exporting, suspend_and_cancel
from wbengine.persistence import base, models, owners, trees
from wbengine.persistence.backends import journals
from wbengine.signals import Signal
from wbengine.types.outline import Outline

__all__ = ["move"]


class _BookCopy(NamedTuple):
    book: models.LogBook
    outlines: dict[str, Outline]
    logs: dict[str, list[models.LogChunk]]
    signals: Mapping[str, Sequence[Signal]]


def move(old: base.Backend | str, new: base.Backend) -> Iterator[models.LogBook]:
    """Copy every logbook of a store to another one, read it back there, and yield it.

    Nothing of `old` changes. Logbooks that `new` already contains are compared, so a copy that
    failed may be repeated.

    :param old: the store, or the path of a folder of journals.
    :raises FlowBusy: if an engine runs one of the flows.
    :raises Duplicate: if `new` has a different book or flow with the same uuid.
    :raises StorageFailure: if a store is unavailable; or if the copy differs when read back.
    """
    with contextlib.closing(new.get_connection()) as target:
        target.upgrade()
        for moving in _journals(old) if isinstance(old, str) else _books(old):
            yield _save_copy(target, moving)


def _books(old: base.Backend) -> Iterator[_BookCopy]:
    with contextlib.closing(old.get_connection()) as connection:
        for row in connection.get_logbooks(lazy=True):
            book = connection.get_logbook(row.uuid)
            outlines, logs = {}, {}
            for flow in book:
                logs[flow.uuid] = connection.get_logs(flow.uuid)
                lease = connection.get_lease(flow.uuid)
                if lease is not None and not owners.is_dead(lease.owner):
                    raise suspend_and_cancel.busy(flow.uuid, lease.owner)
                outline = connection.get_outline(flow.uuid)
                if outline is not None:
                    outlines[flow.uuid] = outline
            signals = connection.signals([flow.uuid for flow in book])
            yield _BookCopy(book, outlines, logs, signals)


def _journals(path: str) -> Iterator[_BookCopy]:
    for book, uuids in journals.books(path):
        outlines = {}
        for uuid in uuids:
            records = journals.read_flow(path, uuid)
            if records.owner is not None and not owners.is_dead(records.owner):
                raise suspend_and_cancel.busy(uuid, records.owner)
            book.add(records.detail)
            if records.outline is not None:
                outlines[uuid] = records.outline
        yield _BookCopy(book, outlines, {}, {})


def _save_copy(target: base.Connection, moving: _BookCopy) -> models.LogBook:
    book = moving.book
    try:
        existing = target.get_logbook(book.uuid)
    except exceptions.NotFound:
        target.save_logbook(book)
        existing = target.get_logbook(book.uuid)
    else:
        if _contents(existing) != _contents(book):
            raise exceptions.Duplicate(
                f"Target store contains another logbook {book.uuid}; use an empty store"
            )
    if _contents(existing) != _contents(book):
        raise exceptions.StorageFailure(
            f"Logbook {book.uuid} differs in the target store; the source store was not changed"
        )
    for uuid, outline in moving.outlines.items():
        target.save_outline(uuid, outline)
    for flow in book:
        logs, signals = moving.logs.get(flow.uuid, ()), moving.signals.get(flow.uuid, ())
        exporting.save_signals_and_logs(target, flow, logs, signals)
    return book


def _contents(book: models.LogBook) -> list[trees.Tree]:
    contents = [trees.tree_of(book)]
    for flow in book:
        contents.append(trees.tree_of(flow))
        for atom in flow:
            contents.append(trees.tree_of(atom))
            contents += [trees.tree_of(item) for item in atom.items or ()]
    return contents
