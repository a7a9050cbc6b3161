"""Notifications from a database, as a replacement for polling."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine._sql import open_sqlite_files, sqlalchemy_engines

__all__ = ["can_listen", "can_watch", "listen", "watch"]

#: Interval at which `listen` checks whether it must end.
_CHECK_SECONDS: Final = 0.25
#: Interval at which `watch` checks a file for commits. A check takes up to 0.1 ms of processor
#: time.
_WATCH_SECONDS: Final = 0.01


def can_listen(engine: sa.Engine) -> bool:
    """Return True if the database and its driver support notifications."""
    return bool(engine.driver == "psycopg")


def listen(
    engine: sa.Engine,
    channel: str,
    payload: str,
    on_notification: Callable[[], None],
    is_over: Callable[[], bool],
) -> None:
    """Call `on_notification` first and for each notification of the channel, until `is_over()`.

    Return at once if the connection is pooled: the session of a pooler receives no notifications.

    :raises Exception: if the connection is lost.
    """
    from wbengine._sql import postgresql_sessions

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if postgresql_sessions.is_pooled(connection):
            return
        driver = _detach(connection)
        driver.execute(f"LISTEN {channel}")
        on_notification()  # Events before this moment caused no notification.
        while not is_over():
            for notification in driver.notifies(timeout=_CHECK_SECONDS):
                if notification.payload == payload:
                    on_notification()


def can_watch(engine: sa.Engine) -> bool:
    """Return True if the database is an SQLite file."""
    return sqlalchemy_engines.writer_of(engine) is not None


def watch(
    engine: sa.Engine,
    query: str,
    parameters: Mapping[str, Any],
    on_due: Callable[[], None],
    repeat_seconds: float,
    is_over: Callable[[], bool],
) -> None:
    """Call `on_due` at the time that a query of an SQLite file returns, until `is_over()`.

    The query returns the seconds until then, or NULL. It is executed first, at that time, and when
    other connections have committed. As long as it returns 0, `on_due` is called at intervals of
    `repeat_seconds`.

    :raises Exception: if the file cannot be read.
    """
    writer = sqlalchemy_engines.writer_of(engine)
    assert writer is not None
    while not is_over():  # A fork closes the connection.
        _watch(engine, writer.file, query, parameters, on_due, repeat_seconds, is_over)


def _watch(
    engine: sa.Engine,
    file: open_sqlite_files.OpenFile,
    query: str,
    parameters: Mapping[str, Any],
    on_due: Callable[[], None],
    repeat_seconds: float,
    is_over: Callable[[], bool],
) -> None:
    with file:
        connection = engine.connect()
        driver = _detach(connection)
        file.detached.add(driver)
    version, query_at, call_at = None, 0.0, 0.0
    try:
        while not is_over():
            with file:
                if driver not in file.detached:  # A fork closed it.
                    return
                ((latest,),) = driver.execute("PRAGMA data_version")
                now = time.monotonic()
                is_due = latest != version or now >= query_at
                if is_due:
                    version = latest
                    ((seconds,),) = driver.execute(query, parameters)
            if is_due:
                if seconds is None or seconds > 0:
                    query_at, call_at = now + (math.inf if seconds is None else seconds), 0.0
                else:
                    if now >= call_at:
                        on_due()
                        call_at = now + repeat_seconds
                    query_at = call_at
            time.sleep(_WATCH_SECONDS)
    finally:
        if driver in file.detached:
            file.detached.discard(driver)
            connection.close()


def _detach(connection: sa.Connection) -> Any:
    """Return the connection of the driver. The pool may open another one instead."""
    connection.detach()
    return connection.connection.dbapi_connection
