"""Connections to SQLite files, which are closed before forks."""

from __future__ import annotations

import sqlite3
from typing import Final

from wbengine._fork_gate import ForkGate

__all__ = ["OpenFile"]


class OpenFile:
    """A SQLite file of which an engine has connections. A context manager for their use.

    :ivar closings: how often all connections were closed.
    :ivar detached: connections that do not belong to the pool or the writer.
    """

    def __init__(self, gate: ForkGate) -> None:
        self._gate: Final = gate
        self.closings = 0
        self.detached: Final = set[sqlite3.Connection]()

    def on_close(self) -> None:
        """Close the detached connections, after all others."""
        for connection in self.detached:
            connection.close()
        self.detached.clear()
        self.closings += 1

    def __enter__(self) -> None:
        self._gate.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._gate.__exit__()
