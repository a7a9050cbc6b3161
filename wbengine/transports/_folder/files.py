"""Private folders, and lock files that show other processes that this process is alive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import weakref
from typing import Final

from wbengine import exceptions

_O_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_O_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_liveness_files: weakref.WeakSet[LivenessFile] = weakref.WeakSet()


def _after_fork() -> None:
    for liveness_file in _liveness_files:
        liveness_file.abandon()  # Closing this copy does not release the lock of the parent.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_folder(path: str, *, private: bool = False) -> str:
    """Create a folder (mode 0700) unless it exists, and return its absolute path.

    The folder must belong to this user, and must not be writable for others. If `private`, it must
    also be inaccessible to others, and no symlink.

    :raises TransportFailure: if the folder does not meet these conditions or cannot be created.
    """
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode) and (private or link.st_uid not in (os.geteuid(), 0)):
            raise exceptions.TransportFailure(f"folder {path} is a symlink and is not safe to use")
        status = os.stat(path)
    except OSError as exc:
        raise exceptions.TransportFailure(
            f"folder {path} cannot be used: {exc.strerror or exc}"
        ) from exc
    if not stat.S_ISDIR(status.st_mode):
        raise exceptions.TransportFailure(f"folder {path} cannot be used: it is not a folder")
    if status.st_uid != os.geteuid():
        raise exceptions.TransportFailure(
            f"folder {path} belongs to user id {status.st_uid}, not to {os.geteuid()},"
            " and is not safe to use"
        )
    if status.st_mode & (0o077 if private else 0o022):
        problem, mode = ("is open to", "700") if private else ("can be written by", "go-w")
        raise exceptions.TransportFailure(
            f"folder {path} {problem} other users (mode {stat.S_IMODE(status.st_mode):04o})"
            f" and is not safe to use; run `chmod {mode} {path}`"
        )
    return path


def write_new(path: str, data: bytes) -> None:
    """Create a new file (mode 0600)."""
    with open(os.open(path, _O_NEW, 0o600), "wb") as file:
        file.write(data)


def remove(path: str) -> None:
    """Delete a file, if it exists."""
    with contextlib.suppress(OSError):
        os.unlink(path)


class LivenessFile:
    """File that this process locks to show that it is alive.

    The kernel unlocks it when the process ends. Any process on the host can check it with
    `is_alive(folder, name)`.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path = f"{folder}/{name}"
        self._fd = os.open(f"{self._path}-new", _O_NEW, 0o600)
        # The file is locked before it gets its name, so no process sees it unlocked while this
        # process lives.
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(f"{self._path}-new", self._path)
        _liveness_files.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock. A forked child does not."""
        return self._fd >= 0

    def release(self) -> None:
        """Delete the file, then release the lock."""
        if self.is_held:
            remove(self._path)
        self.abandon()

    def abandon(self) -> None:
        """Release only the lock: other processes regard this one as dead and clean up after it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def is_alive(folder: str, name: str) -> bool:
    """Return True if the process behind this file lives, and the file exists."""
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
