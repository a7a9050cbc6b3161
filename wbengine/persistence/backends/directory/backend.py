"""The directory backend and its options."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from wbengine import _clock, _options
from wbengine.persistence import base
from wbengine.persistence.backends.directory import connection, library, listing, store

__all__ = ["DirectoryBackend"]

_CACHED: Final = 1000


class DirectoryBackend(base.Backend):
    """Keeps books in a folder of the local file system, or of one whose locks work (see package).

    Options:

    `path`: the folder; also as `connection`, 'dir:///var/lib/flows'.  Made when something is saved.
    `max_cache_size` (default 1,000): of so many atoms it is remembered where they are.
    `encoding`: accepted; what is written is UTF-8.

    A turn of an engine (`save_changes`) is one append to the flow's journal and one fsync, however
    many records it has.  Reading needs nothing but the right to read.

    :raises ValueError: there is no path, another option, or a value that an option cannot have.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset(
        {"connection", "path", "max_cache_size", "encoding"}
    )

    def __init__(
        self, conf: Mapping[str, Any] | None = None, *, clock: _clock.Clock = _clock.SYSTEM
    ) -> None:
        super().__init__(conf)
        _options.check_known("A directory backend", self._conf, self.OPTIONS)
        asked = self._conf.get("max_cache_size")
        most = _CACHED if asked is None else _options.whole("max_cache_size", asked, 1)
        self.path = os.path.abspath(_path_in(self._conf))
        self._clock = clock
        self._store = store.Store(self.path, most)
        self._library = library.Library(self._store, clock.time)
        self._lister = listing.Lister(self._store, self._library.books)

    def get_connection(self) -> connection.DirectoryConnection:
        return connection.DirectoryConnection(
            self, self._store, self._library, self._lister, self._clock.time
        )

    def close(self) -> None:
        self._store.close()


def _path_in(conf: Mapping[str, Any]) -> str:
    if conf.get("path") is not None:
        return os.path.expanduser(_options.text("path", os.fspath(conf["path"])))
    uri = urllib.parse.urlsplit(str(conf.get("connection") or ""))
    if uri.netloc:
        raise ValueError(
            f"connection={conf['connection']!r} has a host, {uri.netloc!r}; a folder is written"
            f" with three slashes: {uri.scheme}:///{uri.netloc}{uri.path}"
        )
    if uri.fragment:
        raise ValueError(
            f"connection={conf['connection']!r} has a '#': in a path it is written %23"
        )
    path = urllib.parse.unquote(uri.path) if uri.scheme else ""
    if not path:
        raise ValueError(
            "A directory backend needs a 'path' (the folder),"
            f" also as connection='dir:///folder'; got {sorted(conf)}"
        )
    return path
