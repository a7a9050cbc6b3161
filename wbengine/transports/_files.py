"""Folders that several processes write to at once: the file craft under transport and ledger.

Every step another process can see is one `rename` inside one folder tree.  A rename survives the
death of the process; nothing is fsynced, because what must survive a power cut is in the store of
the engine.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions

_DAY: Final = 24 * 3600.0

#: A spare file keeps at most so much of the disk, so all spares together at most 64 MiB.
_BLOCK: Final = 4096
#: Files above this size are unlinked instead of recycled.
_RECYCLE_LIMIT: Final = 1024 * 1024
#: So many a process keeps at hand.
_OWN: Final = 512

#: Errors of a process without descriptors or memory, or of a disk that fails for now.
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR)

_O_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_O_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_O_REWRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unreadable(Exception):
    """A file that must not be used; the text says why."""


class _Process:
    """What makes names of this process unique and rising; renewed in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.uid = os.urandom(6).hex()
        self.count = itertools.count()
        self.lock = threading.Lock()
        self.last = 0


_process = _Process()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def _after_fork() -> None:
    _process.renew()
    for holder in _holders:
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def unique() -> str:
    """A name nobody else uses."""
    return f"{_process.uid}-{next(_process.count):x}"


def ordered() -> str:
    """A name of 33 characters: wall clock nanoseconds, then the process.

    Strictly rising within the process also when the clock steps back.
    """
    process = _process
    with process.lock:
        now = time.time_ns()
        if now <= process.last:
            now = process.last + 1
        process.last = now
    return f"{now:020d}.{process.uid}"


def make_folder(path: str, *, private: bool = False) -> str:
    """Make a folder (mode 0700) unless it is there, and check that it is ours, and that others may
    not write to it; its absolute path.

    With `private` it must also be closed to others and no symlink.

    :raises TransportFailure: it is not so.
    """
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode) and (private or link.st_uid not in (os.geteuid(), 0)):
            raise exceptions.TransportFailure(f"folder {path} is a symlink: refusing to use it")
        found = os.stat(path)
    except OSError as exc:
        raise exceptions.TransportFailure(
            f"folder {path} cannot be used: {exc.strerror or exc}"
        ) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise exceptions.TransportFailure(f"folder {path} cannot be used: it is not a folder")
    if found.st_uid != os.geteuid():
        raise exceptions.TransportFailure(
            f"folder {path} belongs to user id {found.st_uid}, not to {os.geteuid()}: "
            "refusing to use it"
        )
    if found.st_mode & (0o077 if private else 0o022):
        does, mode = ("is open to", "700") if private else ("can be written by", "go-w")
        raise exceptions.TransportFailure(
            f"folder {path} {does} other users (mode {stat.S_IMODE(found.st_mode):04o}): "
            f"refusing to use it; `chmod {mode} {path}` closes it"
        )
    return path


def check_folders(path: str) -> None:
    """Make sure that all folders in a folder of ours are ours, too, and closed to others.

    Later nobody else can put one there.

    :raises TransportFailure: one is not, or is a symlink.
    """
    with os.scandir(path) as found:
        for each in found:
            try:
                is_folder = each.is_symlink() or each.is_dir(follow_symlinks=False)
                seen = each.stat(follow_symlinks=False)
            except FileNotFoundError:  # it has just been removed
                continue
            if is_folder and (
                not stat.S_ISDIR(seen.st_mode)
                or seen.st_uid != os.geteuid()
                or seen.st_mode & 0o077
            ):
                make_folder(each.path, private=True)  # it says what is wrong


