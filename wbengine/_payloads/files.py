"""Files in a folder or bucket, through fsspec."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from wbengine import exceptions
from wbengine._imports import installing
from wbengine._security import masking

try:
    import fsspec
except ImportError as _error:
    raise ImportError(installing.needs("payloads", "fsspec", "payloads")) from _error

__all__ = ["File", "Files"]

_T = TypeVar("_T")

#: Seconds before the next attempt of an operation that failed.
_RETRY_SECONDS: Final = (0.1, 0.4, 1.6, 3.2)
#: Errors after which another attempt is useless.
_FINAL_ERRORS: Final = (FileNotFoundError, FileExistsError, PermissionError, ImportError)


class File(NamedTuple):
    """A file in a listing, with the time of its last change in Unix seconds."""

    name: str
    size: int
    changed: float


class Files:
    """The files below a location: a folder, or a URL such as `s3://bucket/prefix`. Thread-safe.

    Names are relative, with slashes. A file is visible only when it is complete.

    :raises ValueError: if the location is not valid, or its protocol unknown.
    :raises ImportError: if fsspec, or the package for the protocol, is not installed.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._opened: tuple[int, Any, str] | None = None
        self._fs()

    def __str__(self) -> str:
        return masking.masked(self._location)

    def _fs(self) -> tuple[Any, str]:
        """Return the file system, which a forked process must not share, and its root."""
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            fs, root = _open(self._location)
            opened = self._opened = os.getpid(), fs, root
        return opened[1], opened[2]

    @property
    def _is_local(self) -> bool:
        return "file" in _protocols(self._fs()[0])

    def _path(self, name: str) -> str:
        return f"{self._fs()[1]}/{name}"

    def _attempt(self, what: str, do: Callable[[], _T]) -> _T:
        """Call `do`, several times if it fails.

        :raises StorageFailure: if all attempts failed.
        """
        for pause in (*_RETRY_SECONDS, None):
            try:
                return do()
            except _FINAL_ERRORS:
                raise
            except Exception as error:
                if pause is None:
                    raise exceptions.StorageFailure(
                        f"{what} in payloads {self} failed: {type(error).__name__}: {error}", error
                    ) from error
            time.sleep(pause)
        raise AssertionError

    def find(self, name: str) -> File | None:
        """Return a file, or None if it does not exist."""
        fs, path = self._fs()[0], self._path(name)
        try:
            info = self._attempt(f"Finding {name}", lambda: fs.info(path))
        except FileNotFoundError:
            return None
        return File(name, int(info["size"] or 0), _changed(info))

    def list(self, folder: str) -> Iterator[File]:
        """Yield the files in a folder, without those in folders of it."""
        return (file for file in self._files(folder) if not file.name.startswith("."))

    def incomplete(self, folder: str) -> Iterator[File]:
        """Yield the files in a folder that are being written, or whose writer was killed."""
        return (file for file in self._files(folder) if file.name.startswith("."))

    def _files(self, folder: str) -> Iterator[File]:
        for name, info in self._entries(folder):
            if info["type"] == "file":
                yield File(name, int(info["size"] or 0), _changed(info))

    def folders(self, folder: str) -> Iterator[str]:
        """Yield the names of the folders in a folder."""
        for name, info in self._entries(folder):
            if info["type"] == "directory":
                yield name

    def _entries(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        fs, path = self._fs()[0], self._path(folder)
        try:
            infos = self._attempt(f"Listing {folder}", lambda: fs.ls(path, detail=True))
        except FileNotFoundError:
            return
        for info in infos:
            yield info["name"].rstrip("/").rpartition("/")[2], info

    def write(self, name: str, chunks: Callable[[], Iterable[Any]]) -> None:
        """Write a file, or replace it.

        :param chunks: returns the content, for each attempt.
        """
        write = self._write_local if self._is_local else self._write_remote
        self._attempt(f"Writing {name}", lambda: write(name, chunks()))

    def _write_local(self, name: str, chunks: Iterable[Any]) -> None:
        path = self._path(name)
        folder, _, last = path.rpartition("/")
        _make_folders(folder)
        temporary = f"{folder}/.{last}.{secrets.token_hex(8)}"
        try:
            with open(os.open(temporary, _NEW, 0o600), "wb", buffering=0) as file:
                for chunk in chunks:
                    view = memoryview(chunk)
                    while view:
                        view = view[file.write(view) :]
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    def _write_remote(self, name: str, chunks: Iterable[Any]) -> None:
        fs, path = self._fs()[0], self._path(name)
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        file = fs.open(path, "wb", block_size=_BLOCK_SIZE)
        try:
            for chunk in chunks:
                file.write(chunk)
        except BaseException:
            if "memory" in _protocols(fs):  # Such a file is visible while it is written.
                fs.rm_file(path)
                raise
            # `close` would complete the upload of an incomplete file.
            with suppress(AttributeError):
                file.closed = True
            with suppress(Exception):
                file.discard()
            raise
        file.close()

    def read(self, name: str) -> AbstractContextManager[Any]:
        """Open a file to read it in sequence.

        :raises FileNotFoundError: if it does not exist.
        """
        fs, path = self._fs()[0], self._path(name)
        options = {} if self._is_local else {"block_size": _BLOCK_SIZE, "cache_type": "readahead"}
        file: AbstractContextManager[Any] = self._attempt(
            f"Reading {name}", lambda: fs.open(path, "rb", **options)
        )
        return file

    def retried(self, name: str, read: Callable[[Any], _T]) -> _T:
        """Return the result of `read` for a file, with several attempts.

        :raises FileNotFoundError: if it does not exist.
        """

        def do() -> _T | ValueError:
            with self.read(name) as file:
                try:
                    return read(file)
                except ValueError as error:  # The content is damaged.
                    return error

        result = self._attempt(f"Reading {name}", do)
        if isinstance(result, ValueError):
            raise result
        return result

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        fs, path = self._fs()[0], self._path(name)
        with suppress(FileNotFoundError):
            self._attempt(f"Deleting {name}", lambda: fs.rm_file(path))

    def move(self, name: str, new_name: str) -> bool:
        """Move a file, and return whether it existed. An object of a bucket is copied first."""
        fs, old, new = self._fs()[0], self._path(name), self._path(new_name)
        try:
            if self._is_local:
                _make_folders(new.rpartition("/")[0])
                os.rename(old, new)
            else:
                fs.makedirs(new.rpartition("/")[0], exist_ok=True)
                self._attempt(f"Copying {name}", lambda: fs.cp_file(old, new))
                self.delete(name)
        except FileNotFoundError:
            return False
        return True


_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_SIZE: Final = 16 * 2**20


def _open(location: str) -> tuple[Any, str]:
    if not location.strip():
        raise ValueError("payloads must be a folder or a URL, got ''")
    shown = masking.masked(location)
    # A listing or the absence of a file must not be remembered: other processes write files.
    options = {} if "://" not in location else {"use_listings_cache": False}
    if location.startswith(("file://", "local://", "memory://")):
        options = {}
    try:
        fs, root = fsspec.core.url_to_fs(os.path.expanduser(location), **options)
    except ImportError as error:
        extra = installing.advice("s3") if location.startswith(("s3:", "s3a:")) else str(error)
        raise ImportError(f"payloads {shown} need a package: {extra}") from error
    root = root.rstrip("/")
    if not root and "memory" not in _protocols(fs):
        raise ValueError(f"payloads must name a folder or a bucket, got {shown}")
    if "file" in _protocols(fs):
        _make_folders(root)
    return fs, root


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _changed(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            with suppress(ValueError):
                return dt.datetime.fromisoformat(value).timestamp()
    return time.time()  # Unknown: the file is not old.


def _make_folders(path: str) -> None:
    """Create a folder and its parents, accessible only to this user.

    Each parent is synced: the folder survives a crash of the host, as its files do.
    """
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        _make_folders(parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        _sync_folder(parent)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
