"""The kinds of job boards, found by name, by URI, or by a dict of options."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wbengine import _plugins
from wbengine.jobs import base

__all__ = ["BACKEND_NAMESPACE", "backend", "fetch"]

#: Entry points of other kinds of boards.
BACKEND_NAMESPACE: Final = "wbengine.jobboards"

_SQL: Final = "wbengine.jobs.backends.impl_sql:SQLJobBoard"
#: Those that are the URI of a database.
_DATABASES: Final = ("dir", "file", "sqlite", "mysql", "postgresql")

#: Kinds that are always there; others come by entry point.
KINDS: Final[Mapping[str, str]] = {
    "memory": "wbengine.jobs.backends.impl_memory:MemoryJobBoard",
    "sql": _SQL,
    "redis": "wbengine.jobs.backends.impl_redis:RedisJobBoard",
    "rediss": "wbengine.jobs.backends.impl_redis:RedisJobBoard",
    "zookeeper": "wbengine.jobs.backends.impl_zookeeper:ZookeeperJobBoard",
    "etcd": "wbengine.jobs.backends.impl_etcd:EtcdJobBoard",
    **dict.fromkeys(_DATABASES, _SQL),
}

#: Names of other people's for kinds there are.
_MEANT: Final[Mapping[str, str]] = {"mariadb": "mysql", "postgres": "postgresql"}


def fetch(
    name: str,
    conf: Mapping[str, Any] | str,
    namespace: str = BACKEND_NAMESPACE,
    **options: Any,
) -> base.JobBoard:
    """Make the board that `conf` describes; it is to be connected.

    `conf` is a dict whose `board` is a kind or a URI, or that string itself: 'memory', 'sql', the
    URI of a database ('sqlite:////var/lib/flows.db', 'postgresql://user:secret@host/db'), or
    'redis://:secret@host:6379/0', 'rediss://host', 'zookeeper://one:2181,two:2181/path',
    'etcd://host:2379/path'.  Its further keys, and those in the query of a URI, are options of the
    kind; `options` are arguments of its class, `persistence=` for all, `client=` for the last ones.

    :raises NotFound: an unknown kind; the text names those there are.
    :raises ValueError: the configuration names no kind, or an option is wrong.
    :raises TypeError: it is neither a dict nor a string.
    """
    if not isinstance(conf, str | Mapping):
        raise TypeError(f"The configuration of a job board is a dict or a URI, not {conf!r}")
    found: dict[str, Any] = {"board": conf} if isinstance(conf, str) else dict(conf)
    board = found.pop("board", None)
    if not board or not isinstance(board, str):
        raise ValueError(
            "The configuration of a job board needs a 'board' (a kind or a URI),"
            f" got {sorted(found)}"
        )
    scheme, colon, _ = board.partition(":")
    kind = scheme.partition("+")[0]
    if colon and kind in _DATABASES:
        found.setdefault("connection", board)
    elif colon:
        found = {**_told(kind, board), **found}
    factory = _plugins.load("job board", kind, KINDS, namespace, BACKEND_NAMESPACE, _MEANT)
    made: base.JobBoard = factory(name, found, **options)
    return made


def _told(kind: str, uri: str) -> dict[str, Any]:
    """The options of a kind that are in a URI."""
    parts = urllib.parse.urlsplit(uri)
    found: dict[str, Any] = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    path = parts.path.strip("/")
    told: dict[str, Any] = {}
    if kind == "zookeeper":
        hosts = parts.netloc.rpartition("@")[2]
        told = {"hosts": hosts, "path": path and f"/{path}"}
    elif kind in ("redis", "rediss", "etcd"):
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"The URI of a job board has a wrong port ({error})") from None
        told = {"host": parts.hostname, "port": port, "path" if kind == "etcd" else "db": path}
        if kind != "etcd":
            user, password = parts.username or "", parts.password or ""
            told["username"] = urllib.parse.unquote(user)
            told["password"] = urllib.parse.unquote(password)
            told["ssl"] = kind == "rediss"
    return {**{name: value for name, value in told.items() if value}, **found}


@contextlib.contextmanager
def backend(
    name: str,
    conf: Mapping[str, Any] | str,
    namespace: str = BACKEND_NAMESPACE,
    **options: Any,
) -> Iterator[base.JobBoard]:
    """Fetch a board, connect it, and close it at the end."""
    with contextlib.closing(fetch(name, conf, namespace=namespace, **options)) as made:
        made.connect()
        yield made
