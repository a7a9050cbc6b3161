"""Engines of SQLAlchemy for databases of the user."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import pool

from wbengine._sql import connection_options, dialects, sqlalchemy_engines

__all__ = ["engine"]


def engine(source: str | sa.Engine) -> sa.Engine:
    """Return an engine, or make one for a URL, without connecting.

    An own engine leaves the sessions as the database and its user configure them.

    :raises TypeError: if the source is neither a URL nor an engine.
    :raises ValueError: if the URL is invalid, the kind of database is not supported, or each
        statement would be a transaction.
    """
    if isinstance(source, sa.Engine):
        if source.dialect.name not in ("mariadb", *connection_options.DRIVERS):
            raise ValueError(
                "The database must be SQLite, PostgreSQL, MySQL or MariaDB, got"
                f" {source.dialect.name!r}"
            )
        options = source.get_execution_options()
        level = options.get("isolation_level") or getattr(
            source.dialect, "_on_connect_isolation_level", None
        )
        if level == "AUTOCOMMIT":
            raise ValueError("The engine must use transactions, got the isolation level AUTOCOMMIT")
        return source
    if not isinstance(source, str):
        raise TypeError(f"A database must be a URL or a SQLAlchemy engine, got {source!r:.80}")
    settings = connection_options.parse(source)
    arguments = {
        "hide_parameters": True,
        "pool_pre_ping": settings.checkout_ping and settings.dialect != dialects.SQLITE,
        **settings.engine_args,
    }
    if settings.isolation_level and settings.dialect != dialects.SQLITE:
        arguments.setdefault("isolation_level", settings.isolation_level)
    if not (settings.in_memory or settings.max_pool_size):
        arguments.setdefault("poolclass", pool.NullPool)
    elif not settings.in_memory:
        arguments.setdefault("pool_size", settings.max_pool_size)
        arguments.setdefault("max_overflow", settings.max_overflow)
        arguments.setdefault("pool_timeout", settings.pool_timeout)
    return sqlalchemy_engines.create(settings, arguments)
