"""Refusal of functions that end the transaction of their task."""

from __future__ import annotations

import re
from typing import Any, Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._sql import dialects

__all__ = ["Guard"]

#: The first two words of a statement, after comments.
_WORDS: Final = re.compile(
    r"(?:\s|;|--[^\n]*(?:\n|$)|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/)*(\w+)(?:\s+(\w+))?", re.DOTALL
)

#: First words of statements that end a transaction, with exceptions by their second word.
_ENDS: Final = {
    "COMMIT": (),
    "END": (),
    "ABORT": (),
    "ROLLBACK": ("TO",),
    "BEGIN": (),
    "START": ("SLAVE", "REPLICA"),
}
#: The same for statements before which MySQL commits.
_ENDS_IN_MYSQL: Final = {
    **_ENDS,
    "ALTER": (),
    "CREATE": ("TEMPORARY",),
    "DROP": ("TEMPORARY", "PREPARE"),
    "TRUNCATE": (),
    "RENAME": (),
    "GRANT": (),
    "REVOKE": (),
    "LOCK": (),
    "UNLOCK": (),
    "ANALYZE": ("SELECT",),
    "OPTIMIZE": (),
    "REPAIR": (),
    "XA": (),
}


class Guard:
    """Refuses to end the transaction of a connection before `open`.

    :ivar violation: the first refused call or statement, or None.
    """

    def __init__(self, connection: sa.Connection, dialect: str, task: str) -> None:
        self.violation: str | None = None
        self._task = task
        self._is_open = False
        self._ends = _ENDS_IN_MYSQL if dialect == dialects.MYSQL else _ENDS
        sa.event.listen(connection, "commit", self._on_commit)
        sa.event.listen(connection, "rollback", self._on_rollback)
        sa.event.listen(connection, "before_cursor_execute", self._on_statement)

    def open(self) -> None:
        """Allow everything from now on."""
        self._is_open = True

    def check(self) -> None:
        """Raise the error of the first refusal again, if the function has ignored it.

        :raises InvalidState: if there was one.
        """
        if self.violation is not None:
            raise self._refusal()

    def _on_commit(self, connection: sa.Connection) -> None:
        self._refuse("Connection.commit")

    def _on_rollback(self, connection: sa.Connection) -> None:
        # SQLAlchemy also rolls back when the connection is lost.
        if not connection.invalidated:
            self._refuse("Connection.rollback or close")

    def _on_statement(self, connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if self._is_open:
            return
        match = _WORDS.match(statement)
        if match is None:
            return
        first, second = (match[1] or "").upper(), (match[2] or "").upper()
        if first == "PREPARE" and second == "TRANSACTION":
            self._refuse("PREPARE TRANSACTION")
        elif first in self._ends and second not in self._ends[first]:
            self._refuse(first)

    def _refuse(self, what: str) -> None:
        if not self._is_open:
            self.violation = self.violation or what
            raise self._refusal()

    def _refusal(self) -> exceptions.InvalidState:
        return exceptions.InvalidState(
            f"Task {self._task!r} must leave its transaction open, got {self.violation}: it is"
            " committed when the function returns, and rolled back when it raises an exception"
        )
