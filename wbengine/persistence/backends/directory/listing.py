"""Lists of flows: their heads tell what is needed to choose a page, and only its flows are read."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence import base, listing, models
from wbengine.persistence.backends.directory import books, files, folder, head, rows, store

__all__ = ["Lister"]

LOG: Final = logging.getLogger(__name__)

#: Of so many flows it is remembered how many atoms are in which state.
_MOST: Final = 1000

# The name and the state come first in what is told of an atom, before any value of a user.
_STATE: Final = re.compile(rb'"state":(?:"([A-Z_]+)"|null)').search
_INJECTOR: Final = b'{"name":"%s"' % models.INJECTOR.encode()


#: A file that was written so many seconds ago is written at another moment the next time.
_SETTLED: Final = 2.0


#: The stamp of one that may be written again within the same moment.
_UNSETTLED: Final = (-1, -1)


class _Known(NamedTuple):
    """What was found in a head, when it was as it is told by its `stamp`."""

    stamp: tuple[int, int]
    place: listing.Place
    row: rows.Row


class Lister:
    """Makes pages; any thread may use it."""

    def __init__(self, of: store.Store, shelf: books.Books) -> None:
        self._store = of
        self._books = shelf
        self._known: dict[str, _Known] = {}
        self._counts: OrderedDict[tuple[bytes, head.Mark], Mapping[str, int]] = OrderedDict()

    def page(self, query: listing.Query, now: float) -> base.Page:
        """The flows that `query` asks for.

        Cost: a look at each flow's folder, reading the heads that changed since this process looked
        last, and reading the flows on the page.  What cannot be read is left out, with a line in
        the log.
        """
        found = [
            each
            for each in self._all()
            if query.wants(each.row.uuid, each.row.name)
            and query.wants_state(each.row.state)
            and query.book in (None, each.row.book)
            and query.wants_place(each.place)
        ]
        found.sort(key=lambda each: each.place, reverse=query.newest_first)
        page = found[: query.limit]
        after = str(page[-1].place) if len(found) > len(page) else None
        shown = (self._row(each, now) for each in page)
        return base.Page([row for row in shown if row is not None], after)

    def _all(self) -> list[_Known]:
        known, found = self._known, {}
        for name in self._store.flow_names():
            try:
                found[name] = self._look(name, known.get(name))
            except exceptions.NotFound:  # destroyed meanwhile
                continue
            except exceptions.StorageFailure as error:
                LOG.warning("It is left out: %s", error)
        self._known = {name: each for name, each in found.items() if each.stamp != _UNSETTLED}
        return list(found.values())

    def _look(self, name: str, known: _Known | None) -> _Known:
        path = os.path.join(self._store.root, "flows", name, "head")
        stamp = _UNSETTLED
        with contextlib.suppress(OSError):
            told = os.stat(path)
            if known is not None and known.stamp == (told.st_mtime_ns, told.st_ino):
                return known
            if time.time() - told.st_mtime > _SETTLED:
                stamp = told.st_mtime_ns, told.st_ino
        where = self._store.folder_for(name)
        row = None
        with contextlib.suppress(FileNotFoundError):
            row = head.row_in(files.read(path), where.key)
        row = row or where.read_head().row or self._read(where)
        return _Known(stamp, listing.Place(self._created(row), row.uuid), row)

    def _read(self, where: folder.FlowFolder) -> rows.Row:
        """What the head does not tell."""
        picture = where.read()
        flow = where.detail(picture, lazy=True)
        return rows.of_flow(flow, str(picture.first.tree().get("book")))

    def _created(self, row: rows.Row) -> float:
        if row.created is not None:
            return row.created
        book = self._book(row.book)
        return book.created if book is not None else 0.0

    def _book(self, uuid: str) -> models.LogBook | None:
        try:
            return self._books.read(uuid).row
        except (exceptions.NotFound, exceptions.StorageFailure):
            return None

    def _row(self, found: _Known, now: float) -> base.FlowRow | None:
        row = found.row
        where = self._store.folder_for(row.uuid)
        try:
            told = where.read_head()
        except exceptions.NotFound:  # destroyed meanwhile
            return None
        except exceptions.StorageFailure as error:
            LOG.warning("It is left out: %s", error)
            return None
        holder = told.holder
        book = self._book(row.book)
        return base.FlowRow(
            row.uuid,
            row.name,
            row.book,
            "" if book is None else book.name,
            row.state or states.PENDING,
            found.place.created or None,
            _updated(where),
            self._count(where, told.mark),
            holder.owner if holder.runs(now) else None,
            row.error,
        )

    def _count(self, where: folder.FlowFolder, mark: head.Mark) -> Mapping[str, int]:
        known = self._counts.get((where.key, mark))
        if known is not None:
            return known
        try:
            made = _count(where, mark)
        except FileNotFoundError:  # folded meanwhile, or destroyed
            try:
                mark = where.read_head().mark
                made = _count(where, mark)
            except (FileNotFoundError, exceptions.NotFound):
                return {}
        self._counts[where.key, mark] = made
        while len(self._counts) > _MOST:
            self._counts.popitem(last=False)
        return made


def _updated(where: folder.FlowFolder) -> float | None:
    try:
        return os.stat(where.head_path).st_mtime
    except OSError:
        return None


def _count(where: folder.FlowFolder, mark: head.Mark) -> dict[str, int]:
    """How many tasks are in which state, without reading what else their lines say."""
    found: dict[bytes, str] = {}
    data = [files.read(where.records(mark.generation))]
    if mark.length:
        data.append(files.read_from(where.journal(mark.generation), 0, mark.length))
    for raw in (line for each in data for line in each.split(b"\n")):
        fields = raw.split(b" ", 6)
        if len(fields) == 7 and fields[2] == b"task":
            match = _STATE(fields[6])
            if match is not None and not fields[6].startswith(_INJECTOR):
                found[fields[3]] = (match[1] or states.PENDING.encode()).decode()
    return dict(Counter(found.values()))
