"""The kinds of persistence backends, found by name, by URI, or by a dict of options."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine import _names, _plugins, exceptions
from wbengine.persistence import base

__all__ = ["BACKEND_NAMESPACE", "backend", "fetch"]

#: Entry points of other kinds of backends.
BACKEND_NAMESPACE: Final = "wbengine.persistence"

#: Kinds that are always there; others come by entry point.
KINDS: Final[Mapping[str, str]] = {
    "memory": "wbengine.persistence.backends.memory:MemoryBackend",
}


def fetch(
    conf: Mapping[str, Any] | str, namespace: str = BACKEND_NAMESPACE, **options: Any
) -> base.Backend:
    """Make the backend that `conf` describes.

    `conf` is a dict whose `connection` is a kind or a URI ('memory',
    'memory://?deep_copy=false'), or that string itself; the options of a URI are added to the
    dict's, `options` win over both.

    :raises NotFound: an unknown kind; the text names those there are.
    :raises ValueError: the configuration names no kind.
    :raises TypeError: it is neither a dict nor a string.
    """
    if not isinstance(conf, str | Mapping):
        raise TypeError(f"A persistence configuration is a dict or a URI, not {conf!r}")
    found: dict[str, Any] = {"connection": conf} if isinstance(conf, str) else dict(conf)
    if "connection" not in found:
        raise ValueError(
            "A persistence configuration needs a 'connection' (a kind or a URI),"
            f" got {sorted(found)}"
        )
    found.update(options)
    connection = str(found["connection"])
    kind, colon, _ = connection.partition(":")
    if colon:
        uri = urllib.parse.urlsplit(connection)
        for key, value in urllib.parse.parse_qsl(uri.query):
            found.setdefault(key, _flag(value))
    kind = kind.partition("+")[0]
    factory: Any
    if kind in KINDS:
        factory = _names.load(KINDS[kind])
    else:
        try:
            factory = _plugins.find(namespace, kind)
        except exceptions.NotFound as error:
            known = sorted({*KINDS, *_plugins.names(namespace)})
            raise exceptions.NotFound(
                f"No persistence backend of kind {kind!r}{_names.hint(kind, known)};"
                f" known kinds: {', '.join(known)}"
            ) from error
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


def _flag(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value)
