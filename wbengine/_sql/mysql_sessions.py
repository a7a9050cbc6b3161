"""Sessions of MySQL and MariaDB."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from wbengine._sql import dialects

__all__ = ["listen"]


def listen(engine: sa.Engine, sql_mode: str | None) -> None:
    """Prepare all connections of the engine."""
    session = _Session(sql_mode)
    # First, because SQLAlchemy's own listener reads the mode.
    sa.event.listen(engine, "connect", session.prepare, insert=True)


class _Session:
    def __init__(self, sql_mode: str | None) -> None:
        parts = [f"SESSION innodb_lock_wait_timeout = {dialects.LOCK_TIMEOUT_SECONDS}"]
        if sql_mode is not None:
            parts.append(f"SESSION sql_mode = '{sql_mode}'")
        # Only MariaDB executes this comment. MySQL has no such timeout.
        idle = f"/*M!100300 , SESSION idle_transaction_timeout = {dialects.IDLE_SECONDS} */"
        self._setting = f"SET {', '.join(parts)} {idle}"

    def prepare(self, connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(self._setting)
        cursor.close()
        connection.commit()
