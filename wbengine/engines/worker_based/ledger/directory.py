"""A ledger in a folder, for all processes of one host: a table of the file in which our folder
transport has its queues (`transports/_folder`).

Each step is one statement that names the state which it expects.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.transports import _folder
from wbengine.transports.broker import Taken
from wbengine.transports.filesystem import Row

LOG = logging.getLogger(__name__)

#: States, as they are written.
_STATES: Final[tuple[base.State, ...]] = (base.ROW_OPEN, base.ROW_CLAIMED, base.ROW_DONE)
#: So many rows are made by one statement.
_TOGETHER: Final = 200

_SILENT: Final = "(holder IS NULL OR holder NOT IN (SELECT holder FROM beat WHERE at > ?1))"


class DirectoryLedger(base.Ledger):
    """Rows in the file of one folder, made (mode 0700) when it is not there."""

    def __init__(self, folder: str, result_ttl: float | None = base.STALE_AFTER) -> None:
        try:
            self._folder = _folder.open_folder(folder)
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

    # -- the engine

    def _open(self, rows: Sequence[tuple[str, int]]) -> None:
        self._make(rows, "NOTHING")

    def _offer(self, rows: Sequence[tuple[str, int]]) -> None:
        self._make(
            rows,
            "UPDATE SET epoch = excluded.epoch, changed = excluded.changed"
            " WHERE state = 0 AND epoch < excluded.epoch",
        )

    def _make(self, rows: Sequence[tuple[str, int]], else_do: str) -> None:
        self._folder.check_room(exceptions.LedgerFailure)
        for first in range(0, len(rows), _TOGETHER):
            some = rows[first : first + _TOGETHER]
            now = _folder.now()
            self._write(
                "INSERT INTO request(id, epoch, state, changed) VALUES"
                f" {', '.join(['(?, ?, 0, ?)'] * len(some))} ON CONFLICT DO {else_do}",
                *(value for id, epoch in some for value in (id, epoch, now)),
            )

    def _try_reopen(self, id: str, epoch: int) -> bool:
        return self._write(
            "UPDATE request SET epoch = ?1, state = 0, holder = NULL, changed = ?2"
            " WHERE id = ?3 AND epoch < ?1 AND state <> 2",
            epoch, _folder.now(), id,
        ) > 0  # fmt: skip

    def _revoke(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]:
        return base.each_of(self._revoke_one, rows)

    def _revoke_one(self, id: str, epoch: int | None) -> bool:
        return self._write(
            "DELETE FROM request WHERE id = ? AND state = 0 AND epoch <= COALESCE(?, epoch)",
            id, epoch,
        ) > 0  # fmt: skip

    def _drop(self, ids: Sequence[str]) -> None:
        self._write(
            "DELETE FROM request WHERE id IN (SELECT value FROM json_each(?))", json.dumps([*ids])
        )

    # -- workers

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        with self._lock:
            self._known_holders.add(holder)
        return self._write(
            "UPDATE request SET state = 1, holder = ?, changed = ?, taken = NULL"
            " WHERE id = ? AND epoch = ? AND state = 0",
            holder, _folder.now(), id, epoch,
        ) > 0  # fmt: skip

    def _renew(self, holder: str) -> None:
        self._write(
            "INSERT INTO beat VALUES (?, ?) ON CONFLICT DO UPDATE SET at = excluded.at",
            holder, _folder.now(),
        )  # fmt: skip
        with self._lock:
            self._known_holders.add(holder)

    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]:
        return base.each_of(self._finish_one, [(holder, *row) for row in ended])

    def _finish_one(self, holder: str, id: str, epoch: int, result: bytes) -> bool:
        return self._write(
            "UPDATE request SET state = 2, holder = NULL, result = ?, changed = ?"
            " WHERE id = ? AND epoch = ? AND state = 1 AND holder = ?",
            result, _folder.now(), id, epoch, holder,
        ) > 0  # fmt: skip

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        return self._write(
            "UPDATE request SET state = 0, holder = NULL, changed = ?"
            " WHERE id = ? AND epoch = ? AND state = 1 AND holder = ?",
            _folder.now(), id, epoch, holder,
        ) > 0  # fmt: skip

    def claims(self, place: object, holder: str) -> Claims | None:
        here = os.path.realpath(self._folder.root)
        if not isinstance(place, tuple) or {*map(os.path.realpath, place)} != {here}:
            return None
        with self._lock:
            self._known_holders.add(holder)
        return Claims(self.digest, base.check_holder(holder))

    # -- looking

    def _silence(self, holder: str) -> float | None:
        found = self._read("SELECT at FROM beat WHERE holder = ?", holder)
        # No beat comes through while a process keeps all from writing: that is no silence.
        since = max(found[0][0], self._folder.hindered) if found else None
        return None if since is None else max(0.0, _folder.now() - since)

    def _states(self, ids: Sequence[str]) -> list[base.Row | exceptions.LedgerFailure | None]:
        try:
            found = self._read(
                "SELECT id, epoch, state, holder, result FROM request"
                " WHERE id IN (SELECT value FROM json_each(?))",
                json.dumps([*ids]),
            )
        except exceptions.LedgerFailure as error:
            return [error] * len(ids)
        rows = {row[0]: _row(*row) for row in found}
        return [rows.get(id) for id in ids]

    def ids(self) -> set[str]:
        return {id for (id,) in self._read("SELECT id FROM request")}

    def list_rows(self, limit: int = 100, after: str | None = None) -> base.Page:
        # No id is an empty text.
        found = [
            base.Listed(id, epoch, _STATES[state], holder, max(0.0, age))
            for id, epoch, state, holder, age in self._read(
                "SELECT id, epoch, state, holder, ? - changed FROM request WHERE id > ?"
                " ORDER BY id LIMIT ?",
                _folder.now(), after or "", base.check_limit(limit) + 1,
            )
        ]  # fmt: skip
        return base.Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    # -- its end

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        before = _folder.now() - older_than
        which = "state = 2" if only_done else _SILENT
        count = self._write(f"DELETE FROM request WHERE changed <= ?1 AND {which}", before)
        if not only_done:
            self._write(
                "DELETE FROM beat WHERE at <= ? AND holder NOT IN"
                " (SELECT holder FROM request WHERE holder IS NOT NULL)",
                _folder.now() - min(older_than, base.SWEEP_EVERY),
            )
        return count

    def _is_sweep_due(self) -> bool:
        now = _folder.now()
        due = "UPDATE about SET rows_swept = ? WHERE rows_swept <= ?"
        return self._write(due, now, now - base.SWEEP_EVERY) > 0

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
        except exceptions.LedgerFailure as error:  # swept one day
            LOG.debug("%s", error)
        if not closed:
            self._folder.release()


class Claims:
    """For whom our folder transport claims requests as it takes them, and ends them."""

    def __init__(self, digest: str, holder: str) -> None:
        self.digest = digest
        self.holder = holder

    def tell(
        self, taken: Taken, began: float, id: str, epoch: int, row: Row, granted: bool
    ) -> None:
        """Say what became of a request that was taken in a step that began then, by its row and
        whether that was claimed with it."""
        taken.at = began
        if granted:
            taken.claim = base.Claim(base.GRANTED, epoch, None, self.holder)
        else:  # None: it can be claimed since then
            taken.claim = base.refusal(None if row is None else _row(id, *row), epoch)


def _row(id: str, epoch: int, state: int, holder: str | None, result: bytes | None) -> base.Row:
    return base.Row(id, epoch, _STATES[state], holder, result)
