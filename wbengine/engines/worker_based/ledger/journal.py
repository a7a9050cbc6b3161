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
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wbengine.transports import _files

#: The last line of a journal.
SEAL: Final = b"Z;"

#: No holder, no epoch, no file.
NONE: Final = b"-"
#: What a row takes in a journal at most, besides its result and names of files.
_ROW_SIZE: Final = 300


class Entry:
    """A row, in `state` `o` (open), `c` (claimed) or `d` (done).

    The result of one that is done is in the journal, `size` bytes from `start` on, or (`start` -1)
    in the last one of `files`; the others may hold results that were never used.
    """

    __slots__ = ("changed", "epoch", "files", "holder", "size", "start", "state")

    def __init__(self, epoch: int, changed: int) -> None:
        self.epoch = epoch
        self.changed = changed
        self.state = b"o"
        self.holder: bytes | None = None
        self.start = -1
        self.size = 0
        self.files: tuple[bytes, ...] = ()

    def move(self, state: bytes, holder: bytes | None, changed: int) -> None:
        self.state, self.holder, self.changed = state, holder, changed


#: What a line did: whether it had an effect, or the row that it removed.
Outcome = bool | Entry


class Table:
    """The rows.  `forgotten(holder)` is called when one is; None: some may have been."""

    def __init__(self, forgotten: Callable[[bytes | None], None]) -> None:
        self._forgotten = forgotten
        self.rows: dict[bytes, Entry] = {}
        self._now = 0
        self._more = 0

    def clear(self) -> None:
        """Before another journal is read."""
        self._forgotten(None)
        self.rows.clear()
        self._now = 0
        self._more = 0

    @property
    def size(self) -> int:
        """How many bytes of a journal say what there is, at most."""
        return self._more + _ROW_SIZE * len(self.rows)

    def apply(self, line: bytes, at: int) -> Outcome:
        """What follows from a line that begins at `at`."""
        try:
            return self._apply(line, at)
        except (LookupError, TypeError, ValueError):
            return False  # torn

    def _apply(self, line: bytes, at: int) -> Outcome:
        if line[-1:] != b";":
            return False
        kind = line[:1]
        if kind == b"F":
            return self._finish(line, at)
        if kind == b"S":
            return self._restore(line, at)
        _, *words = line[:-1].split(b" ")
        step: Callable[..., Outcome] = _STEPS[kind]
        return step(self, *words)

    def _open(self, id: bytes, epoch: bytes) -> Outcome:
        if id in self.rows:
            return False
        self.rows[id] = Entry(int(epoch), self._now)
        return True

    def _claim(self, id: bytes, epoch: bytes, holder: bytes) -> Outcome:
        row = self.rows.get(id)
        if row is None or row.state != b"o" or row.epoch != int(epoch):
            return False
        row.move(b"c", holder, self._now)
        return True

    def _release(self, id: bytes, epoch: bytes, holder: bytes) -> Outcome:
        row = self._held(id, epoch, holder)
        if row is not None:
            row.move(b"o", None, self._now)
        return row is not None

    def _announce(self, id: bytes, epoch: bytes, holder: bytes, file: bytes) -> Outcome:
        row = self._held(id, epoch, holder)
        if row is not None:
            row.files = (*row.files, file)
            self._more += len(file) + 1
        return row is not None

    def _finish_file(self, id: bytes, epoch: bytes, holder: bytes, file: bytes) -> Outcome:
        row = self._held(id, epoch, holder)
        if row is None or file not in row.files:
            return False
        row.files = (*(known for known in row.files if known != file), file)
        row.move(b"d", None, self._now)
        return True

    def _reopen(self, id: bytes, epoch: bytes) -> Outcome:
        row = self.rows.get(id)
        if row is None or row.state == b"d" or row.epoch >= int(epoch):
            return False
        row.epoch = int(epoch)
        row.move(b"o", None, self._now)
        return True

    def _revoke(self, id: bytes, epoch: bytes) -> Outcome:
        row = self.rows.get(id)
        if row is None or row.state != b"o" or (epoch != NONE and row.epoch > int(epoch)):
            return False
        return self._drop(id)

    def _sweep(self, id: bytes, epoch: bytes, state: bytes) -> Outcome:
        row = self.rows.get(id)
        if row is None or row.state != state or row.epoch != int(epoch):
            return False
        return self._drop(id)

    def _drop(self, id: bytes) -> Outcome:
        row = self.rows.pop(id, None)
        if row is None:
            return False
        self._more -= row.size + sum(len(file) + 1 for file in row.files)
        return row

    def _forget(self, holder: bytes) -> Outcome:
        if any(row.holder == holder for row in self.rows.values()):
            return False
        self._forgotten(holder)
        return True

    def _date(self, seconds: bytes) -> Outcome:
        self._now = int(seconds)
        return True

    def _held(self, id: bytes, epoch: bytes, holder: bytes) -> Entry | None:
        row = self.rows.get(id)
        if row is None or row.holder != holder or row.epoch != int(epoch):
            return None
        return row

    def _finish(self, line: bytes, at: int) -> bool:
        _, id, epoch, holder, size, result = line.split(b" ", 5)
        length = len(result) - 1
        if length != int(size):
            return False
        row = self._held(id, epoch, holder)
        if row is None:
            return False
        row.move(b"d", None, self._now)
        self._keep(row, at + len(line) - length - 1, length)
        return True

    def _keep(self, row: Entry, start: int, size: int) -> None:
        row.start, row.size = start, size
        self._more += size

    # -- from one journal to the next

    def lines(self, read: Callable[[int, int], bytes]) -> Iterator[bytes]:
        """What makes the same rows again; `read(start, size)` gives a result."""
        yield b"T %d;" % self._now
        for id, row in self.rows.items():
            here = row.start >= 0
            yield b"S %b %d %b %b %d %b %d %b;" % (
                id,
                row.epoch,
                row.state,
                row.holder or NONE,
                row.changed,
                b",".join(row.files) or NONE,
                row.size if here else -1,
                read(row.start, row.size) if here else b"",
            )

    def _restore(self, line: bytes, at: int) -> bool:
        _, id, epoch, state, holder, changed, files, size, result = line.split(b" ", 8)
        row = self.rows[id] = Entry(int(epoch), int(changed))
        row.state = state
        row.holder = holder if state == b"c" else None
        if files != NONE:
            row.files = tuple(files.split(b","))
            self._more += len(files) + 1
        if int(size) >= 0:
            self._keep(row, at + len(line) - len(result), int(size))
        return True


#: By the first letter of their lines.
_STEPS: Final[dict[bytes, Callable[..., Outcome]]] = {
    b"O": Table._open,
    b"C": Table._claim,
    b"B": Table._release,
    b"I": Table._announce,
    b"G": Table._finish_file,
    b"N": Table._reopen,
    b"R": Table._revoke,
    b"D": Table._drop,
    b"X": Table._sweep,
    b"H": Table._forget,
    b"T": Table._date,
}


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
