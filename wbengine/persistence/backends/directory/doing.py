"""Notes of what is under way and touches several folders, for whoever comes after a crash.

A note is a file that its writer keeps locked: one that can be locked is of a dead process.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Final

from wbengine.persistence.backends.directory import files, lines

__all__ = ["DESTROY", "Note", "SAVE", "abandoned", "begin"]

SAVE: Final = "save"
DESTROY: Final = "destroy"


class Note:
    """One note: `kind` of what is done, to which files of books and folders of flows."""

    __slots__ = ("_fd", "_path", "_root", "books", "flows", "kind")

    def __init__(self, root: str, path: str, fd: int) -> None:
        self._root = root
        self._path = path
        self._fd = fd
        self.kind = ""
        self.books: list[str] = []
        self.flows: list[str] = []

    def tell(self, kind: str, books: list[str], flows: list[str], *, sync: bool) -> None:
        """Say what is about to be done; `sync`: also to who comes after the end of the host."""
        self.kind, self.books, self.flows = kind, books, flows
        told = lines.write("note", tree={"kind": kind, "books": books, "flows": flows})
        files.append(self._fd, told, self._path)
        if sync:
            files.sync(self._fd, self._path)
            files.sync_folder(files.folder_of(self._path))

    def recall(self) -> None:
        """Find out what it says; if it is not whole, nothing was begun."""
        with contextlib.suppress(lines.Damaged, LookupError, TypeError):
            told = lines.read(files.read(self._path)).tree()
            self.kind, self.books, self.flows = told["kind"], told["books"], told["flows"]

    def temporary(self, number: int) -> str:
        """Where the flow of that number is while it is not there yet, or no more."""
        return os.path.join(self._root, "flows", f".{os.path.basename(self._path)}.{number}")

    def done(self) -> None:
        """Nothing of it is left to do."""
        files.remove(self._path)

    def close(self) -> None:
        """Leave the rest to others, unless it is done."""
        os.close(self._fd)


@contextlib.contextmanager
def begin(root: str) -> Iterator[Note]:
    """An empty note of this process's."""
    path = os.path.join(root, "doing", uuid.uuid4().hex)
    while True:
        fd = files.open_at(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        files.lock(fd, path)
        if files.same(fd, path):
            break
        os.close(fd)  # somebody took it for abandoned before it was locked
    note = Note(root, path, fd)
    try:
        yield note
    finally:
        note.close()


def abandoned(root: str) -> Iterator[Note]:
    """The notes of dead processes."""
    folder = os.path.join(root, "doing")
    for name in files.names_in(folder):
        path = os.path.join(folder, name)
        try:
            fd = files.open_at(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        note = Note(root, path, fd)
        try:
            if files.lock(fd, path, patience=0.0) and files.same(fd, path):
                note.recall()
                yield note
        finally:
            note.close()
