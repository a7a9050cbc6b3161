"""What the lines of a journal say: rows of a ledger, as they follow from one after the other.

    O id epoch;                         open, unless there is a row
    C id epoch holder;                  claim
    F id epoch holder size result;      finish, with a result that has no line ends
    I id epoch holder file;             a result that is too large for a line is about to be written
    G id epoch holder file;             finish with that
    B id epoch holder;                  release
    N id epoch;                         reopen
    R id epoch; (-: any)                revoke
    D id;                               drop
    X id epoch state;                   sweep, if it is still that
    H holder;                           forget who holds nothing
    T seconds;                          the time of what follows, give or take a minute
    S id epoch state holder changed files size result;      a row of the journal before this one

A line that names another state than the row's has no effect.  A line that is not whole, as its
writer was killed, lacks the end of its last word, and has none either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["NONE", "SEAL", "Entry", "Outcome", "Table"]

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
