"""A ledger in a folder, for all processes of one host.

    journal/<number>                 what was done to rows, one line after the other (`journal`)
    results/<id>.<epoch>.<unique>    a result that is too large for a line
    beats/<holder>                   touched when the holder beats
    id                               the ledger's digest

A step is a line that names the state it expects, appended by one `write`: where the line stands
among those of other processes decides who wins.  Nobody locks anything, so nobody waits for a
process that is frozen.  Several steps that are asked for together are one `write`.

A large result is announced, then written under a name of its own, then made the result of its row:
so whoever drops the row finds it, also when its writer was killed.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.engines.worker_based.ledger.journal import NONE, Entry, Journal, Outcome, Table
from wbengine.transports import _files
from wbengine.transports._envelope import row_of
from wbengine.transports.broker import Taken

LOG = logging.getLogger(__name__)

#: Larger results are files of their own: every process reads the journal.
_INLINE: Final = 4096
#: Clocks that go by so many seconds differently between two looks were set.
_JUMP: Final = 2.0
_RESULT_LIMIT: Final = 1 << 30
_STATES: Final[dict[bytes, base.State]] = {
    b"o": base.ROW_OPEN, b"c": base.ROW_CLAIMED, b"d": base.ROW_DONE,
}  # fmt: skip
_FOLDERS: Final = ("journal", "results", "beats", "spare", "temp")

#: Seconds within which a worker that claims says that it lives.
_BEAT_EVERY: Final = 0.2


class DirectoryLedger(base.Ledger):
    """Rows in a journal in one folder, made (mode 0700) when it is not there."""

    def __init__(self, folder: str, result_ttl: float | None = base.STALE_AFTER) -> None:
        try:
            self._root = _files.make_folder(folder)
            for name in _FOLDERS:
                _files.make_folder(f"{self._root}/{name}", private=True)
            self._digest = self._identity()
        except (OSError, exceptions.TransportFailure) as exc:
            raise exceptions.LedgerFailure(f"ledger {folder} cannot be used: {exc}") from exc
        self._results = f"{self._root}/results"
        self._beats = f"{self._root}/beats"
        temp = f"{self._root}/temp"
        self._spares = _files.spares(f"{self._root}/spare", temp)
        self._closed = False
        self._known_holders: set[str] = set()
        self._table = Table(self._forgotten)
        self._journal = Journal(f"{self._root}/journal", temp, self._table)
        # Between the clock of the files and our monotonic one, and when it changed last.
        self._offset: float | None = None
        self._jumped = -math.inf
        _files.sweep_temp(temp)
        self.sweep_when_due(result_ttl)

    def __str__(self) -> str:
        return self._root

    def _is_sweep_due(self) -> bool:
        return _files.due(f"{self._root}/swept", base.SWEEP_EVERY)

    def _identity(self) -> str:
        path = f"{self._root}/id"
        if not os.path.exists(path):
            private = f"{self._root}/temp/{_files.unique()}"
            with open(private, "x", encoding="ascii") as file:
                file.write(f"dir-{os.urandom(16).hex()}")
            try:
                os.link(private, path)  # the first one wins
            except FileExistsError:
                pass
            os.unlink(private)
        return _files.read(path, 100).decode("ascii")

    @property
    def digest(self) -> str:
        return self._digest

    # -- the engine

    def _open(self, rows: Sequence[tuple[str, int]]) -> None:
        self._do([b"O %b %d;" % (id.encode(), epoch) for id, epoch in rows])

    def _try_reopen(self, id: str, epoch: int) -> bool:
        return bool(self._do([b"N %b %d;" % (id.encode(), epoch)])[0])

    def _revoke(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]:
        lines = [
            b"R %b %b;" % (id.encode(), NONE if epoch is None else b"%d" % epoch)
            for id, epoch in rows
        ]
        try:
            return [*self._remove(lines)]
        except exceptions.LedgerFailure as error:
            return [error] * len(rows)

    def _drop(self, ids: Sequence[str]) -> None:
        if not all(self._remove([b"D %b;" % id.encode() for id in ids])):
            # Whoever dropped it before may have been killed before it was done with that.
            wanted = set(ids)
            with self._failures():
                for name in os.listdir(self._results):
                    if _id_of(name) in wanted and self.state(_id_of(name)) is None:
                        _files.remove(f"{self._results}/{name}")

    def _remove(self, lines: Sequence[bytes]) -> list[bool]:
        """Do these steps, each of which may remove a row: whether it did."""
        outcomes = self._do(lines)
        with self._failures():
            for gone in outcomes:
                for name in gone.files if isinstance(gone, Entry) else ():
                    path = f"{self._results}/{name.decode()}"
                    with suppress(FileNotFoundError):
                        self._spares.give(path, os.stat(path).st_size)
        return [bool(gone) for gone in outcomes]

    # -- workers

    def _claim(self, id: str, epoch: int, holder: str) -> base.Claim:
        [told] = self.claim_many(holder, ((id, epoch),))
        if isinstance(told, exceptions.LedgerFailure):
            raise told
        return told

    def claim_many(
        self, holder: str, rows: Sequence[tuple[str, int]]
    ) -> list[base.Claim | exceptions.LedgerFailure]:
        """`claim` each of these (id, epoch): what it returned, or raised."""
        lines = [b"C %b %d %b;" % (id.encode(), epoch, holder.encode()) for id, epoch in rows]
        if holder not in self._known_holders:
            self.renew(holder)
        with self._failures(), self._journal.lock:
            outcomes = self._journal.append(lines)
        if holder not in self._known_holders:  # forgotten after a long silence
            with suppress(exceptions.LedgerFailure):  # its next beat will
                self.renew(holder)
        told = [
            base.Claim(base.GRANTED, epoch, None, holder) if done else self._refusal(id, epoch)
            for (id, epoch), done in zip(rows, outcomes, strict=False)
        ]
        return told + [self._full()] * (len(rows) - len(told))

    def _refusal(self, id: str, epoch: int) -> base.Claim | exceptions.LedgerFailure:
        """By the row as it was, or what became of it since."""
        try:
            return base.refusal(self.state(id), epoch) or base.Claim(base.MISSING, epoch)
        except exceptions.LedgerFailure as error:
            return error

    def claims(self, place: object, holder: str) -> Claims | None:
        if not isinstance(place, tuple):  # no folders
            return None
        return Claims(self, base.check_holder(holder))

    def _renew(self, holder: str) -> None:
        path = f"{self._beats}/{holder}"
        with self._failures():
            try:
                os.utime(path)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._known_holders.add(holder)

    def _forgotten(self, holder: bytes | None) -> None:
        if holder is None:
            self._known_holders.clear()
        else:
            self._known_holders.discard(holder.decode())

    def _silence(self, holder: str) -> float | None:
        try:
            changed = os.stat(f"{self._beats}/{holder}").st_mtime
        except FileNotFoundError:
            return None
        return min(max(0.0, self._now() - changed), time.monotonic() - self._jumped)

    def _now(self) -> float:
        """The time by the clock of the files; a jump of that is noticed.

        Then beats from before it tell nothing of silence: who lives has time to send another one.
        """
        now, monotonic = _files.clock(self._root), time.monotonic()
        offset = now - monotonic
        if self._offset is not None and abs(offset - self._offset) > _JUMP:
            LOG.warning("the clock of ledger %s jumped", self._root)
            self._jumped = monotonic
        self._offset = offset
        return now

    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]:
        by = holder.encode()
        told: list[bool | exceptions.LedgerFailure] = []
        try:
            files = self._write_results(by, ended)
            lines = [
                b"G %b %d %b %b;" % (id.encode(), epoch, by, files[number])
                if number in files
                else b"F %b %d %b %d %b;" % (id.encode(), epoch, by, len(result), result)
                for number, (id, epoch, result) in enumerate(ended)
            ]
            with self._failures():
                with self._journal.lock:
                    told += [bool(done) for done in self._journal.append(lines)]
                for number, name in files.items():
                    if number < len(told) and not told[number]:
                        _files.remove(f"{self._results}/{name.decode()}")
            error = self._full()
        except exceptions.LedgerFailure as failure:
            error = failure
        return told + [error] * (len(ended) - len(told))

    def _write_results(
        self, by: bytes, ended: Sequence[tuple[str, int, bytes]]
    ) -> dict[int, bytes]:
        """Write what is too large for a line; the names by their place in `ended`."""
        files = {
            number: b"%b.%d.%b" % (id.encode(), epoch, _files.unique().encode())
            for number, (id, epoch, result) in enumerate(ended)
            if len(result) > _INLINE or b"\n" in result
        }
        if not files:
            return files
        lines = []
        for number, name in files.items():
            id, epoch, _ = ended[number]
            lines.append(b"I %b %d %b %b;" % (id.encode(), epoch, by, name))
        with self._failures():
            for (number, name), good in zip(files.items(), self._do(lines), strict=True):
                if good:
                    self._spares.place(ended[number][2], f"{self._results}/{name.decode()}")
        return files

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        return bool(self._do([b"B %b %d %b;" % (id.encode(), epoch, holder.encode())])[0])

    # -- looking

    def _states(self, ids: Sequence[str]) -> list[base.Row | exceptions.LedgerFailure | None]:
        return base.each_of(self._state, [(id,) for id in ids])

    def _state(self, id: str) -> base.Row | None:
        key = id.encode()
        with self._failures():
            while True:
                with self._journal.lock:
                    self._journal.look()
                    entry = self._table.rows.get(key)
                    row = self._row(id, entry)
                    if entry is None or entry.state != b"d" or entry.start >= 0:
                        return row
                    files = entry.files
                lost, result = "", b""
                try:
                    result = _files.read(f"{self._results}/{files[-1].decode()}", _RESULT_LIMIT)
                except (FileNotFoundError, _files.Unreadable) as exc:
                    lost = str(exc)
                # What was read is its result unless it was dropped meanwhile.
                with self._journal.lock:
                    self._journal.look()
                    entry = self._table.rows.get(key)
                    if entry is None or entry.files != files:
                        continue
                if lost:
                    raise exceptions.LedgerFailure(f"the result of {id} is lost: {lost}")
                assert row is not None
                return base.Row(id, row.epoch, base.ROW_DONE, None, result)

    def ids(self) -> set[str]:
        with self._failures():
            with self._journal.lock:
                self._journal.look()
                found = {id.decode() for id in self._table.rows}
            # And what is left of those that somebody was killed while dropping.
            return found.union(map(_id_of, os.listdir(self._results)))

    def list_rows(self, limit: int = 100, after: str | None = None) -> base.Page:
        with self._failures(), self._journal.lock:
            self._journal.look()
            rows = self._table.rows
            ids, then = base.page_of((id.decode() for id in rows), limit, after)
            now = _files.clock(self._root)
            return base.Page([_listed(id, rows[id.encode()], now) for id in ids], then)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        before = _files.clock(self._root) - older_than
        states = b"d" if only_done else b"dco"
        with self._failures():
            with self._journal.lock:
                self._journal.look()
                old = [
                    (id, row.epoch, row.state, row.holder)
                    for id, row in self._table.rows.items()
                    if row.changed <= before and row.state in states
                ]
            lines = [
                b"X %b %d %b;" % (id, epoch, state)
                for id, epoch, state, holder in old
                if holder is None or self._is_silent(holder.decode(), older_than)
            ]
            count = sum(self._remove(lines)) if lines else 0
            if not only_done:
                self._forget(
                    holder
                    for holder in os.listdir(self._beats)
                    if self._is_silent(holder, min(older_than, base.SWEEP_EVERY))
                )
            # What an interrupted call left: results without a row.
            for name in _files.older(self._results, before):
                if self.state(_id_of(name)) is None:
                    _files.remove(f"{self._results}/{name}")
            _files.sweep_temp(f"{self._root}/temp")
        return count

    def _is_silent(self, holder: str, seconds: float) -> bool:
        silence = self.silence(holder)
        return silence is None or silence >= seconds

    def _forget(self, holders: Iterable[str]) -> None:
        """Remove the beats of those who hold nothing."""
        names = list(holders)
        if names:
            outcomes = self._do([b"H %b;" % name.encode() for name in names])
            for name, forgotten in zip(names, outcomes, strict=True):
                if forgotten:
                    _files.remove(f"{self._beats}/{name}")

    def close(self) -> None:
        try:
            self._forget(tuple(self._known_holders))
        except (OSError, exceptions.LedgerFailure):  # swept one day
            pass
        self._known_holders.clear()
        with self._journal.lock:
            self._journal.close()
        if not self._closed:
            self._closed = True
            self._spares.release()

    # -- below

    def _do(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Append these lines: what each did."""
        with self._failures(), self._journal.lock:
            outcomes = self._journal.append(lines)
        if len(outcomes) < len(lines):
            raise self._full()
        return outcomes

    def _full(self) -> exceptions.LedgerFailure:
        return exceptions.LedgerFailure(f"ledger {self._root}: {os.strerror(errno.ENOSPC)}")

    def _row(self, id: str, entry: Entry | None) -> base.Row | None:
        """The row as it is in the journal, the lock of which is held."""
        if entry is None:
            return None
        result = None
        if entry.start >= 0:
            result = self._journal.read(entry.start, entry.size)
        holder = None if entry.holder is None else entry.holder.decode()
        return base.Row(id, entry.epoch, _STATES[entry.state], holder, result)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise exceptions.LedgerFailure(
                f"ledger {self._root}: {exc.strerror or exc} ({exc.filename})"
            ) from exc


