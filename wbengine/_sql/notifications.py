"""Notifications from a database, as a replacement for polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

__all__ = ["can_listen", "listen"]

#: Interval at which `listen` checks whether it must end.
_CHECK_SECONDS: Final = 0.25


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

    :raises Exception: if the connection is lost.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # The pool may open another connection instead.
        driver: Any = connection.connection.dbapi_connection
        driver.execute(f"LISTEN {channel}")
        on_notification()  # Events before this moment caused no notification.
        while not is_over():
            for notification in driver.notifies(timeout=_CHECK_SECONDS):
                if notification.payload == payload:
                    on_notification()
