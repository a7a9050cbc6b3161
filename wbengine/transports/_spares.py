"""Spare files: used ones that are written again.

Creating a file costs ten times a rename once a folder has seen thousands of unlinks.
"""

from __future__ import annotations

import os
import random
import stat
import threading
import time
import weakref
from typing import Final

from wbengine.transports import _files

__all__ = ["Spares", "spares"]

#: A spare file keeps at most so much of the disk, so all spares together at most 64 MiB.
_BLOCK: Final = 4096
#: Files above this size are unlinked instead of recycled.
_RECYCLE_LIMIT: Final = 1024 * 1024
#: So many a process keeps at hand.
_OWN: Final = 512

_O_REWRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_O_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_known: weakref.WeakValueDictionary[str, Spares] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for spares in _known.values():
        spares.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def spares(folder: str, temp: str) -> Spares:
    """The spare files of this process in a folder: who publishes writes what who consumes read.

    `release` them when they are not needed any more.
    """
    with _lock:
        found = _known.get(folder)
        if found is None:
            found = _known[folder] = Spares(folder, temp)
        found.users += 1
        return found


class Spares:
    """Used files, kept to be written again; the folder is shared by all processes.

    Some are at hand of one process, under private names in `temp`, which saves a rename each time.
    Whoever sweeps that folder may take them.

    Never more than about `keep` others (each process counts by itself, and looks again now and
    then). Thread-safe.
    """

    __slots__ = (
        "__weakref__", "_folder", "_keep", "_known", "_look_at", "_own", "_room", "_temp", "users",
    )  # fmt: skip

    #: Seconds between two looks into the spare folder: a look costs a millisecond or two.
    _PAUSE: Final = 0.05

    def __init__(self, folder: str, temp: str, keep: int = 16384) -> None:
        self._folder = folder
        self.users = 0
        self._own: list[str] = []
        # Of those who did not release them.
        weakref.finalize(self, _hand_over, self._own, folder, os.getpid())
        self._temp = temp
        self._keep = keep
        self._known: list[str] = []
        self._look_at = 0.0
        self._room = 0

    def release(self) -> None:
        """One user less; the last one hands over what is at hand."""
        with _lock:
            self.users -= 1
            if not self.users:
                _hand_over(self._own, self._folder, os.getpid())

    def forget(self) -> None:
        """In a forked child: what was at hand is the parent's."""
        self._own.clear()
        self._known = []

    def place(self, data: bytes, target: str) -> None:
        """Make a file with this content appear at `target` at once, replacing what is there.

        :raises FileNotFoundError: the folder of `target` is not there.
        :raises OSError: there is no space.
        """
        while True:
            path = self._write(data)
            try:
                os.rename(path, target)
                return
            except FileNotFoundError:
                # A process that was frozen for minutes may find its private file swept.
                if os.path.lexists(path):
                    os.unlink(path)
                    raise

    def _write(self, data: bytes) -> str:
        path, fd, size = self._open()
        try:
            done = os.write(fd, data)
            while done < len(data):
                done += os.write(fd, memoryview(data)[done:])
            if size > done:
                os.ftruncate(fd, done)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        os.close(fd)
        return path

    def give(self, path: str, size: int = 0) -> None:
        """Recycle a file that nobody needs; FileNotFoundError when it is not there."""
        own = len(self._own) < _OWN
        if size > _RECYCLE_LIMIT or not (own or self._has_room()):
            os.unlink(path)
            return
        if own or size > _BLOCK:
            # Cut under a private name: another process may be reading the file under this one, or
            # be writing it under its next.
            private = f"{self._temp}/{_files.unique()}"
            os.rename(path, private)
            path = private
            if size > _BLOCK:
                os.truncate(path, _BLOCK)
        if own:
            self._own.append(path)
            return
        name = _files.unique()
        os.rename(path, f"{self._folder}/{name}")
        self._room -= 1
        if len(self._known) < self._keep:
            self._known.append(name)

    def _has_room(self) -> bool:
        if self._room <= 0 and time.monotonic() >= self._look_at:
            self._look()
        return self._room > 0

    def _open(self) -> tuple[str, int, int]:
        """A private file to be written: its path, its descriptor and its size."""
        while self._own:
            try:
                path = self._own.pop()
                fd, size = _rewrite(path)
            except (IndexError, FileNotFoundError):
                continue  # another thread was faster; it was swept
            if fd >= 0:
                return path, fd, size
        path = f"{self._temp}/{_files.unique()}"
        if self._pick(path):
            try:
                fd, size = _rewrite(path)
            except FileNotFoundError:
                fd = -1
            if fd >= 0:
                return path, fd, size
        return path, os.open(path, _O_NEW, 0o600), 0

    def _pick(self, target: str) -> bool:
        known = self._known
        if not known and time.monotonic() >= self._look_at:
            self._look()
            self._look_at = time.monotonic() + self._PAUSE
        while True:
            try:
                name = known.pop()
            except IndexError:
                return False
            try:
                os.rename(f"{self._folder}/{name}", target)
            except OSError:
                continue  # another process was faster
            self._room += 1
            return True

    def _look(self) -> None:
        names = os.listdir(self._folder)
        # Others fill it as well: take half of what is left and look again, without a pause while
        # looking is worth it.
        self._room = (self._keep - len(names)) // 2
        # Every process starts elsewhere, so that they seldom reach for the same file.
        cut = random.randrange(len(names) + 1)
        self._known = names[cut:] + names[:cut]
        self._look_at = time.monotonic() + (0.0 if self._room > 256 else self._PAUSE)


def _rewrite(path: str) -> tuple[int, int]:
    """Open a used file: its descriptor (-1: it is none) and its size."""
    try:
        fd = os.open(path, _O_REWRITE)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return fd, found.st_size
        os.close(fd)
    except FileNotFoundError:
        raise
    except OSError:
        pass
    # Something planted: put it out of the way, never write through it.
    try:
        os.unlink(path)
    except OSError:
        os.rename(path, f"{path}.aside")
    return -1, 0


def _hand_over(own: list[str], folder: str, pid: int) -> None:
    """What a process that ends had at hand goes to the others."""
    if pid != os.getpid():  # a forked child
        return
    while own:
        try:
            os.rename(own.pop(), f"{folder}/{_files.unique()}")
        except (IndexError, OSError):
            pass
