"""A journal: lines that several processes append to one file, and all read in the same order.

What a line means follows from the lines before it, so whoever appended a line learns what it did by
reading up to it, and all agree.  Nobody waits for anybody: an append is one `write`, which the
kernel does not mix with others, and a process that dies or is frozen at any moment has appended its
lines or has not.  The rest of a line that was torn by a death ends where the next append begins:
with an empty line.

A journal that has grown is *sealed*: the first seal in it ends it, and what was appended after that
is void, and appended again to the next journal.  That one begins with what followed from the one
before.  Whoever reads the seal may make it, as all know the same: the first one to link it in its
place does.  The one with the highest number is the one in use; the one before stays until there are
two after it, so whoever makes the next one sees by it that he is not late.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Final

from wbengine.engines.worker_based.ledger.journal_rows import SEAL, Outcome, Table
from wbengine.transports import _files

__all__ = ["Journal"]

#: A journal is not sealed before it has so many bytes, and so many times those that are needed.
_LEAST: Final = 1024 * 1024
_GROWTH: Final = 2
_CHUNK: Final = 64 * 1024
#: Seconds between two lines in which a process tells the time.
_STAMP_EVERY: Final = 60.0
#: Seconds before the folder is read again, where what was seen in it may not be all.
_PAUSES: Final = (0.0, 0.001, 0.005)

_O_USE: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_O_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _after_fork() -> None:
    for journal in _journals:
        journal.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Journal:
    """The journal in a folder, and the `table` that follows from it.

    `lock` is to be held by whoever calls or looks at the table.  All raise OSError when the folder
    cannot be used.
    """

    def __init__(self, folder: str, temp: str, table: Table) -> None:
        self._folder = folder
        self._temp = temp
        self._table = table
        self._path = ""
        self._number = 0
        self._fd = -1
        self._inode = -1
        self._offset = 0
        self._sealed = False
        self._stamp_due = 0.0
        self.lock = threading.Lock()
        _journals.add(self)

    def forget(self) -> None:
        """In a forked child: the file is opened anew, for its position is shared with the parent's.

        No thread of the child holds the lock.
        """
        self.lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Free the file; it is opened again when it is used."""
        fd, self._fd, self._inode = self._fd, -1, -1
        self._sealed = False
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    # -- the lines

    def append(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Append lines, and read up to them: what each did.  Fewer: there is no space for more.

        :raises OSError: there is none at all, or the folder cannot be used.
        """
        now = time.monotonic()
        stamps = 0
        if now >= self._stamp_due:
            self._stamp_due = now + _STAMP_EVERY
            lines = (b"T %d;" % _files.clock(self._temp), *lines)
            stamps = 1
        text = b"\n%b\n" % b"\n".join(lines)
        while True:
            self._use()
            if self._offset > _LEAST and self._offset > _GROWTH * self._table.size:
                self._seal()
            done = os.write(self._fd, text)
            outcomes = self._read_own(text[:done])
            if outcomes is not None:
                return outcomes[stamps:]
            self._renew()

    def look(self) -> None:
        """Read what others appended."""
        self._use()
        while not self._read_all():
            self._renew()

    def read(self, start: int, size: int) -> bytes:
        """A part of the journal that was read before."""
        data = os.pread(self._fd, size, start)
        if len(data) != size:
            raise OSError(errno.EIO, "it was cut", self._path)
        return data

    def _read_own(self, own: bytes) -> list[Outcome] | None:
        """Apply what is before the lines that were written last, then those; None: they are void.

        What others appended after them is read another time.
        """
        before = os.lseek(self._fd, 0, os.SEEK_CUR) - len(own) - self._offset
        # A rest without an end is a torn line, which ours has ended.
        if before and self._apply(self.read(self._offset, before)) is None:
            return None
        outcomes = self._apply(own[: own.rfind(b"\n") + 1])
        assert outcomes is not None
        return outcomes

    def _read_all(self) -> bool:
        """Apply what is there; False: it is sealed."""
        rest = b""
        while True:
            more = os.pread(self._fd, _CHUNK, self._offset + len(rest))
            data = rest + more
            end = data.rfind(b"\n") + 1
            # What comes after the last end of a line may still be being written.
            if end and self._apply(data[:end]) is None:
                return False
            rest = data[end:]
            if len(more) < _CHUNK:
                return True

    def _apply(self, data: bytes) -> list[Outcome] | None:
        outcomes: list[Outcome] = []
        apply, at = self._table.apply, self._offset
        try:
            for line in data.split(b"\n"):
                if line:
                    if line == SEAL:
                        self._sealed = True
                        return None
                    outcomes.append(apply(line, at))
                at += len(line) + 1
        except BaseException:  # Ctrl-C, say: nothing is to be applied twice
            self.close()
            raise
        self._offset += len(data)
        return outcomes

    # -- from one to the next

    def _use(self) -> None:
        """See to it that the file is the one in use, and read to some place in it."""
        if self._sealed:
            self._renew()
        if not self._is_there():
            self._open()

    def _seal(self) -> None:
        with contextlib.suppress(OSError):  # no space: another time
            os.write(self._fd, b"\n%b\n" % SEAL)

    def _renew(self) -> None:
        """After a seal: go on in the next journal."""
        number = self._number + 1
        placed = self._is_there() and self._place(
            number, b"\n".join((*self._table.lines(self.read), b""))
        )
        if placed and not self._is_there():
            # This process was frozen, and that one was in use, and removed, long ago.
            _files.remove(f"{self._folder}/{number}")
        self._open()

    def _is_there(self) -> bool:
        """Whether the file that is open has its name still."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _place(self, number: int, data: bytes) -> bool:
        """Make a journal; False: somebody else did."""
        private = f"{self._temp}/{_files.unique()}"
        fd = os.open(private, _O_NEW, 0o600)
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.link(private, f"{self._folder}/{number}")
        except FileExistsError:
            return False
        finally:
            os.close(fd)
            _files.remove(private)
        return True

    def _open(self) -> None:
        """Open the newest.

        A folder may be read while journals come and go, so that none is seen that is in use.  What
        is left of a process that was frozen and died, see `_renew`, has none before it; so has one
        that others removed from.
        """
        for pause in itertools.chain(_PAUSES, itertools.repeat(None)):
            numbers = self._numbers()
            if numbers and self._take(numbers[-1]):
                # Its name may have come to mean another one since it was read: read again.
                numbers, newest = self._numbers(), self._number
                before = newest == 1 or newest - 1 in numbers or pause is None
                if before and numbers[-1:] == [newest]:
                    break
            elif not numbers and pause is None:
                self._place(1, b"")
            if pause is not None:
                time.sleep(pause)
        # In this order: one that is removed has none before it.
        for older in numbers:
            if older < newest - 1:
                try:
                    os.unlink(f"{self._folder}/{older}")
                except FileNotFoundError:
                    pass
                except OSError:
                    break

    def _numbers(self) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._folder) if name.isdecimal())
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            return []

    def _take(self, number: int) -> bool:
        """Use this one, from its beginning; False: it is gone."""
        path = f"{self._folder}/{number}"
        try:
            fd = os.open(path, _O_USE)
        except FileNotFoundError:
            return False
        self.close()
        self._fd, self._inode = fd, os.fstat(fd).st_ino
        self._path, self._number = path, number
        self._offset = 0
        self._table.clear()
        return True
