"""Folders of one's own, and files by which other processes see that this one lives."""

from __future__ import annotations

import fcntl
import os
import stat
import weakref
from typing import Final

from wbengine import exceptions

_O_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_O_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def _after_fork() -> None:
    for holder in _holders:
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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


def write_new(path: str, data: bytes) -> None:
    """Make a file (mode 0600) that was not there."""
    with open(os.open(path, _O_NEW, 0o600), "wb") as file:
        file.write(data)


def remove(path: str) -> bool:
    """Unlink, whether it is there or not; True when it was."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


class Holder:
    """Proof that this process lives: a locked file, which the kernel unlocks when the process ends.

    `alive(folder, name)` tells any process on the host at once.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path = f"{folder}/{name}"
        self._fd = os.open(f"{self._path}-new", _O_NEW, 0o600)
        # Locked before it gets its name: no peer ever sees it unlocked while we live.
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(f"{self._path}-new", self._path)
        _holders.add(self)

    @property
    def held(self) -> bool:
        """Whether this process proves its life with it; in a forked child it does not."""
        return self._fd >= 0

    def release(self) -> None:
        """The file goes, then the lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            remove(self._path)
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