class Claims:
    """For whom our folder transport claims requests as it takes them, and ends them."""

    def __init__(self, ledger: DirectoryLedger, holder: str) -> None:
        self._ledger = ledger
        self._holder = holder
        self._renew_at = -math.inf
        self.digest = ledger.digest

    def take(self, labelled: Sequence[tuple[Taken, bytes]], began: float) -> None:
        """Claim what depends on rows of the ledger, by the labels, in one step that began then.

        Of what has no claim afterwards nobody knows: whoever runs it has to ask.
        """
        rows: list[tuple[str, int]] = []
        claimed: list[Taken] = []
        for taken, text in labelled:
            row = row_of(text, self.digest)
            if row is not None:
                taken.token = (*taken.token, row)
                claimed.append(taken)
                rows.append(row)
        if not rows:
            return
        try:
            now = time.monotonic()
            # After a long rest its last beat is old: who looks at a row would take it for dead.
            if now >= self._renew_at:
                self._ledger.renew(self._holder)
                self._renew_at = now + _BEAT_EVERY
            told = self._ledger.claim_many(self._holder, rows)
        except exceptions.LedgerFailure as error:
            LOG.warning("%d requests cannot be claimed yet: %s", len(rows), error)
            return
        for taken, claim in zip(claimed, told, strict=False):
            if not isinstance(claim, exceptions.LedgerFailure):
                taken.claim, taken.at = claim, began

    def give_back(self, taken: Taken) -> None:
        """What was claimed was given to nobody: whoever gets it may claim it."""
        claim, taken.claim = taken.claim, None
        if claim is None or not claim.granted:
            return
        id, epoch = taken.token[-1]
        try:
            self._ledger.release(id, epoch, self._holder)
        except exceptions.LedgerFailure as error:
            LOG.warning("request %s cannot be given back: %s", id, error)

    def end(self, rows: Sequence[tuple[str, int, bytes]]) -> list[bool]:
        """Store each of these (id, epoch, result); whether its engine is to be answered.

        Whoever removed a row has no use for the answer; if it was lost, its engine may wait for it.
        """
        told = []
        for (id, epoch, _), stored in zip(
            rows, self._ledger.finish_many(self._holder, rows), strict=True
        ):
            if isinstance(stored, exceptions.LedgerFailure):  # it is answered all the same
                LOG.warning("the answer to request %s cannot be stored: %s", id, stored)
            told.append(bool(stored) or not self._is_fenced(id, epoch))
        return told

    def _is_fenced(self, id: str, epoch: int) -> bool:
        try:
            row = self._ledger.state(id)
        except exceptions.LedgerFailure:
            return False  # nobody knows, and the engine does
        return row is not None and (row.epoch != epoch or row.state != base.ROW_DONE)


def _listed(id: str, row: Entry, now: float) -> base.Listed:
    holder = None if row.holder is None else row.holder.decode()
    return base.Listed(id, row.epoch, _STATES[row.state], holder, max(0.0, now - row.changed))


def _id_of(name: str) -> str:
    """Of the file of a result."""
    return name.rsplit(".", 2)[0]
