"""The file craft of the directory backend: what reaches the disk, in which order, and who may.

Errors of the system become `StorageFailure`s that name the path and the reason; that something is
not there stays a `FileNotFoundError`, for the caller knows what it means.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine import exceptions

__all__ = [
    "all_there",
    "append",
    "cut",
    "failures",
    "folder_of",
    "line_at",
    "lock",
    "make_folders",
    "names_in",
    "open_at",
    "read",
    "read_at",
    "read_from",
    "read_lines",
    "remove",
    "remove_tree",
    "rename",
    "same",
    "size_of",
    "sync",
    "sync_folder",
    "unlock",
    "write_at_start",
    "write_new",
]

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_CHUNK: Final = 1 << 20
_FIRST_PAUSE: Final = 0.0005
_LAST_PAUSE: Final = 0.02

_data_sync: Final = getattr(os, "fdatasync", os.fsync)


class failures:
    """Has errors of the system told as `StorageFailure`s about `path`.

    A turn asks the system a dozen times: that is why this is no generator.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> None:
        if kind is None or not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return
        where = error.filename if isinstance(error.filename, str) else self._path
        raise exceptions.StorageFailure(
            f"{where} cannot be used: {error.strerror or error}", error
        ) from error


class all_there:
    """For what was there a moment ago: somebody who removes it by hand is a failure, too."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise exceptions.StorageFailure(f"{error.filename} is gone", error) from error


def open_at(path: str, flags: int) -> int:
    """Open a file; one that is made is for its owner only."""
    with failures(path):
        return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)


def read(path: str) -> bytes:
    """All of a file."""
    with failures(path), open(path, "rb", buffering=0) as file:
        return file.readall()


def read_lines(path: str) -> list[bytes]:
    """The lines of a file, each with its line feed; the last one may have none."""
    with failures(path), open(path, "rb") as file:
        return file.readlines()


def read_from(path: str, start: int, size: int) -> bytes:
    """So many bytes of a file, from a place on; fewer where it ends before."""
    with failures(path), open(path, "rb", buffering=0) as file:
        found = []
        while size > 0 and (data := os.pread(file.fileno(), size, start)):
            found.append(data)
            start, size = start + len(data), size - len(data)
        return b"".join(found)


def line_at(path: str, start: int) -> bytes:
    """The line of a file that begins at a place."""
    with failures(path), open(path, "rb") as file:
        file.seek(start)
        return file.readline()


def read_at(fd: int, size: int, path: str) -> bytes:
    """The first `size` bytes of an open file, as far as it has so many."""
    with failures(path):
        return os.pread(fd, size, 0)


def append(fd: int, data: bytes, path: str) -> None:
    """Write all of `data` to a file opened for appending; on an error some of it may be there."""
    with failures(path):
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]


def write_at_start(fd: int, data: bytes, path: str) -> None:
    """Write over the beginning of a file."""
    with failures(path):
        os.pwrite(fd, data, 0)


def cut(fd: int, size: int, path: str) -> None:
    """Leave no more than the first `size` bytes of a file."""
    with failures(path):
        os.ftruncate(fd, size)


def rename(source: str, target: str) -> None:
    """Rename a file or folder; a file that has the name already is replaced."""
    with failures(target):
        os.rename(source, target)


def sync(fd: int, path: str) -> None:
    """Have the contents of a file, and its length, survive the end of the host."""
    with failures(path):
        _data_sync(fd)


def sync_folder(path: str) -> None:
    """Have the names in a folder survive the end of the host."""
    fd = open_at(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with failures(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def write_new(path: str, parts: Iterable[bytes]) -> int:
    """Write a file that nobody reads yet, to the disk, and return its size.

    On an error it is gone.
    """
    fd = open_at(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for chunk in _chunks(parts):
            append(fd, chunk, path)
        sync(fd, path)
        return os.fstat(fd).st_size
    except BaseException:
        remove(path)
        raise
    finally:
        os.close(fd)


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, so many together that each is worth a call of the system."""
    size = 0
    held: list[bytes] = []
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _CHUNK:
            yield b"".join(held)
            size = 0
            held.clear()
    yield b"".join(held)


def lock(fd: int, path: str, *, shared: bool = False, patience: float = 30.0) -> bool:
    """Keep others from locking an open file; whether that was possible in `patience` seconds."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    until: float | None = None
    pause = _FIRST_PAUSE
    with failures(path):
        while True:
            try:
                fcntl.flock(fd, how)
                return True
            except BlockingIOError:
                now = time.monotonic()
                until = until if until is not None else now + patience
                if now >= until:
                    return False
            # A wait of the system's has no end, and whoever holds the lock may be frozen.
            time.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def same(fd: int, path: str) -> bool:
    """Whether an open file is (still) the one of that path."""
    with failures(path):
        ours = os.fstat(fd)
        try:
            theirs = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return (ours.st_ino, ours.st_dev) == (theirs.st_ino, theirs.st_dev)


def size_of(path: str) -> int:
    """The size of a file; 0 if it is not there."""
    with failures(path):
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return 0


def names_in(path: str) -> list[str]:
    """What is in a folder, sorted; nothing if it is not there."""
    with failures(path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []


def folder_of(path: str) -> str:
    return os.path.dirname(path)


def make_folders(path: str) -> None:
    """Make a folder, and those it is in, unless they are there; new ones survive the end of the
    host.
    """
    if os.path.isdir(path):
        return
    parent = folder_of(path)
    if parent != path:
        make_folders(parent)
    with failures(path):
        try:
            os.makedirs(path, _FOLDER_MODE, exist_ok=True)
        except FileNotFoundError as error:  # a link to nowhere
            raise exceptions.StorageFailure(f"{path} cannot be made: {error}", error) from error
    sync_folder(parent)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    with failures(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    with failures(path), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
