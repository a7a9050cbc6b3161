"""Job boards, selected by name, by URI or by a dict of options."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine._configuration import plugins, server_urls
from wbengine.jobs import base

__all__ = ["BACKEND_NAMESPACE", "backend", "fetch"]

#: Entry point group of additional boards.
BACKEND_NAMESPACE: Final = "wbengine.jobboards"

_SQL: Final = "wbengine.jobs.backends.impl_sql:SQLJobBoard"
_DATABASE_SCHEMES: Final = ("dir", "file", "sqlite", "mysql", "postgresql")

KINDS: Final[Mapping[str, str]] = {
    "memory": "wbengine.jobs.backends.impl_memory:MemoryJobBoard",
    "sql": _SQL,
    "redis": "wbengine.jobs.backends.impl_redis:RedisJobBoard",
    "rediss": "wbengine.jobs.backends.impl_redis:RedisJobBoard",
    "zookeeper": "wbengine.jobs.backends.impl_zookeeper:ZookeeperJobBoard",
    "etcd": "wbengine.jobs.backends.impl_etcd:EtcdJobBoard",
    **dict.fromkeys(_DATABASE_SCHEMES, _SQL),
}

#: For hints in error messages.
_ALIASES: Final[Mapping[str, str]] = {
    "filesystem": "dir",
    "mariadb": "mysql",
    "postgres": "postgresql",
    "unix": "redis",
}
_WITHOUT_DRIVER: Final = KINDS.keys() - {"sqlite", "mysql", "postgresql"}


def fetch(
    name: str,
    conf: Mapping[str, Any] | str,
    namespace: str = BACKEND_NAMESPACE,
    **options: Any,
) -> base.JobBoard:
    """Create a board. The caller connects it.

    :param conf: a dict whose `board` is a kind or a URI, or that string itself: 'memory', 'sql',
        the URI of a database ('sqlite:////var/lib/flows.db', 'postgresql://user:secret@host/db'),
        or 'redis://:secret@host:6379/0', 'rediss://host', 'zookeeper://one:2181,two:2181/path',
        'etcd://host:2379/path'. Further keys, and the query of a URI, are options of the kind.
    :param options: arguments of the board's class: `persistence=` for all, `client=` for Redis,
        ZooKeeper and etcd.
    :raises NotFound: if the kind is unknown; the message lists the known ones.
    :raises ValueError: if the configuration contains no kind, or an option is invalid.
    :raises TypeError: if the configuration is neither a dict nor a str.
    """
    if not isinstance(conf, str | Mapping):
        raise TypeError(f"Job board configuration must be a dict or a URI, got {conf!r}")
    settings: dict[str, Any] = {"board": conf} if isinstance(conf, str) else dict(conf)
    board = settings.pop("board", None)
    if not board or not isinstance(board, str):
        raise ValueError(
            "Job board configuration must contain 'board' (a kind or a URI), got keys"
            f" {sorted(settings)}"
        )
    scheme, colon, _ = board.partition(":")
    kind = plugins.kind_of(scheme, _WITHOUT_DRIVER)
    if colon and kind in _DATABASE_SCHEMES:
        connection, options_of_board = _split_board_options(board)
        settings = {"connection": connection, **options_of_board, **settings}
    elif colon:
        settings = {**_options_in_uri(kind, board), **settings}
    factory = plugins.load("job board", kind, KINDS, namespace, BACKEND_NAMESPACE, _ALIASES)
    board_object: base.JobBoard = factory(name, settings, **options)
    return board_object


def _split_board_options(uri: str) -> tuple[str, dict[str, Any]]:
    """Split a database URI into the URI of the store and the options of the board."""
    location, _, query = uri.partition("?")
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    board_options = {name: value for name, value in pairs if name == "namespace"}
    if not board_options:
        return uri, {}
    store_query = urllib.parse.urlencode([pair for pair in pairs if pair[0] not in board_options])
    return f"{location}?{store_query}" if store_query else location, board_options


def _options_in_uri(kind: str, uri: str) -> dict[str, Any]:
    parts = server_urls.split("the URI of a job board", uri)
    query_options: dict[str, Any] = dict(
        urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    )
    path = parts.path.strip("/")
    options: dict[str, Any] = {}
    if kind == "zookeeper":
        hosts = parts.netloc.rpartition("@")[2]
        options = {"hosts": hosts, "path": path and f"/{path}"}
    elif kind in ("redis", "rediss", "etcd"):
        options = {"host": parts.hostname, "port": parts.port}
        options["path" if kind == "etcd" else "db"] = path
        if kind != "etcd":
            user, password = parts.username or "", parts.password or ""
            options["username"] = urllib.parse.unquote(user)
            options["password"] = urllib.parse.unquote(password)
            options["ssl"] = kind == "rediss"
    return {**{name: value for name, value in options.items() if value}, **query_options}


@contextlib.contextmanager
def backend(
    name: str,
    conf: Mapping[str, Any] | str,
    namespace: str = BACKEND_NAMESPACE,
    **options: Any,
) -> Iterator[base.JobBoard]:
    """Create and connect a board, and close it at the end."""
    with contextlib.closing(fetch(name, conf, namespace=namespace, **options)) as board:
        board.connect()
        yield board
