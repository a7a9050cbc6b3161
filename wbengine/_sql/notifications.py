"""Being told by a database that something is there, rather than asking again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

__all__ = ["can_listen", "listen"]

#: So often it looks whether it is to end.
_LOOK: Final = 0.25


def can_listen(engine: sa.Engine) -> bool:
    """Whether the database, and its driver, can tell."""
    return bool(engine.driver == "psycopg")


def listen(
    engine: sa.Engine,
    channel: str,
    payload: str,
    heard: Callable[[], None],
    ended: threading.Event,
) -> None:
    """Call `heard` when PostgreSQL notifies the channel, and once at first, until `ended` is set.

    :raises Exception: the connection was lost.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # the pool may have another one
        driver: Any = connection.connection.dbapi_connection
        driver.execute(f"LISTEN {channel}")
        heard()  # of what was there before
        while not ended.is_set():
            for told in driver.notifies(timeout=_LOOK):
                if told.payload == payload:
                    heard()
