"""Books and flows come and go: what touches several files, done by one process at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import models
from wbengine.persistence.backends.directory import (
    aside,
    books,
    commands,
    contents,
    doing,
    files,
    folder,
    head,
    lines,
    rows,
    store,
)

__all__ = ["FOLDERS", "Library"]

FOLDERS: Final = ("books", "flows", "doing")


class Library:
    """Creates, changes and destroys books with their flows.

    A note of what is under way comes first: so whoever is next takes back, or finishes, what a
    process that died has left half done.
    """

    def __init__(self, of: store.Store, now: Callable[[], float]) -> None:
        self._store = of
        self._root = of.root
        self._now = now
        self.books = books.Books(of.root)

    def make_folders(self) -> None:
        """Make what is not there yet."""
        files.make_folders(self._root)
        for name in FOLDERS:
            files.make_folders(os.path.join(self._root, name))

    def tidy(self) -> None:
        """Take back, or finish, what dead processes left."""
        if files.names_in(os.path.join(self._root, "doing")):
            with self._alone():
                self._finish_abandoned()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        path = os.path.join(self._root, "lock")
        fd = files.open_at(path, os.O_RDWR | os.O_CREAT)
        try:
            if not files.lock(fd, path):
                raise exceptions.StorageFailure(f"{path} is locked by another process")
            yield
        finally:
            os.close(fd)

    # -- saving ---------------------------------------------------------------------------------

    def save(self, book: models.LogBook) -> None:
        """Create or update `book` with its flows."""
        self.make_folders()
        with files.all_there():
            while not self._save(book):
                pass

    def _save(self, book: models.LogBook) -> bool:
        """Whether nobody destroyed a flow meanwhile: then it is to be tried again."""
        fresh = [flow for flow in book if not self._store.folder_for(flow.uuid).is_there()]
        with doing.begin(self._root) as note:
            try:
                # Not awaited: a power cut leaves, at worst, a flow that no book knows.
                names = [lines.file_name(flow.uuid) for flow in fresh]
                note.tell(doing.SAVE, [lines.file_name(book.uuid)], names, sync=False)
                for number, flow in enumerate(fresh):
                    self._prepare(note.temporary(number), book, flow)
                with self._alone():
                    self._finish_abandoned()
                    kept = self._kept(book)
                    if not self._put_flows(book, note, fresh):
                        self._finish(note)
                        return False
                    self.books.write(kept)
            except BaseException:
                failures = exceptions.StorageFailure, FileNotFoundError
                with contextlib.suppress(*failures), self._alone():
                    self._finish(note)
                raise
            for number in range(len(fresh)):
                files.remove_tree(note.temporary(number))
            note.done()
        return True

    def _kept(self, book: models.LogBook) -> books.KeptBook:
        """What is to be kept of the book itself."""
        row = book.copy(retain_contents=False)
        try:
            kept = self.books.read(book.uuid)
        except exceptions.NotFound:
            return books.KeptBook(row, [flow.uuid for flow in book])
        except exceptions.CorruptRecord as error:
            aside.put_aside(self._root, error)
            raise
        known = dict.fromkeys([*kept.flows, *(flow.uuid for flow in book)])
        return books.KeptBook(kept.row.merge(row), list(known))

    def _prepare(self, path: str, book: models.LogBook, flow: models.FlowDetail) -> None:
        """Write a new flow where nobody looks for it."""
        key = lines.key_of(flow.uuid)
        files.make_folders(path)
        found = list(contents.lines_of(flow))
        first = lines.write("records", key, 1, 0, {"book": book.uuid})
        heading = lines.heading(0, len(found))
        files.write_new(os.path.join(path, "records.1"), [first, heading, *found])
        row = rows.of_flow(flow, book.uuid).at(len(first) + len(heading), in_journal=False)
        told = head.Head(head.Holder(), head.Mark(1), row)
        files.write_new(os.path.join(path, "head"), [told.raw(key)])
        files.sync_folder(path)
        crashpoint("dir.after-flow-write")

    def _put_flows(
        self, book: models.LogBook, note: doing.Note, fresh: Sequence[models.FlowDetail]
    ) -> bool:
        """Whether all flows of the book could be put, or left as they are."""
        temporaries = {flow.uuid: note.temporary(number) for number, flow in enumerate(fresh)}
        for flow in book:
            where = self._store.folder_for(flow.uuid)
            if where.is_there():
                self._merge(flow)
            elif flow.uuid in temporaries:
                crashpoint("dir.before-flow")
                files.rename(temporaries[flow.uuid], where.path)
                crashpoint("dir.after-flow")
            else:
                return False
        if fresh:
            files.sync_folder(os.path.join(self._root, "flows"))
        return True

    def _merge(self, flow: models.FlowDetail) -> None:
        with self._store.writing(flow.uuid) as kept:
            picture = kept.look()
            if kept.holder.runs(self._now()) or picture.epoch != flow.epoch:
                return
            row = kept.folder.detail(picture, lazy=True)
            row.merge(flow.copy(retain_contents=False))
            mine = contents.lines_of(flow)
            next(mine)
            kept.fold([contents.flow_line(row), *mine], picture)

    # -- destroying -----------------------------------------------------------------------------

    def destroy(self, book_uuid: str) -> None:
        """Forget a book with all that is in it.

        :raises NotFound: it is not kept.
        """
        name = lines.file_name(book_uuid)
        if name not in self.books.names():
            raise exceptions.NotFound(f"No log book {book_uuid} is kept in {self.books.path}")
        self.make_folders()
        with files.all_there(), self._alone():
            self._finish_abandoned()
            try:
                flows = [lines.file_name(uuid) for uuid in self.books.read(book_uuid).flows]
            except exceptions.CorruptRecord:
                flows = self._flows_of(book_uuid)
            self._destroy([name], flows)

    def destroy_flow(self, flow_uuid: str) -> None:
        """Forget a flow, and keep its book.

        :raises NotFound: it is not kept.
        """
        where = self._store.folder_for(flow_uuid)
        if not where.is_there():
            raise where.not_found()
        self.make_folders()
        with files.all_there(), self._alone():
            self._finish_abandoned()
            home = self._home(where)
            known = [] if home is None else [lines.file_name(home.row.uuid)]
            with doing.begin(self._root) as note:
                crashpoint("dir.before-flow-destroy")
                # As if it had never been saved to its end: it goes when its book has forgotten it.
                note.tell(doing.SAVE, known, [lines.file_name(flow_uuid)], sync=True)
                crashpoint("dir.after-flow-destroy-note")
                if home is not None:
                    left = [uuid for uuid in home.flows if uuid != flow_uuid]
                    self.books.write(books.KeptBook(home.row, left))
                crashpoint("dir.after-flow-forgotten")
                self._finish(note)
                crashpoint("dir.after-flow-destroy")

    def _home(self, where: folder.FlowFolder) -> books.KeptBook | None:
        """The book that a flow is in."""
        with contextlib.suppress(exceptions.StorageFailure, exceptions.NotFound):
            row = where.read_head().row
            kept = None if row is None else self.books.read(row.book)
            if kept is not None and where.uuid in kept.flows:
                return kept
        for name in self.books.names():
            with contextlib.suppress(FileNotFoundError):
                kept = self.books.read_file(name)
                if where.uuid in kept.flows:
                    return kept
        return None

    def clear(self) -> None:
        """Forget everything; copies of damaged files stay."""
        if not os.path.isdir(self._root):
            return
        self.make_folders()
        with files.all_there(), self._alone():
            self._finish_abandoned()
            self._destroy(self.books.names(), self._store.flow_names())

    def _destroy(self, names: list[str], flows: list[str]) -> None:
        with doing.begin(self._root) as note:
            crashpoint("dir.before-destroy")
            note.tell(doing.DESTROY, names, flows, sync=True)
            crashpoint("dir.after-destroy-note")
            self._finish(note)
            crashpoint("dir.after-destroy")

    def _flows_of(self, book_uuid: str) -> list[str]:
        """The flows that were made for a book whose own file cannot be read."""
        found = []
        for name in self._store.flow_names():
            with contextlib.suppress(exceptions.StorageFailure, exceptions.NotFound):
                if self._store.folder_for(name).look().first.tree().get("book") == book_uuid:
                    found.append(name)
        return found

    # -- after a crash --------------------------------------------------------------------------

    def _finish_abandoned(self) -> None:
        for note in doing.abandoned(self._root):
            self._finish(note)

    def _finish(self, note: doing.Note) -> None:
        """Finish what was to be destroyed; take back flows of which no book knows."""
        known: set[str] = set()
        for book in note.books:
            if note.kind == doing.DESTROY:
                self.books.remove(book)
                crashpoint("dir.after-book-removed")
            else:
                known.update(self._known_to(book, note))
                self.books.remove_unfinished(book)
        for number, name in enumerate(note.flows):
            temporary = note.temporary(number)
            files.remove_tree(temporary)
            if name not in known:
                self._take_away(name, temporary)
                commands.forget(self._root, name)
        note.done()

    def _known_to(self, name: str, note: doing.Note) -> list[str]:
        """The folders of a book's flows."""
        try:
            return [lines.file_name(uuid) for uuid in self.books.read_file(name).flows]
        except FileNotFoundError:
            return []
        except exceptions.CorruptRecord:
            return note.flows  # perhaps it knows them

    def _take_away(self, name: str, temporary: str) -> None:
        """Remove a flow; who runs it has lost it."""
        where = self._store.folder_for(name)
        try:
            fd = files.open_at(where.head_path, os.O_RDWR)
        except FileNotFoundError:
            fd = -1
        try:
            if fd >= 0 and not files.lock(fd, where.head_path):
                raise exceptions.StorageFailure(f"{where.head_path} is locked by another process")
            with contextlib.suppress(FileNotFoundError):
                files.rename(where.path, temporary)
        finally:
            if fd >= 0:
                os.close(fd)
        crashpoint("dir.after-flow-removed")
        files.remove_tree(temporary)