def read(path: str, limit: int) -> bytes:
    """The content of a regular file; never follows a symlink, never blocks on a FIFO.

    :raises Unreadable: it is something else, or too large.
    :raises FileNotFoundError: it is not there.
    :raises OSError: this process, or the host, lacks what it takes; the file may be fine.
    """
    try:
        fd = os.open(path, _O_READ)
    except FileNotFoundError:
        raise
    except OSError as exc:
        if exc.errno in _PASSING:
            raise
        why = "a symlink" if exc.errno == errno.ELOOP else (exc.strerror or str(exc))
        raise Unreadable(f"it cannot be opened: {why}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("it is not a regular file")
        if found.st_size > limit:
            raise Unreadable(f"it has {found.st_size} bytes, {limit} are allowed")
        data = os.read(fd, found.st_size + 1)
        if len(data) == found.st_size:
            return data
        parts = [data]
        while data:
            data = os.read(fd, limit)
            parts.append(data)
        data = b"".join(parts)
        if len(data) > limit:
            raise Unreadable(f"it grew over {limit} bytes")
        return data
    except OSError as exc:
        if exc.errno in _PASSING:
            raise
        raise Unreadable(f"it cannot be read: {exc.strerror or exc}") from None
    finally:
        os.close(fd)


class Holder:
    """Proof that this process lives: a locked file, which the kernel unlocks when the process ends.

    `alive(folder, name)` tells any process on the host at once.
    """

    def __init__(self, folder: str, temp: str, name: str) -> None:
        self.name = name
        self._path = f"{folder}/{name}"
        private = f"{temp}/{unique()}"
        self._fd = os.open(private, _O_NEW, 0o600)
        # Locked before it gets its name: no peer ever sees it unlocked while we live.
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(private, self._path)
        _holders.add(self)

    @property
    def held(self) -> bool:
        """Whether this process proves its life with it; in a forked child it does not."""
        return self._fd >= 0

    def release(self) -> None:
        """The file goes, then the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.unlink(self._path)
            except OSError:
                pass
            os.close(fd)

    def abandon(self) -> None:
        """Only the lock goes: peers see a dead holder and clean up after it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    #: In a forked child: closing its copy leaves the parent's lock as it is.
    forget = abandon


def alive(folder: str, name: str) -> bool:
    """Whether the process behind this holder lives; False also when there is no such holder."""
    try:
        fd = os.open(f"{folder}/{name}", _O_READ)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def touch(path: str) -> None:
    """Make an empty file, unless it is there."""
    try:
        os.close(os.open(path, _O_NEW, 0o600))
    except FileExistsError:
        pass


def names(folder: str) -> list[str]:
    """What is in a folder; nothing, where it is not there."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def remove(path: str) -> bool:
    """Unlink, whether it is there or not; True when it was."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def older(folder: str, before: float) -> Iterator[str]:
    """Names whose file was renamed last, thus put there, before this time."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.stat(follow_symlinks=False).st_ctime <= before:
                    yield entry.name
            except FileNotFoundError:
                pass


def clock(folder: str) -> float:
    """The time by the clock of a folder's file system, which is that of the times of its files.

    The clock of this process may be another one, and wrong.
    """
    os.utime(folder)
    return os.stat(folder).st_mtime


def sweep_temp(folder: str, age: float = 60.0) -> None:
    """Remove private files that their writers left behind."""
    now = clock(folder)
    for entry in os.scandir(folder):
        try:
            if now - entry.stat(follow_symlinks=False).st_ctime < age:
                continue
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        except OSError:
            pass


def due(marker: str, every: float) -> bool:
    """Whether what is to be done each so many seconds should be done now; notes that it is.

    Not if it looks as if nobody had been here for a day: a clock may have jumped, or the host was
    suspended.  Then those who live have the time until the next turn to show it.
    """
    try:
        age = clock(os.path.dirname(marker)) - os.stat(marker).st_mtime
    except FileNotFoundError:
        touch(marker)
        return True
    if 0 <= age < every:
        return False
    os.utime(marker)
    return 0 <= age < _DAY


def remove_tree(path: str) -> int:
    """Remove a folder with everything in it, without following symlinks; how many files."""
    count = 0
    for base, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            full = f"{base}/{name}"
            try:
                if os.path.islink(full) or not os.path.isdir(full):
                    os.unlink(full)
                    count += 1
                else:
                    os.rmdir(full)
            except OSError:
                pass
    try:
        os.rmdir(path)
    except OSError:
        pass
    return count


_known: weakref.WeakValueDictionary[str, Spares] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _forget_spares() -> None:
    global _lock
    _lock = threading.Lock()
    for spares in _known.values():
        spares.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_spares)


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
            private = f"{self._temp}/{unique()}"
            os.rename(path, private)
            path = private
            if size > _BLOCK:
                os.truncate(path, _BLOCK)
        if own:
            self._own.append(path)
            return
        name = unique()
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
        path = f"{self._temp}/{unique()}"
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
            os.rename(own.pop(), f"{folder}/{unique()}")
        except (IndexError, OSError):
            pass
