"""The kinds of persistence backends, found by name, by URI, or by a dict of options."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine import _plugins
from wbengine.persistence import base

__all__ = ["BACKEND_NAMESPACE", "backend", "fetch"]

#: Entry points of other kinds of backends.
BACKEND_NAMESPACE: Final = "wbengine.persistence"

#: Kinds that are always there; others come by entry point.
KINDS: Final[Mapping[str, str]] = {
    "memory": "wbengine.persistence.backends.memory:MemoryBackend",
    "dir": "wbengine.persistence.backends.directory:DirectoryBackend",
    "file": "wbengine.persistence.backends.directory:DirectoryBackend",
    "sqlite": "wbengine.persistence.backends.sql:SQLBackend",
    "mysql": "wbengine.persistence.backends.sql:SQLBackend",
    "postgresql": "wbengine.persistence.backends.sql:SQLBackend",
}

#: Names of other people's for kinds there are.
_MEANT: Final[Mapping[str, str]] = {
    "mariadb": "mysql",
    "postgres": "postgresql",
    "directory": "dir",
    "folder": "dir",
}


def fetch(
    conf: Mapping[str, Any] | str, namespace: str = BACKEND_NAMESPACE, **options: Any
) -> base.Backend:
    """Make the backend that `conf` describes.

    `conf` is a dict whose `connection` is a kind or a URI ('memory', 'dir:///var/lib/flows',
    'postgresql://user:secret@host/db?max_pool_size=9'), or that string itself.  Options are
    keywords here, further keys of the dict, or parts of the URI's query; of one that is given twice
    the first of these counts.  What a kind takes is told by its class.

    :raises NotFound: an unknown kind; the text names those there are.
    :raises ValueError: the configuration names no kind, or an option that the kind does not know,
        or a value that an option cannot have.
    :raises TypeError: it is neither a dict nor a string.
    """
    if not isinstance(conf, str | Mapping):
        raise TypeError(f"A persistence configuration is a dict or a URI, not {conf!r}")
    found: dict[str, Any] = {"connection": conf} if isinstance(conf, str) else dict(conf)
    found.update(options)
    connection = found.get("connection")
    if not connection:
        raise ValueError(
            "A persistence configuration needs a 'connection' (a kind or a URI),"
            f" got {sorted(found)}"
        )
    scheme, colon, _ = str(connection).partition(":")
    if colon:
        query = urllib.parse.urlsplit(str(connection)).query
        for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
            found.setdefault(key, value)
    # What is behind a '+' is a driver: the business of the kind.
    kind = scheme.partition("+")[0]
    factory = _plugins.load(
        "persistence backend", kind, KINDS, namespace, BACKEND_NAMESPACE, _MEANT
    )
    made: base.Backend = factory(found)
    return made


@contextlib.contextmanager
def backend(
    conf: Mapping[str, Any] | str, namespace: str = BACKEND_NAMESPACE, **options: Any
) -> Iterator[base.Backend]:
    """Fetch a backend, bring its layout up to date, and close it at the end."""
    with contextlib.closing(fetch(conf, namespace=namespace, **options)) as made:
        with contextlib.closing(made.get_connection()) as connection:
            connection.upgrade()
        yield made
