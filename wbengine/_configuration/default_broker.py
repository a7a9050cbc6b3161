"""The broker of engines, workers and commands that set none: the flows' database, or a folder.

PostgreSQL and MySQL are store and broker at once. Other stores carry no messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib import parse

__all__ = [
    "FOLDER", "STORE_VARIABLE", "URL_VARIABLE", "choose", "set_store_of_process", "store_url",
]  # fmt: skip

#: Environment variable with the default broker of engines and workers.
URL_VARIABLE: Final = "WBENGINE_URL"
#: Environment variable with the store of flows.
STORE_VARIABLE: Final = "WBENGINE_PERSISTENCE"
#: Name of the transport through a folder.
FOLDER: Final = "filesystem"

#: Transports through the database of a store, by the kinds of stores.
_TRANSPORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("postgresql", "postgres", "pgsql"), "postgresql"),
    **dict.fromkeys(("mysql", "mariadb"), "mysql"),
}
#: Types of options that a URL can contain.
_IN_URL: Final = (str, int, float)

_store_of_process: str | None = None


def set_store_of_process(store: str | None) -> None:
    """Set the store whose database is the default broker. None: that of `$WBENGINE_PERSISTENCE`."""
    global _store_of_process
    _store_of_process = store


def choose(
    url: str | None,
    transport: Any,
    transport_options: Mapping[str, Any] | None,
    store: str | None = None,
) -> tuple[str | None, Any]:
    """Return URL and transport.

    If both are None, they are `$WBENGINE_URL`, or else the database of the flows if that is
    PostgreSQL or MySQL, or else the default folder.

    :param store: the URL of the flows' store; None: that of the process.
    """
    if url is not None or transport is not None:
        return url, transport
    options = transport_options or {}
    if not (options.get("data_folder_in") or options.get("data_folder_out")):
        if store is None:
            store = _store_of_process or os.environ.get(STORE_VARIABLE, "")
        url = os.environ.get(URL_VARIABLE) or _broker_in(store)
    return (None, FOLDER) if url is None else (url, None)


def store_url(conf: Mapping[str, Any]) -> str:
    """Return the URL of a store, with the options of its dict that a URL can contain."""
    whole = str(conf.get("connection", ""))
    url, _, query = whole.partition("?")
    pairs = parse.parse_qsl(query, keep_blank_values=True)
    options = {**conf, **(conf.get("engine_args") or {}).get("connect_args", {})}
    others = {
        key: str(value)
        for key, value in options.items()
        if key != "connection" and isinstance(value, _IN_URL) and (key, str(value)) not in pairs
    }
    if not others:
        return whole
    pairs = [(key, value) for key, value in pairs if key not in others]
    return f"{url}?{parse.urlencode([*pairs, *others.items()], quote_via=parse.quote)}"


def _broker_in(store: str) -> str | None:
    scheme, mark, rest = store.partition("://")
    transport = _TRANSPORTS.get(scheme.lower().partition("+")[0]) if mark else None
    return None if transport is None else f"{transport}://{rest}"
