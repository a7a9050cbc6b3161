"""Persistence backends, selected by name, by URI or by a dict of options."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine._configuration import plugins
from wbengine.persistence import base

__all__ = ["BACKEND_NAMESPACE", "backend", "fetch"]

#: Entry point group of additional backends.
BACKEND_NAMESPACE: Final = "wbengine.persistence"

KINDS: Final[Mapping[str, str]] = {
    "memory": "wbengine.persistence.backends._memory:MemoryBackend",
    "dir": "wbengine.persistence.backends._directory:DirectoryBackend",
    "file": "wbengine.persistence.backends._directory:DirectoryBackend",
    "sqlite": "wbengine.persistence.backends._sql:SQLBackend",
    "mysql": "wbengine.persistence.backends._sql:SQLBackend",
    "postgresql": "wbengine.persistence.backends._sql:SQLBackend",
}

#: Other names of kinds, for hints in error messages.
_ALIASES: Final[Mapping[str, str]] = {
    "mariadb": "mysql",
    "postgres": "postgresql",
    "directory": "dir",
    "filesystem": "dir",
    "folder": "dir",
}
_WITHOUT_DRIVER: Final = ("memory", "dir", "file")


def fetch(
    conf: Mapping[str, Any] | str, namespace: str = BACKEND_NAMESPACE, **options: Any
) -> base.Backend:
    """Create a backend.

    :param conf: a dict whose `connection` is a kind or a URI ('memory', 'dir:///var/lib/flows',
        'postgresql://user:secret@host/db?max_pool_size=9'), or only the kind or URI.
    :param options: options of the kind. They can also be keys of the dict or parts of the URI's
        query. Keywords take precedence over keys, and keys over the query. `payloads` is an option
        of all kinds: a folder, or a URL of fsspec, for large values of the flows (default:
        `$WBENGINE_PAYLOADS`; 'none': they stay in the records).
    :raises NotFound: if the kind is unknown; the message lists the known ones.
    :raises ValueError: if the kind is missing, or an option is unknown or invalid.
    :raises TypeError: if the configuration is neither a dict nor a str.
    """
    if not isinstance(conf, str | Mapping):
        raise TypeError(f"A persistence configuration must be a dict or a URI, got {conf!r}")
    settings: dict[str, Any] = {"connection": conf} if isinstance(conf, str) else dict(conf)
    settings.update(options)
    connection = settings.get("connection")
    if not connection:
        raise ValueError(
            "A persistence configuration must contain 'connection' (a kind or a URI), got"
            f" {sorted(settings)}"
        )
    scheme, colon, _ = str(connection).partition(":")
    if colon:
        query = str(connection).partition("?")[2].partition("#")[0]
        for key, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
            settings.setdefault(key, value)
    kind = plugins.kind_of(scheme, _WITHOUT_DRIVER)  # The backend interprets the driver.
    factory = plugins.load(
        "persistence backend", kind, KINDS, namespace, BACKEND_NAMESPACE, _ALIASES
    )
    payloads = settings.pop("payloads", None)
    created: base.Backend = factory(settings)
    if payloads is not None:
        created.payloads_location = str(payloads)
        created.payloads  # noqa: B018  (checks the location)
    return created


@contextlib.contextmanager
def backend(
    conf: Mapping[str, Any] | str, namespace: str = BACKEND_NAMESPACE, **options: Any
) -> Iterator[base.Backend]:
    """Create a backend, upgrade its layout, and close the backend at the end of the block."""
    with contextlib.closing(fetch(conf, namespace=namespace, **options)) as store:
        with contextlib.closing(store.get_connection()) as connection:
            connection.upgrade()
        yield store
