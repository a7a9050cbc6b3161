"""Sessions of MySQL and MariaDB: their settings, and the meaning of their errors."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._sql import dialects

__all__ = ["listen"]

_PACKET_TOO_LARGE: Final = 1153
_KILLED: Final = 1927
_CONNECTION_LOST: Final = (2006, 2013)


def listen(engine: sa.Engine, sql_mode: str | None) -> None:
    """Configure all connections of the engine, and handle its errors."""
    session = _Session(sql_mode)
    # First, because SQLAlchemy's own listener reads the mode.
    sa.event.listen(engine, "connect", session.configure, insert=True)
    sa.event.listen(engine, "handle_error", session.explain_error)


class _Session:
    def __init__(self, sql_mode: str | None) -> None:
        parts = [f"SESSION innodb_lock_wait_timeout = {dialects.LOCK_TIMEOUT_SECONDS}"]
        if sql_mode is not None:
            parts.append(f"SESSION sql_mode = '{sql_mode}'")
        # Only MariaDB executes this comment. MySQL has no such timeout.
        idle = f"/*M!100300 , SESSION idle_transaction_timeout = {dialects.IDLE_SECONDS} */"
        self._statement = f"SET {', '.join(parts)} {idle}"
        self._max_packet = 0  # until the first connection is open

    def configure(self, connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(self._statement)
        cursor.execute("SELECT @@max_allowed_packet")
        (self._max_packet,) = cursor.fetchone()
        cursor.close()
        connection.commit()

    def explain_error(self, context: sa.engine.ExceptionContext) -> None:
        """Recognize killed connections, and records that are too large.

        For most records that are too large, servers and drivers report only a lost connection.

        :raises RecordTooLarge: if a record is too large.
        """
        arguments = context.original_exception.args
        code = arguments[0] if arguments else None
        if code == _KILLED:
            context.is_disconnect = True
        if not context.execution_context or code not in (_PACKET_TOO_LARGE, *_CONNECTION_LOST):
            return
        size = _max_size(context)
        if code == _PACKET_TOO_LARGE or size > self._max_packet:
            raise exceptions.RecordTooLarge(
                f"A record must have less than {self._max_packet:,} bytes in a statement (the"
                f" server's variable max_allowed_packet), got {size:,}"
            )


def _max_size(context: Any) -> int:
    """Return the size of the statement with the largest row of parameters, as it is sent.

    Drivers write a byte as two digits, or escape it.
    """
    rows = context.parameters if isinstance(context.parameters, list) else [context.parameters]
    cursor = context.execution_context.cursor
    return max((_size(cursor.mogrify(context.statement, row or None)) for row in rows), default=0)


def _size(statement: str | bytes) -> int:
    return len(statement.encode("utf-8", "replace") if isinstance(statement, str) else statement)
