"""Transport through MySQL or MariaDB: `mysql://USER@HOST/DATABASE`.

The server cannot notify consumers, so those that wait poll: after 20 ms, and then less often, up to
once a second.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wbengine import exceptions
from wbengine.transports._broker import Frame
from wbengine.transports._sql import mysql_statements as sql
from wbengine.transports._sql.mysql_session import LOST, MySQLSession
from wbengine.transports._sql.sql_broker import SQLBroker

__all__ = ["MySQLBroker"]


class MySQLBroker(SQLBroker):
    """One connection to the queues in a database; see `SQLBroker`."""

    recoverable_connection_errors = LOST
    session_type = MySQLSession
    sql: ClassVar[Any] = sql

    _session: MySQLSession

    def check_size(self, frame: Frame) -> None:
        limit = self._session.max_message_bytes
        if frame.size > limit:
            raise exceptions.TooLarge(
                f"a message must have at most {limit:,} bytes (half of the server's variable"
                f" max_allowed_packet), got {frame.size:,}"
            )
