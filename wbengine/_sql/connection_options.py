"""Options of a database, under the names of TaskFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._sql import dialects

__all__ = ["AUTO", "DEFAULT_PORTS", "OPTIONS", "DatabaseOptions", "parse"]

DRIVERS: Final[Mapping[str, str]] = {
    dialects.SQLITE: "pysqlite",
    dialects.MYSQL: "pymysql",
    dialects.POSTGRESQL: "psycopg",
}
_ALIASES: Final[Mapping[str, str]] = {
    "mariadb": dialects.MYSQL,
    "postgres": dialects.POSTGRESQL,
    "pgsql": dialects.POSTGRESQL,
}
DEFAULT_PORTS: Final[Mapping[str, int]] = {dialects.MYSQL: 3306, dialects.POSTGRESQL: 5432}
#: psycopg's default threshold; no statement is prepared on connections to a pooler.
AUTO: Final = "auto"
_MODE: Final = re.compile("[A-Za-z_,0-9]*")
_LEVELS: Final = (
    "READ UNCOMMITTED",
    "READ COMMITTED",
    "REPEATABLE READ",
    "SERIALIZABLE",
)


@dataclass(frozen=True)
class DatabaseOptions:
    """Address and options of a database.

    `max_retries` is the number of attempts to connect after the first (13 s in total by default).
    `max_pool_size`, `max_overflow` and `pool_timeout` (seconds) configure the pool of connections.
    If `max_pool_size` is 0, each connection is closed after its use.
    Connections that were idle for `idle_timeout` seconds are replaced. `checkout_ping` checks
    connections before use. `isolation_level` is that of writing transactions. `log_statements` logs
    statements without values at level DEBUG. `engine_args` are additional arguments of SQLAlchemy's
    `create_engine`.
    """

    url: sa.URL
    max_retries: int = 10
    max_pool_size: int = 5
    max_overflow: int = 10
    pool_timeout: float = 30.0
    idle_timeout: float | None = 3600.0
    isolation_level: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    log_statements: bool = False
    checkout_ping: bool = True
    mysql_sql_mode: str | None = "TRADITIONAL"
    prepare_threshold: int | str | None = AUTO

    @property
    def dialect(self) -> str:
        """'sqlite', 'mysql' or 'postgresql'."""
        return self.url.get_backend_name()

    @property
    def address(self) -> tuple[str, int | None, str]:
        """Hosts, port and name of the database, to compare two URLs."""
        hosts = self.url.query.get("host") or self.url.host or ""
        port = self.url.port or DEFAULT_PORTS.get(self.dialect)
        return ",".join([hosts] if isinstance(hosts, str) else hosts), port, str(self.url.database)

    @property
    def in_memory(self) -> bool:
        """Whether it is a SQLite database in memory, which ends with its only connection."""
        path = self.url.database
        return self.dialect == dialects.SQLITE and (
            path in (None, "", ":memory:") or self.url.query.get("mode") == "memory"
        )


def parse(url: str, options: Mapping[str, Any] | None = None) -> DatabaseOptions:
    """Parse a URL and options, which may also be in the query of the URL.

    An option that is None has its default, unless None is a valid value.

    :raises ValueError: if one of them is invalid. The message never contains the password of the
        URL.
    """
    parsed_url = _url(url)
    values: dict[str, Any] = {
        key: value for key, value in parsed_url.query.items() if key in OPTIONS
    }
    for key, value in (options or {}).items():
        if key in OPTIONS:
            values[key] = value
        elif key not in parsed_url.query:  # The driver reads it from the query.
            named_options.check_known("A database", [key], OPTIONS)
    parsed_url = parsed_url.difference_update_query(
        [key for key in parsed_url.query if key in OPTIONS]
    )
    levels = values.pop("isolation_levels", None)
    values.pop("checkin_yield", None)
    read = {
        key: OPTIONS[key](key, value)
        for key, value in values.items()
        if value is not None or key in _NULLABLE_OPTIONS
    }
    if levels is not None and read.get("isolation_level") is None:
        by_dialect = _mapping("isolation_levels", levels)
        level = by_dialect.get(parsed_url.get_backend_name())
        read["isolation_level"] = _level("isolation_levels", level)
    return DatabaseOptions(parsed_url, **read)


def _url(text: str) -> sa.URL:
    form = "'sqlite:////path/of.db', 'mysql://user@host/db' or 'postgresql://user@host/db'"
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        kind = str(text).partition(":")[0][:40]
        raise ValueError(f"The URL of a database must be like {form}, got {kind!r}...") from None
    name, _, driver = url.drivername.partition("+")
    name = _ALIASES.get(name, name)
    if name not in DRIVERS:
        raise ValueError(
            f"Unknown kind of database {url.drivername!r}{object_names.hint(name, DRIVERS)}:"
            f" use {form}"
        )
    url = url.set(drivername=f"{name}+{driver or DRIVERS[name]}")
    if name != dialects.SQLITE and "@" in f"{url.host}{url.database}":
        # The first "@" ends the password: a part of it would be read and printed as the host.
        raise ValueError(
            f"The URL of a database must be like {form}; write @ : / ? # in a password as"
            " %40 %3A %2F %3F %23"
        )
    if name == dialects.SQLITE and (url.database or "").endswith("/"):
        raise ValueError(f"The URL of a database must be like {form}, got the folder {text!r:.80}")
    if name != dialects.SQLITE and not url.database:
        raise ValueError(
            f"The URL of a database must contain its name, as in {form}, got"
            f" {url.render_as_string()!r}"
        )
    return url


def _reject(key: str, what: str, value: Any) -> ValueError:
    return ValueError(f"Option {key} must be {what}, got {value!r:.80}")


def _overflow(key: str, value: Any) -> int:
    return -1 if value in (-1, "-1") else named_options.whole(key, value)


def _seconds(key: str, value: Any) -> float | None:
    return None if value in (None, -1, "-1") else named_options.number(key, value)


def _level(key: str, value: Any) -> str | None:
    if value is None:
        return None
    level = value.upper().replace("_", " ") if isinstance(value, str) else None
    if level not in _LEVELS:
        raise _reject(key, "one of " + ", ".join(_LEVELS), value)
    return level


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _reject(key, "a dict", value)
    return dict(value)


def _modes(key: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _MODE.fullmatch(value)):
        raise _reject(key, "a list of modes", value)
    return value


def _threshold(key: str, value: Any) -> int | str | None:
    text = str(value).lower()
    if text in (AUTO, "none"):
        return AUTO if text == AUTO else None
    return named_options.whole(key, value)


#: Options for which None is a value.
_NULLABLE_OPTIONS: Final = ("idle_timeout", "mysql_sql_mode", "prepare_threshold")

OPTIONS: Final[Mapping[str, named_options.Reader]] = {
    "max_retries": named_options.whole,
    "max_pool_size": named_options.whole,
    "max_overflow": _overflow,
    "pool_timeout": named_options.number,
    "idle_timeout": _seconds,
    "isolation_level": _level,
    "isolation_levels": _mapping,
    "engine_args": _mapping,
    "log_statements": named_options.flag,
    "checkin_yield": named_options.anything,
    "checkout_ping": named_options.flag,
    "mysql_sql_mode": _modes,
    "prepare_threshold": _threshold,
}
