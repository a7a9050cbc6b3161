"""Stores of accounts: a database, Redis, or the memory of this process."""

from __future__ import annotations

import abc
import functools
import inspect
import json
import logging
import math
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _installing, _lua, _names, _secrets, _sql, exceptions
from wbengine._sql import dialects
from wbengine._tasks.limit_attributes import Quota
from wbengine.permits.accounts import Account, Answer, PermitRequest
from wbengine.persistence import base
from wbengine.persistence.backends import sql
from wbengine.persistence.backends.sql import tables

__all__ = ["MemoryStore", "RedisStore", "Requests", "SQLStore", "Store", "check_url", "store_of"]

_T = TypeVar("_T")

LOG: Final = logging.getLogger(__name__)

_SCHEMES: Final = ("redis", "rediss", "unix")
_ACTIVITY: Final = "Accessing limits"
_MAX_ACCOUNTS_PER_TRANSACTION: Final = 200
#: Interval at which expired accounts are deleted from a database.
_SWEEP_SECONDS: Final = 60.0
_MAX_ATTEMPTS: Final = 50


#: Quota of a limit, and requests of flows.
Requests = tuple[Quota, list[PermitRequest]]


class Store(abc.ABC):
    """Store of accounts. Thread-safe."""

    @abc.abstractmethod
    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        """Process requests for limits, by name. Each limit is changed atomically. Idempotent.

        :raises StorageFailure: if the store is unreachable or reports an error.
        """

    @abc.abstractmethod
    def all(self) -> dict[str, tuple[Account, float]]:
        """Return all accounts by name, with the current time of the store."""

    def close(self) -> None:  # noqa: B027
        """Free resources. Idempotent."""


class MemoryStore(Store):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        # Number of accounts above which expired ones are deleted.
        self._sweep_at = _MAX_ACCOUNTS_PER_TRANSACTION

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        answers = {}
        with self._lock:
            now = self._clock()
            for name, limit_requests in requests.items():
                account = self._accounts.setdefault(name, Account())
                answers[name] = account.settle(*limit_requests, now)
                if account.expires(now) <= 0:
                    del self._accounts[name]
            if len(self._accounts) > self._sweep_at:
                for name in [
                    n
                    for n, stored_account in self._accounts.items()
                    if stored_account.expires(now) <= 0
                ]:
                    del self._accounts[name]
                self._sweep_at = max(_MAX_ACCOUNTS_PER_TRANSACTION, 2 * len(self._accounts))
        return answers

    def all(self) -> dict[str, tuple[Account, float]]:
        with self._lock:
            now = self._clock()
            return {
                name: (Account.from_dict(account.to_dict()), now)
                for name, account in self._accounts.items()
            }


class SQLStore(Store):
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
        for start in range(0, len(names), _MAX_ACCOUNTS_PER_TRANSACTION):
            part = names[start : start + _MAX_ACCOUNTS_PER_TRANSACTION]
            work = functools.partial(self._settle, names=part, requests=requests)
            answers.update(self._transact(work, write=True))
        return answers

    def _settle(
        self, connection: sa.Connection, names: list[str], requests: Mapping[str, Requests]
    ) -> dict[str, Answer]:
        rows_by_name = {row.name: row for row in connection.execute(self._read, {"names": names})}
        if missing := [name for name in names if name not in rows_by_name]:
            connection.execute(self._add, [{"name": name, "account": ""} for name in missing])
            rows_by_name.update(
                (row.name, row) for row in connection.execute(self._read, {"names": missing})
            )
        answers, changed, expired = {}, [], []
        for name, row in rows_by_name.items():
            account = _account(name, row.account)
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
            return {row.name: (_account(row.name, row.account), row.now) for row in rows}

        return self._transact(work, write=False)

    def _transact(self, work: Callable[[sa.Connection], _T], *, write: bool) -> _T:
        # After a crash of the database's host, the next requests of flows restore lost accounts.
        engine = self._backend.engine
        return _sql.transact(engine, _ACTIVITY, work, write=write, durable=False)


