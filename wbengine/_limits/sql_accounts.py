"""Accounts in the database of the flows."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql
from wbengine._limits import shared_accounts
from wbengine._limits.permit_rules import Account, Answer
from wbengine._limits.shared_accounts import Requests, read_account
from wbengine._sql import dialects
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import tables

__all__ = ["SQLStore"]

_T = TypeVar("_T")

_ACTIVITY: Final = "Accessing limits"
#: Interval at which expired accounts are deleted.
_SWEEP_SECONDS: Final = 60.0


class SQLStore(shared_accounts.Store):
    """Accounts in the database of the flows: one row for each limit in use."""

    def __init__(self, backend: sql.SQLBackend) -> None:
        self._backend = backend
        dialect = backend.options.dialect
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        table, now = tables.LIMITS.name, dialects.now(dialect)
        self._read = sa.text(
            f"SELECT name, account, {now} AS now FROM {table} WHERE name IN :names"
            f" ORDER BY name{lock}"
        ).bindparams(sa.bindparam("names", expanding=True))
        columns = ("name", "account")
        self._add = dialects.upsert(dialect, table, columns, ("name",), keep=columns)
        self._write = sa.text(
            f"UPDATE {table} SET account = :account, expires = :expires WHERE name = :name"
        )
        self._sweep = sa.text(f"DELETE FROM {table} WHERE expires <= {now}")
        self._swept_at = -math.inf
        self._remove = sa.text(f"DELETE FROM {table} WHERE name = :name")
        self._all = sa.text(f"SELECT name, account, {now} AS now FROM {table} ORDER BY name")

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        answers, names = dict[str, Answer](), sorted(requests)
        self._backend.prepare()
        if time.monotonic() > self._swept_at + _SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            self._transact(lambda connection: connection.execute(self._sweep), write=True)
        for start in range(0, len(names), shared_accounts.MAX_ACCOUNTS_PER_BATCH):
            part = names[start : start + shared_accounts.MAX_ACCOUNTS_PER_BATCH]
            work = functools.partial(self._settle, names=part, requests=requests)
            answers.update(self._transact(work, write=True))
        return answers

    def _settle(
        self, connection: sa.Connection, names: list[str], requests: Mapping[str, Requests]
    ) -> dict[str, Answer]:
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
            answers[name] = account.settle(*requests[name], row.now)
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
        if not self._backend.has_tables():
            return {}

        def work(connection: sa.Connection) -> dict[str, tuple[Account, float]]:
            rows = connection.execute(self._all)
            return {row.name: (read_account(row.name, row.account), row.now) for row in rows}

        return self._transact(work, write=False)

    def _transact(self, work: Callable[[sa.Connection], _T], *, write: bool) -> _T:
        # After a crash of the database's host, the next requests of flows restore lost accounts.
        engine = self._backend.engine
        return _sql.transact(engine, _ACTIVITY, work, write=write, durable=False)
