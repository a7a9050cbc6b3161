"""The files of log books: a book's own row, and which flows it has."""

from __future__ import annotations

import os
from typing import NamedTuple

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import models, trees
from wbengine.persistence.backends.directory import files, lines

__all__ = ["Books", "KeptBook"]


class KeptBook(NamedTuple):
    row: models.LogBook
    #: The uuids of its flows, in their order.
    flows: list[str]


class Books:
    """All books of a folder.  Who writes has to keep others from writing meanwhile."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, "books")

    def names(self) -> list[str]:
        """The files there are."""
        return [name for name in files.names_in(self.path) if not name.startswith(".")]

    def read(self, uuid: str) -> KeptBook:
        """:raises NotFound: it is not kept.
        :raises CorruptRecord: its file is damaged.
        """
        try:
            return self.read_file(lines.file_name(uuid))
        except FileNotFoundError:
            raise exceptions.NotFound(f"No log book {uuid} is kept in {self.path}") from None

    def read_file(self, name: str) -> KeptBook:
        """:raises FileNotFoundError: there is none.
        :raises CorruptRecord: it is damaged.
        """
        path = os.path.join(self.path, name)
        data = files.read(path)
        try:
            line = lines.read(data)
            if (line.kind, line.key) != (b"book", name.encode()):
                raise lines.Damaged("it is not the one line of a book")
            told = line.tree()
            return KeptBook(trees.record_of(trees.BOOK, told["row"]), list(told["flows"]))
        except (lines.Damaged, exceptions.InvalidFormat, LookupError, TypeError) as error:
            raise exceptions.CorruptRecord(
                f"{path} is damaged ({error}): restore it from a copy, or destroy the log book",
                path=path,
            ) from None

    def write(self, kept: KeptBook) -> None:
        """Create or replace a book."""
        name = lines.file_name(kept.row.uuid)
        tree = {"row": trees.tree_of(kept.row), "flows": kept.flows}
        temporary = self._unfinished(name)
        crashpoint("dir.before-book")
        files.write_new(temporary, [lines.write("book", name.encode(), tree=tree)])
        crashpoint("dir.after-book-write")
        files.rename(temporary, os.path.join(self.path, name))
        files.sync_folder(self.path)
        crashpoint("dir.after-book")

    def remove(self, name: str) -> None:
        """Forget a book, if it is there."""
        files.remove(os.path.join(self.path, name))
        self.remove_unfinished(name)
        files.sync_folder(self.path)

    def remove_unfinished(self, name: str) -> None:
        """Remove what a writer that died has left, if it has."""
        files.remove(self._unfinished(name))

    def _unfinished(self, name: str) -> str:
        return os.path.join(self.path, f".{name}")
