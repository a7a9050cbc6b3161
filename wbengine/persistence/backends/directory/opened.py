"""The folder of one flow, to be written."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import models
from wbengine.persistence.backends.directory import contents, files, folder, head, lines, rows

__all__ = ["OpenFlow"]

LOG = logging.getLogger(__name__)

#: A journal is folded when it is longer than this, and than the records.
FOLD_AT: Final = 16 << 20


class OpenFlow:
    """The files of a flow.  In a `with` block nobody else writes them; others may read.

    Any thread may use it.  Keeps the head open, and the journal once something was written: so a
    turn opens nothing.

    Entering:

    :raises NotFound: the flow is not kept (any more).
    :raises CorruptRecord: its head is damaged.
    :raises StorageFailure: another process keeps writing for half a minute, or is frozen.
    """

    __slots__ = (
        "_fd",
        "_folded",
        "_generation",
        "_head",
        "_journal",
        "_mutex",
        "_raw",
        "_suspect",
        "folder",
        "users",
    )

    def __init__(self, of: folder.FlowFolder) -> None:
        self.folder = of
        #: How many threads are about to use it; kept by whoever hands it out.
        self.users = 0
        self._mutex = threading.Lock()
        self._fd = self._journal = -1
        self._raw = b""
        self._head = head.Head(head.Holder(), head.Mark(0))
        self._generation = 0
        self._folded: int | None = None
        self._suspect = False

    @property
    def holder(self) -> head.Holder:
        """The latest lease."""
        return self._head.holder

    @property
    def mark(self) -> head.Mark:
        """Which files count, and how much of the journal surely does."""
        return self._head.mark

    @property
    def row(self) -> rows.Row | None:
        """What the head tells of the flow."""
        return self._head.row

    def __enter__(self) -> OpenFlow:
        self._mutex.acquire()
        try:
            self._lock()
            try:
                self._read_head()
            except BaseException:
                files.unlock(self._fd)
                raise
        except BaseException:
            self._mutex.release()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        files.unlock(self._fd)
        self._mutex.release()

    def close(self) -> None:
        """Give back the files; it may be used again."""
        with self._mutex:
            self._close_journal()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def abandon(self) -> None:
        """`close`, in a forked child: whatever thread of the parent's holds it."""
        for fd in (self._fd, self._journal):
            if fd >= 0:
                os.close(fd)

    # -- the head -------------------------------------------------------------------------------

    def _lock(self) -> None:
        path = self.folder.head_path
        while True:
            if self._fd < 0:
                self._fd = self._open_head()
            if not files.lock(self._fd, path):
                raise exceptions.StorageFailure(f"{path} is locked by another process")
            if files.same(self._fd, path):
                return
            # Destroyed, or removed and made again, while this one was waiting or resting.
            files.unlock(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._close_journal()

    def _open_head(self) -> int:
        path = self.folder.head_path
        while True:
            with contextlib.suppress(FileNotFoundError):
                return files.open_at(path, os.O_RDWR)
            told = self.folder.missing_head()
            temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
            with contextlib.suppress(FileNotFoundError):
                files.write_new(temporary, [told.raw(self.folder.key)])
                try:
                    with files.failures(path), contextlib.suppress(FileExistsError):
                        os.link(temporary, path)
                finally:
                    files.remove(temporary)

    def _read_head(self) -> None:
        raw = files.read_at(self._fd, head.SIZE, self.folder.head_path)
        if raw != self._raw:
            self._head = self.folder.parse_head(raw)
            self._raw = raw

    def write_head(
        self,
        holder: head.Holder | None = None,
        mark: head.Mark | None = None,
        row: rows.Row | None = None,
        sync: bool = False,
    ) -> None:
        """Change what the head says; `sync`: have it survive the end of the host.

        When that fails it says what it said before.
        """
        before, raw = self._head, self._raw
        after = head.Head(holder or before.holder, mark or before.mark, row or before.row)
        self._raw = b""  # in doubt, until it is written
        key = self.folder.key
        same = holder is None and raw  # what is not known to be there is written anew
        written = after.raw_after(raw, key) if same else after.raw(key)
        try:
            files.write_at_start(self._fd, written, self.folder.head_path)
            if sync:
                files.sync(self._fd, self.folder.head_path)
        except BaseException:
            with contextlib.suppress(exceptions.StorageFailure):
                files.write_at_start(self._fd, before.raw(key), self.folder.head_path)
            raise
        self._head, self._raw = after, written

    # -- turns ----------------------------------------------------------------------------------

    def append(self, found: Sequence[bytes], flow: models.FlowDetail | None = None) -> None:
        """Write a turn.  It counts when this returns, and not when it raises.

        `flow` is that whose line is the first of `found`; None: it is the line of something else.
        Cost: that of the turn, and one fsync.

        :raises CorruptRecord: what is there is damaged.
        """
        mark = self._head.mark
        self.open_journal()
        start = self._head.mark.length
        path = self.folder.journal(mark.generation)
        data = lines.turn(self._head.holder.epoch, found)
        if not start:
            data = lines.write("journal", self.folder.key, mark.generation, tree={}) + data
        row = self._head.row
        if row is not None and flow is not None:
            row = rows.of_flow(flow, row.book, row.birth)
            row = row.at(start + len(data) - sum(map(len, found)), in_journal=True)
        crashpoint("dir.before-append")
        try:
            files.append(self._journal, data, path)
            crashpoint("dir.after-append")
            files.sync(self._journal, path)
            if not start:
                files.sync_folder(self.folder.path)
        except BaseException:
            self._take_back(start, path)
            raise
        crashpoint("dir.after-sync")
        # Who opens the journal next finds the turn without the mark, too.
        with contextlib.suppress(exceptions.StorageFailure):
            self.write_head(mark=head.Mark(mark.generation, start + len(data)), row=row)
        crashpoint("dir.after-mark")

    def _take_back(self, start: int, path: str) -> None:
        self._suspect = True
        with contextlib.suppress(exceptions.StorageFailure):
            files.cut(self._journal, start, path)
            self._suspect = False
        self._close_journal()

    def open_journal(self) -> None:
        """Have the journal open, with nothing in it but what counts.

        :raises CorruptRecord: it is damaged.
        """
        mark = self._head.mark
        path = self.folder.journal(mark.generation)
        if self._is_settled(mark):
            return
        self._close_journal()
        for other in self.folder.leftovers(mark):
            files.remove(other)
        flags = os.O_WRONLY | os.O_APPEND
        try:
            self._journal = files.open_at(path, flags | (0 if mark.length else os.O_CREAT))
        except FileNotFoundError:
            raise self.folder.damaged(path, "it is missing") from None
        self._generation = mark.generation
        if self._suspect:
            files.cut(self._journal, mark.length, path)
            self._suspect = False
        elif os.fstat(self._journal).st_size != mark.length:
            self._settle(path)

    def _is_settled(self, mark: head.Mark) -> bool:
        if self._journal < 0 or self._generation != mark.generation or self._suspect:
            return False
        return os.fstat(self._journal).st_size == mark.length

    def _settle(self, path: str) -> None:
        """Take in what was written but not marked, and cut off what was not written to its end."""
        picture = self.look()
        if picture.unfinished:
            crashpoint("dir.before-cut")
            files.cut(self._journal, picture.length, path)
        files.sync(self._journal, path)
        crashpoint("dir.after-cut")
        self.write_head(
            mark=head.Mark(picture.head.mark.generation, picture.length), row=self._row(picture)
        )

    def _row(self, picture: folder.Picture) -> rows.Row | None:
        """What is to be told of what was found."""
        book = picture.first.tree().get("book")
        if not isinstance(book, str):
            return None
        known = self._head.row
        flow = self.folder.detail(picture, lazy=True)
        return rows.of_flow(flow, book, known.birth if known is not None else None)

    def tell_row(self, picture: folder.Picture) -> rows.Row | None:
        """What the head is to tell of the flow, if it does not do so."""
        return self._head.row or self._row(picture)

    def look(self) -> folder.Picture:
        """All that is kept.

        :raises CorruptRecord: it is damaged.
        """
        picture = self.folder.look()
        if picture.unfinished:
            self.folder.tell_unfinished(picture)
        return picture

    def _close_journal(self) -> None:
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    # -- folding --------------------------------------------------------------------------------

    def is_long(self) -> bool:
        """Whether it is time to fold: so that folding costs a constant share of writing."""
        mark = self._head.mark
        if mark.length <= FOLD_AT:
            return False
        if self._folded is None:
            self._folded = files.size_of(self.folder.records(mark.generation))
        return mark.length > self._folded

    def fold(self, changes: Sequence[bytes] = (), picture: folder.Picture | None = None) -> None:
        """Write all that is kept, with these changes, into new records, and begin a new journal.

        It is done as a whole, or not at all.  Cost: that of all that is kept.

        :raises CorruptRecord: what is there is damaged.
        """
        picture = picture or self.look()
        found = contents.Contents([*picture.found, *map(lines.read, changes)])
        mark = head.Mark(picture.head.mark.generation + 1)
        path = self.folder.records(mark.generation)
        temporary = os.path.join(self.folder.path, f".records.{mark.generation}")
        first = lines.write("records", self.folder.key, mark.generation, 0, picture.first.tree())
        heading = lines.heading(picture.epoch, len(found))
        line = found.flow_line
        row = None if line is None else self._row(picture._replace(found=[line]))
        row = None if row is None else row.at(len(first) + len(heading), in_journal=False)
        del picture  # what does not count any more need not be held while the rest is written
        crashpoint("dir.before-fold")
        size = files.write_new(temporary, itertools.chain((first, heading), found.lines()))
        crashpoint("dir.after-fold-write")
        self._close_journal()  # so that what may be left over here is swept before the next turn
        files.rename(temporary, path)
        crashpoint("dir.after-fold-rename")
        files.sync_folder(self.folder.path)
        # Before the old files go: nothing else tells that they do not count.
        self.write_head(mark=mark, row=row, sync=True)
        crashpoint("dir.after-fold-mark")
        self._folded, self._suspect = size, False
        for other in self.folder.leftovers(mark):
            files.remove(other)
        crashpoint("dir.after-fold")
