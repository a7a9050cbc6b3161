"""A ledger in a folder, for all processes of one host.

A row is an empty file, its *token*, that changes state by being renamed:

    open/<id>.<epoch>   ->   held/<holder>/<id>.<epoch>   ->   done/<id>.<epoch>

A claim is one rename: the epoch is in the name, so exactly one claimer of exactly this epoch wins.
A result is complete under `results/<id>.<epoch>` before the token moves to `done`, and `reopen`
moves the same token back to `open`, under its new epoch: whoever renames it first wins.  Nothing
is ever written into a file that another process may rename or recycle.

The calls of the engine, and those that must tell why a claim was not granted, look at several
names; they exclude each other by a lock per part of the ids.  A token then only moves forward, so
looking in the order open, held, done finds it.  `epochs/<id>` notes the epoch of a row that is not
at the first.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wbengine import _names, exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.transports import _files

LOG = logging.getLogger(__name__)

#: Rows at this epoch need no note of it.
_FIRST: Final = 1
_LOCKS: Final = 16
_LOCK_PATIENCE: Final = 5.0
#: Clocks that go by so many seconds differently between two looks were set.
_JUMP: Final = 2.0
_RESULT_LIMIT: Final = 1 << 30
_FOLDERS: Final = (
    "open", "held", "done", "results", "epochs", "beats", "locks", "spare", "temp",
)  # fmt: skip


class DirectoryLedger(base.Ledger):
    """Rows as files below one folder, made (mode 0700) when it is not there."""

    def __init__(self, folder: str, result_ttl: float | None = base.STALE_AFTER) -> None:
        try:
            self._root = _files.make_folder(folder)
            for name in _FOLDERS:
                os.makedirs(f"{self._root}/{name}", mode=0o700, exist_ok=True)
            self._digest = self._identity()
        except (OSError, exceptions.TransportFailure) as exc:
            raise exceptions.LedgerFailure(f"ledger {folder} cannot be used: {exc}") from exc
        self._open = f"{self._root}/open"
        self._held = f"{self._root}/held"
        self._done = f"{self._root}/done"
        self._results = f"{self._root}/results"
        self._epochs = f"{self._root}/epochs"
        temp = f"{self._root}/temp"
        self._spares = _files.Spares(f"{self._root}/spare", temp)
        self._beats = f"{self._root}/beats"
        self._locks = tuple(_Lock(f"{self._root}/locks/{n}") for n in range(_LOCKS))
        self._known_holders: set[str] = set()
        # Between the clock of the files and our monotonic one, and when it changed last.
        self._offset: float | None = None
        self._jumped = -math.inf
        _files.sweep_temp(temp)
        self._sweep_stale(result_ttl)

    def _sweep_stale(self, result_ttl: float | None = base.STALE_AFTER) -> None:
        try:
            if _files.due(f"{self._root}/swept", base.SWEEP_EVERY):
                self.sweep_stale(result_ttl)
        except (OSError, ValueError, exceptions.LedgerFailure) as exc:  # nobody needs it today
            LOG.warning("ledger %s cannot be swept: %s", self._root, exc)

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

    # -- workers

    def claim(self, id: str, epoch: int, holder: str) -> base.Claim:
        with self._failures():
            if holder not in self._known_holders:
                self._admit(holder)
            name = f"{_label(id)}.{int(epoch)}"
            while True:
                if self._rename(f"{self._open}/{name}", f"{self._held}/{holder}/{name}"):
                    return base.Claim(base.GRANTED, epoch, None, holder)
                with self._locked(id):
                    refused = base.refusal(self._find(id), epoch)
                if refused is not None:
                    return refused
                # It came after our rename, or our own folder was swept after a long silence.
                self._admit(holder)

    def renew(self, holder: str) -> None:
        path = f"{self._beats}/{_label(holder, 'holder')}"
        with self._failures():
            try:
                os.utime(path)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _admit(self, holder: str) -> None:
        self.renew(holder)
        os.makedirs(f"{self._held}/{holder}", mode=0o700, exist_ok=True)
        self._known_holders.add(holder)

    def silence(self, holder: str) -> float | None:
        try:
            changed = os.stat(f"{self._beats}/{_label(holder, 'holder')}").st_mtime
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

    def finish(self, id: str, epoch: int, holder: str, result: bytes) -> bool:
        name = f"{_label(id)}.{int(epoch)}"
        token = f"{self._held}/{_label(holder, 'holder')}/{name}"
        with self._failures():
            if not os.path.exists(token):
                return False
            # Only the one claimer of this epoch ever writes here.
            self._spares.place(result, f"{self._results}/{name}")
            if self._rename(token, f"{self._done}/{name}"):
                return True
            _files.remove(f"{self._results}/{name}")
            return False

    def release(self, id: str, epoch: int, holder: str) -> bool:
        name = f"{_label(id)}.{int(epoch)}"
        # Locked, as it moves a token back: who looks for it would miss it.
        with self._failures(), self._locked(id):
            held = f"{self._held}/{_label(holder, 'holder')}/{name}"
            return self._rename(held, f"{self._open}/{name}")

    # -- the engine

    def open(self, id: str, epoch: int) -> None:
        with self._failures(), self._locked(id):
            if self._find(id) is None:
                if epoch != _FIRST:
                    self._note(id, epoch)
                self._spares.move(f"{self._open}/{id}.{int(epoch)}")

    def reopen(self, id: str, epoch: int) -> bytes | None:
        with self._failures(), self._locked(id):
            while True:
                row = self._find(id)
                if row is None:
                    raise exceptions.NotFound(f"request {id} has no row in ledger {self._root}")
                if row.state == base.ROW_DONE:
                    return row.result
                if row.epoch >= epoch:
                    return None
                folder = self._open if row.holder is None else f"{self._held}/{row.holder}"
                # Both, so that the row is found should we die before it moved.
                self._note(id, epoch, row.epoch)
                if self._rename(f"{folder}/{id}.{row.epoch}", f"{self._open}/{id}.{int(epoch)}"):
                    return None
                # It was claimed or finished in between: look again.

    def revoke(self, id: str, epoch: int | None = None) -> bool:
        with self._failures(), self._locked(id):
            for known in self._epochs_of(id):
                if epoch is not None and known > epoch:
                    continue
                if self._recycle(f"{self._open}/{id}.{known}"):
                    self._forget(id, known)
                    return True
            return False

    def drop(self, id: str) -> None:
        with self._failures(), self._locked(id):
            epochs = self._epochs_of(id)
            # The usual case first; else forward as the token moves, `done` again at the end.
            for epoch in epochs:
                if self._drop_done(f"{id}.{epoch}"):
                    self._forget(id, *epochs)
                    return
            for epoch in epochs:
                self._recycle(f"{self._open}/{id}.{epoch}")
            for holder in os.listdir(self._held):
                for epoch in epochs:
                    self._recycle(f"{self._held}/{holder}/{id}.{epoch}")
            for epoch in epochs:
                if not self._drop_done(f"{id}.{epoch}"):
                    # Whoever dropped it before was killed before it was done with that.
                    _files.remove(f"{self._results}/{id}.{epoch}")
            self._forget(id, *epochs)

    def _drop_done(self, name: str) -> bool:
        if not self._recycle(f"{self._done}/{name}"):
            return False
        path = f"{self._results}/{name}"
        try:
            self._recycle(path, os.stat(path).st_size)
        except FileNotFoundError:
            pass
        return True

    def state(self, id: str) -> base.Row | None:
        with self._failures(), self._locked(id):
            return self._find(id)

    def ids(self) -> set[str]:
        with self._failures():
            # As a token moves, so that none is missed.
            names = os.listdir(self._open)
            for holder in os.listdir(self._held):
                try:
                    names += os.listdir(f"{self._held}/{holder}")
                except (FileNotFoundError, NotADirectoryError):
                    pass  # it ended meanwhile
            names += os.listdir(self._done)
            # And what is left of those that somebody was killed while dropping.
            names += os.listdir(self._results)
            notes = os.listdir(self._epochs)
        return {name.rpartition(".")[0] for name in names}.union(notes)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        before = _files.clock(self._root) - older_than
        count = 0
        with self._failures():
            for holder in () if only_done else os.listdir(self._held):
                silence = self.silence(holder)
                folder = f"{self._held}/{holder}"
                if silence is None or silence >= older_than:
                    count += sum(self._drop_one(name) for name in _older(folder, before))
                if silence is None or silence >= min(older_than, base.SWEEP_EVERY):
                    try:
                        os.rmdir(folder)  # only when it holds nothing; who lives makes it again
                        _files.remove(f"{self._beats}/{holder}")
                    except OSError:
                        pass
            for folder in (self._done,) if only_done else (self._open, self._done):
                count += sum(self._drop_one(name) for name in _older(folder, before))
            # What an interrupted call left: results and notes without a row.
            for name in _older(self._results, before):
                if self.state(name.rpartition(".")[0]) is None:
                    _files.remove(f"{self._results}/{name}")
            for name in _older(self._epochs, before):
                if self.state(name) is None:
                    _files.remove(f"{self._epochs}/{name}")
            _files.sweep_temp(f"{self._root}/temp")
        return count

    def _drop_one(self, name: str) -> bool:
        self.drop(name.rpartition(".")[0])
        return True

    def close(self) -> None:
        for holder in self._known_holders:
            try:
                os.rmdir(f"{self._held}/{holder}")  # only when it holds nothing
                _files.remove(f"{self._beats}/{holder}")
            except OSError:
                pass
        self._known_holders.clear()
        for lock in self._locks:
            lock.close()

    # -- below

    def _epochs_of(self, id: str) -> list[int]:
        """The epochs at which the row may be, the newest first."""
        try:
            epochs = [int(word) for word in _files.read(f"{self._epochs}/{id}", 100).split()]
        except FileNotFoundError:
            return [_FIRST]
        except (ValueError, _files.Unreadable):
            raise exceptions.LedgerFailure(f"{self._epochs}/{id} is damaged") from None
        return epochs if _FIRST in epochs else [*epochs, _FIRST]

    def _note(self, id: str, *epochs: int) -> None:
        note = b" ".join(b"%d" % epoch for epoch in epochs)
        self._spares.place(note, f"{self._epochs}/{id}")

    def _forget(self, id: str, *epochs: int) -> None:
        if epochs == (_FIRST,):
            return
        for epoch in epochs:  # what a holder left that lost against `reopen` and died
            _files.remove(f"{self._results}/{id}.{epoch}")
        _files.remove(f"{self._epochs}/{id}")

    def _find(self, id: str) -> base.Row | None:
        names = [(epoch, f"{id}.{epoch}") for epoch in self._epochs_of(id)]
        for epoch, name in names:
            if os.path.exists(f"{self._open}/{name}"):
                return base.Row(id, epoch, base.ROW_OPEN)
        for holder in os.listdir(self._held):
            for epoch, name in names:
                if os.path.exists(f"{self._held}/{holder}/{name}"):
                    return base.Row(id, epoch, base.ROW_CLAIMED, holder)
        for epoch, name in names:
            if os.path.exists(f"{self._done}/{name}"):
                try:
                    result = _files.read(f"{self._results}/{name}", _RESULT_LIMIT)
                except (FileNotFoundError, _files.Unreadable) as exc:
                    raise exceptions.LedgerFailure(f"the result of {name} is lost: {exc}") from exc
                return base.Row(id, epoch, base.ROW_DONE, None, result)
        return None

    def _recycle(self, path: str, size: int = 0) -> bool:
        try:
            self._spares.give(path, size)
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _rename(source: str, target: str) -> bool:
        try:
            os.rename(source, target)
        except FileNotFoundError:
            return False
        return True

    def _locked(self, id: str) -> _Lock:
        return self._locks[zlib.crc32(_label(id).encode()) % _LOCKS]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise exceptions.LedgerFailure(
                f"ledger {self._root}: {exc.strerror or exc} ({exc.filename})"
            ) from exc


class _Lock:
    """Excludes threads and processes; not for ever, as a process that has it may be frozen.

    What is locked is a folder: it is part of the ledger's layout, and nothing is left behind.
    """

    __slots__ = ("_fd", "_path", "_thread")

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._thread = threading.Lock()

    def __enter__(self) -> None:
        self._thread.acquire()
        try:
            if self._fd < 0:
                os.makedirs(self._path, mode=0o700, exist_ok=True)
                self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            give_up = 0.0
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    give_up = give_up or time.monotonic() + _LOCK_PATIENCE
                    if time.monotonic() > give_up:
                        raise exceptions.LedgerFailure(
                            f"{self._path} was locked for {_LOCK_PATIENCE:g} s"
                        ) from None
                    time.sleep(0.0005)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(self, *exc: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._thread.release()

    def close(self) -> None:
        with self._thread:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _older(folder: str, before: float) -> Iterator[str]:
    """Names whose file was renamed last, thus changed its state last, before this time."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.stat(follow_symlinks=False).st_ctime <= before:
                    yield entry.name
            except FileNotFoundError:
                pass


def _label(name: str, kind: str = "request id") -> str:
    return name if _names.is_label(name) else _names.check_label(kind, name)
