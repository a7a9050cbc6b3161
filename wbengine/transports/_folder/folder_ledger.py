"""A ledger in a folder, for all processes of one host.

It is a table in the database file of the folder transport (`folder_tables`). Triggers of this file
claim and finish rows together with messages, and receive the clock of the host as an argument.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from wbengine import exceptions
from wbengine.transports import _ledger
from wbengine.transports._folder import folder_tables
from wbengine.transports._kinds import Target
from wbengine.transports._table_ledger import TableLedger, Tables

#: A claim without a message must not be undone with an earlier one.
_TABLES: Final = Tables(
    rows="request", holders="beat", beat="at", about="about", swept="rows_swept", now=":now",
    ids="(SELECT value FROM json_each(:ids))", claim=", taken = NULL",
)  # fmt: skip


class DirectoryLedger(TableLedger):
    """A ledger in the file of a folder, which is created (mode 0700) if necessary."""

    def __init__(self, folder: str, result_ttl: float | None = _ledger.STALE_AFTER_SECONDS) -> None:
        super().__init__(_TABLES)
        try:
            self._folder = folder_tables.open_folder(folder)
        except (OSError, exceptions.TransportFailure) as exc:
            raise exceptions.LedgerFailure(f"ledger {folder} cannot be used: {exc}") from exc
        self._closed = False
        self.sweep_when_due(result_ttl)

    def __str__(self) -> str:
        return self._folder.root

    @property
    def digest(self) -> str:
        return self._folder.digest

    def _execute(self, operation: str, statement: str, values: Mapping[str, Any]) -> int:
        with _failures():
            return self._folder.write(statement, _bound(values))

    def _read(
        self, operation: str, statement: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        with _failures():
            return self._folder.read(statement, _bound(values))

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        with _failures():
            self._folder.check_room()
        super()._open(rows)

    def _silence(self, holder: str) -> float | None:
        rows = self._read("asking", self._sql.silence, {"holder": holder})
        if not rows:
            return None
        # While another process blocks all writes, heartbeats cannot be stored. A heartbeat that was
        # stored while this read waited is later than its time.
        silence = float(rows[0][0])
        return max(0.0, min(silence, folder_tables.now() - self._folder.last_blocked_at))

    def close(self) -> None:
        super().close()
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._folder.release()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except exceptions.TransportFailure as error:
        raise exceptions.LedgerFailure(str(error)) from error


def _bound(values: Mapping[str, Any]) -> dict[str, Any]:
    bound = {**values, "now": folder_tables.now()}
    if "ids" in bound:
        bound["ids"] = json.dumps(bound["ids"])
    return bound


def check(place: str) -> str:
    """Return the path in `dir:///PATH`."""
    return unquote(place.partition("://")[2])


def is_at(place: str, broker: object) -> bool:
    folders = broker if isinstance(broker, tuple) else ()
    return {*map(os.path.realpath, folders)} == {os.path.realpath(check(place))}


def open_place(place: str, result_ttl: float | None) -> DirectoryLedger:
    return DirectoryLedger(check(place), result_ttl)


def of_broker(target: Target, role: str, result_ttl: float | None) -> DirectoryLedger:
    """Open the ledger in the folder of requests: `out` of an engine, `in` of a worker."""
    folder_in, folder_out = target.place
    return DirectoryLedger(folder_in if role == "worker" else folder_out, result_ttl)
