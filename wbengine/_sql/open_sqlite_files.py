"""Open SQLite files: detection of deleted and replaced files, and closing before forks."""

from __future__ import annotations

import os
import sqlite3
from typing import Final

import sqlalchemy as sa

from wbengine._sqlite.fork_gate import ForkGate

__all__ = ["OpenFile"]


class OpenFile:
    """A SQLite file of which an engine has connections. A context manager for their use.

    Entering raises `sqlalchemy.exc.OperationalError` if the file was deleted or replaced since it
    was opened. SQLite does not notice this, and what it writes is lost.

    :ivar detached: open connections that do not belong to the pool or the writer.
    """

    def __init__(self, gate: ForkGate) -> None:
        self._gate: Final = gate
        self._path = ""
        self._identity: tuple[int, int] | None = None
        self.detached: Final = set[sqlite3.Connection]()

    def on_connect(self, connection: sqlite3.Connection) -> None:
        """Store the identity of the file, if this is the first connection."""
        if self._identity is None:
            ((_, _, self._path),) = connection.execute("PRAGMA database_list").fetchall()
            self._identity = _identity(self._path)

    def on_close(self) -> None:
        """Close the detached connections, after all others. The next one may open another file."""
        for connection in self.detached:
            connection.close()
        self.detached.clear()
        self._identity = None

    def check(self) -> None:
        if self._identity is not None and _identity(self._path) != self._identity:
            reason = (
                f"the file {self._path} was deleted or replaced while this process had it open:"
                " nothing more is read from it or written to it. Start the process again"
            )
            raise sa.exc.OperationalError("check", None, sqlite3.OperationalError(reason))

    def __enter__(self) -> None:
        self._gate.__enter__()
        try:
            self.check()
        except BaseException:
            self._gate.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._gate.__exit__()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
