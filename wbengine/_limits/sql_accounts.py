"""Accounts in the database of the flows."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql
from wbengine._limits import account_stores, limit_changes
from wbengine._limits.account_stores import Requests, read_account
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import Account, Answer
from wbengine._sql import dialects
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables

__all__ = ["SQLStore"]

_T = TypeVar("_T")

_ACTIVITY: Final = "Accessing limits"
#: Columns of changes, in the order of the fields of `LimitChange`.
_CHANGE_COLUMNS: Final = ("name", "rate", "concurrency", "reason", "sender", "changed_at")
#: With its type, as PostgreSQL compares an empty list, too.
_NAMES: Final[sa.BindParameter[Any]] = sa.bindparam("names", expanding=True, type_=sa.String)
#: Interval at which expired accounts are deleted.
_SWEEP_SECONDS: Final = 60.0


class SQLStore(account_stores.Store):
    """Accounts in the database of the flows: one row for each limit in use."""

    def __init__(self, backend: sql.SQLBackend) -> None:
        self._backend = backend
        dialect = backend.options.dialect
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        table, now = tables.LIMITS.name, dialects.now(dialect)
        self._read = sa.text(
            f"SELECT name, account, {now} AS now FROM {table} WHERE name IN :names"
            f" ORDER BY name{lock}"
        ).bindparams(_NAMES)
        columns = ("name", "account")
        self._add = dialects.upsert(dialect, table, columns, ("name",), keep=columns)
        self._write = sa.text(
            f"UPDATE {table} SET account = :account, expires = :expires WHERE name = :name"
        )
        self._sweep = sa.text(f"DELETE FROM {table} WHERE expires <= {now}")
        self._swept_at = -math.inf
        self._remove = sa.text(f"DELETE FROM {table} WHERE name = :name")
        self._all = sa.text(f"SELECT name, account, {now} AS now FROM {table} ORDER BY name")
        self._some = sa.text(
            f"SELECT name, account, {now} AS now FROM {table} WHERE name IN :names"
        ).bindparams(_NAMES)
        changes = tables.LIMIT_CHANGES.name
        select = f"SELECT {', '.join(_CHANGE_COLUMNS)} FROM {changes}"
        self._all_changes = sa.text(f"{select} ORDER BY name")
        self._changes_of = sa.text(f"{select} WHERE name IN :names").bindparams(_NAMES)
        # By board, because that is the first column of the index.
        self._parked = sa.text(
            f"SELECT board, flow_limit, COUNT(*) FROM {tables.JOBS.name}"
            " WHERE flow_limit IS NOT NULL GROUP BY board, flow_limit"
        )
        self._limits_of = sa.text(
            f"SELECT flow_limit FROM {tables.JOBS.name}"
            " WHERE uuid IN :uuids AND flow_limit IS NOT NULL"
        ).bindparams(sa.bindparam("uuids", expanding=True))
        self._remove_change = sa.text(f"DELETE FROM {changes} WHERE name = :name")

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        answers, names = dict[str, Answer](), sorted(requests)
        self._backend.prepare()
        if time.monotonic() > self._swept_at + _SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            self._transact(lambda connection: connection.execute(self._sweep), write=True)
        for start in range(0, len(names), account_stores.MAX_ACCOUNTS_PER_BATCH):
            part = names[start : start + account_stores.MAX_ACCOUNTS_PER_BATCH]
            work = functools.partial(self._settle, names=part, requests=requests)
            answers.update(self._transact(work, write=True))
        return answers

    def _settle(
        self, connection: sa.Connection, names: list[str], requests: Mapping[str, Requests]
    ) -> dict[str, Answer]:
        changes = self._read_changes(connection, names)  # Before accounts are locked.
        rows_by_name = {row.name: row for row in connection.execute(self._read, {"names": names})}
        # Repeated, because another process may add a row first, and delete it before this read.
        while missing := [name for name in names if name not in rows_by_name]:
            connection.execute(self._add, [{"name": name, "account": ""} for name in missing])
            rows_by_name.update(
                (row.name, row) for row in connection.execute(self._read, {"names": missing})
            )
        answers, changed, expired = {}, [], []
        for name, row in rows_by_name.items():
            account = read_account(name, row.account)
            in_force = limit_changes.apply(name, requests[name][0], changes)
            answers[name] = account.settle(*requests[name], row.now, in_force)
            seconds_left = account.expires(row.now)
            if seconds_left <= 0:
                expired.append({"name": name})
            else:
                text = json.dumps(account.to_dict())
                changed.append({"name": name, "account": text, "expires": row.now + seconds_left})
        for statement, rows in ((self._write, changed), (self._remove, expired)):
            if rows:
                connection.execute(statement, rows)
        return answers

    def all(self) -> dict[str, tuple[Account, float]]:
        return self._read_accounts(self._all, {}) if self._backend.has_tables() else {}

    def read(self, names: Sequence[str]) -> dict[str, tuple[Account, float]]:
        self._backend.prepare()
        return self._read_accounts(self._some, {"names": list(names)})

    def parked(self, others: Collection[str]) -> dict[str, int]:
        if not self._backend.has_tables():
            return {}
        uuids = list(others)

        def work(connection: sa.Connection) -> dict[str, int]:
            counts = collections.Counter[str]()
            for _, name, count in connection.execute(self._parked):
                counts[name] += count
            for start in range(0, len(uuids), account_stores.MAX_ACCOUNTS_PER_BATCH):
                part = uuids[start : start + account_stores.MAX_ACCOUNTS_PER_BATCH]
                counts.subtract(connection.scalars(self._limits_of, {"uuids": part}))
            return dict(+counts)

        return self._transact(work, write=False)

    def _read_accounts(
        self, statement: sa.TextClause, parameters: Mapping[str, Any]
    ) -> dict[str, tuple[Account, float]]:
        def work(connection: sa.Connection) -> dict[str, tuple[Account, float]]:
            rows = connection.execute(statement, parameters)
            return {row.name: (read_account(row.name, row.account), row.now) for row in rows}

        return self._transact(work, write=False)

    def change(self, change: LimitChange) -> None:
        values = zip(_CHANGE_COLUMNS, dataclasses.astuple(change), strict=True)
        row = {
            column: value
            for column, value in values
            if value is not None or column not in ("rate", "concurrency")
        }
        put = dialects.upsert(
            self._backend.options.dialect, tables.LIMIT_CHANGES.name, row, ("name",)
        )
        self._backend.prepare()
        self._transact(lambda connection: connection.execute(put, [row]), write=True, durable=True)

    def remove_change(self, name: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            return connection.execute(self._remove_change, {"name": name}).rowcount > 0

        self._backend.prepare()
        return self._transact(work, write=True, durable=True)

    def changes(self, limits: Iterable[str] | None = None) -> dict[str, LimitChange]:
        if not self._backend.has_tables():
            return {}
        return self._transact(
            lambda connection: self._read_changes(connection, limits), write=False
        )

    def _read_changes(
        self, connection: sa.Connection, limits: Iterable[str] | None
    ) -> dict[str, LimitChange]:
        if limits is None:
            rows = connection.execute(self._all_changes)
        else:
            rows = connection.execute(self._changes_of, {"names": limit_changes.names_of(limits)})
        return {row.name: LimitChange(*row) for row in rows}

    def _transact(
        self, work: Callable[[sa.Connection], _T], *, write: bool, durable: bool = False
    ) -> _T:
        # After a crash of the database's host, the next requests of flows restore lost accounts.
        engine = self._backend.engine
        return _sql.transact(engine, _ACTIVITY, work, write=write, durable=durable)