def _check_options(url: str, pool: Any) -> None:
    """Check options of a URL, which redis-py would reject only when it connects."""
    owners = (*pool.connection_class.__mro__, type(pool))
    known = {name for each in owners for name in inspect.signature(each.__init__).parameters}
    for name in dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query)):
        if name not in known:
            raise ValueError(f"Unknown option {name!r} of limits{_names.hint(name, known)}")


#: Folder with the script `swap`, which writes an account unless it changed since it was read.
_SCRIPTS: Final = Path(__file__).parent / "redis_scripts"


class RedisStore(Store):
    """Accounts in Redis: one key for each limit in use, which expires with the account.

    :raises ImportError: if redis-py is not installed.
    """

    def __init__(self, url: str, prefix: str = "wbengine:limit:") -> None:
        try:
            import redis
        except ImportError as error:
            raise ImportError(_installing.needs("limits in Redis", "redis-py", "redis")) from error
        check_url(url)
        self._errors = redis.RedisError
        self._prefix = prefix
        self._client: Any = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=5.0, socket_connect_timeout=5.0
        )
        _check_options(url, self._client.connection_pool)
        self._swap = self._client.register_script(_lua.load(_SCRIPTS)["swap"].text)

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        return {
            name: self._settle(name, limit_requests) for name, limit_requests in requests.items()
        }

    def _settle(self, name: str, requests: Requests) -> Answer:
        try:
            for _ in range(_MAX_ATTEMPTS):
                stored_text, now = self._read(name)
                account = _account(name, stored_text)
                answer = account.settle(*requests, now)
                seconds_left = account.expires(now)
                new_text = json.dumps(account.to_dict()) if seconds_left > 0 else ""
                expiry = max(1, int(seconds_left * 1000))
                if self._swap(keys=[self._prefix + name], args=[stored_text, new_text, expiry]):
                    return answer
                time.sleep(random.uniform(0, 0.005))
        except self._errors as error:
            raise exceptions.StorageFailure(f"Accessing limits in Redis failed: {error}") from error
        raise exceptions.StorageFailure(
            f"Limit {name!r} is changed by too many processes at the same time"
        )

    def _read(self, name: str) -> tuple[str, float]:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._prefix + name)
            pipe.time()
            text, (seconds, micros) = pipe.execute()
        return text or "", seconds + micros / 1e6

    def all(self) -> dict[str, tuple[Account, float]]:
        try:
            names = [key[len(self._prefix) :] for key in self._keys()]
            read = ((name, *self._read(name)) for name in sorted(names))
            return {name: (_account(name, text), now) for name, text, now in read if text}
        except self._errors as error:
            raise exceptions.StorageFailure(f"Accessing limits in Redis failed: {error}") from error

    def _keys(self) -> Iterator[str]:
        keys: Iterator[str] = self._client.scan_iter(f"{self._prefix}*", count=1000)
        return keys

    def close(self) -> None:
        self._client.close()


def _account(name: str, text: str) -> Account:
    """Decode a stored account. A new one replaces an unreadable one."""
    if not text:
        return Account()
    try:
        return Account.from_dict(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.warning("cannot read the state of limit %r; resetting it: %s", name, error)
        return Account()


#: For flows whose store does not contain limits.
_of_process: Final = MemoryStore()


def check_url(url: Any) -> str:
    """Check and return the URL of a Redis for limits.

    :raises ValueError: if it is invalid.
    """
    scheme, mark, _ = str(url).partition("://")
    if not isinstance(url, str) or not mark or scheme not in _SCHEMES:
        shown, near = _secrets.masked(str(url)), _names.hint(scheme, _SCHEMES)
        raise ValueError(
            f"limits must be the URL of a Redis (redis://HOST/DB), got {shown!r:.80}{near};"
            " by default, limits are in the store of the flow"
        )
    return url


def store_of(place: str | base.Backend | None) -> Store:
    """Return the store for a place: the URL of a Redis, or the backend of a flow.

    :raises ImportError: if redis-py is not installed.
    """
    if isinstance(place, str):
        return RedisStore(place)
    return SQLStore(place) if isinstance(place, sql.SQLBackend) else _of_process
