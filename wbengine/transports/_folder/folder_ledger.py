"""A ledger in a folder, for all processes of one host.

It is a table in the database file of the folder transport (`transports/_folder`). Each step is one
statement that names the expected state.

The statements are not shared with the ledger in a database (`sql`). Here triggers of the same file
claim and finish rows together with messages, so both use one connection without SQLAlchemy, and
the clock of the host, which the triggers receive as an argument. `sql` uses the clock of the
server, and needs no columns for the message of a row.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from wbengine import exceptions
from wbengine.transports import _ledger
from wbengine.transports._folder import folder_tables
from wbengine.transports._kinds import Target

LOG = logging.getLogger(__name__)

_MAX_ROWS_PER_STATEMENT: Final = 200

#: Condition of statements for engines. Its arguments are those of a `Fence`.
_FENCE: Final = "NOT EXISTS (SELECT 1 FROM request WHERE id = ? AND epoch > ?)"


class DirectoryLedger(_ledger.Ledger):
    """A ledger in the file of a folder, which is created (mode 0700) if necessary."""

    def __init__(self, folder: str, result_ttl: float | None = _ledger.STALE_AFTER_SECONDS) -> None:
        try:
            self._folder = folder_tables.open_folder(folder)
        except (OSError, exceptions.TransportFailure) as exc:
            raise exceptions.LedgerFailure(f"ledger {folder} cannot be used: {exc}") from exc
        self._lock = threading.Lock()
        self._known_holders: set[str] = set()
        self._closed = False
        self.sweep_when_due(result_ttl)

    def __str__(self) -> str:
        return self._folder.root

    @property
    def digest(self) -> str:
        return self._folder.digest

    def _write(self, statement: str, *values: Any) -> int:
        return self._folder.write(statement, values, exceptions.LedgerFailure)

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._folder.read(statement, values, exceptions.LedgerFailure)

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        self._folder.check_room(exceptions.LedgerFailure)
        for start in range(0, len(rows), _MAX_ROWS_PER_STATEMENT):
            batch = rows[start : start + _MAX_ROWS_PER_STATEMENT]
            now = folder_tables.now()
            self._write(
                "WITH new(id, epoch, fence, number) AS"
                f" (VALUES {', '.join(['(?, ?, ?, ?)'] * len(batch))})"
                " INSERT INTO request(id, epoch, state, changed) SELECT id, epoch, 0, ? FROM new"
                " WHERE NOT EXISTS (SELECT 1 FROM request WHERE id = fence AND epoch > number)"
                " ON CONFLICT DO UPDATE SET epoch = excluded.epoch, changed = excluded.changed"
                " WHERE state = 0 AND epoch < excluded.epoch",
                *(value for id, epoch, fence in batch for value in (id, epoch, *fence)),
                now,
            )

    def _try_reopen(self, id: str, epoch: int, fence: _ledger.Fence) -> bool:
        return self._write(
            "UPDATE request SET epoch = ?, state = 0, holder = NULL, changed = ?"
            f" WHERE id = ? AND epoch < ? AND state <> 2 AND {_FENCE}",
            epoch, folder_tables.now(), id, epoch, *fence,
        ) > 0  # fmt: skip

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        return _ledger.call_each(self._revoke_one, rows)

    def _revoke_one(self, id: str, epoch: int | None, fence: _ledger.Fence) -> bool:
        return self._write(
            "DELETE FROM request WHERE id = ? AND state = 0 AND epoch <= COALESCE(?, epoch)"
            f" AND {_FENCE}",
            id, epoch, *fence,
        ) > 0  # fmt: skip

    def _drop(self, ids: Sequence[str]) -> None:
        self._write(
            "DELETE FROM request WHERE id IN (SELECT value FROM json_each(?))", json.dumps([*ids])
        )

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        with self._lock:
            self._known_holders.add(holder)
        return self._write(
            "UPDATE request SET state = 1, holder = ?, changed = ?, taken = NULL"
            " WHERE id = ? AND epoch = ? AND state = 0",
            holder, folder_tables.now(), id, epoch,
        ) > 0  # fmt: skip

    def _renew(self, holder: str) -> None:
        self._write(
            "INSERT INTO beat VALUES (?, ?) ON CONFLICT DO UPDATE SET at = excluded.at",
            holder, folder_tables.now(),
        )  # fmt: skip
        with self._lock:
            self._known_holders.add(holder)

    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: _ledger.Fence
    ) -> list[bool | exceptions.LedgerFailure]:
        rows = [(holder, *row, fence) for row in finished_rows]
        return _ledger.call_each(self._finish_one, rows)

    def _finish_one(
        self, holder: str, id: str, epoch: int, result: bytes, fence: _ledger.Fence
    ) -> bool:
        return self._write(
            "UPDATE request SET state = 2, holder = NULL, result = ?, changed = ?"
            f" WHERE id = ? AND epoch = ? AND state = 1 AND holder = ? AND {_FENCE}",
            result, folder_tables.now(), id, epoch, holder, *fence,
        ) > 0  # fmt: skip

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        return self._write(
            "UPDATE request SET state = 0, holder = NULL, changed = ?"
            " WHERE id = ? AND epoch = ? AND state = 1 AND holder = ?",
            folder_tables.now(), id, epoch, holder,
        ) > 0  # fmt: skip

    def _silence(self, holder: str) -> float | None:
        beats = self._read("SELECT at FROM beat WHERE holder = ?", holder)
        # While another process blocks all writes, heartbeats cannot be stored.
        last_beat = max(beats[0][0], self._folder.last_blocked_at) if beats else None
        return None if last_beat is None else max(0.0, folder_tables.now() - last_beat)

    def _states(self, ids: Sequence[str]) -> list[_ledger.Row | exceptions.LedgerFailure | None]:
        try:
            records = self._read(
                "SELECT id, epoch, state, holder, result FROM request"
                " WHERE id IN (SELECT value FROM json_each(?))",
                json.dumps([*ids]),
            )
        except exceptions.LedgerFailure as error:
            return [error] * len(ids)
        rows = {row[0]: _row(*row) for row in records}
        return [rows.get(id) for id in ids]

    def _ids(self) -> set[str]:
        return {id for (id,) in self._read("SELECT id FROM request")}

    def _list_rows(self, limit: int, after: str | None) -> _ledger.Page:
        # Every id sorts after ''.
        rows = [
            _ledger.Listed(id, epoch, _ledger.STATES[state], holder, max(0.0, age))
            for id, epoch, state, holder, age in self._read(
                "SELECT id, epoch, state, holder, ? - changed FROM request WHERE id > ?"
                " ORDER BY id LIMIT ?",
                folder_tables.now(), after or "", limit + 1,
            )
        ]  # fmt: skip
        return _ledger.Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        cutoff = folder_tables.now() - older_than
        if only_done:
            return self._write("DELETE FROM request WHERE changed <= ? AND state = 2", cutoff)
        count = self._write(
            "DELETE FROM request WHERE changed <= ?"
            " AND (holder IS NULL OR holder NOT IN (SELECT holder FROM beat WHERE at > ?))",
            cutoff, cutoff,
        )  # fmt: skip
        self._write(
            "DELETE FROM beat WHERE at <= ? AND holder NOT IN"
            " (SELECT holder FROM request WHERE holder IS NOT NULL)",
            folder_tables.now() - min(older_than, _ledger.SWEEP_PERIOD_SECONDS),
        )
        return count

    def _is_sweep_due(self) -> bool:
        now = folder_tables.now()
        due = "UPDATE about SET rows_swept = ? WHERE rows_swept <= ?"
        return self._write(due, now, now - _ledger.SWEEP_PERIOD_SECONDS) > 0

    def close(self) -> None:
        with self._lock:
            holders, self._known_holders = self._known_holders, set()
            closed, self._closed = self._closed, True
        try:
            if holders:
                self._write(
                    "DELETE FROM beat WHERE holder IN (SELECT value FROM json_each(?)) AND NOT"
                    " EXISTS (SELECT 1 FROM request WHERE request.holder = beat.holder)",
                    json.dumps([*holders]),
                )
        except exceptions.LedgerFailure as error:  # A later sweep removes the heartbeats.
            LOG.debug("%s", error)
        if not closed:
            self._folder.release()


def _row(id: str, epoch: int, state: int, holder: str | None, result: bytes | None) -> _ledger.Row:
    return _ledger.Row(id, epoch, _ledger.STATES[state], holder, result)


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
