"""Records in a folder, in the SQLite database `flows.db`."""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._configuration import named_options
from wbengine.persistence.backends._sql import SQLBackend, schema_revisions
from wbengine.persistence.backends._sql import SQLConnection as DirectoryConnection

__all__ = ["DirectoryBackend", "DirectoryConnection"]

_FILE: Final = "flows.db"
_FOLDER_MODE: Final = 0o700


class DirectoryBackend(SQLBackend):
    """A store in a folder of a local file system: an `SQLBackend` with the database `flows.db`.

    Options:

    - `path`: the folder; also as `connection`, 'dir:///var/lib/flows'. The first write creates it,
      accessible only to its owner.
    - `max_cache_size`, `encoding`: TaskFlow's options; accepted without effect.

    :raises ValueError: if the path is missing, or an option is unknown or invalid.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset(
        {"connection", "path", "max_cache_size", "encoding"}
    )

    def _parsed(self) -> _sql.DatabaseOptions:
        named_options.check_known("A directory backend", self._conf, self.OPTIONS)
        if self._conf.get("max_cache_size") is not None:
            named_options.whole("max_cache_size", self._conf["max_cache_size"], 1)
        self.path = os.path.abspath(_path_of(self._conf))
        file = os.path.join(self.path, _FILE)
        return _sql.DatabaseOptions(sa.URL.create("sqlite+pysqlite", database=file))

    def upgrade(self) -> None:
        """Create the folder and its tables, or upgrade the tables to the current layout."""
        self._check()
        _make_folders(self.path)
        super().upgrade()

    def stored_layout(self) -> schema_revisions.Layout | None:
        self._check()
        return super().stored_layout()

    def _check(self) -> None:
        """Check that the path is a usable folder, or does not exist.

        :raises StorageFailure: if the check fails.
        """
        try:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise exceptions.StorageFailure(f"{self.path} cannot be used: it is not a folder")
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable_error(self.path, error) from error

    def __repr__(self) -> str:
        return f"<DirectoryBackend {self.path}>"


def _make_folders(path: str) -> None:
    """Create a folder and its parents, and sync each parent: the folders survive a host crash."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_folders(parent)
    try:
        os.makedirs(path, _FOLDER_MODE, exist_ok=True)
        _sync_folder(parent)
    except OSError as error:
        raise _unusable_error(path, error) from error


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unusable_error(path: str, error: OSError) -> exceptions.StorageFailure:
    return exceptions.StorageFailure(f"{path} cannot be used: {error.strerror or error}", error)


def _path_of(conf: Mapping[str, Any]) -> str:
    if conf.get("path") is not None:
        return os.path.expanduser(named_options.text("path", os.fspath(conf["path"])))
    uri = urllib.parse.urlsplit(str(conf.get("connection") or ""))
    if uri.netloc:
        raise ValueError(
            f"connection={conf['connection']!r} names a host, {uri.netloc!r}; write a"
            f" folder with three slashes: {uri.scheme}:///{uri.netloc}{uri.path}"
        )
    if uri.fragment:
        raise ValueError(
            f"connection={conf['connection']!r} contains '#': write it as %23 in a path"
        )
    path = urllib.parse.unquote(uri.path) if uri.scheme else ""
    if not path.strip("/"):
        raise ValueError(
            "A directory backend requires 'path' (the folder) or connection='dir:///folder', got"
            f" {conf.get('connection') or sorted(conf)!r:.80}"
        )
    return path
